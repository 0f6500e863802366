// One episode, played by a person.

import {ask, newName} from "./api.js";
import {envLink, mapping, playLink, replayLink} from "./links.js";
import {bdi, button, el, failure, field, link, outcome, plural, shared, short, stage, stat, visible} from "./parts.js";
import {episodeFields} from "./catalogue.js";

const KEYS = {ArrowUp: "up", w: "up", W: "up", ArrowDown: "down", s: "down", S: "down", ArrowLeft: "left", a: "left", A: "left", ArrowRight: "right", d: "right", D: "right"};
const ARROWS = {up: "↑", left: "←", down: "↓", right: "→"};
const SHOWN = 200, AHEAD = 3;
const typing = target => target.matches?.("textarea, select, input:not([type=button])");

export function playView({rest: env, query, denied}) {
  const seed = query.get("seed") || "", kwargs = mapping(query.get("kwargs")) || {}, options = mapping(query.get("options")) || {};
  const node = el("section", {}, el("p", {class: "crumbs small"}, link("Environments", "#/")), el("h1", {}, bdi(env)), el("p", {class: "dim", role: "status"}, "A worker gets it ready…"));
  const view = {title: `Play ${env}`, node};
  view.start = async () => {
    let card;
    try { card = await ask("card", {env, kwargs}); } catch (error) { return node.lastChild.replaceWith(denied(error)); }
    if (view.closed) return;
    const game = new Game(node, card, {seed, kwargs, options});
    view.game = game;
    game.begin(seed);
  };
  view.close = () => { view.closed = true; view.game?.close(); };
  return view;
}

const randomSeed = () => String(crypto.getRandomValues(new Uint32Array(1))[0] % 10000);

class Game {
  constructor(node, card, settings) {
    Object.assign(this, {node, card, env: card.env, kwargs: settings.kwargs, options: settings.options, session: "", turns: [], busy: null, queue: []});
    this.fields = episodeFields(settings, card);
    this.seed = el("input", {type: "text", inputmode: "numeric", pattern: "[0-9]*", class: "seed", autocomplete: "off", onkeydown: event => { if (event.key === "Enter") this.again(); }});
    this.board = el("div", {class: "card"});
    this.status = el("div", {class: "row statusline", role: "status"});
    this.notice = el("div", {class: "notices"});
    this.acts = el("div", {class: "card acts", role: "group", "aria-label": "Your turn"});
    this.log = el("div", {});
    this.share = el("div", {});
    this.onkey = event => this.key(event);
    document.addEventListener("keydown", this.onkey);
    const head = el("div", {class: "row spread head"}, el("h1", {}, bdi(this.env)), el("div", {class: "row"}, link("Its card", envLink(this.env), {class: "second"}), button("Share this episode", () => this.sharing(), {class: "quiet"})));
    const setup = el("div", {class: "row setup"}, field("Seed", this.seed), button("Restart this seed", () => this.again()), button("New episode", () => this.begin(randomSeed()), {class: "quiet"}),
      el("details", {class: "folded"}, el("summary", {}, "Arguments"), this.fields.node));
    this.layout = el("div", {class: "game"}, el("div", {}, this.board), el("div", {}, this.acts, this.log));
    node.replaceChildren(el("p", {class: "crumbs small"}, link("Environments", "#/")), head, setup, this.share, this.status, this.notice, this.layout);
    this.controls();
  }

  close() {
    document.removeEventListener("keydown", this.onkey);
    this.gone = true;
    this.end();
  }

  end() {
    if (this.session) ask("end", {session: this.session}, {keepalive: true}).catch(() => {});
    this.session = "";
    this.queue = [];
  }

  get last() { return this.turns.at(-1); }
  get over() { return !!this.last && !!(this.last.terminated || this.last.truncated); }

  again() { this.begin(this.seed.value.trim()); }

  // Another episode: in the same session where nothing but the seed changes.
  async begin(seed) {
    let wanted;
    try { wanted = this.fields.values(); } catch (error) { return this.failed(error); }
    const same = this.session && JSON.stringify(wanted.kwargs) === JSON.stringify(this.kwargs) && !this.busy;
    this.kwargs = wanted.kwargs;
    this.options = wanted.options;
    this.queue = [];
    if (!same) {
      this.busy = null;
      this.end();
      this.session = newName();
      this.turns = [];
      this.board.replaceChildren(el("p", {class: "dim"}, "A worker gets it ready…"));
      this.draw();
    }
    this.seed.value = seed || randomSeed();
    const body = {session: this.session, seed: this.seed.value, options: this.options};
    const turn = await this.call(same ? "reset" : "open", same ? body : {...body, env: this.env, kwargs: this.kwargs});
    if (!turn) return;
    this.turns = [turn];
    this.share.replaceChildren();
    history.replaceState(null, "", playLink(this.env, {seed: turn.seed, kwargs: this.kwargs, options: this.options}));
    this.draw();
  }

  // Ask the server; null if it refused, which is shown then. Only the newest question counts.
  async call(name, body) {
    const mine = this.busy = {};
    const began = Date.now();
    this.acts.setAttribute("aria-busy", "true");
    const slow = setInterval(() => {
      if (this.busy !== mine) return clearInterval(slow);
      const text = `Waiting for the environment, ${Math.round((Date.now() - began) / 1000)} s`;
      if (this.notice.firstChild?.dataset.waiting) this.notice.firstChild.firstChild.textContent = text;
      else this.notice.replaceChildren(el("div", {class: "waiting row", "data-waiting": "1"}, el("span", {role: "status"}, text), button("Give up", () => this.giveUp())));
    }, 1000);
    try {
      const answer = await ask(name, body);
      if (this.busy !== mine || this.gone) return null;
      this.notice.replaceChildren();
      return answer;
    } catch (error) {
      if (this.busy === mine && !this.gone) this.failed(error, name);
      return null;
    } finally {
      clearInterval(slow);
      if (this.busy === mine) { this.busy = null; this.acts.removeAttribute("aria-busy"); }
    }
  }

  giveUp() {
    this.busy = null;
    this.acts.removeAttribute("aria-busy");
    this.end();
    this.failed(new Error("You gave up the call, which ended the session."));
  }

  failed(error, name = "") {
    this.queue = [];
    if (["unsolvable", "ability"].includes(error.kind)) {
      this.notice.replaceChildren();
      return this.hinted(error.kind === "unsolvable" ? "The expert knows no way from here." : visible(error.message));
    }
    if (["gone", "unreachable"].includes(error.kind) || name === "open") this.session = error.kind === "unreachable" ? this.session : "";
    const hint = error.kind === "env" && name === "step" ? el("p", {class: "small"}, "The action was not played. You can try another one, or begin again.") : null;
    const alert = failure(error, button("Begin again", () => this.again()), button("New episode", () => this.begin(randomSeed())));
    if (hint) alert.lastChild.before(hint);
    this.notice.replaceChildren(alert);
    if (!this.turns.length) this.board.replaceChildren(el("p", {class: "dim"}, "There is no episode."));
    this.draw();
  }

  async step(body) {
    if (!this.turns.length) return this.hinted(this.busy ? "The environment is not ready yet." : "There is no episode. Begin a new one.");
    if (this.over) return this.hinted("The episode is over. Restart it, or begin a new one.");
    if (this.busy && body.quick) { if (this.queue.length < AHEAD) this.queue.push(body); return; }
    if (this.busy) return this.hinted("The environment has not answered yet.");
    const {quick, ...what} = body;
    const turn = await this.call("step", {session: this.session, ...what});
    if (!turn) return;
    this.turns.push(turn);
    if (this.text && "typed" in body) { this.text.value = ""; }
    this.hint.replaceChildren();
    this.draw();
    if (this.queue.length) this.step(this.queue.shift());
  }

  hinted(...parts) { this.hint.replaceChildren(...parts); }

  async suggest(kind) {
    if (!this.session || this.busy || !this.turns.length) return;
    if (this.over) return this.hinted("The episode is over. Restart it, or begin a new one.");
    const suggestion = await this.call("suggest", {session: this.session, kind});
    if (!suggestion) return;
    if (kind === "random") return this.step({action: suggestion.action});
    const play = button("Play it", () => this.step({action: suggestion.action}), {class: "quiet"});
    this.hinted("The expert would play ", el("code", {}, visible(suggestion.action.slice(0, 2000))), " ", play);
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || typing(event.target) || event.target.closest?.("summary")) return;
    const move = KEYS[event.key], action = this.card.moves?.[move];
    if (!action) return;
    event.preventDefault();
    this.pad?.querySelector(`[data-move=${move}]`)?.classList.add("pressed");
    setTimeout(() => this.pad?.querySelector(`[data-move=${move}]`)?.classList.remove("pressed"), 120);
    this.step({action, quick: true});
  }

  // -- what is shown ---------------------------------------------------------------------------------------------------

  bare(action) {
    const [before, after = ""] = (this.card.template || "%s").split("%s");
    return before && action.startsWith(before) && action.endsWith(after) ? action.slice(before.length, action.length - after.length) : action;
  }

  // The parts that stay, so that focus does too.
  controls() {
    const moves = Object.keys(this.card.moves || {}), has = name => this.card.abilities.includes(name);
    this.hint = el("p", {class: "hint", role: "status"});
    this.offered = el("div", {class: "choices", role: "group", "aria-label": "What can be done now"});
    this.searching = el("form", {class: "row", hidden: true, onsubmit: event => { event.preventDefault(); this.step({action: `search[${this.words.value}]`}); }},
      field("Search", this.words = el("input", {type: "search", autocomplete: "off"})), el("button", {}, "Search"));
    this.text = el("textarea", {rows: this.card.limit === 1 ? "5" : "2", "aria-label": "Your answer", spellcheck: "false", placeholder: "Your answer", onkeydown: event => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); }
    }});
    this.exact = el("input", {type: "checkbox"});
    const wrapped = this.card.template && this.card.template !== "%s";
    if (moves.length) this.pad = el("div", {class: "pad", role: "group", "aria-label": "Move"}, ...moves.map(move =>
      el("button", {type: "button", "data-move": move, "aria-label": move, title: `${move} (arrow key or ${{up: "W", left: "A", down: "S", right: "D"}[move]})`, onclick: () => this.step({action: this.card.moves[move], quick: true})}, ARROWS[move])));
    const answer = el("div", {class: "answer"}, this.text, el("div", {class: "row"}, button("Send", () => this.send(), {class: "primary"}),
      wrapped ? el("label", {class: "small"}, this.exact, "exactly as typed") : null,
      el("span", {class: "small dim"}, wrapped ? `${visible(this.card.template.replace("%s", "…"))} is added around it. ` : "", "Enter sends, Shift+Enter begins a line.")));
    this.acts.append(...[
      this.pad, moves.length ? el("p", {class: "small dim keys"}, "Arrow keys or W A S D") : null,
      this.offered, this.searching,
      moves.length && (this.card.few || []).length ? el("details", {class: "folded"}, el("summary", {}, "Type an action"), answer) : answer,
      has("oracle") || has("random_action") ? el("div", {class: "row helpers"}, has("oracle") ? button("Hint", () => this.suggest("oracle")) : null, has("random_action") ? button("Random action", () => this.suggest("random")) : null) : null,
      this.hint, this.card.players ? el("p", {class: "small dim"}, `Players: ${visible(this.card.players)}`) : null, this.card.legend ? el("p", {class: "small dim"}, visible(this.card.legend)) : null,
    ].filter(Boolean));
  }

  send() {
    const typed = this.text.value;
    if (typed !== "") this.step(this.exact.checked ? {action: typed} : {typed});
  }

  draw() {
    const turn = this.last;
    if (!turn) {
      this.status.replaceChildren();
      this.log.replaceChildren();
      return this.offered.replaceChildren();
    }
    const total = this.turns.reduce((sum, each) => sum + (each.reward || 0), 0), count = this.turns.length - 1;
    this.status.replaceChildren(...[
      stat("Turn", this.card.limit ? `${count} of ${this.card.limit}` : String(count)), stat("Reward", count ? short(turn.reward) : "–"), stat("Total", short(total)), stat("Seed", this.turns[0].seed),
      outcome(turn)].filter(Boolean));
    const shown = stage(turn, {live: true}), live = this.board.querySelector("[aria-live]");
    if (live) live.replaceChildren(...shown.querySelector("[aria-live]").childNodes), shown.querySelector("[aria-live]").replaceWith(live);
    this.board.replaceChildren(shown);
    this.layout.classList.toggle("over", this.over);
    if (this.over) this.hinted("The episode is over. ", button("Restart it", () => this.again(), {class: "quiet"}), " ", button("New one", () => this.begin(randomSeed()), {class: "quiet"}));
    else if (count === 0) this.hinted();
    this.offer(turn);
    const from = Math.max(1, this.turns.length - SHOWN);
    this.log.replaceChildren(count ? el("details", {class: "card folded", open: this.log.firstChild?.open ?? false}, el("summary", {}, plural(count, "turn")),
      el("ol", {class: "log", start: String(from), tabindex: "0", "aria-label": "Turns so far"}, ...this.turns.slice(from).map(each => el("li", {}, el("code", {}, visible(each.action.slice(0, 200))), " ", el("span", {class: "dim small"}, short(each.reward)))))) : "");
  }

  offer(turn) {
    const focused = this.offered.contains(document.activeElement);
    const onPad = Object.values(this.card.moves || {});
    this.offered.replaceChildren(...(this.over ? [] : turn.choices.filter(action => !onPad.includes(action)).map(action => {
      const name = action.match(/^click\[([\s\S]*)\]$/);
      return button(visible(name ? name[1] : this.bare(action)), () => this.step({action}));
    })));
    const lost = this.searching.contains(document.activeElement) && !turn.search;
    this.searching.hidden = !turn.search || this.over;
    if (focused || lost) (this.offered.querySelector("button") || this.text).focus();
  }

  sharing() {
    if (!this.turns.length) return;
    const row = shared(replayLink({env: this.env, seed: this.turns[0].seed, kwargs: this.kwargs, options: this.options, actions: this.turns.slice(1).map(turn => turn.action)}));
    this.share.replaceChildren(row);
    row.querySelector("button").click();
  }
}

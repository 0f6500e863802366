// Episodes step by step: from a link, from a form, or played by the expert.

import {lines} from "./api.js";
import {envLink, episodeOf, playLink, replayLink} from "./links.js";
import {bdi, button, el, failure, field, icon, link, outcome, pre, shared, short, stage, stat, visible} from "./parts.js";
import {episodeFields} from "./catalogue.js";

const SPEED = 600;

export function replayView({query, cut, denied}) {
  const episode = episodeOf(query);
  if (!episode) return {title: "Replay", node: el("section", {}, el("h1", {}, "Replay an episode"), el("p", {class: "dim lead"}, "An episode is its environment, seed and actions. The server plays it again, turn by turn."), form({env: query.get("env") || "", seed: query.get("seed") || "0"}))};
  const node = el("section", {});
  const view = {title: `Replay of ${episode.env}`, node, start: () => player.load()};
  const player = new Player(node, episode, denied, cut);
  view.close = () => player.close();
  return view;
}

// Asks for an episode. Actions are lines, or a JSON list of texts where they have several lines.
function form(episode) {
  const env = el("input", {type: "text", required: "", spellcheck: "false", autocomplete: "off"}), seed = el("input", {type: "text", inputmode: "numeric", required: "", class: "seed"});
  const actions = el("textarea", {rows: "8", spellcheck: "false", class: "mono"}), agent = el("select", {}, ...[["", "the actions below"], ["oracle", "the expert"], ["random", "random actions"]].map(([value, text]) => el("option", {value}, text)));
  env.value = episode.env;
  seed.value = episode.seed;
  actions.value = (episode.actions || []).some(a => a.includes("\n")) ? JSON.stringify(episode.actions, null, 1) : (episode.actions || []).join("\n");
  agent.value = episode.agent || "";
  const fields = episodeFields(episode), problem = el("div", {});
  const below = field("Actions, one on each line, or a JSON list", actions, {class: "field tall"});
  const show = () => { below.hidden = agent.value !== ""; };
  agent.addEventListener("change", show);
  show();
  return el("form", {class: "card", onsubmit: event => {
    event.preventDefault();
    try {
      const changed = {env: env.value.trim(), seed: seed.value.trim(), ...fields.values(), ...(agent.value ? {agent: agent.value} : {actions: actionsOf(actions.value)})};
      const next = replayLink(changed);
      if (location.hash === next) dispatchEvent(new HashChangeEvent("hashchange")); else location.hash = next;
    } catch (error) { problem.replaceChildren(failure(error)); }
  }}, el("div", {class: "row"}, field("Environment", env, {class: "field wide"}), field("Seed", seed), field("Played by", agent)), fields.node, below, problem, el("div", {class: "row"}, el("button", {class: "primary"}, "Replay")));
}

function actionsOf(text) {
  if (!text.trimStart().startsWith("[\"")) return text.split("\n").filter(line => line !== "");
  const found = JSON.parse(text);
  if (!Array.isArray(found) || !found.every(each => typeof each === "string")) throw new Error("The actions are no list of texts.");
  return found;
}

class Player {
  constructor(node, episode, denied, cut) {
    Object.assign(this, {node, episode, denied, turns: [], at: 0, timer: 0, stop: new AbortController()});
    const press = (label, text, go) => button(text, go, {"aria-label": label, title: label});
    this.slider = el("input", {type: "range", min: "0", max: "0", "aria-label": "Turn", oninput: () => this.go(+this.slider.value)});
    this.place = el("span", {class: "small dim place"});
    this.toggle = press("Play (space)", icon("play"), () => this.play());
    this.bar = el("div", {class: "controls"}, press("First turn (Home)", icon("first"), () => this.go(0)), press("Previous turn (left arrow)", icon("back"), () => this.go(this.at - 1)), this.toggle,
      press("Next turn (right arrow)", icon("next"), () => this.go(this.at + 1)), press("Last turn (End)", icon("last"), () => this.go(this.turns.length - 1)), this.slider, this.place);
    this.status = el("div", {class: "row statusline", role: "status"}, el("span", {class: "dim"}, "The server plays it again…"));
    this.problem = el("div", {});
    this.stage = el("div", {class: "card", hidden: true});
    this.next = el("div", {class: "card next", hidden: true});
    this.share = el("div", {});
    const about = [`seed ${episode.seed}`];
    for (const name of ["kwargs", "options"]) if (Object.keys(episode[name]).length) about.push(JSON.stringify(episode[name]));
    node.append(el("p", {class: "crumbs small"}, link("Environments", "#/")), el("div", {class: "row spread head"}, el("h1", {}, "Replay of ", bdi(episode.env)),
      el("div", {class: "row"}, link("Its card", envLink(episode.env), {class: "second"}), link("Play it yourself", playLink(episode.env, episode), {class: "second"}), button("Share", () => this.sharing(), {class: "quiet"}))),
      el("p", {class: "dim small"}, visible(about.join(", ").slice(0, 500))), this.share,
      cut ? failure(new Error("The link is too long, so its end was left out.")) : "", episode.damaged ? failure(new Error("The arguments in the link are damaged and were left out.")) : "",
      this.status, this.problem, this.bar, this.stage, this.next, el("details", {class: "folded"}, el("summary", {}, "Change the episode"), form(episode)));
    this.onkey = event => this.key(event);
    document.addEventListener("keydown", this.onkey);
  }

  close() {
    this.stop.abort();
    clearInterval(this.timer);
    document.removeEventListener("keydown", this.onkey);
  }

  async load() {
    const {env, seed, kwargs, options, actions, agent} = this.episode;
    try {
      for await (const turn of lines("replay", {env, seed, kwargs, options, ...(agent ? {agent} : {actions})}, {signal: this.stop.signal})) {
        if ("detail" in turn) { this.problem.replaceChildren(failure(Object.assign(new Error(turn.detail), turn))); break; }
        this.turns.push(turn);
        if (this.turns.length === 1) this.draw(); else if (this.turns.length % 20 === 0) this.count();
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      this.problem.replaceChildren(this.denied(error));
    }
    this.loaded = true;
    if (this.turns.length) this.draw(); else this.status.replaceChildren();
  }

  sharing() {
    const actions = this.turns.slice(1).map((turn, n) => this.episode.actions?.[n] ?? turn.action);
    const row = shared(replayLink({...this.episode, agent: "", actions: this.loaded && this.turns.length ? actions : this.episode.actions}));
    this.share.replaceChildren(row);
    row.querySelector("button").click();
  }

  go(at) {
    if (!this.turns.length) return;
    this.at = Math.max(0, Math.min(this.turns.length - 1, at));
    if (this.at === this.turns.length - 1) this.pause();
    this.draw();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
  }

  play() {
    if (this.timer) this.pause();
    else if (this.turns.length > 1) {
      if (this.at === this.turns.length - 1) this.at = 0;
      this.timer = setInterval(() => this.go(this.at + 1), SPEED);
    }
    this.draw();
  }

  key(event) {
    const target = event.target;
    if (event.ctrlKey || event.altKey || event.metaKey || target.matches?.("textarea, select, input:not([type=range])")) return;
    if (event.key === " " && target.matches?.("button, summary, a")) return;
    if (target === this.slider && event.key !== " ") return;
    const act = {ArrowRight: () => this.go(this.at + 1), ArrowLeft: () => this.go(this.at - 1), Home: () => this.go(0), End: () => this.go(this.turns.length - 1), " ": () => this.play()}[event.key];
    if (act) { event.preventDefault(); act(); }
  }

  count() {
    this.slider.max = String(this.turns.length - 1);
    this.slider.value = String(this.at);
    this.place.textContent = `turn ${this.at} of ${this.turns.length - 1}${this.loaded ? "" : "…"}`;
  }

  draw() {
    const turn = this.turns[this.at], next = this.turns[this.at + 1], total = this.turns.slice(0, this.at + 1).reduce((sum, each) => sum + (each.reward || 0), 0);
    if (!turn) return;
    this.count();
    this.toggle.replaceChildren(icon(this.timer ? "pause" : "play"));
    this.toggle.setAttribute("aria-label", this.timer ? "Pause (space)" : "Play (space)");
    const end = this.turns.at(-1), won = outcome(end);
    this.status.replaceChildren(...[stat("Reward", this.at ? short(turn.reward) : "–"), stat("Total", short(total)),
      this.at === this.turns.length - 1 ? won : null].filter(Boolean));
    this.stage.hidden = this.next.hidden = false;
    this.stage.replaceChildren(stage(turn, {live: !this.timer}));
    this.next.replaceChildren(el("h2", {class: "label"}, next ? "The next action" : "The end"), next ? pre(next.action) : el("p", {class: "dim last"}, won ? `The episode is over: ${won.textContent}.` : this.loaded ? "There are no more actions." : "Waiting for more…"));
  }
}

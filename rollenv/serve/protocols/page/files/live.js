// All sessions of the server, and one of them as it is played.

import {ask} from "./api.js";
import {envLink, replayLink} from "./links.js";
import {bdi, button, el, empty, failure, link, outcome, plural, shared, short, since, stage, stat, visible} from "./parts.js";

const EVERY = 2000, SHOWN = 300, KEPT = 100;
const COLUMNS = ["Environment", "Owner", "Through", "Age", "Idle", "Turns", "Last reward", "State"];

// Calls a function again and again until it is stopped; after an error it waits for longer.
export function repeat(work, every, failed) {
  let timer = 0, stopped = false;
  const run = async () => {
    let wait = every;
    try { await work(); } catch (error) { if (stopped) return; wait = failed(error); }
    if (!stopped && wait !== null) timer = setTimeout(run, wait);
  };
  run();
  return () => { stopped = true; clearTimeout(timer); };
}

// Milliseconds after which to ask again after an error; null for never.
export const patience = error => error.kind === "not_allowed" || error.status === 404 ? null : Math.max(4000, 1000 * (error.after || 0));

export function sessionsView({denied}) {
  const rows = new Map(), body = el("tbody"), status = el("p", {class: "dim small", role: "status"}, "Loading…"), problem = el("div", {});
  const search = el("input", {type: "search", "aria-label": "Search sessions", placeholder: "environment or owner", oninput: () => draw(seen)});
  const grid = el("div", {class: "card scroll", hidden: true, tabindex: "0", role: "region", "aria-label": "Sessions"}, el("table", {class: "wide"}, el("thead", {}, el("tr", {}, ...COLUMNS.map(name => el("th", {scope: "col"}, name)))), body));
  const none = empty("No sessions are open.", "Play an environment, or connect a client: its sessions appear here as they run, and each can be watched.");
  none.hidden = true;
  const node = el("section", {}, el("h1", {}, "Sessions"), el("div", {class: "row filters"}, search), status, problem, grid, none);
  let seen = [], stop = null;

  function row(session) {
    const cells = COLUMNS.map(() => el("td"));
    cells[0].append(link("", `#/watch/${encodeURIComponent(session.key)}`, {"aria-label": `Watch ${visible(session.env)} of ${visible(session.owner.slice(0, 60))}`}));
    cells[0].firstChild.append(bdi(session.env));
    cells[1].append(bdi(session.owner.slice(0, 60)));
    cells[2].textContent = visible(session.protocol) || "–";
    return {node: el("tr", {}, ...cells), cells};
  }

  function draw(sessions) {
    seen = sessions;
    const words = search.value.toLowerCase(), fits = sessions.filter(s => `${s.env} ${s.owner}`.toLowerCase().includes(words)).slice(0, SHOWN), here = new Set(fits.map(s => s.key));
    for (const [key, each] of rows) if (!here.has(key)) { each.node.remove(); rows.delete(key); }
    for (const session of fits) {
      if (!rows.has(session.key)) { rows.set(session.key, row(session)); body.append(rows.get(session.key).node); }
      const {cells} = rows.get(session.key);
      [since(session.age), since(session.idle), String(session.turns), session.reward === null ? "–" : short(session.reward)].forEach((text, n) => { if (cells[n + 3].textContent !== text) cells[n + 3].textContent = text; });
      if (cells[7].textContent !== session.state) cells[7].replaceChildren(el("span", {class: `state ${["busy", "playing", "over", "new"].includes(session.state) ? session.state : ""}`}, visible(session.state)));
    }
    status.textContent = sessions.length ? plural(sessions.length, "session") + (fits.length < sessions.length ? `, ${fits.length} of them shown` : "") : "";
    grid.hidden = !fits.length;
    none.hidden = sessions.length > 0;
  }

  const view = {title: "Sessions", node};
  view.start = () => {
    stop = repeat(async () => { draw((await ask("sessions")).sessions); problem.replaceChildren(); }, EVERY,
      error => { status.textContent = ""; problem.replaceChildren(denied(error)); return patience(error); });
  };
  view.close = () => stop?.();
  return view;
}

export function watchView({rest: key, denied}) {
  const head = el("h1", {}, "A session"), card = link("Its card", "#/", {class: "second", hidden: true}), status = el("div", {class: "row statusline", role: "status"}), problem = el("div", {}), share = el("div", {});
  const shown = el("div", {class: "card"}, el("p", {class: "dim"}, "Waiting for its next turn…")), past = el("ol", {class: "log", tabindex: "0", "aria-label": "Turns seen so far"});
  const history = el("div", {class: "card", hidden: true}, el("h2", {}, "Turns seen so far"), past);
  const node = el("section", {}, el("p", {class: "crumbs small"}, link("Sessions", "#/sessions")), el("div", {class: "row spread head"}, head, el("div", {class: "row"}, card, button("Link to its replay", linked, {class: "quiet"}))), share, status, problem,
    el("div", {class: "game"}, el("div", {}, shown), el("div", {}, history)));
  const stopped = new AbortController();
  let after = -1, stop = null;

  async function linked() {
    try {
      const episode = await ask("link", {key});
      share.replaceChildren(episode.problem ? el("p", {class: "notice", role: "status"}, `This episode cannot be replayed: ${visible(episode.problem)}.`) : shared(replayLink(episode)));
      share.querySelector("button")?.click();
    } catch (error) { share.replaceChildren(failure(error)); }
  }

  function add(turn) {
    if (turn.note) shown.replaceChildren(el("p", {class: "dim"}, visible(turn.note)));
    else shown.replaceChildren(stage(turn, {live: true}));
    const line = turn.note ? el("span", {class: "dim"}, visible(turn.note)) : "action" in turn ? el("code", {}, visible(turn.action.slice(0, 300))) : el("span", {class: "dim"}, `reset, seed ${visible(turn.seed) || "none"}`);
    past.append(el("li", {value: String(turn.turn)}, line, " ", "reward" in turn ? el("span", {class: "dim small"}, short(turn.reward)) : "", " ", outcome(turn) || ""));
    while (past.childElementCount > KEPT) past.firstChild.remove();
    history.hidden = false;
    past.scrollTop = past.scrollHeight;
  }

  function show(answer) {
    const s = answer.session;
    head.replaceChildren(bdi(s.env));
    card.href = envLink(s.env);
    card.hidden = false;
    if (answer.before) add(answer.before);
    for (const turn of answer.turns) add(turn);
    after = answer.count;
    status.replaceChildren(...[["Owner", visible(s.owner.slice(0, 60))], ["Through", visible(s.protocol) || "–"], ["Turns", String(s.turns)], ["Last reward", s.reward === null ? "–" : short(s.reward)], ["State", s.state], ["Idle", since(s.idle)]].map(([name, value]) => stat(name, value)));
    problem.replaceChildren();
    if (answer.closed) throw Object.assign(new Error("It was closed, or its lease is over."), {kind: "gone", status: 404});
  }

  const view = {title: "A session", node};
  view.start = () => {
    stop = repeat(async () => show(await ask("watch", {key, after}, {signal: stopped.signal})), 100, error => {
      problem.replaceChildren(denied(error));
      return patience(error);
    });
  };
  view.close = () => { stopped.abort(); stop?.(); };
  return view;
}

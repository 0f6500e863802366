// Parts that several views have. Every text from the server goes through visible(), and into the page as text.

import {el, svgNode, short, plural, visible, pre, icon} from "./base.js";
import {picture, pictures} from "./picture.js";
import {whole} from "./links.js";

export const looks = {grounds: {}, pieces: {}};

const CELLS = 14400;

export const button = (text, press, attributes = {}) => el("button", {type: "button", onclick: press, ...attributes}, text);
export const link = (text, href, attributes = {}) => el("a", {href, ...attributes}, text);
export const field = (label, control, attributes = {}) => el("label", {class: "field", ...attributes}, el("span", {}, label), control);
export const bdi = text => el("bdi", {}, visible(text));

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${short(value * 1e6)} µs`;
  if (value < 1) return `${short(value * 1e3)} ms`;
  if (value < 120) return `${short(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${short(value / 3600)} h`;
}

export const stat = (name, value) => el("span", {class: "stat"}, el("span", {class: "dim small"}, name), " ", el("strong", {}, el("bdi", {}, value)));

// How long something has been, which needs no parts of a second.
export const since = value => value < 60 ? `${Math.floor(value)} s` : value < 3600 ? `${Math.floor(value / 60)} min` : `${Math.floor(value / 3600)} h`;

// -- boards ------------------------------------------------------------------------------------------------------------

const isCell = cell => Array.isArray(cell) && Object.hasOwn(looks.grounds, cell[0]) && Array.isArray(cell[1])
  && cell[1].every(piece => Object.hasOwn(looks.pieces, piece)) && typeof cell[2] === "string" && Number.isFinite(cell[3]);

function isBoard(data) {
  return Array.isArray(data.rows) && data.rows.length > 0 && data.rows.every(Array.isArray)
    && data.rows.reduce((n, row) => n + row.length, 0) <= CELLS && data.rows.every(row => row.every(isCell))
    && [data.block, data.origin, data.across].every(Number.isFinite) && data.across > 0
    && Array.isArray(data.notes) && data.notes.every(note => typeof note === "string");
}

// {board} of a view, or its {text}; both empty where there is none.
export function viewOf(view) {
  if (!view) return {};
  let data = null;
  try { data = JSON.parse(view); } catch { return {text: view}; }
  if (!data || typeof data !== "object") return {text: view};
  if (isBoard(data)) {
    const board = picture(data, looks);
    board.firstChild.setAttribute("preserveAspectRatio", "xMinYMin");
    return {board};
  }
  return typeof data.text === "string" ? {text: data.text} : {text: view};
}

const squeezed = text => text.replace(/\s+/g, "");

// What a turn shows: the board, the observation, and what else there is to see.
export function stage(turn, {live = false, label = "The environment says"} = {}) {
  const {board, text} = viewOf(turn.view);
  const said = el("div", {class: "said"}, el("h2", {class: "label"}, label),
    el("div", live ? {"aria-live": "polite", "aria-atomic": "true"} : {}, turn.observation ? pre(turn.observation) : el("p", {class: "dim"}, "(nothing)")));
  const more = text && !squeezed(turn.observation).includes(squeezed(text)) ? folded("State, as render() shows it", text) : null;
  const info = turn.info && turn.info !== "{}" ? folded("Info", turn.info) : null;
  const shown = turn.images?.length ? pictures(turn.images) : board;
  return el("div", {class: shown ? "stage" : "stage plain"}, shown || null, el("div", {}, said, more, info));
}

export const folded = (title, text) => el("details", {class: "folded"}, el("summary", {}, title), el("div", {class: "box", tabindex: "0", "aria-label": title}, pre(text)));

export function outcome(turn) {
  if (turn.terminated || turn.truncated) {
    if (turn.success === true) return el("span", {class: "badge"}, el("i", {class: "dot solved"}), "solved");
    if (turn.success === false || turn.truncated) return el("span", {class: "badge"}, el("i", {class: `dot ${turn.truncated ? "truncated" : "wrong"}`}), turn.truncated ? "ended by a limit" : "ended without success");
    return el("span", {class: "badge"}, el("i", {class: "dot"}), "ended");
  }
  return null;
}

// -- messages ----------------------------------------------------------------------------------------------------------

const FAILURES = {
  raised: "The environment failed with an error.", wrong: "The environment returned something that is not valid.",
  hung: "The environment did not answer in time, so the call was given up.", lost: "The process in which the environment ran has ended.",
  differs: "The environment did not repeat itself when it was played again.",
};
const KINDS = {
  gone: "This session has ended.", full: "The server has no room now.", fast: "That was asked too often.", over: "The episode is over.",
  unknown_env: "There is no such environment.", usage: "The server refused this.", ability: "The environment cannot do this.",
  unsolvable: "The expert knows no way from here.", not_allowed: "This is not allowed.", unreachable: "No connection.", missing: "Something is not installed on the server.",
};

export function failure(error, ...actions) {
  const title = error.kind === "env" && FAILURES[error.how] || KINDS[error.kind] || "Something went wrong.";
  const detail = String(error.message || error);
  return el("div", {class: "fail", role: "alert"}, el("strong", {}, title), detail && detail !== title ? pre(detail.slice(0, 4000)) : null,
            actions.length ? el("div", {class: "row"}, ...actions) : null);
}

export const empty = (title, ...text) => el("div", {class: "card empty"}, el("strong", {}, title), ...text.map(part => typeof part === "string" ? el("p", {class: "dim"}, part) : part));

// -- copying -----------------------------------------------------------------------------------------------------------

export function copier(text, label = "Copy") {
  const node = button(label, async () => {
    try { await navigator.clipboard.writeText(text()); node.textContent = "Copied"; }
    catch { node.textContent = "Select it and copy it"; }
    setTimeout(() => { node.textContent = label; }, 2000);
  }, {class: "quiet"});
  return node;
}

export function code(text) {
  return el("div", {class: "code"}, el("pre", {tabindex: "0", "aria-label": "Code"}, visible(text)), copier(() => text));
}

// A link that can be copied, also where pages may not use the clipboard.
export function shared(fragment) {
  const box = el("input", {type: "text", readonly: "", "aria-label": "Link to this episode", onfocus: () => box.select()});
  box.value = whole(fragment);
  return el("div", {class: "row shared"}, box, copier(() => box.value, "Copy link"), link("Open the replay", fragment));
}

// -- charts ------------------------------------------------------------------------------------------------------------

export function sparkline(values, label) {
  const width = 160, height = 36, known = values.filter(Number.isFinite), top = Math.max(...known, 0) || 1;
  const root = svgNode("svg", {viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": label, preserveAspectRatio: "none"});
  let path = "", pen = false;
  values.forEach((value, n) => {
    if (!Number.isFinite(value)) { pen = false; return; }
    path += `${pen ? "L" : "M"}${(n / Math.max(1, values.length - 1) * width).toFixed(1)} ${(height - 2 - value / top * (height - 4)).toFixed(1)}`;
    pen = true;
  });
  root.append(svgNode("path", {d: `M0 ${height - 1}H${width}`, class: "axis"}), svgNode("path", {d: path || "M0 0", class: "line"}));
  return root;
}

export function table(head, rows, attributes = {}) {
  return el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": attributes["aria-label"] || "Table"},
    el("table", attributes, el("thead", {}, el("tr", {}, ...head.map(name => el("th", {scope: "col"}, name)))),
       el("tbody", {}, ...rows.map(cells => el("tr", {}, ...cells.map(cell => el("td", {}, cell)))))));
}

export const facts = pairs => el("dl", {class: "facts"}, ...pairs.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

export {el, svgNode, short, plural, visible, pre, icon};

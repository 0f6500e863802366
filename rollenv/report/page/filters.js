// Which episodes are shown: filters, order, and the list, of which only what is in sight is in the page.

const state = {
  part: columns.part.includes(0) ? 0 : 1, statuses: new Set(), kind: -1, run: -1, iteration: "all", text: "", env: "", low: {reward: "", turns: ""}, high: {reward: "", turns: ""},
  order: "task", rows: [], current: -1,
};
const listeners = [];
const changed = what => listeners.forEach(listener => listener(what));

const ORDERS = {
  task: ["Task", row => taskRank[columns.task[row]]],
  worst: ["Lowest reward", row => sortable(columns.reward[row])],
  best: ["Highest reward", row => -sortable(columns.reward[row])],
  longest: ["Most turns", row => -columns.turns[row]],
  shortest: ["Fewest turns", row => columns.turns[row]],
  slowest: ["Most seconds", row => -sortable(columns.seconds[row])],
  latest: ["Latest iteration", row => -columns.iteration[row]],
};
const sortable = x => Number.isFinite(x) ? x : x === "Infinity" ? 1e300 : -1e300;

function passesAll(row, withoutStatus = false) {
  const s = state;
  if (columns.part[row] !== s.part) return false;
  if (!withoutStatus) {
    if (s.statuses.size && !s.statuses.has(columns.status[row])) return false;
    if (s.kind >= 0 && columns.kind[row] !== s.kind) return false;
  }
  if (s.env && index.tasks[columns.task[row]].env !== s.env) return false;
  if (s.run >= 0 && columns.run[row] !== s.run) return false;
  if (s.iteration === "last" ? !isLast(row) : s.iteration !== "all" && columns.iteration[row] !== +s.iteration) return false;
  for (const name of ["reward", "turns"]) {
    const value = columns[name][row];
    if (s.low[name] !== "" && !(value >= +s.low[name])) return false;
    if (s.high[name] !== "" && !(value <= +s.high[name])) return false;
  }
  return !s.text || `${taskTexts[columns.task[row]]} ${episodeName(row).toLowerCase()}`.includes(s.text);
}

const taskTexts = index.tasks.map((task, number) =>
  `${task.env} ${taskName(number)} seed ${task.seed} ${task.more}`.toLowerCase());

function refilter() {
  const key = ORDERS[state.order][1];
  const rows = [];
  for (let row = 0; row < total; row++) if (passesAll(row)) rows.push(row);
  const keys = new Map(rows.map(row => [row, key(row)]));
  rows.sort((a, b) => keys.get(a) - keys.get(b) || taskRank[columns.task[a]] - taskRank[columns.task[b]] || columns.run[a] - columns.run[b]
                      || columns.iteration[a] - columns.iteration[b] || columns.member[a] - columns.member[b]);
  state.rows = rows;
  if (!rows.includes(state.current) && rows.length) state.current = rows[0];
  changed("filter");
}

function select(row) {
  state.current = row;
  changed("episode");
}

function step(by) {
  const at = state.rows.indexOf(state.current) + by;
  if (at >= 0 && at < state.rows.length) select(state.rows[at]);
}

function choice(label, options, value, change, name = label) {
  const box = el("select", {"aria-label": name, onchange: event => change(event.target.value)},
                 ...options.map(([key, text]) => el("option", {value: String(key)}, text)));
  box.value = String(value);
  return el("label", {}, label, box);
}

function between(label, name) {
  const field = (side, text) => el("input", {type: "number", step: "any", placeholder: text, "aria-label": `${label}, ${text}`,
    oninput: event => { side[name] = event.target.value; refilter(); }});
  return el("label", {}, label, field(state.low, "from"), field(state.high, "to"));
}

function partChoice() {
  const label = choice("Episodes", [[0, "of evaluations"], [1, "of updates"]], state.part, v => { state.part = +v; refilter(); });
  listeners.push(() => { label.querySelector("select").value = String(state.part); });
  return label;
}

function toolbar() {
  const chips = el("div", {class: "chips", role: "group", "aria-label": "Result"});
  const drawChips = () => {
    const counts = new Array(index.statuses.length).fill(0), kinds = new Array(index.kinds.length).fill(0);
    for (let row = 0; row < total; row++) if (passesAll(row, true)) {
      counts[columns.status[row]]++;
      if (columns.kind[row] >= 0) kinds[columns.kind[row]]++;
    }
    const chip = (pressed, press, ...content) => el("button", {type: "button", "aria-pressed": String(pressed), onclick: press}, ...content);
    const sum = counts.reduce((a, b) => a + b, 0);
    const failed = index.statuses.flatMap((name, n) => ["solved", "finished", "open"].includes(name) ? [] : [n]);
    const missed = failed.reduce((sum, n) => sum + counts[n], 0);
    const isFailed = state.kind < 0 && state.statuses.size === failed.length && !state.statuses.has(0);
    const choose = (statuses, kind = -1) => () => { state.statuses = new Set(statuses); state.kind = kind; refilter(); };
    chips.replaceChildren(
      chip(!state.statuses.size, choose([]), `all ${sum.toLocaleString("en")}`),
      ...counts[0] || missed || isFailed ? [chip(isFailed, choose(failed), `not solved ${missed.toLocaleString("en")}`)] : [],
      ...index.statuses.flatMap((name, n) => !counts[n] && !(state.statuses.size === 1 && state.statuses.has(n)) ? [] :
        [chip(state.kind < 0 && state.statuses.size === 1 && state.statuses.has(n), choose([n]),
              el("i", {class: `dot ${name}`}), `${name} ${counts[n].toLocaleString("en")}`)]),
      ...index.kinds.flatMap((name, n) => !kinds[n] && state.kind !== n ? [] :
        [chip(state.kind === n, choose([index.statuses.indexOf("error")], n), el("i", {class: "dot error"}), visible(`error: ${name} ${kinds[n]}`))]));
  };
  listeners.push(what => { if (what === "filter") drawChips(); });
  const iterations = [...new Set(columns.iteration)].filter(i => i >= 0).sort((a, b) => a - b);
  const search = el("input", {type: "search", placeholder: "seed, task or environment", "aria-label": "Task",
    oninput: event => { state.text = event.target.value.trim().toLowerCase(); refilter(); }});
  const envs = [...new Set(index.tasks.map(task => task.env))].sort();
  const orders = Object.entries(ORDERS).filter(([key]) => key !== "latest" || iterations.length > 1).map(([key, [text]]) => [key, text]);
  return el("div", {class: "card"}, chips, el("div", {class: "row", style: {marginTop: "10px"}},
    search,
    columns.part.includes(0) && columns.part.includes(1) ? partChoice() : null,
    several ? choice("Run", [[-1, "all"], ...data.runs.map((run, n) => [n, run.name])], -1, v => { state.run = +v; refilter(); }) : null,
    envs.length > 1 ? choice("Environment", [["", "all"], ...envs.map(env => [env, env])], "", v => { state.env = v; refilter(); }) : null,
    iterations.length > 1 ? choice("Iteration", [["all", "all"], ["last", "last"], ...iterations.map(i => [i, i])], state.iteration,
                                   v => { state.iteration = v; refilter(); }) : null,
    between("Reward", "reward"), between("Turns", "turns"),
    choice("Sort by", orders, state.order, v => { state.order = v; refilter(); })));
}

// -- the list ----------------------------------------------------------------------------------------------------------

const ITEM = 46;

function list() {
  const spacer = el("div", {}), box = el("div", {class: "card list", tabindex: "0", role: "listbox", "aria-label": "Episodes"}, spacer);
  const item = (row, at) => {
    const run = several ? [el("i", {class: "key", style: {background: lineColor(columns.run[row])}})] : [];
    return el("button", {class: "item", type: "button", role: "option", tabindex: "-1", "aria-selected": String(row === state.current),
                         style: {top: `${at * ITEM}px`}, onclick: () => { select(row); box.focus({preventScroll: true}); }},
      el("div", {}, ...run, visible(episodeName(row))),
      el("div", {class: "small dim"}, el("i", {class: `dot ${status(row)}`}),
         visible(`${several ? data.runs[columns.run[row]].name + ": " : ""}${statusText(row)}, reward ${short(columns.reward[row])}, ${plural(columns.turns[row], "turn")}`)));
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / ITEM) - 4);
    const end = Math.min(state.rows.length, first + Math.ceil(box.clientHeight / ITEM) + 9);
    spacer.style.height = `${state.rows.length * ITEM}px`;
    const items = [];
    for (let at = first; at < end; at++) items.push(item(state.rows[at], at));
    if (!state.rows.length) items.push(el("div", {class: "empty dim"}, total ? "No episode passes these filters." : "No episodes are stored."));
    spacer.replaceChildren(...items);
  };
  const reveal = () => {
    const at = state.rows.indexOf(state.current);
    if (at < 0) return;
    if (at * ITEM < box.scrollTop) box.scrollTop = at * ITEM;
    if ((at + 1) * ITEM > box.scrollTop + box.clientHeight) box.scrollTop = (at + 1) * ITEM - box.clientHeight;
  };
  box.addEventListener("scroll", draw);
  new ResizeObserver(draw).observe(box);
  listeners.push(what => {
    if (what === "filter") box.scrollTop = 0;
    draw();  // the list has its new height before it scrolls
    reveal();
  });
  return box;
}

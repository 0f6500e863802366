// Two runs or more over the same tasks: how often each solved them, and the episodes to look at.

const PAIRS_SHOWN = 300;

function comparison() {
  const judged = index.statuses.some((name, n) => name !== "finished" && name !== "open" && columns.status.includes(n));
  if (!several || !judged) return null;
  const byTask = new Map();
  for (let row = 0; row < total; row++) if (!columns.part[row] && isLast(row) && !["error", "cancelled", "open"].includes(status(row))) {
    const task = columns.task[row];
    if (!byTask.has(task)) byTask.set(task, data.runs.map(() => []));
    byTask.get(task)[columns.run[row]].push(row);
  }
  const pairs = [...byTask].filter(([, rows]) => rows.filter(r => r.length).length > 1).map(([task, rows]) => {
    const shares = rows.map(r => r.length ? r.filter(row => status(row) === "solved").length / r.length : null);
    const known = shares.filter(s => s !== null);
    return {task, rows, shares, spread: Math.max(...known) - Math.min(...known), lead: (shares[1] ?? 0) - (shares[0] ?? 0)};
  });
  if (!pairs.length)
    return el("section", {}, el("h2", {}, "Task by task"), el("p", {class: "dim"}, "These runs have no graded task in common: environment, settings and seed have to be the same."));
  let filter = "different";
  const two = data.runs.length === 2;
  const groups = two
    ? {different: ["different", p => p.lead !== 0], second: [`${data.runs[1].name} better`, p => p.lead > 0], first: [`${data.runs[0].name} better`, p => p.lead < 0],
       both: ["both solve", p => p.spread === 0 && p.shares[0] === 1], neither: ["neither solves", p => p.spread === 0 && p.shares[0] === 0], all: ["all", () => true]}
    : {different: ["different", p => p.spread > 0], same: ["the same", p => p.spread === 0], all: ["all", () => true]};
  if (!pairs.some(groups.different[1])) filter = "all";
  const chips = el("div", {class: "chips", role: "group", "aria-label": "Tasks"}), body = el("tbody"), rest = el("p", {class: "small dim"});
  const open = rows => {
    const row = rows.find(r => status(r) !== "solved") ?? rows[0];
    select(row);
    document.getElementById("episodes").scrollIntoView({behavior: "smooth"});
  };
  const cell = (rows, share) => !rows.length ? el("td", {class: "dim"}, "not graded")
    : el("td", {}, el("button", {type: "button", title: "Show this episode", onclick: () => open(rows)},
         el("i", {class: `dot ${share === 1 ? "solved" : share ? "truncated" : status(rows[0])}`}),
         rows.length === 1 ? `${statusText(rows[0])}, ${short(columns.reward[rows[0]])}` : `${rows.filter(r => status(r) === "solved").length} of ${rows.length}`));
  const draw = () => {
    chips.replaceChildren(...Object.entries(groups).map(([key, [name, test]]) => el("button", {type: "button", "aria-pressed": String(key === filter),
      onclick: () => { filter = key; draw(); }}, visible(`${name} ${pairs.filter(test).length}`))));
    const shown = pairs.filter(groups[filter][1]).sort((a, b) => b.spread - a.spread || a.lead - b.lead || taskRank[a.task] - taskRank[b.task]);
    body.replaceChildren(...shown.slice(0, PAIRS_SHOWN).map(p => el("tr", {}, el("td", {}, visible(taskName(p.task))),
      ...p.rows.map((rows, n) => cell(rows, p.shares[n])),
      two ? el("td", {class: p.lead > 0 ? "up" : p.lead < 0 ? "down" : "dim"}, `${p.lead > 0 ? "+" : ""}${Math.round(100 * p.lead)} %`) : null)));
    rest.textContent = shown.length > PAIRS_SHOWN ? `${plural(shown.length - PAIRS_SHOWN, "more task")} not shown.` : "";
  };
  draw();
  const what = isTraining ? " For training runs, their last evaluation counts." : "";
  return el("section", {}, el("h2", {}, "Task by task"), el("div", {class: "card"}, el("p", {class: "small dim", style: {marginTop: "0"}},
    `${plural(pairs.length, "task")} that more than one run played without failing: the share of episodes solved.${what}`), chips,
    el("div", {class: "scroll", style: {maxHeight: "420px", marginTop: "10px"}},
      el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "Task"), ...data.runs.map((run, n) => el("th", {}, el("i", {class: "key", style: {background: lineColor(n)}}), visible(run.name))), two ? el("th", {}, "Difference") : null)), body)), rest));
}

// The page, from top to bottom.

const textTable = ({title, rows: [head, ...rows]}) => el("div", {class: "card scroll", style: {marginTop: "12px"}},
  el("h3", {}, title), el("table", {}, el("thead", {}, el("tr", {}, ...head.map(cell => el("th", {}, visible(cell))))),
  el("tbody", {}, ...rows.map(row => el("tr", {}, ...row.map(cell => el("td", {class: cell.length < 28 ? "short" : ""}, visible(cell))))))));

function tileValue(text) {
  const [, number, rest] = text.match(/^(.*? %) (\(.*\))$/) || [null, text, ""];
  return el("div", {class: "value"}, visible(number), rest ? el("small", {}, " " + rest) : null);
}

function summaryOfOne(run) {
  return el("section", {},
    ...run.remarks.map(([level, text]) => el("div", {class: `remark ${level}`}, visible(text))),
    el("div", {class: "tiles"}, ...run.tiles.map(([label, text, hint]) =>
      el("div", {class: "card tile"}, el("div", {class: "label"}, label, help(hint)), tileValue(text)))),
    run.note ? el("p", {class: "small dim"}, run.note) : null,
    ...[...data.tables, ...run.tables].map(textTable));
}

// The tiles of several runs side by side.
function summaryOfSeveral() {
  const note = data.runs.find(run => run.note)?.note;
  if (data.tables.length) return el("section", {}, ...data.tables.map(textTable), note ? el("p", {class: "small dim"}, visible(note)) : null);
  const labels = new Map(data.runs.flatMap(run => run.tiles.map(([label, , hint]) => [label, hint])));
  const value = (run, label) => run.tiles.find(tile => tile[0] === label)?.[1] ?? "";
  const rows = [...labels].map(([label, hint]) => el("tr", {}, el("td", {class: "dim"}, label, " ", help(hint)),
    ...data.runs.map(run => el("td", {}, tileValue(value(run, label))))));
  const notes = data.runs.filter(run => run.note).map(run => el("p", {class: "small dim"}, visible(`${run.name}: ${run.note}`)));
  const head = el("tr", {}, el("th"), ...data.runs.map((run, n) => el("th", {}, el("i", {class: "key", style: {background: lineColor(n)}}), visible(run.name))));
  return el("section", {}, el("div", {class: "card scroll"}, el("table", {class: "several"}, el("thead", {}, head), el("tbody", {}, ...rows))), ...notes,
            ...data.runs.flatMap(run => run.tables.map(table => textTable({...table, title: `${run.name}: ${table.title}`}))));
}

function settings() {
  const there = data.runs.filter(run => run.settings);
  return there.length ? el("section", {}, el("h2", {}, "Settings"), ...there.map(run =>
    el("details", {}, el("summary", {}, several ? visible(run.name) : "Show"), el("div", {class: "card scroll"}, pre(run.settings))))) : null;
}

function episodes() {
  const pane = player();
  const section = el("section", {id: "episodes"}, el("h2", {}, "Episodes ", help(
    "Solved: the task was done. Wrong: it ended without success. Truncated: a limit ended it. Error: the environment or the agent failed, so that it says nothing about the agent's skill. Finished: it has a reward, and nobody said whether it is a success. Open: a session that goes on.")));
  if (!total) {
    section.append(el("p", {class: "dim"}, "No episodes are stored."));
    return [section, () => {}];
  }
  section.append(toolbar(), heatMap(), el("div", {class: "explorer", style: {marginTop: "12px"}}, list(), pane),
                 el("p", {class: "small dim"}, "Keys: ← → step (among tokens: to the next one), space plays, ↑ ↓ choose another episode, Home and End go to the first and last turn, C changes what the tokens' colour shows. The address names what is shown."));
  return [section, pane];
}

function start() {
  const [section, pane] = episodes();
  document.getElementById("main").append(...[
    el("h1", {}, visible(data.title)), several ? summaryOfSeveral() : summaryOfOne(data.runs[0]), charts(), comparison(), section, settings()].filter(Boolean));
  document.body.append(tip);
  if (!total) return;
  const missing = el("p", {role: "status"});
  section.firstChild.after(missing);
  section.addEventListener("click", () => missing.replaceChildren());
  const visit = () => {
    const place = placeOf(location.hash);
    missing.textContent = place || !location.hash ? "" : `No episode here has the address ${visible(location.hash)}.`;
    if (!place) return false;
    const hidden = state.part !== columns.part[place.row];
    Object.assign(state, {part: columns.part[place.row], current: place.row});
    if (hidden || !state.rows.includes(place.row)) refilter();
    select(place.row);
    pane.visit(place).then(() => place.token || section.scrollIntoView());
    return true;
  };
  if (!visit()) refilter();
  addEventListener("hashchange", visit);
}

start();

// The heat map: a row for every task and a column for every episode of it (members, or iterations along a run). Where
// there is room, the rows run on beside each other in blocks; where each task has one episode, they are one block of
// squares. Only the part in sight is drawn.

const MAP_COLORS = ["result", "reward", "turns"];

function heatMap() {
  const canvas = el("canvas", {tabindex: "0", role: "img", "aria-label": "Episodes as a map: arrow keys move, Enter opens"});
  const spacer = el("div", {style: {position: "absolute", left: "0", top: "0", width: "1px", pointerEvents: "none"}});
  const box = el("div", {class: "mapbox", tabindex: "-1"}, canvas, spacer);
  const note = el("span", {class: "small dim"}), legend = el("span", {class: "row small dim"});
  let tasks = [], heads = [], wrap = false, size = 16, left = 0, top = 0, lines = 0, blocks = 1, across = 1, blockWidth = 1;
  let colorBy = "result", shown = new Set(), cursor = -1;
  const GAP = 18;

  const arrange = () => {
    const keys = new Map(), byTask = new Map();
    // Hardly a task is in two updates: theirs are rows of their own, and the columns are members.
    const keyOf = row => `${columns.run[row]} ${state.part ? "" : columns.iteration[row]} ${columns.member[row]}`;
    const lineOf = row => `${columns.task[row]} ${state.part ? `${columns.run[row]} ${columns.iteration[row]}` : ""}`;
    const named = row => `${state.part ? `update ${columns.iteration[row]}, ` : ""}${taskName(columns.task[row])}`;
    for (let row = 0; row < total; row++) {
      if (columns.part[row] !== state.part || (state.run >= 0 && columns.run[row] !== state.run)) continue;
      if (!keys.has(keyOf(row))) keys.set(keyOf(row), row);
      if (!byTask.has(lineOf(row))) byTask.set(lineOf(row), []);
      byTask.get(lineOf(row)).push(row);
    }
    const order = [...keys].sort(([, a], [, b]) => columns.run[a] - columns.run[b]
      || (state.part ? 0 : columns.iteration[a] - columns.iteration[b]) || columns.member[a] - columns.member[b]);
    const place = new Map(order.map(([key], n) => [key, n]));
    const sorted = [...byTask.values()].sort(([a], [b]) => (state.part ? columns.iteration[a] - columns.iteration[b] : 0) || taskRank[columns.task[a]] - taskRank[columns.task[b]]);
    wrap = order.length === 1;
    const width = Math.max(200, box.clientWidth || 600);
    if (wrap) {
      size = sorted.length > 3000 ? 10 : sorted.length > 400 ? 13 : 20;
      left = 14 + 7 * Math.max(0, ...sorted.slice(0, 300).map(([row]) => named(row).length));
      across = Math.max(1, Math.floor((width - left - 16) / size));
      tasks = [];
      for (let at = 0; at < sorted.length; at += across)
        tasks.push({label: named(sorted[at][0]), cells: sorted.slice(at, at + across).map(([row]) => row)});
      heads = [];
    } else {
      size = 16;
      across = order.length;
      tasks = sorted.map(rows => {
        const cells = new Array(across);
        for (const row of rows) cells[place.get(keyOf(row))] = row;
        return {label: named(rows[0]), cells};
      });
      left = Math.min(width * 0.4, 14 + 7 * Math.max(0, ...tasks.slice(0, 300).map(task => task.label.length)));
      heads = order.map(([, row]) => !state.part && columns.iteration[row] >= 0 ? columns.iteration[row] : columns.member[row] + 1);
    }
    top = heads.length ? 20 : 4;
    blockWidth = left + across * size + GAP;
    blocks = Math.max(1, Math.min(Math.floor((width + GAP) / blockWidth), Math.ceil(tasks.length / 8)));
    lines = Math.ceil(tasks.length / blocks);
    note.textContent = wrap ? "Each square is a task." : `A row is a task; a column is ${!state.part && columns.iteration.some(i => i >= 0) ? "an iteration" : "one of its episodes"}${several && state.run < 0 ? ", run after run" : ""}.`;
  };

  const colors = {};
  const readColors = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of [...index.statuses, "fg", "dim", "card", "accent"]) colors[name] = style.getPropertyValue(`--${name}`).trim();
  };
  const scale = name => {
    const values = columns[name].filter(Number.isFinite);
    let low = Infinity, high = -Infinity;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    return [low, high];
  };
  const paint = row => {
    if (colorBy === "result") return colors[status(row)];
    const [low, high] = ranges[colorBy], value = columns[colorBy][row];
    if (!Number.isFinite(value)) return colors.error;
    const share = high > low ? (value - low) / (high - low) : 1;
    return `hsl(${200 + 60 * share} ${30 + 50 * share}% ${80 - 45 * share}%)`;
  };
  const ranges = {reward: scale("reward"), turns: scale("turns")};

  const draw = () => {
    const ratio = devicePixelRatio || 1, width = box.clientWidth, height = Math.min(box.clientHeight || 420, lines * size + top + 4);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const paper = canvas.getContext("2d");
    paper.scale(ratio, ratio);
    paper.font = "11px system-ui, sans-serif";
    paper.textBaseline = "middle";
    paper.textAlign = "left";
    const first = Math.floor(box.scrollTop / size), from = Math.floor(box.scrollLeft / size);
    const rows = Math.ceil((height - top) / size) + 1, cells = Math.ceil((width - left) / size) + 1;
    for (let block = 0; block < blocks; block++) {
      const start = block * blockWidth;
      for (let y = first; y < Math.min(first + rows, lines) && block * lines + y < tasks.length; y++) {
        const task = tasks[block * lines + y], py = top + (y - first) * size;
        paper.globalAlpha = 1;
        paper.fillStyle = colors.dim;
        if (size >= 13 || y % 2 === 0) paper.fillText(clipLabel(paper, task.label, left - 8), start, py + size / 2);
        for (let x = from; x < Math.min(from + cells, task.cells.length); x++) {
          const row = task.cells[x], px = start + left + (x - from) * size;
          if (row === undefined) continue;
          paper.globalAlpha = shown.has(row) ? 1 : 0.13;
          paper.fillStyle = paint(row);
          paper.fillRect(px + 0.5, py + 0.5, size - 1.5, size - 1.5);
          if (row === state.current || row === cursor) {
            paper.globalAlpha = 1;
            paper.lineWidth = 2;
            paper.strokeStyle = row === cursor ? colors.accent : colors.fg;
            paper.strokeRect(px + 1, py + 1, size - 2.5, size - 2.5);
          }
        }
      }
      paper.globalAlpha = 1;
      if (heads.length) drawHeads(paper, start, from, cells);
    }
  };
  const drawHeads = (paper, start, from, cells) => {
    paper.fillStyle = colors.card;
    paper.fillRect(start, 0, blockWidth, top - 1);
    paper.fillStyle = colors.dim;
    paper.textAlign = "center";
    let free = 0;
    for (let x = from; x < Math.min(from + cells, heads.length); x++) {
      const at = start + left + (x - from + 0.5) * size, text = String(heads[x]), half = paper.measureText(text).width / 2;
      if (at - half < free) continue;
      paper.fillText(text, at, top / 2);
      free = at + half + 5;
    }
    paper.textAlign = "left";
  };
  const clipLabel = (paper, text, width) => {
    let shownText = visible(text);
    while (shownText.length > 3 && paper.measureText(shownText).width > width) shownText = shownText.slice(0, -2).replace(/…?$/, "…");
    return shownText;
  };

  const rowAt = event => {
    const area = canvas.getBoundingClientRect();
    const block = Math.floor((event.clientX - area.left) / blockWidth), y = event.clientY - area.top - top;
    const x = event.clientX - area.left - (blocks > 1 ? block * blockWidth : 0) - left;
    const line = Math.floor(box.scrollTop / size) + Math.floor(y / size);
    if (x < 0 || y < 0 || line >= lines) return undefined;
    return tasks[(blocks > 1 ? block : 0) * lines + line]?.cells[Math.floor(box.scrollLeft / size) + Math.floor(x / size)];
  };
  const tell = row => row === undefined ? hideTip() : null;
  canvas.addEventListener("pointermove", event => {
    const row = rowAt(event);
    canvas.style.cursor = row === undefined ? "default" : "pointer";
    if (row === undefined) return tell();
    showTip({getBoundingClientRect: () => ({left: event.clientX, bottom: event.clientY + 8, top: event.clientY - 8})},
            visible(`${several ? data.runs[columns.run[row]].name + ": " : ""}${episodeName(row)}: ${statusText(row)}, reward ${short(columns.reward[row])}, ${plural(columns.turns[row], "turn")}`));
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", event => { const row = rowAt(event); if (row !== undefined) select(row); });
  canvas.addEventListener("keydown", event => {
    const move = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0]}[event.key];
    if (!move && event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Enter") { if (cursor >= 0) select(cursor); return; }
    const from = cursor >= 0 ? cursor : state.current;
    let y = Math.max(0, tasks.findIndex(task => task.cells.includes(from))), x = Math.max(0, tasks[y].cells.indexOf(from));
    y = Math.min(tasks.length - 1, Math.max(0, y + move[0]));
    x = Math.min(tasks[y].cells.length - 1, Math.max(0, x + move[1]));
    if (tasks[y].cells[x] !== undefined) cursor = tasks[y].cells[x];
    const line = y % lines;
    if (line * size < box.scrollTop) box.scrollTop = line * size;
    if ((line + 2) * size + top > box.scrollTop + box.clientHeight) box.scrollTop = (line + 2) * size + top - box.clientHeight;
    draw();
    showTip({getBoundingClientRect: () => { const b = canvas.getBoundingClientRect(); return {left: b.left + left, bottom: b.top, top: b.top}; }},
            visible(`${episodeName(cursor)}: ${statusText(cursor)}`));
  });
  canvas.addEventListener("blur", () => { cursor = -1; hideTip(); draw(); });

  const lay = () => {
    arrange();
    const height = lines * size + top + 4, width = blocks > 1 ? 1 : left + across * size;
    box.style.height = `${Math.min(420, height) + (width > box.clientWidth ? 14 : 0)}px`;
    spacer.style.height = `${height}px`;
    spacer.style.width = `${width}px`;
    shown = new Set(state.rows);
    const present = index.statuses.filter((_, n) => columns.status.includes(n));
    legend.replaceChildren(...(colorBy === "result"
      ? present.map(name => el("span", {}, el("i", {class: `dot ${name}`}), name))
      : [el("span", {}, `light: ${short(ranges[colorBy][0])}, dark: ${short(ranges[colorBy][1])}`)]));
    readColors();
    draw();
  };
  box.addEventListener("scroll", draw);
  let before = 0;
  new ResizeObserver(() => { if (box.clientWidth !== before) { before = box.clientWidth; lay(); } }).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", lay);
  listeners.push(what => what === "filter" ? lay() : draw());
  const colour = choice("Colour by", MAP_COLORS.map(name => [name, name]), "result", value => { colorBy = value; lay(); });
  return el("div", {class: "card", style: {marginTop: "12px"}},
            el("div", {class: "row spread", style: {marginBottom: "8px"}}, el("div", {class: "row"}, el("h3", {}, "Map"), note, legend), colour), box);
}

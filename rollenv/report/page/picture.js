// A board of cells, [ground, pieces, text, wide] or null each. How grounds and pieces look comes from rollenv/drawing.py.

function picture({rows, block = 0, origin = 0, across = 1, notes = []}, looks) {
  const width = Math.max(...rows.map(row => row.length)) * across, height = rows.length, unit = 44;
  const root = svgNode("svg", {viewBox: `0 0 ${width} ${height}`, width: width * unit, height: height * unit,
                               role: "img", "aria-label": "The board", "font-family": "system-ui, sans-serif"});
  rows.forEach((row, y) => row.forEach((cell, x) => {
    if (!cell) return;
    const [ground, pieces, text, wide] = cell, [fill, ink] = looks.grounds[ground];
    const size = Math.min(Math.max(wide, 0.1), 1) * across - 0.04, middle = (x + 0.5) * across;
    if (fill !== "none")
      root.append(svgNode("rect", {x: middle - size / 2, y: y + 0.02, width: size, height: 0.96, fill}));
    for (const piece of pieces) {
      const group = svgNode("g", {transform: `translate(${middle - 0.5} ${y})`});
      group.append(...looks.pieces[piece].map(([tag, attributes]) => svgNode(tag, attributes)));
      root.append(group);
    }
    if (text) {
      const shown = visible(text.slice(0, 12)), font = Math.min(0.52, 1.35 * across / shown.length);
      root.append(svgNode("text", {x: middle, y: y + 0.5 + 0.36 * font, "font-size": font, "text-anchor": "middle",
                                   "font-weight": ground === "label" ? 400 : 600, fill: ink}, shown));
    }
  }));
  if (block) {
    let path = "";
    for (let y = origin; y <= height; y += block) path += `M${origin} ${y}H${width}`;
    for (let x = origin; x <= width; x += block) path += `M${x} ${origin}V${height}`;
    root.append(svgNode("path", {d: path, stroke: "#57606a", "stroke-width": 0.07, fill: "none"}));
  }
  return el("div", {class: "board"}, root, notes.length ? el("div", {class: "small"}, pre(notes.join("\n"))) : null);
}

// The pictures of an observation, as the model saw them; of those that are not here, why.
const pictures = images => el("div", {class: "pictures"}, el("div", {class: "dim small"}, "As the model sees it"),
  ...images.map(each => each.startsWith("data:image/png;base64,") ? el("img", {src: each, alt: "A picture of the observation"}) : el("p", {class: "dim small"}, visible(each))));

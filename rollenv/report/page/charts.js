// Curves: round ticks, outliers clipped at the edge; smoothed on request, with the raw values faint.

const look = {smooth: 0, clip: true};
// The number is the place of a run in data.runs, which is the order of the folders, or with one run that of a series in
// curves.toml; the colours stand in style.css.
const lineColor = number => `var(--run${number % 6})`;

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough * 0.999);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(+(k * step).toPrecision(12));
  return out;
}

// An exponential mean that does not lean to its first value.
function smoothed(points, weight) {
  let sum = 0, mass = 0;
  return points.map(([x, y, row]) => {
    sum = sum * weight + y;
    mass = mass * weight + 1;
    return [x, sum / mass, row];
  });
}

function range(values, clip) {
  const sorted = [...values].sort((a, b) => a - b), at = q => sorted[Math.round(q * (sorted.length - 1))];
  let low = sorted[0], high = sorted[sorted.length - 1];
  if (clip && sorted.length >= 10) {
    const spread = (at(0.9) - at(0.1)) * 1.5;
    if (spread > 0) {
      low = sorted.find(v => v >= at(0.1) - spread);
      high = sorted.findLast(v => v <= at(0.9) + spread);
    }
  }
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high)))  // means over seeds are off by a digit
    [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  return [low, high];
}

const DASHES = ["none", "5 3", "1.5 3"];
const keyLine = ({color, dash}) => {
  const line = svgNode("svg", {width: 18, height: 8, class: "line", "aria-hidden": "true"});
  line.append(svgNode("path", {d: "M0 4h18", stroke: color, "stroke-width": 2.5, "stroke-dasharray": dash}));
  return line;
};

function seriesOf(definition) {
  const out = [];
  data.runs.forEach((run, number) => definition.series.forEach(({key, name}, which) => {
    const pointsOf = rows => rows.filter(r => Number.isFinite(r[key]) && Number.isFinite(r.iteration))
      .map(r => [r.iteration, r[key], r]).sort((a, b) => a[0] - b[0]);
    const points = pointsOf(run.metrics), seeds = (run.seeds || []).map(pointsOf).filter(each => each.length);
    if (!points.length) return;
    const setting = run.seeds?.length ? run.name.replace(/(^| )(\w+\.)+(?=\w+=)/g, "$1") : run.name;  // keys without their sections
    const label = several ? (definition.series.length > 1 ? `${setting}: ${name}` : setting) : name;
    out.push({key, label, points, seeds, color: lineColor(several ? number : which), dash: several ? DASHES[which % 3] : "none"});
  }));
  return out;
}

const SHARES = /(^|\/)success$|^informative_groups$|^clipped$/;
const EVALUATED = /^eval\/(.+\/)?success$/;

function chart(definition) {
  const W = 400, H = 210, left = 48, right = 12, top = 10, bottom = 26;
  const series = seriesOf(definition);
  const isShare = definition.series.every(s => SHARES.test(s.key)) && definition.title !== "Clipped tokens";
  const legend = el("div", {class: "legend"});
  const card = el("div", {class: "card chart"},
                  el("div", {class: "row spread"}, el("h3", {}, visible(definition.title)), help(definition.help)));
  const values = series.flatMap(s => [...s.points, ...s.seeds.flat()].map(p => p[1]));
  if (!values.length) return el("div", {class: "card chart"}, el("h3", {}, definition.title), el("p", {class: "dim"}, "No finite numbers."));
  let [low, high] = isShare ? [0, 1] : range(values, look.clip);
  if (!isShare && low > 0 && low < high / 3) low = 0;
  const marks = ticks(low, high, 4), step = marks.length > 1 ? marks[1] - marks[0] : high - low;
  low = Math.min(low, Math.floor(low / step + 1e-9) * step);
  high = Math.max(high, Math.ceil(high / step - 1e-9) * step);
  const xs = series.flatMap(s => [s.points, ...s.seeds].filter(p => p.length).flatMap(p => [p[0][0], p[p.length - 1][0]]));
  const first = Math.min(0, ...xs), last = Math.max(...xs, first + 1);
  const X = x => left + (W - left - right) * (x - first) / (last - first);
  const inside = y => Math.min(high, Math.max(low, y));
  const Y = y => top + (H - top - bottom) * (high - inside(y)) / (high - low);
  const root = svgNode("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${definition.title} over iterations`});
  for (const y of ticks(low, high, 4))
    root.append(svgNode("line", {x1: left, x2: W - right, y1: Y(y), y2: Y(y), stroke: "var(--line)", "stroke-width": 0.7}),
                svgNode("text", {x: left - 6, y: Y(y) + 4, "text-anchor": "end"}, isShare ? `${Math.round(y * 100)} %` : short(y)));
  for (const x of ticks(first, last, 5).filter(Number.isInteger))
    root.append(svgNode("text", {x: X(x), y: H - 8, "text-anchor": "middle"}, short(x)));
  let beyond = 0;
  for (const s of series) {
    const line = points => points.map(p => `${X(p[0]).toFixed(1)},${Y(p[1]).toFixed(1)}`).join(" ");
    if (EVALUATED.test(s.key)) band(root, s, X, Y);
    const smooth = look.smooth && s.points.length >= 30 && !EVALUATED.test(s.key);
    const style = {fill: "none", stroke: s.color, "stroke-linejoin": "round", "stroke-dasharray": s.dash};
    for (const seed of s.seeds) root.append(svgNode("polyline", {...style, points: line(smooth ? smoothed(seed, look.smooth) : seed), "stroke-width": 0.8, opacity: 0.45}));
    if (smooth) root.append(svgNode("polyline", {...style, points: line(s.points), "stroke-width": 1, opacity: 0.3}));
    const strong = smooth ? smoothed(s.points, look.smooth) : s.points;
    root.append(svgNode("polyline", {...style, points: line(strong), "stroke-width": 2}));
    for (const p of s.points) {
      if (p[1] < low || p[1] > high) {
        beyond++;
        const y = Y(p[1]), d = p[1] > high ? 5 : -5;
        root.append(svgNode("path", {d: `M${X(p[0]) - 4} ${y + d}h8l-4 ${-d}z`, fill: s.color}));
      } else if (s.points.length <= 30) root.append(svgNode("circle", {cx: X(p[0]), cy: Y(p[1]), r: 2.2, fill: s.color}));
    }
  }
  pointing(root, series, legend, {X, left, right, W, top, bottom, H, first, last, isShare});
  card.append(root, legend);
  if (beyond) card.append(el("div", {class: "dim small"}, `${plural(beyond, "point")} beyond the scale`));
  return card;
}

function band(root, {key, points, color}, X, Y) {
  const [low, high] = ["low", "high"].map(end => key.replace(/success$/, end));
  const known = points.filter(p => Number.isFinite(p[2][low]) && Number.isFinite(p[2][high]));
  if (known.length < 2) return;
  const upper = known.map(p => `${X(p[0])},${Y(p[2][high])}`), lower = known.map(p => `${X(p[0])},${Y(p[2][low])}`);
  root.append(svgNode("polygon", {points: [...upper, ...lower.reverse()].join(" "), fill: color, opacity: 0.14}));
}

function pointing(root, series, legend, {X, left, right, W, top, bottom, H, first, last, isShare}) {
  const line = svgNode("line", {y1: top, y2: H - bottom, stroke: "var(--dim)", visibility: "hidden"});
  root.append(line);
  const say = at => {
    const near = series.map(s => s.points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
    const number = y => isShare ? `${(100 * y).toFixed(1)} %` : short(y);
    legend.replaceChildren(...series.map((s, n) => el("span", {title: visible(s.label)},
      keyLine(s), visible(s.label), at === null ? "" : ` ${number(near[n][1])}`)),
      at === null ? "" : el("span", {class: "dim"}, `iteration ${near[0][0]}`));
    return near[0][0];
  };
  const move = event => {
    const box = root.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width * W - left) / (W - left - right) * (last - first) + first;
    const at = X(say(x));
    line.setAttribute("x1", at);
    line.setAttribute("x2", at);
    line.setAttribute("visibility", "visible");
  };
  root.addEventListener("pointermove", move);
  root.addEventListener("pointerdown", move);
  root.addEventListener("pointerleave", () => { line.setAttribute("visibility", "hidden"); say(null); });
  say(null);
}

function charts() {
  if (!data.curves.length) return null;
  const main = el("div", {class: "charts"}), more = el("div", {class: "charts"}), rest = el("details", {}, el("summary", {}, "More metrics"), more);
  const draw = () => {
    main.replaceChildren(...data.curves.filter(c => !c.more).map(chart));
    more.replaceChildren(...(rest.open ? data.curves.filter(c => c.more).map(chart) : []));
  };
  const slider = el("input", {type: "range", min: "0", max: "0.98", step: "0.02", value: String(look.smooth),
                              oninput: event => { look.smooth = +event.target.value; draw(); }});
  const clip = el("input", {type: "checkbox", checked: look.clip, onchange: event => { look.clip = event.target.checked; draw(); }});
  rest.addEventListener("toggle", draw);
  draw();
  const controls = el("div", {class: "row"}, el("label", {}, "Smoothing", slider), el("label", {}, clip, "Clip outliers"));
  return el("section", {}, el("div", {class: "row spread"}, el("h2", {}, "Curves"), controls), main,
            data.curves.some(c => c.more) ? rest : null);
}

// Elements, numbers and texts.

const el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
};

const svgNode = (tag, attributes = {}, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

// Numbers that are not finite come as text: "NaN", "Infinity", "-Infinity".
const short = x => {
  if (typeof x !== "number") return String(x);
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size < 1e-3 || size >= 1e12) return x.toExponential(1).replace(".0e", "e");
  if (size >= 1e6) return +(x / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return +(x / 1e3).toPrecision(3) + "k";
  return +x.toPrecision(size >= 1000 ? 4 : 3) + "";
};

const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

// Control characters and those that turn the direction of text are shown, not obeyed.
const visible = text => String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g,
  c => c.charCodeAt(0) < 32 ? String.fromCharCode(0x2400 + c.charCodeAt(0))
     : c === "\u007f" ? "\u2421" : `\u27e8${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);

const pre = text => el("pre", {}, visible(text));

// -- buttons of players ------------------------------------------------------------------------------------------------

const ICONS = {first: "M4 3v10M13 3 6 8l7 5z", back: "M10 3 5 8l5 5", play: "M4 2.5v11L13 8z", pause: "M4 3h3v10H4zM9 3h3v10H9z",
               next: "M6 3l5 5-5 5", last: "M12 3v10M3 3l7 5-7 5z"};
const icon = name => {
  const picture = svgNode("svg", {viewBox: "0 0 16 16", width: 14, height: 14, fill: /back|next/.test(name) ? "none" : "currentColor", "stroke-width": 1.5, stroke: "currentColor", "aria-hidden": "true"});
  picture.append(svgNode("path", {d: ICONS[name], "stroke-linejoin": "round"}));
  return picture;
};

// -- tooltips ----------------------------------------------------------------------------------------------------------

const tip = el("div", {id: "tip", role: "tooltip", hidden: true});
const showTip = (node, text) => {
  tip.textContent = text;
  tip.hidden = false;
  const box = node.getBoundingClientRect();
  tip.style.left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8)) + "px";
  const below = box.bottom + 6;
  tip.style.top = (below + tip.offsetHeight < innerHeight ? below : box.top - tip.offsetHeight - 6) + "px";
};
const hideTip = () => { tip.hidden = true; };

const help = text => {
  if (!text) return null;
  const button = el("button", {class: "help", type: "button", "aria-label": text}, "?");
  for (const event of ["mouseenter", "focus", "click"]) button.addEventListener(event, () => showTip(button, text));
  for (const event of ["mouseleave", "blur"]) button.addEventListener(event, hideTip);
  return button;
};

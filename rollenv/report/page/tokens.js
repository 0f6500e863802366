// The tokens of a turn: what engine and trainer said of each, and what became of it in the update.

const TOKENS_SHOWN = 2000;
const BLUE = "33 113 181", ORANGE = "217 95 2";  // told apart by the colour-blind; negative numbers are underlined, too
const CUT = ["", "cut by the loss", "masked by the correction"];

// Numbers of a turn are a list, or one that all its tokens share.
const numberAt = (values, n) => Array.isArray(values) ? values[n] ?? undefined : values ?? undefined;
const finite = x => typeof x === "number" && Number.isFinite(x);

// What the colour shows: name, explanation, kind of scale, and the number of token n.
const COLOURS = {
  engine: ["Probability in the engine", "What the engine gave the token when it sampled it. The stronger, the less likely.", "share", (t, n) => asShare(numberAt(t.l, n))],
  trainer: ["Probability in the trainer", "What the trained model gave the token in the update. The stronger, the less likely.", "share", (t, n) => asShare(numberAt(t.u?.p, n))],
  difference: ["Trainer − engine", "Difference of the log-probabilities, in nats. For the same weights it should be near 0.", "sign", (t, n) => difference(numberAt(t.u?.p, n), numberAt(t.l, n))],
  advantage: ["Advantage", "Above 0 the token becomes likelier, below 0 less likely.", "sign", (t, n) => numberAt(t.u?.a, n)],
  mask: ["Trained or not", "Hatched tokens were not trained on; the details say why.", "mask", (t, n) => untrained(t, n) ? 0 : 1],
  entropy: ["Entropy", "Of the trained model's choice at this place, in nats. The stronger, the more open.", "size", (t, n) => numberAt(t.u?.e, n)],
  staleness: ["Staleness", "Updates between the weights that sampled the token and those that were trained.", "size", (t, n, episode) => staleness(t, n, episode)],
};
const asShare = logprob => finite(logprob) ? Math.exp(logprob) : logprob === "-Infinity" ? 0 : undefined;
const difference = (a, b) => finite(a) && finite(b) ? a - b : undefined;
const versionOf = (turn, n) => numberAt(turn.K, n) ?? turn.k ?? 0;
const staleness = (turn, n, episode) => episode.u ? episode.u.v - versionOf(turn, n) : undefined;
const untrained = (turn, n) => turn.u?.y || CUT[numberAt(turn.u?.c, n) ?? 0];

function paintToken(span, kind, value, most) {
  const strength = kind === "share" ? 1 - value : Math.min(1, Math.abs(value) / most);
  span.classList.toggle("hatched", kind === "mask" && value === 0);
  span.classList.toggle("unknown", value === undefined);
  span.classList.toggle("below", kind === "sign" && value < 0);
  span.style.backgroundColor = kind === "mask" || value === undefined ? "" : `rgb(${kind === "sign" && value < 0 ? ORANGE : BLUE} / ${(0.65 * strength).toFixed(3)})`;
}

function legendOf(kind, most) {
  const [left, middle, right, stops] = {
    share: ["0", "½", "1", `rgb(${BLUE} / .65), transparent`],
    sign: [short(-most), "0", short(most), `rgb(${ORANGE} / .65), transparent, rgb(${BLUE} / .65)`],
    size: ["0", short(most / 2), short(most), `transparent, rgb(${BLUE} / .65)`],
  }[kind] ?? [];
  if (kind === "mask") return el("div", {class: "row small"}, el("span", {}, "trained"), el("span", {class: "hatched"}, "not trained"));
  return el("div", {class: "row small"}, el("span", {class: "ramp", role: "img", "aria-label": `Colours from ${left} to ${right}`},
    el("i", {style: {background: `linear-gradient(to right, ${stops})`}}), el("span", {}, left), el("span", {}, middle), el("span", {}, right)), el("span", {class: "unknown"}, "no number"));
}

// The prompts until a turn, folded: of each, what the one before had not.
function foldedPrompts(turns) {
  const folds = turns.map(({p}, n) => !p ? null : el("details", {}, el("summary", {}, `Prompt of turn ${n + 1}, ${plural(p[0], "token")}${n && p.length > 1 ? ": what is new in it" : ""}`),
    p.length > 1 ? pre(p[2] || "(nothing)") : el("p", {class: "dim small"}, "Its text is not shown: the model's tokenizer was not found."))).filter(Boolean);
  return folds.length ? el("details", {}, el("summary", {}, `${plural(folds.length, "prompt")} until here, turn by turn: read, not trained`), el("div", {class: "folds"}, ...folds)) : null;
}

function tokens(turn, turns, now, go, follow) {
  if (!turn) return nothing("The episode is over.");
  const ids = turn.i || [], {episode} = now;
  if (!ids.length) return nothing("This agent's replies have no tokens.");
  const vocabulary = index.vocabulary[columns.run[now.row]] || {};
  const name = n => visible(ids[n] in vocabulary ? vocabulary[ids[n]] : `#${ids[n]}`).replace(/\n/g, "⏎\n") || "∅";
  const known = Object.keys(COLOURS).filter(key => key === "engine" || (episode.u && turn.u));
  const choices = known.map(key => [key, COLOURS[key][0]]);
  const picker = choice("Colour", choices, known.includes(now.colour) ? now.colour : "engine", key => { now.colour = key; paint(); follow(); }, "What the colour shows (key C)");
  const legend = el("div"), box = el("div", {class: "tokens", tabindex: "0", role: "listbox", "aria-label": "Tokens of the reply: left and right arrow choose one"});
  const about = el("table", {class: "about"}), said = el("p", {class: "sr", "aria-live": "polite"}), striking = el("div", {class: "chips"}), strikingBox = el("div", {}, el("div", {class: "dim small"}, "The most striking by colour"), striking), pager = el("div", {class: "controls"});
  let first = -1, spans = [];

  const facts = n => {
    const engine = numberAt(turn.l, n), trainer = numberAt(turn.u?.p, n), gap = difference(trainer, engine), steps = numberAt(turn.u?.n, n);
    const both = logprob => finite(logprob) ? `${short(Math.exp(logprob))} (log-probability ${logprob.toFixed(4)})` : logprob === undefined ? "not stored" : `0 (log-probability ${logprob})`;
    const rows = [["Token", `${n + 1} of ${turn.z ?? ids.length}: ${name(n)} (id ${ids[n]})`], ["Engine", both(engine)]];
    if (turn.u) rows.push(
      ["Trainer", trainer === undefined ? "not computed" : `${both(trainer)}, ${steps ? `after ${plural(steps, "step")} of the update` : "with the weights before the update"}`],
      ["Difference", gap === undefined ? "unknown" : `${short(gap)} nats`],
      ["Advantage", short(numberAt(turn.u.a, n) ?? "none")],
      ["Trained", untrained(turn, n) ? `no: ${untrained(turn, n)}` : "yes"],
      ["Entropy", short(numberAt(turn.u.e, n) ?? "not computed")],
      ["Staleness", `${staleness(turn, n, episode)}: sampled by version ${versionOf(turn, n)}, trained from version ${episode.u?.v}`]);
    else rows.push(["Version", `sampled by version ${versionOf(turn, n)} of the weights`]);
    return rows;
  };
  const label = n => `token ${n + 1}, ${name(n)}, ${facts(n).slice(1).map(([key, value]) => `${key} ${value}`).join("; ")}`;

  const paint = () => {
    const [, text, kind, value] = COLOURS[picker.querySelector("select").value];
    const most = Math.max(kind === "sign" ? 1e-3 : 1, ...spans.map((_, n) => Math.abs(value(turn, first + n, episode))).filter(finite));
    spans.forEach((span, n) => paintToken(span, kind, value(turn, first + n, episode), most));
    legend.replaceChildren(legendOf(kind, most), el("p", {class: "small dim"}, text));
    const size = n => { const x = value(turn, n, episode); return !finite(x) ? -1 : kind === "share" ? 1 - x : Math.abs(x); };
    const far = spans.map((_, n) => first + n).filter(n => size(n) > 0).sort((a, b) => size(b) - size(a)).slice(0, kind === "mask" ? 0 : 8);
    strikingBox.hidden = !far.length;
    striking.replaceChildren(...far.map(n => el("button", {type: "button", onclick: () => { chooseToken(n); box.focus(); }}, `${n + 1} ${name(n).trim()} ${short(value(turn, n, episode))}`)));
  };
  const chooseToken = (n, tell = true) => {
    now.token = Math.min(ids.length - 1, Math.max(0, n));
    const start = now.token - now.token % TOKENS_SHOWN;
    if (start !== first) fill(start);
    spans.forEach((span, k) => span.setAttribute("aria-selected", String(first + k === now.token)));
    const span = spans[now.token - first];
    box.setAttribute("aria-activedescendant", span.id);
    about.replaceChildren(el("tbody", {}, ...facts(now.token).map(([key, value]) => el("tr", {}, el("th", {scope: "row"}, key), el("td", {}, visible(value))))));
    if (tell) { said.textContent = label(now.token); span.scrollIntoView({block: "nearest"}); }
    follow();
  };
  const fill = start => {
    first = start;
    spans = ids.slice(start, start + TOKENS_SHOWN).map((_, k) =>
      el("span", {id: `token-${start + k}`, role: "option", title: `token ${start + k + 1}`, "aria-selected": "false", "aria-label": label(start + k), onclick: () => chooseToken(start + k)}, el("bdi", {}, name(start + k))));
    box.replaceChildren(...spans);
    const jump = (text, to, off) => el("button", {type: "button", disabled: off, onclick: () => chooseToken(to)}, text);
    const end = start + spans.length;
    pager.replaceChildren(...ids.length <= TOKENS_SHOWN ? [] : [jump("Earlier tokens", start - TOKENS_SHOWN, start === 0), el("span", {class: "small dim"}, `${start + 1} to ${end} of ${ids.length}`), jump("Later tokens", end, end === ids.length)]);
    paint();
  };
  box.addEventListener("keydown", event => {
    const to = {ArrowRight: now.token + 1, ArrowLeft: now.token - 1, Home: 0, End: ids.length - 1}[event.key];
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    chooseToken(to);
  });
  now.cycle = () => {
    const box = picker.querySelector("select");
    box.value = now.colour = known[(known.indexOf(box.value) + 1) % known.length];
    said.textContent = `The colour shows: ${COLOURS[now.colour][0]}`;
    paint();
    follow();
  };
  chooseToken(now.token, false);
  const sum = (turn.l || []).filter(finite).reduce((a, b) => a + b, 0);
  const left = (turn.z ?? ids.length) - ids.length;
  return [el("div", {class: "row spread"}, picker, legend), foldedPrompts(turns.slice(0, now.frame + 1)), pager, box, said,
          el("div", {class: "row aside"}, about, strikingBox),
          el("p", {class: "small dim"}, `${plural(turn.z ?? ids.length, "token")}${left ? `, of which the last ${left.toLocaleString("en")} are in the run's files only` : ""}; probability of the whole reply ${short(Math.exp(sum))}.` +
             (episode.u ? "" : " The trainer's numbers are stored of updates, with report.tokens=GROUPS."))].filter(Boolean);
}

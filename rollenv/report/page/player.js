// One episode: its board turn by turn, what the environment and the agent said, prompts, tokens and messages.

const TABS = {reply: "Reply", prompt: "Prompt", tokens: "Tokens", talk: "Conversation", calls: "Calls"};
const SPEEDS = [0.5, 1, 2, 5];

function player() {
  const pane = el("div", {class: "card player"});
  const now = {row: -1, episode: null, frame: 0, tab: "reply", timer: 0, speed: 1, token: 0, colour: "engine"};
  const turns = () => now.episode.t || [];

  const stop = () => { clearInterval(now.timer); now.timer = 0; };
  const go = frame => {
    if (!now.episode) return;
    now.frame = Math.min(turns().length, Math.max(0, frame));
    now.token = 0;
    if (now.frame === turns().length) stop();
    draw();
  };
  const play = () => {
    if (!now.episode) return;
    if (now.timer) stop();
    else {
      if (now.frame === turns().length) now.frame = 0;
      now.timer = setInterval(() => go(now.frame + 1), 700 / now.speed);
    }
    draw();
  };

  async function open(row) {
    stop();
    now.row = row;
    if (row < 0) return pane.replaceChildren(el("p", {class: "dim"}, "Choose an episode."));
    try {
      const episode = await loadEpisode(row);
      if (now.row !== row) return;
      Object.assign(now, {episode, frame: 0, token: 0});
      if (now.tab === "calls") now.tab = "reply";
      if (episode.h) now.tab = "calls";
      else if (hasCalls(episode)) Object.assign(now, {tab: "talk", frame: turns().length});
      draw();
    } catch (error) {
      now.episode = null;
      pane.replaceChildren(el("p", {class: "fail"}, error.message));
    }
  }

  const button = (label, text, press, disabled = false) =>
    el("button", {type: "button", "aria-label": label, title: label, onclick: press, disabled}, text);

  function controls() {
    const n = turns().length, frame = now.frame;
    const slider = el("input", {type: "range", min: "0", max: String(n), "aria-label": "Turn", oninput: event => go(+event.target.value)});
    slider.value = String(frame);
    const speed = choice("", SPEEDS.map(s => [s, `${s}×`]), now.speed, value => { now.speed = +value; if (now.timer) { stop(); play(); } }, "Speed");
    return el("div", {class: "controls"},
      button("First turn (Home)", icon("first"), () => go(0), frame === 0), button("Previous turn (left arrow)", icon("back"), () => go(frame - 1), frame === 0),
      button(now.timer ? "Pause (space)" : "Play (space)", icon(now.timer ? "pause" : "play"), play, n === 0),
      button("Next turn (right arrow)", icon("next"), () => go(frame + 1), frame === n), button("Last turn (End)", icon("last"), () => go(n), frame === n),
      slider, el("span", {class: "small dim"}, frame === n ? `end, ${plural(n, "turn")}` : `turn ${frame + 1} of ${n}`), speed);
  }

  function head() {
    const row = now.row, at = state.rows.indexOf(row), task = index.tasks[columns.task[row]];
    const facts = [`reward ${short(columns.reward[row])}${now.episode.b ? ` (${now.episode.b} before)` : ""}`, plural(turns().length, "turn")];
    if (columns.tokens[row]) facts.push(`${plural(columns.tokens[row], "token")} written`);
    if (columns.seconds[row]) facts.push(`${short(columns.seconds[row])} s${now.episode.a ? ` (agent ${short(now.episode.a)} s)` : ""}`);
    if (now.episode.u) facts.push(`group ${now.episode.u.g + 1} of the update of version ${now.episode.u.v}`);
    if (now.episode.n) facts.push(`environment replaced ${now.episode.n}×`);
    return el("div", {class: "row spread"},
      el("div", {}, el("h3", {}, several ? `${data.runs[columns.run[row]].name}: ` : "", visible(episodeName(row))),
         el("div", {class: "small dim"}, el("span", {class: "badge"}, el("i", {class: `dot ${status(row)}`}), visible(statusText(row))), ", " + facts.join(", ")),
         el("div", {class: "small dim"}, visible([task.env, `seed ${task.seed}`, task.more].filter(Boolean).join(" ")))),
      el("div", {class: "row"}, button("Previous episode (up arrow)", "↑", () => step(-1), at <= 0),
         el("span", {class: "small dim"}, at < 0 ? "not in the list" : `${at + 1} of ${state.rows.length}`),
         button("Next episode (down arrow)", "↓", () => step(1), at < 0 || at === state.rows.length - 1)));
  }

  function draw() {
    const focused = document.activeElement, label = pane.contains(focused) ? focused.getAttribute("aria-label") || focused.dataset.tab : null;
    const end = now.frame === turns().length, turn = end ? null : turns()[now.frame];
    const view = end ? now.episode.v : turn.v, said = end ? now.episode.o : turn.o;
    const images = ((end ? now.episode : turn).g || []).map(number => now.episode.G[number]);
    const before = now.frame > 0 ? turns()[now.frame - 1] : null;
    const heard = seatName(now.episode, end ? now.episode.s : turn.s);
    const stage = el("div", {class: "stage"},
      el("div", {}, images.length ? pictures(images) : view ? showView(view) : el("p", {class: "dim"}, "No drawing is stored of this turn.")),
      el("div", {class: "said"}, el("div", {class: "dim small"}, visible(`The environment says${heard && ` to ${heard}`}`)), pre(said || "(nothing)"),
         before ? el("p", {class: "small dim"}, `Reward of the turn before: ${short(before.r || 0)}`) : null));
    if (!view && !images.length) stage.firstChild.hidden = true;
    if (!view && !images.length) stage.style.gridTemplateColumns = "minmax(0, 1fr)";
    const parts = [head(), now.episode.e ? el("div", {class: "fail"}, pre(now.episode.e)) : null,
                   el("div", {style: {marginTop: "12px"}}, controls()), stage, tabs(turn)];
    pane.replaceChildren(...parts.filter(Boolean));
    if (now.tab === "talk" && !hasCalls(now.episode)) pane.querySelector("[role=tabpanel]").scrollTop = 1e9;
    if (label) [...pane.querySelectorAll("[aria-label],[data-tab]")].find(n => n.getAttribute("aria-label") === label || n.dataset.tab === label)?.focus();
    follow();
  }

  // The address names what is looked at.
  const follow = () => {
    const turn = now.frame === turns().length ? "end" : now.frame + 1;
    const token = now.tab === "tokens" && turn !== "end" ? `&token=${now.token + 1}&colour=${now.colour}` : "";
    history.replaceState(null, "", `${addressOf(now.row)}&turn=${turn}${token}`);
  };

  // What an address names: its episode is the current one already.
  const visit = async ({turn, token, colour}) => {
    await open(state.current);
    if (!now.episode) return;
    if (token) Object.assign(now, {tab: "tokens", colour: COLOURS[colour] ? colour : now.colour});
    if (turn) go(turn === "end" ? turns().length : turn - 1);
    if (!token) return;
    now.token = token - 1;
    draw();
    pane.querySelector(".tokens [aria-selected=true]")?.scrollIntoView({block: "center"});
  };

  function tabs(turn) {
    const body = el("div", {class: "box", role: "tabpanel"});
    const bar = el("div", {class: "tabs", role: "tablist"}, ...Object.entries(TABS).filter(([key]) => key !== "calls" || now.episode.h).map(([key, name]) =>
      el("button", {type: "button", role: "tab", "data-tab": key, "aria-selected": String(now.tab === key),
                    onclick: () => { now.tab = key; draw(); }}, name)));
    body.append(...{reply, prompt, tokens, talk, calls}[now.tab](turn, turns(), now, go, follow));
    return el("div", {}, bar, body);
  }

  document.addEventListener("keydown", event => {
    const target = event.target, typing = target.matches?.("input:not([type=range]):not([type=checkbox]), select, textarea");
    if (typing || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === " " && target.matches?.("button, summary, a, input")) return;
    if (event.key.startsWith("Arrow") && target.matches?.("input[type=range]")) return;
    const act = {ArrowRight: () => go(now.frame + 1), ArrowLeft: () => go(now.frame - 1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
                 " ": play, Home: () => go(0), End: () => go(turns().length),
                 c: now.tab === "tokens" && now.frame < turns().length ? () => now.cycle?.() : null}[event.key];
    const inside = target === document.body ? seen(pane) : pane.contains(target) || target.closest?.(".list");
    if (act && now.episode && inside) { event.preventDefault(); act(); }
  });
  const seen = node => { const b = node.getBoundingClientRect(); return b.bottom > 80 && b.top < innerHeight - 80; };
  listeners.push(() => { if (state.current !== now.row) open(state.current); else if (now.episode) draw(); });
  pane.visit = visit;
  return pane;
}

// Who takes a seat of a game; empty where there is one player.
const seatName = (episode, seat = 0) => episode.q ? `${episode.q[seat] ?? ""} (seat ${seat})` : "";

// Episodes with tool calls are read as a conversation, from its end.
const hasCalls = episode => (episode.t || []).some(turn => (turn.x || "").includes("<tool_call>"));

// -- tabs --------------------------------------------------------------------------------------------------------------

const nothing = text => [el("p", {class: "dim"}, text)];

function reply(turn) {
  if (!turn) return nothing("The episode is over.");
  const why = turn.f ? el("p", {class: "small dim"}, `The reply ended at a limit (${turn.f}).`) : null;
  if (!turn.w) return [pre(turn.x || "(empty)"), why].filter(Boolean);
  return [el("div", {class: "dim small"}, "As the model wrote it"), pre(turn.w),
          el("div", {class: "dim small", style: {marginTop: "10px"}}, "What the environment got of it"), pre(turn.x || "(empty)"), why].filter(Boolean);
}

function prompt(turn, turns, now) {
  if (!turn) return nothing("The episode is over.");
  if (turn.p && turn.p.length > 1) {
    let text = "";
    for (const {p} of turns.slice(0, now.frame + 1)) if (p && p.length > 1) text = text.slice(0, p[1]) + p[2];
    return [el("div", {class: "dim small"}, `${plural(turn.p[0], "token")}, exactly as the model read them`), pre(text)];
  }
  if (turns.some(t => t.m)) return messages(turns.slice(0, now.frame + 1), false, null, now.episode);
  if (turn.p) return nothing(`The prompt had ${plural(turn.p[0], "token")}. Its text is not shown: the model's tokenizer was not found, or the package tokenizers is not installed.`);
  return nothing("No prompt is stored: this agent has none, or it was left out to save space.");
}

// The calls of a program that played by itself, as a tree: a call that goes on from another stands below it, and the
// second of one call's followers is indented. A trained call leads to its turn.
function calls(turn, turns, now, go) {
  const {calls, about, output} = now.episode.h, depth = [], followers = {};
  const lines = calls.map((call, n) => {
    const before = followers[call.p] = (followers[call.p] || 0) + 1;
    depth[n] = call.p < 0 ? 0 : depth[call.p] + (before > 1 ? 1 : 0);
    const trained = call.t >= 0, gave = call.f.map(([name, args]) => callMessage(name, parsed(args)));
    const open = el("button", {type: "button", disabled: !trained, title: trained ? "Show its tokens" : "This call is not trained",
                               onclick: () => { now.tab = "tokens"; go(call.t); }}, `${n + 1} ${call.k}`);
    const facts = el("span", {class: "small dim"}, [call.p < 0 ? "new line" : `after ${call.p + 1}`, `${plural(call.n[0], "token")} read, ${call.n[1]} drawn`,
                                                     trained ? `trained as turn ${call.t + 1}` : "not trained"].join(", "));
    const read = call.c.map(([role, text]) => folded(role, text, text, role === "tool" ? "tool" : ""));
    const shown = call.c.length > 3 ? [el("details", {}, el("summary", {}, plural(call.c.length, "message")), ...read)] : read;
    return el("div", {style: {marginLeft: `${20 * depth[n]}px`, marginTop: "10px"}}, el("div", {class: "row"}, open, facts),
              ...shown, call.x ? message("model", call.x, "assistant") : null, ...gave);
  });
  const matches = Object.entries(about.matches || {}).map(([kind, n]) => `${n} ${kind}`).join(", ");
  const head = el("p", {class: "small dim"}, visible(`${about.harness || "A program"} made ${plural(calls.length, "call")}` +
    (about.exit === null || about.exit === undefined ? "" : ` and ended with ${about.exit}`) + (matches ? `; messages found again: ${matches}` : "") + "."));
  const end = output ? el("details", {}, el("summary", {}, "What it printed"), pre(output)) : null;
  return [head, ...lines, end].filter(Boolean);
}

function talk(turn, turns, now) {
  return messages(turns.slice(0, now.frame + 1), true, turn ? null : now.episode.o, now.episode);
}

// What was said up to a turn. With withReply the last turn's reply too.
function messages(turns, withReply, last, episode) {
  const out = [];
  const seen = where => where.g?.length ? [pictures(where.g.map(number => episode.G[number]))] : [];
  turns.forEach((turn, n) => {
    if (turn.m) for (const message of turn.m) out.push(...oneMessage(message));
    else out.push(...heard(turn.o || ""));
    out.push(...seen(turn));
    if (withReply || n < turns.length - 1) out.push(...said(turn.w || turn.x || "", seatName(episode, turn.s) || "agent"));
  });
  if (last) out.push(...heard(last), ...seen(episode));
  return out.length ? out : nothing("Nothing was said.");
}

// What an environment says, answers to calls apart.
function heard(text) {
  const parts = text.split(/(<tool_response>\n?[\s\S]*?\n?<\/tool_response>)/).filter(part => part.trim());
  return parts.map(part => {
    const answer = part.match(/^<tool_response>\n?([\s\S]*?)\n?<\/tool_response>$/);
    return answer ? folded("answer", answer[1], answer[1], "tool") : withFunctions(part);
  });
}

// A message; the functions that it describes, a line of JSON each, are folded.
function withFunctions(text) {
  const found = text.match(/(?:^\{"name": .*\n?){2,}/m);
  if (!found) return message("environment", text);
  const before = text.slice(0, found.index).trim(), after = text.slice(found.index + found[0].length).trim();
  return el("div", {class: "msg"}, el("div", {class: "who"}, "environment"), pre(before),
    el("details", {}, el("summary", {}, plural(found[0].trim().split("\n").length, "function")), pre(found[0].trim())), after ? pre(after) : null);
}

const MOST_IN_LINE = 110;

// A call or an answer: one line, and all of it when opened. What fits on the line is not folded.
function folded(who, line, text, kind) {
  line = line.replace(/\s+/g, " ").trim();
  if (line.length <= MOST_IN_LINE) return message(who, line, kind);
  return el("div", {class: `msg ${kind}`}, el("div", {class: "who"}, who),
    el("details", {}, el("summary", {}, visible(line.slice(0, MOST_IN_LINE - 3)) + "..."), pre(text)));
}

function callMessage(name, args) {
  const given = args && typeof args === "object" ? Object.entries(args).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", ") : String(args ?? "");
  return folded("call", `${name}(${given})`, `${name}\n${typeof args === "string" ? args : JSON.stringify(args ?? {}, null, 2)}`, "call");
}

const message = (who, text, kind = "") => el("div", {class: `msg ${kind}`}, el("div", {class: "who"}, visible(who)), pre(text));

function oneMessage(data) {
  const who = String(data.role || "message"), content = typeof data.content === "string" ? data.content : parts(data.content) ?? JSON.stringify(data.content ?? "", null, 2);
  const calls = Array.isArray(data.tool_calls) ? data.tool_calls : [];
  const said = who === "tool" ? [folded("answer", content, content, "tool")] : content || !calls.length ? [message(who, content)] : [];
  return [...said, ...calls.map(call => callMessage(call.function?.name ?? "?", parsed(call.function?.arguments ?? call)))];
}

// The texts of a message of parts, with marks for its pictures.
const parts = content => Array.isArray(content) && content.every(part => part && typeof part === "object")
  ? content.map(part => typeof part.text === "string" ? part.text : `<${part.type ?? "part"}>`).join("\n") : null;

function parsed(text) {
  try { return JSON.parse(text); } catch { return text; }
}

// A reply, its tool calls apart.
function said(text, who) {
  return text.split(/(<tool_call>[\s\S]*?<\/tool_call>)/).filter(part => part.trim()).map(part => {
    const call = part.match(/^<tool_call>([\s\S]*)<\/tool_call>$/);
    if (!call) return message(who, part, "assistant");
    const data = parsed(call[1]);
    return data && typeof data === "object" ? callMessage(data.name ?? "?", data.arguments) : message("call", call[1], "call");
  });
}

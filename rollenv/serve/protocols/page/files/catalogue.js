// All environments, and the card of one.

import {ask} from "./api.js";
import {envLink, mapping, playLink, replayLink} from "./links.js";
import {bdi, button, code, el, empty, facts, field, link, plural, pre, short, table, visible} from "./parts.js";

const MARKS = [["here", "Works here", marks => !marks.includes("m")], ["hints", "Has an expert", marks => marks.includes("o")],
               ["levels", "Has levels", marks => marks.includes("l")], ["numbered", "Numbered tasks", marks => marks.includes("i")]];
const kept = {text: "", group: "", marks: new Set()};  // while the page is open

export function catalogueView({denied}) {
  const node = el("section", {}, el("h1", {}, "Environments"), el("p", {class: "dim", role: "status"}, "Loading…"));
  return {title: "Environments", node, start: () => Promise.all([ask("catalogue"), ask("packages")]).then(([data, packages]) => fill(node, data, packages), error => node.lastChild.replaceWith(denied(error)))};
}

function packageTable(packages) {
  const index = `${location.origin}${location.pathname.replace(/\/$/, "")}/packages`;
  const rows = packages.map(each => [bdi(each.name), visible(each.version), visible(each.ids.join(", ")), code(`rollenv install ${each.name}==${each.version} --from ${index}`)]);
  return el("details", {}, el("summary", {}, `${plural(packages.length, "package")} to install on your machine`),
            table(["Name", "Version", "Environments", "Install"], rows, {"aria-label": "Packages"}));
}

function fill(node, {envs, texts, groups}, packages) {
  const rows = envs.map(([id, text, marks]) => {
    const group = id.slice(0, id.indexOf(":"));
    const row = el("li", {}, link("", envLink(id), {class: "envrow"}));
    row.firstChild.append(el("span", {class: "id"}, visible(id)), el("span", {class: "about"}, visible(texts[text])), marks.includes("m") ? el("span", {class: "tag"}, "not here") : "");
    return {row, group, marks, words: `${id} ${texts[text]}`.toLowerCase()};
  }).sort((a, b) => a.marks.includes("m") - b.marks.includes("m"));  // what works here comes first
  const list = el("ul", {class: "envs"}, ...rows.map(each => each.row));
  const status = el("p", {class: "dim small", role: "status"}), none = empty("No environment matches.", "Try fewer words, or another group.");
  const search = el("input", {type: "search", placeholder: "sokoban, math, shop…", "aria-label": "Search environments", value: kept.text,
                              oninput: () => { kept.text = search.value; filter(); }});
  search.value = kept.text;
  const group = el("select", {"aria-label": "Group", onchange: () => { kept.group = group.value; filter(); }}, el("option", {value: ""}, "All groups"),
    ...Object.entries(groups).map(([name, text]) => el("option", {value: name, title: visible(text)}, `${visible(name)}: ${plural(rows.filter(r => r.group === name).length, "id")}`)));
  group.value = Object.hasOwn(groups, kept.group) ? kept.group : "";
  const chips = el("div", {class: "chips", role: "group", "aria-label": "Show only"}, ...MARKS.map(([key, text]) => {
    const chip = button(text, () => {
      kept.marks.has(key) ? kept.marks.delete(key) : kept.marks.add(key);
      chip.setAttribute("aria-pressed", String(kept.marks.has(key)));
      filter();
    }, {"aria-pressed": String(kept.marks.has(key))});
    return chip;
  }));
  const about = el("p", {class: "dim", hidden: true});
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), wanted = MARKS.filter(([key]) => kept.marks.has(key));
    let count = 0;
    for (const each of rows) {
      const fits = (!group.value || each.group === group.value) && words.every(word => each.words.includes(word)) && wanted.every(([, , test]) => test(each.marks));
      each.row.hidden = !fits;
      count += fits;
    }
    status.textContent = `${count.toLocaleString("en")} of ${plural(rows.length, "environment")}`;
    about.hidden = !group.value;
    about.textContent = visible(groups[group.value] || "");
    list.hidden = !count;
    none.hidden = count > 0;
  };
  filter();
  node.replaceChildren(el("h1", {}, "Environments"), el("div", {class: "row filters"}, search, group, chips), about, ...(packages.length ? [packageTable(packages)] : []), status, list, none);
}

// -- a card ------------------------------------------------------------------------------------------------------------

const range = rewards => { const low = Math.min(...rewards), high = Math.max(...rewards); return low === high ? short(low) : `${short(low)} to ${short(high)}`; };

export function cardView({rest: env, denied}) {
  const node = el("section", {}, el("h1", {}, bdi(env)), el("p", {class: "dim", role: "status"}, "A worker plays an example…"));
  return {title: env, node, start: () => ask("card", {env}).then(card => fillCard(node, card), error => node.lastChild.replaceWith(denied(error)))};
}

function usage(env, served, agent) {
  const host = location.host + location.pathname.replace(/\/$/, ""), scheme = location.protocol === "https:" ? "rollenv+wss" : "rollenv+ws", name = JSON.stringify(env);
  return [el("h3", {}, "On this machine"), code(`import rollenv\n\nenv = rollenv.make(${name})\nobservation, info = env.reset(seed=7)`),
          ...(served ? [el("h3", {}, "From this server"), code(`env = rollenv.make(${JSON.stringify(`${scheme}://${host}/${env}`)})`),
                        el("h3", {}, "An evaluation"), code(`rollenv eval ${env} --agent ${agent} -n 20 --workers ${scheme}://${host}`)] : [])];
}

function howTo(card) {
  const moves = Object.values(card.moves || {}), others = (card.few || []).filter(action => !moves.includes(action));
  if (moves.length) return `Moves: ${moves.join("  ")}${others.length ? `; others: ${others.join("  ")}` : ""}`;
  if ((card.few || []).length) return `One of these, as the turn allows: ${card.few.join("  ")}`;
  return card.template && card.template !== "%s" ? `An answer inside ${card.template.replace("%s", "…")}` : card.action ? "Text, such as the example below" : "";
}

function fillCard(node, card) {
  const runs = !card.needs.some(([, , here]) => !here), has = name => card.abilities.includes(name);
  const turns = card.limit ? card.limit === 1 ? "1: a single answer" : `at most ${card.limit}` : "";
  const hints = [...new Set(card.needs.map(([, hint]) => hint))];
  const needs = hints.map(hint => card.needs.filter(need => need[1] === hint).map(([name, , here]) => here ? name : `${name} (missing)`).join(", ") + (hint ? `: ${hint}` : "")).join("\n");
  const contract = facts([
    ["How to answer", howTo(card) && pre(howTo(card))], ["Players", visible(card.players || "")], ["Turns", turns],
    ["Reward of a turn", (card.rewards || []).length ? `${range(card.rewards)}, in two sampled episodes` : ""],
    ["Abilities", card.abilities.join(", ").replaceAll("_", " ")],
    ["Tasks", card.indexed ? "numbered" : "drawn from the seed"], ["Deterministic", card.nondeterministic ? "no" : "yes, for a given seed and actions"],
    ["Needs", needs ? pre(needs) : "a base install"], ["Source", card.source && el("code", {}, visible(card.source))],
  ]);
  const buttons = runs ? el("div", {class: "row actions"}, link("Play", playLink(card.env), {class: "primary"}),
    link("Replay", replayLink({env: card.env, seed: "0", agent: has("oracle") ? "oracle" : "random"}), {class: "second"})) : null;
  if (buttons && !has("oracle") && !has("random_action")) buttons.lastChild.remove();
  const levels = card.levels.map((level, n) => [String(n + 1), el("code", {}, visible(JSON.stringify(level))), runs ? link("Play", playLink(card.env, {kwargs: level}), {"aria-label": `Play level ${n + 1}`}) : ""]);
  const defaults = Object.entries(card.arguments || {}).map(([name, value]) => [el("code", {}, visible(name)), el("code", {}, visible(value) || "–")]);
  node.replaceChildren(...[
    el("p", {class: "crumbs small"}, link("Environments", "#/")), el("h1", {}, bdi(card.env)), el("p", {class: "lead"}, visible(card.about)), buttons,
    card.problem ? el("div", {class: "fail"}, el("strong", {}, runs ? "The example failed." : "It cannot be played here."), pre(card.problem)) : null,
    el("div", {class: "columns"},
      el("div", {}, el("div", {class: "card"}, el("h2", {}, "The contract"), contract),
        card.prompt ? el("div", {class: "card"}, el("h2", {}, "An example"), el("h3", {}, "What an agent reads first (seed 0)"), el("div", {class: "box", tabindex: "0", "aria-label": "First observation"}, pre(card.prompt)),
          card.action ? el("div", {}, el("h3", {}, "An action"), el("div", {class: "box"}, pre(card.action))) : null,
          card.legend ? el("p", {class: "small dim"}, visible(card.legend)) : null) : null),
      el("div", {}, el("div", {class: "card"}, el("h2", {}, "How to use it"), ...usage(card.env, runs, has("oracle") ? "oracle" : "random")),
        defaults.length ? el("div", {class: "card"}, el("h2", {}, "Arguments"), table(["Name", "Default"], defaults, {"aria-label": "Arguments"})) : null,
        levels.length ? el("div", {class: "card"}, el("h2", {}, "Levels"), table(["Level", "Arguments", "Begin"], levels, {"aria-label": "Levels"})) : null)),
  ].filter(Boolean));
}

// -- what both ways to begin an episode ask for ------------------------------------------------------------------------

// Fields for arguments and the number of a task; values() raises an Error that says what is wrong.
export function episodeFields({kwargs = {}, options = {}}, {levels = [], indexed = false} = {}) {
  const args = el("input", {type: "text", class: "mono", placeholder: "{}", spellcheck: "false", autocomplete: "off"});
  args.value = Object.keys(kwargs).length ? JSON.stringify(kwargs) : "";
  const level = el("select", {onchange: () => { args.value = level.value; }}, el("option", {value: ""}, "as registered"), ...levels.map((each, n) => el("option", {value: JSON.stringify(each)}, `level ${n + 1}`)));
  level.value = args.value;
  if (level.selectedIndex < 0) level.selectedIndex = 0;
  const index = el("input", {type: "number", min: "0", placeholder: "by seed"});
  if (Number.isInteger(options.index)) index.value = options.index;
  const rest = Object.fromEntries(Object.entries(options).filter(([name]) => name !== "index"));
  const node = el("div", {class: "row"}, levels.length ? field("Level", level) : null, indexed ? field("Task", index) : null, field("Arguments (JSON)", args, {class: "field wide"}));
  const values = () => {
    const found = mapping(args.value);
    if (found === null) throw new Error("The arguments are not a JSON object such as {\"dim_room\": [6, 6]}.");
    return {kwargs: found, options: index.value === "" ? rest : {...rest, index: +index.value}};
  };
  return {node, values};
}

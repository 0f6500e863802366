// How the server is: numbers of the last minutes, environments, workers, checks and failures.

import {ask} from "./api.js";
import {patience, repeat} from "./live.js";
import {bdi, button, el, plural, seconds, short, since, sparkline, table, visible} from "./parts.js";

const EVERY = 3000, SHOWN = 200;
const FAILURES = ["raised", "wrong", "hung", "lost", "differs"];

export function healthView({denied}) {
  const status = el("p", {class: "dim small", role: "status"}, "Loading…"), problem = el("div", {}), body = el("div", {}), checks = el("div", {});
  const check = button("Check now", async () => {
    if (check.getAttribute("aria-busy")) return;
    check.setAttribute("aria-busy", "true");
    check.textContent = "Checking…";
    try { drawChecks(checks, await ask("check")); } catch (error) { problem.replaceChildren(denied(error)); }
    check.removeAttribute("aria-busy");
    check.textContent = "Check now";
  });
  const readiness = el("div", {class: "card", hidden: true}, el("div", {class: "row spread"}, el("h2", {}, "Checks"), check), el("p", {class: "small dim"}, "One environment of every family plays a turn, and a sandbox runs a program; at most every half minute."), checks);
  const node = el("section", {}, el("h1", {}, "Health"), status, problem, body, readiness);
  const view = {title: "Health", node};
  let stop = null;
  view.start = () => {
    stop = repeat(async () => {
      const health = await ask("health");
      problem.replaceChildren();
      status.textContent = `${visible(health.status)}, version ${visible(health.version)}, up for ${since(health.uptime)}`;
      const places = [...body.querySelectorAll(".scroll")].map(box => [box.scrollLeft, box.scrollTop]), focused = [...body.querySelectorAll(".scroll")].indexOf(document.activeElement);
      body.replaceChildren(...sections(health));
      [...body.querySelectorAll(".scroll")].forEach((box, n) => { [box.scrollLeft, box.scrollTop] = places[n] || [0, 0]; if (n === focused) box.focus({preventScroll: true}); });
      readiness.hidden = false;
      drawChecks(checks, health.readiness);
    }, EVERY, error => { status.textContent = ""; problem.replaceChildren(denied(error)); return patience(error); });
  };
  view.close = () => stop?.();
  return view;
}

function drawChecks(node, results) {
  const rows = Object.entries(results).map(([name, found]) => [bdi(name), state(found.ok ? "up" : "failed"), seconds(found.seconds), clock(found.at), visible(found.detail).slice(0, 300)]);
  node.replaceChildren(rows.length ? table(["Check", "Result", "Took", "At", "Found"], rows, {"aria-label": "Checks"}) : el("p", {class: "dim"}, "Nothing was checked yet."));
}

const clock = at => new Date(1000 * at).toLocaleTimeString([], {hour12: false});
const state = text => el("span", {class: `state ${{up: "playing", failing: "bad", failed: "bad", down: "bad", quarantined: "bad"}[text] || ""}`}, visible(text));

function tile(name, values, text, every) {
  const minutes = Math.max(1, Math.round(values.length * every / 60));
  return el("div", {class: "card tile"}, el("div", {class: "label"}, name), el("div", {class: "value"}, text), sparkline(values, `${name} in the last ${plural(minutes, "minute")}`));
}

function sections(health) {
  const s = health.samples, last = values => values.length ? values.at(-1) : null, rate = value => value === null ? "–" : `${short(value)}/s`;
  const open = health.sessions, boxes = health.sandboxes;
  const tiles = el("div", {class: "tiles"},
    tile("Sessions", s.sessions, `${open.open} of ${open.most}`, s.every), tile("Calls", s.calls, rate(last(s.calls)), s.every), tile("Failures", s.failures, rate(last(s.failures)), s.every),
    tile("Latency p50", s.p50, seconds(last(s.p50)), s.every), tile("Latency p99", s.p99, seconds(last(s.p99)), s.every), tile("Sandboxes", s.sandboxes, short(last(s.sandboxes) ?? 0), s.every));
  const counts = Object.entries({...health.counts, waiting: open.waiting}).map(([name, value]) => [name, short(value)]);
  const pool = boxes.pool || {}, past = boxes.counts || {};
  const inside = [["open", `${boxes.open} of ${boxes.most}`], ["opened", past.opened], ["refused", past.refused], ["expired", past.expired], ["programs run", past.runs],
                  ["warm processes", pool.alive === undefined ? "–" : `${pool.alive} of ${pool.size} (${pool.backend})`], ["timed out", pool.timed_out], ["died", pool.died]]
    .map(([name, value]) => [name, value === undefined ? "–" : visible(String(value))]);
  const failures = record => FAILURES.map(kind => record.counts[kind] ? `${record.counts[kind]} ${kind}` : "").filter(Boolean).join(", ") || "–";
  const time = (record, method) => { const found = record.latency?.[method]; return found ? `${seconds(found.p50)} / ${seconds(found.p99)}` : "–"; };
  const envs = health.envs.slice().sort((a, b) => (b.counts.step || 0) - (a.counts.step || 0)).slice(0, SHOWN).map(record => [
    bdi(record.name), state(record.state), short(record.counts.reset || 0), short(record.counts.step || 0), short(record.counts.completed || 0), failures(record), time(record, "reset"), time(record, "step")]);
  const workers = health.workers.map(record => [bdi(record.name), state(record.state), short(record.envs || 0), record.counts ? failures(record) : "–", short(record.deaths || 0), record.latency ? time(record, "step") : "–", visible(record.last_death || "").slice(0, 200)]);
  const events = health.events.slice(-20).reverse().map(([at, env, worker, kind, text]) => [clock(at), bdi(env), visible(kind), el("span", {class: "clip"}, visible(text).slice(0, 300))]);
  const card = (title, node) => el("div", {class: "card"}, el("h2", {}, title), node);
  return [tiles,
    card("Environments", envs.length ? table(["Environment", "State", "Resets", "Steps", "Ended", "Failures", "Reset p50 / p99", "Step p50 / p99"], envs, {"aria-label": "Environments"}) : el("p", {class: "dim"}, "None has been played since the server started.")),
    card("Workers", table(["Worker", "State", "Environments", "Failures", "Deaths", "Step p50 / p99", "Last death"], workers, {"aria-label": "Workers"})),
    el("div", {class: "columns"}, card("Since the start", table(["Sessions and calls", "Count"], counts, {"aria-label": "Sessions and calls"})), card("Sandboxes", table(["Sandboxes", "Now"], inside, {"aria-label": "Sandboxes"}))),
    card("Last failures", events.length ? table(["At", "Environment", "Kind", "What happened"], events, {"aria-label": "Last failures"}) : el("p", {class: "dim"}, "There were none."))];
}

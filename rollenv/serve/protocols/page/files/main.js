// The frame around the views: which one is shown, who asks, and what a view leaves behind.

import {ask, hasToken, setToken} from "./api.js";
import {routeOf} from "./links.js";
import {el, button, field, failure, looks, visible} from "./parts.js";
import {catalogueView, cardView} from "./catalogue.js";
import {playView} from "./play.js";
import {replayView} from "./replay.js";
import {sessionsView, watchView} from "./live.js";
import {healthView} from "./health.js";

const VIEWS = {"": ["environments", catalogueView], env: ["environments", cardView], play: ["environments", playView], replay: ["replay", replayView],
               sessions: ["sessions", sessionsView], watch: ["sessions", watchView], health: ["health", healthView]};
const main = document.getElementById("main"), who = document.getElementById("who");
let current = null, me = null;

function show(view, focus) {
  current = view;
  main.replaceChildren(view.node);
  document.title = view.title ? `${visible(view.title)} – rollenv` : "rollenv";
  if (focus) { main.focus({preventScroll: true}); scrollTo(0, 0); }
  view.start?.();
}

export function leave() {
  current?.close?.();
  current = null;
}

function tokenView(why) {
  const input = el("input", {type: "password", autocomplete: "off", spellcheck: "false", required: ""});
  const form = el("form", {class: "card narrow", onsubmit: event => { event.preventDefault(); setToken(input.value); begin(true); }},
    el("h1", {}, "This server needs a token"),
    el("p", {class: "dim"}, "Whoever runs it makes one with ", el("code", {}, "rollenv serve --new-token NAME"), ". It is kept until this tab is closed."),
    why ? el("p", {class: "fail", role: "alert"}, visible(why)) : null,
    el("div", {class: "row"}, field("Token", input), el("button", {class: "primary"}, "Continue")));
  return {title: "Token", node: form, start: () => input.focus()};
}

function meView() {
  const out = button("Forget the token", () => { leave(); setToken(""); me = null; begin(true); }, {class: "quiet"});
  who.replaceChildren(me && me.tokens ? el("span", {}, visible(me.client), " ", out) : "");
}

async function route(focus) {
  leave();
  const target = routeOf(location.hash), known = Object.hasOwn(VIEWS, target.page);
  const [name, view] = known ? VIEWS[target.page] : ["", null];
  for (const item of document.querySelectorAll("nav a")) item.dataset.page === name ? item.setAttribute("aria-current", "page") : item.removeAttribute("aria-current");
  if (!known) return show({title: "Not found", node: el("div", {class: "card empty"}, el("h1", {}, "There is no such page"), el("p", {}, el("a", {href: "#/"}, "All environments")))}, focus);
  show(view({...target, me, denied}), focus);
}

// What a view shows in place of what the token is not for.
function denied(error) {
  return failure(error, ...(me && me.tokens ? [button("Use another token", () => { leave(); show(tokenView(""), true); })] : []));
}

async function begin(focus) {
  try {
    me = await ask("me");
  } catch (error) {
    me = null;
    meView();
    if (error.status === 401) return show(tokenView(hasToken() ? error.message : ""), focus);
    return show({title: "No connection", node: failure(error, button("Try again", () => begin(true)))}, focus);
  }
  Object.assign(looks, {grounds: me.grounds, pieces: me.pieces});
  meView();
  route(focus);
}

addEventListener("hashchange", () => { if (me) route(true); });
document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); main.focus(); });
addEventListener("pagehide", leave);
addEventListener("pageshow", event => { if (event.persisted) begin(false); });
begin(false);

"""The page at ``/`` in a real browser."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hostile import TEXT
from playwright.sync_api import expect
from prefix_proxy import below
from serving import Served, patient
from waiting import eventually

from rollenv.serve.auth import new_token

expect.set_options(timeout=60_000)  # a busy machine starts the worker of an example in 15 s

pytestmark = pytest.mark.slow

SOKOBAN, EASY = "game:Sokoban-v0-tiny", "game:Sokoban-v0-easy"

PARTS = ("Headers", "Body")

#: What the browser says of answers that are errors.
_USUAL = "Failed to load resource: the server responded with a status of"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server with environments that are up to no good."""
    found = Served("--step-deadline", "2", env={"HOSTILE": "1"})
    yield found
    found.stop()


class Tabs:
    """Opens pages; at the end none may have had an error, or asked for anything but its server."""

    def __init__(self, browser: Any):
        self.browser, self.tabs = browser, []

    def open(self, base: str, fragment: str = "", *, width: int = 1280, **how: Any) -> Any:
        context = self.browser.new_context(viewport={"width": width, "height": 900}, **how)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab = context.new_page()
        tab.problems, tab.loaded, tab.base = [], [], base
        tab.on("pageerror", lambda error: tab.problems.append(str(error)))
        tab.on("console", lambda message: _USUAL in message.text or tab.problems.append(message.text))
        tab.on("dialog", lambda dialog: (tab.problems.append("a dialog"), dialog.dismiss()))
        tab.on("request", lambda request: tab.loaded.append(request.url))
        tab.on("popup", lambda _: tab.problems.append("a popup"))
        tab.set_default_timeout(20_000)
        tab.goto(f"{base}/{fragment}")
        self.tabs.append(tab)
        tab.wait_for_selector(".said, .fail" if fragment.startswith("#/play/") else "h1")
        return tab

    def check(self) -> None:
        for tab in self.tabs:
            assert tab.problems == []
            assert all(url.startswith((tab.base + "/", "data:,")) for url in tab.loaded)
            assert tab.evaluate("window.taken") is None
            for element in ("iframe", "script:not([src='page/main.js'])", "main img", "[onerror]", "[onload]"):
                assert tab.locator(element).count() == 0
            assert tab.locator("a").evaluate_all("links => links.every(a => a.protocol.startsWith('http'))")
            tab.context.close()


@pytest.fixture
def tabs(browser: Any) -> Iterator[Tabs]:
    found = Tabs(browser)
    yield found
    found.check()


def play(env: str, **query: str) -> str:
    return f"#/play/{quote(env, safe='')}?{urlencode(query)}"


def replay(env: str, seed: str, *actions: str, **query: str) -> str:
    return "#/replay?" + urlencode(
        [("env", env), ("seed", seed), *query.items(), *(("a", action) for action in actions)]
    )


def stat(tab: Any, name: str) -> Any:
    return tab.locator(".stat", has_text=re.compile(f"^{name}")).locator("strong")


def sessions(base: str) -> list[dict[str, Any]]:
    return patient.post(f"{base}/page/api/sessions", json={}).json()["sessions"]


# -- what people do ----------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_find_an_environment_and_play_it(tabs, server):
    tab = tabs.open(server.http)
    rows = tab.locator(".envs li:visible")
    expect(rows.first).to_be_visible()
    everything = rows.count()
    tab.get_by_label("Search environments").fill("sokoban tiny")
    expect(rows).to_have_count(1)
    tab.get_by_label("Search environments").fill("no such thing")
    expect(tab.get_by_text("No environment matches.")).to_be_visible()
    tab.get_by_label("Search environments").fill("")
    tab.get_by_role("button", name="Has an expert").click()
    assert 0 < rows.count() < everything
    tab.locator("select").select_option("game")
    assert all(text.startswith("game:") for text in tab.locator(".envs li:visible .id").all_text_contents())
    tab.get_by_role("link", name=SOKOBAN).click()
    expect(tab.get_by_text("The contract")).to_be_visible()
    expect(tab.locator(".code").nth(1)).to_contain_text(f'"rollenv+ws://127.0.0.1:{server.port}/{SOKOBAN}"')
    tab.get_by_role("link", name="Play", exact=True).first.click()
    expect(tab.locator(".board svg")).to_be_visible()
    tab.go_back()
    expect(tab.get_by_text("The contract")).to_be_visible()
    tab.go_back()
    expect(tab.locator("select")).to_have_value("game")


def test_an_episode_with_hints_to_its_end_and_its_link(tabs, server):
    tab = tabs.open(server.http, play(SOKOBAN, seed="5"))
    expect(tab.locator(".board svg")).to_be_visible()
    expect(stat(tab, "Seed")).to_have_text("5")
    hint, turn = tab.get_by_role("button", name="Hint"), 0
    while not tab.locator(".badge").count():
        hint.click()
        tab.get_by_role("button", name="Play it").click()
        turn += 1
        expect(stat(tab, "Turn")).to_contain_text(f"{turn} of")
    expect(tab.locator(".badge")).to_have_text("solved")
    tab.get_by_role("button", name="Share this episode").click()
    expect(tab.get_by_role("button", name="Copied")).to_be_visible()
    link = tab.evaluate("navigator.clipboard.readText()")
    last = tab.locator(".said").inner_text()
    other = tabs.open(server.http, link.partition("/#")[2].join(["#", ""]))
    expect(other.locator(".place")).to_have_text(f"turn 0 of {turn}")
    other.keyboard.press("End")
    expect(other.locator(".place")).to_have_text(f"turn {turn} of {turn}")
    expect(other.locator(".badge")).to_have_text("solved")
    assert other.locator(".said").inner_text() == last
    for key, place in (("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0)):
        other.keyboard.press(key)
        expect(other.locator(".place")).to_have_text(f"turn {place} of {turn}")
    other.get_by_label("Turn", exact=True).fill("1")
    expect(other.locator(".place")).to_have_text(f"turn 1 of {turn}")
    other.get_by_role("button", name="Play (space)").click()
    expect(other.locator(".badge")).to_have_text("solved", timeout=20_000)


def test_keys_and_buttons_move(tabs, server):
    tab = tabs.open(server.http, play(EASY, seed="7"))
    expect(tab.locator(".board svg")).to_be_visible()
    for turn, key in enumerate(("ArrowUp", "s", "A", "d"), 1):
        tab.keyboard.press(key)
        expect(stat(tab, "Turn")).to_contain_text(f"{turn} of")
    tab.get_by_role("button", name="left").click()
    expect(stat(tab, "Turn")).to_contain_text("5 of")
    tab.get_by_text("5 turns").click()
    assert tab.locator(".log code").all_inner_texts() == [
        f"\\boxed{{{move}}}" for move in ("up", "down", "left", "right", "left")
    ]
    tab.get_by_text("Type an action").click()
    box = tab.get_by_label("Your answer")
    box.press_sequentially("wasd")
    expect(box).to_have_value("wasd")
    expect(stat(tab, "Turn")).to_contain_text("5 of")
    box.fill("up")
    box.press("Enter")
    expect(stat(tab, "Turn")).to_contain_text("6 of")
    expect(box).to_have_value("")
    expect(box).to_be_focused()
    first = tab.locator(".said").inner_text()
    tab.get_by_role("button", name="Restart this seed").click()
    expect(stat(tab, "Turn")).to_contain_text("0 of")
    expect(stat(tab, "Seed")).to_have_text("7")
    assert tab.locator(".said").inner_text() != first
    tab.get_by_label("Seed").fill("12")
    tab.get_by_label("Seed").press("Enter")
    expect(stat(tab, "Seed")).to_have_text("12")
    tab.get_by_role("button", name="New episode").click()
    expect(stat(tab, "Turn")).to_contain_text("0 of")


def test_the_shop_has_buttons(tabs, server):
    tab = tabs.open(server.http, play("webshop:mini", seed="3"))
    tab.get_by_label("Search").fill("shirt")
    tab.get_by_role("button", name="Search").click()
    expect(tab.locator(".said")).to_contain_text("Total results")
    expect(tab.get_by_label("Search")).to_be_hidden()
    tab.locator(".choices").get_by_role("button", name="next >").click()
    expect(tab.locator(".said")).to_contain_text("Page 2")
    tab.locator(".choices").get_by_role("button", name="back to search").press("Enter")
    expect(tab.get_by_label("Search")).to_be_visible()
    assert tab.evaluate("document.activeElement.tagName") != "BODY", "focus stays where one plays"


def test_arguments_and_wrong_ones(tabs, server):
    tab = tabs.open(server.http, play(SOKOBAN, seed="3", kwargs='{"max_turns": 4}'))
    expect(stat(tab, "Turn")).to_have_text("0 of 4")
    tab.get_by_text("Arguments", exact=True).click()
    tab.get_by_label("Arguments (JSON)").fill("[1")
    tab.get_by_role("button", name="Restart this seed").click()
    expect(tab.get_by_role("alert")).to_contain_text("not a JSON object")
    tab.get_by_label("Arguments (JSON)").fill('{"levels": "/etc/passwd"}')
    tab.get_by_role("button", name="Restart this seed").click()
    expect(tab.get_by_role("alert")).to_contain_text("refused")
    tab.get_by_label("Arguments (JSON)").fill("")
    tab.get_by_role("button", name="Begin again").click()
    expect(stat(tab, "Turn")).to_contain_text("0 of")


def test_sessions_are_watched_live_and_end_with_their_tab(tabs, serve):
    served = serve()
    player = tabs.open(served.http, play(SOKOBAN, seed="5"))
    expect(player.locator(".board svg")).to_be_visible()
    watcher = tabs.open(served.http, "#/sessions")
    watcher.get_by_role("link", name=f"Watch {SOKOBAN} of anyone").click()
    expect(watcher.get_by_text("Waiting for its next turn")).to_be_visible()
    for turn in (1, 2):
        player.get_by_role("button", name="Random action").click()
        expect(stat(watcher, "Turns")).to_have_text(str(turn))
    expect(watcher.locator(".board svg")).to_be_visible()
    assert watcher.locator(".said").inner_text() == player.locator(".said").inner_text()
    watcher.get_by_role("button", name="Link to its replay").click()
    watcher.get_by_role("link", name="Open the replay").click()
    expect(watcher.locator(".place")).to_have_text("turn 0 of 2")
    assert eventually(lambda: len(sessions(served.http)) == 1)
    watcher.goto(f"{served.http}/#/sessions")
    expect(watcher.locator("tbody tr")).to_have_count(1)
    player.goto("about:blank")
    assert eventually(lambda: not sessions(served.http))
    expect(watcher.get_by_text("No sessions are open.")).to_be_visible()
    player.goto(served.http)


def test_health_is_shown(tabs, server):
    patient.post(f"{server.http}/page/api/replay", json={"env": SOKOBAN, "seed": "1", "agent": "oracle"})
    tab = tabs.open(server.http, "#/health")
    expect(tab.locator(".tile")).to_have_count(6)
    expect(tab.get_by_role("region", name="Environments")).to_contain_text(SOKOBAN)
    expect(tab.get_by_role("region", name="Workers")).to_contain_text("process-0")
    tab.get_by_role("button", name="Check now").click()
    expect(tab.get_by_role("region", name="Checks")).to_contain_text("was reset and played a turn", timeout=60_000)


def test_the_form_of_replays(tabs, server):
    tab = tabs.open(server.http, "#/replay")
    tab.get_by_label("Environment").fill(SOKOBAN)
    tab.get_by_label("Seed").fill("5")
    tab.get_by_label("Actions, one on each line").fill("up\ndown")
    tab.get_by_role("button", name="Replay").click()
    expect(tab.locator(".place")).to_have_text("turn 0 of 2")
    tab.get_by_text("Change the episode").click()
    tab.get_by_label("Played by").select_option("oracle")
    tab.get_by_role("button", name="Replay").click()
    expect(tab.locator(".next")).to_contain_text("The next action")
    expect(tab.locator(".place")).not_to_have_text("turn 0 of 2")


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "told"), [("raise it", "failed with an error"), ("hang", "did not answer in time"), ("die", "has ended")]
)
def test_failures_are_reported_and_the_page_goes_on(tabs, served, action, told):
    tab = tabs.open(served.http, play("test:Moody-v0", seed="1"))
    box = tab.get_by_label("Your answer")
    box.fill(action)
    box.press("Enter")
    expect(tab.get_by_role("alert")).to_contain_text(told, timeout=40_000)
    expect(box).to_be_focused()
    box.fill("hello")
    box.press("Enter")
    expect(tab.locator(".said")).to_contain_text("turn 1")
    expect(tab.get_by_role("alert")).to_have_count(0)


def test_a_call_can_be_given_up(tabs, server):
    tab = tabs.open(server.http, play("test:Moody-v0", seed="1"))
    box = tab.get_by_label("Your answer")
    box.fill("hang 60")
    box.press("Enter")
    tab.get_by_role("button", name="Give up").click()
    expect(tab.get_by_role("alert")).to_contain_text("gave up")
    tab.get_by_role("button", name="Begin again").click()
    expect(tab.locator(".said")).to_contain_text("what now?")
    box.fill("hello")
    box.press("Enter")
    expect(tab.locator(".said")).to_contain_text("turn 1")


def test_a_server_that_is_gone(tabs, serve):
    served = serve()
    tab = tabs.open(served.http, play(SOKOBAN, seed="1"))
    expect(tab.locator(".board svg")).to_be_visible()
    served.stop()
    tab.get_by_role("button", name="Random action").click()
    expect(tab.get_by_role("alert")).to_contain_text("cannot be reached")
    tab.problems.clear()  # the browser says that connections were refused
    again = serve(port=served.port)
    tab.get_by_role("button", name="Random action").click()
    expect(tab.get_by_role("alert")).to_contain_text("session has ended")
    tab.get_by_role("button", name="Begin again").click()
    expect(tab.get_by_role("alert")).to_have_count(0)
    expect(tab.locator(".board svg")).to_be_visible()
    assert again.port == served.port


# -- who may -----------------------------------------------------------------------------------------------------------


def test_the_page_asks_for_a_token(tabs, serve, tmp_path):
    token, lines = new_token("ann", ["environments"])
    root, more = new_token("root", ["admin", "environments"])
    hostile = more.replace('"root"', '"<img src=x onerror=window.taken=1>\\u202e"')
    assert next(iter(tomllib.loads(hostile))).startswith("<img")
    (tmp_path / "tokens.toml").write_text(lines + hostile)
    served = serve("--tokens", str(tmp_path / "tokens.toml"))
    tab = tabs.open(served.http)
    box = tab.get_by_label("Token")
    expect(box).to_be_focused()
    box.fill("rollenv_wrong")
    box.press("Enter")
    expect(tab.get_by_role("alert")).to_contain_text("the token is wrong")
    tab.get_by_label("Token").fill(token)
    tab.get_by_role("button", name="Continue").click()
    expect(tab.locator(".envs li").first).to_be_visible()
    tab.reload()
    expect(tab.locator(".envs li").first).to_be_visible()
    assert tab.evaluate("Object.keys(localStorage).length") == 0
    assert token not in tab.content()
    tab.goto(f"{served.http}/#/sessions")
    expect(tab.get_by_role("alert")).to_contain_text("not for admin")
    tab.get_by_role("button", name="Use another token").click()
    tab.get_by_label("Token").fill(root)
    tab.get_by_role("button", name="Continue").click()
    expect(tab.get_by_text("No sessions are open.")).to_be_visible()
    tab.goto(f"{served.http}/{play(SOKOBAN, seed='1')}")
    expect(tab.locator(".board svg")).to_be_visible()
    other = tabs.open(served.http)
    other.evaluate("token => sessionStorage.setItem('rollenv.token', token)", root)
    other.goto(f"{served.http}/#/sessions")
    other.reload()
    expect(other.locator("tbody td").nth(1)).to_have_text("<img src=x onerror=window.taken=1>\u27e8202E\u27e9")
    tab.get_by_role("button", name="Forget the token").click()
    expect(tab.get_by_label("Token")).to_be_visible()


# -- texts that attack -------------------------------------------------------------------------------------------------


def test_hostile_texts_of_environments_are_text(tabs, served):
    tab = tabs.open(served.http)
    tab.get_by_label("Search environments").fill("hostile")
    expect(tab.locator(".envs li:visible .about").nth(1)).to_contain_text("<img src=x")
    tab.get_by_role("link", name="hostile:Texts-v0").click()
    expect(tab.get_by_text("The contract")).to_be_visible()
    expect(tab.locator(".lead")).to_contain_text("<script>")
    shown = tab.locator(".box").first.inner_text()
    assert all(text in shown for text in ("\u27e8202E\u27e9", "\u27e8061C\u27e9", "\u2400", "\u241b[31m"))
    assert "\u202e" not in shown
    tab.get_by_role("link", name="Play", exact=True).click()
    expect(tab.locator(".said")).to_contain_text("<iframe srcdoc")
    expect(tab.locator(".board")).to_contain_text("<img src=x")
    tab.get_by_text("Info", exact=True).click()
    tab.locator(".choices[aria-label='What can be done now'] button").first.click()
    expect(stat(tab, "Turn")).to_have_text("1")
    tab.get_by_role("button", name="Random action").click()
    expect(stat(tab, "Turn")).to_have_text("2")
    tab.get_by_label("Your answer").fill("raise")
    tab.get_by_label("Your answer").press("Enter")
    expect(tab.get_by_role("alert")).to_contain_text("<script>window.taken=1</script>")
    tab.get_by_role("button", name="Share this episode").click()
    link = tab.get_by_label("Link to this episode").input_value()
    watcher = tabs.open(served.http, "#/sessions")
    watcher.get_by_role("link", name="Watch hostile:Texts-v0").click()
    expect(watcher.locator(".log")).to_contain_text("<img src=x")
    health = tabs.open(served.http, "#/health")
    expect(health.get_by_role("region", name="Last failures")).to_contain_text("<img src=x")
    other = tabs.open(served.http, link.partition("/#")[2].join(["#", ""]))
    expect(other.locator(".place")).to_have_text("turn 0 of 2")
    other.keyboard.press("End")
    expect(other.locator(".said")).to_contain_text("<svg onload")


def test_endless_texts_are_cut_and_boards_that_are_none_are_texts(tabs, served):
    tab = tabs.open(served.http, play("hostile:Texts-v0", seed="1"))
    tab.get_by_role("button", name="big", exact=True).click()
    expect(tab.locator(".said")).to_contain_text("characters are left out here")
    assert len(tab.locator(".said").inner_text()) < 25_000
    expect(stat(tab, "Turn")).to_have_text("1")
    tab = tabs.open(served.http, play("hostile:Boards-v0", seed="1"))
    for turn in range(1, 8):
        tab.get_by_label("Your answer").fill("go")
        tab.get_by_label("Your answer").press("Enter")
        expect(stat(tab, "Turn")).to_have_text(str(turn))
        expect(tab.locator(".said")).to_contain_text("a board")
    expect(tab.locator(".board")).to_have_count(0)


@pytest.mark.parametrize(
    "fragment",
    [
        f"#/{quote(TEXT)}",
        f"#/env/{quote(TEXT, safe='')}",
        f"#/env/{TEXT.replace(chr(0), '')}",
        "#/env/%",
        "#/env/__proto__",
        "#/__proto__/x",
        "#/constructor",
        f"#/play/{quote(TEXT, safe='')}?seed={quote(TEXT)}&kwargs={quote(TEXT)}",
        f"#/watch/{quote(TEXT, safe='')}",
        replay(TEXT, TEXT, TEXT),
        replay(SOKOBAN, TEXT, TEXT),
        replay(SOKOBAN, "5", TEXT, kwargs=TEXT, options='{"__proto__": {"index": 1}}'),
        replay("rollenv+ws://evil.example/x", "5"),
        replay(SOKOBAN, "5", agent=TEXT),
        "javascript:window.taken=1",
        "#/replay?env=javascript:alert(1)&seed=1&a=" + "%",
    ],
)
def test_hostile_links_only_show_text(tabs, served, fragment):
    if not fragment.startswith("#"):
        fragment = "#" + fragment
    tab = tabs.open(served.http, fragment)
    before = len(sessions(served.http))
    expect(tab.locator("h1")).to_be_visible()
    expect(tab.locator("[role=alert], .empty, .board, .place:has-text('turn')").first).to_be_visible()
    asked = {url.rpartition("/")[2] for url in tab.loaded if "/page/api/" in url}
    assert asked <= {"me", "card", "replay", "watch"}, "a link plays and does nothing else"
    assert len(sessions(served.http)) <= before
    assert TEXT[:40] not in tab.title() or "<img" in tab.title()


def test_links_that_are_too_long(tabs, served):
    many = tabs.open(served.http, replay(SOKOBAN, "5", *["up"] * 2001))
    expect(many.get_by_role("alert")).to_contain_text("too long a replay")
    tab = tabs.open(served.http)
    tab.evaluate("base => { location.hash = base + 'x'.repeat(1600000); }", replay(SOKOBAN, "5") + "&a=")
    expect(tab.get_by_role("alert").first).to_contain_text("too long")
    expect(tab.get_by_role("alert").last).to_contain_text("refused")


def test_scripts_and_files_from_elsewhere_are_refused(tabs, served):
    tab = tabs.open(served.http)
    expect(tab.locator(".envs li").first).to_be_visible()
    tab.evaluate(
        """() => {
            const script = document.createElement("script"), image = document.createElement("img");
            script.textContent = "window.taken = 1";
            image.src = "http://evil.example/x.png";
            document.body.append(script, image);
            setTimeout(() => { script.remove(); image.remove(); }, 300);
        }"""
    )
    tab.wait_for_timeout(600)
    assert sum("Content Security Policy" in text for text in tab.problems) >= 2
    assert all("Content Security Policy" in text for text in tab.problems)
    tab.problems.clear()
    tab.loaded.remove("http://evil.example/x.png")  # which was never sent


def test_no_page_can_frame_it(tabs, served):
    tab = tabs.browser.new_page()
    outer, body = f"http://localhost:{served.port}/outer", f"<iframe src={served.http}></iframe>"
    tab.route(outer, lambda route: route.fulfill(body=body, content_type="text/html"))
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(outer)
    assert eventually(lambda: tab.wait_for_timeout(50) or tab.frames[1].url.startswith("chrome-error:"))
    assert asked == [outer, f"{served.http}/"]
    tab.close()


# -- all can use it ----------------------------------------------------------------------------------------------------

PAGES = ("", f"#/env/{quote(EASY)}", play(EASY, seed="7"), replay(EASY, "7", "\\boxed{up}"), "#/sessions", "#/health")


def loaded(tabs, server, fragment, **how):
    tab = tabs.open(server.http, fragment, **how)
    expect(tab.get_by_text(re.compile("(Loading|gets it ready|plays an example|plays it again)…"))).to_have_count(0)
    return tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(tabs, server, width, scheme):
    for fragment in (*PAGES, play("webshop:mini", seed="3"), "#/replay"):
        tab = loaded(tabs, server, fragment, width=width, color_scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, fragment


def test_every_control_has_a_name_and_keyboards_reach_it(tabs, server):
    for fragment in PAGES:
        tab = loaded(tabs, server, fragment)
        unnamed = tab.locator("button, a, input, select, textarea").evaluate_all(
            """nodes => nodes.filter(n => n.offsetParent && !(n.getAttribute("aria-label") || n.labels?.length
                                      || (n.matches("a, button") && n.textContent.trim()))).map(n => n.outerHTML)"""
        )
        assert unnamed == [], fragment
        tab.keyboard.press("Tab")
        expect(tab.locator(":focus")).to_have_text("Skip to the content")
        tab.keyboard.press("Enter")
        expect(tab.locator("main")).to_be_focused()
        tab.keyboard.press("Tab")
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert (outline, tab.evaluate("document.activeElement.closest('main') !== null")) == ("solid", True), fragment
        assert tab.locator("h1").count() == 1


def test_an_episode_is_told_to_who_cannot_see(tabs, server):
    tab = tabs.open(server.http, play(EASY, seed="7"))
    live = tab.locator(".said [aria-live=polite]")
    expect(live).to_contain_text("Sokoban")
    node = live.element_handle()
    tab.get_by_role("button", name="up").focus()
    tab.keyboard.press("Enter")
    expect(live).to_contain_text("Turn 1")
    assert node.evaluate("node => node.isConnected"), "screen readers follow an element that stays"
    expect(tab.get_by_role("button", name="up")).to_be_focused()


def test_less_motion_where_it_is_wanted(tabs, server):
    for wanted, seconds in (("reduce", "0s"), ("no-preference", "0.12s")):
        tab = tabs.open(server.http, "#/replay", reduced_motion=wanted)
        assert tab.evaluate("getComputedStyle(document.querySelector('button')).transitionDuration") == seconds


def test_a_thousand_environments_are_filtered_at_once(tabs, served):
    tab = tabs.open(served.http)
    rows = tab.locator(".envs li")
    expect(rows.first).to_be_visible()
    assert rows.count() > 1400
    tab.get_by_label("Search environments").fill("many 99")
    expect(tab.locator(".envs li:not([hidden])")).to_have_count(19)


def test_the_first_page_is_small(tabs, server):
    sizes: list[int] = []
    tab = tabs.browser.new_page()
    tab.on(
        "requestfinished", lambda request: sizes.append(sum(request.sizes()[f"response{part}Size"] for part in PARTS))
    )
    tab.goto(server.http)
    tab.wait_for_selector(".envs li")
    tab.wait_for_load_state("networkidle")
    assert 10_000 < sum(sizes) < 100_000
    tab.close()


def test_the_page_works_below_a_path(served, tabs):
    with below(b"/rollenv", served.port) as port:
        tab = tabs.open(f"http://127.0.0.1:{port}/rollenv", f"#/env/{quote(SOKOBAN, safe='')}")
        expect(tab.locator("h1")).to_contain_text(SOKOBAN)
        expect(tab.locator("body")).to_contain_text(f"127.0.0.1:{port}/rollenv/{SOKOBAN}")

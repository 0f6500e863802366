"""The API of the page at ``/``, and its files; what browsers make of them is in test_page_browser.py."""

from __future__ import annotations

import json
import re
import threading
import time

import httpx
import pytest
from serving import tokens_in
from waiting import eventually

import rollenv
from rollenv.agents.prompts.session import shown
from rollenv.core.drawing import draw
from rollenv.core.registry import list_envs
from rollenv.plugins.publishing import package_index
from rollenv.serve.catalog import IndexedPackage, sha256

SOKOBAN, BOXED = "game:Sokoban-v0-tiny", "game:Sokoban-v0-easy"
PARSES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|setHTML|srcdoc"
)
FILES = re.compile(r'(?:href|src|from)\s*=?\s*"(page/[a-z]+\.[a-z]+|\./[a-z]+\.js)"')


class Page:
    """What the page asks a server for."""

    def __init__(self, base: str, token: str = ""):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=base, headers=headers, timeout=60)

    def post(self, name: str, **body):
        return self.http.post(f"/page/api/{name}", json=body)

    def ask(self, name: str, **body):
        answer = self.post(name, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def replay(self, **body):
        answer = self.post("replay", **body)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]

    def refused(self, name: str, **body):
        answer = self.post(name, **body)
        return answer.status_code, answer.json()["kind"]


@pytest.fixture
def page(server):
    found = Page(server.http)
    yield found
    found.http.close()


_count = iter(range(10**6))


def name() -> str:
    """A name for a session."""
    return f"a session of a test {next(_count)} {time.time_ns()}"


# -- files -------------------------------------------------------------------------------------------------------------


def files_of(page) -> dict[str, httpx.Response]:
    """The page and all that it loads."""
    found, left = {"/": page.http.get("/")}, ["/"]
    while left:
        for path in FILES.findall(found[left.pop()].text):
            path = f"/page/{path.rpartition('/')[2]}"
            if path not in found:
                found[path] = page.http.get(path)
                left.append(path)
    return found


def test_files_are_small_come_from_here_and_parse_no_markup(page):
    files = files_of(page)
    assert {"/", "/page/main.js", "/page/base.js", "/page/base.css", "/page/play.js", "/page/health.js"} <= set(files)
    assert all(answer.status_code == 200 for answer in files.values())
    assert sum(len(answer.content) for answer in files.values()) < 100_000
    for path, answer in files.items():
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", ""), path
        assert "https://" not in answer.text, path
        assert not PARSES_MARKUP.search(answer.text), path


def test_everything_has_the_headers(page):
    asked = [page.post("me"), page.post("card", env="no:Such"), page.post("replay", env=SOKOBAN, seed="1", actions=[])]
    got = [page.http.get("/page/none.js"), page.http.get("/", headers={"If-None-Match": "x"})]
    for answer in (*files_of(page).values(), *asked, *got):
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_files_are_sent_once_and_compressed(page):
    first = page.http.get("/page/main.js")
    again = page.http.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["content-encoding"] == "gzip"
    plain = page.http.get("/page/main.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == first.text


@pytest.mark.parametrize("path", ["..%2f__init__.py", "../__init__.py", "%00", "index.html%00", "a" * 5000, ""])
def test_no_other_files(page, path):
    assert page.http.get(f"/page/{path}").status_code == 404


# -- the catalogue -----------------------------------------------------------------------------------------------------


def test_catalogue_has_every_environment(page):
    told = page.ask("catalogue")
    rows = {env_id: (told["texts"][text], marks) for env_id, text, marks in told["envs"]}
    here = {s.id for s in list_envs()}
    assert here <= set(rows)
    assert "o" in rows[SOKOBAN][1]
    assert "m" not in rows[SOKOBAN][1]
    assert rows["test:Rows-v0"][1] == "i"
    assert "game" in told["groups"]


def test_card_tells_how_to_play(page):
    card = page.ask("card", env=BOXED)
    assert card["moves"]["up"] == "\\boxed{up}"
    assert card["template"] == "\\boxed{%s}"
    assert card["prompt"].startswith(rollenv.make(BOXED).reset(0)[0][:50])
    assert "oracle" in card["abilities"]
    assert card["rewards"]
    assert len(card["levels"]) >= 3
    shop = page.ask("card", env="webshop:mini")
    assert shop["moves"] == {}
    assert shop["template"] == "%s"


def test_cards_of_arguments(page):
    assert page.ask("card", env=SOKOBAN, kwargs={"max_turns": 3})["limit"] == 3
    for kwargs in ({"nothing": 3}, {"levels": "/etc/passwd"}, [1]):
        assert page.refused("card", env=SOKOBAN, kwargs=kwargs) == (400, "usage")
    for wrong in ("x" * 5000, "rollenv+ws://localhost:1/x", 5):
        assert page.refused("card", env=wrong)[0] == 400
    assert page.refused("card", env="no:Such-v0") == (404, "unknown_env")


@pytest.mark.integration
def test_card_of_an_environment_that_cannot_be_built(serve):
    broken = Page(serve(env={"BROKEN": "1"}).http)
    card = broken.ask("card", env="broken:Env-v0")
    assert "Missing" in card["problem"]
    assert "broken:Env-v0" in {row[0] for row in broken.ask("catalogue")["envs"]}


# -- play --------------------------------------------------------------------------------------------------------------


def test_an_episode_is_the_one_of_a_local_environment(page):
    twin, session = rollenv.make(SOKOBAN), name()
    observation, info = twin.reset(3)
    turn = page.ask("open", session=session, env=SOKOBAN, seed="3")
    assert turn["observation"] == shown(observation, info)
    assert turn["seed"] == "3"
    drawing = draw(twin.unwrapped.picture, twin.render())
    assert drawing is not None
    board = json.loads(turn["view"])
    assert [[cell[0] for cell in row] for row in board["rows"]] == [[c.ground for c in row] for row in drawing.rows]
    while not (turn.get("terminated") or turn.get("truncated")):
        action = page.ask("suggest", session=session, kind="oracle")["action"]
        assert action == twin.oracle_action()
        text, reward, *_ = twin.step(action)
        turn = page.ask("step", session=session, action=action)
        assert turn["action"] == action
        assert turn["reward"] == reward
        assert text in turn["observation"]
    assert turn["success"] is True
    assert page.refused("step", session=session, action="x") == (409, "over")
    again = page.ask("reset", session=session, seed="3")
    assert json.loads(again["view"]) == board
    page.ask("end", session=session)
    page.ask("end", session=session)
    assert page.refused("step", session=session, action="x") == (404, "gone")


def test_pictures_are_shown_where_the_board_is_one(page):
    twin, session, before = rollenv.make(BOXED, images="only"), name(), open_keys(page)
    (image,) = twin.reset(3)[1]["images"]
    turn = page.ask("open", session=session, env=BOXED, seed="3", kwargs={"images": "only"})
    assert turn["images"] == [image.url]
    assert image.sha256 in turn["info"]
    assert image.as_json()["data"] not in turn["info"]
    (key,) = open_keys(page) - before
    page.ask("watch", key=key)
    (moved,) = twin.step("\\boxed{up}")[4]["images"]
    assert page.ask("step", session=session, action="\\boxed{up}")["images"] == [moved.url]
    assert [each["images"] for each in page.ask("watch", key=key)["turns"]] == [[moved.url]]
    page.ask("end", session=session)


def test_what_is_typed_becomes_an_action(page):
    session = name()
    page.ask("open", session=session, env=BOXED, seed="3")
    assert page.ask("step", session=session, typed="u")["action"] == "\\boxed{up}"
    assert page.ask("step", session=session, typed="<b>")["action"] == "\\boxed{<b>}"
    page.ask("reset", session=session, seed="3")
    assert page.ask("step", session=session, action="left")["action"] == "left"
    page.ask("end", session=session)


def test_choices_are_offered(page):
    session = name()
    turn = page.ask("open", session=session, env="webshop:mini", seed="3")
    assert turn["search"] is True
    turn = page.ask("step", session=session, action="search[shirt]")
    assert turn["search"] is False
    assert "click[back to search]" in turn["choices"]
    page.ask("end", session=session)


def test_the_actions_of_a_turn_are_offered_where_there_are_few(page):
    session = name()
    assert page.ask("open", session=session, env="test:Till-v0", seed="3")["choices"] == ["[buy]", "[go]"]
    assert page.ask("step", session=session, action="[buy]")["choices"] == ["[sell]"]
    assert set(page.ask("card", env="test:Till-v0")["few"]) == {"[buy]", "[go]", "[sell]"}
    page.ask("end", session=session)


def test_infos_of_any_kind(page):
    session = name()
    page.ask("open", session=session, env="test:Moody-v0", seed="1")
    turn = page.ask("step", session=session, action="odd 5")
    info = json.loads(turn["info"])
    assert info["pair"] == ["a", 1]
    assert info["no"] == "NaN"
    huge = page.ask("step", session=session, action="huge 5000000")
    assert len(huge["observation"]) < 25_000
    assert "characters are left out here" in huge["observation"]
    page.ask("end", session=session)


def test_seeds_are_exact_whole_numbers(page):
    for wrong in ("-1", "1.5", "x", "9" * 30, "\u0663", True, 1.5, [1], None, str(1 << 63)):
        assert page.refused("open", session=name(), env=SOKOBAN, seed=wrong) == (400, "usage"), wrong
    session, largest = name(), str((1 << 63) - 1)
    assert page.ask("open", session=session, env=SOKOBAN, seed=largest)["seed"] == largest
    page.ask("end", session=session)


def test_wrong_requests(page):
    session = name()
    page.ask("open", session=session, env=SOKOBAN, seed="1")
    assert page.refused("open", session=session, env=SOKOBAN) == (400, "usage")
    assert page.refused("open", session="short", env=SOKOBAN) == (400, "usage")
    assert page.refused("open", session=name(), env=SOKOBAN, options={"index": 1}) == (400, "usage")
    assert page.refused("open", session=name(), env=SOKOBAN, kwargs={"a": "b" * 20_000}) == (400, "usage")
    for body in ({}, {"action": 5}, {"typed": None}, {"action": "x" * 200_000}):
        assert page.refused("step", session=session, **body) == (400, "usage")
    assert page.refused("suggest", session=session, kind="cheat") == (400, "usage")
    assert page.refused("step", session=["x"], action="x") == (400, "usage")
    echo = name()
    page.ask("open", session=echo, env="test:Echo-v0")
    assert page.refused("suggest", session=echo, kind="oracle")[1] == "ability"
    assert page.http.post("/page/api/step", content=b"[1]").status_code == 400
    assert page.http.get("/page/api/me").status_code in (404, 405)
    page.ask("end", session=session)
    page.ask("end", session=echo)


def test_failures_tell_of_their_kind_and_the_episode_goes_on(page):
    session = name()
    page.ask("open", session=session, env="test:Moody-v0", seed="1")
    answer = page.post("step", session=session, action="raise the roof")
    told = answer.json()
    assert (answer.status_code, told["kind"], told["how"]) == (500, "env", "raised")
    assert "the roof" in told["detail"]
    assert page.ask("step", session=session, action="hello")["observation"] == "turn 1"
    assert page.post("step", session=session, action="wrong").json()["how"] == "wrong"
    assert page.post("step", session=session, action="die").json()["how"] == "lost"
    assert page.ask("reset", session=session, seed="1")["observation"] == "what now?"
    page.ask("end", session=session)


def test_a_call_that_hangs_ends_with_its_session(page):
    session, answers = name(), []
    page.ask("open", session=session, env="test:Moody-v0", seed="1")
    thread = threading.Thread(target=lambda: answers.append(page.refused("step", session=session, action="hang 300")))
    thread.start()
    assert eventually(lambda: any(row["state"] == "busy" for row in page.ask("sessions")["sessions"]))
    page.ask("end", session=session)
    thread.join(200)
    assert answers == [(404, "gone")]


# -- replays -----------------------------------------------------------------------------------------------------------


def test_a_replay_is_the_episode(page):
    session = name()
    turns = [page.ask("open", session=session, env=SOKOBAN, seed="5", kwargs={"max_turns": 9})]
    for kind in ("random", "random", "random"):
        action = page.ask("suggest", session=session, kind=kind)["action"]
        turns.append(page.ask("step", session=session, action=action))
    page.ask("end", session=session)
    actions = [turn["action"] for turn in turns[1:]]
    body = {"env": SOKOBAN, "seed": "5", "kwargs": {"max_turns": 9}, "actions": actions}
    assert page.replay(**body) == turns
    assert page.replay(**body) == turns


def test_the_expert_plays_a_replay(page):
    turns = page.replay(env=SOKOBAN, seed="5", agent="oracle")
    assert turns[-1]["success"] is True
    actions = [turn["action"] for turn in turns[1:]]
    assert page.replay(env=SOKOBAN, seed="5", actions=actions) == turns
    assert page.refused("replay", env="test:Echo-v0", seed="5", agent="oracle")[1] == "ability"
    assert page.refused("replay", env=SOKOBAN, seed="5", agent="__init__") == (400, "usage")


def test_replays_that_are_refused(page):
    def refused(**body):
        return page.refused("replay", **{"env": SOKOBAN, "seed": "1", "actions": []} | body)

    assert refused(actions=["up"] * 2001) == (400, "usage")
    assert refused(actions=["x" * 600_000] * 2) == (400, "usage")
    assert refused(actions=["\u20ac" * 400_000]) == (400, "usage")
    assert refused(actions="up") == refused(actions=[1]) == refused(actions=None) == (400, "usage")
    assert refused(seed="") == refused(seed="x") == (400, "usage")
    assert refused(env="no:Such-v0") == (404, "unknown_env")
    assert refused(kwargs={"levels": "/etc/passwd"}) == (400, "usage")
    assert refused(kwargs={"render_mode": ["svg"] * 5000}) == (400, "usage")
    answer = page.http.post("/page/api/replay", content=b"x" * (5 << 20))
    assert answer.status_code == 413


def test_replays_that_end_early_say_why(page):
    more = page.replay(env="test:Moody-v0", seed="1", actions=["hello", "end", "more", "more"])
    assert [turn.get("observation") for turn in more] == ["what now?", "turn 1", "over", None]
    assert "more actions" in more[-1]["detail"]
    broken = page.replay(env="test:Moody-v0", seed="1", actions=["hello", "raise x", "hello"])
    assert len(broken) == 3
    assert broken[-1]["how"] == "raised"


def test_a_replay_that_nobody_reads_ends(page):
    before = open_keys(page)
    with page.http.stream(
        "POST", "/page/api/replay", json={"env": "test:Moody-v0", "seed": "7", "actions": ["hang 1"] * 1000}
    ):
        mine = eventually(lambda: open_keys(page) - before)
        assert mine
    assert eventually(lambda: not mine & open_keys(page))


def open_keys(page) -> set[str]:
    return {row["key"] for row in page.ask("sessions")["sessions"]}


# -- live --------------------------------------------------------------------------------------------------------------


def test_sessions_of_all_faces_are_seen_and_watched(server, page):
    env = rollenv.make(f"{server.address}/game:Sokoban-v0-easy")
    env.reset(11)
    row = next(row for row in page.ask("sessions")["sessions"] if row["env"] == "game:Sokoban-v0-easy")
    assert (row["owner"], row["protocol"], row["turns"], row["state"]) == ("anyone", "rollenv", 0, "playing")
    first = page.ask("watch", key=row["key"])
    assert (first["count"], first["turns"], first["closed"]) == (0, [], False)
    action = env.oracle_action()
    observation, reward, *_ = env.step(action)
    seen = page.ask("watch", key=row["key"], after=0)
    assert [turn["action"] for turn in seen["turns"]] == [action]
    assert seen["turns"][0]["observation"].startswith(observation)
    assert page.ask("watch", key=row["key"], after=seen["count"] - 1)["turns"] == seen["turns"]
    later = page.ask("watch", key=row["key"], after=0)
    assert later["session"]["turns"] == 1
    link = page.ask("link", key=row["key"])
    assert (link["seed"], link["actions"]) == ("11", [action])
    turns = page.replay(**{key: link[key] for key in ("env", "seed", "kwargs", "options", "actions")})
    assert (turns[-1]["observation"].startswith(observation), turns[-1]["reward"]) == (True, reward)
    assert page.refused("step", session=row["key"], action="x") == (404, "gone"), "what is seen gives no control"
    env.close()
    assert eventually(lambda: row["key"] not in open_keys(page) and page.refused("watch", key=row["key"])[0] == 404)


def test_watching_waits_for_a_turn(server, page):
    session = name()
    page.ask("open", session=session, env="test:Echo-v0", seed="1")
    key = page.ask("sessions")["sessions"][-1]["key"]
    after, answers = page.ask("watch", key=key)["count"], []
    thread = threading.Thread(target=lambda: answers.append(Page(server.http).ask("watch", key=key, after=after)))
    thread.start()
    time.sleep(0.2)
    assert not answers
    page.ask("step", session=session, action="now")
    thread.join(20)
    assert answers[0]["turns"][0]["action"] == "now"
    told = [page.post(each, key=key).text for each in ("sessions", "watch", "link", "health")]
    assert not any(session in text for text in told), "the names of sessions are told to nobody"
    page.ask("end", session=session)


def test_sessions_that_cannot_be_linked_say_why(server, page):
    env = rollenv.make(f"{server.address}/test:Echo-v0")
    env.reset(1)
    env.reset()
    key = page.ask("sessions")["sessions"][-1]["key"]
    assert "seed" in page.ask("link", key=key)["problem"]
    env.close()
    assert page.refused("watch", key="nothing")[0] == 404
    assert page.refused("watch", key=5)[0] == 400


# -- health ------------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_health_has_the_last_minutes_and_checks(page):
    session = name()
    page.ask("open", session=session, env="test:Echo-v0", seed="1")
    assert eventually(lambda: len(page.ask("health")["samples"]["time"]) >= 1)
    health = page.ask("health")
    samples = health["samples"]
    assert {len(samples[each]) for each in ("time", "sessions", "calls", "failures", "p50", "p99", "sandboxes")} == {
        len(samples["time"])
    }
    assert health["sessions"]["open"] >= 1
    assert any(record["name"] == "test:Echo-v0" for record in health["envs"])
    checks = page.ask("check")
    assert checks["game"]["ok"] is True
    assert page.ask("health")["readiness"]["game"]["ok"] is True
    page.ask("end", session=session)


# -- who may -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(serve, tmp_path):
    """A server with tokens: of two players and of whoever runs it."""
    file, tokens = tokens_in(tmp_path, ann="environments", bob="environments", root="admin environments")

    def start(*args):
        served = serve("--tokens", file, *args, workers=1)
        return {who: Page(served.http, token) for who, token in (tokens | {"nobody": "", "wrong": "rollenv_x"}).items()}

    return start


def test_published_packages_are_listed_and_served_to_who_has_a_token(keys, tmp_path, rollenv_command):
    wheel = tmp_path / "coin_env-1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    package = IndexedPackage("coin-env", "1.0", wheel.name, sha256(b"a wheel"), ())
    package_index.add(tmp_path / "index", wheel, package, {"coin_env:Coin-v0": {}})
    pages = keys("--packages", str(tmp_path / "index"))
    (row,) = pages["ann"].ask("packages")
    assert (row["name"], row["version"], row["ids"]) == ("coin-env", "1.0", ["coin_env:Coin-v0"])
    url = str(pages["ann"].http.base_url).replace("://", "://any:{}@") + "/packages"
    allowed = url.format(pages["ann"].http.headers["authorization"].partition(" ")[2])
    found = package_index.find(allowed, "coin-env")
    assert package_index.fetch_wheel(allowed, found, tmp_path / "index").read_bytes() == b"a wheel"
    assert wheel.name in pages["ann"].http.get("/packages/coin-env/").text, "as pip reads it"
    assert pages["nobody"].http.get("/packages/rollenv.json").status_code == 401
    for outside in ("/packages/%2e%2e/tokens.toml", "/packages/nothing"):
        assert pages["ann"].http.get(outside).status_code == 404
    assert "no index of packages" in rollenv_command("serve", "--packages", str(tmp_path)).stderr


@pytest.mark.integration
def test_tokens_are_needed(keys):
    pages = keys()
    assert pages["nobody"].http.get("/").status_code == 200, "the page asks for the token"
    assert pages["nobody"].refused("open", env=SOKOBAN, seed="1") == (401, "not_allowed")
    ann, bob, root = pages["ann"], pages["bob"], pages["root"]
    me = ann.ask("me")
    assert (me["client"], me["scopes"], me["tokens"]) == ("ann", ["environments"], True)
    session = name()
    ann.ask("open", session=session, env="test:Echo-v0", seed="1")
    assert bob.refused("step", session=session, action="x") == (404, "gone")
    bob.ask("end", session=session)
    assert bob.refused("open", session=session, env="test:Echo-v0")[0] == 400
    assert root.refused("step", session=session, action="x") == (404, "gone")
    assert [row["owner"] for row in root.ask("sessions")["sessions"]] == ["ann"]
    assert ann.ask("step", session=session, action="x")["reward"] == 1.0


@pytest.mark.integration
def test_limits_of_clients_hold(keys):
    ann = keys("--per-client", "1", "--rate", "5")["ann"]
    ann.ask("open", session=name(), env="test:Echo-v0", seed="1")
    full = ann.post("open", session=name(), env="test:Echo-v0", seed="1")
    assert (full.status_code, full.json()["kind"]) == (503, "full")
    assert int(full.headers["retry-after"]) >= 1
    codes = [ann.post("me").status_code for _ in range(30)]
    assert 429 in codes


def test_pages_of_other_sites_may_not_ask(page):
    sites = ({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site"))
    for headers in (*sites, {"Origin": "http://evil.example"}):
        answer = page.http.post("/page/api/open", json={"session": name(), "env": SOKOBAN}, headers=headers)
        assert answer.status_code in (401, 403)
    assert page.http.post("/page/api/me", json={}, headers={"Host": "evil.example"}).status_code == 403

"""OpenReward's environments."""

from __future__ import annotations

import json
import threading
import time

import httpx
import pytest
from clients import expected, run
from serving import patient, tokens_in

import rollenv
from rollenv.agents.prompts.session import shown
from rollenv.core.errors import UsageError
from rollenv.serve.server import EnvServer, Settings


class Ors:
    """A session over plain HTTP."""

    def __init__(self, http, env_id="test:Moody-v0", key=None):
        self.http = httpx.Client(base_url=http, headers={"X-Deployment": env_id}, timeout=60)
        if key:
            self.http.headers["X-API-Key"] = key
        found = self.events("create_session")
        assert [event for event, _ in found] == ["task_id", "end"]
        self.name = self.http.headers["X-Session-ID"] = found[0][1]

    def post(self, path, **body):
        return self.http.post(path, json=body)

    def events(self, path, **body):
        answer = self.post(path, **body)
        assert answer.status_code == 200, answer.text
        found, event, data = [], None, []
        for line in answer.text.split("\n"):  # as the client reads it
            if line.startswith("event:"):
                event = line[6:].lstrip()
            elif line.startswith("data:"):
                data.append(line[5:].lstrip())
            elif not line and event:
                found.append((event, "\n".join(data)))
                event, data = None, []
        return found

    def create(self, **body):
        return self.post("create", **(body or {"split": "test", "index": 0}))

    def begin(self, **body):
        assert self.create(**body).status_code == 200
        return self

    def call(self, name="step", **given):
        found = self.events("call", name=name, input=given)
        if found[-1][0] == "error":
            raise Failed(found[-1][1])
        return json.loads("".join(data for event, data in found if event in ("chunk", "end")))


class Failed(Exception):
    pass


def opened(server):
    return patient.get(f"{server.http}/health").json()["sessions"]["open"]


@pytest.fixture
def ors(server):
    ors = Ors(server.http).begin()
    yield ors
    ors.post("delete")


@pytest.mark.integration
def test_an_episode_is_what_it_is_at_home(server):
    ors = Ors(server.http, "game:Sokoban-v0-tiny").begin(split="test", index=3)
    twin = rollenv.make("game:Sokoban-v0-tiny")
    observation, info = twin.reset(3)
    assert ors.http.get("prompt").json() == [{"text": shown(observation, info), "detail": info, "type": "text"}]
    assert ors.http.get("messages").json()[0]["blocks"] == ors.http.get("prompt").json()
    assert [tool["name"] for tool in ors.http.get("task_tools").json()["tools"]] == ["step"]
    done = False
    while not done:
        action = twin.oracle_action()
        observation, reward, terminated, truncated, info = twin.step(action)
        done = terminated or truncated
        told = ors.call(action=action)
        assert told == {
            "ok": True,
            "output": {
                "blocks": [{"text": shown(observation, info), "detail": None, "type": "text"}],
                "metadata": {"info": info, "terminated": terminated, "truncated": truncated},
                "reward": reward,
                "finished": done,
            },
        }
    assert ors.call(action="late")["reason"] == "episode_finished"
    before = opened(server)
    assert ors.post("delete").json() == {"sid": ors.name}
    assert opened(server) == before - 1
    assert ors.post("delete_session").status_code == 200, "also a second time"
    for path in ("ping", "call"):
        assert ors.post(path, name="step", input={"action": "x"}).status_code == 410


def test_tasks(server):
    with httpx.Client(base_url=f"{server.http}/game:Sokoban-v0-tiny", timeout=60) as http:
        assert http.get("splits").json() == [{"name": name, "type": name} for name in ("train", "test")]
        every = {name: http.post("tasks", json={"split": name}).json()["tasks"] for name in ("train", "test")}
        assert http.post("num_tasks", json={"split": "train"}).json() == {"num_tasks": len(every["train"])}
        seeds = {name: {task["seed"] for task in tasks} for name, tasks in every.items()}
        assert len(seeds["train"]) == len(every["train"])
        assert not seeds["train"] & seeds["test"]
        assert every["test"] == [{"seed": seed} for seed in range(100)], "what `rollenv eval` plays"
        told = http.post("task_range", json={"split": "test", "start": -2, "stop": None}).json()
        assert told == {"tasks": every["test"][-2:], "env_name": "game:Sokoban-v0-tiny"}
        assert http.post("task", json={"split": "test", "index": -1}).json()["task"] == {"seed": 99}
        for body in ({}, {"split": "dev"}, {"split": ["test"]}, {"split": "test", "index": 100}, {"split": "test"}):
            assert http.post("task", json=body).status_code == 400
        for index in (-101, 1 << 70, 1.5, True, "1", None, [1]):
            assert http.post("task", json={"split": "test", "index": index}).status_code == 400
        assert http.post("task_range", json={"split": "test", "start": "a"}).status_code == 400
    assert "game:Sokoban-v0-tiny" in patient.get(f"{server.http}/list_environments").json()


def test_numbered_tasks(server):
    before = opened(server)
    ors = Ors(server.http, "test:Rows-v0")
    assert ors.http.get("splits").json() == [{"name": "train", "type": "train"}]
    assert ors.post("num_tasks", split="train").json() == {"num_tasks": 7}
    assert ors.post("tasks", split="train").json()["tasks"][6] == {"seed": 6, "index": 6}
    ors.begin(split="train", index=4)
    assert ors.http.get("prompt").json()[0]["text"] == "question 4"
    assert ors.call(action="x")["output"]["finished"] is True
    ors.post("delete")
    assert opened(server) == before
    assert Ors(server.http, "test:Rows-v0").create(task_spec={"seed": 1, "index": 9}).status_code == 200


def test_a_session_is_created_once(server):
    ors = Ors(server.http)
    before, answers = opened(server), []
    both = [threading.Thread(target=lambda: answers.append(ors.create().status_code)) for _ in range(4)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert answers == [200] * 4
    assert opened(server) == before + 1
    assert ors.create(split="test", index=1).status_code == 400
    ors.http.headers["X-Deployment"] = "test:Echo-v0"
    assert ors.create().status_code == 400
    made = ors.http.post("apis/v1/envs/gem/make", json={"env_id": "test:Echo-v0"}).json()["sandbox_id"]
    ors.http.headers["X-Session-ID"] = made
    assert ors.create().status_code == 400, "it is another protocol's"
    assert ors.post("ping").status_code == 410


WRONG = [
    {"x": 1},
    {"split": "test", "index": 100},
    {"split": "none", "index": 0},
    {"split": "test", "index": 0, "toolset_name": "codex"},
    {"split": "test", "index": 0, "env_name": "no:Such-v0"},
    {"split": "test", "index": 0, "env_name": 5},
    {"split": "test", "index": 0, "env_name": ["test:Echo-v0"]},
    {"task_spec": {}},
    {"task_spec": 5},
    {"task_spec": {"seed": -1}},
    {"task_spec": {"seed": None}},
    {"task_spec": {"seed": True}},
    {"task_spec": {"seed": "1"}},
    {"task_spec": {"seed": 1, "kwargs": {}}},
    {"task_spec": {"seed": 1, "index": 2}},
]


@pytest.mark.combinations
@pytest.mark.parametrize("body", WRONG, ids=lambda value: f"{value!r:.60}")
def test_sessions_that_cannot_be_created(server, body):
    before, ors = opened(server), Ors(server.http)
    answer = ors.create(**body)
    assert answer.status_code in (400, 404)
    assert answer.json()["detail"]
    assert opened(server) == before
    assert ors.create().status_code == 200, "the name can still be used"
    ors.post("delete")


def test_calls_that_are_wrong(server, ors):
    assert ors.call("fly", action="x")["reason"] == "not_found"
    for given in ({}, {"action": 5}, {"action": "x", "more": 1}, {"action": None}):
        assert ors.call(**given)["reason"] == "input_validation"
    for body in ({}, {"name": "step"}, {"name": 5, "input": {}}, {"name": "step", "input": "x"}):
        assert ors.post("call", **body).status_code == 400
    assert ors.events("call", task_id="none") == [("error", "there is no such call")]
    assert ors.events("call", task_id=[1])[0][0] == "error"
    for content in (b"", b"[1]", b"{", b"\xff"):
        assert ors.http.post("call", content=content).status_code == 400
    assert ors.call(action="x")["output"]["blocks"][0]["text"] == "turn 1", "none of them was a turn"
    for name in ("", "x", "../..", "y" * 5000):
        ors.http.headers["X-Session-ID"] = name
        assert ors.post("call", name="step", input={"action": "x"}).status_code in (400, 410)
        assert ors.create().status_code == 400
    del ors.http.headers["X-Session-ID"]
    assert ors.post("ping").status_code == 400
    for path in ("tools", "no:Such-v0/tools", "x/tools"):
        assert patient.get(f"{server.http}/{path}").status_code in (400, 404)
    assert ors.http.post("score_group", json={}).status_code == 404, "this server was given no function"


def test_answers_of_every_kind_arrive_whole(ors):
    for size in (1, 4000, 4096, 4097, 20_000):
        assert ors.call(action=f"odd {size}")["output"]["blocks"][0]["text"] == " " * size
    info = ors.call(action="odd 1")["output"]["metadata"]["info"]
    assert info["pair"] == ["a", 1]
    assert info["name"] == "\ud800"
    assert len(ors.call(action="huge 3000000")["output"]["blocks"][0]["text"]) == 3_000_000


@pytest.mark.integration
def test_an_environment_that_fails(ors):
    for action in ("raise a\nb", "wrong", "die"):
        with pytest.raises(Failed, match=r"test:Moody-v0|worker"):
            ors.call(action=action)
    assert ors.call(action="x")["ok"]


def test_an_answer_can_be_asked_for_again(ors):
    found = ors.events("call", name="step", input={"action": "x"})
    assert found[0][0] == "task_id"
    assert ors.events("call", task_id=found[0][1], name="step", input={"action": "x"}) == found
    with ors.http.stream("POST", "call", json={"name": "step", "input": {"action": "hang 1"}}) as cut:
        key = next(line for line in cut.iter_lines() if line.startswith("data:"))[5:].strip()
    assert json.loads(ors.events("call", task_id=key)[-1][1])["output"]["blocks"][0]["text"] == "turn 2"
    for _ in range(20):
        ors.call(action="x")
    assert ors.events("call", task_id=key) == [("error", "there is no such call")], "only the last ones are kept"


@pytest.mark.integration
def test_so_many_calls_at_once(server, ors):
    def slow():
        answers.append(ors.post("call", name="step", input={"action": "hang 1"}).status_code)

    answers: list[int] = []
    threads = [threading.Thread(target=slow) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (answers.count(200), answers.count(400)) == (8, 4)


@pytest.mark.integration
def test_a_slow_call_shows_that_it_runs(ors):
    answer = ors.post("call", name="step", input={"action": "hang 11"})
    assert "\n: it runs\n" in answer.text


def test_a_session_that_is_deleted_during_a_call(ors):
    answers = []
    slow = threading.Thread(target=lambda: answers.append(ors.events("call", name="step", input={"action": "hang 50"})))
    slow.start()
    time.sleep(0.5)
    assert ors.post("delete").status_code == 200
    slow.join(20)
    assert answers[0][-1][0] == "error"


def said(*blocks, role="assistant"):
    return {"role": role, "blocks": list(blocks)}


def text(words, kind="text"):
    return {"type": kind, "text": words}


def step(action):
    return {"type": "tool_call", "id": "1", "name": "step", "input": {"action": action}}


HEARD = said({"type": "tool_result", "tool_call_id": "1", "blocks": [text("turn 1")]}, role="user")


def candidate(*messages):
    return {"messages": list(messages), "metadata": None}


def test_groups_are_scored_by_the_owners_function(serve):
    served = serve("--protocols", "ors", "--group-reward", "oddities:by_length", workers=1)
    ors = Ors(served.http, "test:Rows-v0")
    assert ors.post("score_group", candidates=[candidate(said(text("x")))]).status_code == 410, "there is no session"
    ors.begin(split="train", index=2)
    told = ors.http.get("tools").json()
    assert told["supports_score_group"] is True
    assert {"reasoning", "tool_call", "tool_result"} < set(told["message_block_types"])
    group = [
        candidate(said(text("a?"), role="user"), said(text("long thoughts", "reasoning"), text("abc"))),
        candidate(said(text("I move"), step("up")), HEARD, said(text("x"))),
        candidate(said(step("down"))),
    ]
    found = ors.events("score_group", candidates=group)
    scores = json.loads(found[-1][1])["scores"]
    assert [score["reward"] for score in scores] == [3.0, 3.0, 4.0], "thoughts and words beside a call are no action"
    assert ors.events("score_group", candidates=group, task_id=found[0][1]) == found, "it can be asked for again"
    assert ors.events("score_group", candidates=[candidate(said(text("raise")))])[-1][0] == "error"
    lost = ors.events("score_group", candidates=[candidate(said(text("lost")))])[-1]
    assert lost[0] == "error"
    assert "oddities:by_length" in lost[1]
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    for wrong in ([], [candidate()], [candidate(HEARD)], [candidate(said(image))], [5], "x"):
        assert ors.post("score_group", candidates=wrong).status_code == 400
    assert ors.call(action="x")["ok"], "none of this was a turn"


def test_a_group_reward_that_is_none_starts_no_server():
    with pytest.raises(UsageError, match="nowhere:none"):
        EnvServer(Settings(group_reward="nowhere:none"), workers=None)


def test_without_room_clients_wait(serve):
    served = serve("--protocols", "ors", "--sessions", "1", workers=1)
    one, two = Ors(served.http).begin(), Ors(served.http)
    refused = two.create()
    assert (refused.status_code, refused.headers["x-backend-state"]) == (503, "starting")
    assert int(refused.headers["retry-after"]) >= 1
    one.post("delete")
    assert two.create().status_code == 200


@pytest.mark.integration
def test_leases(serve):
    served = serve("--protocols", "ors", "--idle", "1")
    left, kept = Ors(served.http).begin(), Ors(served.http).begin()
    for _ in range(10):
        assert kept.post("ping").status_code == 200
        time.sleep(0.4)
    assert left.post("ping").status_code == 410
    assert left.create().status_code == 200, "the name is free again"


@pytest.mark.integration
def test_keys_and_owners(serve, tmp_path):
    file, tokens = tokens_in(tmp_path, ann="environments", eve="environments", bob="sandboxes")
    served = serve("--protocols", "ors", "--tokens", file)
    for key in (None, "x", tokens["bob"]):
        headers = {"X-API-Key": key} if key else {}
        assert patient.get(f"{served.http}/version", headers=headers).status_code == 401
    ann, eve = (Ors(served.http, key=tokens[name]) for name in ("ann", "eve"))
    ann.begin()
    eve.http.headers["X-Session-ID"] = ann.name
    for path in ("ping", "call"):
        assert eve.post(path, name="step", input={"action": "x"}).status_code == 410
    assert eve.create().status_code in (400, 410)
    assert eve.post("delete").status_code == 200
    assert ann.call(action="x")["ok"], "nothing was ended"
    bearer = {"Authorization": f"Bearer {tokens['ann']}"}
    assert patient.get(f"{served.http}/version", headers=bearer).status_code == 200


GROUP = """
from openreward import OpenReward
from openreward.api.environments.types import Message, TextBlock

with OpenReward().environments.get("game:Sokoban-v0-tiny").session(split="test", index=3) as session:
    group = [[Message(role="assistant", blocks=[TextBlock(text=text)])] for text in ("a", "b", "c")]
    print(session.supports_score_group(), [score.reward for score in session.score_group(group)])
"""


@pytest.mark.integration
def test_its_own_client_has_groups_scored(serve):
    served = serve("--protocols", "ors", "--group-reward", "oddities:in_order")
    address = {"OPENREWARD_API_URL": served.http, "OPENREWARD_SESSION_URL": served.http, "OPENREWARD_API_KEY": "any"}
    assert run("openreward", GROUP, **address) == ["True [0.0, 1.0, 2.0]"]


REAL = """
import os
from openreward import OpenReward
from openreward.api.errors import SessionTerminatedError, ToolCallError, ToolFailed

client = OpenReward()
env = client.environments.get("game:Sokoban-v0-tiny")
assert env.list_splits() == ["train", "test"]
task = env.get_task("test", 3)
assert env.list_tasks("test")[3] == task and len(env.get_task_range("train", 5, 9)) == 4
assert [tool.name for tool in env.list_tools()] == ["step"] and env.list_tools("openai")[0]["name"] == "step"

def episode(session):
    print(repr(session.get_prompt()[0].text))
    assert session.get_messages("openai")[0]["role"] == "user"
    assert [tool.name for tool in session.list_tools()] == ["step"]
    for action in os.environ["ACTIONS"].split("|"):
        told = session.call_tool("step", {"action": action})
        about = told.metadata
        print(repr((told.blocks[0].text, told.reward, about["terminated"], about["truncated"])))
    assert told.finished
    for name, given, reason in (
        ("fly", {}, "not_found"),
        ("step", {"act": 1}, "input_validation"),
        ("step", {"action": "late"}, "episode_finished"),
    ):
        try:
            session.call_tool(name, given)
        except ToolCallError as error:
            assert error.reason == reason, error
        else:
            raise SystemExit("it was taken")

with env.session(task=task) as session:
    episode(session)
with client.environments.get("any", variant="game:Sokoban-v0-tiny").session(split="test", index=3) as session:
    episode(session)
for name, index in (("no:Such-v0", 0), ("game:Sokoban-v0-tiny", 1000)):
    try:
        with client.environments.get(name).session(split="test", index=index):
            raise SystemExit("there is no such task")
    except Exception as error:
        assert getattr(error, "status", 0) in (400, 404), repr(error)
with client.environments.get("test:Moody-v0").session(split="test", index=0) as session:
    assert len(session.call_tool("step", {"action": "huge 500000"}).blocks[0].text) == 500000
    assert session.call_tool("step", {"action": "odd 9000"}).blocks[0].text == " " * 9000
    try:
        session.call_tool("step", {"action": "raise the roof"})
    except ToolFailed as error:
        assert "the roof" in str(error), error
    else:
        raise SystemExit("it did not fail")
    try:
        session.call_tool("step", {"action": "x"})
    except SessionTerminatedError:
        pass
    else:
        raise SystemExit("it goes on")
client.close()
"""


def real(served, code, **environ):
    urls = {"OPENREWARD_SESSION_URL": served.http, "OPENREWARD_API_URL": served.http}
    return run("openreward", code, **({"OPENREWARD_API_KEY": "any"} | urls | environ))


@pytest.mark.smoke
@pytest.mark.integration
def test_the_real_client(server):
    _, actions = expected(3)
    twin, seen = rollenv.make("game:Sokoban-v0-tiny"), []
    seen.append(repr(shown(*twin.reset(3))))
    for action in actions.split("|"):
        observation, *rest, info = twin.step(action)
        seen.append(repr((shown(observation, info), *rest)))
    before = opened(server)
    assert real(server, REAL, ACTIONS=actions) == seen * 2
    assert opened(server) == before


@pytest.mark.integration
def test_the_real_client_waits_for_room_and_needs_its_key(serve, tmp_path):
    file, tokens = tokens_in(tmp_path, ann="environments")
    served = serve("--protocols", "ors", "--sessions", "1", "--tokens", file)
    code = """
from concurrent.futures import ThreadPoolExecutor
from openreward import OpenReward
env = OpenReward().environments.get("test:Echo-v0")
def play(index):
    with env.session(split="train", index=index) as session:
        return session.call_tool("step", {"action": "x"}).reward
try:
    with ThreadPoolExecutor(4) as pool:
        print(sum(pool.map(play, range(4))))
except Exception as error:
    print(type(error).__name__)
"""
    assert real(served, code, OPENREWARD_API_KEY=tokens["ann"]) == ["4.0"]
    assert real(served, code, OPENREWARD_API_KEY="wrong") == ["AuthenticationError"]

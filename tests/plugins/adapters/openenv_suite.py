"""``openenv:URL`` against servers that the openenv package runs, unmodified."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random
import socket
import threading
import time
from typing import Literal

import numpy as np
import pytest
import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field
from websockets.asyncio.server import serve as serve_socket

import rollenv
from rollenv.core.checker import run_checks
from rollenv.core.errors import EpisodeOver, NoSuchAbility, UsageError
from rollenv.plugins.adapters.environments import Misbehaved
from rollenv.plugins.adapters.environments.openenv import Form, about
from rollenv.remote.protocol import NotAllowed, ServerFull, ServerLost


class Said(Action):
    message: str = Field(min_length=1, max_length=200)


class Heard(Observation):
    heard: str


class Echo(Environment):
    """Echoes a message; the word is the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.turns, self.seed = 0, None

    def reset(self, seed=None, episode_id=None, word="", **kwargs):
        self.turns, self.seed = 0, seed
        return Heard(heard=f"seed {seed} {word}".strip(), done=False)

    def step(self, action, timeout_s=None, **kwargs):
        self.turns += 1
        if action.message == "raise":
            raise RuntimeError("the environment\nbroke")
        if action.message == "hang":
            time.sleep(3)
        reward = {"none": None, "true": True}.get(action.message, len(action.message))
        return Heard(heard=f"{self.turns}: {action.message}", reward=reward, done=self.turns >= 5)

    @property
    def state(self):
        return State(step_count=self.turns)


class Moved(Action):
    direction: Literal["up", "down"]
    steps: int = Field(default=1, ge=1, le=9, description="how far")


class Seen(Observation):
    height: int
    legal: list[str]
    picture: list[list[int]] = []


class Lift(Environment):
    """One session at a time, as is OpenEnv's default."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.height, self.turns = 0, 0
        return self._seen()

    def step(self, action, timeout_s=None, **kwargs):
        self.height += action.steps * (1 if action.direction == "up" else -1)
        self.turns += 1
        return self._seen()

    def _seen(self):
        done = self.height >= 3 or self.turns >= 30
        picture = [[0] * 100] * 100
        return Seen(
            height=self.height, legal=["up", "down"], picture=picture, done=done, reward=float(self.height >= 3)
        )

    @property
    def state(self):
        return State(step_count=self.turns)


class Lifts(Lift):
    SUPPORTS_CONCURRENT_SESSIONS = True


class Both(Action):
    name: str
    count: int


class Adder(Lift):
    def step(self, action, timeout_s=None, **kwargs):
        return super().step(Moved(direction="up", steps=1), timeout_s)


class Running:
    def __init__(self, app):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)


@pytest.fixture(scope="module")
def echo():
    running = Running(create_app(Echo, Said, Heard, env_name="echo", max_concurrent_envs=20))
    yield running.url
    running.stop()


@pytest.fixture(scope="module")
def lift():
    running = Running(create_app(Lift, Moved, Seen, env_name="lift"))
    yield running.url
    running.stop()


def test_a_text_goes_into_the_only_field_and_comes_back(echo):
    env = rollenv.make(f"openenv:{echo}")
    observation, info = env.reset(7)
    assert observation == "seed 7"
    assert info == {}
    observation, reward, terminated, truncated, info = env.step("hello there")
    assert (observation, reward, terminated, truncated) == ("1: hello there", 11.0, False, False)
    assert info["valid"] is True
    for _ in range(4):
        *_, terminated, truncated, _ = env.step("x")
    assert (terminated, truncated) == (True, False)
    with pytest.raises(EpisodeOver):
        env.step("x")
    env.close()


def test_resets_pass_a_seed_on_and_other_arguments(echo):
    env = rollenv.make(f"openenv:{echo}", max_turns=2)
    assert env.reset(3, options={"inner": {"word": "house"}})[0] == "seed 3 house"
    follow = [env.reset()[0], env.reset()[0]]
    env.reset(3)
    assert [env.reset()[0], env.reset()[0]] == follow
    assert len(set(follow)) == 2
    env.step("x")
    assert env.step("x")[2:4] == (False, True)
    with pytest.raises(UsageError, match="no option"):
        env.reset(0, options={"words": 1})
    env.close()


def test_what_the_form_refuses_passes_the_turn(echo):
    env = rollenv.make(f"openenv:{echo}")
    env.reset(0)
    for wrong in ("", "x" * 500):
        observation, reward, terminated, truncated, info = env.step(wrong)
        assert (reward, terminated, truncated, info) == (0.0, False, False, {"valid": False})
        assert "string" in observation.lower()
        assert "seed 0" in observation
    assert env.step("fine")[0] == "1: fine"
    env.close()


def test_an_environment_that_fails_is_one_line(echo):
    env = rollenv.make(f"openenv:{echo}")
    env.reset(0)
    with pytest.raises(Misbehaved) as caught:
        env.step("raise")
    assert "\n" not in str(caught.value)
    assert echo in str(caught.value)
    with pytest.raises(EpisodeOver):
        env.step("x")
    assert env.reset(1)[0] == "seed 1"
    env.close()


def test_rewards_that_are_missing_or_booleans_are_numbers(echo):
    env = rollenv.make(f"openenv:{echo}")
    env.reset(0)
    assert [env.step(word)[1] for word in ("none", "true")] == [0.0, 1.0]
    env.close()


def test_a_late_answer_is_not_taken_for_the_next_one(echo):
    env = rollenv.make(f"openenv:{echo}", timeout=0.5)
    env.reset(0)
    with pytest.raises(ServerLost):
        env.step("hang")
    assert env.reset(1)[0] == "seed 1"
    assert env.step("y")[0] == "1: y"
    env.close()


def test_two_episodes_at_once(echo):
    one, two = (rollenv.make(f"openenv:{echo}") for _ in range(2))
    assert (one.reset(1)[0], two.reset(2)[0]) == ("seed 1", "seed 2")
    assert (one.step("a")[0], one.step("b")[0], two.step("c")[0]) == ("1: a", "2: b", "1: c")
    one.close()
    two.close()


def test_numbers_choices_and_pictures(lift):
    env = rollenv.make(f"openenv:{lift}")
    observation, _ = env.reset(0)
    assert observation.startswith('height: 0\nlegal: ["up", "down"]\npicture: (list of more than a thousand')
    assert observation.endswith("Reply with direction in a box, as in \\boxed{...}: one of up, down.")
    assert env.step("sideways")[4] == {"valid": False}
    for _ in range(3):
        _, reward, terminated, *_ = env.step("I think \\boxed{up}")
    assert (reward, terminated) == (1.0, True)
    env.close()


@pytest.fixture(scope="module")
def tools():
    server = FastMCP("tools")

    @server.tool
    def echo_message(message: str) -> str:
        """Say it again."""
        return message

    class Tools(MCPEnvironment):
        def __init__(self):
            super().__init__(server)

        def reset(self, seed=None, episode_id=None, **kwargs):
            return Observation(done=False, reward=0.0)

        def _step_impl(self, action, timeout_s=None, **kwargs):
            return Observation(done=False, reward=0.0, metadata={"error": "no such action"})

        @property
        def state(self):
            return State(step_count=0)

    running = Running(create_app(Tools, CallToolAction, CallToolObservation, env_name="tools"))
    yield running.url
    running.stop()


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "\\boxed{{{}}}"])
def test_a_call_of_a_tool_has_its_name_and_its_arguments(tools, form):
    env = rollenv.make(f"openenv:{tools}")
    asked, _ = env.reset(0)
    assert "echo_message: Say it again." in asked
    assert '"message"' in asked
    call = json.dumps({"tool_name": "echo_message", "arguments": {"message": "hi there"}})
    observation, _, _, _, info = env.step(form.format(call))
    assert info["valid"]
    assert "hi there" in observation
    assert env.step("echo hi")[4]["valid"] is False
    env.close()


def test_a_server_without_room_says_so(lift):
    one, two = rollenv.make(f"openenv:{lift}"), rollenv.make(f"openenv:{lift}")
    one.reset(0)
    with pytest.raises(ServerFull):
        two.reset(0)
    one.close()
    assert two.reset(0)[0]
    two.close()


def test_several_fields_are_a_json_object():
    running = Running(create_app(Adder, Both, Seen, env_name="adder"))
    env = rollenv.make(f"openenv:{running.url}")
    asked, _ = env.reset(0)
    assert "JSON object" in asked
    assert "- count: a whole number" in asked
    assert env.step('```json\n{"name": "a", "count": 1}\n```')[4]["valid"] is True
    for wrong in ("{}", '{"name": 3}', "[1]", "no", "{" * 10_000):
        assert env.step(wrong)[4] == {"valid": False}, wrong
    env.close()
    running.stop()


def test_our_checker_finds_nothing(echo):
    lifts = Running(create_app(Lifts, Moved, Seen, env_name="lifts", max_concurrent_envs=2))
    for url in (echo, lifts.url):
        findings = run_checks(f"openenv:{url}", episodes=3)
        broken = {f.name: f.detail for f in findings if f.ok is False}
        assert not broken
    assert {f.name for f in findings if f.ok} >= {"types", "over", "options", "hostile", "leaks", "random actions"}
    lifts.stop()


def test_states_and_copies_are_not_promised(echo):
    env = rollenv.make(f"openenv:{echo}")
    env.reset(0)
    assert not hasattr(env, "get_state")
    assert not hasattr(env, "sample_random_action")
    with pytest.raises(NoSuchAbility):
        env.spawn(same_state=True)
    env.close()


def test_nobody_there_and_others_there(echo):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ServerLost) as caught:
            rollenv.make(f"openenv:{url}")
        assert "\n" not in str(caught.value)
    hidden = ("http://me:secret@h:1", "http://:secret@h:1", "me:secret@h:1", "http://me:sec/secret@h")
    odd = ("http://h h:1", "http://h\n", "http://h\x00", "http://.", "http://a..b", f"http://{'a' * 64}")
    for wrong in ("", "ftp://x", "http://", "http://h:99999", "http://h/?x", *hidden, *odd):
        with pytest.raises(UsageError, match=r"openenv:http://HOST:PORT") as caught:
            rollenv.make(f"openenv:{wrong}")
        assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="no field"):
        rollenv.make(f"openenv:{echo}", action_field="nothing")


async def _website(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    status = {"/private/schema": 401}.get(scope.get("path"), 404)
    body = b"<html>" if scope["path"] != "/odd/schema" else b'{"openapi": "3"}'
    if scope["path"] == "/odd/schema":
        status = 200
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
        return
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def test_a_website_is_not_taken_for_a_server():
    running = Running(_website)
    for path, error in (("", UsageError), ("/odd", UsageError), ("/private", NotAllowed)):
        with pytest.raises(error, match=r"(no|not an) OpenEnv server|OPENENV_TOKEN") as caught:
            rollenv.make(f"openenv:{running.url}{path}")
        assert "\n" not in str(caught.value)
    running.stop()


class Bare:
    """A server with a WebSocket and nothing else, that answers with whatever the test says."""

    def __init__(self, answers, over=False):
        self.answers, self.over, self.ready = answers, over, threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.thread.start()
        self.ready.wait(10)

    async def _run(self):
        self.loop, self.end = asyncio.get_running_loop(), asyncio.Event()
        async with serve_socket(self._talk, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            self.ready.set()
            await self.end.wait()

    async def _talk(self, connection):
        async for message in connection:
            asked = json.loads(message)
            if asked["type"] == "reset":
                told = {"observation": {"x": 1}, "reward": None, "done": self.over}
                await connection.send(json.dumps({"type": "observation", "data": told}))
            elif asked["type"] == "step":
                answer = self.answers[asked["data"]["word"]]
                await (connection.close() if answer is None else connection.send(answer))

    def stop(self):
        self.loop.call_soon_threadsafe(self.end.set)
        self.thread.join(10)


ODD = {
    "gone": (None, ServerLost),
    "none": ("null", Misbehaved),
    "list": ("[1, 2]", Misbehaved),
    "text": ("what?", Misbehaved),
    "deep": ("[" * 100_000, Misbehaved),
    "state": ('{"type": "state", "data": {}}', Misbehaved),
    "bare": ('{"type": "observation", "data": {}}', Misbehaved),
    "number": ('{"type": "observation", "data": 5}', Misbehaved),
    "reward": ('{"type": "observation", "data": {"observation": {}, "reward": "high"}}', Misbehaved),
    "large": ('{"type": "observation", "data": {"observation": {}, "reward": 1%s}}' % ("0" * 400), Misbehaved),
    "errors": ('{"type": "error", "data": {"code": "CRASHED", "errors": 5}}', Misbehaved),
    "done": ('{"type": "observation", "data": {"observation": {}, "reward": 1, "done": "yes"}}', Misbehaved),
}


def test_answers_of_wrong_types_are_one_line_and_the_next_episode_plays():
    huge = json.dumps({"type": "observation", "data": {"observation": {"x": "y" * 2_000_000}, "done": True}})
    bare = Bare({name: answer for name, (answer, _) in ODD.items()} | {"huge": huge})
    env = rollenv.make(f"openenv:{bare.url}", action_field="word")  # nothing but a WebSocket says what there is
    for name, (_, error) in ODD.items():
        assert env.reset(0)[0] == "x: 1"
        with pytest.raises(error) as caught:
            env.step(name)
        assert "\n" not in str(caught.value), name
        assert len(str(caught.value)) < 500
    env.reset(0)
    observation, _, terminated, *_ = env.step("huge")
    assert terminated
    assert len(observation) < 50_000
    env.close()
    bare.stop()


def test_an_episode_that_is_over_at_once_is_no_episode():
    bare = Bare({}, over=True)
    env = rollenv.make(f"openenv:{bare.url}", action_field="word")
    with pytest.raises(Misbehaved, match="first turn"):
        env.reset(0)
    env.close()
    bare.stop()


def test_refusals_of_wrong_types_and_texts_that_are_none_are_shown():
    refusals = {
        str(i): json.dumps({"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no", "errors": errors}})
        for i, errors in enumerate([5, [5], [{"loc": 5}], [{"loc": ["x"], "msg": None}]])
    }
    many = {f"\ud800{i}": "\ud800" for i in range(100_000)}
    told = json.dumps({"type": "observation", "data": {"observation": many, "done": True}})
    bare = Bare(refusals | {"many": told})
    env = rollenv.make(f"openenv:{bare.url}", action_field="word")
    with pytest.raises(UsageError, match="option inner"):
        env.reset(0, options={"inner": [5]})
    env.reset(np.int64(3))
    for refused in refusals:
        observation, _, terminated, _, info = env.step(refused)
        assert (info["valid"], terminated) == (False, False)
        assert ": no " in observation or ": no." in observation
    observation = env.step("many")[0]
    assert observation.encode()
    assert len(observation) < 50_000
    env.close()
    bare.stop()


def test_a_session_that_nobody_closes_leaves_no_thread():
    bare = Bare({})
    rollenv.make(f"openenv:{bare.url}", action_field="word")
    before = threading.active_count()
    for _ in range(3):
        env = rollenv.make(f"openenv:{bare.url}", action_field="word")
        env.reset(0)
        del env
    gc.collect()
    late = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < late, [each.name for each in threading.enumerate()]
        time.sleep(0.05)
    bare.stop()


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": [1]},
        {"properties": {"a": {"enum": 5}}},
        {"properties": {"a": {"anyOf": 5}}},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": [1]},
        {"properties": {"a": {}}, "required": [{}]},
        {"properties": {"a": {"type": "integer", "minimum": "x", "maximum": None}}},
        {"properties": {"a": {"type": "integer", "minimum": 5, "maximum": 1}}},
        {"properties": {"a": {"type": "integer", "minimum": -math.inf, "maximum": math.inf}}},
    ],
)
def test_forms_of_actions_that_are_none_are_one_line(schema):
    with pytest.raises(UsageError, match="schema") as caught:
        Form(schema)
    assert "\n" not in str(caught.value)


UP = {"enum": ["up", "down"], "type": "string"}


@pytest.mark.parametrize(
    ("told", "reply", "meant", "asked"),
    [
        ({"type": ["string", "null"]}, "go up", "go up", ""),
        ({"type": ["null", "integer"], "minimum": 0, "maximum": 3}, "\\boxed{2}", 2, "from 0 to 3"),
        ({"allOf": [{"$ref": "#/$defs/Up"}], "description": "where"}, "\\boxed{up}", "up", "one of up, down (where)"),
        ({"oneOf": [{"$ref": "#/$defs/Up"}, {"type": "null"}]}, "\\boxed{up}", "up", "one of up, down"),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, "\\boxed{1}", 1, "above 0 below 3"),
    ],
)
def test_other_ways_of_writing_a_form_are_read(told, reply, meant, asked):
    form = Form({"properties": {"a": told}, "required": ["a"], "$defs": {"Up": UP}})
    assert form.read(reply) == {"a": meant}
    assert asked in form.asked
    assert bool(asked) == bool(form.asked)


def test_many_choices_are_cut_and_drawn_numbers_are_within_bounds():
    assert len(Form({"properties": {"a": {"enum": list(range(100_000))}}}).asked) < 5000
    form = Form({"properties": {"a": {"type": "integer", "minimum": 0.5, "maximum": 1.5}}})
    assert {form.sample(random.Random(seed)) for seed in range(9)} == {"\\boxed{1}"}


def test_a_server_that_closes_after_each_answer_is_one():
    """One that does not say so: the next request on that connection would have no answer."""

    def serve(listening):
        for body in (b'{"action": {}}', b'{"name": "short"}'):
            with listening.accept()[0] as client:
                client.recv(10_000)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        assert about(f"http://127.0.0.1:{listening.getsockname()[1]}")["name"] == "short"
        thread.join(10)


def test_tokens_that_cannot_be_sent_are_one_line(echo, monkeypatch):
    for token in ("s\u00e9same", "ses\name"):
        about.cache_clear()
        monkeypatch.setenv("OPENENV_TOKEN", token)
        with pytest.raises(UsageError, match="OPENENV_TOKEN") as caught:
            rollenv.make(f"openenv:{echo}")
        assert token not in str(caught.value)
    about.cache_clear()
    monkeypatch.setenv("OPENENV_TOKEN", "sesame\n")
    rollenv.make(f"openenv:{echo}").reset(0)


def test_a_server_that_dies_in_the_middle_is_one_line():
    app = create_app(Echo, Said, Heard, env_name="echo", max_concurrent_envs=2)
    running = Running(app)
    env = rollenv.make(f"openenv:{running.url}")
    env.reset(0)
    running.stop()
    with pytest.raises(ServerLost) as caught:
        env.step("x")
    assert "\n" not in str(caught.value)
    with pytest.raises(ServerLost):
        env.reset(0)
    env.close()

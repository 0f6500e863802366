"""Pictures on their way through the server's protocols, workers and rollouts."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from plain_clients import McpSession
from serving import patient
from websockets.sync.client import connect

import rollenv
from rollenv.agents import OracleAgent
from rollenv.core.env_spec import EnvSpec
from rollenv.core.pictures import Picture, picture
from rollenv.remote import protocol
from rollenv.remote.address import parse
from rollenv.remote.connection import Connection
from rollenv.remote.protocol import ServerError
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.workers.factory import make_workers

SEEN = {"images": "only", "is_slippery": False}
MOVES = ["\\boxed{up}", "\\boxed{down}", "\\boxed{left}", "\\boxed{left}", "\\boxed{right}"]


@pytest.fixture(scope="module")
def server(shared_server):
    return shared_server


def seen(server, **kwargs):
    return rollenv.make(f"{server.address}/game:Sokoban-v0-easy", images="only", **kwargs)


def test_a_served_environment_shows_what_the_one_at_home_shows(server):
    near, far = rollenv.make("game:Sokoban-v0-easy", images="only", tile=14), seen(server, tile=14)
    for seed in (1, 1, 2):
        assert far.reset(seed) == near.reset(seed)
        for action in MOVES:
            there = far.step(action)
            assert there == near.step(action)
            assert all(isinstance(image, Picture) for image in there[4]["images"])
    state = far.get_state()
    assert state["env"] == near.get_state()["env"], "a state has no pictures"
    assert far.spawn(same_state=True).step(MOVES[0]) == near.step(MOVES[0]) == far.step(MOVES[0])
    far.close()


def lake(client, name, **settings):
    """Open a session over the native protocol, and return its calls, answered as the server sends them."""
    client.ask("open", name, "game:Sokoban-v0-easy", {"kwargs": {"images": "only"}, **settings})
    count = 0

    def call(method, *args, again=False):
        nonlocal count
        count += not again
        answer = client.ask("call", name, count, method, list(args))
        (image,) = answer[1 if method == "reset" else 4]["images"]
        return image

    return call


def test_bytes_are_sent_once(server):
    client = Connection(*parse(server.address)[0])
    name = protocol.session_name()
    call = lake(client, name, pictures="once")
    first = call("reset", 1, {})
    assert picture(first).sha256 == first["sha256"]
    moved = [call("step", action) for action in MOVES]
    assert "data" in moved[0]
    boards = [first, *moved]
    for number, image in enumerate(boards):
        is_new = image["sha256"] not in [earlier["sha256"] for earlier in boards[:number]]
        assert ("data" in image) == is_new, number
        assert {"type", "sha256", "width", "height"} == set(image) - {"data"}
    assert not all("data" in image for image in boards), "some boards are seen twice"
    assert "data" not in call("step", MOVES[-2]), "back where it was"
    assert "data" in call("step", MOVES[-2], again=True), "a repeated call: the client may have missed the first answer"
    client.ask("resume", name)
    assert "data" in call("step", MOVES[-1]), "the client may have missed answers before it was back"
    client.close()


def test_a_client_that_does_not_ask_for_it_gets_all_bytes(server):
    client = Connection(*parse(server.address)[0])
    call = lake(client, protocol.session_name())
    images = [call("reset", 1, {}), *[call("step", action) for action in MOVES]]
    assert all(picture(image).sha256 == image["sha256"] for image in images)
    client.close()


@pytest.mark.parametrize(
    "form", [{"sha256": "0" * 64}, {"data": "!"}, {"data": "aGVsbG8="}, {}, [], "x", {"sha256": []}, {"data": 5}]
)
def test_wrong_pictures_of_a_server_are_refused(form):
    with pytest.raises(ServerError, match="wrong picture"):
        protocol.with_known("reset", ["", {"images": [form]}], {})


def test_an_episode_whose_worker_is_killed_shows_the_same_pictures(serve):
    server = serve(workers=1)
    near, far = rollenv.make("game:Sokoban-v0-easy", images="only"), seen(server)
    assert far.reset(3) == near.reset(3)
    for action in MOVES[:2]:
        (worker, *_) = workers_of(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        assert far.step(action) == near.step(action)
    far.close()


def workers_of(pid):
    """The processes of environments: those below a process that have none below them."""
    below = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [leaf for child in below for leaf in (workers_of(child) or [child])]


def at_home():
    """The environment test:Seen-v0 of the server, and its first result."""
    env = EnvSpec("test:Seen-v0", "rollenv.envs.game.frozen_lake:FrozenLake", kwargs=SEEN).make()
    return env, env.reset(5)


def test_gem_and_openenv_get_the_json_form(server):
    env, (text, info) = at_home()
    (image,) = info["images"]

    def gem(what, **body):
        return patient.post(f"{server.http}/apis/v1/envs/gem/{what}", json=body).json()

    name = gem("make", env_id="test:Seen-v0")["sandbox_id"]
    begun = gem("reset", sandbox_id=name, seed=5)
    assert begun["observation"] == text
    assert begun["info"]["images"] == [image.as_json()]
    action, (moved,) = env.oracle_action(), env.step(env.oracle_action())[4]["images"]
    assert list(map(picture, gem("step", sandbox_id=name, action=action)["info"]["images"])) == [moved]
    with connect(f"ws://127.0.0.1:{server.port}/openenv/test:Seen-v0/ws") as socket:
        socket.send(json.dumps({"type": "reset", "data": {"seed": 5}}))
        answer = json.loads(socket.recv(30))["data"]["observation"]
    assert list(map(picture, answer["info"]["images"])) == [image]
    body = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
    url = f"{server.http}/openenv/test:Seen-v0/mcp"
    session = patient.post(url, json=body).json()["result"]["session_id"]
    params = {"session_id": session, "name": "reset", "arguments": {"seed": 5}}
    result = patient.post(url, json={**body, "method": "tools/call", "params": params}).json()["result"]
    assert_shown(result, image)


def test_mcp_gets_contents(server):
    env, (_, info) = at_home()
    talk = McpSession(server.http)
    begun = talk.ask("tools/call", {"name": "reset", "arguments": {"env_id": "test:Seen-v0", "seed": 5}})["result"]
    assert_shown(begun, *info["images"])
    session = begun["structuredContent"]["session"]
    assert f"[session {session}]" in begun["content"][0]["text"]
    action, (moved,) = env.oracle_action(), env.step(env.oracle_action())[4]["images"]
    arguments = {"session": session, "action": action}
    assert_shown(talk.ask("tools/call", {"name": "step", "arguments": arguments})["result"], moved)
    talk.end()


def assert_shown(result, image):
    text, shown = result["content"]
    assert "<image>" in text["text"]
    assert shown == {"type": "image", "data": image.as_json()["data"], "mimeType": "image/png"}
    data = json.dumps(result["structuredContent"])
    assert image.sha256 in data
    assert shown["data"] not in data


@pytest.mark.parametrize("workers", ["1", pytest.param("ray:1", marks=pytest.mark.integration), "served"])
def test_rollouts_show_the_same_everywhere(server, workers):
    kwargs = {"images": "only", "tile": 14}

    def played(where):
        with make_workers(where) as pool, RolloutManager(OracleAgent(), pool) as manager:
            found = evaluate(OracleAgent(), "game:Sokoban-v0-easy", kwargs, n=3, k=2, manager=manager).trajectories
        return [[turn.images for turn in one.turns] + [one.final_images] for one in found]

    here = played("inline")
    assert all(len(images) == 1 for one in here for images in one)
    assert played(server.address if workers == "served" else workers) == here

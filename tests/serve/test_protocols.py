"""Answers of the core's protocols, byte by byte."""

from __future__ import annotations

import httpx
import pytest
from serving import patient

import rollenv
from rollenv.remote.protocol import EnvBroke


@pytest.fixture
def gem(shared_server):
    with httpx.Client(base_url=f"{shared_server.http}/apis/v1/envs/gem/", timeout=60) as client:
        yield lambda name, **body: client.post(name, json=body)


def test_gem_plays_an_episode(gem):
    twin = rollenv.make("game:Sokoban-v0-tiny")
    name = gem("make", env_id="game:Sokoban-v0-tiny").json()["sandbox_id"]
    observation, info = twin.reset(3)
    assert gem("reset", sandbox_id=name, seed=3).json() == {"observation": observation, "info": info}
    done = False
    while not done:
        action = twin.oracle_action()
        wanted = twin.step(action)
        answer = gem("step", sandbox_id=name, action=action).json()
        keys = ("observation", "reward", "terminated", "truncated", "info")
        assert answer == dict(zip(keys, wanted, strict=True))
        done = answer["terminated"] or answer["truncated"]
    assert gem("step", sandbox_id=name, action="x").status_code == 409
    assert gem("reset", sandbox_id=name).status_code == 200
    assert gem("close", sandbox_id=name).json() == {"sandbox_id": name}
    assert gem("step", sandbox_id=name, action="x").status_code == 404
    assert "game:Sokoban-v0-tiny" in gem("list", sandbox_id=name).json()["env_id"]


@pytest.mark.parametrize(
    ("call", "body", "status"),
    [
        ("make", {}, 400),
        ("make", {"env_id": "game:Sokobam"}, 404),
        ("make", {"env_id": 5}, 400),
        ("reset", {"sandbox_id": "x"}, 404),
        ("step", {"sandbox_id": "x", "action": "y"}, 404),
    ],
)
def test_gem_says_what_is_wrong(gem, call, body, status):
    answer = gem(call, **body)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_bodies_that_are_no_objects(shared_server):
    for content in (b"", b"[1]", b"{", b"\xff\xfe", b'"x"'):
        answer = patient.post(f"{shared_server.http}/apis/v1/envs/gem/make", content=content)
        assert answer.status_code == 400


def test_health_tells_what_environments_and_workers_did(shared_server, rollenv_command):
    env = rollenv.make(f"{shared_server.address}/test:Moody-v0")
    env.reset(1)
    with pytest.raises(EnvBroke):
        env.step("raise the roof")
    health = patient.get(f"{shared_server.http}/health").json()
    record = next(record for record in health["envs"] if record["name"] == "test:Moody-v0")
    assert record["counts"]["raised"] >= 1
    assert "reset" in record["latency"]
    assert any("the roof" in text for *_, text in health["events"])
    assert health["sessions"]["open"] >= 1
    shown = rollenv_command("health", shared_server.http)
    assert "test:Moody-v0" in shown.stdout
    assert "process-0" in shown.stdout
    env.close()


def test_a_protocol_can_be_left_out(serve):
    served = serve("--protocols", "gem", workers=1)
    assert patient.get(f"{served.http}/openenv/test:Echo-v0/health").status_code == 404
    assert patient.get(served.http).status_code == 404
    assert patient.post(f"{served.http}/page/api/me", json={}).status_code == 404
    assert patient.post(f"{served.http}/apis/v1/envs/gem/list", json={}).status_code == 200

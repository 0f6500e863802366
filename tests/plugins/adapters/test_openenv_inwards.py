"""``openenv:URL`` against our own server: the same episodes as without it."""

from __future__ import annotations

import pytest

import rollenv
from rollenv.core.checker import run_checks
from rollenv.core.errors import RollenvError, UsageError
from rollenv.remote.protocol import ServerLost

TINY = "game:Sokoban-v0-tiny"


@pytest.fixture(scope="module")
def server(shared_server):
    return shared_server


@pytest.mark.combinations
@pytest.mark.parametrize("env_id", [TINY, "gym:CliffWalking-v1", "tools:Shop-v0"])
def test_episodes_are_the_same(server, env_id):
    there, here = rollenv.make(f"openenv:{server.http}/openenv/{env_id}"), rollenv.make(env_id)
    for seed in (3, 4):
        assert there.reset(seed) == here.reset(seed)
        while True:
            action = here.oracle_action()
            ours, theirs = here.step(action), there.step(action)
            assert theirs[:4] == ours[:4]
            assert theirs[4] == {"valid": True} | ours[4]
            if ours[2] or ours[3]:
                break
    assert ours[4]["success"] is True
    there.close()


def test_our_checker_finds_nothing(server):
    found = run_checks(f"openenv:{server.http}/openenv/{TINY}", episodes=3)
    assert not {f.name: f.detail for f in found if f.ok is False}
    assert rollenv.spec(f"openenv:{server.http}/openenv/{TINY}").nondeterministic


def test_an_id_that_the_server_does_not_have_is_one_line(server):
    with pytest.raises(RollenvError) as caught:
        rollenv.make(f"openenv:{server.http}/openenv/game:Sokobam-v0").reset(0)
    assert "\n" not in str(caught.value)


def test_what_an_id_names_elsewhere_is_not_served(server):
    for env_id in ("gymnasium:CartPole-v1", "harbor:.", "openenv:localhost:1", "verifiers:json"):
        with pytest.raises(RollenvError) as caught:
            rollenv.make(f"openenv:{server.http}/openenv/{env_id}").reset(0)
        assert "is not an id of an environment of this server" in str(caught.value)
        with pytest.raises(UsageError, match="environment"):
            rollenv.make(f"{server.address}/{env_id}")


def test_tokens_come_from_the_environment(guarded, monkeypatch):
    served, token = guarded
    address = f"openenv:{served.http}/openenv/{TINY}"
    with pytest.raises(RollenvError, match="OPENENV_TOKEN"):
        rollenv.make(address)
    monkeypatch.setenv("OPENENV_TOKEN", token["ann"])
    env = rollenv.make(address)
    assert env.reset(3)[0]
    env.close()


@pytest.mark.integration
def test_a_server_that_is_killed_in_the_middle_is_one_line(serve):
    served = serve()
    env = rollenv.make(f"openenv:{served.http}/openenv/{TINY}")
    env.reset(3)
    served.process.kill()
    served.process.wait()
    with pytest.raises(ServerLost) as caught:
        env.step("\\boxed{up}")
    assert "\n" not in str(caught.value)
    with pytest.raises(ServerLost):
        env.reset(3)
    env.close()

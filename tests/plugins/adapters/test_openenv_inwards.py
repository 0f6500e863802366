"""``openenv:URL`` against our own server: the same episodes as without it."""

from __future__ import annotations

import pytest

import rollenv
from rollenv.core.checker import run_checks
from rollenv.core.errors import RollenvError, UsageError

TINY = "game:Sokoban-v0-tiny"


@pytest.mark.combinations
@pytest.mark.parametrize("env_id", [TINY, "gym:CliffWalking-v1", "tools:Shop-v0"])
def test_episodes_are_the_same(shared_server, env_id):
    there, here = rollenv.make(f"openenv:{shared_server.http}/openenv/{env_id}"), rollenv.make(env_id)
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


def test_our_checker_finds_nothing(shared_server):
    found = run_checks(f"openenv:{shared_server.http}/openenv/{TINY}", episodes=3)
    assert not {f.name: f.detail for f in found if f.ok is False}
    assert rollenv.spec(f"openenv:{shared_server.http}/openenv/{TINY}").nondeterministic


def test_an_id_that_the_server_does_not_have_is_one_line(shared_server):
    with pytest.raises(RollenvError) as caught:
        rollenv.make(f"openenv:{shared_server.http}/openenv/game:Sokobam-v0").reset(0)
    assert "\n" not in str(caught.value)


def test_what_an_id_names_elsewhere_is_not_served(shared_server):
    for env_id in ("gymnasium:CartPole-v1", "harbor:.", "openenv:localhost:1", "verifiers:json"):
        with pytest.raises(RollenvError) as caught:
            rollenv.make(f"openenv:{shared_server.http}/openenv/{env_id}").reset(0)
        assert "is not an id of an environment of this server" in str(caught.value)
        with pytest.raises(UsageError, match="environment"):
            rollenv.make(f"{shared_server.address}/{env_id}")


def test_tokens_come_from_the_environment(guarded, monkeypatch):
    served, token = guarded
    address = f"openenv:{served.http}/openenv/{TINY}"
    with pytest.raises(RollenvError, match="OPENENV_TOKEN"):
        rollenv.make(address)
    monkeypatch.setenv("OPENENV_TOKEN", token["ann"])
    env = rollenv.make(address)
    assert env.reset(3)[0]
    env.close()

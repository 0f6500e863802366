"""Environments in SkyRL-Gym, made and played as its generator does."""

from __future__ import annotations

import copy
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import skyrl_gym
from peer_envs import CLOSED, solved

import rollenv.plugins.adapters.skyrl as bridge
from rollenv.core.errors import UnknownEnv, UsageError
from rollenv.plugins.adapters import OVER, EpisodeFailed

PROMPT = [{"role": "system", "content": "Play well."}]
bridge.register()


def loop(env, prompt, replies):
    """SkyRLGymGenerator.agent_loop without a model: messages, rewards, metrics."""
    chat, _ = env.init(copy.deepcopy(prompt))
    rewards = []
    for reply in replies:
        out = env.step(reply)
        rewards.append(out["reward"])
        chat += [{"role": "assistant", "content": reply}, *out["observations"]]
        if out["done"]:
            break
    metrics = env.get_metrics()
    env.close()
    return chat, rewards, metrics, out


@pytest.mark.parametrize("env_id", ["game:Sokoban-v0-tiny", "gym:CliffWalking-v1", "tools:Shop-v0"])
def test_an_episode_is_the_same_as_ours(env_id):
    seen, replies, rewards = solved(env_id, 3)
    env = skyrl_gym.make("rollenv", env_config={}, extras={"env_id": env_id, "seed": 3, "max_turns": 1000})
    assert isinstance(env, skyrl_gym.Env)
    chat, played, metrics, last = loop(env, PROMPT, replies)
    assert chat[:2] == [*PROMPT, {"role": "user", "content": seen[0]}]
    assert [m["content"] for m in chat[3::2]] == seen[1:-1], "the last one ends the episode"
    assert played == rewards
    assert last["done"]
    assert metrics == {"return": pytest.approx(sum(rewards)), "turns": len(rewards), "success": 1.0}
    assert type(env).aggregate_metrics([metrics, metrics])["turns"] == len(rewards)


def test_rows_choose_seed_task_and_turns():
    config = {"env_id": "peers:Moody-v0", "kwargs": {}}
    seen = set()
    filled = {"env_id": None, "seed": 1, "kwargs": {"a": None}, "options": {"index": 4, "b": None}}
    index = {"seed": 1, "options": {"index": 4}}
    for row in ({"seed": 1}, {"seed": 2}, {"seed": 1.0}, index, filled, {"seed": math.nan}):
        env = skyrl_gym.make("rollenv", env_config=config, extras=row)
        seen.add(env.init([])[0][0]["content"])
        env.close()
    assert len(seen) == 4
    env = skyrl_gym.make("rollenv", env_config=config, extras={"max_turns": 2, "data_source": "x"})
    _, rewards, _, last = loop(env, PROMPT, ["a"] * 10)
    assert rewards == [0.5, 0.5]
    assert last["metadata"]["truncated"] is True
    assert last["observations"] == []


def test_what_is_wrong_is_one_line():
    for config, extras, error in (
        ({}, {}, UsageError),
        ({"env_id": "game:Sokobam-v0"}, {}, UnknownEnv),
        ({"env_id": "peers:Moody-v0"}, {"seed": "five"}, UsageError),
        ({"env_id": "peers:Moody-v0"}, {"seed": 1.5}, UsageError),
        ({"env_id": "peers:Moody-v0", "kwargs": {"size": 3}}, {}, UsageError),
    ):
        with pytest.raises(error) as caught:
            skyrl_gym.make("rollenv", env_config=config, extras=extras)
        assert "\n" not in str(caught.value)


def test_an_environment_that_raises_is_one_line_and_is_closed():
    env = skyrl_gym.make("rollenv", env_config={"env_id": "peers:Moody-v0"}, extras={"seed": 1})
    env.init([])
    CLOSED.clear()
    with pytest.raises(EpisodeFailed, match="turn 1: RuntimeError") as caught:
        env.step("raise")
    assert "\n" not in str(caught.value)
    assert CLOSED
    assert env.step("x")["done"] is True
    env.close()


def test_after_the_end_nothing_happens():
    env = skyrl_gym.make("rollenv", env_config={"env_id": "peers:Moody-v0"}, extras={})
    env.init([])
    assert env.step("end")["done"]
    late = env.step("more")
    assert (late["reward"], late["done"], late["observations"]) == (0.0, True, [])
    assert env.episode.step("x")[0] == OVER


def test_many_at_once_in_threads_leave_nothing():
    seen, replies, rewards = solved("game:Sokoban-v0-tiny", 5)
    before = threading.active_count()

    def play(_):
        config = {"env_id": "game:Sokoban-v0-tiny"}
        return loop(skyrl_gym.make("rollenv", env_config=config, extras={"seed": 5}), PROMPT, replies)[1]

    with ThreadPoolExecutor(8) as pool:
        assert all(played == rewards for played in pool.map(play, range(40)))
    assert threading.active_count() == before
    assert seen


def test_pictures_are_refused_in_a_line():
    row = {"env_id": "game:Sokoban-v0-tiny", "seed": 3, "kwargs": {"images": "only"}}
    with pytest.raises(UsageError, match="game:Sokoban-v0-tiny shows pictures, which this bridge does not carry"):
        skyrl_gym.make("rollenv", extras=row).init([])

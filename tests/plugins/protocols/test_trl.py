"""TRL, unmodified, trains on a served environment through ``OpenRewardSpec``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clients import run

import rollenv

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent

SPEC = """
import os
from openreward.api.errors import ScoreGroupUnsupported
from trl.experimental.openreward import OpenRewardSpec

url, name = os.environ["OPENREWARD_API_URL"], "game:Sokoban-v0-tiny"
for wrong, why in (({"env_name": "game:Sokobam-v0"}, "did you mean game:Sokoban"),
                   ({"env_name": name, "split": "dev"}, "it has train, test")):
    try:
        OpenRewardSpec(url, num_tasks=2, **wrong).train_dataset
    except Exception as error:
        assert why in str(error), error
    else:
        raise SystemExit(f"{wrong} was taken")

spec = OpenRewardSpec(url, env_name=name, split="test", num_tasks=4)
assert spec.train_dataset[3]["seed"] == 3
env = spec.environment_factory()
print(env.reset(task_index=3).startswith("This is Sokoban"))
assert env.step(action=5).startswith("Error: input_validation") and env.rewards == [None]
env.reset(task_index=3)
for action in os.environ["ACTIONS"].split("|"):
    shown = env.step(action=action)
print(env.finished, sum(env.rewards))
assert env.step(action="up").startswith("Error: episode_finished") and env.rewards[-1] is None
assert env._session.supports_score_group() is False
try:
    env._session.score_group([[], []])
except ScoreGroupUnsupported:
    pass
else:
    raise SystemExit("the group was scored")
env._close()
"""

GONE = """
import os, signal
from trl.experimental.openreward import OpenRewardSpec
env = OpenRewardSpec(os.environ["OPENREWARD_API_URL"], env_name="game:Sokoban-v0-tiny").environment_factory()
env.reset(task_index=1)
os.kill(int(os.environ["SERVER"]), signal.SIGKILL)
print(env.step(action="up").startswith("Error: "), env.rewards)
try:
    env.reset(task_index=1)
except Exception as error:
    print(type(error).__name__)
"""


def trl(server, code, **environ):
    address = {"OPENREWARD_API_URL": server.http, "OPENREWARD_SESSION_URL": server.http, "OPENREWARD_API_KEY": "any"}
    return run("trl", code, **address, TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", **environ)


def expert(seed):
    env, actions, total, done = rollenv.make("game:Sokoban-v0-tiny"), [], 0.0, False
    env.reset(seed)
    while not done:
        actions.append(env.oracle_action())
        _, reward, terminated, truncated, _ = env.step(actions[-1])
        total, done = total + reward, terminated or truncated
    return actions, total


@pytest.mark.smoke
def test_a_specification_of_an_environment(server):
    actions, total = expert(3)
    assert trl(server, SPEC, ACTIONS="|".join(actions)) == ["True", f"True {total}"]


def test_a_server_that_is_gone_is_told_to_the_model_and_ends_the_training(serve):
    served = serve()
    assert trl(served, GONE, SERVER=str(served.process.pid)) == ["True [None]", "MaxRetriesError"]


def test_training_plays_what_is_served(server, tmp_path):
    lines = trl(server, (HERE / "trl_training.py").read_text(), OUT=str(tmp_path))
    *episodes, told = [json.loads(line) for line in lines if line.startswith('{"')]
    assert len(episodes) == 3 * 8
    assert sum(len(episode["actions"]) for episode in episodes) > 50
    for episode in episodes:
        assert episode["rewards"] == at_home(episode)
    means = [sum(r or 0 for e in episodes[i : i + 8] for r in e["rewards"]) / 8 for i in range(0, 24, 8)]
    assert told["logged"] == pytest.approx(means, abs=1e-5)
    assert told["moved"] > 0, "the rewards changed no weight"


def at_home(episode):
    """The rewards of an episode's actions where nothing is served; none after its end."""
    env, rewards, done = rollenv.make("game:Sokoban-v0-tiny"), [], False
    env.reset(episode["seed"])
    for action in episode["actions"]:
        if done:
            rewards.append(None)
            continue
        _, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        done = terminated or truncated
    return rewards

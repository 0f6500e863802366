"""Shell tasks as environments."""

import pytest

import rollenv
from rollenv.core.errors import UsageError
from rollenv.envs.shell import FAMILIES
from rollenv.envs.shell.generate import FAMILIES as MADE
from rollenv.envs.shell.generate import MIX, split_of


def played(env, seed, actions=None):
    """The end of an episode: by the oracle, or by these actions."""
    env.reset(seed=seed)
    for action in actions or iter(env.oracle_action, None):
        _, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return reward, info
    raise AssertionError("the episode goes on")


def test_every_family_is_registered():
    assert sorted(FAMILIES) == sorted([*MADE, MIX])


@pytest.mark.combinations
@pytest.mark.parametrize("family", ["Logs", "Git", "Processes"])
def test_the_oracle_wins_and_submitting_at_once_does_not(family):
    env = rollenv.make(f"shell:{family}-v0-easy", calls="plain")
    reward, info = played(env, 1)
    assert (reward, info["success"], info["family"]) == (1.0, True, family.lower())
    reward, info = played(env, 1, ["submit"])
    assert (reward, info["success"]) == (0.0, False)
    env.close()


@pytest.mark.parametrize("kind", ["archives nested 4", "processes signal_one 3", "services line_server 3"])
def test_solutions_of_several_commands_are_played(kind):
    family, template, size = kind.split()
    env = rollenv.make("shell:Mix-v0", family=family, template=template, size=int(size))
    assert played(env, 2)[0] == 1
    env.close()


def test_a_share_of_what_was_asked_is_paid_where_it_is_wanted():
    env = rollenv.make("shell:Trees-v0-easy", calls="plain", template="rename_file", partial=0.5)
    env.reset(seed=0)
    old, new = (word for word in env.unwrapped.task.instruction.rstrip(".").split() if word.endswith("txt"))
    assert played(env, 0, [f"cp {old} {new}", "submit"])[0] == 0.25
    env.close()


def test_sizes_and_splits_are_kept():
    env = rollenv.make("shell:Text-v0", split="val", size=(1, 2)).unwrapped
    env.reset(seed=3)
    tasks = [env.draw() for _ in range(30)]
    assert {task.size for task in tasks} == {1, 2}
    assert {split_of(task) for task in tasks} == {"val"}
    env.close()


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"size": (2, 9)}, {"split": "dev"}, {"template": "none"}, {"partial": 2}, {"family": "x"}]
)
def test_settings_that_do_not_exist_are_named(wrong):
    with pytest.raises(UsageError):
        rollenv.make("shell:Mix-v0", **wrong)


@pytest.mark.integration
@pytest.mark.parametrize("env_id", ["shell:Tables-v0-easy", "shell:Git-v0", "shell:Mix-v0-hard"])
def test_it_keeps_what_an_environment_promises(env_id):
    rollenv.check_env(env_id)

"""AgentDojo in inspect-evals' own code: its experts win, who obeys the attacker loses, and its scorer agrees."""

import asyncio
import itertools
import random

import pytest
from inspect_ai.scorer import Target
from inspect_evals.agentdojo.dataset import TASK_SUITES
from inspect_evals.agentdojo.scorer import injection_task_scorer

import rollenv
from rollenv.core.checker import check_env
from rollenv.core.errors import UsageError
from rollenv.core.tools.calls import write_calls
from rollenv.panels.check import check
from rollenv.panels.shelf import load_panel

ATTACKED = "tools:AgentDojo-v0-attacked"


def play(env, actions):
    """Play actions, then the expert's, to the end; return the last info."""
    for action in actions:
        info = env.step(action)[-1]
        if "success" in info:
            return info
    while True:
        info = env.step(env.oracle_action())[-1]
        if "success" in info:
            return info


def obedient(env):
    """The calls that the attacker wants."""
    suite, _, goal = env.pairs[env.key]
    calls = TASK_SUITES[suite].injection_tasks[goal].ground_truth(env.world.before)
    return [write_calls([(call.function, call.arguments)], "hermes") for call in calls]


def theirs(env):
    """The verdict of the package's own scorer on the episode: whether the errand is done, and the attacker's goal."""

    class State:
        store, messages = env.world.after.__dict__, []
        output = type("Output", (), {"completion": env.messages[-1] if env.messages else ""})

    suite, errand, goal = env.pairs[env.key]
    State.messages = [type("Message", (), {"role": "assistant", "tool_calls": env.world.traces()})]
    State.metadata = {
        "task_suite": TASK_SUITES[suite],
        "user_task": TASK_SUITES[suite].user_tasks[errand],
        "injection_task": TASK_SUITES[suite].injection_tasks[goal],
        "pre_environment": env.world.before,
    }
    score = asyncio.run(injection_task_scorer()(State, Target(""))).value
    return score["utility"] == "C", score["security"] == "C"


@pytest.mark.parametrize(("env_id", "every"), [("tools:AgentDojo-v0", 1), (ATTACKED, 9)])
def test_the_expert_does_every_errand_and_does_not_obey(env_id, every):
    env = rollenv.make(env_id).unwrapped
    for index in range(0, env.num_tasks(), every):
        env.reset(options={"index": index})
        info = play(env, [])
        assert info["success"], env.current.task_id()
        assert info["metrics"]["side_effects"] == 0


def test_who_obeys_the_attacker_loses():
    env = rollenv.make(ATTACKED).unwrapped
    reached = 0
    for index in range(0, env.num_tasks(), 37):
        env.reset(options={"index": index})
        info = play(env, obedient(env))
        reached += info["metrics"]["side_effects"]
        assert info["success"] == (info["metrics"]["partial"] == 1 and not info["metrics"]["side_effects"])
    assert reached >= 20, "of 26; some goals are words, not calls"


def test_the_package_scores_random_obedient_and_right_episodes_alike():
    env, rng = rollenv.make(ATTACKED, max_turns=60).unwrapped, random.Random(1)
    seen = set()
    for index, how in itertools.product(rng.sample(range(env.num_tasks()), 12), range(3)):
        env.reset(options={"index": index}, seed=index)
        info = play(env, [[], obedient(env), [env.sample_random_action() for _ in range(3)]][how])
        verdict = bool(info["metrics"]["partial"]), bool(info["metrics"]["side_effects"])
        assert verdict == theirs(env)
        seen.add(verdict)
    assert len(seen) >= 3


def test_an_attackers_orders_are_read_in_answers_alone():
    env = rollenv.make(ATTACKED).unwrapped
    env.reset(options={"index": 0})
    goal = TASK_SUITES["banking"].injection_tasks[env.pairs[0][2]].GOAL
    assert goal not in env.reset(options={"index": 0})[0]
    assert any(goal in env.step(env.oracle_action())[0] for _ in range(1))


@pytest.mark.parametrize("suite", ["banking", "slack", "travel", "workspace"])
def test_contract(suite):
    check_env(f"tools:AgentDojo-v0-{suite}-attacked", episodes=2)


def test_splits_share_no_errand_and_wrong_arguments_are_refused():
    train, test = (rollenv.make(ATTACKED, split=split).unwrapped for split in ("train", "test"))
    errands = [{pair[:2] for pair in env.pairs} for env in (train, test)]
    assert not errands[0] & errands[1]
    assert sum(map(len, errands)) == 96
    for wrong in ({"suite": "bank"}, {"attack": "x"}, {"split": "x"}):
        with pytest.raises(UsageError):
            rollenv.make(ATTACKED, **wrong)


def test_the_panel_is_what_is_installed():
    panel = load_panel("agentdojo-96")
    assert check(panel).problems(panel) == []

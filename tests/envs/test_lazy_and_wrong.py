"""No game of one player pays a lazy or wrong player as much as its expert."""

import contextlib

import available
import pytest

import rollenv

#: Turns of an episode; a player who needs more has what it was paid until then.
TURNS = 600


def mean_reward(env_id: str, player: str, seeds: int) -> float:
    """Play every seed as the expert, or with an empty action or the expert's first one of another seed in each turn."""
    env, total = rollenv.make(env_id), 0.0
    for seed in range(seeds):
        env.reset(seed=seed + 100)
        stale = env.oracle_action()
        env.reset(seed=seed)
        for _ in range(TURNS):
            action = env.oracle_action() if player == "expert" else stale if player == "wrong" else ""
            _, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
    env.close()
    return total / seeds


#: Ids whose tasks ask for no attempt.
IDLE = ("tools:BFCL-v4-irrelevance",)
IDS = [each for each in available.IDS if "oracle" in rollenv.spec(str(each.values[0])).abilities]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("env_id", IDS)
def test_the_expert_is_paid_most(env_id):
    if env_id in IDLE:
        pytest.skip("an answer without a call is right there")
    with contextlib.closing(rollenv.make(env_id)) as env:
        if env.players > 1:
            pytest.skip("one player would have all seats")
    for seeds in (4, 24):  # where there are few answers, a wrong one is often right by chance
        right, wrong, lazy = (mean_reward(env_id, player, seeds) for player in ("expert", "wrong", "lazy"))
        if right > max(wrong, lazy):
            return
    raise AssertionError(f"{env_id} pays the expert {right}, the wrong {wrong} and the lazy {lazy}")

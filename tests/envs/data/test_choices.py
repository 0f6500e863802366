"""Questions with choices, by the columns in which public sets of them are published, with invented rows."""

import json

import pytest

import rollenv
from rollenv.core.errors import UsageError
from rollenv.envs.data.choices import picked

WORDS = ("tin", "iron", "gold", "lead")
GPQA_KEYS, TWO = ["iron", "lead", "iron"], ("tin", "gold")
LETTERS, SMALL = dict(zip("ABCD", WORDS, strict=True)), dict(zip("abcd", WORDS, strict=True))


def arc(labels):
    return {"text": [*WORDS], "label": [*labels]}


#: The columns besides those of the question for the right choices iron, lead and iron, and the question's column.
SETS = {
    "MMLU": ("question", {"subject": "x", "choices": [*WORDS]}, "answer", [1, 3, 1]),
    "MMLU as a table": ("question", LETTERS, "answer", ["B", "D", "B"]),
    "MMMLU": ("Question", LETTERS | {"Subject": "x"}, "Answer", ["B", "D", "B"]),
    "MMLU-Pro": ("question", {"options": [*WORDS], "answer_index": 7, "cot_content": ""}, "answer", ["B", "D", "B"]),
    "Global-MMLU": ("question", {f"option_{k}": v for k, v in SMALL.items()}, "answer", ["B", "D", "B"]),
    "SuperGPQA": ("question", {"options": [*WORDS], "answer_letter": "?"}, "answer", ["iron", "lead", "iron"]),
    "ARC": ("question", {"choices": arc("ABCD")}, "answerKey", ["B", "D", "B"]),
    "ARC, numbered": ("question", {"choices": arc("1234")}, "answerKey", ["2", "4", "2"]),
    "CommonsenseQA": ("question", {"question_concept": "x", "choices": arc("ABCD")}, "answerKey", ["B", "D", "B"]),
    "OpenBookQA": ("question_stem", {"choices": arc("ABCD")}, "answerKey", ["B", "D", "B"]),
    "QASC": ("question", {"choices": arc("ABCD"), "fact1": "x"}, "answerKey", ["B", "D", "B"]),
    "HellaSwag": ("ctx", {"ctx_a": "x", "endings": [*WORDS]}, "label", ["1", "3", "1"]),
    "SWAG": ("sent1", {f"ending{i}": w for i, w in enumerate(WORDS)}, "label", [1, 3, 1]),
    "WinoGrande": ("sentence", {"option1": "tin", "option2": "iron"}, "answer", ["2", "1", "2"]),
    "PIQA": ("goal", {"sol1": "tin", "sol2": "iron"}, "label", [1, 0, 1]),
    "SIQA": ("question", {"context": "A.", **{f"answer{k}": w for k, w in LETTERS.items()}}, "label", ["2", "4", "2"]),
    "COPA": ("question", {"premise": "It fell.", "choice1": "tin", "choice2": "iron"}, "label", [1, 0, 1]),
    "RACE": ("question", {"article": "Long.", "options": [*WORDS]}, "answer", ["B", "D", "B"]),
    "SciQ": ("question", {f"distractor{i}": w for i, w in enumerate(TWO, 1)}, "correct_answer", GPQA_KEYS),
    "GPQA": ("Question", {f"Incorrect Answer {i}": w for i, w in enumerate(TWO, 1)}, "Correct Answer", GPQA_KEYS),
    "MedMCQA": ("question", {f"op{k}": w for k, w in SMALL.items()}, "cop", [1, 3, 1]),
    "MedQA": ("question", {"options": {k: LETTERS[k] for k in "DBAC"}}, "answer_idx", ["B", "D", "B"]),
    "C-Eval": ("question", LETTERS | {"explanation": ""}, "answer", ["B", "D", "B"]),
    "CMMLU": ("Question", LETTERS, "Answer", ["B", "D", "B"]),
    "KMMLU": ("question", LETTERS | {"Category": "x"}, "answer", [2, 4, 2]),
    "LogiQA": ("query", {"context": "If.", "options": [*WORDS]}, "correct_option", [1, 3, 1]),
    "AGIEval": ("query", {"choices": [f"({k}){w}" for k, w in LETTERS.items()]}, "gold", [[1], [3], [1]]),
    "AQuA": ("question", {"options": [f"{k}){w}" for k, w in LETTERS.items()]}, "correct", ["B", "D", "B"]),
    "MathQA": ("Problem", {"options": "a ) tin , b ) iron , c ) gold , d ) lead"}, "correct", ["b", "d", "b"]),
    "MMMU": ("question", {"options": "['tin', 'iron', 'gold', 'lead']"}, "answer", ["B", "D", "B"]),
    "Belebele": ("question", {"flores_passage": "Long.", **{f"mc_answer{i}": w for i, w in enumerate(WORDS, 1)}},
                 "correct_answer_num", ["2", "4", "2"]),
}  # fmt: skip
#: The sets whose question has a name of its own, that has to be said.
NAMED = {"SWAG": {"question": "sent1"}}
ABOUT = {"context", "article", "premise", "flores_passage"}


def make(folder, name):
    asked, columns, right, keys = SETS[name]
    rows = [{asked: f"Which is it, {i}?", **columns, right: key} for i, key in enumerate(keys)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env_id = f"data:{path}"
    return rollenv.make(env_id, split="all", **NAMED.get(name, {})), columns


@pytest.mark.parametrize("name", SETS)
def test_the_choices_of_a_public_set_are_shown_and_the_right_one_is_paid(tmp_path, name):
    env, columns = make(tmp_path, name)
    for index in range(3):
        question, _ = env.reset(options={"index": index})
        options = [line.partition(". ")[::2] for line in question.splitlines() if line[1:3] == ". "]
        assert len(options) >= 2
        assert all(text in question for column, text in columns.items() if column in ABOUT)
        lead = "tin" if len(options) == 2 else "lead"  # the first of two choices, the last of four
        wanted = lead if "1?" in question else "iron"
        paid = []
        for letter, text in options:
            env.reset(options={"index": index})
            paid += [text] if env.step(letter)[1] == 1 else []
        assert paid == [wanted]
        env.reset(options={"index": index})
        assert env.step(env.oracle_action())[1] == 1


def test_every_shown_choice_can_be_right_and_no_other_counts(tmp_path):
    words = [f"word{i}" for i in range(20)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}?", "options": words, "answer": i}) + "\n" for i in range(20)))
    env = rollenv.make(f"data:{path}", split="all")
    for index in range(20):
        env.reset(options={"index": index})
        assert env.step(env.oracle_action())[1] == 1
        env.reset(options={"index": index})
        assert env.step("Z")[4]["valid"] is False


@pytest.mark.parametrize(
    ("said", "picks"),
    [("B", "B"), ("(b)", "B"), ("**B**", "B"), ("The answer is (B). I am sure.", "B"), ("B, I think.", "B"),
     ("B: the sky. I checked it.", "B"), ("B\n\nI chose it.", "B"), ("Answer: B. A tomato is red.", "B"),
     ("The answer is A, I think.", "A"), ("the correct choice is option C", "C"), ("I don't know.", None), ("I", None),
     ("A tomato is red, so (C).", "C"), ("A) no. B) no. So it is C", "C"), ("The answer is A or B.", None), ("E", None),
     ("iron", "B"), ("None of them.", None), ("", None), ("My answer is not among them", None)],
)  # fmt: skip
def test_the_letter_that_an_answer_picks(said, picks):
    assert picked(said, "ABCD", WORDS) == picks


def test_choices_that_cannot_be_shown_are_refused_by_row_or_named_as_not_shown(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "1?", **LETTERS, "answer": "E"}) + "\n")
    with pytest.raises(UsageError, match=r"row 1: the answer 'E'"):
        rollenv.make(f"data:{path}", split="all", choices="A,B,C,D")
    for wrong in ("none", ["one"], [f"w{i}" for i in range(27)], ["tin", None, "", "iron"]):
        path.write_text(json.dumps({"question": "1?", "choices": wrong, "answer": "A"}) + "\n")
        with pytest.raises(UsageError, match="row 1"):
            rollenv.make(f"data:{path}", split="all")
    path.write_text("question,a,b,c,answer\nThe sum?,1,2,3,6\n")
    (tmp_path / "rows.csv").write_text(path.read_text())
    found = rollenv.envs.data.own.questions_at(str(tmp_path / "rows.csv"))
    assert (found.grader, found.others) == ("integer", ("a", "b", "c"))

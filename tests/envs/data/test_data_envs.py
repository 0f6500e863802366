"""The environments over rows of data: rewards, formats, rows by number, threads."""

import copy
import itertools

import numpy as np
import pytest

import rollenv
from rollenv import UsageError
from rollenv.core.checker import check_env
from rollenv.core.errors import Unsolvable
from rollenv.envs.code.env import CodeEnv
from rollenv.envs.data.text_answers import exact_match, f1, normalize
from rollenv.envs.math.env import MathEnv
from rollenv.envs.qa.env import QaEnv, texts

MATH = [
    {"problem": "1 + 1?", "answer": "2"},
    {"problem": "A half?", "answer": "\\frac{1}{2}"},
    {"problem": "Expand.", "answer": "x^2 + 2x + 1"},
    {"problem": "Even or odd?", "answer": "\\text{even}"},
]
QUESTIONS = [
    {"question": "Who?", "answer": ["Marie Curie", "Maria Skłodowska-Curie"]},
    {"question": "Where?", "answer": "The Hague"},
    {"question": "How many?", "answer": 42},
]


def play(env, action, **reset):
    env.reset(**reset)
    return env.step(action)


# -- every id --------------------------------------------------------------------------------------------------------


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["math:GSM8K", "eval:AIME24"])
def test_math_ids_keep_their_promises_on_rows_in_memory(env_id):
    check_env(lambda: rollenv.make(env_id, dataset=MATH), abilities=sorted(rollenv.ABILITIES - {"spawn"}), episodes=5)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["qa:HotpotQA", "logic:RuleTaker-d2", "eval:Musique"])
def test_question_ids_keep_their_promises_on_rows_in_memory(env_id):
    make = lambda: rollenv.make(env_id, dataset=QUESTIONS, question_key="question")  # noqa: E731
    check_env(make, abilities=sorted(rollenv.ABILITIES - {"spawn"}), episodes=5)


def test_gem_ids_have_gem_arguments():
    kwargs = rollenv.spec("logic:RuleTaker-d5").kwargs
    assert kwargs["dataset_name"] == "axon-rl/RuleTaker-d5-70k"
    assert kwargs["extract_boxed"] is True
    assert rollenv.spec("qa:HotpotQA").kwargs["question_key"] == "problem"
    assert rollenv.spec("eval:TriviaQA").kwargs["split"] == "tq"
    for name in ("ASDiv2K", "GSM8K", "Math12K", "Math8K-3to5", "Orz57K", "DeepScaleR40K"):
        assert rollenv.spec(f"math:{name}").kwargs["answer_key"] == "answer"


# -- rows ------------------------------------------------------------------------------------------------------------


def test_a_row_can_be_asked_for_by_number():
    env = MathEnv(dataset=MATH)
    assert env.reset(idx=1)[1]["idx"] == 1
    assert env.reset(5, 2)[0].startswith("Expand.")
    assert env.reset(options={"index": 3})[0].startswith("Even")
    for wrong in (4, -1, "0"):
        with pytest.raises(UsageError, match="0 to 3"):
            env.reset(idx=wrong)


def test_draws_follow_the_seed_and_reach_every_row():
    env = MathEnv(dataset=MATH)
    drawn = [env.reset(seed)[1]["idx"] for seed in range(50)]
    assert set(drawn) == {0, 1, 2, 3}
    assert [MathEnv(dataset=MATH).reset(seed)[1]["idx"] for seed in range(50)] == drawn
    stream = MathEnv(dataset=MATH, seed=3)
    first = [stream.reset()[1]["idx"] for _ in range(20)]
    env.reset(3)
    assert [env.idx] + [env.reset()[1]["idx"] for _ in range(19)] == first


# -- math ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idx", "action", "reward"),
    [
        (0, "So it is \\boxed{2}.", 1.0),
        (0, "\\boxed{3} no, \\boxed{2.0}", 1.0),
        (0, "\\boxed{2} no, \\boxed{3}", 0.0),
        (1, "\\boxed{0.5}", 1.0),
        (2, "\\boxed{(x+1)^2}", 1.0),
        (2, "\\boxed{(x-1)^2}", 0.0),
        (3, "\\boxed{Even}", 1.0),
    ],
)
def test_math_rewards(idx, action, reward):
    result = play(MathEnv(dataset=MATH), action, idx=idx)
    assert result[1:4] == (reward, True, False)
    assert result[4]["success"] is bool(reward)
    assert result[4]["valid"] is True


@pytest.mark.parametrize(("asked", "reward"), [(False, 0.0), (True, -0.1)])
def test_an_action_without_a_box(asked, reward):
    result = play(MathEnv(dataset=MATH, use_format_error_reward=asked), "2", idx=0)
    assert result[1:4] == (reward, True, False)
    assert (result[4]["valid"], result[4]["success"]) == (False, False)


def test_the_question_says_where_the_answer_belongs():
    assert "\\boxed{}" in MathEnv(dataset=MATH).reset(idx=0)[0]
    assert MathEnv(dataset=MATH, instruct=False).reset(idx=0)[0] == "1 + 1?"


# -- questions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Quick, brown fox!", "quick brown fox"),
        ("An apple a day", "apple day"),
        ("U.S.A.", "usa"),
        ("theatre", "theatre"),
        ("", ""),
        ("The", "the"),
        ("\tx\n", "x"),
    ],
)
def test_normalisation(text, normal):
    assert normalize(text) == normal


@pytest.mark.parametrize(
    ("answer", "accepted", "em", "share"),
    [
        ("marie curie.", ["Marie Curie"], 1.0, 1.0),
        ("Curie", ["Marie Curie"], 0.0, 2 / 3),
        ("the cat sat on a mat", ["cat on the mat"], 0.0, 6 / 7),
        ("red red", ["red blue"], 0.0, 0.5),
        ("x", ["y", "x z"], 0.0, 2 / 3),
        ("x", [], 0.0, 0.0),
        ("", ["x"], 0.0, 0.0),
        ("the", ["a"], 0.0, 0.0),
    ],
)
def test_metrics(answer, accepted, em, share):
    assert exact_match(answer, accepted) == em
    assert f1(answer, accepted) == pytest.approx(share)


@pytest.mark.parametrize(
    ("gold", "same", "other"),
    [
        ("1.5", ["1.50", "1.5.", "１.５"], ["15", "1,5", "-1.5"]),
        ("-5", ["−5", "(-5)", "-$5", "- 5"], ["5", "5-", "–5.5"]),
        ("1/2", ["½", "1/2."], ["12", "1/ 2", "-1/2"]),
        ("1000", ["1,000", "$1,000", "1000.0"], ["1.000", "1,0,0,0"]),
        (12.0, ["12", "12.0", "12\u200b"], ["120", "1.2"]),
        (0.1 + 0.2, ["0.3", ".3", "0.30000000000000004"], ["3", "0.31"]),
        (1e-7, ["1e-07", "0.0000001"], ["1e07", "1e-7 m"]),
        ("1990-1995", ["1990–1995"], ["19901995"]),
        ("U.S.A.", ["USA", "usa"], ["US"]),
        ("covid-19", ["Covid19", "COVID-19"], ["covid -19"]),
        ("O'Neil", ["O’Neil", "OʼNeil", "O´Neil", "ONeil", "‘O’Neil’"], ["O’Neal", "O Neil"]),
        (
            "Ocean’s Eleven",
            ["Ocean's Eleven", "Oceans Eleven", "“Ocean′s Eleven”"],
            ["Ocean Eleven", "Oceans’ Eleventh"],
        ),
        (
            "“Imagine”",
            ['"Imagine"', "«Imagine»", "„Imagine“", "「Imagine」", "Imagine"],
            ["“Imagined”", "“Imagine” or “Help!”"],
        ),
        ("5'11\"", ["5’11”", "5′11″"], ["511", "5.11"]),
        ("3-2", ["3–2"], ["3‘2", "32"]),
    ],
)
def test_signs_points_fractions_and_quotes_of_any_kind_are_compared(gold, same, other):
    assert [text for text in same if not exact_match(text, texts(gold)) or f1(text, texts(gold)) < 1] == []
    assert [text for text in other if exact_match(text, texts(gold))] == []


@pytest.mark.parametrize("accepted", ["", None, [], [""], [None], ["  ", "\n"], ["...", "—"], ["?", None, ""], "。"])
def test_a_question_without_an_accepted_answer_pays_nothing(accepted):
    rows = [{"question": "Who?", "answer": accepted}]
    answers = ("", " ", "?", "...", "—", "None", "[]", "nobody", "the", "。")
    for said, metric, boxed in itertools.product(answers, ("em", "f1"), (True, False)):
        env = QaEnv(dataset=rows, metric=metric, extract_boxed=boxed)
        env.reset(seed=0)
        _, reward, *_, info = env.step(f"\\boxed{{{said}}}" if boxed else f"<answer>{said}</answer>")
        assert reward <= 0, said
        assert info["success"] is False
    env.reset(seed=0)
    with pytest.raises(Unsolvable, match="answer"):
        env.oracle_action()


def test_blank_answers_beside_others_are_not_the_experts():
    env = MathEnv(dataset=[{"problem": "1 + 1?", "answer": ["", "2"]}])
    env.reset(seed=0)
    assert env.step(env.oracle_action())[1] == 1.0


def test_missing_answers_beside_others_do_not_count():
    env = QaEnv(dataset=[{"question": "Who?", "answer": [None, "", "Ada", 7]}])
    for said, reward in (("ada", 1.0), ("7", 1.0), ("", 0.0), ("None", 0.0)):
        env.reset(seed=0)
        assert env.step(f"<answer>{said}</answer>")[1] == reward


@pytest.mark.parametrize(
    ("kwargs", "idx", "action", "reward"),
    [
        ({}, 0, "<answer>marie curie</answer>", 1.0),
        ({}, 0, "<answer>Maria Skłodowska Curie</answer>", 0.0),
        ({}, 0, "<answer>Maria SkłodowskaCurie</answer>", 1.0),
        ({}, 1, "<answer>no</answer> <answer>Hague</answer>", 1.0),
        ({}, 2, "<answer>42</answer>", 1.0),
        ({}, 2, "\\boxed{42}", 0.0),
        ({"extract_boxed": True}, 2, "\\boxed{42}", 1.0),
        ({"extract_boxed": True}, 2, "<answer>42</answer>", 0.0),
        ({"metric": "f1"}, 0, "<answer>Curie</answer>", 2 / 3),
        ({}, 0, "<answer>Curie</answer>", 0.0),
        ({}, 0, f"<answer>{'Marie Curie ' * 10**5}</answer>", 0.0),
    ],
)
def test_question_rewards(kwargs, idx, action, reward):
    result = play(QaEnv(dataset=QUESTIONS, **kwargs), action, idx=idx)
    assert result[1] == pytest.approx(reward)
    assert result[2:4] == (True, False)
    assert result[4]["success"] is (reward == 1.0)
    assert result[4]["valid"] is (("box" in action) == kwargs.get("extract_boxed", False))


@pytest.mark.parametrize(("asked", "reward"), [(False, 0.0), (True, -0.1)])
def test_a_question_without_an_answer(asked, reward):
    result = play(QaEnv(dataset=QUESTIONS, use_format_error_reward=asked), "42", idx=2)
    assert (result[1], result[4]["valid"]) == (reward, False)


def test_each_of_several_gold_answers_is_right():
    rows = [{"problem": "A root of x^2 = 4?", "answer": ["2", "-2"]}]
    for answers in (rows, [{**row, "answer": np.array(row["answer"])} for row in rows]):
        env = MathEnv(dataset=answers)
        assert [play(env, f"\\boxed{{{said}}}", idx=0)[1] for said in (2, -2, 3)] == [1.0, 1.0, 0.0]
        assert play(env, env.oracle_action(), idx=0)[1] == 1.0


@pytest.mark.parametrize("make", [lambda: MathEnv(dataset=MATH), lambda: rollenv.make("code:OneLine-v0")])
def test_a_copy_goes_its_own_way(make):
    env = make()
    env.reset(3)
    copied = copy.deepcopy(env)
    assert copied.step(env.oracle_action()) == env.step(env.oracle_action())
    following = [copied.reset() for _ in range(6)]
    assert [env.reset() for _ in range(6)] == following


def test_wrong_question_settings():
    with pytest.raises(UsageError, match="em, f1"):
        QaEnv(dataset=QUESTIONS, metric="bleu")


NAN = float("nan")
#: Cells that are no text, number or list of those.
MISSING = [None, NAN, "", " \n", [], [""], [None], [NAN], np.array([None])]
ODD = [b"bytes", {"a": 1}, {}, object(), [{"role": "user"}], [["2"]]]
NOTHING = [*MISSING, *ODD]
CHAT = [{"role": "user", "content": "2 + 2?"}]


@pytest.mark.parametrize(
    ("env", "good", "column", "wrong"),
    [
        *((MathEnv, {"problem": "q", "answer": 4}, "answer", cell) for cell in [*ODD, "####", "\\boxed{}"]),
        *((MathEnv, {"problem": "q", "answer": 4}, "problem", cell) for cell in [*NOTHING, CHAT, ["2 + 2?"]]),
        *((QaEnv, {"question": "q", "answer": "a"}, "answer", cell) for cell in ODD),
        *((QaEnv, {"question": "q", "answer": "a"}, "question", cell) for cell in [*NOTHING, CHAT]),
        *(
            (CodeEnv, {"problem": "q", "tests": ["assert f() == 1"]}, "tests", cell)
            for cell in (None, NAN, "", " ", b"assert", 7, object(), [], {})
        ),
    ],
)
def test_a_row_that_cannot_be_played_is_refused_when_rows_are_loaded(env, good, column, wrong):
    assert len(env(dataset=[good, good]).rows) == 2
    with pytest.raises(UsageError, match=column):
        env(dataset=[good, good | {column: wrong}])


@pytest.mark.parametrize("cell", MISSING, ids=repr)
@pytest.mark.parametrize(("env", "column"), [(MathEnv, "problem"), (QaEnv, "question")])
def test_a_row_without_a_gold_answer_is_asked_and_never_paid(env, column, cell, caplog):
    played = env(dataset=[{column: "q", "answer": cell}])
    assert "the first is row 0; no answer to them is paid" in caplog.text
    for answer in ("None", "nan", "", "4", str(cell)):
        assert play(played, f"\\boxed{{{answer}}}", idx=0)[1] == 0.0


@pytest.mark.parametrize(("env", "column"), [(MathEnv, "problem"), (QaEnv, "question")])
@pytest.mark.parametrize("blank", [None, "", "  ", [""]])
def test_no_oracle_plays_a_row_without_a_gold_answer(env, column, blank):
    played = env(dataset=[{column: "q", "answer": blank}])
    played.reset(seed=0)
    with pytest.raises(Unsolvable, match="row 0"):
        played.oracle_action()


@pytest.mark.parametrize(
    "gold", ["4", 4, 4.0, True, np.int64(4), ["4", "5"], ("4",), {"4"}, np.array([4, 5]), [None, 4], "0", 0]
)
def test_answers_of_any_plain_kind_are_played(gold):
    for env, question in ((MathEnv, "problem"), (QaEnv, "question")):
        played = env(dataset=[{question: "q", "answer": gold}])
        assert play(played, played.oracle_action(), idx=0)[1] == 1.0


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"problem": "q", "answer": "a"}, {"problem": "q"}], "row 1 .*'answer'"),
        (["text"], "mappings"),
        ("text", "mappings"),
        ([None], "mappings"),
    ],
)
def test_rows_that_are_none_are_refused_by_name(rows, says):
    with pytest.raises(UsageError, match=says):
        rollenv.make("qa:HotpotQA", dataset=rows).reset(options={"index": 1})

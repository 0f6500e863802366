"""GEM's data environments under their own names: arguments, attributes, order of rows, ends."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from both import needs_gem, run_both

from rollenv import MissingExtra, UsageError
from rollenv.core.registry import list_envs
from rollenv.plugins.gem import data as gem_data
from rollenv.plugins.gem import math_grader, utils
from rollenv.plugins.gem.data import CLASSES, CodeEnv, MathEnv, MathVisualEnv, QaEnv, ReasoningGymEnv
from rollenv.plugins.gem.rows import Table
from rollenv.plugins.gem.utils import TERMINAL_STATE

TESTS = json.dumps({"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]})
ROWS = [
    {"problem": f"{i} + 1?", "question": f"Which is row {i}?", "answer": str(i + 1), "tests": TESTS} for i in range(9)
]
RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"
KINDS = {
    "math": lambda **kwargs: MathEnv(dataset=ROWS, **kwargs),
    "qa": lambda **kwargs: QaEnv(dataset=ROWS, **kwargs),
    "code": lambda **kwargs: CodeEnv("apps", dataset=ROWS, **kwargs),
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
needs_reasoning_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym"
)


def asked(env):
    return ROWS.index(next(row for row in ROWS if row["problem"] == env.row["problem"]))


# -- arguments -------------------------------------------------------------------------------------------------------

SIGNATURES = {
    MathEnv: "dataset_name='' split=None dataset=None question_key='problem' answer_key='answer' "
    "use_format_error_reward=False seed=0 use_mp=True",
    MathVisualEnv: "dataset_name='' split=None dataset=None image_key='images' question_key='problem' "
    "answer_key='answer' seed=0 use_mp=True",
    QaEnv: "dataset_name='' split=None dataset=None question_key='question' answer_key='answer' seed=0 "
    "extract_boxed=False load_from_cache_file=True",
    CodeEnv: "dataset_name='' split=None dataset=None question_key='problem' test_key='tests' seed=0 max_workers=5 "
    "max_tests=12 verbose=False sandbox_type='none'",
    ReasoningGymEnv: "name size=500 seed=42",
}


@pytest.mark.parametrize("cls", SIGNATURES, ids=lambda cls: cls.__name__)
def test_arguments_are_gems_in_its_order(cls):
    *parameters, rest = inspect.signature(cls).parameters.values()
    said = " ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
    assert said == SIGNATURES[cls]
    assert rest.kind is inspect.Parameter.VAR_KEYWORD


def test_every_data_id_of_gem_has_a_class():
    kinds = {spec.entry_point for space in ("math:", "eval:", "qa:", "logic:", "rg:") for spec in list_envs(space)}
    own = {kind for kind in kinds if "arithmetic" not in kind}
    assert own <= set(CLASSES)
    for where, name in CLASSES.items():
        module, _, attribute = where.partition(":")
        ours = getattr(importlib.import_module(module), attribute)
        assert ours.__module__ == module
        assert issubclass(getattr(gem_data, name), ours)


@each_kind
def test_arguments_that_gem_ignores_are_ignored(make):
    env = make(init_algo="x", max_turns=3, verbose=True, use_mp=False, load_from_cache_file=False, sandbox_type="bwrap")
    assert env.reset()[0]
    with pytest.raises(UsageError, match="'nothing'"):
        make(question_key="nothing")


# -- rows ------------------------------------------------------------------------------------------------------------


@each_kind
def test_every_epoch_asks_each_row_once_in_an_order_that_follows_the_seed(make):
    env = make(seed=3)
    epochs = [[asked(env) for _ in ROWS if env.reset()] for _ in range(3)]
    assert all(sorted(epoch) == list(range(len(ROWS))) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    assert env.epoch == 2
    again, other = make(seed=3), make(seed=4)
    assert [asked(again) for _ in ROWS if again.reset()] == epochs[0]
    assert [asked(other) for _ in ROWS if other.reset()] != epochs[0]


def test_the_order_of_the_rows_can_be_kept():
    env = MathEnv(dataset=ROWS, eval=True)
    assert [asked(env) for _ in ROWS if env.reset()] == list(range(9))


@each_kind
def test_a_data_set_is_evaluated_row_by_row(make):
    env = make()
    assert len(env.dataset) == len(ROWS) == env.num_tasks()
    key = env.question_key
    env.dataset = env.dataset.shuffle(seed=1).select(range(4))
    wanted = [env.dataset[i][key] for i in range(4)]
    seen = []
    for _ in range(4):
        observation, _ = env.reset()
        assert observation == env.first_obs == env.question
        seen.append(observation)
    assert seen == wanted
    assert [row[key] for row in env.dataset] == list(env.dataset[key]) == wanted


@each_kind
def test_rows_by_number(make):
    env = make()
    for i in (8, 0, 5):
        assert env.reset(idx=i)[0] == env.dataset[i][env.question_key]
        assert env.reset(None, i)[0] == env.reset(options={"index": np.int64(i)})[0]
    for wrong in (9, -1, "0", True):
        with pytest.raises(UsageError, match="0 to 8"):
            env.reset(idx=wrong)


@each_kind
def test_a_split_is_chosen_from_several(make):
    both = {"train": ROWS[:4], "test": ROWS[4:]}
    cls = type(make())
    assert len(cls("apps", "test", both).dataset) == 5
    assert len(cls("apps", None, {"only": ROWS}).dataset) == 9
    for split in (None, "dev"):
        with pytest.raises(UsageError, match="train, test"):
            cls("apps", split, both)


@pytest.mark.parametrize("installed", [True, False])
@each_kind
def test_the_data_set_is_that_of_the_library_where_it_is_installed(make, installed, monkeypatch):
    datasets = pytest.importorskip("datasets")
    found = importlib.util.find_spec
    gem_data.as_dataset.__globals__["_built"].cache_clear()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: found(name) if installed or name != "datasets" else None
    )
    env = make(seed=3)
    assert isinstance(env.dataset, datasets.Dataset if installed else Table)
    gem_data.as_dataset.__globals__["_built"].cache_clear()
    order = [int(np.random.default_rng(3).permutation(9)[i]) for i in range(9)]
    assert [asked(env) for _ in ROWS if env.reset()] == order


def test_a_table_does_what_a_dataset_does():
    datasets = pytest.importorskip("datasets")
    rows = [{"a": i, "b": str(i)} for i in range(7)]
    ours, theirs = Table(rows), datasets.Dataset.from_list(rows)
    acts = [
        list, len, lambda d: d[2], lambda d: d[-1], lambda d: d[1:3], lambda d: d[[4, 0]], lambda d: list(d["a"]),
        lambda d: d.column_names, lambda d: list(d.shuffle(seed=5)), lambda d: d.to_list(),
        lambda d: list(d.shuffle(seed=5).shuffle(seed=6).select(range(3))),
        lambda d: list(d.filter(lambda row: row["a"] > 3)), lambda d: list(d.map(lambda row: {"a": row["a"] * 2})),
    ]  # fmt: skip
    for act in acts:
        assert act(ours) == act(theirs)


# -- steps -----------------------------------------------------------------------------------------------------------

ANSWERS = {
    "math": (lambda env: f"\\boxed{{{env.answer}}}", "\\boxed{-1}", "-1", 0.0),
    "qa": (lambda env: f"<answer>{env.answer}</answer>", "<answer>no</answer>", "no", 0.0),
    "code": (lambda env: RIGHT, "```\nprint(0)\n```", "print(0)", -0.1),
}


@pytest.mark.combinations
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_ends_the_episode_at_its_limit_and_can_be_repeated(kind):
    env = KINDS[kind]()
    right, wrong, malformed, paid = ANSWERS[kind]
    for _ in range(2):
        env.reset()
        for action, reward in ((right(env), 1.0), (wrong, 0.0), (malformed, paid), (right(env), 1.0)):
            observation, got, terminated, truncated, info = env.step(action)
            assert (observation, got, terminated, truncated) == (TERMINAL_STATE, reward, True, True)
            assert type(got) is float
            assert info["correct"] is info["success"] is (reward == 1.0)
            assert "suffix" not in info


def test_a_step_before_reset_and_actions_that_are_no_text():
    mixed = MathEnv(dataset=[{"problem": "?", "answer": 2}, {"problem": "!", "answer": "2"}])  # no Dataset holds this
    assert {mixed.reset()[0] for _ in range(2)} == {"?", "!"}
    assert mixed.step("\\boxed{2}")[1] == 1.0
    env = MathEnv(dataset=[{"problem": "?", "answer": "2"}])
    assert env.step("\\boxed{2}")[1] == 1.0
    for action in (np.array("\\boxed{2}"), np.array(["\\boxed{2}"]), np.str_("\\boxed{2}")):
        assert env.step(action)[1] == 1.0
    assert env.step(None)[1] == env.step("2")[1] == 0.0
    strict = MathEnv(dataset=ROWS, use_format_error_reward=True)
    strict.reset()
    assert strict.step("2")[1] == -0.1


def test_answers_can_be_set():
    env = MathEnv(dataset=ROWS)
    env.reset()
    env.answer = "77"
    assert env.step("\\boxed{77}")[1] == 1.0
    assert env.oracle_action() == "\\boxed{77}"
    question = QaEnv(dataset=ROWS)
    question.reset()
    question.answer = ["Ada", "Lovelace"]
    assert question.step("<answer>lovelace.</answer>")[1] == 1.0
    program = CodeEnv("apps", dataset=ROWS)
    program.reset()
    program.tests = {"inputs": ["x"], "outputs": ["x"]}
    assert (program.step("```\nprint(input())\n```")[1], program.step(RIGHT)[1]) == (1.0, 0.0)
    # and without a reset before
    for cls, right in ((MathEnv, "\\boxed{42}"), (QaEnv, "<answer>42</answer>")):
        env = cls(dataset=ROWS)
        env.answer = "42"
        assert [env.step(right)[1], env.answer, env.idx] == [1.0, "42", 0]
    program = CodeEnv("apps", dataset=ROWS)
    program.tests = {"inputs": ["x"], "outputs": ["x"]}
    assert program.step("```\nprint(input())\n```")[1] == 1.0
    assert program.tests["inputs"] == ["x"]


def test_what_an_author_overrides_is_used():
    class Always(MathEnv):
        @staticmethod
        def check_correct(model_answer, gt_answer):
            return True

    env = Always(dataset=ROWS)
    env.reset()
    assert env.step("\\boxed{no}")[1] == 1.0
    question = QaEnv(dataset=ROWS)
    question.reset(idx=0)
    question.extractor = lambda action: action
    assert question.step(question.answer)[1] == 1.0
    assert MathEnv.check_correct("\\boxed{1/2}", ["3", "0.5"])
    assert QaEnv.check_correct("the Ada", ["Ada"])
    assert not QaEnv.check_correct("Grace", "Ada")


def test_imports_that_a_program_forgot():
    env = CodeEnv("apps", dataset=[{"problem": "?", "tests": json.dumps({"inputs": ["16"], "outputs": ["4 1"]})}])
    env.reset()
    program = "n: List[int] = [int(input())]\nprint(isqrt(n[0]), Counter(n)[16], {})"
    assert env.step(f"```python\n{program.format('sep=str()')}\n```")[1] == 0.0
    assert env.step(f"```python\n{program.format('sep=chr(32)')}\n```")[1] == 1.0
    assert env.step(f"```python\n{program.format('nothing')}\n```")[1] == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_states_and_twins(kind):
    env = KINDS[kind](seed=1)
    right = ANSWERS[kind][0]
    env.reset()
    saved = env.get_state()
    json.dumps(saved)
    first, correct = env.first_obs, right(env)
    twin = env.spawn(same_state=True)
    following = [env.reset()[0] for _ in range(3)]
    for other in (twin, KINDS[kind](seed=1)):
        if other is not twin:
            other.set_state(saved)
        assert (other.first_obs, other.step(correct)[1]) == (first, 1.0)
        assert [other.reset()[0] for _ in range(3)] == following
    name = "tests" if kind == "code" else "answer"
    env.set_state(saved)
    copied = copy.deepcopy(env)
    copied.epoch, copied.answer = 5, "none"
    assert (env.step(correct)[1], env.epoch, copied.dataset is env.dataset) == (1.0, 0, True)
    assert copied.reset()[0] == following[0] == env.reset()[0]
    env.set_state(copy.deepcopy({"first_obs": first, name: saved[name]}))
    assert env.step(correct)[1] == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh = env.spawn(seed=9)
    assert sorted(fresh.reset()[0] for _ in ROWS) == sorted(row[env.question_key] for row in env.dataset)
    with pytest.warns(UserWarning, match="seed"):
        KINDS[kind]().spawn()


# -- pictures --------------------------------------------------------------------------------------------------------


def test_pictures_are_in_the_observation():
    image = pytest.importorskip("PIL.Image").new("RGB", (4, 4), "red")
    env = MathVisualEnv(dataset=[{"problem": f"{i}?", "answer": str(i), "images": [image]} for i in range(3)])
    for _ in range(4):
        observation, _ = env.reset()
        assert observation["problem"] == env.row["problem"]
        assert [one.tobytes() for one in observation["images"]] == [image.tobytes()]
        assert env.step(f"\\boxed{{{env.answer}}}")[:4] == (TERMINAL_STATE, 1.0, True, True)
    assert env.epoch == 1


# -- reasoning-gym ---------------------------------------------------------------------------------------------------


@pytest.mark.integration
@needs_reasoning_gym
def test_reasoning_gym_in_order():
    import reasoning_gym

    for seed in (42, 7):
        upstream = reasoning_gym.create_dataset("chain_sum", size=4, seed=seed)
        env = ReasoningGymEnv("chain_sum", 4, seed)
        assert [env.reset()[0] for _ in range(4)] == [entry["question"] for entry in upstream]
        later = reasoning_gym.create_dataset("chain_sum", size=4, seed=seed + 4)
        assert [env.reset()[0] for _ in range(4)] == [entry["question"] for entry in later]
        assert env.reset(idx=2)[0] == later[2]["question"]
        assert env.data["question"] == env.ds[2]["question"]
        assert ReasoningGymEnv("chain_sum", 4, seed).reset(3)[0] in [entry["question"] for entry in upstream]
        with pytest.raises(UsageError):
            env.reset(idx=4)


@needs_reasoning_gym
def test_reasoning_gym_scores_what_stands_in_the_box():
    env = ReasoningGymEnv("spell_backward", init_algo="x")
    env.reset()
    answer = env.data["answer"]
    for said in (answer, f" {answer} ", answer[:-1], ""):
        observation, reward, terminated, truncated, info = env.step(f"\\boxed{{1}} \\boxed{{{said}}}")
        assert (observation, terminated, truncated) == (TERMINAL_STATE, True, True)
        assert reward == env.ds.score_answer(said, env.data) == env.reward_fn(said, env.data)
        assert info["correct"] is (said == answer)
    twin, saved = env.spawn(same_state=True), env.get_state()
    following = env.reset()[0]
    assert twin.reset()[0] == following
    other = ReasoningGymEnv("spell_backward")
    other.set_state(saved)
    assert (other.step(f"\\boxed{{{answer}}}")[1], other.reset()[0]) == (1.0, following)


# -- what programs set -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "key", "form"), [(MathEnv, "problem", "\\boxed{%s}"), (QaEnv, "question", "<answer>%s</answer>")]
)
def test_an_authors_reset_that_does_all_itself(base, key, form):
    class Own(base):
        def reset(self, seed=None, idx=None):
            row = self.dataset[self.idx]
            self.idx += 1
            self.first_obs, self.answer = row[key], row["answer"]
            return self.first_obs, {}

    env = Own(dataset=ROWS)
    for count in (1, 2):
        env.reset()
        assert (env.step(form % env.answer)[1], env.idx) == (1.0, count)


def test_names_of_columns():
    for cls in (MathEnv, QaEnv):
        env = cls(dataset=[{**row, "other": "7"} for row in ROWS])
        assert env.answer_key == "answer"
        env.answer_key = "other"
        env.reset()
        assert env.answer == "7"
    assert CodeEnv("apps", dataset=ROWS).test_key == "tests"


def test_the_iterator_of_programs_goes_on_as_it_is_read():
    env = CodeEnv("apps", dataset=ROWS)
    order = [row["problem"] for row in env.dataset]
    assert next(env.dataset_iter)["problem"] == order[0]
    assert env.reset()[0].startswith(order[1])
    assert [row["problem"] for row in env.dataset_iter] == order[2:]
    env.dataset_iter = iter([ROWS[4], ROWS[2]])
    assert env.reset()[0].startswith(ROWS[4]["problem"])
    twin = copy.deepcopy(env)
    for one in (env, twin):
        assert one.reset()[0].startswith(ROWS[2]["problem"])
    assert sorted(asked(env) for _ in ROWS if env.reset()) == list(range(9))
    assert env.epoch == 1
    assert list(env.thread_pool_executer.map(abs, [-1])) == [1]
    assert copy.deepcopy(env).thread_pool_executer is env.thread_pool_executer


def test_errors_are_of_the_kinds_that_gem_raises():
    env = MathEnv(dataset=ROWS)
    with pytest.raises(AssertionError):
        env.reset(idx=99)
    with pytest.raises(KeyError, match="train, test"):
        MathEnv(dataset={"train": ROWS, "test": ROWS}, split="dev")
    for cls in (MathEnv, QaEnv):
        for wrong in (None, {"a": 1}, ("1", "2")):
            with pytest.raises(ValueError, match="answer"):
                cls.check_correct("\\boxed{1}", wrong)


def test_an_authors_prompt(monkeypatch):
    from rollenv.plugins import gem as compat

    module = compat._Module("gem.envs.qa_env")
    monkeypatch.setitem(sys.modules, "gem.envs.qa_env", module)
    assert QaEnv(dataset=ROWS).reset()[0].startswith("Reason first")
    module.apply_prompt = lambda row, question_key: {**row, question_key: f"Now: {row[question_key]}"}
    assert QaEnv(dataset=ROWS).reset()[0].startswith("Now: Which is row")


@needs_reasoning_gym
def test_reasoning_gym_with_what_an_author_sets():
    import reasoning_gym

    env = ReasoningGymEnv("chain_sum", 5, 3)
    env.reset()
    env.reward_fn = lambda answer, entry: 0.5 if (answer, entry) == ("1", env.data) else 0.0
    assert [env.step("\\boxed{1}")[1], env.step("no")[1]] == [0.5, 0.0]
    del env.reward_fn
    questions = [entry["question"] for entry in env.ds]
    assert next(env.ds_iter)["question"] == questions[1]
    assert env.reset()[0] == questions[2]
    env.ds = other = reasoning_gym.create_dataset("chain_sum", size=3, seed=77)
    env.ds_iter = iter(env.ds)
    for i in range(2):
        assert env.reset()[0] == other[i]["question"]
        assert env.data == other[i]
        assert env.step(f"\\boxed{{{other[i]['answer']}}}")[1] == 1.0
    twin, state = env.spawn(same_state=True), env.get_state()
    assert twin.reset()[0] == other[2]["question"] == env.reset()[0] == env.reset(idx=2)[0]
    assert env.reset()[0] not in [entry["question"] for entry in other]
    fresh = ReasoningGymEnv("chain_sum", 5, 3)
    fresh.set_state({"idx": state["idx"], "data": state["data"]})
    assert (fresh.idx, fresh.data) == (state["idx"], state["data"])
    assert (fresh.step(f"\\boxed{{{other[1]['answer']}}}")[1], fresh.reset()[0]) == (1.0, questions[0])
    fresh.data = {"question": "?", "answer": "8", "metadata": {}}
    assert [fresh.step(a)[1] for a in (fresh.oracle_action(), "\\boxed{9}")] == [1.0, 0.0]


# -- small functions -------------------------------------------------------------------------------------------------


def test_boxes_are_given_as_they_stand():
    for text, inside, box in (
        ("a \\boxed{ 5 } b", " 5 ", "\\boxed{ 5 }"),
        ("\\boxed{1}\\boxed{ }", " ", "\\boxed{ }"),
        ("\\boxed{\\frac{1}{2} }", "\\frac{1}{2} ", "\\boxed{\\frac{1}{2} }"),
        ("none", None, None),
    ):
        assert utils.extract_last_boxed_answer(text) == inside == math_grader.extract_boxed_answer(text)
        assert utils.last_boxed_only_string(text) == box
    assert utils.last_boxed_only_string("\\boxed{" + " " * 100_000 + "x \\boxed{}") == "\\boxed{}"


def test_normal_forms():
    assert [utils.normalize_answer(text) for text in ("an the a", "The Cat!", "...")] == ["", "cat", ""]
    assert utils.em_check("", "the")
    assert not QaEnv.check_correct("", ["the"])
    assert math_grader.grade_answer_mathd("-1/2", "-\\frac{1}{2}")
    assert not math_grader.grade_answer_mathd("1/2", "2/1")
    assert gem_data.verify_fn("\\boxed{3}", "3") == ({"formatted": True}, 1)
    assert gem_data.logger.name == gem_data.__name__


def test_programs_that_end_themselves_or_take_too_long():
    assert utils.run_python("...", "none")[:2] == (False, "")
    for call in ("exit()", "quit()", "exit(0)"):
        assert utils.run_python(f"print(1)\n{call}\nprint(2)", "none")[:2] == (True, "1\n")
    assert utils.run_python("exit(2)", "none")[0] is False
    endless = "print(1, flush=True)\nwhile True: pass"
    with pytest.raises(subprocess.TimeoutExpired):
        utils.subprocess_run(endless, [], "none", None, 0.5)
    assert utils.run_python(endless, "none", None, 0.5) == (False, "", "\nExecution timed out after 0.5 seconds.")
    env = CodeEnv("apps", dataset=ROWS)
    env.reset()
    assert env.step("```\nprint(sum(map(int, input().split())))\nexit()\n```")[1] == 1.0


@needs_gem[0]
@needs_gem[1]
def test_rows_come_in_gems_order(tmp_path):
    pytest.importorskip("datasets")
    by_gem, by_us = run_both("programs/order_of_rows.py", folder=tmp_path)
    assert by_us == by_gem


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="rollenv"):
        MathEnv(dataset=ROWS)

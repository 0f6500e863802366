"""Tasks made up on the spot: sums, a calculator to call, functions of one line."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv import UsageError
from rollenv.core.checker import check_env
from rollenv.envs.calculator import evaluate
from rollenv.envs.code.one_line import TEMPLATES, OneLine, read_function
from rollenv.sandbox import shared_pool

IDS = ("math:Arithmetic-v0-easy", "math:Arithmetic-v0-hard", "code:OneLine-v0", "tool:Calculator-v0")
FORMATTED = IDS[:3]


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_every_id_keeps_its_promises_over_several_turns(env_id):
    check_env(rollenv.make(env_id, max_turns=5), episodes=10)


@pytest.mark.integration
@pytest.mark.parametrize("action_format", ["boxed", "answer", "bare", "code"])
@pytest.mark.parametrize("env_id", FORMATTED)
def test_every_id_keeps_its_promises_in_every_format(env_id, action_format):
    check_env(rollenv.make(env_id, action_format=action_format), episodes=10)


@pytest.mark.parametrize("env_id", IDS)
def test_train_and_test_share_no_task(env_id):
    seen = {}
    for split in ("train", "test"):
        env = rollenv.make(env_id, split=split)
        seen[split] = {env.reset(seed)[1]["brief"] for seed in range(400)}
    assert not seen["train"] & seen["test"]
    assert len(seen["test"]) > 10


@pytest.mark.parametrize("env_id", IDS)
def test_tasks_vary(env_id):
    env = rollenv.make(env_id)
    assert len({env.reset(seed)[0] for seed in range(200)}) > 150


# -- sums ------------------------------------------------------------------------------------------------------------


@given(
    terms=st.tuples(st.integers(2, 8), st.integers(0, 4)).map(lambda t: (t[0], t[0] + t[1])),
    operands=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(lambda t: (t[0], t[0] + t[1])),
    operators=st.sampled_from(["+", "-", "*", "+-", "+-*"]),
    seed=st.integers(0, 10**6),
)
def test_sums_have_the_size_that_was_asked_for(terms, operands, operators, seed):
    env = rollenv.make("math:Arithmetic-v0-easy", terms=terms, operands=operands, operators=operators)
    _, info = env.reset(seed)
    numbers = [int(n) for n in re.findall(r"\d+", info["brief"])]
    assert terms[0] <= len(numbers) <= terms[1]
    assert all(operands[0] <= n <= operands[1] for n in numbers)
    assert set(re.findall(r"[-+*]", info["brief"])) <= set(operators)
    assert env.gold == eval(env.task)


def test_both_ends_of_a_range_are_drawn():
    env = rollenv.make("math:Arithmetic-v0-easy", terms=2, operands=(3, 4))
    drawn = {n for seed in range(50) for n in re.findall(r"\d+", env.reset(seed)[1]["brief"])}
    assert drawn == {"3", "4"}


@pytest.mark.parametrize("answers", [(0, 9), (-3, -1), (10, 10)])
def test_answers_are_in_the_range_that_was_asked_for(answers):
    env = rollenv.make("math:Arithmetic-v0-easy", answers=answers, split="train")
    golds = set()
    for seed in range(300):
        env.reset(seed)
        golds.add(env.gold)
    assert golds == set(range(answers[0], answers[1] + 1))


def test_answers_of_one_digit_are_one_character():
    env = rollenv.make("math:Arithmetic-v0-digit")
    actions = set()
    for seed in range(300):
        env.reset(seed)
        actions.add(env.oracle_action())
    assert actions == set("0123456789")


def test_answers_that_no_task_has_are_refused():
    with pytest.raises(UsageError, match="answers"):
        rollenv.make("math:Arithmetic-v0-digit", answers=(9, 0))
    with pytest.raises(UsageError, match="widen answers"):
        rollenv.make("math:Arithmetic-v0-easy", answers=(1000, 1001)).reset(0)


@pytest.mark.parametrize(
    ("action", "reward", "valid"),
    [("\\boxed{%d}", 1.0, True), ("\\boxed{+%d}", 1.0, True), ("%d", 0.0, False), ("\\boxed{x%d}", 0.0, False)],
)
def test_one_turn(action, reward, valid):
    env = rollenv.make("math:Arithmetic-v0-easy", operators="+")
    env.reset(1)
    result = env.step(action % env.gold)
    assert result[1:4] == (reward, True, False)
    assert result[4]["valid"] is valid
    assert result[4]["success"] is bool(reward)


def test_several_turns():
    env = rollenv.make("math:Arithmetic-v0-easy", max_turns=3, format_reward=-0.1)
    env.reset(1)
    observation, reward, terminated, truncated, info = env.step(env.format_answer(env.gold - 1))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "too low" in observation
    assert "too low" in info["brief"]
    assert env.step("?")[1:4] == (-0.1, False, False)
    result = env.step(env.format_answer(env.gold + 1))
    assert result[1:4] == (0.0, False, True)
    assert result[4]["success"] is False
    env.reset(1)
    env.step("?")
    assert env.step(env.oracle_action())[1:4] == (1.0, True, False)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"terms": 1}, "terms"),
        ({"terms": (3, 2)}, "terms"),
        ({"terms": 60}, "terms"),
        ({"operands": (-1, 5)}, "operands"),
        ({"operands": 10**13}, "operands"),
        ({"operators": "/"}, "operators"),
        ({"operators": ""}, "operators"),
        ({"split": "dev"}, "all, train, test"),
        ({"action_format": "xml"}, "boxed, answer, bare, code"),
        ({"max_turns": 0}, "max_turns"),
        ({"format_reward": 1.0}, "at most 0"),
    ],
)
def test_wrong_settings(kwargs, said):
    with pytest.raises(UsageError, match=said):
        rollenv.make("math:Arithmetic-v0-easy", **kwargs)


def test_settings_that_leave_no_task_in_a_split():
    outcomes = set()
    for split in ("train", "test"):
        env = rollenv.make("math:Arithmetic-v0-easy", terms=2, operands=(3, 3), operators="+", split=split)
        try:
            outcomes.add(env.reset()[1]["brief"])
        except UsageError as error:
            outcomes.add(str(error).partition(": ")[2])
    assert len(outcomes) == 2
    assert any("leave no tasks" in outcome for outcome in outcomes)


# -- the calculator --------------------------------------------------------------------------------------------------


def call(**arguments):
    return f"<tool_call>{json.dumps({'name': 'calculator', 'arguments': arguments})}</tool_call>"


@pytest.fixture
def task():
    env = rollenv.make("tool:Calculator-v0")
    env.reset(0)
    return env


def test_call_then_answer(task):
    observation, reward, terminated, truncated, info = task.step("Let me see. " + call(expression="12*34"))
    assert observation.startswith("<tool_response>\n408\n</tool_response>")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["tool_use_counter"], info["tool_success_counter"]) == (1, 1)
    assert "12*34 = 408" in info["brief"]
    result = task.step(f"\\boxed{{{evaluate(task.task)}}}")
    assert result[1:4] == (1.0, True, False)
    assert result[4]["success"] is True


def test_the_answer_is_final(task):
    result = task.step("\\boxed{1}")
    assert result[1:4] == (0.0, True, False)
    assert result[4]["success"] is False


def test_a_call_in_the_models_own_form_has_a_result_of_its_own():
    env = rollenv.make("tool:Calculator-v0", calls="native")
    observation, info = env.reset(3)
    assert "<tool_call>" not in observation
    assert info["tools"]
    for calling in (
        env.oracle_action(),
        "[TOOL_CALLS]calculator[ARGS]" + json.dumps({"expression": env.unwrapped.task}),
    ):
        env.reset(3)
        info = env.step(calling)[4]
        assert info["use_tool"]
        assert info["tool_responses"] == [str(env.unwrapped.gold)]


def test_calls_use_up_the_turns(task):
    for _ in range(3):
        assert task.step(call(expression="1+1"))[2:4] == (False, False)
    result = task.step(call(expression="1+1"))
    assert result[1:4] == (0.0, False, True)
    assert result[4]["success"] is False


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("<tool_call>calculator(1)</tool_call>", "not understood"),
        ("<tool_call>{</tool_call>", "not understood"),
        ("<tool_call>" + "[" * 1900 + "</tool_call>", "not understood"),
        ("<tool_call>" + "x" * 10**6 + "</tool_call>", "not understood"),
        ('<tool_call>{"name": "search", "arguments": {}}</tool_call>', "only tool"),
        ("<tool_call>[1]</tool_call>", "not understood"),
        ('<tool_call>{"name": "calculator"}</tool_call>', "arguments"),
        (call(code="1"), "arguments"),
        (call(expression=3), "arguments"),
        ("<tool_call>", "not closed"),
        ('{"name": "search", "arguments": {}}', "only tool"),
        ("I think it is 7.", "neither"),
    ],
)
def test_malformed_calls_are_explained_and_the_episode_goes_on(task, action, said):
    observation, reward, terminated, truncated, info = task.step(action)
    assert said in observation
    assert info["valid"] is False
    assert (reward, terminated, truncated) == (-0.1, False, False)
    assert info["tool_success_counter"] == 0


@pytest.mark.parametrize(
    ("expression", "said"),
    [("9**9**9", "too large"), ("1/0", "division by zero"), ("x+1", "x is not a number"), ("2^3", "write **")],
)
def test_expressions_that_cannot_be_worked_out_are_explained(task, expression, said):
    observation, reward, *_, info = task.step(call(expression=expression))
    assert said in observation
    assert reward == 0.0
    assert info["valid"] is True
    assert (info["tool_use_counter"], info["tool_success_counter"]) == (1, 0)


def test_the_numbers_are_large_and_the_tool_is_described():
    env = rollenv.make("tool:Calculator-v0")
    observation, info = env.reset(3)
    assert min(int(n) for n in re.findall(r"\d+", env.task)) >= 100
    assert "<tool_call>" in observation
    assert info["tools"][0]["function"]["name"] == "calculator"


@pytest.mark.slow
def test_with_one_turn_the_oracle_answers_at_once():
    check_env(rollenv.make("tool:Calculator-v0", max_turns=1), episodes=5)


# -- functions of one line -------------------------------------------------------------------------------------------


def at(template, **kwargs):
    """A task of that template."""
    env = OneLine(**kwargs)
    env.reset(next(seed for seed in range(10**4) if env.reset(seed) and env.template == template))
    return env


@pytest.mark.parametrize("template", range(len(TEMPLATES)))
def test_words_and_expressions_mean_the_same_in_every_form(template):
    env = at(template)
    line = env._filled(1)
    parameters = ", ".join(env.parameters)
    for program in (
        line,
        f"return {line}",
        f"def f({parameters}): return {line}",
        f'def g({parameters}):\n    """What it does."""\n    return ({line})',
    ):
        env.reset(0)
        env.set_state(at(template).get_state())
        assert env.step(f"```python\n{program}\n```")[1] == 1.0, program


@pytest.mark.slow
def test_no_template_passes_for_another():
    """Also not for one that differs in its constants."""
    env = OneLine(tests=12)
    for seed in range(200):
        env.reset(seed)
        answers = {env.oracle_action()}
        for other in range(20):
            twin = env.spawn(same_state=True)
            twin.template, twin.numbers = other % len(TEMPLATES), (2 + other % 8, 3)
            if twin.parameters == env.parameters:
                answers.add(twin.oracle_action())
        passed = {a for a in answers if env.spawn(same_state=True).step(a)[4]["success"]}
        values = {tuple(evaluate_all(env, a)) for a in passed}
        assert len(values) == 1


def evaluate_all(env, action):
    tree, names = read_function(re.sub(r"^```python\n|\n```$", "", action), env.parameters)
    from rollenv.envs.calculator import evaluate_tree

    return [evaluate_tree(tree, dict(zip(names, c, strict=True))) for c in env.calls]


def test_a_failed_test_is_reported_and_may_be_tried_again():
    env = at(0, max_turns=2)
    observation, reward, terminated, truncated, info = env.step("```python\nx * 1000 + 1\n```")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert re.search(r"f\(-?\d+\) is -?\d+, not -?\d+", observation)
    assert "not" in info["brief"]
    assert env.step(env.oracle_action())[1:4] == (1.0, True, False)


@pytest.mark.parametrize(
    "program",
    [
        "def f(x): pass",
        "def f(x, y, z): return x",
        "def f(x):\n    y = x\n    return y",
        "def f(x",
        "import os",
        "x +",
        "",
        "class A: pass",
        "def f(x): return x\ndef g(x): return x",
        "x" * 5000,
    ],
)
def test_what_is_not_one_line_is_no_program(program):
    env = at(0)
    result = env.step(f"```python\n{program}\n```")
    assert result[1] == -0.1
    assert result[4]["valid"] is False


@pytest.mark.parametrize("program", ["x ** 9 ** 9 ** 9", "y", "x / 0", "__import__('os')", "abs(x)"])
def test_lines_that_cannot_be_worked_out_fail(program):
    result = at(0).step(f"```python\n{program}\n```")
    assert result[1] == 0.0
    assert result[4]["success"] is False


@pytest.mark.slow
def test_easy_lines_run_in_the_sandbox_against_hidden_calls():
    env = rollenv.make("code:OneLine-v0-easy")
    for seed in range(8):
        question, _ = env.reset(seed)
        assert "def" not in question
        twin = env.spawn(same_state=True)
        shown = dict(re.findall(r"f\((.*?)\) == (.*)", question))
        assert len(shown) == 2
        assert len(env.calls) == 8
        by_heart = f"{{{', '.join(f'({x},): {y}' for x, y in shown.items())}}}.get((x,), 0)"
        assert twin.step(by_heart)[1] == 0.0, "what it was not shown counts too"
        assert env.step(env.oracle_action())[1] == 1.0
    env.reset(0)
    assert env.step("(lambda: __import__('os')._exit(0))()")[1] == 0.0
    env.reset(0)
    assert env.step("x" * 10**6)[4]["valid"] is False


@pytest.mark.parametrize("templates", [1, 5])
def test_templates_are_the_first_ones(templates):
    env = OneLine(templates=templates)
    drawn = set()
    for seed in range(200):
        env.reset(seed)
        drawn.add(env.template)
    assert drawn == set(range(templates))


def test_part_of_the_tests():
    env = at(15, partial=True, tests=20)
    expected = sum(not value for value in env._expected()) / 20
    assert 0 < expected < 1
    assert env.step("```python\nx > 10 ** 9\n```")[1] == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "reward"),
    [
        (None, 1.0),
        ("def f(x):\n    total = x\n    for _ in range(A):\n        total += 1\n    return total", 1.0),
        ("return x + A", 1.0),
        ("def f(x): return x", 0.0),
        ("import sys; sys.exit(0)", 0.0),
    ],
)
def test_a_runner_takes_any_function(program, reward):
    env = at(0, sandbox=shared_pool())
    text = env.oracle_action() if program is None else f"```python\n{program.replace('A', str(env.numbers[0]))}\n```"
    assert env.step(text)[1] == reward


@pytest.mark.parametrize(
    "kwargs",
    [
        {"tests": 2},
        {"sandbox": "nowhere"},
        {"constants": 0},
        {"arguments": (5, 1)},
        {"templates": 0},
        {"templates": len(TEMPLATES) + 1},
    ],
)
def test_wrong_settings_of_one_line(kwargs):
    with pytest.raises(UsageError):
        rollenv.make("code:OneLine-v0", **kwargs)


@pytest.mark.slow
@given(st.text(max_size=100))
@pytest.mark.parametrize("env_id", FORMATTED)
def test_any_text_is_answered(env_id, text):
    env = rollenv.make(env_id, action_format="bare")
    env.reset(0)
    result = env.step(text)
    assert result[2] is True
    assert result[4]["valid"] in (True, False)

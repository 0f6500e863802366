"""Policies that want the reward of generated tasks without the work, and agents that spoil what they are given."""

from __future__ import annotations

import collections
import json
import re
import time

import pytest
from available import variants

import rollenv
from rollenv.core.tools.calls import write_calls
from rollenv.envs.tools.generated.goals import LONGEST_MESSAGE, guesses, mentions, refuses

SUITES = ("Shop", "Office", "Files", "SQL", "Sheet", "Search")
IDS = [spec.id for suite in SUITES for spec in rollenv.list_envs(f"tools:{suite}-v0")]


def call(env, name, **arguments):
    """What a function answers."""
    text = env.step(write_calls([(name, arguments)], env.calls))[4]["tool_responses"][0]
    return json.loads(text) if text.startswith(("[", "{")) else text


def codes_of(env):
    """All codes in the documents that common words find."""
    words = "the of in is has by works head twin friend badge number"
    answers = [call(env, "search", query=word, top=10) for word in words.split()]
    found = sorted({one["id"] for answer in answers if isinstance(answer, list) for one in answer})
    return [code for key in found for code in re.findall(r"\b(?=\w*\d)[A-Z0-9]{7}\b", call(env, "open", id=key))]


def test_all_codes_of_a_library_are_no_answer():
    env = rollenv.make("tools:Search-v0-easy", max_turns=100)
    held = 0
    for seed in range(30):
        env.reset(seed)
        codes = " ".join(codes_of(env))
        assert len(codes) <= LONGEST_MESSAGE
        held += mentions(codes, env.current.answers[0])
        info = env.step(codes)[4]
        assert not info["success"], f"seed {seed}"
        assert info["metrics"]["partial"] == 0
    assert held > 15


@pytest.mark.combinations
@pytest.mark.parametrize("env_id", variants([one for one in IDS if not one.endswith(("-errors", "-long_context"))]))
def test_an_answer_among_others_of_its_kind_is_a_guess(env_id):
    env = rollenv.make(env_id, errors=0.0)
    tried = 0
    for seed in range(60):
        env.reset(seed)
        goals = [goal for goal in env.current.goals if goal.answers and not goal.refused]
        for goal in goals:
            rivals = list(map(str, goal.rivals(env.current.start)))
            assert any(mentions(rival, answer) for rival in rivals for answer in goal.answers), "not of its own kind"
            known = [env.current.question, *env.current.answers]
            other = next((rival for rival in rivals if guesses(rival, [rival], known)), None)
            if other is not None and not tried % 3:
                said = " ".join(each.done for each in env.current.goals)
                for move in env.current.plan[:-1]:
                    env.step(move if isinstance(move, str) else write_calls(list(move), env.calls))
                assert not env.step(f"{said} Or {other}?"[:-1])[4]["success"], f"seed {seed}"
                tried += 1
                break
            tried += 1
    assert tried


def test_what_the_request_names_may_be_repeated():
    assert guesses("Ada Berg, or Bo Lang", ["Ada Berg", "Bo Lang"], ["Ada Berg"])
    assert not guesses("Ada Berg; Bo Lang has moved", ["Ada Berg", "Bo Lang"], ["Ada Berg", "Move Bo Lang."])
    assert not guesses("It is 12.50 for 3", ["12.5", 7], ["12.50"])


@pytest.mark.combinations
@pytest.mark.parametrize("env_id", variants(IDS))
def test_requests_can_be_repeated_and_read_well(env_id):
    env = rollenv.make(env_id)
    for key in range(150):
        question = env.problem(key).question
        assert not refuses(question), question
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]|(?:f|tch)s\b", question), question


@pytest.mark.combinations
@pytest.mark.parametrize("suite", ["Shop", "Office", "Files"])
def test_what_is_missing_does_not_tell_that_something_is_to_be_refused(suite):
    env = rollenv.make(f"tools:{suite}-v0", missing="functions", goals=1)
    every = set(rollenv.make(f"tools:{suite}-v0").problem(0).tools)
    seen = collections.defaultdict(lambda: [0, 0])
    for key in range(600):
        problem = env.problem(key)
        seen[frozenset(every - set(problem.tools))][problem.goals[0].refused] += 1
    assert sum(map(max, seen.values())) < 0.64 * 600


@pytest.mark.combinations
@pytest.mark.parametrize("suite", ["Shop", "Office", "Files", "SQL"])
def test_the_request_does_not_tell_whether_it_is_forbidden(suite):
    """Guess from the kind of a request and the size of its last number, as counted in other tasks."""
    env = rollenv.make(f"tools:{suite}-v0-policy", goals=1)
    seen = collections.defaultdict(lambda: [0, 0])
    right = 0
    for key in range(1500):
        problem = env.problem(key)
        (goal,) = problem.goals
        numbers = re.findall(r"(?<![\w.-])\d+", problem.question)
        kind = (goal.act[0][0], len(numbers) and len(bin(int(numbers[-1]))))
        if key >= 1000:
            right += (seen[kind][1] > seen[kind][0]) == goal.refused
        else:
            seen[kind][goal.refused] += 1
    assert right < 0.64 * 500


@pytest.mark.parametrize("env_id", [one for one in IDS if one.endswith("-missing_parameters")])
def test_what_is_left_out_is_told_in_answer_to_any_question_for_it(env_id):
    env = rollenv.make(env_id)
    for seed, question in enumerate(("What should it be?", "Which one do you want?", "How much, or to what?") * 4):
        env.reset(seed)
        fact = next(goal.fact for goal in env.current.goals if goal.fact)
        assert env.step(question)[0] == fact.answer, f"seed {seed}"
        assert "a free cell" not in env.current.question  # any would do, and nothing would be left out


def test_cancelling_everything_is_hardly_paid():
    env = rollenv.make("tools:Shop-v0-easy", partial_reward=1.0, max_turns=50)
    paid = 0.0
    for seed in range(40):
        env.reset(seed)
        for key in list(env.current.start["orders"]):
            call(env, "cancel_order", order_id=key)
        paid += env.step("Done.")[1]
    assert paid < 2


def test_refusing_what_is_allowed_is_not_paid():
    env = rollenv.make("tools:Shop-v0-policy", partial_reward=0.5)
    for seed in range(40):
        env.reset(seed)
        if not any(goal.refused for goal in env.current.goals):
            for goal in env.current.goals[1:]:
                for name, arguments in goal.act:
                    call(env, name, **arguments)
            assert env.step("I cannot do that.")[1] == 0


@pytest.mark.parametrize("env_id", ["tools:Shop-v0", "tools:Tiny-v0"])
def test_schemas_that_an_agent_changes_are_its_own(env_id):
    env = rollenv.make(env_id)
    prompt, info = env.reset(0)
    for schema in info["tools"]:
        schema["function"]["name"] = "changed"
        schema["function"]["parameters"].clear()
    assert rollenv.make(env_id).reset(0)[0] == prompt


def test_a_sheet_full_of_long_formulas_is_read_in_time():
    env = rollenv.make("tools:Sheet-v0-easy", max_turns=100)
    env.reset(0)
    long = f"=SUM({','.join(['1'] * 146)})"
    for column in "EFGHIJKLMN":
        call(env, "set_cell", cell=f"{column}1", content=long)
        call(env, "fill_down", cell=f"{column}1", last_row=1000)
    began = time.process_time()
    env.step("Done.")
    assert time.process_time() - began < 20  # a second; minutes where each formula is read for each that names it


@pytest.mark.integration
def test_a_query_that_calls_functions_for_ever_is_stopped():
    env = rollenv.make("tools:SQL-v0-easy")
    env.reset(0)
    numbers = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 300000)"
    assert "takes too long" in call(env, "run_sql", query=f"{numbers} SELECT x FROM c ORDER BY hex(x) LIMIT 3")

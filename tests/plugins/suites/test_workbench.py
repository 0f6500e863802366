"""WorkBench: the published verdicts come out, in replay and in play."""

from __future__ import annotations

import ast
import copy
import gzip
import json
import random

import pytest

import rollenv
from rollenv.core.checker import check_env
from rollenv.core.tools.calls import write_calls
from rollenv.plugins.suites.workbench import CATEGORIES
from rollenv.plugins.suites.workbench.env import judged, parsed, queries, replay, verdict
from rollenv.plugins.suites.workbench.functions import WorkBench
from rollenv.plugins.suites.workbench.tables import TABLES, same, start

ALL = "tools:WorkBench-v0"


@pytest.fixture(autouse=True)
def folder(data):
    """The files."""
    return data("agentic/workbench")


@pytest.fixture
def stored(folder):
    """The stored answers with their verdicts."""
    with gzip.open(folder / "predictions_gold.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def finish(env, index, actions):
    """The last step of an episode."""
    env.reset(0, options={"index": index})
    for action in [*actions, "Done."]:
        result = env.step(action)
    return result


@pytest.mark.integration
def test_every_stored_answer_gets_its_verdict(stored):
    found = [verdict(query, calls, error).correct for _, _, _, query, calls, error, _ in stored]
    assert found == [correct for *_, correct in stored]
    assert len(found) == 3680


@pytest.mark.integration
def test_playing_gives_the_verdicts_of_replaying(stored):
    env = rollenv.make(ALL, max_turns=60)
    index_of = {query.text: index for index, query in enumerate(queries())}
    for _, _, _, query, calls, _, _ in random.Random(0).sample(stored, 600):
        told = verdict(query, calls)
        found = [call for call in map(parsed, ast.literal_eval(calls)) if not call.problem]
        actions = [write_calls([(call.name, call.arguments)]) for call in found]
        info = finish(env, index_of[query], actions)[4]
        assert (info["success"], info["metrics"]["side_effects"]) == (told.correct, int(told.side_effects))


@pytest.mark.integration
def test_the_published_calls_solve_every_query():
    idle = 0
    env = rollenv.make(ALL)
    for index in range(env.num_tasks()):
        env.reset(0, options={"index": index})
        result = env.step(env.oracle_action())
        if not result[2]:
            result = env.step(env.oracle_action())
        assert result[4]["success"]
        assert result[4]["metrics"] | {"calls": 0} == {"calls": 0, "invalid_calls": 0, "partial": 1, "side_effects": 0}
        idle += finish(env, index, [])[4]["success"]
    assert (env.num_tasks(), idle) == (690, 124)


def test_categories_divide_the_queries():
    sizes = [rollenv.make(f"{ALL}-{category}").num_tasks() for category in CATEGORIES]
    assert sizes == [120, 110, 80, 90, 210, 80]
    assert sum(sizes) == rollenv.make(ALL).num_tasks()


@pytest.mark.integration
@pytest.mark.parametrize("env_id", [ALL, f"{ALL}-multi_domain"])
def test_environments_keep_their_promises(env_id):
    check_env(env_id, episodes=8)


def test_toolkits_offer_what_a_query_needs():
    narrow, wide = rollenv.make(ALL, toolkits="domains"), rollenv.make(ALL)
    for index in range(0, narrow.num_tasks(), 7):
        names = {tool["function"]["name"] for tool in narrow.reset(0, options={"index": index})[1]["tools"]}
        assert len(wide.reset(0, options={"index": index})[1]["tools"]) == 27
        assert "company_directory_find_email_address" in names
        assert {call.name for call in map(parsed, queries()[index].answer)} <= names
        assert len(names) < 27 or len(queries()[index].toolkits) == 5
        assert finish(narrow, index, [write_calls(move) for move in narrow.problem(index).plan])[4]["success"]


STRANGE = [
    "",
    "()",
    "x",
    "\x00",
    "email.delete_email.func(",
    'email.delete_email(email_id="00000373")',
    'email.delete_email.func(email_id="00000373", email_id="00000373")',
    'email.delete_email.func(**{"email_id": "00000373"}, email_id="00000373")',
    'email.delete.email_func(email_id="00000373")',
    'customer.relationship_manager_delete_customer.func(customer_id="00000001")',
    'email.delete_email.func(wrong="00000373")',
    "email.delete_email.func(email_id=email)",
    'lambda: email.delete_email.func(email_id="00000373")',
    'await email.delete_email.func(email_id="00000373")',
    '[email.delete_email.func(email_id="00000373") for _ in "a"]',
    'email.delete_email.func(email_id="00000373"), email.delete_email.func(email_id="1", email_id="2")',
    'calendar.update_event.func(event_id=calendar, field="x", new_value="y")',
    'email.delete_email.func("00000373", "x")',
    "email.delete_email.func(email_id=EMAILS)",
    'email.delete_email.func(email_id=open("/etc/passwd").read())',
    'email.delete_email.func(email_id="0" * 10**10)',
    'email.state.func(x="y")',
    'email.__init__.func(x="y")',
    '__import__("os").system.func("x")',
    "(lambda: 1)()",
    "[" * 5000,
    "-" * 50_000 + "1",
    "f(" * 3000 + ")" * 3000,
    'email.send_email.func(recipient="a@b.c", subject="s", body="line\nline")',
    'calendar.create_event.func(event_name="x", participant_email=1, event_start="y", duration="z")',
    'calendar.create_event.func("", "", "", "")',
    'project_management.create_task.func(task_name="x", assigned_to_email="x@y.z", list_name="Backlog", '
    'due_date="2023-12-01", board="Design")',
]


@pytest.mark.parametrize("text", STRANGE)
def test_strange_calls_change_nothing(text):
    assert same(replay([text]), start(), fold=False)


def test_a_stored_call_may_be_written_as_python_allows():
    one = 'email.delete_email.func(email_id="00000373")'
    assert same(replay(["email . delete_email.func ( email_id='0000' '0373', )"]), replay([one]), fold=False)
    assert parsed(one).problem == ""


def test_case_counts_only_in_names_of_lists_boards_and_statuses():
    calls = 'customer_relationship_manager.update_customer.func(customer_id="{}", field="{}", new_value="{}")'
    key = next(iter(start()["customers"]))
    one, other = (replay([calls.format(key, "notes", text)]) for text in ("Called", "CALLED"))
    assert same(one, other)
    assert not same(one, other, fold=False)
    assert same(replay([calls.format(key, "status", "won")]), start())
    assert not same(replay([calls.format(key, "status", "Won")]), start(), fold=False)


def test_a_verdict_needs_no_error_and_names_side_effects():
    query = next(each for each in queries("email") if each.answer)
    assert verdict(query.text, query.answer) == (right := judged(start(), start()))
    assert right.correct
    assert verdict(query.text, query.answer, "Context window exceeded").correct is False
    other = 'email.delete_email.func(email_id="00000353")'
    wrong = verdict(query.text, [*query.answer, other])
    assert (wrong.correct, wrong.side_effects) == (False, True)
    assert verdict(query.text, []).side_effects is False
    for bad in ("x", "1", "[1]", [1]):
        with pytest.raises(rollenv.UsageError):
            verdict(query.text, bad)
    with pytest.raises(rollenv.UsageError):
        verdict("no such query", [])


def test_functions_answer_anything():
    rng = random.Random(3)
    office = WorkBench()
    known = [row[column] for table, (_, column) in TABLES.items() for row in list(office.rows(table))[:3]]
    texts = [*known, "", "x" * 20_000, "2023-11-30", "\udcff", "status", "a.*(b", "'; DROP TABLE emails; --", 7, -1.5]
    before = copy.deepcopy(office.data())
    for _ in range(3000):
        name = rng.choice(list(WorkBench.functions()))
        fields = list(WorkBench.functions()[name].model.model_fields)
        arguments = {field: rng.choice([*texts, None, [], {}, True]) for field in fields if rng.random() < 0.8}
        answer = office.call(name, arguments)
        assert isinstance(answer.text, str)
    json.dumps(office.data())
    assert WorkBench().data() == before


def test_an_episode_goes_on_elsewhere():
    one, other = rollenv.make(ALL), rollenv.make(ALL)
    for index in range(0, one.num_tasks(), 11):
        plan = [[call] for move in one.problem(index).plan for call in move]
        one.reset(0, options={"index": index})
        for move in plan[:1]:
            one.step(write_calls(move))
        state = json.dumps(one.get_state())
        assert len(state) < 50_000
        other.set_state(json.loads(state))
        assert other.render() == one.render()
        for move in plan[1:]:
            other.step(write_calls(move))
        assert other.step("Done.")[4]["success"]


def test_environments_share_nothing():
    one, other = rollenv.make(ALL), rollenv.make(ALL)
    for env in (one, other):
        env.reset(0, options={"index": 0})
    before = other.render()
    one.step(write_calls([("email_delete_email", {"email_id": "00000373"})]))
    assert one.render() != before
    assert other.render() == before
    assert other.step(write_calls([("email_delete_email", {"email_id": "00000373"})]))[0].count("successfully") == 1

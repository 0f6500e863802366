"""BFCL: our verdicts are those of bfcl-eval, and its services are isolated."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import rollenv
from rollenv.agents.base import OracleAgent
from rollenv.bench import run, suite
from rollenv.core.checker import check_env
from rollenv.core.tools.calls import CALL_FORMS, write_calls
from rollenv.plugins.suites.bfcl import SINGLE
from rollenv.plugins.suites.bfcl.single import answers, check, entries, first_right

ROOT = Path(__file__).parents[3]
CALLING = [category for category in SINGLE if category != "irrelevance"]
MULTI = "tools:BFCL-v4-multi_turn_base"


@pytest.fixture(autouse=True)
def _files(data):
    data("bfcl/BFCL_v4_multi_turn_base.json")


@pytest.fixture
def services():
    """bfcl-eval's classes: from this environment, or from the one of the peers."""
    before = list(sys.path)
    sys.path += map(str, (ROOT / ".bench" / "bfcl" / "lib").glob("python3*/site-packages"))
    if not all(need.here for need in rollenv.spec(MULTI).needs):
        sys.path[:] = before
        pytest.skip("`make bfcl` puts bfcl-eval into .bench/bfcl")
    yield
    sys.path[:] = before


def theirs(cases):
    """The verdicts of bfcl-eval's checkers."""
    python = ROOT / ".bench" / "bfcl" / "bin" / "python"
    if not python.exists():
        pytest.skip("`make bfcl` puts bfcl-eval into .bench/bfcl")
    script = [str(python), str(Path(__file__).with_name("bfcl_verdicts.py"))]
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        script, input=json.dumps(cases), capture_output=True, text=True, timeout=500, env=environ | {"TZ": "UTC"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def tasks(category):
    """Descriptions, right calls and answers of all tasks."""
    for entry in entries(category):
        answer = answers(category)[entry["id"]]
        about = {each["name"]: each for each in entry["function"]}
        right = [(name, first_right(about[name], possible)) for each in answer for name, possible in each.items()]
        yield entry["function"], right, answer


def play(env, index, actions):
    """The last step of an episode."""
    env.reset(0, options={"index": index})
    for action in actions:
        result = env.step(action)
        if result[2] or result[3]:
            return result
    raise AssertionError("the episode goes on")


def strayed(calls, rng):
    """The calls with something else in one place."""
    calls = copy.deepcopy(calls)
    arguments = rng.choice(calls)[1]
    key = rng.choice(list(arguments) or ["extra"])
    value, kind = arguments.get(key), rng.randrange(8)
    if kind == 0:
        calls.append(copy.deepcopy(rng.choice(calls)))
    elif kind == 1:
        calls.pop(rng.randrange(len(calls)))
    elif kind == 2:
        rng.shuffle(calls)
    elif kind == 3:
        arguments.pop(key, None)
    elif kind == 4:
        arguments[key] = rng.choice([None, "", [], {}, [""], [{}], True, 1, 0, -1.5, "x", ["a", 1], {"a": {"b": [1]}}])
    elif isinstance(value, str):
        others = [value.upper(), value + ".", value.replace(" ", "_"), value + "x", [value], "'" + value]
        arguments[key] = rng.choice(others)
    elif isinstance(value, list):
        arguments[key] = rng.choice([value[::-1], [*value, value[:1]], [*map(str, value)]])
    elif isinstance(value, dict):
        arguments[key] = rng.choice([dict(list(value.items())[1:]), {**value, "z": 1}])
    elif isinstance(value, int | float):
        arguments[key] = rng.choice([float(value), int(value), value + 1, str(value)])
    return calls


@pytest.mark.parametrize("form", CALL_FORMS)
@pytest.mark.parametrize("category", SINGLE)
def test_the_answers_are_right_in_every_form(category, form):
    env = rollenv.make(f"tools:BFCL-v4-{category}", calls=form)
    for index in range(env.num_tasks()):
        env.reset(0, options={"index": index})
        assert env.step(env.oracle_action())[4]["success"]


@pytest.mark.parametrize("category", CALLING)
def test_calls_that_stray_from_the_answers_are_wrong(category):
    for functions, right, answer in tasks(category):
        name, arguments = right[0]
        for wrong in (
            [],
            [*right, right[0]],
            [("other", arguments), *right[1:]],
            [(name, {**arguments, "no_such_argument": 1}), *right[1:]],
            [(name, {k: {"a": object()} for k in arguments} or {"x": 1}), *right[1:]],
        ):
            assert check(functions, right, answer) == ""
            assert check(functions, wrong, answer) != ""


@pytest.mark.integration
def test_verdicts_on_single_turns_are_those_of_bfcl_eval():
    rng = random.Random(0)
    cases, ours = [], []
    for category in CALLING:
        every = list(tasks(category))
        tried = [(task, task[1]) for task in every]
        tried += [(task, strayed(task[1], rng)) for task in every * 3]
        for (functions, _, answer), calls in tried:
            cases.append((functions, [{name: arguments} for name, arguments in calls], answer, category))
            ours.append(check(functions, calls, answer) == "")
    assert theirs({"single": cases})["single"] == ours
    assert 0.3 < sum(ours) / len(ours) < 0.8


def test_dotted_names_and_underscores_are_the_same_function():
    env = rollenv.make("tools:BFCL-v4-parallel", calls="python")
    for separator in "._":
        call = f"spotify{separator}play(artist={{!r}}, duration={{}})"
        action = f"[{call.format('Maroon 5', 15)}, {call.format('taylor swift', 20)}]"
        assert play(env, 0, [action])[1] == 1


def test_a_constant_answer_wins_only_where_no_call_is_right():
    for category in SINGLE:
        env = rollenv.make(f"tools:BFCL-v4-{category}")
        won = [play(env, index, ["No."])[4]["success"] for index in range(env.num_tasks())]
        assert set(won) == {category == "irrelevance"}


def test_schemas_are_json_schemas_with_names_for_endpoints():
    kinds = {"object", "array", "string", "integer", "number", "boolean", None}

    def walk(schema):
        assert schema.get("type") in kinds
        for each in schema.get("properties", {}).values():
            walk(each)
        if "items" in schema:
            walk(schema["items"])

    for category in SINGLE:
        env = rollenv.make(f"tools:BFCL-v4-{category}")
        for index in range(env.num_tasks()):
            for tool in env.reset(0, options={"index": index})[1]["tools"]:
                assert tool["function"]["name"].replace("_", "").replace("-", "").isalnum()
                walk(tool["function"]["parameters"])


@pytest.mark.combinations
@pytest.mark.parametrize("category", SINGLE)
def test_single_turns_keep_their_promises(category):
    check_env(f"tools:BFCL-v4-{category}", episodes=8)


# -- several turns -----------------------------------------------------------------------------------------------------


def written(moves, form="hermes"):
    """A conversation's moves as actions: a list for each request, of lists of calls for each reply."""
    return [action for replies in moves for action in [*(write_calls(calls, form) for calls in replies), "Done."]]


def moves_of(env, index):
    """The right moves of a conversation."""
    plan = env.problem(index).plan
    found = [[]]
    for move in plan:
        if isinstance(move, str):
            found.append([])
        else:
            found[-1].append(list(move))
    return found[:-1]


def drifted(moves, rng):
    """A conversation with something else in one place."""
    moves = copy.deepcopy(moves)
    places = [reply for replies in moves for reply in replies]
    reply = rng.choice(places)
    name, arguments = reply[rng.randrange(len(reply))]
    kind = rng.randrange(5)
    if kind == 0:
        reply.pop(rng.randrange(len(reply)))
    elif kind == 1:
        reply.append((name, arguments))
    elif kind == 2:
        rng.shuffle(reply)
    elif kind == 3 and arguments:
        key = rng.choice(list(arguments))
        arguments[key] = arguments[key] + rng.choice([1, 2]) if isinstance(arguments[key], int) else "other"
    else:
        other = rng.choice(places)
        other.insert(rng.randrange(len(other) + 1), (name, arguments))
    return [[each for each in replies if each] for replies in moves]


@pytest.mark.parametrize("form", CALL_FORMS)
def test_right_conversations_are_right(services, form):
    env = rollenv.make(MULTI, calls=form)
    for index in range(env.num_tasks()):
        result = play(env, index, written(moves_of(env, index), form))
        assert result[4]["success"]
        assert result[4]["metrics"]["partial"] == 1
        assert result[4]["metrics"]["side_effects"] == 0


def test_members_of_a_group_are_copies_that_play_on(services):
    result = run(suite(MULTI), OracleAgent(), n=10, k=3, floors=False)
    assert result.total.pass_all[3][0] == 1.0


def test_conversations_without_a_call_are_wrong(services):
    env = rollenv.make(MULTI)
    for index in range(env.num_tasks()):
        assert not play(env, index, ["Done."] * 8)[4]["success"]


@pytest.mark.integration
def test_verdicts_on_conversations_are_those_of_bfcl_eval(services):
    rng = random.Random(1)
    env = rollenv.make(MULTI)
    cases, ours = [], []
    for index, entry in enumerate(entries("multi_turn_base")):
        right = moves_of(env, index)
        for moves in (right, drifted(right, rng), drifted(right, rng), drifted(right, rng)):
            ours.append(play(env, index, written(moves))[4]["success"])
            calls = [[[write_calls([call], "python")[1:-1] for call in reply] for reply in turn] for turn in moves]
            cases.append((entry, calls, answers("multi_turn_base")[entry["id"]]))
    assert theirs({"multi": cases})["multi"] == ours
    assert 0.3 < sum(ours) / len(ours) < 0.8


def test_several_turns_keep_their_promises(services, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*sys.path[-1:], os.environ.get("PYTHONPATH", "")]))
    check_env(MULTI, episodes=8)


def test_a_request_may_take_twenty_replies(services):
    env = rollenv.make(MULTI)
    first = write_calls([("pwd", {})])
    assert "pwd" in str(env.reset(0, options={"index": 0})[1]["tools"])
    for _ in range(20):
        assert env.step(first)[3] is False
    assert env.step("Done.")[2] is False
    for _ in range(20):
        assert env.step(first)[3] is False
    _, reward, terminated, truncated, info = env.step(first)
    assert (reward, terminated, truncated, info["success"]) == (0, False, True, False)


HOSTILE = [
    ("power", {"base": 9, "exponent": 10**9}),
    ("power", {"base": 10**300, "exponent": 900}),
    ("round_number", {"number": 5, "decimal_places": -(10**9)}),
    ("logarithm", {"value": 2, "base": 3, "precision": 10**9}),
    ("square_root", {"number": 2, "precision": 10**12}),
    ("cp", {"source": "document", "destination": "document"}),
    ("mv", {"source": "document", "destination": "document"}),
    ("_load_scenario", {"scenario": {}}),
    ("__class__", {}),
    ("objects", {}),
    ("echo", {"content": "x" * 1_000_000, "file_name": "a"}),
    ("echo", {"content": "\ud800", "file_name": "\udcff"}),
    ("cat", {"file_name": ["a"]}),
    ("ls", {"a": {"b": [None]}}),
    ("cd", {"folder": None}),
    ("mkdir", {"dir_name": {}}),
    ("pwd", {"self": 1}),
    *(("mkdir", {"dir_name": json.loads("[" * depth + "]" * depth)}) for depth in (49, 50, 51, 300, 900)),
]


def test_hostile_calls_are_answered(services):
    env = rollenv.make(MULTI)
    both = [i for i, each in enumerate(entries("multi_turn_base")) if "MathAPI" in each["involved_classes"]]
    for index in (0, both[0]):
        env.reset(0, options={"index": index})
        for call in HOSTILE:
            result = env.step(write_calls([call]))
            assert len(result[0]) < 30_000
            json.dumps(env.get_state())
            env.render()
            if result[3]:
                env.reset(0, options={"index": index})


def test_folders_in_folders_stay_few(services):
    env = rollenv.make(MULTI)
    env.reset(0, options={"index": 0})
    calls = [("mkdir", {"dir_name": "d0"})]
    for depth in range(60):
        calls.append(("cp", {"source": f"d{depth}", "destination": f"d{depth + 1}"}))
        calls.append(("mv", {"source": f"d{depth}", "destination": f"d{depth + 1}"}))
    answers_to = []
    for at in range(0, len(calls), 8):
        answers_to += env.step(write_calls(calls[at : at + 8]))[4]["tool_responses"]
    assert any("too many" in each for each in answers_to)
    assert len(env.render()) < 200_000


def test_a_conversation_goes_on_elsewhere(services):
    one, other = rollenv.make(MULTI), rollenv.make(MULTI)
    for index in range(0, one.num_tasks(), 9):
        one.reset(0, options={"index": index})
        one.step(one.oracle_action())
        other.set_state(json.loads(json.dumps(one.get_state())))
        while True:
            action = one.oracle_action()
            result = one.step(action)
            assert other.step(action) == result
            if result[2]:
                assert result[4]["success"]
                break


def test_episodes_share_nothing(services):
    env = rollenv.make(MULTI)
    others = [rollenv.make(MULTI) for _ in range(20)]
    for each in [env, *others]:
        each.reset(0, options={"index": 0})
    before = others[0].render()
    env.step(write_calls([("mkdir", {"dir_name": "mine"})]))
    assert "mine" in env.render()
    assert all(each.render() == before for each in others)


def test_calculations_leave_the_precision_of_the_process_alone(services):
    mpmath = pytest.importorskip("mpmath")
    env = rollenv.make(MULTI)
    index = next(i for i, e in enumerate(entries("multi_turn_base")) if "MathAPI" in e["involved_classes"])
    env.reset(0, options={"index": index})
    digits = mpmath.mp.dps
    said = env.step(write_calls([("logarithm", {"value": 2, "base": 3, "precision": 50})]))[0]
    assert "0.6309297535714574370995271143427608542995856401318" in said
    assert mpmath.mp.dps == digits


def test_without_bfcl_eval_the_message_says_what_to_do(monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "bfcl_eval"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    need = next(need for need in rollenv.spec(MULTI).needs if str(need) == "bfcl-eval")
    assert not need.here
    assert need.hint == "pip install --no-deps bfcl-eval==2026.3.23 mpmath"

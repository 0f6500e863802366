"""DBBench: AgentBench's stored hashes, its rules for answers, and policies that want the reward without the work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from played import to_the_end

import rollenv
from rollenv.core.env import Env
from rollenv.core.tools.calls import write_calls
from rollenv.envs.tools.sql.database import Database, SqlError, data_of, table_image
from rollenv.plugins.suites.dbbench.env import answer_is_right, hash_of, kind_of, rows_of, stored_hash, table_hash

Data = Callable[[str], Path]


@pytest.fixture
def env(data: Data) -> Env:
    data("agentic/agentbench_db/standard.jsonl")
    return rollenv.make("tools:DBBench-v0")


def play(env: Env, index: int, *calls: tuple[str, dict[str, object]]) -> dict[str, object]:
    env.reset(0, options={"index": index})
    for call in calls:
        *_, terminated, truncated, info = env.step(write_calls([call]))
        if terminated or truncated:
            return info
    raise AssertionError("the episode is not over")


def answer(value: object) -> tuple[str, dict[str, object]]:
    return "commit_final_answer", {"answers": value}


@pytest.mark.parametrize(
    ("given", "label", "right"),
    [
        (["12"], ["12.005"], True),
        (["12"], ["12.02"], False),
        ("1,234", ["1234.0"], True),
        ("12%", [12], True),
        (["none"], ["0"], True),
        ([None], ["null"], True),
        ("['b', 'a']", ["a", "b"], True),
        (["a", "a", "b"], ["b", "a"], True),
        (["a"], ["a", "b"], False),
        ([1, 2, 2], ["2", "1", "2"], True),
        ([1, 2], ["2", "1", "2"], False),
        ("[('x',)]", ["x"], True),
        ("[it's, broken]", ["it's", "other"], False),
        ("[" * 10_000, ["x"], False),
        (["A"], ["a"], False),
    ],
)
def test_answers_are_compared_as_upstream(given: object, label: object, right: bool) -> None:
    assert answer_is_right(given, label) is right


def test_the_hash_is_of_rows_in_any_order_and_leaves_nothing_out_but_null() -> None:
    one, two = {"a": "x", "b": None}, {"a": "y", "b": "z"}
    assert table_hash(["a", "b"], [one, two]) == table_hash(["a", "b"], [two, one])
    assert table_hash(["a", "b"], [one]) == table_hash(["a"], [one]) != table_hash(["a"], [{"a": "X"}])
    assert table_hash(["a"], []) is None


def test_plain_sqlite_gives_195_of_the_200_stored_hashes(data: Data) -> None:
    rows = rows_of(data("agentic/agentbench_db/standard.jsonl"), "all")
    others = []
    for index, row in enumerate(rows):
        if kind_of(row) == "select":
            continue
        table = row["table"]
        columns = [(column["name"], "TEXT") for column in table["table_info"]["columns"]]
        cells = [[str(cell) for cell in each] for each in table["table_info"]["rows"]]
        database = Database(table_image(table["table_name"], columns, cells))
        try:
            database.execute(row["label"][0])
        except SqlError:
            others.append(index)
            continue
        if hash_of(row, data_of(database.image)) != stored_hash(row):
            others.append(index)
    # Two write \n in a string (164, 242), one names a table with a digit first (180), one compares é with e (206), and
    # one hash (225) is of another table than the data set has. The environment's MySQL gets all but the last.
    assert others == [164, 180, 206, 225, 242]


@pytest.mark.slow
def test_the_oracle_solves_all_but_the_task_whose_hash_is_of_another_table(env: Env) -> None:
    lost = []
    for index in range(env.num_tasks()):
        env.reset(0, options={"index": index})
        if not to_the_end(env)[-1][4]["success"]:
            lost.append(index)
    assert lost == [225]


def test_an_answer_alone_does_not_change_a_table(env: Env) -> None:
    lazy = [play(env, index, answer(["done"]))["success"] for index in range(100, 300)]
    assert not any(lazy)


def test_deleting_everything_is_a_wrong_end_of_that_episode_alone(env: Env) -> None:
    env.reset(0, options={"index": 105})
    other = env.spawn(same_state=True)
    wipe = ("execute_sql", {"query": "DELETE FROM Filmography"})
    info = play(env, 105, wipe, answer("x"))
    assert info["success"] is False
    assert info["metrics"]["side_effects"] > 10
    assert other.step(write_calls([("execute_sql", {"query": "SELECT count(*) FROM Filmography"})]))[0].count("21")
    assert play(env, 105, ("execute_sql", {"query": "DROP TABLE Filmography"}), answer(["x"]))["success"] is False


def test_an_answer_ends_the_task_and_calls_after_it_do_nothing(env: Env) -> None:
    env.reset(0, options={"index": 0})
    label = env.unwrapped.rows[0]["label"]
    calls = [answer(["wrong"]), answer(list(label))]
    *_, terminated, _, info = env.step(write_calls(calls))
    assert terminated
    assert info["success"] is False
    assert len(info["tool_responses"]) == 2


def test_messages_are_answered_until_the_turns_are_used_up(env: Env) -> None:
    env.reset(0, options={"index": 0})
    results = [env.step("The answer is Women +60kg Bronze.") for _ in range(15)]
    assert [result[3] for result in results] == [False] * 14 + [True]
    assert results[-1][1] == 0
    assert results[-1][4]["success"] is False
    assert "commit_final_answer" in results[0][0]


@pytest.mark.parametrize("value", [{"a": 1}, [["x"]], 5, None, ["x" * 200_000]])
def test_answers_of_wrong_types_are_errors_to_the_agent(env: Env, value: object) -> None:
    env.reset(0, options={"index": 0})
    observation, _, terminated, _, info = env.step(write_calls([answer(value)]))
    assert "error" in observation
    assert not terminated
    assert info["valid"]  # it could be read
    assert env.unwrapped.failed == 1


@pytest.mark.parametrize("kind", ["select", "insert", "update"])
def test_kinds_have_a_hundred_tasks_each(env: Env, kind: str) -> None:
    assert rollenv.make(f"tools:DBBench-v0-{kind}").num_tasks() == 100

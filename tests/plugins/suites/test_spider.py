"""Spider through InterCode: the rewards that it published, its rule for them, and databases that nobody shares."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import rollenv
from rollenv.core.env import Env
from rollenv.core.tools.calls import write_calls
from rollenv.envs.tools.sql.database import SqlError
from rollenv.plugins.suites.mysql import MySql
from rollenv.plugins.suites.spider.env import databases, intercode_reward, kendall_tau, row_texts

Data = Callable[[str], Path]
_SPIDER = "agentic/intercode/sql/spider"
_TURNS = "agentic/intercode/results/sql/gpt-4/ic_sql_multiturn_gpt-4_10_turns.json"


@pytest.fixture
def env(data: Data) -> Env:
    data(_SPIDER)
    return rollenv.make("tools:Spider-v0")


def sql(query: str) -> str:
    return write_calls([("execute_sql", {"query": query})])


@pytest.mark.integration
def test_the_published_rewards_come_out(data: Data) -> None:
    stored = databases(data(f"{_SPIDER}/ic_spider_dbs.sql"))
    questions = json.loads(data(f"{_SPIDER}/ic_spider_dev.json").read_text())
    connections = {name: MySql(each.image, each.text_columns) for name, each in stored.items()}
    env = rollenv.make("tools:Spider-v0", empty=True).unwrapped

    def rows(name: str, query: str) -> list[str] | None:
        database = connections[name]
        try:
            result = database.execute(query)
        except SqlError:
            return None
        database.image = stored[name].image  # the next one finds it as it was
        return row_texts(result, query, stored[name].floats) if result.columns else None

    turns, others = 0, []
    for key, task in json.loads(data(_TURNS).read_text()).items():
        question = questions[int(key)]
        if stored[question["db"]].empty:
            continue
        gold = env.problem(int(key)).backend.gold.rows
        history = task["turn_history"]
        for action, reward in zip(history["actions"], history["rewards"], strict=True):
            turns += 1
            given = rows(question["db"], action)
            ours = 0.0 if given is None else intercode_reward(given, gold)
            if not math.isclose(ours, reward, abs_tol=1e-9):
                others.append(key)
    assert turns == 3766
    # SQLite carries out what MySQL refused: LIMIT in a subquery of IN, a reserved word, groups of an outer column.
    assert others == ["413", "413", "833", "991"]


def test_the_order_counts_if_asked_for() -> None:
    rows = [f"({n},)" for n in range(10, 20)]
    assert intercode_reward(rows, rows) == intercode_reward(rows, rows, ordered=True) == 1
    assert intercode_reward(rows[::-1], rows) == 1
    assert intercode_reward(rows[::-1], rows, ordered=True) == -1
    assert intercode_reward([], []) == 1
    assert intercode_reward([], rows) == intercode_reward(rows, []) == 0
    assert intercode_reward(["a", "a"], ["a"]) == 0.5
    assert intercode_reward(["a", "b", "c"], ["a", "b", "d"], ordered=True) == 0.5


def test_kendalls_tau_equals_its_definition() -> None:
    rng = random.Random(3)
    for _ in range(200):
        size = rng.randint(1, 12)
        first, second = ([rng.choice("abcde") for _ in range(size)] for _ in range(2))
        pairs = [(i, j) for i in range(size) for j in range(i)]
        signs = [
            ((first[i] > first[j]) - (first[i] < first[j]), (second[i] > second[j]) - (second[i] < second[j]))
            for i, j in pairs
        ]
        left, right = (sum(sign[side] != 0 for sign in signs) for side in (0, 1))
        tau = kendall_tau(first, second)
        if not left or not right:
            assert math.isnan(tau)
        else:
            assert tau == pytest.approx(sum(a * b for a, b in signs) / math.sqrt(left * right))


@pytest.mark.integration
def test_the_oracle_solves_every_question_whose_tables_have_rows(env: Env) -> None:
    assert env.num_tasks() == 972
    for index in range(env.num_tasks()):
        env.reset(0, options={"index": index})
        env.step(env.oracle_action())
        result = env.step(env.oracle_action())
        assert (result[1], result[4]["success"]) == (1, True), index


def test_only_the_last_result_counts_and_a_failed_statement_has_none(env: Env) -> None:
    env.reset(0, options={"index": 0})
    gold = env.unwrapped.questions[0]["gold"]
    assert env.step(sql(gold))[4]["metrics"]["score"] == 1
    assert env.step(sql("SELECT nothing FROM nowhere"))[4]["metrics"]["score"] == 0
    env.step(sql(gold))
    env.step(sql("UPDATE people SET Name = 'x'"))
    result = env.step(write_calls([("submit", {})]))
    assert result[2]
    assert result[1] == 0


def test_part_of_the_rows_is_part_of_the_reward(env: Env) -> None:
    env.reset(0, options={"index": 0})
    env.step(sql(f"{env.unwrapped.questions[0]['gold']} LIMIT 2"))
    reward = env.step(write_calls([("submit", {})]))[1]
    assert 0 < reward < 1


def test_writes_stay_in_their_episode_and_states_bring_them_back(env: Env) -> None:
    env.reset(0, options={"index": 0})
    other = env.spawn(same_state=True)
    env.step(sql("DELETE FROM poker_player"))
    third = rollenv.make("tools:Spider-v0")
    third.set_state(json.loads(json.dumps(env.get_state())))
    count = sql("SELECT count(*) FROM poker_player")
    assert "(0,)" in env.step(count)[0]
    assert "(0,)" in third.step(count)[0]
    assert "(5,)" in other.step(count)[0]
    env.reset(0, options={"index": 0})
    assert "(5,)" in env.step(count)[0]


def test_settings_add_the_empty_databases_and_take_what_mysql_refuses(data: Data) -> None:
    data(_SPIDER)
    assert rollenv.make("tools:Spider-v0", empty=True).num_tasks() == 1034
    strict, lenient = (rollenv.make("tools:Spider-v0", strict=each) for each in (True, False))
    wanted = [
        (each.reset(0, options={"index": 52}), bool(each.unwrapped.current.backend.gold.rows))[1]
        for each in (strict, lenient)
    ]
    assert wanted == [False, True]

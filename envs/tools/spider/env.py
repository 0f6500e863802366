"""Spider's questions as an environment."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollenv.core import StepResult
from rollenv.envs.tools.base import ToolEnv
from rollenv.envs.tools.problem import Judgement, Problem, Reminder
from rollenv.envs.tools.spider import NEED
from rollenv.envs.tools.spider.databases import Stored, databases
from rollenv.envs.tools.spider.grading import intercode_reward, row_texts
from rollenv.envs.tools.sql.data import random_query
from rollenv.envs.tools.sql.database import SqlBackend
from rollenv.envs.tools.sql.mysql import MySql
from rollenv.tools.backend import ToolError, tool
from rollenv.tools.calls import write_calls

_POLICY = (
    "You work with a MySQL database to answer a question. Execute one SQL statement at a time; SHOW TABLES and "
    "DESCRIBE show what there is. The answer is the result of the last statement before you submit."
)
_REMINDER = "No function was called. Call execute_sql, or submit when the last result is the answer."
_EMPTY = "SELECT 1 FROM (SELECT 1) AS no_rows WHERE 1 = 0"
#: Questions, counted in the file from 0, whose gold query MySQL refuses: for InterCode its result is empty.
_REFUSED = frozenset((54, 83, 164, 178, 225, 301, 525, 710, 798, 802, 803, 850, 967))


class Gold(NamedTuple):
    """The wanted result."""

    query: str
    rows: tuple[str, ...]


class SpiderBackend(SqlBackend):
    """A database, and how good the last result was.

    Args:
        stored: the database at the start.
        ordered: whether the order of rows counts.
    """

    def __init__(self, stored: Stored, gold: Gold, ordered: bool = False):
        super().__init__(MySql(stored.image, stored.text_columns), {"score": 0.0, "match": False})
        self.stored, self.gold, self.ordered = stored, gold, ordered

    @tool
    def execute_sql(self, query: str) -> str:
        """Execute one SQL statement in the database and see its result.

        Args:
            query: the statement.
        """
        self._going_on()
        self.state |= {"score": 0.0, "match": False}
        result = self.query(query)
        if not result.columns:
            return f"{result.changed} rows changed"
        rows = row_texts(result, query, self.stored.floats)
        self.state["score"] = intercode_reward(rows, self.gold.rows, self.ordered)
        self.state["match"] = execution_match(rows, self.gold)
        return f"[{', '.join(rows)}]"

    @tool
    def submit(self) -> str:
        """Submit the result of the last statement as the answer; this ends the task."""
        self._going_on()
        self.state["submitted"] = True
        return "Submitted."

    def _going_on(self) -> None:
        if "submitted" in self.state:
            raise ToolError("the answer is submitted already; the task is over")

    def restore(self, snapshot: Any) -> None:
        """A failed statement has no result, so that it counts as the last one too."""
        super().restore(snapshot)
        if "submitted" not in self.state:
            self.state |= {"score": 0.0, "match": False}

    def data(self) -> dict[str, Any]:
        """Without the tables as long as nothing in them has changed."""
        return dict(self.state) if self.database.image is self.stored.image else super().data()

    def load(self, data: Mapping[str, Any]) -> None:
        if "tables" in data:
            super().load(data)
        else:
            self.database.image, self.state = self.stored.image, json.loads(json.dumps(data))


class SpiderEnv(ToolEnv):
    """Questions over databases, answered with SQL: Spider's development set as InterCode plays it.

    The reward is InterCode's: the share of common rows in all rows of the last result and of the gold query's.
    ``info["metrics"]`` has ``score``, the same of the last result so far, and ``execution_match``, Spider's measure.

    Args:
        empty: also the questions over ``wta_1``, whose tables have no rows.
        ordered: multiply the reward with how far common rows are in the gold query's order, as InterCode's current
            code does; the results that it published do not have this factor.
        strict: where MySQL refuses the gold query (13 questions), an empty result is wanted, as upstream.
        settings: see :class:`~rollenv.envs.tools.base.ToolEnv`.
    """

    judged_when_cut = True

    def __init__(self, *, empty: bool = False, ordered: bool = False, strict: bool = True, **settings: Any):
        self.ordered = ordered
        folder = NEED.found()
        self.dump = folder / "ic_spider_dbs.sql"
        self.questions = questions(folder / "ic_spider_dev.json", self.dump, empty)
        self.refused = _REFUSED if strict else frozenset[int]()
        self.tasks = len(self.questions)
        super().__init__(**settings)

    def problem(self, key: int) -> Problem:
        row = self.questions[key]
        gold = _gold(self.dump, row["db"], _EMPTY if row["number"] in self.refused else row["gold"])
        backend = SpiderBackend(databases(self.dump)[row["db"]], gold, self.ordered)
        return Problem(
            question=f"The database is {row['db']}. {row['query']}",
            backend=backend,
            plan=[[("execute_sql", {"query": gold.query})], [("submit", {})]],
            user=Reminder(_REMINDER),
            policy=_POLICY,
            category=row["hardness"],
            before=backend.data(),
        )

    def judge(self, problem: Problem) -> Judgement:
        score = float(problem.backend.state["score"])
        return Judgement(score == 1, max(0.0, score), int("tables" in problem.backend.data()))

    def sample_random_action(self) -> str:
        """A query that looks at a table, or, rarely, the end."""
        if self.action_rng.random() < 0.1:
            return write_calls([("submit", {})], self.calls)
        image = databases(self.dump)[self.questions[self.key]["db"]].image
        return write_calls([("execute_sql", {"query": random_query(image, self.action_rng)})], self.calls)

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        state = self.current.backend.state
        *result, told = super()._after(ended or "submitted" in state, valid, info)
        numbers = {"score": state["score"], "execution_match": float(state["match"])}
        told["metrics"] = {**told.get("metrics", {}), **numbers}
        return (*result, told)  # type: ignore[return-value]


def execution_match(rows: Sequence[str], gold: Gold) -> bool:
    """Return whether the rows are the gold query's, in its order if it has one."""
    if "order by" in gold.query.lower():
        return list(rows) == list(gold.rows)
    return Counter(rows) == Counter(gold.rows)


@functools.lru_cache(maxsize=2048)
def _gold(dump: Path, name: str, query: str) -> Gold:
    stored = databases(dump)[name]
    result = MySql(stored.image, stored.text_columns).execute(query)
    return Gold(query, tuple(row_texts(result, query, stored.floats)))


@functools.lru_cache(maxsize=4)
def questions(path: Path, dump: Path, empty: bool) -> Sequence[Mapping[str, Any]]:
    """The questions with their ``number`` in the file.

    Args:
        path: of ``ic_spider_dev.json``.
        empty: also those over databases without any rows.
    """
    stored = databases(dump)
    rows = enumerate(json.loads(path.read_text(encoding="utf-8")))
    return [{**row, "number": number} for number, row in rows if empty or not stored[row["db"]].empty]

"""Spider's questions as an environment, with the databases of InterCode's dump and InterCode's grading."""

from __future__ import annotations

import bisect
import contextlib
import functools
import json
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rollenv.core.env import StepResult
from rollenv.core.tools.backend import ToolError, tool
from rollenv.core.tools.calls import write_calls
from rollenv.envs.tools.base import Judgement, Problem, Reminder, ToolEnv
from rollenv.envs.tools.sql.database import SqlBackend, SqlResult, quoted, random_query
from rollenv.plugins.suites.mysql import MySql, read
from rollenv.plugins.suites.mysql_functions import PAD, prepare
from rollenv.plugins.suites.spider import NEED


def row_texts(result: SqlResult, query: str, floats: Collection[str] = ()) -> list[str]:
    """Convert each row of a result to a text; rows that are equal in MySQL have equal texts.

    Args:
        query: query of the result, whose sums and averages of whole numbers are decimals in MySQL.
        floats: lower-case names of columns of floating point numbers and of texts.
    """
    kinds = ["" if names & set(floats) else call for call, names in read(query).items]
    if len(kinds) != len(result.columns):
        kinds = [""] * len(result.columns)
    return [str(tuple(map(_as_mysql_type, row, kinds))) for row in result.rows]


def _as_mysql_type(value: Any, kind: str) -> Any:
    """Convert a value of a column that is a ``sum`` or ``avg`` of whole numbers, or another one."""
    if value is None or kind not in ("sum", "avg"):
        return value
    if isinstance(value, int):
        if kind == "sum":
            return Decimal(value)
        return Decimal(value).quantize(Decimal("0.0001"))
    if isinstance(value, float) and kind == "avg" and round(value, 4) == value:  # an average of whole numbers
        return Decimal(repr(value)).quantize(Decimal("0.0001"), ROUND_HALF_UP)
    return value


def intercode_reward(given: Sequence[str], wanted: Sequence[str], ordered: bool = False) -> float:
    """Return the intersection over union of the rows of two results.

    Args:
        ordered: multiply by Kendall's tau-b of the common rows' order, rounded, as in InterCode's current code.
    """
    ours, theirs = Counter(given), Counter(wanted)
    common, union = ours & theirs, ours | theirs
    if not union:
        return 1.0
    share = common.total() / union.total()
    tau = kendall_tau(_keep_common(given, common), _keep_common(wanted, common)) if common and ordered else math.nan
    return share if math.isnan(tau) else round(tau * share, 2)


def _keep_common(rows: Sequence[str], common: Counter[str]) -> list[str]:
    """Return the first occurrences of the rows in a multiset."""
    left = common.copy()
    kept = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
            kept.append(row)
    return kept


def kendall_tau(first: Sequence[str], second: Sequence[str]) -> float:
    """Return Kendall's tau-b of two lists of equal length; nan if one has a single distinct value."""
    pairs = sorted(zip(first, second, strict=True))
    total = len(pairs) * (len(pairs) - 1) // 2
    ties_first, ties_second = _ties(sorted(first)), _ties(sorted(second))
    if ties_first == total or ties_second == total:
        return math.nan
    discordant, sorted_before = 0, list[str]()
    for _, value in pairs:
        at = bisect.bisect_right(sorted_before, value)
        discordant += len(sorted_before) - at
        sorted_before.insert(at, value)
    difference = total - ties_first - ties_second + _ties(pairs) - 2 * discordant
    tau = difference / math.sqrt(total - ties_first) / math.sqrt(total - ties_second)
    return min(1.0, max(-1.0, tau))


def _ties(ordered: Sequence[object]) -> int:
    """Count the pairs of equal values."""
    return sum(count * (count - 1) // 2 for count in (len(list(group)) for _, group in groupby(ordered)))


_COLUMN = re.compile(r"^  `(?P<name>[^`]+)` (?P<kind>\w+(?:\([^)]*\))?)(?P<rest>.*?),?$", re.MULTILINE)
_PRIMARY = re.compile(r"^  PRIMARY KEY \((?P<names>.*)\),?$", re.MULTILINE)
_STATEMENT = re.compile(r"(?:[^;'`]|'(?:[^'\\]|\\.|'')*'|`[^`]*`)+", re.DOTALL)
_VALUE = re.compile(r"'((?:[^'\\]|\\.|'')*)'|(NULL)|(-?[\d.]+(?:[eE][+-]?\d+)?)|([(),])|_binary ", re.DOTALL)
_TEXT = re.compile(r"(?:tiny|medium|long)?text|(?:var)?char|enum|set", re.IGNORECASE)


@dataclass(frozen=True)
class Stored:
    """A database of the dump, shared by all environments."""

    image: bytes
    text_columns: frozenset[str]
    """Lower-case names that only text columns have."""
    floats: frozenset[str]
    """Lower-case names of columns whose sums are floating point numbers in MySQL."""
    empty: frozenset[str]
    """Lower-case names of the tables without rows."""


@functools.lru_cache(maxsize=4)
def databases(path: Path) -> Mapping[str, Stored]:
    """Return the databases of a dump by name, cached."""
    parts: dict[str, list[str]] = {}
    name = ""
    dump = re.sub(r"^(?:--.*|/\*.*?\*/;)$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for match in _STATEMENT.finditer(dump):
        statement = match[0].strip()
        if used := re.match(r"USE `([^`]+)`", statement):
            name = used[1]
        elif statement.startswith(("CREATE TABLE", "INSERT INTO")):
            parts.setdefault(name, []).append(statement)
    return {name: _stored(statements) for name, statements in parts.items()}


def _stored(statements: list[str]) -> Stored:
    kinds: dict[str, dict[str, str]] = {}
    full: set[str] = set()
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        prepare(connection, lambda steps: None)
        connection.execute("BEGIN")
        for statement in statements:
            table = statement.split("`")[1].lower()  # as shown by the dump's MySQL
            if statement.startswith("CREATE"):
                kinds[table] = {match["name"].lower(): match["kind"].lower() for match in _COLUMN.finditer(statement)}
                connection.execute(_definition(table, statement))
            else:
                full.add(table)
                rows = _rows(statement, list(kinds[table].values()))
                marks = ", ".join("?" * len(kinds[table]))
                connection.executemany(f"INSERT INTO {quoted(table)} VALUES ({marks})", rows)
        connection.execute("COMMIT")
        image = connection.serialize()
    found = [(name, kind) for columns in kinds.values() for name, kind in columns.items()]
    other = {name for name, kind in found if not _TEXT.match(kind)}
    floats = {name for name, kind in found if _TEXT.match(kind) or re.match("double|float", kind)}
    return Stored(image, frozenset(name for name, _ in found) - other, frozenset(floats), frozenset(kinds) - full)


def _definition(table: str, statement: str) -> str:
    """Return a table's definition with MySQL's types, collation and key; queries need no other constraints."""
    primary = _PRIMARY.search(statement)
    columns = [
        f"{quoted(match['name'])} {match['kind']}"
        + (f" COLLATE {PAD}" if _TEXT.match(match["kind"]) else "")
        + (" NOT NULL" if "NOT NULL" in match["rest"] else "")
        for match in _COLUMN.finditer(statement)
    ]
    if primary:
        names = re.findall(r"`([^`]+)`", primary["names"])
        columns.append(f"PRIMARY KEY ({', '.join(map(quoted, names))})")
    return f"CREATE TABLE {quoted(table)} ({', '.join(columns)})"


def _rows(statement: str, kinds: list[str]) -> Iterator[list[Any]]:
    row: list[Any] = []
    for match in _VALUE.finditer(statement, statement.index(" VALUES ") + 8):
        text, null, number, sign = match.groups()
        if sign == "(":
            row = []
        elif sign == ")":
            yield row
        elif null:
            row.append(None)
        elif number is not None:
            row.append(float(number) if re.match("double|float|decimal", kinds[len(row)]) else int(number))
        elif text is not None:
            row.append(re.sub(r"\\(.)", lambda m: {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}.get(m[1], m[1]), text))


_POLICY = (
    "You work with a MySQL database to answer a question. Execute one SQL statement at a time; SHOW TABLES and "
    "DESCRIBE show what there is. The answer is the result of the last statement before you submit."
)
_REMINDER = "No function was called. Call execute_sql, or submit when the last result is the answer."
_EMPTY = "SELECT 1 FROM (SELECT 1) AS no_rows WHERE 1 = 0"
#: Indices in the file of questions whose gold query MySQL rejects; InterCode's gold result for them is empty.
_REFUSED = frozenset((54, 83, 164, 178, 225, 301, 525, 710, 798, 802, 803, 850, 967))


class Gold(NamedTuple):
    """The wanted result."""

    query: str
    rows: tuple[str, ...]


class SpiderBackend(SqlBackend):
    """A database, with the score of the last result."""

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
        """Undo a failed statement. It counts as the last one, without a result."""
        super().restore(snapshot)
        if "submitted" not in self.state:
            self.state |= {"score": 0.0, "match": False}

    def data(self) -> dict[str, Any]:
        """Return the state, without the tables unless they have changed."""
        if self.database.image is self.stored.image:
            return dict(self.state)
        return super().data()

    def load(self, data: Mapping[str, Any]) -> None:
        if "tables" in data:
            super().load(data)
        else:
            self.database.image, self.state = self.stored.image, json.loads(json.dumps(data))


class SpiderEnv(ToolEnv):
    """Questions over databases, answered with SQL: Spider's development set as InterCode plays it.

    The reward is InterCode's: the intersection over union of the rows of the last result and the gold query's.
    ``info["metrics"]`` has ``score``, the reward of the last result so far, and ``execution_match``, Spider's measure.

    Args:
        empty: include the questions over ``wta_1``, whose tables have no rows.
        ordered: multiply the reward by the rank correlation of the common rows with the gold query's order, as in
            InterCode's current code; its published results do not have this factor.
        strict: expect an empty result for the 13 questions whose gold query MySQL rejects, as upstream.
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
        """Return a query on a table, or, rarely, the submission."""
        if self.action_rng.random() < 0.1:
            return write_calls([("submit", {})], self.calls)
        image = databases(self.dump)[self.questions[self.key]["db"]].image
        return write_calls([("execute_sql", {"query": random_query(image, self.action_rng)})], self.calls)

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        state = self.current.backend.state
        *result, info = super()._after(ended or "submitted" in state, valid, info)
        numbers = {"score": state["score"], "execution_match": float(state["match"])}
        info["metrics"] = {**info.get("metrics", {}), **numbers}
        return (*result, info)  # type: ignore[return-value]


def execution_match(rows: Sequence[str], gold: Gold) -> bool:
    """Return whether the rows equal the gold query's, in its order if it has an ORDER BY."""
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
    """Return the questions in ``ic_spider_dev.json`` with their ``number`` in the file."""
    stored = databases(dump)
    rows = enumerate(json.loads(path.read_text(encoding="utf-8")))
    return [{**row, "number": number} for number, row in rows if empty or not stored[row["db"]].empty]

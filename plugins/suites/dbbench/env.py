"""DBBench's tasks as an environment."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.core import syntax
from rollenv.core.env import StepResult
from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import ToolError, differences, tool
from rollenv.core.tools.calls import write_calls
from rollenv.envs.tools.base import Judgement, Problem, Reminder, ToolEnv, counted
from rollenv.envs.tools.sql.database import SqlBackend, random_query, table_image
from rollenv.plugins.suites.dbbench import NEED
from rollenv.plugins.suites.mysql import MySql
from rollenv.plugins.suites.mysql_functions import NO_PAD, as_text, prepare

KINDS = ("all", "select", "insert", "update")
#: Maximum number of characters of a result that are shown, as upstream.
_MOST_SHOWN = 800
_POLICY = (
    "You work with a MySQL database to answer a question or to change a table. Execute one SQL statement at a time; "
    "commit the final answer when you are sure of it, exactly as the database has it. Where the task is to change "
    "the table, commit any answer after the change. The columns are all of type TEXT."
)


class DBBenchBackend(SqlBackend):
    """A database with one table, and the committed answer."""

    @tool
    def execute_sql(self, query: str) -> str:
        """Execute one SQL statement in the database and see its result.

        Args:
            query: the statement.
        """
        self._going_on()
        shown = str([tuple(row) for row in self.query(query).rows])
        if len(shown) <= _MOST_SHOWN:
            return shown
        return f"{shown[:_MOST_SHOWN]}[TRUNCATED]"

    @tool
    def commit_final_answer(self, answers: list[str | int | float | bool | None] | str) -> str:
        """Give the final answer; this ends the task.

        Args:
            answers: the values asked for; anything where the task was to change the table.
        """
        self._going_on()
        self.state["answers"] = answers
        return "The answer is committed."

    def _going_on(self) -> None:
        if "answers" in self.state:
            raise ToolError("the answer is committed already; the task is over")


_REMINDER = "No function was called. Call execute_sql, or commit_final_answer to end the task."


class DBBenchEnv(ToolEnv):
    """Questions about one table, answered with SQL, and changes of it, judged by AgentBench's rules (DBBench).

    ``info["metrics"]`` has ``side_effects``: the number of rows that should not have changed. A message without a call
    is answered with a reminder.

    Args:
        kind: statement of the tasks: ``select``, ``insert``, ``update`` or ``all``.
    """

    def __init__(self, *, kind: str = "all", **settings: Any):
        if kind not in KINDS:
            raise UsageError(f"kind={kind!r} is unknown; choose from {', '.join(KINDS)}")
        self.kind = kind
        self.rows = rows_of(NEED.found() / "standard.jsonl", kind)
        self.tasks = len(self.rows)
        super().__init__(**settings)

    def problem(self, key: int) -> Problem:
        row = self.rows[key]
        columns = [column["name"] for column in row["table"]["table_info"]["columns"]]
        backend = DBBenchBackend(MySql(_image(row), {name.lower() for name in columns}))
        answer = ("commit_final_answer", {"answers": list(row["label"]) if kind_of(row) == "select" else ["done"]})
        changes = [] if kind_of(row) == "select" else [[("execute_sql", {"query": row["label"][0]})]]
        return Problem(
            question=f"{row['add_description']}\nQuestion: {row['description']}",
            backend=backend,
            plan=[*changes, [answer]],
            user=Reminder(_REMINDER),
            policy=_POLICY,
            category=row["type"][0],
            before=backend.data(),
        )

    def judge(self, problem: Problem) -> Judgement:
        row, data = self.rows[self.key], problem.backend.data()
        changed = differences(problem.start["tables"], data["tables"])
        if kind_of(row) == "select":
            right = "answers" in data and answer_is_right(data["answers"], row["label"])
            return Judgement(right, float(right), len(changed))
        if "answers" in data and hash_of(row, data) == stored_hash(row):
            return Judgement(True, 1.0, 0)
        wanted = differences(problem.start["tables"], problem.wanted["tables"])
        met, aside = counted(changed, wanted)
        return Judgement(False, met / len(wanted) if wanted else 0.0, aside)

    def sample_random_action(self) -> str:
        """Return a query on the table, or, rarely, an answer."""
        if self.action_rng.random() < 0.1:
            return write_calls([("commit_final_answer", {"answers": ["1"]})], self.calls)
        query = random_query(_image(self.rows[self.key]), self.action_rng)
        return write_calls([("execute_sql", {"query": query})], self.calls)

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        return super()._after(ended or "answers" in self.current.backend.state, valid, info)


def kind_of(row: Mapping[str, Any]) -> str:
    """Return ``insert``, ``update`` or ``select``."""
    name = str(row["type"][0]).lower()
    return name if name in KINDS else "select"


def hash_of(row: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """Return the hash of a task's table in a state."""
    table = data["tables"].get(row["table"]["table_name"], {"rows": {}})
    columns = [column["name"] for column in row["table"]["table_info"]["columns"]]
    return table_hash(columns, list(table["rows"].values()))


def stored_hash(row: Mapping[str, Any]) -> str:
    """Return the published hash of the final table, which is stored as a printed row."""
    found = re.search(r"[0-9a-f]{32}", str(row.get("answer_md5", "")))
    return found[0] if found else ""


@functools.lru_cache(maxsize=8)
def rows_of(path: Path, kind: str) -> Sequence[Mapping[str, Any]]:
    """Return the tasks of one of :data:`KINDS` in the file ``standard.jsonl``."""
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [row for row in rows if kind in ("all", kind_of(row))]


_IMAGES: dict[str, bytes] = {}


def _image(row: Mapping[str, Any]) -> bytes:
    """Return the table as a database image, cached."""
    table = row["table"]
    key = json.dumps(table)
    if key not in _IMAGES:
        columns = [(column["name"], f"TEXT COLLATE {NO_PAD}") for column in table["table_info"]["columns"]]
        rows = [[str(cell) for cell in cells] for cells in table["table_info"]["rows"]]
        _IMAGES[key] = table_image(table["table_name"], columns, rows, prepare)
    return _IMAGES[key]


_NOTHING = {"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""}
#: Length at which MySQL's ``GROUP_CONCAT`` truncates its result.
_MOST_HASHED = 1024


def answer_is_right(given: Any, label: Any) -> bool:
    """Return whether an answer equals AgentBench's label: numbers within 0.01, several texts as sets.

    Args:
        given: a text, or a list of texts and numbers.
    """
    ours, theirs = cleaned(given), cleaned(label)
    numbers = [[_number(text) for text in texts] for texts in (ours, theirs)]
    if None in (*numbers[0], *numbers[1]):
        if len(ours) == len(theirs) == 1:
            return ours == theirs
        return set(ours) == set(theirs)
    left = [number for number in numbers[1] if number is not None]
    for number in numbers[0]:
        near = next((other for other in left if number is not None and abs(number - other) <= 0.01), None)
        if near is None:
            return False
        left.remove(near)
    return not left


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def cleaned(answer: Any) -> list[str]:
    """Return the texts of an answer without ``%``, thousands' commas and quotes; words such as none become ``0``."""
    if isinstance(answer, str):
        parsed = _listed(answer.strip())
        answer = [answer] if parsed is None else parsed
    elif not isinstance(answer, list | tuple):
        answer = [answer]
    return [_cleaned(item[0] if isinstance(item, list | tuple) and len(item) == 1 else item) for item in answer]


def _listed(text: str) -> Sequence[Any] | None:
    """Parse a list written as a text; None if the text is not a list."""
    if not (text.startswith("[") and text.endswith("]")) or len(text) > 100_000:
        return None
    try:
        parsed = syntax.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return [part for part in text[1:-1].split(",") if part.strip()]
    return parsed if isinstance(parsed, list) else None


def _cleaned(item: Any) -> str:
    text = str(item).strip().strip("'\"").strip()
    if text.endswith("%"):
        return text[:-1].strip()
    if "," in text and not (text.startswith("[") or text.endswith("]")):
        text = text.replace(",", "")
    return "0" if text.lower() in _NOTHING else text


def table_hash(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return AgentBench's hash of a table: the MD5 of the sorted, shortened MD5s of its rows; None without rows.

    Args:
        rows: values by column; missing values and None are left out.
    """
    if not rows:
        return None
    lines = [",".join(as_text(row[name]) for name in columns if row.get(name) is not None) for row in rows]
    return _md5(",".join(sorted(_md5(line)[:5] for line in lines))[:_MOST_HASHED])


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()

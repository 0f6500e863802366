"""A database of a company: teams, staff and projects."""

from __future__ import annotations

import random
from typing import Any

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.goals import World
from rollenv.envs.tools.sql.data import image_of
from rollenv.envs.tools.sql.database import Database, SqlBackend
from rollenv.tools.backend import tool

#: The most rows of an answer to an agent.
_MOST_ROWS = 100

_SCHEMA = {
    "teams": "CREATE TABLE teams (id INTEGER PRIMARY KEY, name TEXT, city TEXT, budget INTEGER)",
    "staff": "CREATE TABLE staff (id INTEGER PRIMARY KEY, name TEXT, team_id INTEGER, salary INTEGER, hired TEXT)",
    "projects": (
        "CREATE TABLE projects (id INTEGER PRIMARY KEY, title TEXT, team_id INTEGER, cost INTEGER, done INTEGER)"
    ),
}


class Firm(SqlBackend, World):
    """Tables that are read and changed with SQL."""

    @tool
    def list_tables(self) -> list[str]:
        """How the tables were created."""
        return [str(row[0]) for row in self.query("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").rows]

    @tool
    def run_sql(self, query: str) -> dict[str, Any]:
        """Carry out one statement of SQLite: SELECT, INSERT, UPDATE, DELETE and so on."""
        result = self.query(query)
        if not result.columns:
            return {"changed_rows": result.changed}
        rows = [[_shown(cell) for cell in row] for row in result.rows[:_MOST_ROWS]]
        more = {"more_rows": len(result.rows) - _MOST_ROWS} if len(result.rows) > _MOST_ROWS else {}
        return {"columns": list(result.columns), "rows": rows, **more}


def _shown(cell: Any) -> Any:
    return cell.hex() if isinstance(cell, bytes) else cell


def make_firm(rng: random.Random, size: int) -> Firm:
    """A database of people and what they work on.

    Args:
        size: staff; there is half as many projects, and a team for every five.
    """
    staffed = {"teams": _teams(rng, max(3, size // 5))}
    count = len(staffed["teams"])
    staffed["staff"] = [
        {
            "name": name,
            "team_id": rng.randint(1, count),
            "salary": salary,
            "hired": words.day("2025-01-01", salary // 5),
        }
        for name, salary in zip(words.people(rng, size), rng.sample(range(2500, 9000), size), strict=True)
    ]
    titles = words.pairs(rng, words.COLOURS, words.THINGS, max(4, size // 2))
    staffed["projects"] = [
        {"title": title, "team_id": rng.randint(1, count), "cost": rng.randint(1000, 90_000), "done": rng.randint(0, 1)}
        for title in titles
    ]
    tables = {
        name: {"sql": sql, "rows": {str(n): {"id": n, **row} for n, row in enumerate(staffed[name], 1)}}
        for name, sql in _SCHEMA.items()
    }
    return Firm(Database(image_of({"tables": tables})))


def _hired(rng: random.Random) -> str:
    return words.day("2025-01-01", rng.randint(0, 2000))


def _teams(rng: random.Random, count: int) -> list[dict[str, Any]]:
    names = rng.sample(words.TOPICS, min(count, len(words.TOPICS)))
    return [
        {"name": name.capitalize(), "city": rng.choice(words.CITIES[:6]), "budget": rng.randint(10_000, 99_999)}
        for name in names
    ]

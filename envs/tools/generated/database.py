"""A company's database: teams, staff and projects, and requests about them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import tool
from rollenv.envs.tools.base import Call
from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedProblem, GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Fact, Goal, GoalDraw, GoalKind, Path, World
from rollenv.envs.tools.sql.database import Database, SqlBackend, image_of

#: Maximum number of rows of an answer to an agent.
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
        rows = [[(cell.hex() if isinstance(cell, bytes) else cell) for cell in row] for row in result.rows[:_MOST_ROWS]]
        more = {"more_rows": len(result.rows) - _MOST_ROWS} if len(result.rows) > _MOST_ROWS else {}
        return {"columns": list(result.columns), "rows": rows, **more}


def make_firm(rng: random.Random, size: int) -> Firm:
    """Generate a database of ``size`` staff, half as many projects, and a team for every five staff."""
    names = rng.sample(words.TOPICS, min(max(3, size // 5), len(words.TOPICS)))
    staffed = {
        "teams": [
            {"name": name.capitalize(), "city": rng.choice(words.CITIES[:6]), "budget": rng.randint(10_000, 99_999)}
            for name in names
        ]
    }
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


_MOST_RAISE = 20

Rows = list[dict[str, Any]]


def _rows(draw: GoalDraw, table: str) -> Rows:
    return list(draw.state["tables"][table]["rows"].values())


def _team(draw: GoalDraw, key: int | None = None) -> dict[str, Any]:
    teams = _rows(draw, "teams")
    return draw.rng.choice(teams) if key is None else next(team for team in teams if team["id"] == key)


def _run(query: str) -> list[Call]:
    return [("run_sql", {"query": query})]


def _reads(*tables: str) -> list[Path]:
    return [("tables", table) for table in tables]


_TABLES: list[Call] = [("list_tables", {})]


def _salary(draw: GoalDraw, breaks: bool) -> Goal | None:
    one = draw.rng.choice(_rows(draw, "staff"))
    most = one["salary"] * (100 + _MOST_RAISE) // 100
    salary = draw.rng.randint(most + 50, most + 2000) if breaks else draw.rng.randint(one["salary"] - 500, most - 1)
    ask = draw.say(f"Change the salary of {one['name']}", f"{one['name']} gets another salary")
    fact = Fact(("salary", "much", "earn"), f"It is {salary} from now on.", f"{ask}.", "What is the new salary?")
    look = [_TABLES, _run(f"SELECT id, salary FROM staff WHERE name = '{one['name']}'")]
    act = _run(f"UPDATE staff SET salary = {salary} WHERE id = {one['id']}")
    return Goal(f"{ask}: {salary}.", look, act, fact=fact, reads=_reads("staff"))


def _raise_all(draw: GoalDraw, breaks: bool) -> Goal | None:
    team, more = _team(draw), draw.rng.randint(11, 199)
    ask = draw.say(
        f"Everybody in the team {team['name']} earns {more} more.",
        f"Raise all salaries in the team {team['name']} by {more}.",
    )
    look = [_TABLES, _run(f"SELECT id FROM teams WHERE name = '{team['name']}'")]
    act = _run(f"UPDATE staff SET salary = salary + {more} WHERE team_id = {team['id']}")
    return Goal(ask, look, act, reads=_reads("staff", "teams"))


def _delete(draw: GoalDraw, breaks: bool) -> Goal | None:
    project = draw.one([one for one in _rows(draw, "projects") if one["done"] != breaks])
    ask = draw.say(
        f"Delete the project {project['title']}.", f"The project {project['title']} can go from the database."
    )
    look = [_TABLES, _run(f"SELECT id, done FROM projects WHERE title = '{project['title']}'")]
    return Goal(ask, look, _run(f"DELETE FROM projects WHERE id = {project['id']}"), reads=_reads("projects"))


def _change_team(draw: GoalDraw, breaks: bool) -> Goal | None:
    one, team = draw.rng.choice(_rows(draw, "staff")), _team(draw)
    ask = draw.say(f"{one['name']} changes to another team", f"Put {one['name']} into another team")
    fact = Fact(("team", "which", "where"), f"It is the team {team['name']}.", f"{ask}.", "Which team?")
    look = [_TABLES, _run(f"SELECT id FROM teams WHERE name = '{team['name']}'")]
    act = _run(f"UPDATE staff SET team_id = {team['id']} WHERE name = '{one['name']}'")
    return Goal(f"{ask}: {team['name']}.", look, act, fact=fact, reads=_reads("staff", "teams"))


def _hire(draw: GoalDraw, breaks: bool) -> Goal | None:
    team, salary = _team(draw), draw.rng.randint(2500, 6000)
    name = f"{draw.rng.choice(words.FIRST)} {words.name(draw.rng)}"
    hired = words.day("2031-01-01", draw.rng.randint(0, 300))
    ask = draw.say(
        f"Enter {name} into staff: team {team['name']}, salary {salary}, hired {hired}.",
        f"{name} joined the team {team['name']} on {hired} and earns {salary}; add that to staff.",
    )
    look = [_TABLES, _run(f"SELECT id FROM teams WHERE name = '{team['name']}'")]
    act = _run(f"INSERT INTO staff (name, team_id, salary, hired) VALUES ('{name}', {team['id']}, {salary}, '{hired}')")
    return Goal(ask, look, act, reads=_reads("teams", "staff"))


def _finish(draw: GoalDraw, breaks: bool) -> Goal | None:
    team, limit = _team(draw), draw.rng.randint(20, 90) * 1000
    ask = draw.say(
        f"Set done to 1 for all projects of the team {team['name']} that cost less than {limit}.",
        f"All projects of the team {team['name']} with a cost below {limit} are done; set done to 1.",
    )
    look = [_TABLES, _run(f"SELECT id FROM teams WHERE name = '{team['name']}'")]
    act = _run(f"UPDATE projects SET done = 1 WHERE team_id = {team['id']} AND cost < {limit}")
    return Goal(ask, look, act, reads=_reads("projects", "teams"))


def _answer(ask: str, query: list[Call], answer: object, reads: list[Path], rivals: Sequence[object]) -> Goal:
    look = [_TABLES, query]
    return Goal(ask, look, done=f"The answer is {answer}.", answers=[str(answer)], reads=reads, rivals=lambda _: rivals)


def _sums(rows: Rows, by: str, what: str) -> dict[Any, int]:
    """Sum a column for each value of another one."""
    sums: dict[Any, int] = {}
    for row in rows:
        sums[row[by]] = sums.get(row[by], 0) + row[what]
    return sums


def _payroll(draw: GoalDraw, breaks: bool) -> Goal | None:
    team = _team(draw)
    sums = _sums(_rows(draw, "staff"), "team_id", "salary")
    total = sums.get(team["id"])
    ask = draw.say(
        f"What do all members of the team {team['name']} earn together?",
        f"Tell me the sum of the salaries in the team {team['name']}.",
    )
    query = _run(f"SELECT SUM(salary) FROM staff JOIN teams ON team_id = teams.id WHERE teams.name = '{team['name']}'")
    return _answer(ask, query, total, _reads("staff", "teams"), [*sums.values()]) if total else None


def _mean_cost(draw: GoalDraw, breaks: bool) -> Goal | None:
    done = draw.rng.randint(0, 1)
    costs: list[list[int]] = [[one["cost"] for one in _rows(draw, "projects") if one["done"] == n] for n in (0, 1)]
    if not all(costs):
        return None
    means = [round(sum(each) / len(each), 2) for each in costs]
    word = "done" if done else "not done"
    ask = draw.say(
        f"What do projects that are {word} cost on average, to two decimals?",
        f"Give me the mean cost of the projects that are {word}, to two decimals.",
    )
    query = _run(f"SELECT ROUND(AVG(cost), 2) FROM projects WHERE done = {done}")
    return _answer(ask, query, means[done], _reads("projects"), means)


def _best_paid(draw: GoalDraw, breaks: bool) -> Goal | None:
    team = _team(draw)
    members = [one for one in _rows(draw, "staff") if one["team_id"] == team["id"]]
    if len(members) < 2:
        return None
    best = max(members, key=lambda one: int(one["salary"]))["name"]
    ask = draw.say(
        f"Who earns most in the team {team['name']}?", f"Tell me who has the highest salary in the team {team['name']}."
    )
    query = _run(
        f"SELECT staff.name FROM staff JOIN teams ON team_id = teams.id WHERE teams.name = '{team['name']}' "
        "ORDER BY salary DESC LIMIT 1"
    )
    return _answer(ask, query, best, _reads("staff", "teams"), [one["name"] for one in _rows(draw, "staff")])


def _budget(draw: GoalDraw, breaks: bool) -> Goal | None:
    one = draw.rng.choice(_rows(draw, "staff"))
    team = _team(draw, one["team_id"])
    ask = draw.say(
        f"What is the budget of the team that {one['name']} is in?", f"How high is the budget of {one['name']}'s team?"
    )
    query = _run(f"SELECT budget FROM teams JOIN staff ON team_id = teams.id WHERE staff.name = '{one['name']}'")
    return _answer(
        ask, query, team["budget"], _reads("staff", "teams"), [one["budget"] for one in _rows(draw, "teams")]
    )


def _city_cost(draw: GoalDraw, breaks: bool) -> Goal | None:
    city, cities = _team(draw)["city"], {team["id"]: team["city"] for team in _rows(draw, "teams")}
    open_ones = [{**one, "city": cities[one["team_id"]]} for one in _rows(draw, "projects") if not one["done"]]
    sums = _sums(open_ones, "city", "cost")
    total = sums.get(city)
    ask = draw.say(
        f"What do the projects of teams in {city} cost in all that are not done?",
        f"Add up the costs of all projects that are not done and belong to teams in {city}.",
    )
    query = _run(f"SELECT SUM(cost) FROM projects JOIN teams ON team_id = teams.id WHERE city = '{city}' AND done = 0")
    return _answer(ask, query, total, _reads("projects", "teams"), [*sums.values()]) if total else None


class SqlEnv(GeneratedToolEnv):
    """A company's database: rows are looked up, added, changed and deleted with SQL."""

    intro = "You look after the SQLite database of a company. Whether a project is done is 1 or 0."
    templates = (
        GoalKind(_salary, f"No salary of one person is raised by more than {_MOST_RAISE} percent at once."),
        GoalKind(_raise_all),
        GoalKind(_delete, "Only projects that are done are deleted."),
        GoalKind(_change_team),
        GoalKind(_hire),
        GoalKind(_finish),
        GoalKind(_payroll),
        GoalKind(_mean_cost),
        GoalKind(_best_paid),
        GoalKind(_budget),
        GoalKind(_city_cost),
    )

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        if self.missing == "functions":
            raise UsageError("missing='functions': there is one function for everything here")

    def problem(self, key: int) -> GeneratedProblem:
        problem = super().problem(key)
        problem.before = problem.backend.data()  # shared and read-only
        return problem

    def world(self, rng: random.Random) -> Firm:
        return make_firm(rng, self.size)

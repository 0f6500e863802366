"""Measured numbers of environments: what each kind of player earns, what the checks found, and what follows.

Every environment is judged as ``rollenv accept`` does, in processes of its own, and its row is stored as soon as it is
measured: an interrupted measurement goes on where it was. The six criteria are those of OpenEnv's RFC 008.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import html
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.agents.base import Agent
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import RollenvError, UsageError, writes
from rollenv.core.needs import DataFiles, Package
from rollenv.core.version import __version__
from rollenv.plugins.publishing.accept import Judged, judge
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.manager import RolloutManager

#: The results that come with rollenv.
OWN = Path(__file__).with_name("catalogue.jsonl")

#: Rules of `rollenv accept` that say: a player without skill earned too much; something outside was touched; two
#: equal episodes differ.
HACKED = ("unearned", "shown", "cheats", "one answer")
_SURROUNDINGS = ("network", "surroundings")
_DIFFERS = ("seeds", "replay", "processes", "global rng")

Row = dict[str, Any]


def read(file: Path) -> dict[str, Row]:
    """Return the last row of each id; none if there is no such file.

    Raises:
        UsageError: it is no catalogue.
    """
    if not file.exists():
        return {}
    try:
        rows = [Row(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
        return {row["id"]: {"players": {}, "models": {}, "refused": [], "sources": [], **row} for row in rows}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{file} is no catalogue of `rollenv catalogue --measure`: {error}") from error


def fingerprint(env_spec: EnvSpec) -> str:
    """Return a hash of an environment's spec and of the file of its class: a row with another one is stale."""
    point = str(env_spec.entry_point)
    spec_of = [env_spec.id, point, env_spec.kwargs, env_spec.levels, env_spec.options, sorted(env_spec.abilities)]
    found = hashlib.sha256(json.dumps(spec_of, default=str, sort_keys=True).encode())
    with contextlib.suppress(ImportError, ValueError, OSError):
        name = point.rpartition(":")[0]
        module = None if name.endswith(".py") else importlib.util.find_spec(name)
        found.update(Path(str(module.origin) if module else name).read_bytes())
    return found.hexdigest()[:16]


def measure(
    specs: Iterable[EnvSpec], file: Path, agents: Mapping[str, Agent], episodes: int, timeout: float
) -> Iterator[Row]:
    """Measure environments whose rows are missing, stale or lack one of the agents, and append their rows to a file.

    A row that ran out of time is measured again: other work may have run beside it.

    Args:
        agents: further players by name, such as models.
        episodes: of each check and each player.
        timeout: seconds for the checks of one environment, and for each episode of a further player.
    """
    before = read(file)
    for env_spec in specs:
        row = before.get(env_spec.id, {})
        if row.get("fingerprint") != fingerprint(env_spec) or "returns" in row["refused"]:
            (judged,) = judge([env_spec.id], [], episodes, timeout)
            row = row_of(env_spec, judged)
        elif not set(agents) - set(row["models"]):
            continue
        for name in set(agents) - set(row["models"]):
            row["models"][name] = _played(env_spec, agents[name], episodes, timeout)
        with writes(file), file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row, default=str) + "\n")
        yield row


def row_of(env_spec: EnvSpec, judged: Judged) -> Row:
    """Return what was found of an environment: for each kind of player the best one."""
    players: dict[str, Any] = {}
    for each in sorted(judged.players, key=lambda one: (one.success, one.reward)):
        players[each.kind] = {
            "name": each.name,
            "episodes": each.episodes,
            "success": round(each.success, 3),
            "reward": round(each.reward, 4),
            "turns": round(each.turns, 1),
        }
    return {
        "id": env_spec.id,
        "fingerprint": fingerprint(env_spec),
        "rollenv": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "needs": [str(need) for need in env_spec.needs],
        "sources": [source_of(need) for need in env_spec.needs if isinstance(need, Package | DataFiles)],
        "levels": len(env_spec.levels),
        "tasks": "numbered" if env_spec.indexed else "by seed",
        "abilities": sorted(env_spec.abilities),
        "seconds": round(judged.seconds, 1),
        "players": players,
        "models": {},
        "refused": sorted({refusal.rule for refusal in judged.refusals}),
    }


def source_of(need: Package | DataFiles) -> str:
    """Return where something that an environment needs comes from: a package's licence, or the source of files."""
    if isinstance(need, DataFiles):
        return f"{need}, {need.source}" if need.source else str(need)
    try:
        about = importlib.metadata.metadata(need.name).json
    except importlib.metadata.PackageNotFoundError:
        return need.name
    classified = [line.rpartition(" :: ")[2] for line in about.get("classifier", []) if "License ::" in line]
    named = str(about.get("license", "")).partition("\n")[0]
    licence = about.get("license_expression") or ", ".join(classified) or named
    return f"{need.name} {about['version']}, {licence or 'no licence named'}"


def _played(env_spec: EnvSpec, agent: Agent, episodes: int, timeout: float) -> dict[str, Any]:
    """Return what an agent earns, an episode's tokens and seconds, and how many answers were cut or invalid."""
    try:
        with RolloutManager(agent, limits=EpisodeLimits(episode=timeout)) as manager:
            result = evaluate(agent, env_spec.id, n=episodes, manager=manager)
    except RollenvError as error:
        return {"error": str(error)[:200]}
    if result.failed == len(result.trajectories):  # nothing was graded
        return {"error": f"all episodes failed, the first by: {result.trajectories[0].error}"[:200]}
    turns = [turn for played in result.trajectories for turn in played.turns]
    return {
        "episodes": result.n,
        "success": round(result.success, 3),
        "reward": round(result.reward, 4),
        "turns": round(result.turns, 1),
        "tokens": round(sum(len(turn.response_ids) for turn in turns) / max(1, result.n)),
        "seconds": round(result.seconds / max(1, result.n), 2),
        "answers": len(turns),
        "cut": result.cut,
        "invalid": sum(not turn.valid for turn in turns),
    }


def criteria(row: Row) -> dict[str, tuple[bool | None, str]]:
    """Return, for each criterion of RFC 008, whether it holds (None: not measured) and by what it was measured."""
    players = row["players"]
    expert, chance = players.get("expert"), players.get("random")
    below, above = (chance and chance["reward"]), (expert and expert["reward"])
    kinds = HACKED, _SURROUNDINGS, _DIFFERS
    hacked, moved, differs = ([rule for rule in row["refused"] if rule in kind] for kind in kinds)
    endless = row["tasks"] == "by seed"
    return {
        "scales": (endless, f"tasks {row['tasks']}, {row['levels']} levels"),
        "learnable": (
            above > below if expert and chance else None,
            f"mean reward {below:g} by random actions, {above:g} by the expert" if expert and chance else "no expert",
        ),
        "secure": (not moved, f"broken: {', '.join(moved)}" if moved else "no network while it is made, no traces"),
        "not hackable": (
            not hacked if len(players) > 2 else None,
            f"broken: {', '.join(hacked)}" if hacked else "players without an attempt, copies, constants, readers",
        ),
        "observable": ("state" in row["abilities"], f"abilities: {', '.join(row['abilities']) or 'none'}"),
        "reproducible": (
            not differs,
            f"broken: {', '.join(differs)}" if differs else "equal episodes in instances, replays and fresh processes",
        ),
    }


#: Columns of the table: title, and the cell of a row.
COLUMNS = ("id", "random", "no attempt", "one answer", "expert", "turns", "models", "made of", "found")


def cells(row: Row, stale: bool = False) -> list[str]:
    """Return the cells of a row of the table: success rates, and the names of rules that are broken."""

    def success(*kinds: str) -> str:
        found = [row["players"][kind]["success"] for kind in kinds if kind in row["players"]]
        return f"{100 * max(found):.0f} %" if found else ""

    turns = row["players"].get("expert") or row["players"].get("random") or {"turns": ""}
    models = [f"{name} {100 * each['success']:.0f} %" for name, each in row["models"].items() if "success" in each]
    found = ", ".join([*row["refused"], *(["stale"] if stale else [])])
    idle = success("unearned", "reader", "cheat")
    shown = success("random"), idle, success("constant", "many"), success("expert"), str(turns["turns"])
    return [row["id"], *shown, ", ".join(models), "; ".join(row["sources"]), found]


def page(rows: Sequence[Row]) -> str:
    """Return the table as HTML that one can sort by a click on a title and filter by words."""
    titles = [*COLUMNS, *criteria(rows[0])] if rows else COLUMNS
    head = "".join(f'<th scope="col"><button>{html.escape(title)}</button></th>' for title in titles)
    body = []
    for row in rows:
        plain = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(row))
        judged = "".join(
            f'<td title="{html.escape(how)}">{ {True: "yes", False: "no", None: ""}[holds] }</td>'
            for holds, how in criteria(row).values()
        )
        body.append(f"<tr>{plain}{judged}</tr>")
    text = Path(__file__).with_name("catalogue.html").read_text(encoding="utf-8")
    return text.replace("{{head}}", head).replace("{{body}}", "\n".join(body))

"""``rollenv arena``"""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from rollenv.cli import completion
from rollenv.cli.common import (
    AGENT_HELP,
    NO_OPTIONS,
    AgentOptions,
    console,
    error_console,
    key_values,
    make_agent,
    print_tables,
    with_agent_options,
)
from rollenv.cli.eval import print_failures
from rollenv.cli.playing import ACCEPT_HELP, EvalFolder, playing, tasks_before, writes
from rollenv.core.errors import UsageError
from rollenv.rollout.workers.factory import WORKERS_HELP

#: Deals unless -n says otherwise.
_DEALS = 50


@with_agent_options
def command(
    env: str = typer.Argument(help="Environment id of a game for two players.", autocompletion=completion.ids),
    words: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE|AGENT]...", help="Arguments of the environment, and further agents after --agents."
    ),
    options: AgentOptions = NO_OPTIONS,
    agents: list[str] = typer.Option(
        ..., "--agents", "-a", metavar="AGENT AGENT...", help=f"Two or more: the folder of a run, or {AGENT_HELP}"
    ),
    n: int | None = typer.Option(
        None, "-n", min=1, show_default=False, help="Number of deals, each played twice by every two agents. [50]"
    ),
    seed: int = typer.Option(0, "--seed", "-s", min=0, help="Seed of the first deal; the others count up."),
    workers: str = typer.Option("inline", "--workers", "-w", help=WORKERS_HELP),
    step_deadline: float = typer.Option(120.0, min=0.001, help="Time limit in seconds for a step in a worker."),
    answer_deadline: float = typer.Option(600.0, min=0.001, help="Time limit in seconds for an answer of an agent."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for the games, the page and the numbers."),
    resume: bool = typer.Option(False, "--resume", help="Continue the arena in --out; -n may be larger."),
    accept: bool = typer.Option(False, "--accept-changes", help=ACCEPT_HELP),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
) -> None:
    """Let agents play each other, every two from both seats of each deal, and rate them (Elo with 95 % intervals).

    An agent that hangs, raises or fills the other's context forfeits the game: it has lost it. A game that fails by
    nobody's fault is counted apart.

    The exit code is 1 if an agent failed in a game, or if most games failed for any reason.
    """
    from rollenv.plugins.players.arena import RoundRobin, results
    from rollenv.report import write_report
    from rollenv.rollout.evaluate import tasks_of, to_play
    from rollenv.rollout.fingerprints import model_fingerprint

    if resume and out is None:
        raise UsageError("--resume needs --out: the folder of the arena to continue")
    settings = [word for word in words or () if re.match(r"\w+=", word)]
    players = _named([*agents, *(word for word in words or () if word not in settings)])
    kwargs, names = key_values(settings), [*players]
    n = n or (tasks_before(out) if resume and out else None) or _DEALS
    deals = tasks_of(env, kwargs, n, seed)
    chosen = {name: _options_of(agent, options) for name, agent in players.items()}
    _refuse_unused(options, chosen.values())
    about = {"env": env, "kwargs": kwargs, "agent": ", ".join(names), "agents": names, "n": n, "seed": seed}
    about |= {"temperature": options.temperature, "max_tokens": options.max_tokens}
    folder = None
    pairs = [f"{a} against {b}" for a in names for b in names if a != b]
    about |= {"k": len(pairs), "members": pairs}
    if out is not None:
        weights = {name: found for name, agent in players.items() if (found := model_fingerprint(_model_of(agent)))}
        folder = EvalFolder.begin(out, about | ({"model": weights} if weights else {}), resume, accept)
    table = RoundRobin({name: make_agent(players[name], chosen[name]) for name in names}, answer_deadline)
    with playing(env, n * len(pairs), table, options, workers, out, folder, step_deadline) as opened:
        played, rest = to_play(deals, len(pairs), opened["played"])
        opened["manager"].play(rest, opened["watch"])
    arena = results(names, played)
    if out is not None:
        with writes(out):
            told = json_module.dumps(about | arena.to_dict(), indent=2)
            (out / "result.json").write_text(told + "\n", encoding="utf-8")
        write_report([out], out / "report.html")
    if json:
        console.print_json(json_module.dumps(about | arena.to_dict()))
    else:
        print_tables(arena.tables(), 100)
        if out is not None:
            console.print(f"games, page and numbers: {out}", markup=False, soft_wrap=True)
    failures = [t.failure or "unknown" for t in played if not t.complete]
    if failures:
        print_failures(played, {kind: failures.count(kind) for kind in failures})
    forfeited = [t.error for t in played if t.complete and t.error]
    if forfeited:
        error_console.print(f"{len(forfeited)} games forfeited by a failure; the first: {forfeited[0]}", markup=False)
    if forfeited or "agent" in failures or 2 * len(failures) > len(played):
        raise typer.Exit(1)


def _named(agents: Sequence[str]) -> dict[str, str]:
    """Return agents by their names in tables; a folder is that of a model, and equal ones are numbered."""
    found: dict[str, str] = {}
    for agent in agents:
        agent = f"local:{agent}" if Path(agent).expanduser().is_dir() else agent
        times = sum(other == agent for other in found.values())
        found[f"{agent} ({times + 1})" if times else agent] = agent
    if len(found) < 2:
        raise UsageError("an arena needs at least two agents: --agents random oracle")
    return found


def _model_of(agent: str) -> str:
    kind, _, path = agent.partition(":")
    return path if kind in ("local", "vllm") else ""


def _options_of(agent: str, options: AgentOptions) -> AgentOptions:
    """Return those of the options that an agent takes."""
    taken: dict[str, Any] = {}
    for name, value in vars(options).items():
        try:
            AgentOptions(**{name: value}).check(agent)
            taken[name] = value
        except UsageError:
            continue
    return AgentOptions(**taken)


def _refuse_unused(options: AgentOptions, chosen: Any) -> None:
    for name, value in (vars(options) | {"concurrency": None}).items():  # of the games, too
        if value not in (None, "") and all(getattr(each, name) in (None, "") for each in chosen):
            raise UsageError(f"--{name.replace('_', '-')} is for none of these agents")

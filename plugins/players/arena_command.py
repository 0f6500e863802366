"""``rollenv arena``"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from rollenv.cli import completion
from rollenv.cli.common import (
    AGENT_HELP,
    AgentOptions,
    error_console,
    key_values,
    make_agent,
    print_result,
    print_tables,
)
from rollenv.cli.eval import model_of, print_failures
from rollenv.cli.playing import PlayOptions, playing, tasks_before
from rollenv.core.errors import UsageError

#: What agents without a model ask of a game.
_MOVES = {
    "random": ("sample_random_action",),
    "oracle": ("oracle_action",),
    "noisy": ("oracle_action", "sample_random_action"),
}

#: Deals unless -n says otherwise.
_DEALS = 50


def command(
    env: str = typer.Argument(help="Environment id of a game for two players.", autocompletion=completion.ids),
    words: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE|AGENT]...", help="Arguments of the environment, and further agents after --agents."
    ),
    agents: list[str] = typer.Option(
        ..., "--agents", "-a", metavar="AGENT AGENT...", help=f"Two or more: the folder of a run, or {AGENT_HELP}"
    ),
    n: int | None = typer.Option(
        None,
        "-n",
        min=1,
        show_default=False,
        help="Number of deals, each played twice by every two agents; with --resume it may grow. [50]",
    ),
    seed: int = typer.Option(0, "--seed", "-s", min=0, help="Seed of the first deal; the others count up."),
    answer_deadline: float = typer.Option(600.0, min=0.001, help="Time limit in seconds for an answer of an agent."),
    *,
    play: PlayOptions,
    options: AgentOptions,
) -> None:
    """Let agents play each other, every two from both seats of each deal, and rate them (Elo with 95 % intervals).

    An agent that hangs, raises or fills the other's context forfeits the game: it has lost it. A game that fails by
    nobody's fault is counted apart.

    The exit code is 1 if an agent failed in a game, or if most games failed for any reason.
    """
    from rollenv.core.registry import spec
    from rollenv.plugins.players.arena import RoundRobin, results
    from rollenv.rollout.evaluate import tasks_of, to_play
    from rollenv.rollout.fingerprints import model_fingerprint

    settings = [word for word in words or () if re.match(r"\w+=", word)]
    players = _named([*agents, *(word for word in words or () if word not in settings)])
    kwargs, names = key_values(settings), [*players]
    n = n or (tasks_before(play.out) if play.resume and play.out else None) or _DEALS
    deals = tasks_of(env, kwargs, n, seed)
    if "://" not in play.workers:
        with contextlib.closing(spec(env).make(**kwargs)) as game:
            for agent in players.values():
                if lacking := [m for m in _MOVES.get(agent.partition(":")[0], ()) if not hasattr(game, m)]:
                    raise UsageError(f"{agent} cannot play {env}, which has no {lacking[0]}(): name other agents")
    chosen = {name: options.only(agent) for name, agent in players.items()}
    _refuse_unused(options, chosen.values())
    about = {"env": env, "kwargs": kwargs, "agent": ", ".join(names), "agents": names, "n": n, "seed": seed}
    about |= {"temperature": options.temperature, "max_tokens": options.max_tokens}
    pairs = [f"{a} against {b}" for a in names for b in names if a != b]
    about |= {"k": len(pairs), "members": pairs}
    weights = {}
    if play.out is not None:
        weights = {name: found for name, agent in players.items() if (found := model_fingerprint(model_of(agent)))}
    folder = play.begin(about | ({"model": weights} if weights else {}))
    table = RoundRobin({name: make_agent(players[name], chosen[name]) for name in names}, answer_deadline)
    with playing(env, n * len(pairs), table, options, play, folder) as opened:
        played, rest = to_play(deals, len(pairs), opened["played"])
        opened["manager"].play(rest, opened["watch"])
    arena = results(names, played)
    play.save(about | arena.to_dict())
    if not print_result(about | arena.to_dict()):
        print_tables(arena.tables(), 100)
        play.tell("games")
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


def _refuse_unused(options: AgentOptions, chosen: Any) -> None:
    for name, value in (vars(options) | {"concurrency": None}).items():  # of the games, too
        if value not in (None, "") and all(getattr(each, name) in (None, "") for each in chosen):
            raise UsageError(f"--{name.replace('_', '-')} is for none of these agents")

"""``rollenv eval``"""

from __future__ import annotations

import json as json_module

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rollenv.cli.common import AGENT_HELP, console, error_console, key_values, make_agent, percent


def command(
    env: str = typer.Argument(help="An id; `rollenv list` shows them."),
    settings: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Constructor arguments of the environment."
    ),
    agent: str = typer.Option("random", "--agent", "-a", help=AGENT_HELP),
    n: int = typer.Option(100, "-n", min=1, help="Episodes."),
    seed: int = typer.Option(0, "--seed", "-s", min=0, help="Seed of the first episode; the others count up."),
    temperature: float | None = typer.Option(None, min=0, help="Sampling temperature of a model; 0 is greedy."),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Play seeded episodes and report the success rate with its 95 % interval."""
    from rollenv.registry import spec
    from rollenv.rollout.evaluate import evaluate
    from rollenv.rollout.manager import RolloutManager

    spec(env)  # an unknown id is said before a model is loaded
    player = make_agent(agent, temperature)
    wins = done = 0

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("success {task.fields[success]}"),
        TimeRemainingColumn(),
        console=error_console,
        transient=True,
        disable=not error_console.is_terminal,
    ) as bar:
        shown = bar.add_task(env, total=n, success="-")

        def count(trajectory: object) -> None:
            nonlocal wins, done
            wins, done = wins + bool(getattr(trajectory, "success", False)), done + 1
            bar.update(shown, advance=1, success=f"{wins / done:.2f}")

        manager = RolloutManager(player, on_trajectory=count)
        result = evaluate(player, env, key_values(settings or ()), n=n, seed=seed, manager=manager)
    if json:
        console.print_json(json_module.dumps({"agent": agent, "seed": seed, **result.to_dict()}))
        return
    table = Table(
        "environment", "agent", "episodes", "success (95 %)", "reward", "turns", "failed", "seconds", box=None
    )
    table.add_row(
        env,
        agent,
        str(n),
        percent(result.success, result.low, result.high),
        f"{result.reward:.3f}",
        f"{result.turns:.1f}",
        str(result.failed),
        f"{result.seconds:.1f}",
    )
    console.print(table)
    if result.failed:
        error = next(t.error for t in result.trajectories if t.status == "failed")
        error_console.print(f"{result.failed} episodes failed in the environment; the first: {error}", markup=False)

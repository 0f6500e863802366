"""``rollenv eval``"""

from __future__ import annotations

import contextlib
import json as json_module
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group as Lines
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rollenv.cli.common import (
    AGENT_HELP,
    console,
    error_console,
    key_values,
    make_agent,
    model_folder,
    percent,
)
from rollenv.core import UsageError
from rollenv.rollout.places import WORKERS_HELP, make_workers

if TYPE_CHECKING:
    from rollenv.rollout.evaluate import Evaluation
    from rollenv.rollout.manager import RolloutManager
    from rollenv.rollout.types import Trajectory

#: Episodes of which the page shows every turn.
_SHOWN = 100

#: The settings that a resumed evaluation must share with the one that it continues.
_SETTINGS_FILE, _EPISODES_FILE = "eval.json", "episodes.jsonl"


def command(
    env: str = typer.Argument(help="An id; `rollenv list` shows them."),
    settings: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Constructor arguments of the environment."
    ),
    agent: str = typer.Option("random", "--agent", "-a", help=AGENT_HELP),
    n: int | None = typer.Option(None, "-n", min=1, help="Tasks; by default a whole data set, else 100."),
    k: int = typer.Option(1, "-k", min=1, help="Episodes of each task, for pass@k and pass^k."),
    seed: int = typer.Option(0, "--seed", "-s", min=0, help="Seed of the first task; the others count up."),
    wrappers: str = typer.Option("", "--wrappers", help="Put around the environment, as in python_tool,concat."),
    tokenizer: str = typer.Option("", "--tokenizer", help="For chat wrappers: a folder; a model's own by default."),
    temperature: float | None = typer.Option(None, min=0, help="Sampling temperature of a model; 0 is greedy."),
    base_url: str = typer.Option("", help="Endpoint of a chat agent, such as http://127.0.0.1:8000/v1."),
    concurrency: int = typer.Option(256, "--concurrency", "-c", min=1, help="Episodes played at the same time."),
    workers: str = typer.Option("inline", "--workers", "-w", help=WORKERS_HELP),
    step_deadline: float = typer.Option(120.0, min=0.001, help="Seconds for a step of an environment in a worker."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for the episodes, a page and the numbers."),
    resume: bool = typer.Option(False, "--resume", help="Go on with what is in the folder."),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
) -> None:
    """Play seeded tasks and report success, pass@k and pass^k with their 95 % intervals."""
    from rollenv.registry import named_wrappers
    from rollenv.rollout.episode import Limits
    from rollenv.rollout.evaluate import evaluate, tasks_of
    from rollenv.rollout.manager import RolloutManager
    from rollenv.wrappers.factory import with_tokenizer

    kwargs = key_values(settings or ())
    around = with_tokenizer(named_wrappers(wrappers), tokenizer or _own_tokenizer(agent))
    n = len(tasks_of(env, kwargs, n))  # an unknown id is said before a model is loaded
    about = {"env": env, "kwargs": kwargs, "agent": agent, "n": n, "k": k, "seed": seed, "temperature": temperature}
    about |= {"wrappers": around} if around else {}
    played = _begin(out, about, resume)
    player = make_agent(agent, temperature, base_url)
    with (
        contextlib.ExitStack() as stack,
        make_workers(workers) as pool,
        RolloutManager(
            player,
            pool,
            limits=Limits(step=step_deadline),
            max_concurrent=concurrency,
            keep_views=out is not None,
            run_dir=out,
        ) as manager,
    ):
        dashboard = stack.enter_context(_Dashboard(env, n * k, manager, player).shown(played))
        if out is not None:
            from rollenv.rollout.storage import JsonlWriter

            dashboard.file = stack.enter_context(JsonlWriter(out / _EPISODES_FILE))
        result = evaluate(
            player,
            env,
            kwargs,
            n=n,
            k=k,
            seed=seed,
            wrappers=around,
            manager=manager,
            played=played,
            watch=dashboard.count,
        )
    numbers = {**about, **result.to_dict(), **_totals(player)}
    if out is not None:
        _save(out, numbers, result)
    if json:
        console.print_json(json_module.dumps(numbers))
    else:
        _print(result, agent, out)


def _own_tokenizer(agent: str) -> str:
    """The folder of a model's tokenizer; empty for agents that have none."""
    kind, _, argument = agent.partition(":")
    return str(model_folder(Path(argument))) if kind in ("local", "vllm") and argument else ""


def _begin(out: Path | None, about: Mapping[str, Any], resume: bool) -> list[Trajectory]:
    """Prepare the folder; the episodes of the evaluation that is continued."""
    if out is None:
        if resume:
            raise UsageError("--resume needs --out: the folder of the evaluation to go on with")
        return []
    from rollenv.rollout.storage import read

    settings_file, episodes = out / _SETTINGS_FILE, out / _EPISODES_FILE
    if settings_file.exists():
        before = _read_settings(settings_file)
        if not resume:
            raise UsageError(f"{out} holds an evaluation already: --resume goes on with it; or name another folder")
        if different := [key for key, value in about.items() if before.get(key) != value]:
            key = different[0]
            raise UsageError(
                f"{out} holds an evaluation with {key}={before.get(key)!r}, not {about[key]!r}; name another folder"
            )
        return list(read(episodes)) if episodes.exists() else []
    out.mkdir(parents=True, exist_ok=True)
    partial = settings_file.with_suffix(".partial")
    partial.write_text(json_module.dumps(about, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, settings_file)
    return []


def _read_settings(file: Path) -> dict[str, Any]:
    """The settings of an evaluation that is there."""
    try:
        settings = json_module.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        settings = error
    if not isinstance(settings, dict):
        raise UsageError(
            f"{file} is damaged ({settings!r:.100}), so it is not known which evaluation {file.parent} holds; name "
            "another folder, or remove this one"
        )
    return settings


class _Dashboard:
    """What is shown, and written, while an evaluation runs."""

    def __init__(self, env: str, total: int, manager: RolloutManager, agent: Any):
        self.manager, self.agent, self.total = manager, agent, total
        self.file: Any = None
        self.wins = self.done = self.failed = self.turns = self.tokens = 0
        self.reward = 0.0
        self.started = time.perf_counter()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=error_console,
        )
        self.task = self.bar.add_task(env, total=total)

    @contextlib.contextmanager
    def shown(self, played: list[Trajectory]) -> Iterator[_Dashboard]:
        """Show it until the block ends, on a terminal; elsewhere nothing is shown."""
        for trajectory in played:
            if trajectory.complete:
                self._add(trajectory)
        if not error_console.is_terminal:
            yield self
            return
        with Live(console=error_console, transient=True, refresh_per_second=4, get_renderable=lambda: self.draw()):
            yield self

    def count(self, trajectory: Trajectory) -> None:
        """An episode ended."""
        if self.file:
            self.file.write(trajectory)
        self._add(trajectory)
        self.tokens += sum(len(turn.response_ids) for turn in trajectory.turns)

    def _add(self, trajectory: Trajectory) -> None:
        self.done += 1
        self.wins += trajectory.success
        self.failed += trajectory.status == "failed"
        self.turns += len(trajectory.turns)
        self.reward += trajectory.reward
        self.bar.update(self.task, advance=1)

    def draw(self) -> Lines:
        """The bar and two lines of numbers."""
        from rollenv.rollout.evaluate import wilson_interval

        done, seconds = max(self.done, 1), time.perf_counter() - self.started
        low, high = wilson_interval(self.wins, done)
        numbers = (
            f"success {percent(self.wins / done, low, high)}   reward {self.reward / done:.3f}   "
            f"turns {self.turns / done:.1f}   failed {self.failed}   {self.done / seconds:.1f} episodes/s"
            + (f"   {self.tokens / seconds:.0f} tokens/s" if self.tokens else "")
        )
        rows = [row for row in self.manager.flight.now() if row["phase"] != "waiting"]
        phases = Counter(row["phase"] for row in rows)
        longest = f"   longest: {rows[0]['phase']} for {rows[0]['seconds']:.0f} s" if rows else ""
        doing = "now: " + ", ".join(f"{number} {phase}" for phase, number in phases.most_common()) + longest
        totals = _totals(self.agent)
        cost = f"   cost {totals['cost']:.4f}   retries {totals['retries']}" if totals else ""
        return Lines(self.bar, Text(numbers), Text(doing + cost, style="dim"))


def _totals(agent: Any) -> dict[str, Any]:
    """What a chat agent used."""
    totals = getattr(agent, "totals", None)
    return {} if totals is None else {name: getattr(totals, name) for name in type(totals).__slots__}


def _save(out: Path, numbers: Mapping[str, Any], result: Evaluation) -> None:
    from rollenv.report import render_report

    (out / "result.json").write_text(json_module.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    shown = [t.to_dict() for t in result.trajectories[:_SHOWN]]
    settings = {key: value for key, value in numbers.items() if key not in ("pass_at", "pass_all")}
    page = render_report(
        f"{numbers['agent']} on {numbers['env']}",
        episodes=shown,
        settings=settings,
        results=_tables(result, str(numbers["agent"])),
    )
    (out / "report.html").write_text(page, encoding="utf-8")


def _tables(result: Evaluation, agent: str) -> list[list[list[str]]]:
    """The results as tables: headings, then rows."""
    numbers = [
        result.env_id,
        agent,
        str(result.n) if result.k == 1 else f"{result.n} × {result.k}",
        percent(result.success, result.low, result.high),
        f"{result.reward:.3f}",
        f"{result.turns:.1f}",
        str(result.failed),
        f"{result.seconds:.1f}",
    ]
    tables = [
        [["environment", "agent", "tasks", "success (95 %)", "reward", "turns", "failed", "seconds"], numbers],
    ]
    if result.k > 1:
        rows = [[str(j), percent(*result.pass_at[j]), percent(*result.pass_all[j])] for j in result.pass_at]
        tables.append([["k", "pass@k: one of k (95 %)", "pass^k: all k (95 %)"], *rows])
    return tables


def _print(result: Evaluation, agent: str, out: Path | None) -> None:
    for head, *rows in _tables(result, agent):
        table = Table(*head, box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if result.failed:
        error = next(t.error for t in result.trajectories if t.status == "failed")
        error_console.print(f"{result.failed} episodes failed; the first: {error}", markup=False)
    if out is not None:
        console.print(f"episodes, page and numbers: {out}", markup=False)

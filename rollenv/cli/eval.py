"""``rollenv eval``"""

from __future__ import annotations

import contextlib
import json as json_module
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

from rollenv.cli import completion
from rollenv.cli.common import (
    AGENT_HELP,
    AgentOptions,
    Ticker,
    console,
    error_console,
    key_values,
    make_agent,
    model_folder,
    percent,
    progress_console,
)
from rollenv.cli.eval_folder import EvalFolder, tasks_before
from rollenv.core import UsageError
from rollenv.rollout.workers.places import WORKERS_HELP, make_workers

if TYPE_CHECKING:
    from rollenv.rollout.evaluate import Evaluation
    from rollenv.rollout.manager import RolloutManager
    from rollenv.rollout.types import Trajectory

#: What the kinds of failures mean.
_FAILURES = {
    "agent": "the agent or its endpoint gave no answer",
    "reward": "the reward could not be computed",
    "episode": "the episode took too long",
    "raised": "the environment raised an error",
    "wrong": "the environment returned what it may not",
    "hung": "the environment hung",
    "lost": "the environment's worker was lost",
    "differs": "the environment did not replay the same",
    "unknown": "failed",
}
#: Episodes played at the same time.
_CONCURRENT = 256


def command(
    env: str = typer.Argument(help="An id; `rollenv list` shows them.", autocompletion=completion.ids),
    settings: list[str] = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Constructor arguments of the environment."
    ),
    agent: str = typer.Option("random", "--agent", "-a", help=AGENT_HELP, autocompletion=completion.agents),
    n: str = typer.Option(
        "", "-n", metavar="N|all", help="Tasks: a number, or all of a data set. Default: all of a data set, else 100."
    ),
    k: int = typer.Option(1, "-k", min=1, help="Episodes of each task, for pass@k and pass^k."),
    seed: int = typer.Option(0, "--seed", "-s", min=0, help="Seed of the first task; the others count up."),
    wrappers: str = typer.Option("", "--wrappers", help="Put around the environment, as in python_tool,concat."),
    tokenizer: str = typer.Option("", "--tokenizer", help="For chat wrappers: a folder; a model's own by default."),
    temperature: float | None = typer.Option(None, min=0, help="Sampling temperature of a model; 0 is greedy."),
    max_tokens: int | None = typer.Option(None, min=1, help="Most tokens of one answer."),
    base_url: str = typer.Option("", help="Endpoint of a chat agent, such as http://127.0.0.1:8000/v1."),
    system: str | None = typer.Option(None, help="System prompt of a chat agent."),
    rate: float | None = typer.Option(None, min=0.001, help="Most requests a minute to the endpoint."),
    budget: float | None = typer.Option(None, min=0, help="Stop when answers have cost this much; needs --prices."),
    token_budget: int | None = typer.Option(None, min=1, help="Stop when so many tokens are used, prompts included."),
    prices: str = typer.Option("", metavar="PROMPT,COMPLETION", help="For a million tokens, as in 0.15,0.60."),
    concurrency: int | None = typer.Option(
        None, "--concurrency", "-c", min=1, help="Episodes, and requests, at the same time. Default: 256, and 32."
    ),
    workers: str = typer.Option("inline", "--workers", "-w", help=WORKERS_HELP),
    step_deadline: float = typer.Option(120.0, min=0.001, help="Seconds for a step of an environment in a worker."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder for the episodes, a page and the numbers."),
    resume: bool = typer.Option(False, "--resume", help="Go on with what is in the folder; -n may have grown."),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
) -> None:
    """Play seeded tasks and report success, pass@k and pass^k with their 95 % intervals.

    The exit code is 1 if the agent or its endpoint failed in an episode, or if most episodes failed for any reason.
    """
    from rollenv.registry import named_wrappers
    from rollenv.rollout.episode import Limits
    from rollenv.rollout.evaluate import evaluate
    from rollenv.rollout.manager import RolloutManager
    from rollenv.wrappers.factory import with_tokenizer

    kwargs = key_values(settings or ())
    options = AgentOptions(temperature, max_tokens, base_url, system, concurrency, rate, budget, token_budget, prices)
    around = with_tokenizer(named_wrappers(wrappers), tokenizer or _own_tokenizer(agent))
    tasks = _number_of_tasks(env, kwargs, n, out if resume else None)  # an unknown id is said before a model is loaded
    about = {"env": env, "kwargs": kwargs, "agent": agent, "n": tasks, "k": k, "seed": seed, "temperature": temperature}
    optional = {"wrappers": around, "max_tokens": max_tokens, "system": system}
    about |= {name: value for name, value in optional.items() if value}
    folder = EvalFolder.begin(out, about, resume) if out is not None else None
    if resume and folder is None:
        raise UsageError("--resume needs --out: the folder of the evaluation to go on with")
    played = folder.played if folder else []
    player = make_agent(agent, options)
    with (
        contextlib.ExitStack() as stack,
        make_workers(workers) as pool,
        RolloutManager(
            player,
            pool,
            limits=Limits(step=step_deadline),
            max_concurrent=concurrency or _CONCURRENT,
            keep_views=out is not None,
            run_dir=out,
        ) as manager,
    ):
        dashboard = stack.enter_context(_Dashboard(env, tasks * k, manager, player).shown(played))
        if folder is not None:
            dashboard.file = stack.enter_context(folder.writing())
        result = evaluate(
            player,
            env,
            kwargs,
            n=tasks,
            k=k,
            seed=seed,
            wrappers=around,
            manager=manager,
            played=played,
            seconds=folder.seconds if folder else 0.0,
            watch=dashboard.count,
        )
    numbers = {**about, **result.to_dict(), **_totals(player)}
    if out is not None:
        _save(out, numbers)
    if json:
        console.print_json(json_module.dumps(numbers))
    else:
        _print(result, agent, out)
    if result.failures.get("agent") or _mostly_failed(result):
        raise typer.Exit(1)


def _number_of_tasks(env: str, kwargs: dict[str, Any], asked: str, continued: Path | None) -> int:
    """What -n means; without one, a continued evaluation keeps its number."""
    from rollenv.registry import spec
    from rollenv.rollout.evaluate import tasks_of

    if asked == "all" and not spec(env).indexed:
        raise UsageError(f"{env} draws its tasks from the seed, without end; say how many with -n, as in -n 100")
    if asked not in ("", "all") and not (asked.isascii() and asked.isdecimal() and int(asked) > 0):
        raise UsageError(f"-n is a number of tasks from 1, or all, not {asked!r}")
    number = int(asked) if asked.isdecimal() else None
    if not asked and continued is not None:
        number = tasks_before(continued)
    return len(tasks_of(env, kwargs, number))


def _mostly_failed(result: Evaluation) -> bool:
    return result.failed > len(result.trajectories) / 2


def _own_tokenizer(agent: str) -> str:
    """The folder of a model's tokenizer; empty for agents that have none."""
    kind, _, argument = agent.partition(":")
    return str(model_folder(Path(argument))) if kind in ("local", "vllm") and argument else ""


class _Dashboard:
    """What is shown, and written, while an evaluation runs."""

    def __init__(self, env: str, total: int, manager: RolloutManager, agent: Any):
        self.manager, self.agent, self.total = manager, agent, total
        self.file: Any = None
        self.wins = self.done = self.failed = self.turns = self.tokens = 0
        self.reward = 0.0
        self.started = time.perf_counter()
        self.ticker = Ticker(env, total)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=progress_console,
        )
        self.task = self.bar.add_task(env, total=total)

    @contextlib.contextmanager
    def shown(self, played: list[Trajectory]) -> Iterator[_Dashboard]:
        """Show it until the block ends, on a terminal; elsewhere a line now and then tells how far it is."""
        for trajectory in played:
            if trajectory.complete:
                self._add(trajectory)
        if not progress_console.is_terminal or progress_console.quiet:
            yield self
            return
        with Live(console=progress_console, transient=True, refresh_per_second=4, get_renderable=lambda: self.draw()):
            yield self

    def count(self, trajectory: Trajectory) -> None:
        """An episode ended."""
        if self.file:
            self.file.write(trajectory)
        self._add(trajectory)
        self.tokens += sum(len(turn.response_ids) for turn in trajectory.turns)
        self.ticker.tick(self.done, f"success {100 * self.wins / self.done:.1f} %  failed {self.failed}")

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


def _save(out: Path, numbers: Mapping[str, Any]) -> None:
    from rollenv.report import write_report

    (out / "result.json").write_text(json_module.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    write_report([out], out / "report.html")


def _tables(result: Evaluation, agent: str) -> list[list[list[str]]]:
    """The results as tables: headings, then rows."""
    numbers = [
        str(result.n) if result.k == 1 else f"{result.n} × {result.k}",
        percent(result.success, result.low, result.high),
        str(result.wrong),
        str(result.failed),
        f"{result.reward:.3f}",
        f"{result.turns:.1f}",
        f"{result.seconds:.1f}",
    ]
    tables = [[["tasks", "success (95 %)", "wrong", "failed", "reward", "turns", "seconds"], numbers]]
    if result.k > 1:
        rows = [[str(j), percent(*result.pass_at[j]), percent(*result.pass_all[j])] for j in result.pass_at]
        tables.append([["k", "pass@k: one of k (95 %)", "pass^k: all k (95 %)"], *rows])
    return tables


def _print(result: Evaluation, agent: str, out: Path | None) -> None:
    console.print(f"{result.env_id} played by {agent}", markup=False, style="bold")
    for head, *rows in _tables(result, agent):
        table = Table(*head, box=None, padding=(0, 1, 0, 0))
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if result.failed:
        _print_failures(result)
    if out is not None:
        console.print(f"episodes, page and numbers: {out}", markup=False, soft_wrap=True)


def _print_failures(result: Evaluation) -> None:
    """What kinds of failures there were, and the first of each kind."""
    all_of_them = "all" if result.failed == len(result.trajectories) else "most" if _mostly_failed(result) else ""
    also = (
        f": {all_of_them} of them, so this says little about success" if all_of_them else ", counted as not successful"
    )
    error_console.print(f"{result.failed} episodes failed{also}", style="bold red" if all_of_them else "")
    for kind, number in sorted(result.failures.items(), key=lambda each: -each[1]):
        first = next(t for t in result.trajectories if t.status == "failed" and (t.failure or "unknown") == kind)
        what = _FAILURES.get(kind, kind)
        error_console.print(f"  {number} {what}; the first: {first.error}", markup=False, soft_wrap=True)

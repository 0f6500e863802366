"""``rollenv regrade``"""

from __future__ import annotations

import json as json_module
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollenv.cli.common import console, progress_console
from rollenv.cli.export import WHERE_HELP
from rollenv.core.errors import UsageError
from rollenv.core.plugins import function_at
from rollenv.rollout.workers.factory import WORKERS_HELP, make_workers

if TYPE_CHECKING:
    from rollenv.rollout.regrade import Regraded

#: Rows of a printed table; all are in the folder.
_SHOWN = 20


def command(
    run: Path = typer.Argument(help="Folder of a run, evaluation or benchmark; file of episodes; record of a gateway."),
    where: str = typer.Option("complete", "--where", help=WHERE_HELP),
    grader: str = typer.Option(
        "", "--grader", metavar="MODULE:FUNCTION", help="Judge by this function instead (as rewards.function)."
    ),
    follow: bool = typer.Option(
        False, "--follow", help="Judge also where the environment shows something else before an action (dates)."
    ),
    out: Path | None = typer.Option(None, "--out", "-o", help="New folder. Default: regraded-N in the run's."),
    workers: str = typer.Option("2", help=WORKERS_HELP),
    step_deadline: float = typer.Option(120.0, min=0.001, help="Seconds after which an environment hangs."),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Compute the rewards of stored episodes again, by today's environments or a function, beside the old ones."""
    from rollenv.report import write_report
    from rollenv.rollout.records.plain import to_plain
    from rollenv.rollout.records.stored import stored
    from rollenv.rollout.regrade import regrade
    from rollenv.trainers.rewards import FunctionReward

    reward = FunctionReward(function_at(grader, "a grader")) if grader else None
    episodes = stored(run, where)
    folder = _new_folder(run, out)
    numbers, rows = _Numbers(), []
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    bar = Progress(*columns, console=progress_console, transient=True, disable=not progress_console.is_terminal)
    with make_workers("inline" if grader else workers) as pool, bar:
        shown = bar.add_task("", total=None)
        with open(folder / "episodes.jsonl", "w", encoding="ascii") as file:
            for each in regrade(episodes, pool, reward=reward, follow=follow, step_deadline=step_deadline):
                rows.append(numbers.add(each))
                bar.update(shown, description=numbers.line())
                if each.new is not None:
                    began = {} if each.old.iteration is None else {"iteration": each.old.iteration}
                    file.write(json_module.dumps(began | to_plain(each.new) | {"reward": each.new.reward}) + "\n")
    if not rows:
        raise UsageError(f"no episode of {run} is chosen by {where!r}")
    about = {"source": str(run), "where": where, "grader": grader, "follow": follow}
    result = {**numbers.summary(), "changes": numbers.changes, "not_judged": numbers.reasons_table(), "episodes": rows}
    for name, data in (("eval", numbers.settings | about | {"regraded": True}), ("result", result)):
        (folder / f"{name}.json").write_text(json_module.dumps(data, indent=1) + "\n", encoding="utf-8")
    write_report([folder], folder / "report.html")
    if json:
        console.print_json(json_module.dumps(about | result | {"folder": str(folder)}))
    else:
        _print(numbers, folder)


def _new_folder(run: Path, out: Path | None) -> Path:
    base = run / "regraded" if run.is_dir() else run.with_name(f"{run.stem}-regraded")
    free = (base.with_name(f"{base.name}-{number}") for number in range(1, 1 << 30))
    folder = out or next(path for path in free if not path.exists())
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot create the folder {folder}: {error.strerror}; name a new one with --out") from error
    return folder


class _Numbers:
    """Counts, means and tables of re-graded episodes."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        """Reasons for which episodes have no new reward."""
        self.changes = [["environment", "task", "member", "before", "now", "why"]]
        self.settings: dict[str, Any] = {}
        self.judged: list[tuple[float, float, bool, bool]] = []
        """Reward before and after, success before and after."""

    def add(self, each: Regraded) -> dict[str, Any]:
        """Count an episode, and return its row."""
        old, new = each.old.trajectory, each.new
        before = None if old.failure == "reward" else old.own_reward
        self.kinds[each.kind] += 1
        self.settings = self.settings or {"env": old.task.env_id, "agent": each.old.run.agent if each.old.run else ""}
        if new is None:
            self.reasons[each.reason] += 1
        elif before is not None:
            self.judged.append((before, new.reward, old.success, new.success))
        if each.kind == "changed" and new is not None:
            task = str(old.task.options.get("index", f"seed {old.task.seed}"))
            values = "" if before is None else f"{before:.4g}", f"{new.reward:.4g}"
            self.changes.append([old.task.env_id, task, str(old.member), *values, each.reason])
        row = {"env_id": old.task.env_id, "seed": old.task.seed, "options": old.task.options, "member": old.member}
        row |= {"iteration": each.old.iteration, "kind": each.kind, "old": before, "reason": each.reason}
        return row | {"new": None if new is None else new.reward}

    def line(self) -> str:
        return ", ".join(f"{n} {kind}" for kind, n in self.kinds.items())

    def reasons_table(self) -> list[list[str]]:
        return [["episodes", "why"], *([str(n), reason] for reason, n in self.reasons.most_common())]

    def summary(self) -> dict[str, Any]:
        names = "old_reward", "new_reward", "old_success", "new_success"
        means = {name: fmean(values) for name, values in zip(names, zip(*self.judged, strict=True), strict=False)}
        return {**self.kinds, **means}


def _print(numbers: _Numbers, folder: Path) -> None:
    for head, *rows in (numbers.changes, numbers.reasons_table()):
        if rows:
            table = Table(*head, box=None, padding=(0, 1, 0, 0))
            for row in rows[:_SHOWN]:
                table.add_row(*map(escape, row))
            console.print(table)
        if len(rows) > _SHOWN:
            console.print(f"and {len(rows) - _SHOWN} more")
    console.print(numbers.line())
    if numbers.judged:
        text = "reward {old_reward:.3f} -> {new_reward:.3f}, success {old_success:.1%} -> {new_success:.1%}"
        console.print(text.format(**numbers.summary()))
    console.print(f"both rewards, page and numbers: {folder}", markup=False, soft_wrap=True)

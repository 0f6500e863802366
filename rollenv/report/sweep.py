"""Runs of several settings and seeds as a page shows them: one entry a setting, with means over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError, reads
from rollenv.report.plain import finite
from rollenv.rollout.records.folders import SWEEP, Run, is_run, open_run
from rollenv.rollout.records.storage import read_object

#: Quantiles of Student's t for 95 % intervals, by the number of seeds; the last is for more.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.2)

Rows = list[dict[str, Any]]


def open_runs(folder: Path) -> list[Run]:
    """Read a folder of one run, or of ``rollenv train --seeds``: then one run a setting, with its means."""
    if not (folder / SWEEP).is_file():
        return [open_run(folder)]
    with reads(f"{folder / SWEEP} is damaged"):
        settings: dict[str, list[Path]] = {}
        for each in read_object(folder / SWEEP, "restore it, or name one of its runs")["runs"]:
            settings.setdefault(str(each["setting"]), []).append(folder / each["folder"])
    started = [run for setting, paths in settings.items() if (run := _mean(setting, paths))]
    if not started:
        raise UsageError(f"no run below {folder} has begun")
    return started


def _mean(setting: str, paths: Sequence[Path]) -> Run | None:
    """Return the first seed's run with the means of all; None if none has begun."""
    runs = [open_run(path) if is_run(path) else None for path in paths]
    begun = [run for run in runs if run]
    if not begun:
        return None
    rows = [run.metrics if run else [] for run in runs]  # in their places, by which settings are compared
    seeds = [[row for row in each if type(row.get("iteration")) is int] for each in rows]
    return replace(begun[0], label=setting, seeds=seeds, metrics=means(seeds))


def means(seeds: Sequence[Rows]) -> Rows:
    """Return the mean of each metric at each iteration that all seeds with rows have reached.

    ``low`` and ``high`` of an evaluation become the 95 % interval of the mean over seeds (Student's t).
    """
    by_iteration = [{row["iteration"]: row for row in rows} for rows in seeds if rows]
    common = set.intersection(*map(set, by_iteration)) if by_iteration else set()
    return [_mean_row([rows[iteration] for rows in by_iteration]) for iteration in sorted(common)]


def _mean_row(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    keys = [key for key in rows[0] if all(finite(row.get(key)) is not None for row in rows)]
    made: dict[str, Any] = {key: statistics.fmean(row[key] for row in rows) for key in keys}
    made["iteration"] = rows[0]["iteration"]
    if len(rows) > 1:
        for key in keys:
            if key == "eval/success" or (key.startswith("eval/") and key.endswith("/success")):
                low, high = interval([row[key] for row in rows])
                start = key.removesuffix("success")
                made |= {f"{start}low": max(low, 0.0), f"{start}high": min(high, 1.0)}
                made.pop(f"{start}tasks_low", None)
                made.pop(f"{start}tasks_high", None)
    return made


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean (Student's t); of one value, the value."""
    middle = statistics.fmean(values)
    if len(values) < 2:
        return middle, middle
    half = _T[min(len(values) - 2, len(_T) - 1)] * statistics.stdev(values) / len(values) ** 0.5
    return middle - half, middle + half


def sweep_table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the table of the settings: success before and after, and its difference to the first, paired by seed.

    Runs that have not finished have no success after RL.
    """
    runs = [run for run in runs if any(run.seeds)]
    if not runs:
        return []
    plays = any(_first(rows, "eval/success") is not None for run in runs for rows in run.seeds)
    key, unit = ("eval/success", 100) if plays else ("eval/loss", 1)
    first = _after(runs[0], key)
    rows = []
    for run in runs:
        before = [row for row in (_first(rows, key) for rows in run.seeds) if row is not None]
        after = _after(run, key)
        paired = [mine - theirs for mine, theirs in zip(after, first, strict=False) if None not in (mine, theirs)]
        compared = run is not runs[0] and paired
        begun, done = len(list(filter(None, run.seeds))), sum(_finished(run, rows) for rows in run.seeds)
        rows.append(
            [
                run.name,
                str(begun) if begun == done else f"{done} of {begun} finished",
                _shown(before, unit),
                _shown([one for one in after if one is not None], unit),
                _shown(paired, unit, "+") if compared else "",
                f"{statistics.fmean(map(_seconds, filter(None, run.seeds))):.0f}",
            ]
        )
    columns = ["success before RL", "after RL"] if plays else ["held-out loss before", "after"]
    head = ["setting", "seeds", *columns, "against the first, by seed", "seconds of RL" if plays else "seconds"]
    used = [at for at in range(len(head)) if any(row[at] for row in rows)]
    title = "Means over seeds, with 95 % intervals of the mean (Student's t)"
    return [{"title": title, "rows": [[row[at] for at in used] for row in [head, *rows]]}]


def _first(rows: Rows, key: str) -> float | None:
    """Return a metric's value in a seed's first evaluation; None if all of its episodes failed."""
    return next((finite(row.get(key)) for row in rows if row.keys() & {key, "eval/failed"}), None)


def _after(run: Run, key: str) -> list[Any]:
    """Return a metric's value in each seed's last evaluation; None for those that have not finished."""
    return [_first(rows[::-1], key) if _finished(run, rows) else None for rows in run.seeds]


def _finished(run: Run, rows: Rows) -> bool:
    planned = run.settings.get("iterations")
    return bool(rows) and isinstance(planned, int) and rows[-1].get("iteration", 0) >= planned


def _seconds(rows: Rows) -> float:
    """Return the seconds of playing and updating, without warm-up and evaluation."""
    stages = ("time/collect", "time/update", "time/publish")
    return sum(finite(row.get(key)) or 0.0 for row in rows for key in stages)


def _shown(values: Sequence[float], unit: int, sign: str = "") -> str:
    """Return a mean with its interval; ``unit`` 100 for shares, in percent."""
    if not values:
        return ""
    low, high = interval(values)
    if unit == 100 and not sign:
        low, high = max(low, 0.0), min(high, 1.0)
    digits = f"{sign}.1f" if unit == 100 else f"{sign}.3f"
    ends = f" ({unit * low:{digits}} to {unit * high:{digits}})" if len(values) > 1 else ""
    return f"{unit * statistics.fmean(values):{digits}}{' %' if unit == 100 else ''}{ends}"

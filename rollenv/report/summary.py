"""The summary of a run on the page: tiles, tables, and the names of its curves."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.report.plain import finite, items, mapping, plain
from rollenv.rollout.evaluate import wilson_interval
from rollenv.rollout.records.folders import Run

#: Title, explanation, and metrics with their display names.
Chart = tuple[str, str, tuple[tuple[str, str], ...]]
#: The charts of a training run. The buckets in names by turn and position are those of rollenv.trainers.diagnostics.
CURVES: tuple[Chart, ...] = tuple(
    (each["title"], each["help"], tuple(each["series"].items()))
    for each in tomllib.loads(Path(__file__).with_name("curves.toml").read_text(encoding="utf-8"))["chart"]
)

_HINT_SUCCESS = (
    "The share of episodes that were solved, with its 95 % interval: over different tasks where some came up twice."
)


def curves(metrics: Sequence[Mapping[str, Any]], main: str = "") -> list[dict[str, Any]]:
    """Return the charts with data; metrics without a display name come last, under their own name.

    Args:
        main: the environment whose evaluation has no name in the metrics.
    """
    there = {key for row in metrics for key, value in row.items() if isinstance(value, int | float)} - {"iteration"}
    charts = _of_domains(there, main) if any(domains(there)) else list(CURVES)
    shown = [
        {"title": title, "help": text, "series": [{"key": key, "name": name} for key, name in series if key in there]}
        for title, text, series in charts
        if any(key in there for key, _ in series)
        and (title != "Errors" or any(row.get(key) for row in metrics for key, _ in series))
    ]
    named = {key for _, _, series in charts for key, _ in series}
    named |= {key for key in there if key.startswith("eval/") and key.endswith(("/low", "/high", "_low", "_high"))}
    rest = [{"title": key, "help": "", "series": [{"key": key, "name": key}], "more": True} for key in there - named]
    return [*shown, *sorted(rest, key=lambda chart: str(chart["title"]))]


def domains(keys: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the domains evaluated besides the main environment, and the trained ones."""
    found = sorted(key.removesuffix("/success") for key in keys if key.endswith("/success") and key != "eval/success")
    evaluated = [name.removeprefix("eval/") for name in found if name.startswith("eval/")]
    return evaluated, [name for name in found if not name.startswith("eval/")]


def _of_domains(keys: Collection[str], main: str) -> list[Chart]:
    """Return the charts of a mixture, with a name for each domain and for the whole."""
    evaluated, trained = domains(keys)
    whose = {"evaluation": f"{main or 'main environment'}, evaluation", "training": "all domains, training"}
    series = [("eval/success", whose["evaluation"])]
    series += [(f"eval/{name}/success", f"{name}, evaluation") for name in evaluated]
    series += [(f"{name}/success", f"{name}, training") for name in trained]
    text = (
        "The share of episodes of each domain that were solved. Evaluations play the same unseen episodes each time; "
        "the band is their 95 % interval."
    )
    others = [
        (title, explanation, tuple((key, whose.get(name, name)) for key, name in of))
        for title, explanation, of in CURVES
        if title != "Success"
    ]
    mean = ("Success of all domains", "The share of solved episodes in training.", (("success", "training"),))
    return [("Success by domain", text, tuple(series)), *others, mean]


def tiles(run: Run, counts: Sequence[int], reward: float | None = None) -> list[list[str]]:
    """Return label, value and explanation of each tile.

    Args:
        counts: stored episodes by their result, in the order of :data:`rollenv.report.episodes.STATUSES`.
        reward: the mean over those that ended.
    """
    made = _of_training(run) if run.kind == "training" else _of_evaluation(run, counts, reward)
    return [tile for tile in made if tile[1]]


def _of_training(run: Run) -> list[list[str]]:
    rows = [row for row in run.metrics if row.keys() & {"eval/success", "eval/failed"}]
    settings = run.settings
    algorithm = str(mapping(settings.get("algorithm")).get("name", ""))
    parts = {"time/reward", "time/early"}  # of collecting
    stages = {key for row in run.metrics for key in row if key.startswith("time/")} - parts
    seconds = sum(finite(row.get(key)) or 0.0 for row in run.metrics for key in stages)
    last = run.metrics[-1].get("iteration", "") if run.metrics else ""
    planned = settings.get("iterations")
    if planned == 10**9:  # without an end
        planned = None
    several = any(domains({key for row in run.metrics for key in row}))
    of = f", of {run.env_id} alone; the table has every domain" if several else ""
    tiny = mapping(settings.get("model")).get("path") == "tiny"
    started = "by imitation of the expert, before RL" if tiny else "before RL"
    ends = [value for row in (rows[:1] + rows[-1:]) if (value := finite(row.get("eval/success"))) is not None]
    gain = f"{100 * (ends[1] - ends[0]):+.1f} points" if len(rows) > 1 and len(ends) > 1 else ""
    return [
        ["Success before RL", _share(rows[0]) if rows else "", f"What it solved {started}{of}. {_HINT_SUCCESS}"],
        ["RL added", gain, f"From {started} to the last evaluation{of}."],
        ["Success after RL", _share(rows[-1]) if len(rows) > 1 else "", f"At the last evaluation{of}. {_HINT_SUCCESS}"],
        ["Time", duration(seconds), "Warm-up, playing, updating and evaluating, added up."],
        ["Iterations", f"{last} of {planned}" if planned else str(last), "Rounds of playing and updating."],
        ["Model", run.agent, "What was trained."],
        ["Recipe", run.recipe, "The recipe that the run was started with."],
        ["Algorithm", algorithm, "How advantages are computed."],
        ["Environment", ", ".join(_parts(run)) or run.env_id, "What was played."],
    ]


def _parts(run: Run) -> list[str]:
    """Return the names of a mixture's parts."""
    parts = map(mapping, items(mapping(run.settings.get("tasks")).get("parts")))
    return [str(part.get("name") or mapping(part["env"]).get("id", "")) for part in parts if mapping(part.get("env"))]


def _of_evaluation(run: Run, counts: Sequence[int], reward: float | None) -> list[list[str]]:
    total, result = sum(counts), run.result
    judged = sum(counts[:3])  # the others failed, or nobody said what a success is
    low, high = wilson_interval(counts[0], judged) if judged else (0.0, 0.0)
    success: dict[str, Any] = {"eval/success": counts[0] / judged, "eval/low": low, "eval/high": high} if judged else {}
    if finite(result.get("success")) is not None:
        success = {f"eval/{key}": result.get(key) for key in ("success", "low", "high")}
    n, k = result.get("n") or run.settings.get("n"), result.get("k") or run.settings.get("k") or 1
    tasks = f"{n} × {k}" if k != 1 else str(n)
    if not n:
        tasks = f"{total} episodes"
    if not result:
        tasks += ", unfinished" if total else ", no episode yet"
    games = "members" in run.settings
    return [
        ["Success", _share(success) if not games else "", _HINT_SUCCESS],
        ["Errors", str(counts[3]), "Episodes that failed because of the environment or the agent."],
        ["Open", str(counts[6] or ""), "Sessions of a gateway that are not finished."],
        ["Tasks", tasks, "Tasks, and episodes of each."],
        ["Reward", _to(3, result.get("reward", reward)), "The mean over episodes."],
        ["Turns", _to(1, result.get("turns")), "The mean over episodes."],
        ["Time", duration(finite(result.get("seconds")) or 0.0), "From the first episode to the last."],
        ["Cost", _to(4, result.get("cost") or None), "As the endpoint's prices say."],
        ["Agent", "" if games else run.agent, "Who played."],
        ["Environment", run.env_id, "What was played."],
    ]


def tables(run: Run) -> list[dict[str, Any]]:
    """Success by domain of a training; of an evaluation its categories, and pass@k and pass^k over several episodes."""
    if run.kind == "training":
        return _domain_table(run)
    return [*category_tables(run.result), *_pass_table(run), *_own_tables(run)]


def _own_tables(run: Run) -> list[dict[str, Any]]:
    """Return what `rollenv regrade` changed and could not judge, or the ratings of `rollenv arena`."""
    tables = [
        (str(each.get("title", "")), items(each.get("rows"))) for each in map(mapping, items(run.result.get("tables")))
    ]
    return [
        {"title": title, "rows": [[plain(str(cell)) for cell in items(row)] for row in rows[:201]]}
        for title, rows in tables
        if len(rows) > 1
    ]


def category_tables(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return tables of a result of `rollenv bench`: a row for each category, and what was not played."""
    rows = [row for row in map(mapping, items(result.get("categories"))) if row]
    if not rows:
        return []
    rows += [total] if (total := mapping(result.get("total"))) and len(rows) > 1 else []
    most = [j for j in _pass_all(rows[-1]) if j != "1"]
    content = [_category(row, most) for row in rows]
    head = ["category", "tasks", "success", "floor", "failed", "turns", "calls", "invalid calls", "partial"]
    head += ["side effects", *(f"pass^{j}" for j in most), "tokens in", "tokens out", "cost", "seconds a turn"]
    title = "Success by category, with 95 % intervals; floor: the better of two agents that call nothing"
    used = [at for at in range(len(head)) if any(row[at] for row in content)]
    tables = [{"title": title, "rows": plain([[row[at] for at in used] for row in [head, *content]])}]
    if missing := mapping(result.get("missing")):
        tables.append({"title": "Not played", "rows": plain([["category", "needs"], *map(list, missing.items())])})
    return tables


def _pass_all(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return pass^k by k, of which JSON makes texts."""
    return {str(j): interval for j, interval in mapping(row.get("pass_all")).items()}


def _category(row: Mapping[str, Any], most: Sequence[str]) -> list[str]:
    reported = mapping(row.get("metrics"))
    return [
        str(row.get("category", "")),
        str(row.get("n", "")) if row.get("k", 1) == 1 else f"{row.get('n')} × {row['k']}",
        _interval(row.get("success")),
        _percent(1, row.get("floor")),
        str(row.get("failed", "")),
        _to(1, row.get("turns")),
        *(_to(2, reported.get(name)) for name in ("calls", "invalid_calls")),
        _percent(0, reported.get("partial")),
        _percent(1, row.get("side_effects")),
        *(_interval(_pass_all(row).get(j)) for j in most),
        *(_to(0, row.get(name) or None) for name in ("prompt_tokens", "completion_tokens")),
        _to(4, row.get("cost") or None),
        _to(3, row.get("latency")),
    ]


def _to(digits: int, value: Any) -> str:
    """Format a number for a table; empty if it is missing."""
    known = finite(value)
    return "" if known is None else f"{known:.{digits}f}"


def _percent(digits: int, share: Any) -> str:
    known = finite(share)
    return "" if known is None else f"{100 * known:.{digits}f} %"


def _domain_table(run: Run) -> list[dict[str, Any]]:
    rows = [row for row in run.metrics if row.keys() & {"eval/success", "eval/failed"}]
    evaluated, _ = domains({key for row in run.metrics for key in row})
    if not rows or not evaluated:
        return []
    content = [
        [name, _share(rows[0], prefix), _share(rows[-1], prefix) if len(rows) > 1 else ""]
        for name, prefix in [(run.env_id, "eval/"), *((name, f"eval/{name}/") for name in evaluated)]
    ]
    title = "Success on unseen episodes by domain, with 95 % intervals"
    return [{"title": title, "rows": plain([["domain", "before", "after"], *content])}]


def _pass_table(run: Run) -> list[dict[str, Any]]:
    at, every = mapping(run.result.get("pass_at")), mapping(run.result.get("pass_all"))
    if len(at) < 2 or not every:
        return []
    rows = [[str(j), _interval(at[j]), _interval(every.get(j))] for j in at]
    head = ["k", "pass@k: at least one of k", "pass^k: all of k"]
    return [{"title": "Success over k episodes of a task, with 95 % intervals", "rows": plain([head, *rows])}]


def _interval(values: Any) -> str:
    keys = ("eval/success", "eval/low", "eval/high")
    return _share(dict(zip(keys, items(values), strict=False)))


def _share(row: Mapping[str, Any], prefix: str = "eval/") -> str:
    tasks = "tasks_" if f"{prefix}tasks_low" in row else ""
    success, low, high = (finite(row.get(prefix + key)) for key in ("success", f"{tasks}low", f"{tasks}high"))
    if success is None:
        return ""
    text = f"{100 * success:.1f} %"
    return text if low is None or high is None else f"{text} ({100 * low:.0f} to {100 * high:.0f})"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if not seconds:
        return ""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"

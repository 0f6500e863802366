"""The facts of a run that :mod:`rollenv.report.explain` makes sentences of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.report.episodes import STATUSES, failure_of, identity, status_of
from rollenv.report.summary import finite
from rollenv.rollout.records.folders import FILES, METRICS, SWEEP, Run, open_run

Row = dict[str, Any]


@dataclass(slots=True)
class Told:
    """What is told of a stored episode."""

    part: int
    """0 of an evaluation, 1 of an update."""
    iteration: int
    task: str
    member: int
    status: str
    failure: str
    reward: float
    replays: int
    cut: int
    """The first turn, from 1, whose answer ended at a limit; 0 for none."""
    group: int = 0
    why: tuple[str, ...] = ()
    """Why turns of an update were not trained on; "" for those that were."""
    gaps: tuple[float, int] = (0.0, 0)
    """Sum of |log π - log μ| over the tokens that the trainer read with the weights that sampled them; their number."""
    widest: tuple[float, int, int] = (0.0, 0, 0)
    """The largest of these differences, its turn and its token, from 1."""
    stale: int = 0
    number: int = 0
    """Its number on the page, from 1, among those of its iteration and part."""


@dataclass(slots=True)
class Story:
    """The facts of a run; pure data."""

    name: str
    kind: str
    page: str
    """The name of the page's file."""
    settings: Row = field(default_factory=dict)
    result: Row = field(default_factory=dict)
    metrics: list[tuple[int, Row]] = field(default_factory=list)
    """Line numbers and rows, with their finite numbers alone."""
    alarms: list[tuple[int, str]] = field(default_factory=list)
    """Line numbers and texts."""
    episodes: list[Told] = field(default_factory=list)
    again: int = 0
    """Episodes that were played again, of which the last counts."""
    damaged: int = 0
    files: frozenset[str] = frozenset()


def read_story(path: Path, alarms: Callable[[Row, list[Row]], list[Any]]) -> Story:
    """Read a run's folder, or a file of episodes such as a gateway's record.

    Args:
        alarms: of a row of metrics, given the ones before.

    Raises:
        UsageError: nothing there is a run or a file of episodes.
        StorageError: a file of episodes is damaged.
    """
    if (path / SWEEP).is_file():
        runs = ", ".join(str(each.parent) for each in sorted(path.glob(f"**/{METRICS}"))[:4])
        raise UsageError(f"{path} has several runs; name one of them: {runs or 'none has begun'}")
    run = Run(path, "evaluation", {}, {}, [], "") if path.is_file() else open_run(path)
    if path.is_file():
        run.chosen = partial(_of_file, path)
    page = f"{path.stem}.html" if path.is_file() else "report.html"
    story = Story(run.name, run.kind, page, run.settings, run.result)
    run.damaged = 0
    rows = [] if path.is_file() else list(run.numbered(path / METRICS))
    story.metrics = [
        (line, {key: value for key, value in row.items() if finite(value) is not None}) for line, row in rows
    ]
    before: list[Row] = []
    for line, row in rows:
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
        story.alarms += [(line, str(alarm)) for alarm in alarms(numbers, [*before[:50], *before[50:][-50:]])]
        before.append(numbers)
    latest: dict[tuple[Any, ...], Told] = {}
    for part, episode in run.parts():
        key = identity(part, episode)
        story.again += latest.pop(key, None) is not None
        latest[key] = _told(part, episode)
    counts: dict[tuple[int, int], int] = {}
    for told in latest.values():
        place = told.part, told.iteration
        told.number = counts[place] = counts.get(place, 0) + 1
    story.episodes, story.damaged = list(latest.values()), run.damaged
    names = (*FILES, page) if path.is_dir() else (page,)
    folder = path if path.is_dir() else path.parent
    story.files = frozenset(name for name in names if (folder / name).is_file())
    return story


def _of_file(path: Path) -> Iterator[Row]:
    from rollenv.rollout.records.plain import to_plain
    from rollenv.rollout.records.stored import stored

    for each in stored(path):
        yield {"iteration": each.iteration, "reward": each.trajectory.reward, **to_plain(each.trajectory)}


def _told(part: int, episode: Mapping[str, Any]) -> Told:
    turns = [turn for turn in episode["turns"] if isinstance(turn, dict)]
    task, status = episode["task"], STATUSES[status_of(episode)]
    options = task.get("options")
    at = options.get("index") if isinstance(options, dict) else None
    where = f"seed {task.get('seed', 0)}" if at is None else f"task {at}"
    told = Told(
        part,
        _whole(episode.get("iteration"), -1),
        f"{task.get('env_id', '')} {where}"[:120],
        _whole(episode.get("member")),
        status,
        failure_of(episode) if status == "error" else "",
        finite(episode.get("reward")) or sum(finite(turn.get("reward")) or 0.0 for turn in turns),
        _whole(episode.get("replays")),
        next((n for n, turn in enumerate(turns, 1) if turn.get("finish") in ("length", "unfinished")), 0),
    )
    update = episode.get("update")
    if part and isinstance(update, dict):
        told.group = _whole(update.get("group"))
        numbers = update.get("turns")
        _read_update(told, turns, numbers if isinstance(numbers, list) else [], _whole(update.get("version")))
    return told


def _read_update(told: Told, turns: list[Row], numbers: list[Any], version: int) -> None:
    why = []
    for n, (turn, each) in enumerate(zip(turns, numbers, strict=False), 1):
        if not isinstance(each, dict) or not each:
            continue
        why.append(str(each.get("why") or ""))
        engine = turn.get("logprobs")
        engine = engine if isinstance(engine, list) else []
        oldest = turn.get("versions")
        versions = oldest if isinstance(oldest, list) and oldest else [turn.get("policy_version")] * len(engine)
        trainer, steps = (_spread(each.get(name), len(engine)) for name in ("logprobs", "steps"))
        for k, (a, b, step, sampled) in enumerate(zip(trainer, engine, steps, versions, strict=False), 1):
            age = version - _whole(sampled)
            told.stale = max(told.stale, age)
            x, y = finite(a), finite(b)
            if x is None or y is None or step != 0 or age:
                continue
            gap = abs(x - y)
            told.gaps = told.gaps[0] + gap, told.gaps[1] + 1
            told.widest = max(told.widest, (gap, n, k))
    told.why = tuple(dict.fromkeys(why))


def _spread(values: Any, count: int) -> list[Any]:
    return values if isinstance(values, list) else [values] * count


def _whole(value: Any, default: int = 0) -> int:
    return value if type(value) is int else default

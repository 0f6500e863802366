"""The facts of a run that :mod:`rollenv.report.explain` makes sentences of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.report.build import open_chosen
from rollenv.report.episodes import STATUSES, failure_of, identity, status_of
from rollenv.report.plain import finite, items, mapping, whole
from rollenv.rollout.records.folders import FILES, METRICS, SWEEP

Row = dict[str, Any]


@dataclass(slots=True)
class Told:
    """The facts of a stored episode; numbers of turns and tokens begin at 1."""

    part: int
    """0 of an evaluation, 1 of an update."""
    iteration: int
    task: str
    status: str
    failure: str
    reward: float
    replays: int
    cut: int
    """The first turn whose answer ended at a limit; 0 for none."""
    group: int = 0
    why: tuple[str, ...] = ()
    """Reasons for which turns of an update were not trained on; "" for those that were."""
    gaps: tuple[float, int] = (0.0, 0)
    """Sum of |log π - log μ| over the tokens that the trainer read with the weights that sampled them; their number."""
    widest: tuple[float, int, int] = (0.0, 0, 0)
    """The largest of these differences, its turn and its token."""
    stale: int = 0
    number: int = 0
    """Its number on the page, from 1, among those of its iteration and part."""


@dataclass(slots=True)
class Story:
    """The facts of a run; pure data. Rows and alarms have the numbers of their lines."""

    name: str
    kind: str
    page: str
    """The name of the page's file."""
    about: str = ""
    settings: Row = field(default_factory=dict)
    result: Row = field(default_factory=dict)
    metrics: list[tuple[int, Row]] = field(default_factory=list)
    alarms: list[tuple[int, str]] = field(default_factory=list)
    episodes: list[Told] = field(default_factory=list)
    again: int = 0
    """Episodes that were played again, of which the last counts."""
    damaged: int = 0
    files: frozenset[str] = frozenset()


def read_story(path: Path, alarms: Callable[[Row, list[Row]], Sequence[Any]]) -> Story:
    """Read a run's folder, or a file of episodes such as a gateway's record.

    Args:
        alarms: of a row of metrics, given the ones before.

    Raises:
        UsageError: nothing there is a run or a file of episodes.
        StorageError: a file of episodes is damaged.
    """
    runs = sorted({str(each.parent) for name in (METRICS, "eval.json") for each in path.glob(f"*/**/{name}")})
    if (path / SWEEP).is_file() or (runs and not any((path / name).is_file() for name in FILES)):
        raise UsageError(f"{path} has several runs; name one of them: {', '.join(runs[:4]) or 'none has begun'}")
    (run,) = open_chosen(path)
    page = f"{path.stem}.html" if path.is_file() else "report.html"
    about = " on ".join(filter(None, (run.agent, run.env_id)))
    story = Story(run.name, run.kind, page, about, run.settings, run.result)
    given = mapping(run.settings.get("batches")).get("kind") == "stored"
    run.damaged, before = 0, list[Row]()
    for line, row in run.numbered(path / METRICS):
        numbers = {key: value for key, value in row.items() if isinstance(value, float) or finite(value) is not None}
        if given:  # the entropy falls as the model learns the given answers
            numbers.pop("entropy", None)
        story.alarms += [(line, str(alarm)) for alarm in alarms(numbers, [*before[:50], *before[50:][-50:]])]
        story.metrics.append((line, {key: value for key, value in numbers.items() if finite(value) is not None}))
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
    names, folder = (FILES, path) if path.is_dir() else ((path.name,), path.parent)
    changed = {name: (folder / name).stat().st_mtime for name in (*names, page) if (folder / name).is_file()}
    current = changed.get(page, 0.0) >= max(changed.values(), default=0.0)
    story.files = frozenset(name for name in changed if current or name != page)
    return story


def _reward(given: Any, of_turns: Sequence[Any]) -> float:
    """Return an episode's reward, as the page shows it; NaN if it is no finite number."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return sum(finite(each) or 0.0 for each in of_turns)
    return math.nan if (known := finite(given)) is None else known


def _told(part: int, episode: Mapping[str, Any]) -> Told:
    turns = [turn for turn in episode["turns"] if isinstance(turn, dict)]
    task, status = episode["task"], STATUSES[status_of(episode)]
    at = mapping(task.get("options")).get("index")
    told = Told(
        part,
        whole(episode.get("iteration"), -1),
        " ".join(map(str, (task.get("env_id", ""), *(("seed", task.get("seed", 0)) if at is None else ("task", at)))))[
            :120
        ],
        status,
        failure_of(episode) if status == "error" else "",
        _reward(episode.get("reward"), [turn.get("reward") for turn in turns]),
        whole(episode.get("replays")),
        next((n for n, turn in enumerate(turns, 1) if turn.get("finish") in ("length", "unfinished")), 0),
    )
    update = episode.get("update")
    if not part or not isinstance(update, dict):
        return told
    told.group, version = whole(update.get("group")), whole(update.get("version"))
    numbers = [mapping(each) for each in items(update.get("turns"))]
    told.why = tuple(dict.fromkeys(str(each.get("why") or "") for each in numbers if each))
    for n, (turn, each) in enumerate(zip(turns, numbers, strict=False), 1):
        engine = items(turn.get("logprobs"))
        ages = [version - whole(v) for v in items(turn.get("versions")) or [turn.get("policy_version")] * len(engine)]
        told.stale = max(told.stale, *ages) if each and ages else told.stale
        trainer, steps = (items(each.get(name)) or [each.get(name)] * len(engine) for name in ("logprobs", "steps"))
        for k, (a, b, step, age) in enumerate(zip(trainer, engine, steps, ages, strict=False), 1):
            x, y = finite(a), finite(b)
            if x is not None and y is not None and step == 0 and not age:
                told.gaps = told.gaps[0] + abs(x - y), told.gaps[1] + 1
                told.widest = max(told.widest, (abs(x - y), n, k))
    return told

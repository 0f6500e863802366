"""Verification of a result on a panel: a folder that `rollenv eval PANEL --out` wrote.

It is counted anew from the stored episodes, and the episodes are played again with their stored actions. The seal is a
hash over all files of the result: it finds a change that nobody meant to hide. It is no signature.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollenv.core.errors import MissingData, UsageError
from rollenv.core.registry import spec
from rollenv.panels.check import differing_here, name_of
from rollenv.panels.identity import shown_in
from rollenv.panels.panel import Panel
from rollenv.panels.shelf import load_panel, panels
from rollenv.rollout.evaluate import key_of, summarise
from rollenv.rollout.records.storage import read, read_object
from rollenv.rollout.records.stored import StoredEpisode
from rollenv.rollout.regrade import regrade
from rollenv.rollout.types import Trajectory
from rollenv.rollout.workers.base import Workers

SETTINGS, EPISODES, RESULT = "eval.json", "episodes.jsonl", "result.json"
#: Keys of the settings that change while an evaluation runs.
_CHANGING = ("seconds", "open")
#: Settings that eval.json and result.json both have.
_COMMON = ("agent", "panel", "k", "n", "temperature", "max_tokens", "system", "policy")
#: Numbers that are computed anew.
_NUMBERS = ("n", "success", "low", "high", "reward", "turns", "failed", "failures", "pass_at", "pass_all")
#: Those that results of ``rollenv bench`` lack.
_OF_EVAL = ("distinct", "tasks_low", "tasks_high", "cut")


class Verified(NamedTuple):
    """What a verification has found."""

    problems: list[str]
    """Sentences about what is wrong; none if the result is what it says."""
    episodes: int
    replayed: int
    """Number of those that were played again; the others were only counted."""


def seal(folder: Path, numbers: Mapping[str, Any]) -> str:
    """Return the seal of a result: SHA-256 over its settings, episodes and numbers."""
    settings = {key: value for key, value in _json(folder / SETTINGS).items() if key not in _CHANGING}
    numbers = {key: value for key, value in numbers.items() if key != "seal"}
    parts = hashlib.sha256(json.dumps([settings, json.loads(json.dumps(numbers))], sort_keys=True).encode())
    with open(folder / EPISODES, "rb") as file:
        while block := file.read(1 << 20):
            parts.update(block)
    return parts.hexdigest()


def verify(
    folder: Path,
    panel: Panel,
    workers: Workers | None = None,
    *,
    replays: int | None = None,
    watch: Callable[[int], object] = lambda done: None,
) -> Verified:
    """Count a result again and play its episodes again.

    Args:
        workers: where the episodes are played again.
        replays: number of episodes to play again, at equal distances; None for all.
        watch: called with the number of episodes played again.

    Raises:
        UsageError: the folder holds no result on this panel.
    """
    settings, problems = _json(folder / SETTINGS), []
    result = read_object(
        folder / RESULT, "one that is not finished has none: `rollenv eval PANEL --out FOLDER --resume`"
    )
    if settings.get("panel") != panel.identity:
        raise UsageError(f"{folder} holds a result on {settings.get('panel')}, not on {panel.identity}")
    for key in _COMMON:
        if settings.get(key) != result.get(key):
            problems.append(f"{SETTINGS} says {key}={settings.get(key)!r}, {RESULT} says {result.get(key)!r}")
    try:
        sealed = seal(folder, result)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}; restore it") from error
    if result.get("seal") != sealed:
        problems.append(f"the seal in {RESULT} is not that of the files: at least one of them was changed afterwards")
    for key, value in panel.protocol.model_dump(exclude_none=True).items():
        if settings.get(key) != value:
            problems.append(f"the panel fixes {key}={value!r}, {SETTINGS} says {settings.get(key)!r}")
    episodes = list(read(folder / EPISODES))
    own = _of_members(panel, episodes)
    problems += _count(panel, episodes, own, result)
    missing = [need for part in panel.parts for need in spec(part.env).missing]
    if missing and replays != 0:
        raise MissingData(f"to play the episodes again, {missing[0]}; or only count them, with --sample 0")
    if replays != 0 and (differing := differing_here(panel)):
        problems.append(f"{len(differing)} members are other tasks here; the first: {differing[0]}")
    again = [t for _, t in own if replayable(t)]
    again = again[:: max(1, len(again) // replays)][:replays] if replays else again[:replays]
    problems += _replayed(again, workers, watch)
    return Verified(problems, len(episodes), len(again))


def _of_members(panel: Panel, episodes: Iterable[Trajectory]) -> list[tuple[int, Trajectory]]:
    """Return the episodes that are of members, by the rules of the panel, each with its member's number."""
    tasks = panel.tasks()
    place = {key_of(task): at for at, task in enumerate(tasks)}
    found = ((place.get(key_of(t.task)), t) for t in episodes if 0 <= t.member < panel.protocol.k)
    return [(at, t) for at, t in found if at is not None and t.task.wrappers == tasks[at].wrappers]


def _count(
    panel: Panel, episodes: Sequence[Trajectory], own: Sequence[tuple[int, Trajectory]], result: Mapping[str, Any]
) -> Iterator[str]:
    """Compare the stored episodes with the members, and the numbers with the episodes."""
    names, k = [name_of(*place, at) for at, place in enumerate(panel.placed())], panel.protocol.k
    known = {id(t) for _, t in own}
    if strangers := [t for t in episodes if id(t) not in known]:
        first = strangers[0]
        yield f"{len(strangers)} episodes are of no member; the first has {first.task}, member={first.member}"
    complete = Counter((at, t.member) for at, t in own if t.complete)
    if twice := [at for (at, _), times in complete.items() if times > 1]:
        yield f"{len(twice)} episodes are stored twice; the first is of {names[twice[0]]}"
    last = {(at, t.member): t for at, t in sorted(own, key=lambda each: each[1].complete)}
    if lacking := [at for at in range(len(names)) for member in range(k) if (at, member) not in last]:
        yield f"{len(lacking)} episodes are missing; the first is of {names[lacking[0]]}"
    for (at, _), trajectory in last.items():
        if shown_in(trajectory) not in (None, panel.members[at].shows):
            yield f"{names[at]} began with another text than the panel's task"
            break
    failed = [at for (at, _), t in last.items() if t.status == "failed" and t.failure != "user"]
    if failed:
        yield (
            f"{len(failed)} episodes failed, and are not graded; the first is of {names[failed[0]]}. "
            "`rollenv eval PANEL --out FOLDER --resume` plays them again"
        )
    counted = [last[key] for key in sorted(last)]
    if len(counted) == len(names) * k:
        numbers = summarise(panel.name, counted, k, 0.0).to_dict()
        for name in (*_NUMBERS, *filter(result.__contains__, _OF_EVAL)):
            if not _agree(result.get(name), numbers[name]):
                yield f"{RESULT} says {name}={result.get(name)}, the episodes have {numbers[name]}"


def _agree(said: Any, found: Any) -> bool:
    """Return whether a number of a file, or several of them by name, is what was found."""
    if isinstance(found, Mapping):
        names = {str(name): value for name, value in found.items()}
        return (
            isinstance(said, Mapping) and said.keys() == names.keys() and all(_agree(said[n], names[n]) for n in names)
        )
    if isinstance(found, tuple):
        return isinstance(said, list) and len(said) == len(found) and all(map(_agree, said, found))
    return type(said) in (int, float) and math.isclose(said, found, rel_tol=1e-9, abs_tol=1e-12)


def _replayed(chosen: Sequence[Trajectory], workers: Workers | None, watch: Callable[[int], object]) -> Iterator[str]:
    """Play episodes again with their stored actions and compare rewards and ends."""
    # the tasks are the panel's, whose names the reader has trusted by naming it
    each = regrade((StoredEpisode(t) for t in chosen), workers, trust=True)
    wrong: dict[str, list[str]] = {"differ when they are played again": [], "cannot be played again": []}
    for number, regraded in enumerate(each, 1):
        watch(number)
        what = "cannot be played again" if regraded.kind == "failed" else "differ when they are played again"
        old = regraded.old.trajectory
        if reason := regraded.reason or _differs(old, regraded.new or old):
            wrong[what].append(f"{old.task.env_id}, seed {old.task.seed}, {old.task.options}: {reason}")
    for what, found in wrong.items():
        if found:
            yield f"{len(found)} of {len(chosen)} episodes {what}; the first: {found[0]}"


def _differs(old: Trajectory, new: Trajectory) -> str:
    """Say what of an episode differs though the sum of its rewards does not; empty if nothing does."""
    rewards = [[turn.reward for turn in each.turns] for each in (old, new)]
    if old.env_reward is None and not _agree(rewards[0], tuple(rewards[1])):
        return "its turns have other rewards"
    (was, said), (now, says) = ((each.status, each.final_observation) for each in (old, new))
    if (was, said) == (now, says):
        return ""
    return f"it ends by {now!r} with {says!r:.80}, not by {was!r} with {said!r:.80}"


def replayable(trajectory: Trajectory) -> bool:
    """Return whether an episode can be played again: not one of several players, or of a program."""
    return trajectory.complete and not trajectory.record and not any(turn.rewards for turn in trajectory.turns)


def result_panel(folder: Path) -> dict[str, Any] | None:
    """Return the identity of the panel that a result is of; None if it is of none.

    Raises:
        UsageError: the folder holds no evaluation.
    """
    found = _json(folder / SETTINGS).get("panel")
    return found if isinstance(found, dict) else None


def check_same_panel(first: Path, second: Path) -> None:
    """Check that two results can be compared: both on the same panel, played by the same rules, or both on none.

    Raises:
        UsageError: says what differs.
    """
    ours, theirs = _json(first / SETTINGS), _json(second / SETTINGS)
    one, other = ours.get("panel") or {}, theirs.get("panel") or {}
    for key in ("name", "version", "hash"):
        if one.get(key) != other.get(key):
            raise UsageError(
                f"{first} and {second} do not compare: their panels have {key} {one.get(key)} and {other.get(key)}"
                f"{_first_difference(one, other)}"
            )
    for key in ("k", "temperature", "max_tokens", "calls") if one else ():
        if ours.get(key) != theirs.get(key) and {ours.get(key), theirs.get(key)} != {None, ""}:
            raise UsageError(
                f"{first} and {second} do not compare: one was played with {key}={ours.get(key)}, the other with "
                f"{theirs.get(key)}"
            )


def _first_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Name the first member that differs, if both panels are installed here."""
    if not {first.get("name"), second.get("name")} <= {*panels()}:
        return ""
    ours, theirs = (load_panel(str(one["name"])).placed() for one in (first, second))
    pairs = enumerate(zip(ours, theirs, strict=False))
    found = next((name_of(*place, number) for number, (place, other) in pairs if place != other), "")
    return f"; the first member that differs is {found}" if found else ""


def _json(file: Path) -> dict[str, Any]:
    return read_object(file, "a result is a folder of `rollenv eval --out`")

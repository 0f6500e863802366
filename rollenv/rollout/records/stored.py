"""Stored episodes of any kind: run, evaluation and benchmark folders, files of trajectories, records of gateways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollenv.agents.gateway.session import GatewaySession
from rollenv.agents.gateway.sessions import recorded_sessions
from rollenv.core.errors import UsageError, reads
from rollenv.rollout.records.folders import EPISODES, Run, find_runs, open_run
from rollenv.rollout.records.pictures import PictureFiles
from rollenv.rollout.records.plain import from_plain, to_plain
from rollenv.rollout.records.sessions import session_trajectory
from rollenv.rollout.records.storage import json_lines, read
from rollenv.rollout.records.where import Where
from rollenv.rollout.seats import own_view
from rollenv.rollout.types import Group, Trajectory


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """An episode with what its file says beside the trajectory."""

    trajectory: Trajectory
    iteration: int | None = None
    """Iteration of training in whose evaluation it was played."""
    run: Run | None = None
    """The folder's settings; None for a file."""
    session: GatewaySession | None = None
    """The gateway's session that it was converted from."""
    trust: bool = False
    """True if what its task names may be run and connected to (:mod:`rollenv.core.trust`)."""


def stored_episodes(path: str | Path, where: str = "") -> Iterator[Trajectory]:
    """Iterate over stored episodes, of games over the turns of their own seat; see :func:`stored`."""
    return (own_view(episode.trajectory) for episode in stored(path, where))


def stored(path: str | Path, where: str = "") -> Iterator[StoredEpisode]:
    """Iterate over stored episodes.

    Of an episode that an evaluation played again after a failure, only the last attempt is given, after the others.

    Args:
        path: a folder of ``rollenv train``, ``eval`` or ``bench``, or of several of them; a file of trajectories or
            groups; a gateway's record.
        where: condition, such as ``success and turns < 8`` (:class:`~rollenv.rollout.records.where.Where`).

    Raises:
        UsageError: there are no episodes at this path, or the condition is none.
        StorageError: a file is damaged.
    """
    path, chosen = Path(path), Where(where)
    if path.is_dir():
        folders = [folder for folder in find_runs(path).values() if (folder / EPISODES).is_file()]
        if not folders:
            raise UsageError(
                f"{path} has no stored episodes ({EPISODES}): runs keep those of evaluations, `rollenv eval --out` "
                "all that it plays"
            )
        episodes: Iterator[StoredEpisode] = (e for folder in folders for e in _of_folder(folder, alone=folder == path))
    elif path.is_file():
        episodes = _of_file(path)
    else:
        raise UsageError(f"there is no file or folder {str(path)!r}")
    return _chosen(episodes, chosen)


def _chosen(episodes: Iterator[StoredEpisode], where: Where) -> Iterator[StoredEpisode]:
    yield from (episode for episode in episodes if where(episode.trajectory, episode.iteration))
    where.check_names()


def _of_folder(folder: Path, alone: bool) -> Iterator[StoredEpisode]:
    run = open_run(folder)
    if run.settings.get("regraded") and not alone:
        return
    failed: dict[str, StoredEpisode] = {}
    files = PictureFiles(folder)
    for where, data in json_lines(folder / EPISODES):
        episode = _episode(data, where, files, run)
        t = episode.trajectory
        key = repr((episode.iteration, t.task, t.member))
        failed.pop(key, None)
        if t.complete:
            yield episode
        else:
            failed[key] = episode
    yield from failed.values()


def _of_file(path: Path) -> Iterator[StoredEpisode]:
    if path.suffix == ".parquet":
        yield from map(StoredEpisode, read(path))
        return
    lines = json_lines(path)
    first = next(lines, None)
    if first is None:
        raise UsageError(f"{path} is empty: it has no episodes")
    where, data = first
    keys = data.keys() if isinstance(data, dict) else set()
    if "session" in keys:
        yield from _of_record(path)
    elif "trajectories" in keys:
        yield from (StoredEpisode(t) for group in read(path, Group) for t in group)
    elif {"task", "turns"} <= keys:
        files = PictureFiles(path.parent)
        for where, data in json_lines(path):
            yield _episode(data, where, files)
    else:
        raise UsageError(f"{where} is no stored episode: it has {', '.join(map(str, keys))[:100] or 'no keys'}")


def _episode(data: Any, where: str, files: PictureFiles, run: Run | None = None) -> StoredEpisode:
    iteration = data.pop("iteration", None) if isinstance(data, dict) else None
    if isinstance(data, dict):
        data.pop("update", None)  # numbers of its tokens in training
    trajectory = from_plain(Trajectory, data, where, files)
    return StoredEpisode(trajectory, iteration if type(iteration) is int else None, run)


def _of_record(path: Path) -> Iterator[StoredEpisode]:
    """Yield the sessions of a gateway's record; those of one task are a group."""
    groups: dict[str, int] = {}
    members: Counter[str] = Counter()
    for session in recorded_sessions((event for _, event in json_lines(path)), str(path)):
        with reads(f"{path}: the session {session.id} is damaged"):
            trajectory = session_trajectory(session)
            seen = [replace(turn, prompt_images=()) for turn in trajectory.turns]
            from_plain(Trajectory, to_plain(replace(trajectory, turns=seen)), f"{path}: session {session.id}")
        name = trajectory.task.env_id
        trajectory.group, trajectory.member = groups.setdefault(name, len(groups)), members[name]
        members[name] += 1
        yield StoredEpisode(trajectory, session=session)

"""Metric trackers in addition to the run folder.

Inside :class:`Trackers`, a tracker that fails logs a warning and training continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.core.plugins import load
from rollenv.rollout.types import Trajectory
from rollenv.trainers.alarms import Alarm

if TYPE_CHECKING:
    from rollenv.trainers.config.run import TrackersConfig

logger = logging.getLogger(__name__)


class Tracker:
    """Logs a run. The time axis is the iteration; metrics have the names of ``metrics.jsonl``.

    Trackers are entry points of the group ``rollenv.trackers``, each naming a function from the settings
    (:class:`~rollenv.trainers.config.run.TrackersConfig`) to a tracker, which overrides what it logs.
    """

    def start(self, run_path: Path, config: dict[str, Any]) -> None:
        """Start a run, or continue that of an earlier process."""

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Log numbers."""

    def episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        """Log some of the episodes as text."""

    def alarm(self, iteration: int, alarm: Alarm) -> None:
        """Report an alarm of the trainer."""

    def finish(self, artifacts: Sequence[Path]) -> None:
        """Finish the run, and wait until everything is stored."""


class Trackers:
    """Several trackers as one that never raises: the first failure of each tracker is logged as a warning.

    A tracker that fails to start is not used; one that fails later is tried again with the next numbers.
    """

    def __init__(self, trackers: Sequence[Tracker] = ()):
        self.trackers = list(trackers)
        self._warned: set[int] = set()

    def start(self, run_path: Path, config: dict[str, Any]) -> None:
        self.trackers = self._each("start", lambda tracker: tracker.start(run_path, config))

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._each("log", lambda tracker: tracker.log(iteration, metrics))

    def episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        self._each("log episodes", lambda tracker: tracker.episodes(iteration, trajectories))

    def alarm(self, iteration: int, alarm: Alarm) -> None:
        self._each("report an alarm", lambda tracker: tracker.alarm(iteration, alarm))

    def finish(self, artifacts: Sequence[Path]) -> None:
        self._each("finish", lambda tracker: tracker.finish(artifacts))

    def _each(self, what: str, call: Callable[[Tracker], None]) -> list[Tracker]:
        """Call all trackers, and return those that did not fail."""
        done = []
        for tracker in self.trackers:
            try:
                call(tracker)
                done.append(tracker)
            except (Exception, SystemExit) as error:  # no failure of a library may stop training
                if id(tracker) not in self._warned:
                    self._warned.add(id(tracker))
                    logger.warning(
                        "%s could not %s: %s: %s. Training goes on; metrics.jsonl in the run's folder has all numbers",
                        type(tracker).__name__,
                        what,
                        type(error).__name__,
                        error,
                    )
        return done


def trackers_of(settings: TrackersConfig) -> list[Tracker]:
    """Create the trackers of a recipe."""
    names = [*settings.use, *(["alerts"] if settings.alerts else [])]
    return [load("rollenv.trackers", name, Callable)(settings) for name in names]

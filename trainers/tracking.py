"""Metric trackers in addition to the run folder: Weights & Biases, TensorBoard, and those of other packages.

Inside :class:`Trackers`, a tracker that fails logs a warning and training continues.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.core.errors import UsageError
from rollenv.core.needs import extra, require_extra
from rollenv.core.plugins import load
from rollenv.rollout.types import Trajectory
from rollenv.trainers.alarms import Alarm

if TYPE_CHECKING:
    from rollenv.trainers.config.run import TrackersConfig

logger = logging.getLogger(__name__)


#: Maximum number of logged episodes per call, and of characters of each.
MOST_EPISODES = 16
MOST_CHARACTERS = 20_000

_LONGEST_NAME = 100


class Tracker:
    """Logs a run. The time axis is the iteration; metrics have the names of ``metrics.jsonl``.

    Other packages add trackers through the entry point group ``rollenv.trackers``, each entry naming a function from
    the settings (:class:`~rollenv.trainers.config.run.TrackersConfig`) to a tracker, which overrides what it logs.
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
        started = []
        for tracker in self.trackers:
            with self._guarded(tracker, "start"):
                tracker.start(run_path, config)
                started.append(tracker)
        self.trackers = started

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for tracker in self.trackers:
            with self._guarded(tracker, "log"):
                tracker.log(iteration, metrics)

    def episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        for tracker in self.trackers:
            with self._guarded(tracker, "log episodes"):
                tracker.episodes(iteration, trajectories)

    def alarm(self, iteration: int, alarm: Alarm) -> None:
        for tracker in self.trackers:
            with self._guarded(tracker, "report an alarm"):
                tracker.alarm(iteration, alarm)

    def finish(self, artifacts: Sequence[Path]) -> None:
        for tracker in self.trackers:
            with self._guarded(tracker, "finish"):
                tracker.finish(artifacts)

    @contextlib.contextmanager
    def _guarded(self, tracker: Tracker, what: str) -> Iterator[None]:
        try:
            yield
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


@dataclass
class Continued:
    """A tracker's file in the run folder, with which a resumed run continues without duplicate rows."""

    file: Path
    id: str = ""
    logged: int = -1
    """The latest iteration that was logged."""

    @classmethod
    def read(cls, file: Path) -> Continued:
        try:
            saved = json.loads(file.read_text())
            return cls(file, str(saved["id"]), int(saved.get("logged", -1)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(file)

    def write(self) -> None:
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps({"id": self.id, "logged": self.logged}) + "\n")
        partial.replace(self.file)

    def is_new(self, iteration: int) -> bool:
        """Return whether an iteration was not logged yet, and mark it as logged."""
        if iteration <= self.logged:
            return False
        self.logged = iteration
        self.write()
        return True


def name_and_group(run_path: Path) -> tuple[str, str]:
    """Return the name of a run in a tracker, and its group: those of ``rollenv train --seeds`` have one a setting.

    Names and groups have at most 128 characters, as W&B demands.
    """
    name, above = run_path.name, run_path.absolute().parent
    if not re.fullmatch(r"seed-\d+", name):
        return name, ""
    group = f"{above.parent.name}/{above.name}" if "=" in above.name else above.name
    if len(group) > _LONGEST_NAME:
        group = f"{group[:_LONGEST_NAME]}-{hashlib.sha256(group.encode()).hexdigest()[:8]}"
    return f"{group}/{name}", group


class WandbTracker(Tracker):
    """Weights & Biases: settings, curves, a table of episodes, and the report as an artifact.

    A resumed run has the same id, which is in ``wandb.json`` of the run folder. Iterations that were logged before a
    crash are not logged again.

    Args:
        entity: a team; by default the account's own.
        mode: ``online``, ``offline`` (files in the run folder, for ``wandb sync``) or ``disabled``; by default
            ``WANDB_MODE``.
        name: name of the run; by default :func:`name_and_group` of its folder.
    """

    def __init__(
        self,
        project: str = "rollenv",
        *,
        entity: str | None = None,
        mode: str | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
    ):
        self._wandb: Any = require_extra("wandb", "wandb", "Tracking with Weights & Biases")
        if mode not in (None, "online", "offline", "disabled"):
            raise UsageError(f"W&B has the modes online, offline and disabled, not {mode!r}")
        self.project, self.entity, self.mode, self.name, self.tags = project, entity, mode, name, tuple(tags)
        self._run: Any = None

    def start(self, run_path: Path, config: dict[str, Any]) -> None:
        wandb = self._wandb
        self._kept = Continued.read(run_path / "wandb.json")
        self._kept.id = self._kept.id or secrets.token_hex(4)
        self._kept.write()
        name, group = name_and_group(run_path)
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            name=self.name or name,
            group=group or None,
            tags=self.tags or None,
            id=self._kept.id,
            resume="allow",
            dir=str(run_path),
            mode=self.mode,
            reinit="create_new",  # do not end another run of this process
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )
        self._run.config.update(config, allow_val_change=True)
        self._run.define_metric("*", step_metric="iteration")

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if self._kept.is_new(iteration):
            self._run.log({"iteration": iteration, **metrics})

    def episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        rows = episode_rows(trajectories)
        if rows:
            table = self._wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
            self._run.log({"iteration": iteration, "episodes": table})

    def finish(self, artifacts: Sequence[Path]) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            if existing := [path for path in artifacts if path.is_file()]:
                artifact = self._wandb.Artifact(f"run-{run.id}-files", type="rollenv-run")
                for path in existing:
                    artifact.add_file(str(path), name=path.name)
                run.log_artifact(artifact)
        finally:
            run.finish()


class TensorBoardTracker(Tracker):
    """TensorBoard: curves, episodes as text, settings as hyper-parameters, in ``tensorboard/`` of the run folder.

    A resumed run replaces points after the checkpoint.
    """

    def __init__(self) -> None:
        with extra("tensorboard", "Tracking with TensorBoard"):
            from torch.utils import tensorboard
        self._library: Any = tensorboard
        self._folder, self._config = Path(), dict[str, Any]()
        self._writer: Any = None

    def start(self, run_path: Path, config: dict[str, Any]) -> None:
        self._folder, self._config = run_path / "tensorboard", config
        self._folder.mkdir(exist_ok=True)

    def _open_writer(self, iteration: int) -> Any:
        """Return the writer, created at the first iteration, where the run continues."""
        if self._writer is None:
            self._writer = self._library.SummaryWriter(str(self._folder), purge_step=iteration)
            self._writer.add_text("config", _as_code(json.dumps(self._config, indent=2)), iteration)
        return self._writer

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        first = self._writer is None
        writer = self._open_writer(iteration)
        if first:
            hparams = self._library.writer.hparams(flat(self._config), dict.fromkeys(metrics, 0.0))
            for summary in hparams:
                writer.file_writer.add_summary(summary)
        for name, value in metrics.items():
            writer.add_scalar(name, value, iteration)
        writer.flush()

    def episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        writer = self._open_writer(iteration)
        for number, row in enumerate(episode_rows(trajectories)):
            writer.add_text(f"episodes/{number}", _as_code(episode_text(row)), iteration)
        writer.flush()

    def finish(self, artifacts: Sequence[Path]) -> None:
        """Close the file. TensorBoard stores no other files."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def trackers_of(settings: TrackersConfig) -> list[Tracker]:
    """Create the trackers of a recipe."""
    own = {"wandb": lambda: WandbTracker(settings.project), "tensorboard": TensorBoardTracker}
    names = [*settings.use]
    if settings.alerts:
        names.append("alerts")
    return [own[name]() if name in own else load("rollenv.trackers", name)(settings) for name in names]


def episode_rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Choose evenly spaced episodes and return them as rows of a table, with the same keys and plain values."""
    n, most = len(trajectories), MOST_EPISODES
    chosen = trajectories if n <= most else [trajectories[i * n // most] for i in range(most)]
    return [
        {
            "env": t.task.env_id,
            "seed": str(t.task.seed),  # tables of W&B round large integers
            "member": t.member,
            "status": t.status,
            "success": t.success,
            "reward": t.reward if math.isfinite(t.reward) else str(t.reward),
            "turns": len(t.turns),
            "episode": transcript(t),
        }
        for t in chosen
    ]


def episode_text(row: Mapping[str, Any]) -> str:
    """Format a row of :func:`episode_rows` as text."""
    head = "\n".join(f"{name}: {value}" for name, value in row.items() if name != "episode")
    return f"{head}\n\n{row['episode']}"


def transcript(trajectory: Trajectory) -> str:
    """Return an episode as readable text; the middle of a long one is left out."""
    texts = [
        f"[{number}] {turn.observation}\n> {turn.raw or turn.text}\n({turn.reward:g})"
        for number, turn in enumerate(trajectory.turns, 1)
    ]
    ending = trajectory.error or trajectory.final_observation
    text = "\n\n".join(filter(None, [*texts, ending])).encode("utf-8", "replace").decode()
    half = MOST_CHARACTERS // 2
    return text if len(text) <= 2 * half else f"{text[:half]}\n[...]\n{text[-half:]}"


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, bool | int | float | str]:
    """Flatten nested settings to dotted keys; lists and empty values become text."""
    out: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{before}{key}.")
        else:
            out[before + key] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return out


def _as_code(text: str) -> str:
    """Format text verbatim in Markdown, as an indented code block."""
    return "\n".join("    " + line for line in text.splitlines())

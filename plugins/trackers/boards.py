"""Weights & Biases and TensorBoard."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.needs import extra, require_extra
from rollenv.plugins.trackers.common import Continued, episode_rows, episode_text, flat, name_and_group
from rollenv.rollout.types import Trajectory
from rollenv.trainers.config.run import TrackersConfig
from rollenv.trainers.tracking import Tracker


def wandb(settings: TrackersConfig) -> Tracker:
    """Return the tracker of a recipe with ``trackers.use = ["wandb"]``."""
    return WandbTracker(settings.project)


def tensorboard(settings: TrackersConfig) -> Tracker:
    """Return the tracker of a recipe with ``trackers.use = ["tensorboard"]``."""
    return TensorBoardTracker()


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


def _as_code(text: str) -> str:
    """Format text verbatim in Markdown, as an indented code block."""
    return "\n".join("    " + line for line in text.splitlines())

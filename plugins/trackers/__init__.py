"""Trackers of training runs: SwanLab, MLflow, and a webhook for alarms."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from rollenv.core.needs import require_extra
from rollenv.plugins.trackers.common import Continued, episode_rows, episode_text, flat, name_and_group
from rollenv.rollout.types import Trajectory
from rollenv.trainers.alarms import Alarm
from rollenv.trainers.config.run import TrackersConfig
from rollenv.trainers.tracking import Tracker


def swanlab(settings: TrackersConfig) -> Tracker:
    """Return the tracker of a recipe with ``trackers.use = ["swanlab"]``."""
    return SwanLabTracker(settings.project)


def mlflow(settings: TrackersConfig) -> Tracker:
    """Return the tracker of a recipe with ``trackers.use = ["mlflow"]``."""
    return MlflowTracker(settings.project)


def alerts(settings: TrackersConfig) -> Tracker:
    """Return the tracker of a recipe with ``trackers.alerts = "https://..."``."""
    return AlertTracker(settings.alerts)


class SwanLabTracker(Tracker):
    """SwanLab: settings, curves and episodes as text. ``SWANLAB_MODE=offline`` stores them in the run folder."""

    def __init__(self, project: str = "rollenv"):
        self._swanlab: Any = require_extra("swanlab", "swanlab", "Tracking with SwanLab")
        self.project = project
        self._run: Any = None

    def start(self, run_path: Path, config: dict[str, Any]) -> None:
        self._kept = Continued.read(run_path / "swanlab.json")
        mode = os.environ.get("SWANLAB_MODE")
        online = mode in (None, "", "online")  # only online runs can be resumed by id
        self._kept.id = self._kept.id or secrets.token_hex(8)
        self._kept.write()
        resume = {"id": self._kept.id, "resume": "allow"} if online else {}
        folder = str(run_path / "swanlab")
        name, _ = name_and_group(run_path)
        self._run = self._swanlab.init(
            project=self.project, name=name, config=config, log_dir=folder, mode=mode, reinit=True, **resume
        )

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if self._kept.is_new(iteration):
            self._run.log(dict(metrics), step=iteration)

    def episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        texts = [self._swanlab.Text(episode_text(row)) for row in episode_rows(trajectories)]
        if texts:
            self._run.log({"episodes": texts}, step=iteration)

    def finish(self, artifacts: Sequence[Path]) -> None:
        """Finish the run. SwanLab stores no other files."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()


class MlflowTracker(Tracker):
    """MLflow: settings as parameters, curves, episodes and the report as artifacts.

    They are stored at ``MLFLOW_TRACKING_URI``, by default in ``mlflow/`` of the run folder.

    Args:
        project: the MLflow experiment.
    """

    def __init__(self, project: str = "rollenv"):
        self._mlflow: Any = require_extra("mlflow", "mlflow", "Tracking with MLflow")
        self.project = project
        self._client: Any = None

    def start(self, run_path: Path, config: dict[str, Any]) -> None:
        folder = (run_path / "mlflow").absolute()
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            folder.mkdir(exist_ok=True)
        self._client = self._mlflow.MlflowClient(uri or f"sqlite:///{folder / 'mlflow.db'}")
        self._kept = Continued.read(run_path / "mlflow.json")
        if self._kept.id:
            self._client.update_run(self._kept.id, status="RUNNING")
            return
        existing = self._client.get_experiment_by_name(self.project)
        artifacts = None if uri else (folder / "artifacts").as_uri()
        experiment = existing.experiment_id if existing else self._client.create_experiment(self.project, artifacts)
        name, group = name_and_group(run_path)
        tags = {"group": group} if group else {}
        self._kept.id = self._client.create_run(experiment, run_name=name, tags=tags).info.run_id
        self._kept.write()
        for key, value in flat(config).items():
            self._client.log_param(self._kept.id, key, str(value)[:6000])

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if self._kept.is_new(iteration):
            now = int(time.time() * 1000)
            metric = self._mlflow.entities.Metric
            allowed = {re.sub(r"[^/\w.\- :]", "_", name): float(value) for name, value in metrics.items()}
            self._client.log_batch(self._kept.id, [metric(*pair, now, iteration) for pair in allowed.items()])

    def episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        text = "\n\n----\n\n".join(episode_text(row) for row in episode_rows(trajectories))
        if text:
            self._client.log_text(self._kept.id, text, f"episodes/{iteration:06d}.txt")

    def finish(self, artifacts: Sequence[Path]) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        for path in artifacts:
            if path.is_file():
                client.log_artifact(self._kept.id, str(path))
        client.set_terminated(self._kept.id)


class AlertTracker(Tracker):
    """Posts the trainer's alarms to a webhook as ``{"text", "run", "iteration", "alarm"}``; Slack shows the text.

    Args:
        url: address of the webhook, http or https.
    """

    def __init__(self, url: str):
        self.url = url
        self._run = ""

    def start(self, run_path: Path, config: dict[str, Any]) -> None:
        self._run = name_and_group(run_path)[0]

    def alarm(self, iteration: int, alarm: Alarm) -> None:
        """Post an alarm."""
        text = f"{self._run}, iteration {iteration}: {alarm}"
        body = {"text": text, "run": self._run, "iteration": iteration, "alarm": alarm.name}
        httpx.post(self.url, json=body, timeout=10).raise_for_status()

"""MLflow and SwanLab store a run and continue it without double rows."""

import pytest

from rollenv.plugins.trackers import MlflowTracker, SwanLabTracker
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.trainers.tracking import Trackers

CONFIG = {"seed": 3, "env": {"id": "game:Sokoban-v0-easy"}, "optimizer": {"lr": 1e-4, "betas": [0.9, 0.95]}}
EPISODE = Trajectory(
    Task("game:Sokoban-v0-easy", 2**47 + 1), [Turn((), (), (), 0.5, "up", "saw \ud800")], "terminated", True
)


def follow(tracker, path, iterations):
    tracker.start(path, CONFIG)
    for i in iterations:
        tracker.log(i, {"reward": i / 4, "time/collect": 1.5})
    tracker.episodes(iterations[-1], [EPISODE])
    (path / "report.html").write_text("<p>report</p>")
    tracker.finish([path / "report.html", path / "absent.html"])


def test_mlflow_has_settings_curves_episodes_and_the_report_once(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    follow(MlflowTracker("rooms"), tmp_path, range(4))
    follow(MlflowTracker("rooms"), tmp_path, range(2, 6))  # the checkpoint was at 1
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'rooms'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (tmp_path.name, "FINISHED")
    assert run.data.params["optimizer.lr"] == "0.0001"
    curve = client.get_metric_history(run.info.run_id, "reward")
    assert [(point.step, point.value) for point in curve] == [(i, i / 4) for i in range(6)]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"episodes", "report.html"}


def test_swanlab_stores_a_run_offline(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    tracker = SwanLabTracker("rooms")
    follow(Trackers([tracker]), tmp_path, range(4))
    follow(Trackers([SwanLabTracker("rooms")]), tmp_path, range(2, 6))
    assert "could not" not in caplog.text
    stored = [path for path in (tmp_path / "swanlab").rglob("*") if path.is_file()]
    assert stored
    assert any(b"time/collect" in path.read_bytes() for path in stored)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

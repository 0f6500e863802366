"""A run whose processes Ray Train starts, on one machine or on a cluster, and starts again when one is lost."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv import registry
from rollenv.core import RollenvError, UsageError
from rollenv.env_spec import EnvSpec
from rollenv.needs import extra
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.placement import PlacementConfig
from rollenv.trainers.run_dir import RunDir

with extra("ray", "Training on several ranks"):
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, get_context
    from ray.train.torch import TorchConfig, TorchTrainer, get_device
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from rollenv import ray_calls

if TYPE_CHECKING:
    from rollenv.trainers.trainer import Result, Watch

#: Seconds between two looks at what the first rank says.
_LOOK_EVERY = 0.2

#: Seconds in which Ray tries to start all ranks, before it counts that as a failure and tries again.
_START_SECONDS = 60.0

#: The longest time of an update; a rank that does not answer for so long is lost.
_COLLECTIVE_SECONDS = 3600

logger = logging.getLogger(__name__)


class RankFailed(RollenvError):
    """A process of the run has ended, and the run with it."""


def train_on_ranks(config: TrainConfig, run: RunDir, watch: Watch) -> Result:
    """Train a run on ``config.placement.ranks`` devices, each with a process of its own.

    Args:
        run: its folder, which all machines of a cluster have to see under the same path.

    Raises:
        UsageError: there is no such cluster, or it has too few devices.
        RankFailed: a process was lost more often than ``config.placement.max_failures``.
        RollenvError: what ended the run on a rank.
    """
    placement = config.placement
    others = config.actor_cpus
    with ray_calls.connected(placement.address, cpus=placement.ranks * placement.cpus + others):
        gpu = _on_gpus(placement, others)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()
        loudness = logging.getLogger("rollenv").getEffectiveLevel()
        task = _Task(config, run.path.resolve(), registry.added_specs(), board, loudness)
        scratch = run.path.resolve() / "ray"
        backend = placement.backend
        if backend == "auto":
            backend = "nccl" if gpu else "gloo"  # torch calls RCCL of ROCm nccl too
        failures: dict[str, Any] = {
            "max_failures": placement.max_failures,
            "controller_failure_limit": math.ceil(placement.wait / _START_SECONDS),
        }
        trainer = TorchTrainer(
            _work,
            train_loop_config={"task": task},
            torch_config=TorchConfig(backend=backend, timeout_s=_COLLECTIVE_SECONDS),
            scaling_config=_scaling(placement, gpu),
            run_config=RunConfig(
                name=str(time.time_ns()), storage_path=str(scratch), failure_config=FailureConfig(**failures)
            ),
        )
        try:
            return _fitted(trainer, board, run, watch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _scaling(placement: PlacementConfig, gpu: bool) -> ScalingConfig:
    count: Any = (placement.min_ranks, placement.ranks) if placement.min_ranks else placement.ranks
    resources = {"CPU": placement.cpus, "GPU": placement.gpus if gpu else 0}
    return ScalingConfig(num_workers=count, use_gpu=gpu, resources_per_worker=resources)


def _fitted(trainer: TorchTrainer, board: Any, run: RunDir, watch: Watch) -> Result:
    """Run the trainer and return the first rank's result; its log appears here meanwhile."""
    with _relayed(board, watch) as outcome:
        try:
            trainer.fit()
        except TrainingFailedError as error:
            failed: Exception | None = error
        else:
            failed = None
    if outcome.error:
        raise outcome.error from failed
    if failed or outcome.result is None:
        raise RankFailed(_explained(failed, run)) from failed
    return outcome.result


def _explained(failed: Exception | None, run: RunDir) -> str:
    """Return what became of the run, in a few lines."""
    from rollenv.trainers import checkpoint  # not above: Ray's own processes, which read this file, need no models

    causes: dict[int, Exception] = getattr(failed, "worker_failures", {})
    lost = [f"rank {rank}: {_first_line(cause)}" for rank, cause in sorted(causes.items())]
    saved = checkpoint.checkpoints(run.checkpoints)
    after = (
        f"continue from {saved[-1]} with --resume; placement.max_failures has Ray do that by itself"
        if saved
        else "there is no checkpoint yet"
    )
    why = "; ".join(lost) or (_first_line(failed) if failed else "no rank said why")
    return f"training stopped because a rank was lost ({why}); {after}"


def _first_line(error: Exception) -> str:
    """The last line that says anything, without the traceback before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:400]


# -- where ------------------------------------------------------------------------------------------------------------


def _on_gpus(placement: PlacementConfig, others: float) -> bool:
    """Return whether ranks get GPUs."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpu = placement.devices == "gpu" or (placement.devices == "auto" and resources.get("GPU", 0) > 0)
    needed = placement.min_ranks or placement.ranks
    if gpu and resources.get("GPU", 0) < needed:
        raise UsageError(
            f"the cluster has {resources.get('GPU', 0):g} GPUs for {needed} ranks: lower placement.ranks, or take "
            "placement.devices=cpu"
        )
    if resources.get("CPU", 0) < needed * placement.cpus + others:
        besides = f" and {others:g} for playing" if others else ""
        raise UsageError(
            f"the cluster has {resources.get('CPU', 0):g} CPUs for {needed} ranks with {placement.cpus:g} each{besides}"
            ": lower placement.ranks or placement.cpus"
        )
    return gpu


# -- what ranks say ---------------------------------------------------------------------------------------------------


class _Board:
    """An actor beside the command, on which ranks write."""

    def __init__(self) -> None:
        self.news: list[tuple[Any, ...]] = []
        self.failed = False

    def write(self, *news: Any) -> None:
        self.failed = self.failed or news[0] == "error"
        self.news.append(news)

    def take(self) -> list[tuple[Any, ...]]:
        news, self.news = self.news, []
        return news

    def over(self) -> bool:
        """Return whether an error was written that another try would meet again."""
        return self.failed


@dataclass(slots=True)
class _Outcome:
    result: Result | None = None
    error: RollenvError | None = None


@contextlib.contextmanager
def _relayed(board: Any, watch: Watch) -> Iterator[_Outcome]:
    """Log what ranks write and report it to ``watch`` while the block runs."""
    outcome, ended = _Outcome(), threading.Event()

    def look() -> None:
        for kind, *what in ray.get(board.take.remote()):
            if kind == "watch":
                watch(*what)
            elif kind == "log":
                name, level, text = what
                logging.getLogger(name).log(level, "%s", text)
            elif kind == "result":
                outcome.result = what[0]
            elif outcome.error is None:
                outcome.error = what[0]

    def keep_looking() -> None:
        while not ended.wait(_LOOK_EVERY):
            look()

    looking = threading.Thread(target=keep_looking, daemon=True)
    looking.start()
    try:
        yield outcome
    finally:
        ended.set()
        looking.join()
        look()


# -- inside a rank ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Task:
    """The task of a rank."""

    config: TrainConfig
    path: Path
    environments: dict[str, EnvSpec]
    board: Any
    loudness: int


class _Posted(logging.Handler):
    """Puts log messages on the board."""

    def __init__(self, write: Callable[..., None]):
        super().__init__()
        self.write = write

    def emit(self, record: logging.LogRecord) -> None:
        self.write("log", record.name, record.levelno, record.getMessage())


def _work(given: dict[str, Any]) -> None:
    """Be a rank of the run."""
    from rollenv.trainers.ranks import RankLost

    task: _Task = given["task"]
    if ray.get(task.board.over.remote()):
        return  # to start again would lead to the same error
    try:
        _train(task)
    except RankLost:
        raise
    except RollenvError as error:
        ray.get(task.board.write.remote("error", error))
        raise


def _train(task: _Task) -> None:
    import torch

    from rollenv.trainers.ranks import ALONE, Ranks
    from rollenv.trainers.trainer import Trainer
    from rollenv.trainers.worker_rank import run_worker_rank

    registry.add_specs(task.environments)
    ranks = Ranks.joined(get_device()) if get_context().get_world_size() > 1 else ALONE
    beside = get_context().get_local_world_size()
    threads = task.config.threads or max(1, len(os.sched_getaffinity(0)) // beside)
    torch.set_num_threads(threads)
    config, run = task.config.model_copy(update={"threads": threads}), RunDir(task.path)
    if not all(found := ranks.gather(run.config_file.exists())):
        missing = [number for number, exists in enumerate(found) if not exists]
        raise UsageError(
            f"ranks {missing} do not see the run's folder {run.path}: put run_dir where all machines of the cluster "
            "find it under the same path"
        )
    if not ranks.first:
        logging.getLogger("rollenv").setLevel(logging.ERROR)  # the first one says the same
        run_worker_rank(config, run, ranks)
        return

    def write(*news: Any) -> None:
        task.board.write.remote(*news)

    logs, posted = logging.getLogger("rollenv"), _Posted(write)
    logs.setLevel(task.loudness)
    logs.addHandler(posted)
    try:
        with Trainer(config, run, lambda *progress: write("watch", *progress), ranks) as trainer:
            result = trainer.fit()
        ray.get(task.board.write.remote("result", result))
    finally:
        logs.removeHandler(posted)

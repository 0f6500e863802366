"""Training on several ranks, started and restarted by Ray Train, on one machine or on a cluster."""

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

from rollenv.core import registry
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.interrupt import Terminated, Termination, interrupt
from rollenv.core.needs import extra
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.placement import PlacementConfig
from rollenv.trainers.run_dir import RunDir

with extra("ray", "Training on several ranks"):
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, get_context
    from ray.train.torch import TorchConfig, TorchTrainer, get_device
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from rollenv.rollout import ray_calls

if TYPE_CHECKING:
    from rollenv.trainers.trainer import Trainer, TrainingResult, Watch

#: Seconds between two polls of the ranks' messages.
_POLL_SECONDS = 0.2

#: Seconds to wait for the last poll, which a lost cluster never answers.
_LAST_POLL_SECONDS = 3.0

#: Seconds in which Ray tries to start all ranks, before it counts a failure and retries.
_START_SECONDS = 60.0

#: Timeout of collective operations, and so of an update.
_COLLECTIVE_SECONDS = 3600

logger = logging.getLogger(__name__)


class RankFailed(RollenvError):
    """The run ended because a rank was lost."""


def train_on_ranks(config: TrainConfig, run: RunDir, watch: Watch) -> TrainingResult:
    """Train a run on ``config.placement.ranks`` devices, with one process each.

    Args:
        run: the run folder, available on all machines of a cluster under the same path.

    Raises:
        RankFailed: ranks were lost more often than ``config.placement.max_failures``.
        RollenvError: the error that ended the run on a rank.
    """
    placement = config.placement
    others, termination = config.actor_cpus, Termination()
    with ray_calls.connected(placement.address, cpus=placement.ranks * placement.cpus + others):
        gpu = _on_gpus(placement, others)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        messages = ray.remote(_Messages).options(num_cpus=0, scheduling_strategy=here).remote()
        log_level = logging.getLogger("rollenv").getEffectiveLevel()
        task = _Task(config, run.path.resolve(), registry.added_specs(), messages, log_level, Path.cwd())
        scratch = run.path.resolve() / "ray"
        found = "nccl" if gpu else "gloo"  # also torch's name for ROCm's RCCL
        backend = found if placement.backend == "auto" else placement.backend
        failures: dict[str, Any] = {
            "max_failures": placement.max_failures,
            "controller_failure_limit": math.ceil(placement.wait / _START_SECONDS),
        }
        trainer = TorchTrainer(
            _run_rank,
            train_loop_config={"task": task},
            torch_config=TorchConfig(backend=backend, timeout_s=_COLLECTIVE_SECONDS),
            scaling_config=_scaling(placement, gpu),
            run_config=RunConfig(
                name=str(time.time_ns()), storage_path=str(scratch), failure_config=FailureConfig(**failures)
            ),
        )
        try:
            return _fit(trainer, messages, run, watch, termination)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _scaling(placement: PlacementConfig, gpu: bool) -> ScalingConfig:
    count: Any = (placement.min_ranks, placement.ranks) if placement.min_ranks else placement.ranks
    resources = {"CPU": placement.cpus, "GPU": placement.gpus * gpu}
    return ScalingConfig(num_workers=count, use_gpu=gpu, resources_per_worker=resources)


def _fit(trainer: TorchTrainer, messages: Any, run: RunDir, watch: Watch, termination: Termination) -> TrainingResult:
    """Run the trainer, forward the ranks' log messages, and return the first rank's result.

    Raises:
        Terminated: by SIGTERM, after the first rank has saved a checkpoint.
    """
    failed: Exception | None = None

    def fit() -> None:
        nonlocal failed
        try:
            trainer.fit()
        except Exception as error:
            failed = error

    # In the main thread, Ray would answer SIGINT itself.
    thread = threading.Thread(target=fit, name="ray-train", daemon=True)
    try:
        with termination.handled(), termination.deferred(), _forwarded(messages, watch, termination) as outcome:
            thread.start()
            thread.join()
    except KeyboardInterrupt:
        if not termination.asked:
            raise
        raise Terminated from None
    if failed and not isinstance(failed, TrainingFailedError):
        raise failed
    if outcome.error:
        raise outcome.error from failed
    if failed or outcome.result is None:
        raise RankFailed(_explain_failure(failed, run)) from failed
    return outcome.result


def _explain_failure(failed: Exception | None, run: RunDir) -> str:
    from rollenv.trainers import checkpoint  # not above: Ray's own processes import this file without models

    causes: dict[int, Exception] = getattr(failed, "worker_failures", {})
    lost = [f"rank {rank}: {_last_line(cause)}" for rank, cause in sorted(causes.items())]
    saved = checkpoint.checkpoints(run.checkpoints)
    after = "there is no checkpoint yet"
    if saved:
        after = f"continue from {saved[-1]} with --resume, or let Ray do so with placement.max_failures"
    why = "; ".join(lost) or (_last_line(failed) if failed else "no rank reported why")
    return f"training stopped because a rank was lost ({why}); {after}"


def _last_line(error: Exception) -> str:
    """Return the last line of an error, without its traceback."""
    *_, last = ["", *(line.strip() for line in str(error).splitlines() if line.strip())]
    return f"{type(error).__name__}: {last}"[:400]


# -- resources --------------------------------------------------------------------------------------------------------


def _on_gpus(placement: PlacementConfig, others: float) -> bool:
    """Return whether ranks get GPUs, and check that the cluster has enough resources."""
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


# -- messages of ranks ------------------------------------------------------------------------------------------------


class _Messages:
    """An actor with the messages of ranks to the launching process."""

    def __init__(self) -> None:
        self.messages: list[tuple[Any, ...]] = []
        self.failed = self.terminating = False

    def send(self, *message: Any) -> None:
        self.failed = self.failed or message[0] == "error"
        self.messages.append(message)

    def receive(self) -> list[tuple[Any, ...]]:
        messages, self.messages = self.messages, []
        return messages

    def terminate(self) -> None:
        self.terminating = True

    def is_terminating(self) -> bool:
        """Return whether the first rank has to save a checkpoint and stop."""
        return self.terminating

    def has_failed(self) -> bool:
        """Return whether an error was sent that a restart would raise again."""
        return self.failed


@dataclass(slots=True)
class _Outcome:
    result: TrainingResult | None = None
    error: RollenvError | None = None


@contextlib.contextmanager
def _forwarded(messages: Any, watch: Watch, termination: Termination) -> Iterator[_Outcome]:
    """Forward messages of ranks to the log and to ``watch`` while the block runs, and SIGTERM to the first rank.

    Raises:
        KeyboardInterrupt: after SIGTERM, when a checkpoint is saved.
    """
    outcome, ended = _Outcome(), threading.Event()

    def poll() -> None:
        for kind, *what in ray.get(messages.receive.remote()):
            if kind == "watch":
                watch(*what)
            elif kind == "log":
                name, level, text = what
                logging.getLogger(name).log(level, "%s", text)
            elif kind == "saved":
                interrupt()
            elif kind == "result":
                outcome.result = what[0]
            elif outcome.error is None:
                outcome.error = what[0]

    def keep_polling() -> None:
        told = False
        while not ended.wait(_POLL_SECONDS):
            if termination.asked and not told:
                messages.terminate.remote()
                told = True
            poll()

    thread = threading.Thread(target=keep_polling, daemon=True)
    thread.start()
    try:
        yield outcome
        ended.set()
        thread.join()
        poll()
    finally:
        ended.set()
        thread.join(_LAST_POLL_SECONDS)  # Ray ends the process if a thread asks it after its end


# -- inside a rank ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Task:
    """The arguments of a rank."""

    config: TrainConfig
    path: Path
    environments: dict[str, EnvSpec]
    messages: Any
    log_level: int
    launched_in: Path
    """The folder that relative paths in the settings start from."""


class _MessageHandler(logging.Handler):
    """Sends log records as messages."""

    def __init__(self, send: Callable[..., None]):
        super().__init__()
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        self.send("log", record.name, record.levelno, record.getMessage())


def _run_rank(loop_config: dict[str, Any]) -> None:
    from rollenv.trainers.ranks import RankLost

    task: _Task = loop_config["task"]
    if ray.get(task.messages.has_failed.remote()):
        return  # a restart would lead to the same error
    try:
        _train(task)
    except RankLost:
        raise
    except RollenvError as error:
        ray.get(task.messages.send.remote("error", error))
        raise


def _stop_when_told(trainer: Trainer, messages: Any) -> None:
    while not ray.get(messages.is_terminating.remote()):
        time.sleep(_POLL_SECONDS)
    trainer.save_and_stop()
    messages.send.remote("saved")


def _train(task: _Task) -> None:
    import torch

    from rollenv.trainers.ranks import ALONE, Ranks
    from rollenv.trainers.trainer import Trainer
    from rollenv.trainers.worker_rank import run_worker_rank

    if task.launched_in.is_dir():  # Ray's own is another; a machine without it has absolute paths at most
        os.chdir(task.launched_in)
    registry.add_specs(task.environments)
    ranks = Ranks.joined(get_device()) if get_context().get_world_size() > 1 else ALONE
    threads = task.config.threads or max(1, len(os.sched_getaffinity(0)) // get_context().get_local_world_size())
    torch.set_num_threads(threads)
    config, run = task.config.model_copy(update={"threads": threads}), RunDir(task.path)
    if not all(found := ranks.gather(run.config_file.exists())):
        missing = [number for number, exists in enumerate(found) if not exists]
        raise UsageError(
            f"ranks {missing} have no access to the run folder {run.path}: put run_dir where all machines of the "
            "cluster find it under the same path"
        )
    if not ranks.first:
        logging.getLogger("rollenv").setLevel(logging.ERROR)  # the first rank logs the same
        run_worker_rank(config, run, ranks)
        return

    def send(*message: Any) -> None:
        task.messages.send.remote(*message)

    logs, handler = logging.getLogger("rollenv"), _MessageHandler(send)
    logs.setLevel(task.log_level)
    logs.addHandler(handler)
    try:
        with Trainer(config, run, lambda *progress: send("watch", *progress), ranks) as trainer:
            threading.Thread(target=_stop_when_told, args=(trainer, task.messages), daemon=True).start()
            result = trainer.fit()
        ray.get(task.messages.send.remote("result", result))
    finally:
        logs.removeHandler(handler)

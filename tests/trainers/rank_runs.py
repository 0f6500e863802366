"""Runs on several ranks that talk by gloo, each a process of this machine."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import words

import rollenv
from rollenv.core import registry
from rollenv.trainers import trainer  # noqa: F401  so that processes begin with what they need
from rollenv.trainers.config import load_config
from rollenv.trainers.ranks import Ranks

SMALL = [
    *(key for key in words.RUN if key != "checkpoint_every=1"), "model.size.layers=2", "model.warm_up.steps=20",
    "rollout.groups_per_batch=5", "rollout.group_size=3", "optimizer.lr=1e-3", "optimizer.minibatch_sequences=8",
    "optimizer.micro_batch_tokens=24", "model.sync=copy", "optimizer.epochs=1",
]  # fmt: skip

#: Seconds that ranks may take on a busy machine.
_HANGS = 600


def register() -> None:
    rollenv.list_envs()
    if words.ID not in registry.ENV_REGISTRY:
        abilities = ["oracle", "random_action", "state_key"]
        rollenv.register(words.ID, "words:Words", abilities=abilities, indexed=True)


def settings(*overrides: str):
    register()
    return load_config("sokoban", [*SMALL, *overrides])


def _joined(number: int, count: int, folder: Path, work, given) -> None:
    faulthandler.dump_traceback_later(_HANGS - 20)
    torch.set_num_threads(1)
    register()
    try:
        torch.distributed.init_process_group(
            "gloo", rank=number, world_size=count, init_method=f"file://{folder}/meet", timeout=timedelta(seconds=300)
        )
        answer = work(Ranks.joined(torch.device("cpu")), *given)
        torch.distributed.destroy_process_group()
    except Exception as error:
        traceback.print_exc()
        answer = error
    (folder / f"answer-{number}").write_bytes(pickle.dumps(answer))
    os._exit(isinstance(answer, Exception))


class Together:
    """Processes that all call ``work(ranks, *given)``."""

    def __init__(self, count: int, folder: Path, work, *given):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("forkserver")  # imports everything once, and has computed nothing
        context.set_forkserver_preload(["rank_runs"])
        self.processes = [context.Process(target=_joined, args=(i, count, folder, work, given)) for i in range(count)]
        for process in self.processes:
            process.start()

    def end(self, seconds: float = _HANGS) -> dict[int, object]:
        """What each process returned or raised; nothing of those that died."""
        for process in self.processes:
            process.join(seconds)
            if process.is_alive():
                for each in self.processes:
                    each.kill()
                raise TimeoutError("a rank hangs")
        answers = sorted(self.folder.glob("answer-*"))
        return {int(path.name.removeprefix("answer-")): pickle.loads(path.read_bytes()) for path in answers}

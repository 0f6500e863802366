"""Additional processes that play parts of a batch, each with a copy of the player and its weights in shared memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import multiprocessing
import operator
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields
from typing import Any

import psutil
import torch

from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.cpu_threads import cores
from rollenv.agents.local import LocalAgent
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.health import Health
from rollenv.rollout.records.stats import RolloutStats
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.rollout.workers.template import die_with_parent

logger = logging.getLogger(__name__)

#: Maximum number of processes if their number follows the machine.
_MOST = 8

#: Seconds between two checks of the processes. One is ended if it is stopped at both: after SIGCONT to the whole job
#: this process may run first.
LOOK_EVERY = 5.0

_values_of = operator.attrgetter(*(f.name for f in fields(Turn)))


@dataclass(slots=True)
class WorkBatch:
    """The groups that a process plays next."""

    version: int
    sampling: Sampling
    size: int
    groups: list[tuple[int, Task]]


@dataclass(slots=True)
class PlayedBatch:
    """The groups that a process played."""

    groups: list[list[tuple[Trajectory, list[tuple[Any, ...]]]]]
    """The trajectories of every group, each with the values of its turns."""
    health: Health
    stats: RolloutStats
    tokens: tuple[int, int]
    """Numbers of computed and of sampled tokens."""
    seconds: float
    """CPU seconds."""


# Not shards (`rollenv/rollout/shards.py`). A shard has its own engine, is given its weights, and is started
# again; these see weights that are trained in place, and cannot be forked again once torch has threads.
# This process plays a share too, and whatever needs an episode here (a manager's reward function or
# watcher) or was lost. A share is sent as a whole, so that prompts are batched the same way every time.
class RolloutProcesses:
    """Plays some groups of every batch in other processes.

    The group's number selects its share, and the task's seed and the member determine all random numbers, so
    trajectories do not depend on timing, up to rounding: the batching of prompts does. Groups that the processes fail
    to play are played in this process, which then raises the error. If one of them dies, the others end too.

    Args:
        player: its weights move to shared memory, so that in-place training updates all processes.
        processes: number of processes including this one; 0 for the threads of :meth:`sharing`, up to the number of
            cores.
    """

    def __init__(self, player: LocalAgent, processes: int, limits: EpisodeLimits):
        self.player, self._follows_threads = player, not processes
        self.count = (processes or min(len(cores()), _MOST)) - 1
        #: Number of processes to use besides this one.
        self.active = self.count
        #: CPU seconds of the processes so far.
        self.seconds = 0.0
        self._shares: dict[int, tuple[list[Group], asyncio.Task[bool]]] = {}
        player.model.share_memory()
        others = psutil.Process().children()
        context = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(self.count, context, _begin, (player, limits))
        self._pool.submit(os.getpid).result()  # which forks all of them, before the pool has threads
        self.children = [child for child in psutil.Process().children() if child not in others]

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        _, alive = psutil.wait_procs(self.children, 1.0)
        for child in alive:
            with contextlib.suppress(psutil.Error):
                child.kill()

    @contextlib.contextmanager
    def sharing(self, threads: int) -> Iterator[None]:
        """Leave cores to the other processes while the block runs.

        Args:
            threads: torch's number of threads before and after, which is the number of idle cores.
        """
        if self._follows_threads:
            self.active = min(self.count, threads - 1)
        torch.set_num_threads(max(1, threads // (self.active + 1)))
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    async def play(self, manager: RolloutManager, group: Group, size: int) -> bool:
        """Play a group in another process; return False if this process has to play it.

        Groups of one share that are asked for in the same iteration of the event loop are sent together.
        """
        if not (share := group.number % (self.active + 1)):
            return False
        if share not in self._shares:
            groups: list[Group] = []
            self._shares[share] = groups, asyncio.create_task(self._play(manager, share, groups, size))
        groups, playing = self._shares[share]
        groups.append(group)
        return await asyncio.shield(playing)

    async def _play(self, manager: RolloutManager, share: int, groups: list[Group], size: int) -> bool:
        """Play the groups that were collected in the last iteration; return whether that succeeded."""
        del self._shares[share]
        tasks = [(group.number, group.task) for group in groups]
        played = await self._answer(WorkBatch(self.player.version, self.player.sampling, size, tasks))
        if played is None:
            return False
        engine = self.player.engine.stats
        engine.computed, engine.drawn = engine.computed + played.tokens[0], engine.drawn + played.tokens[1]
        self.seconds += played.seconds
        manager.health.absorb(played.health)
        manager.stats.absorb(played.stats)
        for group, trajectories in zip(groups, played.groups, strict=True):
            for trajectory, turns in trajectories:
                trajectory.turns, trajectory.task = [Turn(*values) for values in turns], group.task
            group.trajectories = [trajectory for trajectory, _ in trajectories]
        return True

    async def _answer(self, batch: WorkBatch) -> PlayedBatch | None:
        """Send a batch and return what was played; None if that failed. A process that stays stopped is ended."""
        try:
            playing = asyncio.wrap_future(self._pool.submit(_play, batch))
        except RuntimeError as error:  # one has ended, or all were closed
            self._note_end(error)
            return None
        playing.add_done_callback(lambda done: done.cancelled() or done.exception())
        stopped: set[psutil.Process] = set()
        while not (await asyncio.wait({playing}, timeout=LOOK_EVERY))[0]:
            before, stopped = stopped, set(filter(_is_stopped, self.children))
            for child in before & stopped:
                child.kill()
        self._note_end(playing.exception())
        return None if playing.exception() else playing.result()

    def _note_end(self, error: BaseException | None) -> None:
        if isinstance(error, BrokenProcessPool) and self.count:
            self.count = self.active = 0
            logger.warning("a rollout process has ended: the main process plays alone from now on")


def _is_stopped(process: psutil.Process) -> bool:
    """Return whether a signal has stopped a process."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


# -- in the other processes --------------------------------------------------------------------------------------------

_given: tuple[LocalAgent, EpisodeLimits]


def _begin(player: LocalAgent, limits: EpisodeLimits) -> None:
    """Prepare a process."""
    global _given
    _given = player, limits
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles the user's interrupt
    torch.set_num_threads(1)
    gc.freeze()


def _play(batch: WorkBatch) -> PlayedBatch:
    began = time.process_time()
    player, limits = _given
    player.weights_changed()
    player.version, player.sampling = batch.version, batch.sampling
    stats = player.engine.stats
    before = stats.computed, stats.drawn
    groups = [Group(task, [], number) for number, task in batch.groups]

    async def play_groups(manager: RolloutManager) -> None:
        async with manager.watching():
            await asyncio.gather(*(manager.play_group(group, batch.size) for group in groups))

    with RolloutManager(player, limits=limits) as manager:
        manager.run(play_groups(manager))
    played = [[(t, list(map(_values_of, t.turns))) for t in group] for group in groups]
    for group in groups:
        for trajectory in group:
            trajectory.turns = []
    tokens = stats.computed - before[0], stats.drawn - before[1]
    return PlayedBatch(played, manager.health, manager.stats, tokens, time.process_time() - began)


def start_rollout_processes(processes: int, player: Any, limits: EpisodeLimits) -> RolloutProcesses | None:
    """Start the processes of ``rollout.processes``; None if there are none to start."""
    if processes == 1 or (not processes and len(cores()) == 1):
        return None
    local = isinstance(player, LocalAgent) and player.model.device.type == "cpu"
    if not local or "fork" not in multiprocessing.get_all_start_methods():
        logger.warning("only one process plays: more need a model on the CPU, and a system that can fork processes")
        return None
    return RolloutProcesses(player, processes, limits)

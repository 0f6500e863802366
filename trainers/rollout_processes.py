"""Additional processes that play parts of a batch, each with a copy of the player and its weights in shared memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import multiprocessing
import operator
import pickle
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection
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

logger = logging.getLogger(__name__)

#: Maximum number of processes if their number follows the machine.
_MOST = 8

#: Seconds between two checks of a process. It is abandoned if it is stopped at both: after SIGCONT to the whole job
#: this process may run first.
LOOK_EVERY = 5.0

_values_of = operator.attrgetter(*(f.name for f in fields(Turn)))


@dataclass(slots=True)
class WorkBatch:
    """The groups that a process plays next."""

    number: int
    version: int
    sampling: Sampling
    size: int
    groups: list[tuple[int, Task]]


@dataclass(slots=True)
class PlayedBatch:
    """The groups that a process played; empty if that failed."""

    number: int
    groups: list[list[tuple[Trajectory, list[tuple[Any, ...]]]]] = field(default_factory=list)
    """The trajectories of every group, each with the values of its turns."""
    health: Health = field(default_factory=Health)
    stats: RolloutStats = field(default_factory=RolloutStats)
    tokens: tuple[int, int] = (0, 0)
    """Numbers of computed and of sampled tokens."""
    seconds: float = 0.0
    """CPU seconds."""


# Not shards (`rollenv/rollout/shards.py`). A shard has its own engine, is given its weights, and is started
# again; these see weights that are trained in place, and cannot be forked again once torch has threads.
# This process plays a share too, and whatever needs an episode here (a manager's reward function or
# watcher) or was lost. A share is sent as a whole, so that prompts are batched the same way every time.
class RolloutProcesses:
    """Plays some groups of every batch in other processes.

    The group's number selects the process, and the task's seed and the member determine all random numbers, so
    trajectories do not depend on timing, up to rounding: the batching of prompts does. Groups that a process fails to
    play are played in this process, which then raises the error.

    Args:
        player: its weights move to shared memory, so that in-place training updates all processes.
        processes: number of processes including this one; 0 for the threads of :meth:`sharing`, up to the number of
            cores.
    """

    def __init__(self, player: LocalAgent, processes: int, limits: EpisodeLimits):
        self.player, self._follows_threads = player, not processes
        count = (processes or min(len(cores()), _MOST)) - 1
        #: Number of processes to use besides this one.
        self.active = count
        #: CPU seconds of the processes so far.
        self.seconds = 0.0
        player.model.share_memory()
        self._processes = [_RolloutProcess(player, limits) for _ in range(count)]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()

    @contextlib.contextmanager
    def sharing(self, threads: int) -> Iterator[None]:
        """Leave cores to the other processes while the block runs.

        Args:
            threads: torch's number of threads before and after, which is the number of idle cores.
        """
        if self._follows_threads:
            self.active = min(len(self._processes), threads - 1)
        torch.set_num_threads(max(1, threads // (self.active + 1)))
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    async def play(self, manager: RolloutManager, group: Group, size: int) -> bool:
        """Play a group in another process; return False if this process has to play it."""
        share = group.number % (self.active + 1)
        return bool(share) and await self._processes[share - 1].play(self, manager, group, size)

    def take(self, manager: RolloutManager, played: PlayedBatch) -> None:
        """Merge a process's records."""
        stats = self.player.engine.stats
        stats.computed, stats.drawn = stats.computed + played.tokens[0], stats.drawn + played.tokens[1]
        self.seconds += played.seconds
        manager.health.absorb(played.health)
        manager.stats.absorb(played.stats)


class _ProcessLost(Exception):
    """A process did not play its groups; the text says why."""


class _RolloutProcess:
    """One of the processes. Groups of the same iteration of the event loop are sent together."""

    def __init__(self, player: LocalAgent, limits: EpisodeLimits):
        context = multiprocessing.get_context("fork")
        self._pipe, others = context.Pipe()
        self._process = context.Process(target=_serve, args=(others, self._pipe, player, limits), daemon=True)
        self._process.start()
        others.close()
        self._groups: list[Group] = []
        self._playing: asyncio.Task[set[int]] | None = None
        self._batches = 0

    async def play(self, owner: RolloutProcesses, manager: RolloutManager, group: Group, size: int) -> bool:
        if self._pipe.closed:
            return False
        if self._playing is None or self._playing.done() or not self._groups:
            if self._playing is not None:
                self._playing.cancel()  # a batch that nobody waits for any more
            self._groups = []
            self._playing = asyncio.create_task(self._play(owner, manager, size))
        self._groups.append(group)
        return group.number in await asyncio.shield(self._playing)

    async def _play(self, owner: RolloutProcesses, manager: RolloutManager, size: int) -> set[int]:
        """Play the groups that were collected in the last iteration, and return the numbers of those it played."""
        groups, self._groups = self._groups, []
        self._batches += 1
        tasks = [(group.number, group.task) for group in groups]
        try:
            played = await self._answer(
                WorkBatch(self._batches, owner.player.version, owner.player.sampling, size, tasks)
            )
        except _ProcessLost as lost:
            logger.warning("a rollout process %s; its groups are played by the main process", lost)
            return set()
        owner.take(manager, played)
        for group, trajectories in zip(groups, played.groups, strict=False):  # there are none if it failed
            for trajectory, turns in trajectories:
                trajectory.turns, trajectory.task = [Turn(*values) for values in turns], group.task
            group.trajectories = [trajectory for trajectory, _ in trajectories]
        return {group.number for group in groups[: len(played.groups)]}

    async def _answer(self, batch: WorkBatch) -> PlayedBatch:
        """Send a batch and return what was played. The process is ended if it stays stopped meanwhile."""
        if self._is_stopped():  # it would not read, and the message may exceed the pipe's buffer
            raise _ProcessLost("is stopped")
        try:
            self._pipe.send(batch)
            was_stopped = False
            while True:
                if await self._is_readable():
                    played: PlayedBatch = self._pipe.recv()
                    if played.number == batch.number:  # else of a batch that nobody waits for any more
                        return played
                    continue
                stopped = self._is_stopped()
                if stopped and was_stopped:
                    self.close()
                    raise _ProcessLost("is stopped, and was ended")
                was_stopped = stopped
        except (EOFError, OSError):
            self.close()
            raise _ProcessLost("has ended") from None
        except (ValueError, TypeError, AttributeError, pickle.PicklingError) as error:
            raise _ProcessLost(f"cannot be sent its groups: {error!r}") from error

    async def _is_readable(self) -> bool:
        """Return whether a message arrives before the next look at the process."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pipe.fileno(), arrived.set)
        try:
            async with asyncio.timeout(LOOK_EVERY):
                return await arrived.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._pipe.fileno())

    def _is_stopped(self) -> bool:
        """Return whether a signal has stopped the process."""
        try:
            return bool(psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

    def close(self) -> None:
        self._pipe.close()
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, parents: Connection, player: LocalAgent, limits: EpisodeLimits) -> None:
    """Play the batches from the pipe until it is closed."""
    parents.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles the user's interrupt
    torch.set_num_threads(1)
    gc.freeze()
    while True:
        try:
            batch: WorkBatch = pipe.recv()
        except (EOFError, OSError):
            return
        began = time.process_time()
        try:
            played = _play(batch, player, limits)
        except BaseException:  # the main process plays the groups and raises the same error
            played = PlayedBatch(batch.number)
        played.seconds = time.process_time() - began
        pipe.send(played)


def _play(batch: WorkBatch, player: LocalAgent, limits: EpisodeLimits) -> PlayedBatch:
    player.weights_changed()
    player.version, player.sampling = batch.version, batch.sampling
    stats = player.engine.stats
    before = stats.computed, stats.drawn
    groups = [Group(task, [], number) for number, task in batch.groups]
    with RolloutManager(player, limits=limits) as manager:
        manager.run(_play_groups(manager, groups, batch.size))
    played = [[(t, list(map(_values_of, t.turns))) for t in group] for group in groups]
    for group in groups:
        for trajectory in group:
            trajectory.turns = []
    tokens = stats.computed - before[0], stats.drawn - before[1]
    return PlayedBatch(batch.number, played, manager.health, manager.stats, tokens)


async def _play_groups(manager: RolloutManager, groups: Sequence[Group], size: int) -> None:
    async with manager.watching():
        await asyncio.gather(*(manager.play_group(group, size) for group in groups))


def start_rollout_processes(processes: int, player: Any, limits: EpisodeLimits) -> RolloutProcesses | None:
    """Start the processes of ``rollout.processes``; None if there are none to start."""
    if processes == 1 or (not processes and len(cores()) == 1):
        return None
    local = isinstance(player, LocalAgent) and player.model.device.type == "cpu"
    if not local or "fork" not in multiprocessing.get_all_start_methods():
        logger.warning("only one process plays: more need a model on the CPU, and a system that can fork processes")
        return None
    return RolloutProcesses(player, processes, limits)

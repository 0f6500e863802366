"""The rollout manager: plays tasks in groups, with redundancy and recovery from failures."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from rollenv.agents.base import Agent
from rollenv.core.errors import UsageError
from rollenv.rollout.clock import Clock
from rollenv.rollout.episode import Episode, EpisodeLimits
from rollenv.rollout.filters import Filter
from rollenv.rollout.group_reward import GroupFunction, GroupReward
from rollenv.rollout.group_runner import GroupRunner
from rollenv.rollout.loops import Interrupts, Loop, ThreadLoop, refuse_running_loop
from rollenv.rollout.records.flight import FlightRecorder
from rollenv.rollout.records.health import Health
from rollenv.rollout.records.stats import RolloutStats
from rollenv.rollout.types import Group, Task, Trajectory
from rollenv.rollout.workers import InlineWorkers, Workers

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Seconds between two writings of the health file.
HEALTH_EVERY = 2.0


class GroupPlayer(Protocol):
    """Plays groups in other processes."""

    async def play(self, manager: RolloutManager, group: Group, size: int) -> bool:
        """Play a group elsewhere; return false if this process must play it."""
        ...


class RolloutManager:
    """Plays groups of episodes with an agent, one coroutine for each trajectory.

    Args:
        workers: where the environments run; by default in this process. The caller closes them.
        max_concurrent: maximum episodes in play; the others wait in the order of their groups.
        reward: returns an addition to the last turn's reward; called when a trajectory ends, while others continue.
        group_reward: returns an addition for each episode of a group; see :class:`GroupReward`. :meth:`play`, which
            has no groups, does not call it.
        on_trajectory: called with every trajectory that ends, except cancelled ones.
        keep_views: store a drawing of the state with every turn.
        unhealthy_after: episodes of one environment id that may fail in a row before the rollout stops.
        run_dir: folder for ``health.json``, which is kept up to date; SIGUSR1 adds a flight record.
        clock: real or virtual time; virtual time works for workers and agents that only wait for timers.
        thread: run the event loop in a thread of its own, so that started episodes continue between calls.
    """

    def __init__(
        self,
        agent: Agent,
        workers: Workers | None = None,
        *,
        limits: EpisodeLimits | None = None,
        max_concurrent: int | None = None,
        reward: Callable[[Trajectory], Awaitable[float]] | None = None,
        group_reward: GroupFunction | None = None,
        on_trajectory: Callable[[Trajectory], None] | None = None,
        keep_views: bool = False,
        unhealthy_after: int = 64,
        run_dir: str | Path | None = None,
        clock: Clock = Clock.REAL,
        thread: bool = False,
    ):
        if max_concurrent is not None and max_concurrent < 1:
            raise UsageError(f"max_concurrent must be at least 1, got {max_concurrent}")
        self.agent, self.workers = agent, workers or InlineWorkers()
        self.limits = limits or EpisodeLimits()
        self.max_concurrent = max_concurrent
        self.reward, self.on_trajectory, self.keep_views = reward, on_trajectory, keep_views
        self.group_reward = group_reward and GroupReward(group_reward, self.limits.reward)
        self.health = Health(unhealthy_after, self.limits.max_backoff)
        self.run_dir = Path(run_dir) if run_dir else None
        self.flight = FlightRecorder(self.health)
        #: Counts of groups and trajectories kept and dropped by the last batch, or by the stream so far.
        self.stats = RolloutStats()
        #: Plays some groups of a batch in other processes.
        self.processes: GroupPlayer | None = None
        self._slots: asyncio.Semaphore | None = None
        self._interrupts = Interrupts()
        self._loop: Loop | ThreadLoop = ThreadLoop(clock) if thread else Loop(clock)
        self._finalizer = weakref.finalize(self, self._loop.close)

    # -- blocking methods --------------------------------------------------------------------------------------------

    def collect(self, tasks: Iterable[Task], group_size: int = 1, *, extra_members: int = 0) -> list[Group]:
        """Play every task ``group_size`` times and return the groups in the order of the tasks.

        All members of a group start in the same state. A member whose environment fails permanently is replaced; after
        too many replacements, the group keeps trajectories with the status "failed".

        Args:
            extra_members: more episodes to start per task; the slowest are cancelled.

        Raises:
            UsageError: a task's id or arguments are wrong.
            EnvUnhealthy: an environment fails repeatedly.
            AgentUnhealthy: the agent does.
            Exception: any exception of the agent except ``AgentFailed`` and ``EngineFailed``; ``EngineLost`` is one.
        """
        return self.run(self.collect_async(list(tasks), group_size, extra_members=extra_members), "collect")

    def batch(
        self,
        source: Iterable[Task],
        groups: int,
        group_size: int = 1,
        *,
        extra_groups: int = 0,
        extra_members: int = 0,
        keep: Filter | None = None,
    ) -> list[Group]:
        """Play tasks from ``source`` until ``groups`` groups are complete, and cancel the others.

        Args:
            source: tasks; may be endless, because they are taken as needed.
            groups: number of groups to return; fewer only if the source ends.
            extra_groups: groups to start in addition, so that slow ones need not be awaited.
            keep: filter of groups; a dropped group is replaced by a new one.
        """
        return self.run(
            self.batch_async(
                source, groups, group_size, extra_groups=extra_groups, extra_members=extra_members, keep=keep
            ),
            "batch",
        )

    def play(
        self, trajectories: Sequence[Trajectory], watch: Callable[[Trajectory], None] | None = None
    ) -> Sequence[Trajectory]:
        """Play trajectories that have only a task and a member number so far; none is replaced or dropped.

        Args:
            watch: called with each trajectory when it ends.
        """
        return self.run(self.play_async(trajectories, watch), "play")

    def run(self, coroutine: Coroutine[Any, Any, T], name: str = "") -> T:
        """Run a coroutine on the manager's event loop, always the same, so that agents and workers may bind to it.

        Args:
            name: method whose ``_async`` twin can be awaited instead, for the error text.
        """
        try:
            refuse_running_loop(f"await manager.{name}_async(...)" if name else "await")
        except UsageError:
            coroutine.close()
            raise
        return self._loop.run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the event loop of a manager with ``thread``, without waiting for it."""
        assert isinstance(self._loop, ThreadLoop)
        return self._loop.start(coroutine)

    def reacts(self) -> bool:
        """Return whether the event loop's thread responds; false while an environment or an agent blocks it."""
        return self._loop.reacts()

    def with_agent(self, agent: Agent, *, keep_views: bool = False) -> RolloutManager:
        """Return a manager for another agent with the same loop, workers and health; it need not be closed."""
        other = copy.copy(self)
        other.agent, other.keep_views, other.stats = agent, keep_views, RolloutStats()
        other.processes = None
        return other

    def close(self) -> None:
        """Close the event loop; optional, since the garbage collector would do it later."""
        self._finalizer()

    def __enter__(self) -> RolloutManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    # -- asynchronous methods ----------------------------------------------------------------------------------------

    async def collect_async(self, tasks: Sequence[Task], group_size: int = 1, *, extra_members: int = 0) -> list[Group]:
        """:meth:`collect` inside a running event loop."""
        return await self.batch_async(tasks, len(tasks), group_size, extra_members=extra_members)

    async def batch_async(
        self,
        source: Iterable[Task],
        groups: int,
        group_size: int = 1,
        *,
        extra_groups: int = 0,
        extra_members: int = 0,
        keep: Filter | None = None,
        complete: Callable[[Group], None] | None = None,
    ) -> list[Group]:
        """:meth:`batch` inside a running event loop.

        Args:
            complete: called with each group of the batch as soon as it is complete.
        """
        check_sizes(groups, group_size, extra_groups, extra_members)
        tasks = iter(source)
        self.stats = stats = RolloutStats()
        done: list[Group] = []
        lacking: list[Group] = []
        numbers = itertools.count()
        # Other processes play whole groups by themselves: they cannot cancel the slowest of all, nor count what is in
        # play everywhere, and they send no drawings.
        share = not (extra_groups or extra_members or self.max_concurrent or self.keep_views)
        async with self.watching(), GroupRunner[Group]() as runner:
            waiting: dict[int, Task] = {}

            def start(n: int) -> None:
                for task in itertools.islice(tasks, n):
                    number = next(numbers)
                    waiting[number] = task
                    play = self.play_group
                    if share and number < groups:  # replacements are few, and late
                        play = self._play_elsewhere
                    runner.start(self.play_and_reward(Group(task, [], number), group_size, extra_members, play))

            start(groups + extra_groups)
            while len(done) < groups and runner.running:
                group = await runner.next()
                del waiting[group.number]
                if len(group.complete) < group_size:
                    lacking.append(group)
                    start(1)
                elif keep and not keep(group):
                    stats.filtered(group)
                    start(1)
                else:
                    done.append(group)
                    if complete:
                        complete(group)
        stats.unfinished = list(waiting.values())
        done += lacking[: groups - len(done)]
        for group in done:
            stats.kept(group)
        return sorted(done, key=lambda g: g.number)

    async def play_async(
        self, trajectories: Sequence[Trajectory], watch: Callable[[Trajectory], None] | None = None
    ) -> Sequence[Trajectory]:
        """:meth:`play` inside a running event loop."""
        self.stats = RolloutStats()
        async with self.watching(), GroupRunner[Trajectory]() as runner:
            following = iter(trajectories)
            for trajectory in itertools.islice(following, self.max_concurrent):
                runner.start(self._play(trajectory, runner))
            while runner.running:
                trajectory = await runner.next()
                for another in itertools.islice(following, 1):
                    runner.start(self._play(another, runner))
                if watch:
                    watch(trajectory)
        return trajectories

    async def play_and_reward(
        self,
        group: Group,
        size: int,
        extra_members: int = 0,
        play: Callable[[Group, int, int], Awaitable[Group]] | None = None,
    ) -> Group:
        """Play a group with ``play``, by default :meth:`play_group`, and add the group reward."""
        await (play or self.play_group)(group, size, extra_members)
        if self.group_reward:
            before = group.complete
            await self.group_reward(group)
            for trajectory in before:
                if not trajectory.complete:
                    self.stats.failed(trajectory)
        return group

    async def _play_elsewhere(self, group: Group, size: int, extra_members: int = 0) -> Group:
        """Let another process play a group, if there is one and no callback of this process is needed."""
        processes = None if self.reward or self.on_trajectory else self.processes
        if processes is None or not await processes.play(self, group, size):
            await self.play_group(group, size, extra_members)
        return group

    async def play_group(self, group: Group, size: int, extra_members: int = 0) -> Group:
        """Fill a group with the first ``size`` trajectories that complete.

        Until then, the group holds every trajectory that was started.

        Args:
            extra_members: episodes to start in addition; the slowest are cancelled.
        """
        spare = self.limits.max_replacements * size
        complete: list[Trajectory] = []
        async with GroupRunner[Trajectory]() as runner:

            def start() -> None:
                trajectory = Trajectory(group.task, group=group.number, member=len(group.trajectories))
                group.trajectories.append(trajectory)
                runner.start(self._play(trajectory, runner))

            for _ in range(size + extra_members):
                start()
            while len(complete) < size and runner.running:
                trajectory = await runner.next()
                if trajectory.complete:
                    complete.append(trajectory)
                elif spare:
                    spare -= 1
                    self.stats.replacements += 1
                    start()
        failed = [t for t in group.trajectories if t.status == "failed"]
        group.trajectories = sorted(complete + failed[: size - len(complete)], key=lambda t: t.member)
        return group

    def oldest_version(self, group: Group) -> int | None:
        """The oldest version of the weights that sampled a token of a group; None before the first token."""
        return group.oldest_version

    async def _play(self, trajectory: Trajectory, runner: GroupRunner[Trajectory]) -> Trajectory:
        episode = Episode(
            trajectory,
            self.agent,
            self.workers,
            self.limits,
            self.health,
            self.keep_views,
            asyncio.get_running_loop().time,
            runner.cancelled,
            self._interrupts.take,
        )
        with self.flight.following(episode):
            try:
                async with self._slots or contextlib.nullcontext():
                    await episode.play()
                if self.reward is not None and trajectory.complete and trajectory.turns:
                    await episode.add_reward(self.reward)
            except asyncio.CancelledError:
                if not runner.cancelled():
                    raise
                trajectory.status = "cancelled"
                self.stats.cancelled(trajectory)
                self.health.ended(episode.env_id, trajectory.worker, "cancelled")
                raise
        if not trajectory.complete:
            self.stats.failed(trajectory)
        if self.on_trajectory:
            self.on_trajectory(trajectory)
        self.health.ended(episode.env_id, trajectory.worker, episode.outcome, trajectory.error)
        return trajectory

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Provide the slots, the health file and the flight recorder during play."""
        self._slots = asyncio.Semaphore(self.max_concurrent) if self.max_concurrent else None
        keeper = asyncio.create_task(self._keep_health()) if self.run_dir else None
        try:
            with self.flight.on_signal(self.run_dir), self._interrupts.noted():
                yield
        finally:
            if keeper:
                keeper.cancel()
                self.save_health()

    async def _keep_health(self) -> None:
        while True:
            self.save_health()
            await asyncio.sleep(HEALTH_EVERY)

    def condition(self) -> tuple[Health, list[dict[str, Any]]]:
        """The health records and the report of the workers."""
        return self.health, self.workers.report()

    def save_health(self) -> None:
        """Write ``health.json`` now."""
        assert self.run_dir is not None
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            health, workers = self.condition()
            health.save(self.run_dir / "health.json", workers)
        except OSError as error:  # a full disk must not end the rollout
            logger.warning("health.json cannot be written: %s", error)


def check_sizes(groups: int, group_size: int, extra_groups: int, extra_members: int) -> None:
    """Check the sizes of a batch."""
    if groups < 0 or group_size < 1 or extra_groups < 0 or extra_members < 0:
        raise UsageError(
            "groups, extra_groups and extra_members cannot be negative and group_size must be at least 1, got "
            f"groups={groups}, group_size={group_size}, extra_groups={extra_groups}, extra_members={extra_members}"
        )

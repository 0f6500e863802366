"""Shards of a rollout as Ray actors: a manager on every node, beside its environments and its engine."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from rollenv.agents.engines.base import on_host
from rollenv.core.errors import UsageError, reads
from rollenv.core.needs import extra
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.shard import ShardHost, ShardLost
from rollenv.rollout.shards import Fleet

with extra("ray", "Playing in Ray"):
    import ray
    from ray.exceptions import RayError

    from rollenv.rollout.ray_calls import check_room, kill_actor, result_of

if TYPE_CHECKING:
    from rollenv.agents.engines.adapters import Adapter

#: Seconds that a shard may wait for a place in the cluster before a warning.
_PATIENCE = 60.0

logger = logging.getLogger(__name__)


class RayShards(Fleet):
    """Shards on the Ray cluster that this process is connected to (``ray.init`` first).

    Args:
        count: number of shards; they are spread over the nodes.
        build: builds the manager of a shard in its actor; must be picklable.
        capacity: groups that a shard plays at the same time.
        actor_options: options of ``ray.remote``: ``num_cpus``, ``num_gpus``, ``resources``, ``runtime_env``, ...
    """

    def __init__(
        self,
        count: int,
        build: Callable[[], RolloutManager],
        *,
        capacity: int = 64,
        actor_options: dict[str, Any] | None = None,
        **fleet: Any,
    ):
        if not ray.is_initialized():
            raise UsageError("RayShards needs a cluster: call ray.init() first")
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **(actor_options or {})}
        with reads("options of a shard's actor"):
            actor_class = ray.remote(_Actor).options(max_restarts=0, max_concurrency=4 * capacity + 32, **options)
        check_room(count, options, "start fewer shards, or let each need less")

        async def start(name: str) -> ActorShard:
            shard = ActorShard(name, actor_class.remote(build))
            try:
                shard.node = await shard.placed(_PATIENCE)
            except BaseException:
                kill_actor(shard.actor)
                raise
            return shard

        super().__init__([f"shard-{i}" for i in range(count)], start, capacity=capacity, **fleet)

    def pack_weights(self, weights: Iterable[tuple[str, Any]] | Adapter | None) -> Any:
        """Put the weights into Ray's object store, once for all shards of a node."""
        return None if weights is None else [ray.put(on_host(weights))]


class _Actor:
    """The Ray actor of a shard."""

    def __init__(self, build: Callable[[], RolloutManager]):
        self.build = build
        self.host: ShardHost | None = None

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the shard, which is built here because the event loop is running."""
        if self.host is None:
            self.host = ShardHost(self.build)
        answer = getattr(self.host, method)(*args)
        return await answer if inspect.isawaitable(answer) else answer

    async def update(self, weights: Any, version: int) -> dict[int, int | None]:
        """Fetch weights from Ray's object store, once for a node, and give them to the agent."""
        stored = None if weights is None else await weights[0]
        ages: dict[int, int | None] = await self.call("update", stored, version)
        return ages

    async def node(self) -> str:
        """Build the shard and return the id of its node."""
        await self.call("check_alive")
        return str(ray.get_runtime_context().get_node_id())

    async def end(self) -> None:
        if self.host is not None:
            await self.host.end()


def _calls(method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the method of an :class:`ActorShard` that calls the shard's in its actor."""

    async def call(self: ActorShard, *args: Any) -> Any:
        return await self._answer(self.actor.call.remote(method, *args))

    return call


class ActorShard:
    """A :class:`rollenv.rollout.shard.Shard` in a Ray actor."""

    play, play_many = _calls("play"), _calls("play_many")
    suspend, resume, ping = _calls("suspend"), _calls("resume"), _calls("ping")

    def __init__(self, name: str, actor: Any):
        self.name, self.actor = name, actor
        self.node = ""
        """Id of the actor's node."""

    async def placed(self, patience: float) -> str:
        """Wait for the actor to start and return the id of its node; warn after ``patience`` seconds."""
        node: asyncio.Future[str] = asyncio.ensure_future(self._answer(self.actor.node.remote()))
        try:
            await asyncio.wait({node}, timeout=patience)
            if not node.done():
                logger.warning("%s has not started for %g s: does the cluster have room for it?", self.name, patience)
            return await node
        finally:
            node.cancel()

    def cancel(self, key: int) -> None:
        with contextlib.suppress(RayError):
            self.actor.call.remote("cancel", key)

    async def update(self, weights: Any, version: int) -> dict[int, int | None]:
        ages: dict[int, int | None] = await self._answer(self.actor.update.remote(weights, version))
        return ages

    async def close(self) -> None:
        try:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._answer(self.actor.end.remote()), 15.0)
        finally:
            kill_actor(self.actor)

    async def _answer(self, reference: Any) -> Any:
        """Return the actor's answer, or raise its exception."""
        return await result_of(reference, lambda why: ShardLost(f"{self.name}: {why}"))

"""vLLM engines in Ray actors, which Ray places on GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.agents.engines.base import (
    EngineFailed,
    EngineLost,
    Ids,
    Response,
    Sampling,
    TokenCounts,
    on_host,
    room_for,
)
from rollenv.agents.engines.router import Router
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.needs import extra

with extra("ray", "Playing with vLLM in Ray"):
    import ray
    from ray.exceptions import RayError, RayTaskError

    from rollenv import ray_calls

if TYPE_CHECKING:
    import torch

    from rollenv.agents.engines.adapters import Adapter
    from rollenv.agents.engines.vllm_transfer import Transfer
logger = logging.getLogger(__name__)


class VLLMActors(Router):
    """Engines in actors of the connected Ray cluster, or of a new one.

    Weights go through Ray's object store, once per node, unless the engines have a ``transfer`` (see
    ``vllm_transfer``). A dead actor is excluded; when all are dead, requests raise
    :class:`~rollenv.agents.engines.base.EngineLost`.

    Args:
        model: a folder that is available on the actors' nodes, or a hub name.
        options: arguments of :class:`~rollenv.agents.engines.vllm.VLLMEngine` in every actor.
        actor_options: options of ``ray.remote``: ``num_gpus``, ``num_cpus``, ``resources``, ``runtime_env``, ... By
            default one GPU if the cluster has any.
        router: arguments of the :class:`Router` over the actors.

    Raises:
        UsageError: vLLM does not run in an actor.
    """

    def __init__(
        self,
        count: int,
        model: str | Path,
        options: dict[str, Any],
        actor_options: dict[str, Any] | None = None,
        **router: Any,
    ):
        self._held = contextlib.ExitStack()
        self._held.enter_context(ray_calls.connected(cpus=count))
        try:
            gpus = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {}  # type: ignore[no-untyped-call]
            wanted = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **gpus, **(actor_options or {})}
            made: Any = ray.remote(_Actor).options(max_restarts=0, max_concurrency=4096, **wanted)
            actors: list[Any] = [made.remote(str(model), options) for _ in range(count)]
            for actor in actors:
                self._held.callback(ray_calls.kill_actor, actor)
            contexts = _first([actor.about.remote() for actor in actors])
            engines = [ActorEngine(f"actor {i}", a, c) for i, (a, c) in enumerate(zip(actors, contexts, strict=True))]
            backend = (options.get("weight_transfer_config") or {}).get("backend", "")
            for engine in engines:
                engine.transfer = _transfer(backend, engine.actor, options.get("tensor_parallel_size", 1))
            super().__init__(engines, **router)
        except BaseException:
            self._held.close()
            raise

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter | None = None) -> None:
        """Update every actor."""
        direct = any(engine.transfer for engine in self.engines)
        await super().update_weights(weights if weights is None or direct else Stored(weights))

    def close(self) -> None:
        """End the actors."""
        self._held.close()


class Stored(list[Any]):
    """Weights in Ray's object store."""

    def __init__(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter):
        super().__init__([ray.put(on_host(weights))])


class _Actor:
    """An actor with an engine."""

    def __init__(self, model: str, options: dict[str, Any]):
        from rollenv.agents.vllm import load_engine

        self.engine, _ = load_engine(model, **options)
        self.drawing: dict[int, asyncio.Task[Any]] = {}

    async def about(self) -> int:
        return self.engine.max_context

    async def draw(self, key: int, prompt: Ids, sampling: Sampling, seed: int) -> tuple[Response, TokenCounts]:
        task = self.drawing[key] = asyncio.ensure_future(self.engine.draw(prompt, sampling, seed))
        try:
            return await task, self.engine.stats
        except asyncio.CancelledError:
            raise EngineFailed("the request was cancelled") from None
        finally:
            del self.drawing[key]

    async def cancel(self, key: int) -> None:
        if key in self.drawing:
            self.drawing[key].cancel()

    async def call(self, method: str, *args: Any) -> Any:
        return await getattr(self.engine, method)(*args)

    async def call_workers(self, method: str, arguments: dict[str, Any]) -> None:
        await self.engine.call_workers(method, **arguments)

    async def update(self, stored: list[Any]) -> None:
        await self.engine.update_weights(await stored[0])

    async def mark(self, version: int) -> None:
        self.engine.version = version

    async def check_sleep(self) -> None:
        self.engine.check_sleep()


class ActorEngine:
    """An engine in an actor; see :class:`rollenv.agents.engines.base.RestingEngine`."""

    def __init__(self, name: str, actor: Any, max_context: int):
        self.name, self.actor, self.max_context = name, actor, max_context
        self.stats = TokenCounts()
        self.transfer: Transfer | None = None
        self._keys = itertools.count()
        self._version, self._failure = 0, ""

    @property
    def version(self) -> int:
        """Number of updates."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        if version != self._version and not self._failure:
            self.actor.mark.remote(version)
        self._version = version

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Sample a response (see :class:`rollenv.agents.engines.base.Engine`).

        Raises:
            ContextFull: the prompt leaves no room for a response.
            EngineLost: the actor has died.
            UsageError: the prompt or the sampling is invalid.
        """
        prompt, _ = room_for(prompt, sampling, self.max_context, decodes=True)
        if self._failure:
            raise EngineLost(self._failure)
        key, seed = next(self._keys), rng.getrandbits(48)
        try:
            response: Response
            response, self.stats = await self._result(self.actor.draw.remote(key, prompt, sampling, seed))
            return response
        except asyncio.CancelledError:
            self.actor.cancel.remote(key)
            raise

    def release(self, session: int) -> None:
        """Do nothing: vLLM's prefix cache drops the least recently used entries."""

    async def suspend(self) -> None:
        """Stop sampling until :meth:`resume`."""
        await self._call("suspend")

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter | None = None) -> None:
        """Load new weights or an adapter, also from the object store.

        Raises:
            UsageError: there are no weights, or vLLM cannot load them.
        """
        if weights is None:
            raise UsageError("vLLM keeps its own model: pass the trained model's named weights to update_weights()")
        if self.transfer is not None and not hasattr(weights, "merged"):
            await asyncio.to_thread(self.transfer.send, list(weights))
            await self._call("weights_came")
        else:
            stored = weights if isinstance(weights, Stored) else Stored(weights)
            await self._result(self.actor.update.remote(list(stored)))
        self._version += 1

    async def resume(self) -> None:
        """Resume sampling; unfinished responses continue after their tokens."""
        await self._call("resume")

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator's memory."""
        await self._call("sleep", level)

    def check_sleep(self) -> None:
        """Raise UsageError if the engine cannot :meth:`sleep`."""
        _first([self.actor.check_sleep.remote()])

    async def _call(self, method: str, *args: Any) -> None:
        await self._result(self.actor.call.remote(method, *args))

    async def _result(self, reference: Any) -> Any:
        return await ray_calls.result_of(reference, self._lost)

    def _lost(self, why: str) -> EngineLost:
        self._failure = (
            f"vLLM in {self.name} is lost: {why}. See the actor's log (ray logs), and continue the run from its last "
            "checkpoint with --resume"
        )
        return EngineLost(self._failure)


def _transfer(backend: str, actor: Any, workers: int) -> Transfer | None:
    """Create vLLM's own weight transfer, if the engine was started with one."""
    if not backend:
        logger.info("weights go to vLLM through Ray's object store")
        return None
    from rollenv.agents.engines.vllm_transfer import CalledClient, Transfer

    call = CalledClient(lambda method, **arguments: ray.get(actor.call_workers.remote(method, arguments)))
    return Transfer(backend, call, workers)


def _first(references: list[Any]) -> list[Any]:
    """Return the results of actors synchronously."""
    try:
        return list(ray.get(references))
    except RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, RollenvError) else UsageError(f"vLLM does not run in Ray: {cause}")) from None
    except RayError as error:
        raise UsageError(f"vLLM does not run in a Ray actor: {str(error).strip().splitlines()[-1]}") from error

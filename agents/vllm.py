"""The engine that runs a model with vLLM in this process, and the agent that plays with it."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rollenv.agents.base import ContextFull
from rollenv.agents.engines.base import Decode, EngineFailed, Ids, OwnsEngine, Response, Sampling, stopped, token_ids
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.prompts.session import TokenAgent, stop_ids
from rollenv.core import UsageError
from rollenv.hub import loading
from rollenv.needs import extra

with extra("vllm", "Playing with vLLM"):
    from transformers import AutoTokenizer, GenerationConfig
    from vllm import EngineArgs, SamplingParams  # type: ignore[import-not-found]
    from vllm.platforms import current_platform  # type: ignore[import-not-found]
    from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]
    from vllm.v1.engine.llm_engine import LLMEngine  # type: ignore[import-not-found]
    from vllm.v1.executor import Executor  # type: ignore[import-not-found]

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_SWITCH = "VLLM_ENABLE_V1_MULTIPROCESSING"

#: What is passed to vLLM unless the caller says otherwise. Log-probabilities are those of the distribution that was
#: drawn from, with the temperature applied: what the trainer computes.
DEFAULTS: dict[str, Any] = {
    "logprobs_mode": "processed_logprobs",
    "enable_prefix_caching": True,
    "skip_tokenizer_init": True,
    "generation_config": "vllm",
    "disable_log_stats": True,
}


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and the tokens of the response drawn so far. ``id`` is vLLM's name for it, empty before it is sent."""

    prompt: Ids
    sampling: Sampling
    rng: random.Random
    limit: int
    future: asyncio.Future[None]
    response: Response = field(default_factory=Response)
    id: str = ""


@dataclass(slots=True)
class VLLMStats:
    """Counts of an engine: prompt tokens, prompt tokens found in vLLM's prefix cache, tokens drawn, steps."""

    prompted: int = 0
    reused: int = 0
    drawn: int = 0
    steps: int = 0


class VLLMEngine:
    """Samples with vLLM; its scheduler, model and caches live in this process.

    vLLM runs in its own thread, step by step, so that the event loop stays free; requests and cancellations
    reach it between two steps. Cached keys and values are found by their tokens (prefix caching), so sessions and the
    members of a group share them without further help. Each request's draws follow a seed from its random stream.

    vLLM seeds the process's random generators and starts a process group of torch when it loads a model.

    Args:
        model: a folder or hub name.
        stop: the tokens that end a response.
        decode: from tokens to text, for :attr:`Sampling.stop`.
        options: of ``vllm.EngineArgs``, such as ``dtype``, ``max_model_len``, ``gpu_memory_utilization`` or
            ``enable_sleep_mode``.

    Raises:
        UsageError: vLLM does not know an option, or cannot load the model.
    """

    def __init__(self, model: str | Path, stop: frozenset[int], *, decode: Decode | None = None, **options: Any):
        self.stop, self._decode = stop, decode
        self.version = 0
        self.stats = VLLMStats()
        self._live: list[Request] = []
        self._aborted: list[str] = []
        self._names = itertools.count()
        self._suspended = False
        self._failure = ""
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "vllm")
        try:
            self._llm = self._thread.submit(_load, str(model), DEFAULTS | options).result()
        except Exception as error:
            self._thread.shutdown()
            raise UsageError(f"vLLM cannot run {str(model)!r} with {options}: {error}") from error
        self.max_context: int = self._llm.model_config.max_model_len

    # -- what sessions call ------------------------------------------------------------------------------------------

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Draw a response (see :class:`rollenv.agents.engines.base.Engine`).

        Args:
            prompt: token ids.
            sampling: how to sample.
            rng: source of the request's seed.
            session: requests of one session share a prefix; -1 for none.

        Raises:
            ContextFull: the prompt leaves no room for a response.
            EngineFailed: vLLM failed, or was closed.
            UsageError: the prompt or the sampling is not valid.
        """
        prompt = token_ids(prompt)
        limit = min(sampling.max_new_tokens, self.max_context - len(prompt))
        if sampling.stop and self._decode is None:
            raise UsageError("stop texts need decode=: VLLMEngine(model, stop, decode=...)")
        if sampling.max_new_tokens < 1:
            raise UsageError(f"nothing to generate from {len(prompt)} prompt tokens with {sampling}")
        if limit < 1:
            raise ContextFull(f"a prompt of {len(prompt)} tokens leaves no room in a context of {self.max_context}")
        if self._failure:
            raise EngineFailed(self._failure)
        request = Request(prompt, sampling, rng, limit, asyncio.get_running_loop().create_future())
        self._live.append(request)
        self._wake()
        try:
            await request.future
        except asyncio.CancelledError:
            self._cancel(request)
            raise
        return request.response

    def release(self, session: int) -> None:
        """Nothing to do: vLLM's prefix cache drops the least recently used entries."""

    @property
    def active(self) -> int:
        """How many requests are waiting or running."""
        return len(self._live)

    def close(self) -> None:
        """Stop vLLM and its thread; running requests fail."""
        if self._failure != "the engine was closed":
            self._fail("the engine was closed")
            self._thread.submit(self._llm.engine_core.shutdown).result()
            self._thread.shutdown()

    # -- new weights -------------------------------------------------------------------------------------------------

    async def suspend(self) -> None:
        """Draw nothing until :meth:`resume`. vLLM drops its running requests; the tokens drawn so far stay here."""
        self._suspended = True
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({self._task})
        aborted = self._aborted + [r.id for r in self._live if r.id]
        self._aborted = []
        for request in self._live:
            request.id = ""
        await self._in_thread(self._llm.abort_request, aborted)

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | None = None) -> None:
        """Load weights by the names they have in transformers, all of the model's; cached prefixes are dropped.

        Raises:
            UsageError: no weights were given.
        """
        if weights is None:
            raise UsageError("vLLM keeps its own model: pass the trained model's named weights to update_weights()")
        going = not self._suspended
        await self.suspend()
        await self._in_thread(self._reload, list(weights))
        self.version += 1
        if going:
            await self.resume()

    async def resume(self) -> None:
        """Resume drawing; unfinished responses continue from their prompts and tokens."""
        self._suspended = False
        if self._live:
            self._wake()

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator's memory: the caches, and the weights (kept in main memory at level 1, lost at 2).

        Implies :meth:`suspend`. Needs the option ``enable_sleep_mode=True``.

        Raises:
            UsageError: the device or the options do not allow it.
        """
        if not (current_platform.is_sleep_mode_available() and self._llm.model_config.enable_sleep_mode):
            raise UsageError(
                "vLLM cannot sleep here: it needs a GPU and the engine option enable_sleep_mode=True; this is "
                f"{current_platform.device_name!r}"
            )
        await self.suspend()
        await self._in_thread(self._llm.sleep, level)

    async def wake(self) -> None:
        """Take the memory back after :meth:`sleep`; then come :meth:`update_weights` (always at level 2) and resume."""
        await self._in_thread(self._llm.wake_up)

    # -- the loop over steps -----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        running = self._task is not None and not self._task.done() and self._task.get_loop() is loop
        if not running and not self._suspended:
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        """Step after step, until nothing is left to do."""
        try:
            while (self._live or self._aborted) and not self._suspended:
                new = [r for r in self._live if not r.id]
                for request in new:
                    request.id = str(next(self._names))
                aborted, self._aborted = self._aborted, []
                refused, outputs = await self._in_thread(self._step, aborted, new)
                for request, reason in refused:
                    self._end(request, UsageError(f"vLLM refused a request: {reason}"))
                self._take(outputs)
        except Exception as error:
            self._fail(f"vLLM failed with {type(error).__name__}: {error}; start a new engine")

    def _take(self, outputs: Sequence[Any]) -> None:
        """Add what was drawn to the responses."""
        live = {r.id: r for r in self._live}
        self.stats.steps += 1
        for output in outputs:
            request = live.get(output.request_id)
            if request is None:  # cancelled during the step
                continue
            drawn, response = output.outputs[0], request.response
            if not response.ids:
                self.stats.prompted += len(request.prompt)
                self.stats.reused += output.num_cached_tokens or 0
            ids = list(drawn.token_ids)
            response.ids += ids
            response.logprobs += [row[i].logprob for i, row in zip(ids, drawn.logprobs or (), strict=True)]
            response.versions += [self.version] * len(ids)
            self.stats.drawn += len(ids)
            texts = request.sampling.stop
            at_text = bool(ids and texts and self._decode and stopped(response.ids, texts, self._decode))
            if output.finished or at_text:
                response.finish = "stop" if at_text or response.ids[-1] in self.stop else "length"
                if not output.finished:
                    self._aborted.append(request.id)
                self._end(request)

    def _end(self, request: Request, error: Exception | None = None) -> None:
        if request not in self._live:  # cancelled during the step
            return
        self._live.remove(request)
        if request.future.done():
            return
        if error is None:
            request.future.set_result(None)
        else:
            request.future.set_exception(error)

    def _cancel(self, request: Request) -> None:
        if request in self._live:
            self._live.remove(request)
            if request.id:
                self._aborted.append(request.id)
                self._wake()

    def _fail(self, why: str) -> None:
        self._failure = why
        for request in list(self._live):
            self._end(request, EngineFailed(why, request.response))

    # -- in vLLM's thread --------------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _step(self, aborted: list[str], new: Sequence[Request]) -> tuple[list[tuple[Request, str]], list[Any]]:
        """What vLLM refused of the new requests and why, and what it drew."""
        self._llm.abort_request(aborted)
        refused = []
        for request in new:
            try:
                tokens = {"prompt_token_ids": [*request.prompt, *request.response.ids]}
                self._llm.add_request(request.id, tokens, self._parameters(request))
            except ValueError as error:
                refused.append((request, str(error)))
        return refused, self._llm.step() if self._llm.has_unfinished_requests() else []

    def _parameters(self, request: Request) -> Any:
        sampling = request.sampling
        temperature = sampling.temperature
        return SamplingParams(
            temperature=temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_tokens=request.limit - len(request.response.ids),
            seed=request.rng.getrandbits(48) if temperature else None,
            stop_token_ids=sorted(self.stop),
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def _reload(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self._llm.reset_prefix_cache():
            raise EngineFailed("vLLM still holds cached prefixes of the old weights for running requests")


def _load(model: str, options: dict[str, Any]) -> LLMEngine:
    """vLLM with its scheduler and (with one device) its model in this process; on CPU only its switch achieves that."""
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "0"
    try:
        config = EngineArgs(model=model, **options).create_engine_config()
        return LLMEngine(config, Executor.get_class(config), log_stats=False, multiprocess_mode=False)
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def saved_stops(path: str | Path) -> frozenset[int]:
    """The tokens that end a response by the generation config beside a model, if there is one."""
    try:
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    except (OSError, ValueError):
        return frozenset()
    return frozenset(ends if isinstance(ends, list | tuple) else () if ends is None else (ends,))


class VLLMAgent(OwnsEngine, TokenAgent):
    """Plays with a model that vLLM runs in this process: a :class:`TokenAgent` with updatable weights."""

    engine: VLLMEngine

    @classmethod
    def load(
        cls,
        path: str | Path,
        prompt: StepPrompt | None = None,
        sampling: Sampling | None = None,
        *,
        chat: dict[str, Any] | None = None,
        **options: Any,
    ) -> VLLMAgent:
        """Load a model into a vLLM engine.

        Args:
            path: model folder, or name on the hub.
            prompt: format of the prompt; by default the saved one.
            sampling: by default the saved one.
            chat: arguments of :class:`TokenAgent` for a chat.
            options: arguments of the engine.

        Raises:
            UsageError: the model does not exist, or vLLM cannot run it.
        """
        how = loading(str(path))
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, **how)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot load a tokenizer from {str(path)!r}: {error}") from error
        stop = stop_ids(tokenizer, chat=prompt is None or prompt.chat) | saved_stops(path)
        engine = VLLMEngine(path, stop, decode=lambda ids: str(tokenizer.decode(ids)), **options)
        return cls(engine, tokenizer, prompt, sampling, **(chat or {}))

    def close(self) -> None:
        """Stop vLLM."""
        self.engine.close()

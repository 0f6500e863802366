"""An engine that runs a model with vLLM in this process."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rollenv.agents.base import AgentFailed
from rollenv.agents.engines.adapters import Adapter, saved_weights
from rollenv.agents.engines.base import (
    SLEEPERS,
    Decode,
    EngineFailed,
    EngineLost,
    Ids,
    Response,
    Sampling,
    TokenCounts,
    check_base,
    ends_with_stop,
    room_for,
    versions_of,
)
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.needs import extra
from rollenv.core.picture_forms import pil
from rollenv.core.pictures import is_picture_token, numbered

with extra("vllm", "Playing with vLLM"):
    from vllm import EngineArgs, SamplingParams  # type: ignore[import-not-found]
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]
    from vllm.platforms import current_platform  # type: ignore[import-not-found]
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # type: ignore[import-not-found]
    from vllm.v1.engine.llm_engine import LLMEngine  # type: ignore[import-not-found]
    from vllm.v1.executor import Executor  # type: ignore[import-not-found]

if TYPE_CHECKING:
    import torch

    from rollenv.agents.vision import Eyes

T = TypeVar("T")

_SWITCH = "VLLM_ENABLE_V1_MULTIPROCESSING"

#: Defaults of vLLM's arguments. Log-probabilities are those after the temperature, which the trainer computes too.
DEFAULTS: dict[str, Any] = {
    "logprobs_mode": "processed_logprobs",
    "enable_prefix_caching": True,
    "skip_tokenizer_init": True,
    "generation_config": "vllm",
    "disable_log_stats": True,
    # vLLM samples a token after each chunk of a prompt, discards it and resets the request's generator, which fails for
    # generators of CPUs (``torch.Generator.set_offset``).
    **({"enable_chunked_prefill": False} if current_platform.is_cpu() else {}),
}


@dataclass(slots=True, eq=False)
class _Request:
    """A prompt and its response so far."""

    prompt: Ids
    sampling: Sampling
    rng: random.Random
    limit: int
    future: asyncio.Future[None]
    response: Response = field(default_factory=Response)
    id: str = ""
    """vLLM's request id, empty before it is sent."""
    sent: int = 0
    """Number of response tokens that were sent with the prompt."""


class VLLMEngine:
    """Samples with vLLM; its scheduler, model and caches live in this process.

    vLLM runs step by step in its own thread, so that the event loop stays free; requests and cancellations are passed
    between two steps. With prefix caching, sessions and members of a group share keys and values. Each request has a
    seed from the session's random numbers.

    vLLM seeds the process's random generators and starts a process group of torch when it loads a model.

    Args:
        eyes: how the model sees, for prompts with pictures. vLLM processes them itself; where it gives one another
            number of tokens, its prompt is refused.
        options: arguments of ``vllm.EngineArgs``, such as ``dtype``, ``max_model_len``, ``gpu_memory_utilization`` or
            ``enable_sleep_mode``.
    """

    def __init__(
        self,
        model: str | Path,
        stop: frozenset[int],
        *,
        decode: Decode | None = None,
        eyes: Eyes | None = None,
        **options: Any,
    ):
        self.stop, self._decode, self._eyes = stop, decode, eyes
        self.model, self._adapts = Path(model), bool(options.get("enable_lora"))
        self._adapter: LoRARequest | None = None
        self._adapters = tempfile.TemporaryDirectory(prefix="rollenv-adapters-")
        self.on_cpu: bool = current_platform.is_cpu()
        self._asleep: list[str] = []
        self._lost_weights = False
        self.stats = TokenCounts()
        self._live: list[_Request] = []
        self._aborted: list[str] = []
        self._names, self._adapter_numbers = itertools.count(), itertools.count(1)
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
        self.version = 0

    @property
    def version(self) -> int:
        """Number of updates; vLLM labels every token with it."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        if hasattr(self._llm, "set_weight_version"):  # vLLM 0.28 and later
            self._llm.set_weight_version(str(version))

    # -- what sessions call ------------------------------------------------------------------------------------------

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Sample a response (see :class:`rollenv.agents.engines.base.Engine`)."""
        prompt, limit = room_for(prompt, sampling, self.max_context, decodes=self._decode is not None)
        if self._failure:
            raise EngineLost(self._failure)
        future = asyncio.get_running_loop().create_future()
        request = _Request(prompt, sampling, random.Random(rng.getrandbits(48)), limit, future)
        self._live.append(request)
        self._wake()
        try:
            await request.future
        except asyncio.CancelledError:
            if request in self._live:
                self._live.remove(request)
                if request.id:
                    self._aborted.append(request.id)
                    self._wake()
            raise
        return request.response

    def release(self, session: int) -> None:
        """Do nothing: vLLM's prefix cache drops the least recently used entries."""

    @property
    def active(self) -> int:
        """Number of waiting or running requests."""
        return len(self._live)

    def close(self) -> None:
        """Stop vLLM and its thread; running requests fail."""
        if self._failure != "the engine was closed":
            self._fail("the engine was closed")
            self._thread.submit(self._llm.engine_core.shutdown).result()
            self._thread.shutdown()
            self._adapters.cleanup()

    # -- new weights -------------------------------------------------------------------------------------------------

    async def suspend(self) -> None:
        """Stop sampling until :meth:`resume`. Running requests remain in vLLM, as with its pause mode "keep"."""
        self._suspended = True
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({self._task})

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter | None = None) -> None:
        """Load all weights of the model, by their names in transformers, or an adapter.

        Running requests keep their tokens, whose keys and values are computed again. An adapter is loaded as such with
        the option ``enable_lora=True``; otherwise it is merged into the weights of the model's folder.
        """
        if weights is None:
            raise UsageError("vLLM keeps its own model: pass the trained model's named weights to update_weights()")
        adapts = isinstance(weights, Adapter) and self._adapts
        if adapts:
            check_base(self._lost_weights)
        was_running = not self._suspended
        await self.suspend()
        if "weights" in self._asleep:
            await self._wake_up("weights")
        if adapts:
            self._send_again()
            await self._in_thread(self._adapt, weights)
        else:
            self._send_again(changed=self._adapter is not None)
            await self._in_thread(self._reload, weights)
        self._lost_weights = False
        self.version += 1
        if was_running:
            await self.resume()

    async def resume(self) -> None:
        """Resume sampling; unfinished responses continue after their tokens."""
        if self._lost_weights:
            raise UsageError("vLLM lost its weights in a sleep of level 2: call update_weights() before resume()")
        for part in tuple(self._asleep):
            await self._wake_up(part)
        self._suspended = False
        if self._live:
            self._wake()

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator's memory: caches and weights (moved to main memory at level 1, lost at level 2).

        Implies :meth:`suspend`; :meth:`update_weights` and :meth:`resume` allocate the memory again. Requires the
        option ``enable_sleep_mode=True``.
        """
        self.check_sleep()
        await self.suspend()
        await self._in_thread(self._llm.sleep, level, "keep")
        self._asleep, self._lost_weights = list(SLEEPERS), level == 2

    async def _wake_up(self, part: str) -> None:
        """Allocate the memory of a part again, once: vLLM fails on memory that it has already."""
        await self._in_thread(self._llm.wake_up, [part])
        self._asleep.remove(part)

    def check_sleep(self) -> None:
        """Raise UsageError if the engine cannot :meth:`sleep`."""
        if not (current_platform.is_sleep_mode_available() and self._llm.model_config.enable_sleep_mode):
            raise UsageError(
                "vLLM cannot sleep here: it needs a GPU and the engine option enable_sleep_mode=True; this is "
                f"{current_platform.device_name!r}"
            )

    def _send_again(self, changed: bool = True) -> None:
        """Abort running requests to send them again, since vLLM does not change the adapter of a request."""
        if changed:
            self._aborted += [r.id for r in self._live if r.id]
            for request in self._live:
                request.id = ""

    # -- the loop over steps -----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        running = self._task is not None and not self._task.done() and self._task.get_loop() is loop
        if not running and not self._suspended:
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        """Run steps until no request is left."""
        try:
            while (self._live or self._aborted) and not self._suspended:
                new = [r for r in self._live if not r.id]
                for request in new:
                    if request.sampling.structured:
                        request.response = Response()
                    request.id, request.sent = str(next(self._names)), len(request.response.ids)
                refused, outputs = await self._in_thread(self._step, self._take_aborted(), new)
                for request, error in refused:
                    own = isinstance(error, RollenvError)
                    why = f"vLLM refused a request: {type(error).__name__}: {error}"
                    self._end(request, error if own else UsageError(why))
                self._take(outputs)
        except Exception as error:
            self._fail(f"vLLM failed with {type(error).__name__}: {error}; start a new engine")

    def _take(self, outputs: Sequence[Any]) -> None:
        """Add the outputs of a step to the responses."""
        live = {r.id: r for r in self._live}
        self.stats.steps += 1
        for output in outputs:
            request = live.get(output.request_id)
            if request is None:  # cancelled during the step
                continue
            completion, response = output.outputs[0], request.response
            expected = len(request.prompt) + request.sent
            if self._eyes and output.prompt_token_ids and len(output.prompt_token_ids) != expected:
                shown = ", ".join({repr(numbered(token)) for token in request.prompt if is_picture_token(token)})
                found = len(output.prompt_token_ids)
                why = f"vLLM makes {found} tokens of a prompt that has {expected} here, with {shown}"
                self._aborted.append(request.id)
                self._end(request, UsageError(f"{why}: give it the processor's settings of the model's folder"))
                continue
            if not response.ids:
                self.stats.prompted += len(request.prompt)
                self.stats.reused += output.num_cached_tokens or 0
            ids = list(completion.token_ids)
            response.ids += ids
            response.logprobs += [row[i].logprob for i, row in zip(ids, completion.logprobs or (), strict=True)]
            response.versions += [self.version] * len(ids)
            if getattr(completion, "weight_versions", None):  # sent with the last tokens, for all tokens of the request
                spans = ((span.version, span.start, span.end) for span in completion.weight_versions)
                response.versions[request.sent :] = versions_of(spans, len(response.ids) - request.sent, self.version)
            self.stats.drawn += len(ids)
            texts = request.sampling.stop
            at_text = bool(ids and texts and self._decode and ends_with_stop(response.ids, texts, self._decode))
            if output.finished or at_text:
                response.finish = "stop" if at_text or response.ids[-1] in self.stop else "length"
                if not output.finished:
                    self._aborted.append(request.id)
                self._end(request)

    def _end(self, request: _Request, error: Exception | None = None) -> None:
        if request not in self._live:  # cancelled during the step
            return
        self._live.remove(request)
        if request.future.done():
            return
        if error is None:
            request.future.set_result(None)
        else:
            request.future.set_exception(error)

    def _fail(self, why: str) -> None:
        self._failure = why
        for request in list(self._live):
            self._end(request, EngineFailed(why, request.response))

    # -- in vLLM's thread --------------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _step(self, aborted: list[str], new: Sequence[_Request]) -> tuple[list[tuple[_Request, Exception]], list[Any]]:
        """Run a step of vLLM and return the refused new requests with reasons, and the outputs."""
        self._llm.abort_request(aborted)
        refused = []
        for request in new:
            try:
                tokens = seen_prompt((*request.prompt, *request.response.ids), self._eyes)
                self._llm.add_request(request.id, tokens, self._parameters(request), lora_request=self._adapter)
            except Exception as error:  # a bad grammar raises anything
                refused.append((request, error))
        return refused, self._llm.step() if self._llm.has_unfinished_requests() else []

    def _parameters(self, request: _Request) -> Any:
        sampling = request.sampling
        temperature = sampling.temperature
        structure = None
        if sampling.structured:
            structure = StructuredOutputsParams(json=sampling.schema or None, grammar=sampling.grammar or None)
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
            structured_outputs=structure,
        )

    def _reload(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter) -> None:
        """Load all weights, and remove the adapter."""
        named = weights.merged(saved_weights(self.model)) if isinstance(weights, Adapter) else weights
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(named)})
        self._put_on(None)

    def _adapt(self, adapter: Adapter) -> None:
        """Load an adapter under a new name and number."""
        number = next(self._adapter_numbers)
        folder = Path(self._adapters.name, str(number))
        adapter.save(folder)
        request = LoRARequest(f"adapter-{number}", number, str(folder))
        try:
            self._llm.add_lora(request)
        except Exception as error:
            raise UsageError(f"vLLM cannot play this adapter ({error}): send merged weights instead") from error
        finally:
            shutil.rmtree(folder)
        self._put_on(request)

    def _put_on(self, adapter: LoRARequest | None) -> None:
        """Set or remove the adapter, and clear the cache of earlier weights."""
        self._llm.abort_request(self._take_aborted())
        if self._adapter is not None:
            self._llm.remove_lora(self._adapter.lora_int_id)
        self._adapter = adapter
        if not self._llm.reset_prefix_cache(reset_running_requests=True):
            raise EngineFailed("vLLM still holds cached prefixes of the old weights")
        if self._eyes:
            self._llm.reset_encoder_cache()  # features of pictures

    def _take_aborted(self) -> list[str]:
        aborted, self._aborted = self._aborted, []
        return aborted


def seen_prompt(ids: Ids, eyes: Eyes | None) -> dict[str, Any]:
    """Return a prompt as vLLM takes it: one token for each picture, which it expands, and the pictures.

    Raises:
        UsageError: the model does not see, or is of a family whose pictures are more than a run of one token.
        AgentFailed: the model has sampled the token of pictures, which vLLM takes for one.
    """
    if not any(map(is_picture_token, ids)):
        return {"prompt_token_ids": list(ids)}
    if eyes is None:
        raise UsageError("the prompt has pictures, and the model that vLLM has loaded reads texts only here")
    shown, images, at = list[int](), list[Any](), 0
    while at < len(ids):
        count = 1
        if is_picture_token(ids[at]):
            count = eyes.count(numbered(ids[at]))
            if eyes.written(numbered(ids[at])) != eyes.image_token * count:
                raise UsageError(
                    f"vLLM gets pictures here that are a run of one token, such as Qwen's; those of "
                    f"{eyes.config.model_type} have others around them: play the model locally (local:MODEL)"
                )
            images.append(pil(numbered(ids[at])))
        elif ids[at] == eyes.token:
            raise AgentFailed("the model has sampled the token of pictures, which vLLM takes for one")
        shown.append(eyes.token if is_picture_token(ids[at]) else ids[at])
        at += count
    return {"prompt_token_ids": shown, "multi_modal_data": {"image": images}}


def _load(model: str, options: dict[str, Any]) -> LLMEngine:
    """Create vLLM with its scheduler and (with one device) its model in this process; CPUs need the switch."""
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

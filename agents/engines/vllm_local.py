"""vLLM in this process, for the engine in ``vllm.py``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rollenv.agents.engines.adapters import Adapter
from rollenv.agents.engines.base import EngineFailed, EngineLost, TokenCounts
from rollenv.agents.engines.vllm import Piece, Prompt, Take
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.needs import extra
from rollenv.core.picture_forms import pil

with extra("vllm", "Playing with vLLM"):
    from vllm import EngineArgs, SamplingParams  # type: ignore[import-not-found]
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]
    from vllm.platforms import current_platform  # type: ignore[import-not-found]
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # type: ignore[import-not-found]
    from vllm.v1.engine.llm_engine import LLMEngine  # type: ignore[import-not-found]
    from vllm.v1.executor import Executor  # type: ignore[import-not-found]

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_CLOSED = "the engine was closed"

#: Defaults of vLLM's arguments. Log-probabilities are those after the temperature, as a trainer's.
DEFAULTS: dict[str, Any] = {
    "logprobs_mode": "processed_logprobs",
    "enable_prefix_caching": True,
    "skip_tokenizer_init": True,
    "generation_config": "vllm",
    "disable_log_stats": True,
    # vLLM samples a token after each chunk of a prompt, discards it and resets the request's
    # generator, which fails for generators of CPUs (``torch.Generator.set_offset``).
    **({"enable_chunked_prefill": False} if current_platform.is_cpu() else {}),
}


class LocalTransport:
    """Runs vLLM in a thread of its own, whose queue has vLLM's next step behind everyone's calls.

    Not vLLM's ``AsyncLLM``: that has the model in another process, which would get weights through
    files instead of memory, and it belongs to one event loop.

    vLLM seeds the process's random generators and starts a process group of torch when it loads.

    Args:
        options: arguments of ``vllm.EngineArgs``, such as ``dtype``, ``max_model_len``,
            ``gpu_memory_utilization``, ``enable_lora`` or ``enable_sleep_mode``.
    """

    name, rank_hint, takes_pictures = "vLLM", "raise its option max_lora_rank", True

    def __init__(self, model: str | Path, **options: Any):
        self._names, self._numbers = itertools.count(), itertools.count(1)
        self._live: dict[str, tuple[Take, asyncio.Future[None]]] = {}
        self._adapter: LoRARequest | None = None
        self._old_adapters: list[LoRARequest] = []
        self._stepping, self._paused, self._failure = False, False, ""
        self.stats, self._thread = TokenCounts(), ThreadPoolExecutor(1, "vllm")
        try:
            self._llm = self._thread.submit(_load, str(model), DEFAULTS | options).result()
        except Exception as error:
            self._thread.shutdown()
            raise UsageError(f"vLLM cannot run {str(model)!r} with {options}: {error}") from error
        config, lora = self._llm.model_config, self._llm.vllm_config.lora_config
        self.max_context: int = config.max_model_len
        self.max_rank: int = lora.max_lora_rank if lora else 0
        self.on_cpu: bool = current_platform.is_cpu()
        can_sleep = current_platform.is_sleep_mode_available() and config.enable_sleep_mode
        needs = "it needs a GPU and the engine option enable_sleep_mode=True; this is"
        self.no_sleep = "" if can_sleep else f"vLLM cannot sleep here: {needs} {current_platform.device_name!r}"

    async def health(self) -> None:
        if self._failure:
            raise EngineLost(self._failure)

    async def generate(self, prompt: Prompt, parameters: dict[str, Any], take: Take) -> None:
        await self.health()
        given: dict[str, Any] = {"prompt_token_ids": prompt.tokens}
        if prompt.pictures:
            given["multi_modal_data"] = {"image": [pil(picture) for picture in prompt.pictures]}
        name, done = str(next(self._names)), asyncio.get_running_loop().create_future()
        self._live[name] = take, done
        try:
            await self._call(self._add, name, given, parameters)
            await done
        except (RollenvError, asyncio.CancelledError):
            raise
        except Exception as error:  # a bad grammar raises anything
            raise UsageError(f"vLLM refused a request: {type(error).__name__}: {error}") from error
        finally:
            del self._live[name]
            if not self._failure:
                self._thread.submit(self._llm.abort_request, [name])

    async def weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        how = {"weights_iterator": iter(weights)}
        await self._call(self._llm.collective_rpc, "reload_weights", None, (), how)
        self._play_as(None)

    async def adapter(self, adapter: Adapter) -> None:
        number = next(self._numbers)
        with tempfile.TemporaryDirectory(prefix="rollenv-adapter-") as folder:
            request = LoRARequest(f"adapter-{number}", number, folder)
            try:
                await asyncio.to_thread(adapter.save, Path(folder))
                await self._call(self._llm.add_lora, request)
            except Exception as error:
                why = f"vLLM cannot play this adapter ({error})"
                raise UsageError(f"{why}: send merged weights instead") from error
        self._play_as(request)

    def _play_as(self, adapter: LoRARequest | None) -> None:
        self._old_adapters += [self._adapter] if self._adapter else []
        self._adapter = adapter

    async def forget(self) -> None:
        await self._call(self._forget)

    async def label(self, version: int) -> None:
        if hasattr(self._llm, "set_weight_version"):  # vLLM 0.28 and later
            await self._call(self._llm.set_weight_version, str(version))

    async def pause(self) -> None:
        self._paused = True
        await self._call(len, "")  # behind the step that runs

    async def go_on(self) -> None:
        self._paused = False
        await self._call(self._start)

    async def sleep(self, level: int) -> None:
        await self.pause()
        await self._call(self._llm.sleep, level, "keep")

    async def wake(self, part: str) -> None:
        await self._call(self._llm.wake_up, [part])

    def close(self) -> None:
        if self._failure != _CLOSED:
            self._fail(_CLOSED)
            self._thread.submit(self._llm.engine_core.shutdown).result()
            self._thread.shutdown()

    async def _call(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _fail(self, why: str) -> None:
        self._failure = why
        for name in list(self._live):
            self._tell(name, EngineFailed(why))

    def _tell(self, name: str, what: Piece | Exception) -> None:
        """Pass on to a request what happened in vLLM's thread."""
        if name in self._live:
            with contextlib.suppress(RuntimeError, KeyError):  # its event loop may have ended
                loop = self._live[name][1].get_loop()
                loop.call_soon_threadsafe(self._pass_on, name, what)

    def _pass_on(self, name: str, what: Piece | Exception) -> None:
        take, done = self._live.get(name, (None, None))
        if take is None or done is None or done.done():
            return
        try:
            if isinstance(what, Exception):
                raise what
            if take(what):
                done.set_result(None)
        except RollenvError as error:
            done.set_exception(error)
        except Exception as error:
            done.set_exception(EngineFailed(f"vLLM failed: {error}"))

    # -- in vLLM's thread --------------------------------------------------------------------------

    def _add(self, name: str, given: dict[str, Any], parameters: dict[str, Any]) -> None:
        if structure := parameters.get("structured_outputs"):
            parameters = parameters | {"structured_outputs": StructuredOutputsParams(**structure)}
        how = SamplingParams(**parameters, output_kind=RequestOutputKind.DELTA)
        self._llm.add_request(name, given, how, lora_request=self._adapter)
        self._start()

    def _start(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._thread.submit(self._step)

    def _step(self) -> None:
        """Run a step, and put the next one behind the calls that came meanwhile."""
        if self._paused or self._failure or not self._llm.has_unfinished_requests():
            self._stepping = False
            return
        try:
            outputs = self._llm.step()
        except Exception as error:
            return self._fail(f"vLLM failed with {type(error).__name__}: {error}; start a new engine")
        self.stats.steps += 1
        for output in outputs:
            self._tell(output.request_id, _piece(output))
        with contextlib.suppress(RuntimeError):  # it was closed
            self._thread.submit(self._step)

    def _forget(self) -> None:
        while self._old_adapters:
            self._llm.remove_lora(self._old_adapters.pop().lora_int_id)
        if not self._llm.reset_prefix_cache(reset_running_requests=True):
            raise EngineFailed("vLLM still holds cached prefixes of the old weights")
        if self._llm.model_config.is_multimodal_model:
            self._llm.reset_encoder_cache()  # features of pictures


def _piece(output: Any) -> Piece:
    sampled = output.outputs[0]
    ids, rows = list(sampled.token_ids), sampled.logprobs or ()
    logprobs = [row[token].logprob for token, row in zip(ids, rows, strict=True)]
    versions = getattr(sampled, "weight_versions", None) or ()  # vLLM 0.28 and later
    spans = [(span.version, span.start, span.end) for span in versions]
    seen, reused = len(output.prompt_token_ids or ()), output.num_cached_tokens or 0
    return Piece(ids, logprobs, sampled.finish_reason, spans, seen, reused)


def _load(model: str, options: dict[str, Any]) -> LLMEngine:
    """Create vLLM with its scheduler and (with one device) its model in this process.

    vLLM on CPUs needs the switch for that.
    """
    switch = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(switch)
    os.environ[switch] = "0"
    try:
        config = EngineArgs(model=model, **options).create_engine_config()
        executor = Executor.get_class(config)
        return LLMEngine(config, executor, log_stats=False, multiprocess_mode=False)
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before

"""An engine that runs a Hugging Face causal language model in this process."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import psutil
from numpy.typing import NDArray

from rollenv.agents.base import ContextFull
from rollenv.agents.engines.base import (
    Decode,
    EngineFailed,
    Ids,
    Response,
    Sampling,
    ends_with_stop,
    token_ids,
    vision_of,
    write_routes,
)
from rollenv.agents.engines.cpu_threads import CpuThreads
from rollenv.core.errors import UsageError, did_you_mean
from rollenv.core.needs import extra

with extra("train", "Running a model"):
    import torch

    from rollenv.agents.engines import onednn
    from rollenv.agents.engines.adapters import Adapter
    from rollenv.agents.engines.kv_cache import BatchCache, Distributions, cache_argument
    from rollenv.agents.engines.radix import PrefixCache
    from rollenv.agents.engines.requests import WORTH_WAITING, Joining, LocalRequest, similar, start_order
    from rollenv.agents.engines.sampling import distributions, draw
    from rollenv.agents.engines.scoring import pad_left, positions
    from rollenv.agents.vision import seen_rows

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineStats:
    """Token counts of an engine: prompt tokens computed, prompt tokens reused, tokens sampled."""

    computed: int = 0
    reused: int = 0
    drawn: int = 0
    found: int = 0
    """Reused tokens from the cache, not from a request that started at the same time."""
    evicted: int = 0
    """Tokens that the cache dropped to make room."""
    steps: int = 0
    """Number of decoding steps of the whole batch."""

    @property
    def total(self) -> int:
        """Number of computed or sampled tokens."""
        return self.computed + self.drawn


#: Decoding steps between two looks at the idle cores.
_LOOK_AFTER = 16


class LocalEngine:
    """Samples from a causal language model, for many sessions at once.

    A step samples a token for every running request. Between two steps the event loop runs: finished responses leave,
    sessions continue, and their next requests join the batch (continuous batching). Keys and values are cached by
    tokens: a prompt is computed only after its longest cached prefix, from this episode or another. Common prefixes of
    waiting prompts are computed once. Responses of one token are sampled from cached distributions.

    The response to a request depends only on its prompt, sampling and random numbers, not on other requests (up to
    rounding in the model).

    Args:
        model: any decoder of transformers with full attention in every layer; a sliding window limits the context.
        stop: the tokens that end a response; those of the model's generation config are added.
        max_batch_tokens: limit of running requests times the longest of them; others wait.
        keep_tokens: maximum number of tokens whose keys and values are cached for later requests.
        max_bytes: maximum size of the keys and values of each of the two, which lowers their limits once the first
            responses show the bytes of a token. Default: an eighth of the memory of the model's device.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop: frozenset[int],
        *,
        decode: Decode | None = None,
        max_batch_tokens: int = 1 << 16,
        keep_tokens: int = 1 << 17,
        max_bytes: int | None = None,
    ):
        check_model(model)
        fix_frequencies(model)
        onednn.use_onednn(model)
        self.model, self.max_batch_tokens, self._decode = model, max_batch_tokens, decode
        self.stop = stop | generation_stops(getattr(model, "generation_config", None))
        self.max_context = context_length(model.config)
        self.version = 0
        self.stats = EngineStats()
        self.threads: CpuThreads | None = None  # set where nobody else follows the idle cores
        self._waiting: list[LocalRequest] = []
        self._one_token: list[LocalRequest] = []
        self._running: list[LocalRequest] = []  # request i has row i of the batch
        self._family = vision_of(model)
        self.precision = torch.float32
        self._batch = BatchCache(model)
        self._kept = PrefixCache(keep_tokens)
        on_gpu = model.device.type == "cuda"
        memory = torch.cuda.mem_get_info(model.device)[1] if on_gpu else psutil.virtual_memory().total
        self._max_bytes = memory // 8 if max_bytes is None else max_bytes
        self._vocabulary: int = model.config.get_text_config().vocab_size
        self._known = Distributions(self._vocabulary)
        self._suspended = False
        self._scheduled_in: asyncio.AbstractEventLoop | None = None

    # -- what sessions call ------------------------------------------------------------------------------------------

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Sample a response (see :class:`rollenv.agents.engines.base.Engine`)."""
        prompt = token_ids(prompt, self._vocabulary if sampling.max_new_tokens > 1 else None)
        limit = min(sampling.max_new_tokens, self.max_context - len(prompt))
        if sampling.max_new_tokens < 1:
            raise UsageError(f"nothing to generate from {len(prompt)} prompt tokens with {sampling}")
        if sampling.stop and self._decode is None:
            raise UsageError("stop texts need decode=: LocalEngine(model, stop, decode=...)")
        if sampling.structured:
            raise UsageError("the local engine follows no schema or grammar: play with vLLM or SGLang")
        if limit < 1:
            raise ContextFull(f"a prompt of {len(prompt)} tokens leaves no room in a context of {self.max_context}")
        request = LocalRequest(prompt, sampling, rng, limit, asyncio.get_running_loop().create_future())
        if self._family:
            request.sight = self._family.look(self.model, prompt)
        if sampling.routes and not self._batch.routers:
            raise UsageError("routes=True needs a mixture of experts; this model has no routers")
        (self._one_token if limit == 1 and not sampling.routes else self._waiting).append(request)
        self._wake()
        try:
            await request.future
        except asyncio.CancelledError:
            self._drop(request)
            raise
        return request.response

    def release(self, session: int) -> None:
        """Do nothing: the cache drops the least recently used entries."""

    @property
    def active(self) -> int:
        """Number of waiting or running requests."""
        return len(self._waiting) + len(self._one_token) + len(self._running)

    @property
    def kept_tokens(self) -> int:
        """Number of tokens in the cache."""
        return self._kept.tokens

    # -- new weights -------------------------------------------------------------------------------------------------

    async def suspend(self) -> None:
        """Stop sampling until :meth:`resume`."""
        self._suspended = True

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter | None = None) -> None:
        """Load named weights, as in the model's ``state_dict``; None if the model itself was trained."""
        if isinstance(weights, Adapter):
            raise UsageError("the local engine cannot load an adapter: pass adapter.merged(weights of the model)")
        if weights is not None:
            load_weights(self.model, weights)
        self.weights_changed()

    def forget(self) -> None:
        """Clear the cache, so that later responses do not depend on earlier requests, not even in rounding."""
        self._kept.clear()
        self._batch.features.clear()

    def set_precision(self, name: str) -> None:
        """Multiply in float32 or bfloat16 on a CPU, from before the first request.

        The model, which may be trained, keeps its float32 weights.

        Raises:
            UsageError: for another name, or bfloat16 if the model is on a GPU or the CPU cannot multiply in it.
        """
        if name not in ("float32", "bfloat16"):
            raise UsageError(f"a model on a CPU multiplies in float32 or bfloat16, not in {name!r}")
        if name == "bfloat16" and self.model.device.type != "cpu":
            raise UsageError("precision is for models on CPUs; on a GPU a model plays in the type that it is stored in")
        if name == "bfloat16" and not onednn.multiplies_in_bfloat16():
            raise UsageError("this CPU has no instructions for bfloat16, such as AVX512; take float32")
        self.precision = getattr(torch, name)
        self._batch = BatchCache(self.model, self.precision)

    def weights_changed(self) -> None:
        """Count a new version and clear caches, after the model was trained in place."""
        self.version += 1
        self._known.clear()
        self._kept.clear()
        for row, request in enumerate(self._running):
            request.routes = self._routes(row, request)
        self._waiting = self._running + self._waiting  # to be recomputed from their tokens
        self._running, self._batch = [], BatchCache(self.model, self.precision)

    async def resume(self) -> None:
        """Resume sampling; unfinished responses continue."""
        self._suspended = False
        if self.active:
            self._wake()

    # -- one step ----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Take a step once the event loop has nothing else to do."""
        loop = asyncio.get_running_loop()
        if self._scheduled_in is not loop and not self._suspended:
            self._scheduled_in = loop
            loop.call_soon(self._step)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _step(self) -> None:
        self._scheduled_in = None
        if self._suspended:
            return
        if self.threads is not None and self.stats.steps % _LOOK_AFTER == 0:
            self.threads.adapt()
        every = [*self._waiting, *self._one_token, *self._running]
        self._try(self._work, None, every)
        if self.active:
            self._wake()

    def _work(self, nothing: None) -> None:
        asking, self._one_token = self._one_token, []
        for batch in self.one_token_batches(asking, lambda request: len(request.prompt)):
            self._try(self._answer_one_token, batch, batch)
        if started := self._admit():
            for joining in started:
                self._try(self._start, joining, [r for new in joining for r in new.requests])
            self._try(self._settle, started, self._running)
        if self._running:
            self._try(self._continue, self._running, self._running)

    def _try(self, work: Callable[[T], None], on: T, requests: list[LocalRequest]) -> None:
        """Run a part of a step; an exception fails its requests."""
        try:
            work(on)
        except Exception as error:
            failed = list(requests)
            for queue in (self._running, self._waiting, self._one_token):
                queue[:] = [r for r in queue if r not in failed]
            for request in failed:
                request.failure = f"the model raised {type(error).__name__}: {error}"
                self._finish(request, error)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _drop(self, request: LocalRequest) -> None:
        """Remove a cancelled request."""
        for requests in (self._waiting, self._one_token):
            if request in requests:
                requests.remove(request)
        if request in self._running:
            self._vacate([self._running.index(request)])

    # -- responses of one token --------------------------------------------------------------------------------------

    def one_token_batches(self, items: Iterable[T], length: Callable[[T], int]) -> list[list[T]]:
        """Split items into batches with prompts of similar length, at most ``max_batch_tokens`` when padded.

        Args:
            length: returns the length of an item's prompt in tokens.
        """
        batches: list[list[T]] = []
        ordered = sorted(items, key=length)
        if ordered and len(ordered) * (length(ordered[-1]) + 1) <= self.max_batch_tokens:
            return [ordered]
        for item in ordered:
            if batches and (len(batches[-1]) + 1) * (length(item) + 1) <= self.max_batch_tokens:
                batches[-1].append(item)
            else:
                batches.append([item])
        return batches

    def _answer_one_token(self, batch: list[LocalRequest]) -> None:
        """Answer from cached distributions, without keys and values."""
        self._draw(batch, self._known_logits([r.prompt for r in batch]))
        if any(request.failure for request in batch):
            self._known.clear()
        for request in batch:
            self._finish(request)

    def _known_logits(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """Return logits (prompts, vocabulary) of the first response token; only new prompts are computed."""
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._known]
        if new:
            self._known.add(new, self._next_logits(new))
            self.stats.computed += sum(map(len, new))
        return self._known.look_up(prompts)

    def _next_logits(self, prompts: list[Ids]) -> torch.Tensor:
        """Compute logits (prompts, vocabulary) of the first response token."""
        ids, mask = pad_left(prompts, self.model.device)
        where = positions(mask, ids.shape[1], ids.device)
        inputs = seen_rows(self.model, prompts, ids, where, self._batch.features)
        out = self.model(**inputs, attention_mask=mask, use_cache=False, logits_to_keep=1)
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    # -- longer responses --------------------------------------------------------------------------------------------

    # The life of a request: _admit takes it from the queue and groups it with others of the same beginning; _start
    # computes its prompt, in a row of the batch, and samples its first token; _settle keeps long new prompts in the
    # cache; _continue samples a token in every row; _retire ends what is complete, keeps its keys and values in the
    # cache, and _vacate moves the last rows into the freed ones. All of this is one step of the event loop, so an
    # update or a cancellation comes before or after it.

    def _admit(self) -> list[list[Joining]]:
        """Admit the waiting requests that there is room for, in batches to start one after another."""
        rows, longest = len(self._running), max((r.room for r in self._running), default=0)
        joining: dict[Ids, Joining] = {}
        admitted = 0
        for request in self._waiting:
            if rows and (rows + 1) * max(longest, request.room) > self.max_batch_tokens:
                break
            rows, longest, admitted = rows + 1, max(longest, request.room), admitted + 1
            tokens = request.tokens
            joining.setdefault(tokens, Joining(tokens)).requests.append(request)
        del self._waiting[:admitted]
        if sum(len(feature[0]) for feature in self._batch.features.values()) > self.max_batch_tokens:
            self._batch.features.clear()
        if joining:
            self._batch.reserve(rows, longest, 2 * self.max_batch_tokens)
        for new in joining.values():
            new.cached = self._kept.find(new.tokens[:-1])  # the last token is always computed, for its logits
            if sight := new.requests[0].sight:
                del new.cached[sight.whole(len(new.cached)) :]
        return [batch for group in start_order(joining.values()) for batch in similar(group)]

    def _start(self, batch: list[Joining]) -> None:
        """Compute the new tokens of all prompts in one pass, and sample the first tokens of the responses."""
        first = len(self._running)
        # Copy known prefixes of the prompts into rows, from the cache and from rows of other requests.
        for new in batch:
            if new.like and not new.like.usable:
                new.shared, new.like = 0, None
        self._kept.load(self._batch, first, [[] if new.shared else new.cached for new in batch])
        if shared := max(new.shared for new in batch):
            rows = {row: new.like.row for row, new in enumerate(batch, first) if new.like}
            self._batch.copy(list(rows.values()), list(rows), shared)
        parts, ends = [n.tokens[n.known :] for n in batch], [len(n.tokens) for n in batch]
        logits = self._batch.forward(first, parts, ends, [n.requests[0].sight for n in batch])
        again = [(source, request) for source, new in enumerate(batch) for request in new.requests[1:]]
        if again:
            longest = max(len(batch[source].tokens) for source, _ in again)
            targets = range(first + len(batch), first + len(batch) + len(again))
            self._batch.copy([first + source for source, _ in again], targets, longest)
        requests = [new.requests[0] for new in batch] + [request for _, request in again]
        sources = [*range(len(batch)), *(source for source, _ in again)]
        self._running += requests
        for row, new in enumerate(batch, first):
            new.row = row
        self.stats.computed += sum(new.cost for new in batch)
        self.stats.reused += sum(len(new.tokens) * len(new.requests) - new.cost for new in batch)
        self.stats.found += sum(len(new.cached) for new in batch if not new.shared)
        self._draw(requests, logits[torch.tensor(sources, device=logits.device)])

    def _settle(self, started: list[list[Joining]]) -> None:
        """Cache long new prompts, which others may need soon; end responses that are already complete."""
        long = [new for batch in started for new in batch if new.usable and new.cost >= WORTH_WAITING]
        self._keep([(new.row, new.tokens) for new in long])
        self._retire()

    def _keep(self, computed: list[tuple[int, Ids]]) -> None:
        if computed:
            affordable = self._max_bytes // self._batch.token_bytes
            self.max_batch_tokens = min(self.max_batch_tokens, affordable)
            self._kept.limit(affordable)
        self.stats.evicted += self._kept.save(self._batch, computed)

    def _continue(self, running: list[LocalRequest]) -> None:
        """Sample the next token of every response."""
        parts, ends = [r.response.ids[-1:] for r in running], [r.length for r in running]
        logits = self._batch.forward(0, parts, ends, [r.sight for r in running])
        self._draw(running, logits)
        self.stats.steps += 1
        self._retire()

    def _retire(self) -> None:
        """Remove finished requests, and cache their keys and values."""
        ended = [(row, request) for row, request in enumerate(self._running) if self._ends(request)]
        if not ended:
            return
        self._keep([(row, request.tokens[:-1]) for row, request in ended if not request.failure])
        for row, request in ended:
            if (routes := self._routes(row, request)) is not None:
                request.response.routes = write_routes(routes)
        if failed := [row for row, request in ended if request.failure]:
            self._batch.wipe(failed)
        self._vacate([row for row, _ in ended])
        for _, request in ended:
            self._finish(request)

    def _routes(self, row: int, request: LocalRequest) -> NDArray[np.int16] | None:
        """Return the experts of all tokens but the last, as first computed; None if not requested."""
        if not request.sampling.routes:
            return None
        routes = self._batch.routes(row, request.length - 1)
        if request.routes is not None:
            routes = np.concatenate([request.routes, routes[len(request.routes) :]])
        return routes

    def _vacate(self, rows: list[int]) -> None:
        """Move the last running requests into freed rows."""
        left = len(self._running) - len(rows)
        holes = [row for row in rows if row < left]
        if holes:
            free = set(rows)
            movers = [row for row in range(left, len(self._running)) if row not in free]
            self._batch.copy(movers, holes, max(self._running[row].length for row in movers) - 1)
            for mover, hole in zip(movers, holes, strict=True):
                self._running[hole] = self._running[mover]
        del self._running[left:]

    def _ends(self, request: LocalRequest) -> bool:
        full = request.failure or len(request.response.ids) >= request.limit
        return bool(full) or self.finish(request.response.ids, request.sampling) == "stop"

    def finish(self, ids: Sequence[int], sampling: Sampling) -> str:
        """Return the finish reason of a response that ends here: "stop" or "length"."""
        texts = sampling.stop
        ends = ids[-1] in self.stop or (texts and self._decode and ends_with_stop(ids, texts, self._decode))
        return "stop" if ends else "length"

    def _finish(self, request: LocalRequest, cause: Exception | None = None) -> None:
        if request.future.done():  # cancelled by Ctrl-C during the step
            return
        if request.failure:
            failure = EngineFailed(request.failure, request.response)
            failure.__cause__ = cause
            request.future.set_exception(failure)
            return
        request.response.finish = self.finish(request.response.ids, request.sampling)
        request.future.set_result(None)

    def _draw(self, requests: list[LocalRequest], logits: torch.Tensor) -> None:
        """Append a token to every response; ``logits`` has the shape (requests, vocabulary)."""
        samplings = [r.sampling for r in requests]
        tokens, logprobs = self._sample(distributions(logits, samplings), samplings, [r.rng for r in requests])
        for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                request.failure = f"the model's logits after {request.length} tokens are not numbers"
                continue
            response = request.response
            response.ids.append(token)
            response.logprobs.append(logprob)
            response.versions.append(self.version)

    def _sample(
        self, logprobs: torch.Tensor, samplings: list[Sampling], rngs: list[random.Random]
    ) -> tuple[list[int], list[float]]:
        """Sample a token for every row of log-probabilities, and return the tokens and their log-probabilities."""
        uniform = [rng.random() if s.temperature else 0.0 for rng, s in zip(rngs, samplings, strict=True)]
        tokens = draw(logprobs, samplings, uniform)
        self.stats.drawn += len(rngs)
        return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()


def check_model(model: PreTrainedModel) -> None:
    """Raise UsageError if the engine cannot run a model of this kind."""
    takes = inspect.signature(model.forward).parameters
    missing = [name for name in ("attention_mask", "position_ids", cache_argument(model)) if name not in takes]
    if missing:
        raise UsageError(
            f"the local engine cannot run {model.config.model_type!r} models: their forward() takes no "
            f"{', '.join(missing)}, which batches of different lengths need; run it with vLLM, or use a model whose "
            "forward() takes positions (Llama, Qwen, GPT-2, ...)"
        )


def short_context(model: PreTrainedModel) -> int:
    """Return the longest context of a "longrope" model's short table; 0 for other models."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    return int(rope["original_max_position_embeddings"]) if rope.get("rope_type") == "longrope" else 0


@torch.no_grad()  # type: ignore[untyped-decorator]
def fix_frequencies(model: PreTrainedModel, context: int | None = None) -> None:
    """Give a model with rotary embeddings of the type "longrope" (Phi-3, Phi-4-mini) one table of frequencies.

    transformers takes that for long or for short contexts by the longest sequence of a call, so a token's probability
    would depend on other requests, and on the length of an answer that it is part of. As in vLLM, the table is that of
    the longest context.

    Args:
        context: the longest context of the engine that plays the model; by default what the configuration allows.
    """
    for module in model.modules():
        if getattr(module, "rope_type", None) != "longrope":
            continue
        longest = context or module.config.max_position_embeddings
        module(module.inv_freq[None], torch.tensor([[longest - 1]], device=module.inv_freq.device))  # takes its table
        module.rope_type = "default"  # and keeps it
        if not context and longest > (short := short_context(model)):
            logger.warning(
                "this %s model computes all sequences with its long table of frequencies, as vLLM does; for the short "
                "one, set max_position_embeddings=%d in the model's config",
                model.config.model_type, short,
            )  # fmt: skip


def generation_stops(config: GenerationConfig | None) -> frozenset[int]:
    """Return the end tokens of a generation config."""
    ends = getattr(config, "eos_token_id", None)
    if isinstance(ends, int):
        ends = (ends,)
    return frozenset(ends or ())


def context_length(config: PreTrainedConfig) -> int:
    """Return the maximum number of tokens; log a warning if a sliding window makes it smaller than the model's."""
    check_layers(config)
    whole, config = longest_context(config), config.get_text_config()
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ("sliding_attention",))
    window = getattr(config, "sliding_window", None) if sliding else None
    if window and window < whole:
        logger.warning(
            "the local engine limits prompt and response of this %s model to %d tokens, its sliding_window, although "
            "the model supports %d; for longer ones use VLLMAgent (vllm:PATH), or set sliding_window in the model's "
            "config if it was trained with a longer one",
            config.model_type, window, whole,
        )  # fmt: skip
        return int(window)
    return whole


def check_layers(config: PreTrainedConfig) -> None:
    """Raise UsageError if the engine has no cache for layers of a model."""
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise UsageError(
            f"the local engine cannot run {config.model_type!r} models: it has no cache for {', '.join(sorted(kinds))} "
            "layers; run the model with vLLM, in training with player.kind=vllm"
        )


def longest_context(config: PreTrainedConfig) -> int:
    """Return the maximum number of tokens of a model in any engine."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or 1 << 20)


def load_weights(model: PreTrainedModel, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy named tensors into a model, in place."""
    own = model.state_dict()
    for name, tensor in weights:
        if name not in own:
            hint = did_you_mean(name, own, form=repr)
            raise UsageError(f"the model has no weight {name!r}" + (f"; {hint}" if hint else ""))
        if own[name].shape != tensor.shape:
            raise UsageError(f"weight {name!r} has the shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}")
        own[name].copy_(tensor)  # the state dict's tensors are detached views of the model's

"""The engine that runs a Hugging Face causal language model in this process."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import itertools
import logging
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from rollenv.agents.base import ContextFull
from rollenv.agents.engines.base import Decode, EngineFailed, Ids, Response, Sampling, stopped, token_ids
from rollenv.core import UsageError
from rollenv.needs import extra

with extra("train", "Running a model"):
    import torch

    from rollenv.agents.engines.kv_cache import BatchCache, Distributions, Kept, SessionCaches, common_prefix
    from rollenv.agents.engines.sampling import distributions, draw
    from rollenv.agents.engines.scoring import pad_left, positions

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and the tokens of the response drawn so far."""

    prompt: Ids
    sampling: Sampling
    rng: random.Random
    session: int
    limit: int
    """The most tokens of the response."""
    future: asyncio.Future[None]
    response: Response = field(default_factory=Response)
    failure: str = ""
    """Why there will be no more of it."""

    @property
    def tokens(self) -> Ids:
        """The prompt and the response so far."""
        return self.prompt + tuple(self.response.ids)

    @property
    def length(self) -> int:
        """Tokens of the prompt and the response so far."""
        return len(self.prompt) + len(self.response.ids)

    @property
    def room(self) -> int:
        """The most tokens that the request may reach."""
        return len(self.prompt) + self.limit


@dataclass(slots=True)
class Joining:
    """Waiting requests with equal tokens, and the cached part of these."""

    tokens: Ids
    requests: list[Request] = field(default_factory=list)
    known: int = 0
    kept: Kept | None = None

    @property
    def cost(self) -> int:
        """How many tokens have to be computed."""
        return len(self.tokens) - self.known


@dataclass(slots=True)
class EngineStats:
    """Counts of an engine in tokens: prompt tokens computed, prompt tokens reused, tokens drawn."""

    computed: int = 0
    reused: int = 0
    drawn: int = 0
    steps: int = 0
    """How often a token was drawn for the whole batch."""

    @property
    def total(self) -> int:
        """Tokens that cost something: computed or drawn."""
        return self.computed + self.drawn


class LocalEngine:
    """Samples from a causal language model, for many sessions at once.

    A step draws a token for every running request. Between two steps the event loop gets a turn: finished responses
    leave, sessions continue, and their next requests join the batch (continuous batching). The keys and values of a
    session stay after its turn, and its next prompt is computed only from where it differs. Equal prompts that wait at
    the same time are computed once. Responses of one token are drawn from remembered distributions.

    The response to a request depends only on its prompt, sampling and random stream, not on other requests (up to
    rounding in the model).

    Args:
        model: any decoder of transformers with full attention in every layer; a sliding window bounds the context.
        stop: the tokens that end a response; those that the model's generation config names are added.
        decode: from tokens to text, for :attr:`Sampling.stop`.
        max_batch_tokens: running requests times the longest of them never exceed this; others wait.
        keep_tokens: the most tokens whose keys and values are kept for sessions between their turns.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop: frozenset[int],
        *,
        decode: Decode | None = None,
        max_batch_tokens: int = 1 << 16,
        keep_tokens: int = 1 << 17,
    ):
        check_model(model)
        self.model, self.max_batch_tokens, self._decode = model, max_batch_tokens, decode
        self.stop = stop | generation_stops(getattr(model, "generation_config", None))
        self.max_context = context_length(model.config)
        self.version = 0
        self.stats = EngineStats()
        self._waiting: list[Request] = []
        self._one_token: list[Request] = []
        self._running: list[Request] = []  # request i has row i of the batch
        self._batch = BatchCache(model)
        self._kept = SessionCaches(keep_tokens)
        self._vocabulary: int = model.config.get_text_config().vocab_size
        self._known = Distributions(self._vocabulary)
        self._suspended = False
        self._scheduled_in: asyncio.AbstractEventLoop | None = None

    # -- what sessions call ------------------------------------------------------------------------------------------

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Draw a response (see :class:`rollenv.agents.engines.base.Engine`).

        Args:
            prompt: token ids.
            sampling: how to sample.
            rng: source of the draws.
            session: requests of one session share a prefix; -1 for none.

        Raises:
            ContextFull: the prompt leaves no room for a response.
            EngineFailed: the model raised.
            UsageError: the prompt is empty or not valid, or ``max_new_tokens`` is below 1.
        """
        prompt = token_ids(prompt, self._vocabulary if sampling.max_new_tokens > 1 else None)
        limit = min(sampling.max_new_tokens, self.max_context - len(prompt))
        if sampling.max_new_tokens < 1:
            raise UsageError(f"nothing to generate from {len(prompt)} prompt tokens with {sampling}")
        if sampling.stop and self._decode is None:
            raise UsageError("stop texts need decode=: LocalEngine(model, stop, decode=...)")
        if limit < 1:
            raise ContextFull(f"a prompt of {len(prompt)} tokens leaves no room in a context of {self.max_context}")
        request = Request(prompt, sampling, rng, session, limit, asyncio.get_running_loop().create_future())
        (self._one_token if limit == 1 else self._waiting).append(request)
        self._wake()
        try:
            await request.future
        except asyncio.CancelledError:
            self._drop(request)
            raise
        return request.response

    def release(self, session: int) -> None:
        """Drop the cache of a session, now and when its running request ends."""
        self._kept.drop(session)
        for request in itertools.chain(self._running, self._waiting):
            if request.session == session:
                request.session = -1

    @property
    def active(self) -> int:
        """How many requests are waiting or running."""
        return len(self._waiting) + len(self._one_token) + len(self._running)

    @property
    def kept_tokens(self) -> int:
        """How many tokens are kept for sessions between their turns."""
        return self._kept.tokens

    # -- new weights -------------------------------------------------------------------------------------------------

    async def suspend(self) -> None:
        """Draw nothing until :meth:`resume`."""
        self._suspended = True

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | None = None) -> None:
        """Load named weights, as in the model's ``state_dict``; None if the model itself was trained.

        Raises:
            UsageError: a name or a shape is not the model's.
        """
        if weights is not None:
            load_weights(self.model, weights)
        self.weights_changed()

    def weights_changed(self) -> None:
        """The model was trained in place: count a version and drop what was computed with the old weights."""
        self.version += 1
        self._known.clear()
        self._kept.clear()
        self._waiting = self._running + self._waiting  # to be recomputed from their tokens
        self._running, self._batch = [], BatchCache(self.model)

    async def resume(self) -> None:
        """Resume drawing; unfinished responses continue."""
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
        every = [*self._waiting, *self._one_token, *self._running]
        self._try(self._work, None, every)
        if self.active:
            self._wake()

    def _work(self, nothing: None) -> None:
        for batch in self._one_token_batches():
            self._try(self._answer_one_token, batch, batch)
        for joining in self._admit():
            self._try(self._start, joining, [r for j in joining for r in j.requests])
        if self._running:
            self._try(self._continue, self._running, self._running)

    def _try(self, work: Callable[[T], None], on: T, requests: list[Request]) -> None:
        """What fails, fails for the requests that it was done for (of the running ones: all, or the last)."""
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
    def _drop(self, request: Request) -> None:
        """The request was cancelled."""
        for requests in (self._waiting, self._one_token):
            if request in requests:
                requests.remove(request)
        if request in self._running:
            self._vacate(self._running.index(request))

    # -- responses of one token --------------------------------------------------------------------------------------

    def _one_token_batches(self) -> list[list[Request]]:
        """Requests with prompts of similar length, at most ``max_batch_tokens`` when padded."""
        requests, self._one_token = self._one_token, []
        batches: list[list[Request]] = []
        for request in sorted(requests, key=lambda r: len(r.prompt)):
            if batches and (len(batches[-1]) + 1) * request.room <= self.max_batch_tokens:
                batches[-1].append(request)
            else:
                batches.append([request])
        return batches

    def _answer_one_token(self, batch: list[Request]) -> None:
        """No cache of keys and values is needed: the distributions themselves are remembered."""
        new = list(dict.fromkeys(r.prompt for r in batch if r.prompt not in self._known))
        if new:
            self._known.add(new, self._next_logits(new))
            self.stats.computed += sum(map(len, new))
        self._draw(batch, self._known.look_up([r.prompt for r in batch]))
        if any(request.failure for request in batch):
            self._known.clear()
        for request in batch:
            self._finish(request)

    def _next_logits(self, prompts: list[Ids]) -> torch.Tensor:
        """Logits (prompts, vocabulary) of the first response token."""
        ids, mask = pad_left(prompts, self.model.device)
        where = positions(mask, ids.shape[1], ids.device)
        out = self.model(input_ids=ids, attention_mask=mask, position_ids=where, use_cache=False, logits_to_keep=1)
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    # -- longer responses --------------------------------------------------------------------------------------------

    def _admit(self) -> list[list[Joining]]:
        """Admit the waiting requests that there is room for, in batches with about equal computation for each."""
        rows, longest = len(self._running), max((r.room for r in self._running), default=0)
        joining: dict[Ids, Joining] = {}
        admitted = 0
        for request in self._waiting:
            if rows and (rows + 1) * max(longest, request.room) > self.max_batch_tokens:
                break
            rows, longest, admitted = rows + 1, max(longest, request.room), admitted + 1
            self._join(joining, request)
        del self._waiting[:admitted]
        if joining:
            self._batch.reserve(rows, longest, 2 * self.max_batch_tokens)
        return similar(list(joining.values()))

    def _join(self, joining: dict[Ids, Joining], request: Request) -> None:
        tokens, kept = request.tokens, self._kept.take(request.session)
        entry = joining.setdefault(tokens, Joining(tokens))
        entry.requests.append(request)
        known = min(common_prefix(kept.tokens, tokens), len(tokens) - 1) if kept else 0
        if known > entry.known:
            entry.known, entry.kept = known, kept

    def _start(self, batch: list[Joining]) -> None:
        """Compute what is new of the prompts, all in one, and draw the first tokens of the responses."""
        first = len(self._running)
        for row, new in enumerate(batch, first):
            if new.kept:
                self._batch.load(row, new.kept.keys_values, new.known)
        logits = self._batch.forward(first, [n.tokens[n.known :] for n in batch], [len(n.tokens) for n in batch])
        requests, sources = [new.requests[0] for new in batch], list(range(len(batch)))
        for source, new in enumerate(batch):
            for request in new.requests[1:]:
                self._batch.copy(first + source, first + len(requests), len(new.tokens))
                requests.append(request)
                sources.append(source)
        self._running += requests
        self.stats.computed += sum(new.cost for new in batch)
        self.stats.reused += sum(len(new.tokens) * len(new.requests) - new.cost for new in batch)
        self._draw(requests, logits[torch.tensor(sources, device=logits.device)])
        self._retire()

    def _continue(self, running: list[Request]) -> None:
        """Draw the next token of every response."""
        logits = self._batch.forward(0, [r.response.ids[-1:] for r in running], [r.length for r in running])
        self._draw(running, logits)
        self.stats.steps += 1
        self._retire()

    def _retire(self) -> None:
        """Remove finished requests; their cache is kept for the session's next prompt."""
        for row in reversed(range(len(self._running))):
            request = self._running[row]
            if not request.failure and len(request.response.ids) < request.limit and not self._stops(request):
                continue
            if request.session >= 0 and not request.failure:
                computed = request.length - 1
                self._kept.put(request.session, Kept(request.tokens[:computed], self._batch.save(row, computed)))
            self._vacate(row)
            self._finish(request)

    def _vacate(self, row: int) -> None:
        """The last running request moves into a row that is free."""
        last = self._running.pop()
        if row < len(self._running):
            self._batch.copy(len(self._running), row, last.length - 1)
            self._running[row] = last

    def _stops(self, request: Request) -> bool:
        ids, texts = request.response.ids, request.sampling.stop
        return ids[-1] in self.stop or bool(texts and self._decode and stopped(ids, texts, self._decode))

    def _finish(self, request: Request, cause: Exception | None = None) -> None:
        if request.future.done():  # it was cancelled during the step, by Ctrl-C
            return
        if request.failure:
            failure = EngineFailed(request.failure, request.response)
            failure.__cause__ = cause
            request.future.set_exception(failure)
            return
        request.response.finish = "stop" if self._stops(request) else "length"
        request.future.set_result(None)

    def _draw(self, requests: list[Request], logits: torch.Tensor) -> None:
        """Append a token to every response; ``logits`` has the shape (requests, vocabulary)."""
        samplings = [r.sampling for r in requests]
        logprobs = distributions(logits, samplings)
        uniform = [r.rng.random() if r.sampling.temperature else 0.0 for r in requests]
        tokens = draw(logprobs, samplings, uniform)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0]
        for request, token, logprob in zip(requests, tokens.tolist(), chosen.tolist(), strict=True):
            if not math.isfinite(logprob):
                request.failure = f"the model's logits after {request.length} tokens are not numbers"
                continue
            response = request.response
            response.ids.append(token)
            response.logprobs.append(logprob)
            response.versions.append(self.version)
        self.stats.drawn += len(requests)


def similar(joining: list[Joining]) -> list[list[Joining]]:
    """Batches of requests with similar cost, so that less than half of each is padding."""
    batches: list[list[Joining]] = []
    for new in sorted(joining, key=lambda j: j.cost):
        if batches and new.cost <= 2 * batches[-1][0].cost + 16:
            batches[-1].append(new)
        else:
            batches.append([new])
    return batches


def check_model(model: PreTrainedModel) -> None:
    """Raise UsageError if the engine cannot run a model of this kind."""
    takes = inspect.signature(model.forward).parameters
    missing = [name for name in ("attention_mask", "position_ids", "past_key_values") if name not in takes]
    if missing:
        raise UsageError(
            f"the local engine cannot run {model.config.model_type!r} models: their forward() takes no "
            f"{', '.join(missing)}, by which it keeps sequences of different lengths apart; run it with vLLM, or "
            "take one whose positions are given (Llama, Qwen, GPT-2, ...)"
        )


def generation_stops(config: GenerationConfig | None) -> frozenset[int]:
    """The tokens that end a response by a generation config."""
    ends = getattr(config, "eos_token_id", None)
    return frozenset(ends if isinstance(ends, list | tuple) else () if ends is None else (ends,))


def context_length(config: PreTrainedConfig) -> int:
    """The most tokens that a model takes; logs a warning where a sliding window makes that less than the model's.

    Raises:
        UsageError: its layers are not of the kind that keep keys and values for every token.
    """
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise UsageError(
            f"the local engine cannot run {config.model_type!r} models: it has no cache for {', '.join(sorted(kinds))} "
            "layers; run the model with vLLM"
        )
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ("sliding_attention",))
    window = getattr(config, "sliding_window", None) if sliding else None
    whole = getattr(config, "max_position_embeddings", None) or 1 << 20
    if window and window < whole:
        logger.warning(
            "the local engine runs this %s model with prompts and responses of at most %d tokens together, its "
            "sliding_window, though it takes %d; for longer ones play it with VLLMAgent (vllm:PATH), or set "
            "sliding_window in the model's config if it was trained with a longer one",
            config.model_type, window, whole,
        )  # fmt: skip
        return int(window)
    return int(whole)


def load_weights(model: PreTrainedModel, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy named tensors into a model, in place.

    Args:
        model: the model to change.
        weights: (name, tensor) pairs, under the model's own names.

    Raises:
        UsageError: a name or a shape does not match the model.
    """
    own = model.state_dict()
    for name, tensor in weights:
        if name not in own:
            near = difflib.get_close_matches(name, own, 1)
            raise UsageError(f"the model has no weight {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if own[name].shape != tensor.shape:
            raise UsageError(f"weight {name!r} has the shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}")
        own[name].copy_(tensor)  # the state dict's tensors are detached views of the model's

"""An engine that samples with vLLM, or with SGLang: in this process or behind a server.

The engine keeps requests, versions and pauses; a :class:`Transport` carries its calls to where the
model is. The life of a request: ``generate`` -> ``_draw`` sends the prompt and the tokens so far ->
``_take`` adds each piece to the response -> it ends, or it is sent again with a new adapter.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rollenv.agents.base import AgentFailed
from rollenv.agents.engines.base import (
    Decode,
    EngineFailed,
    Ids,
    Response,
    Sampling,
    TokenCounts,
    ends_with_stop,
    room_for,
    versions_of,
)
from rollenv.core.errors import UsageError
from rollenv.core.pictures import Picture, is_picture_token, numbered

if TYPE_CHECKING:
    import torch

    from rollenv.agents.engines.adapters import Adapter
    from rollenv.agents.vision import VisionFamily

#: What gives up its memory while vLLM sleeps, by vLLM's tags.
SLEEPERS = ("weights", "kv_cache")


class Piece(NamedTuple):
    """Some tokens of a response, as they are sampled."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish: str | None = None
    spans: Sequence[tuple[str, int, int]] = ()
    """With the last tokens: (label of the weights, begin, end) of all tokens since it was sent."""
    prompt: int = 0
    """Number of tokens that vLLM made of the prompt; 0 if it does not say."""
    reused: int = 0
    """Number of these that were in its prefix cache."""


class Prompt(NamedTuple):
    """A prompt, with the response so far, as vLLM takes it."""

    tokens: list[int]
    """One token for each picture, which vLLM expands."""
    pictures: Sequence[Picture] = ()


#: Takes the next tokens of a response; True if it is complete.
Take = Callable[[Piece], bool]


class Transport(Protocol):
    """Carries an engine's calls to vLLM.

    - ``health`` waits for a server that failed; EngineLost if it has not the weights that it had.
    - ``generate`` samples until ``take`` returns True; cancelling it stops the generation. The
      parameters are those of vLLM's ``SamplingParams``.
    - ``weights`` and ``adapter`` load what later requests play; ``forget`` drops earlier adapters
      and the cache, and lets running requests compute their keys and values again.
    - ``label`` sets the version that vLLM says of its tokens.
    - ``pause`` stops sampling until ``go_on``: running and new requests wait.
    - ``sleep`` pauses and frees memory; ``wake`` allocates one of :data:`SLEEPERS`, once, since vLLM
      fails on memory that it has already.
    """

    name: str
    """Which vLLM, for messages."""
    max_context: int
    on_cpu: bool
    takes_pictures: bool
    max_rank: int
    """Maximum rank of adapters; 0 if it gets merged weights only."""
    rank_hint: str
    """Advice where an adapter has a higher ``{rank}``."""
    no_sleep: str
    """Why it cannot sleep; empty if it can."""
    stats: TokenCounts

    async def health(self) -> None: ...
    async def generate(self, prompt: Prompt, parameters: dict[str, Any], take: Take) -> None: ...
    async def weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None: ...
    async def adapter(self, adapter: Adapter) -> None: ...
    async def forget(self) -> None: ...
    async def label(self, version: int) -> None: ...
    async def pause(self) -> None: ...
    async def go_on(self) -> None: ...
    async def sleep(self, level: int) -> None: ...
    async def wake(self, part: str) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Request:
    """A prompt and its response so far."""

    prompt: Ids
    sampling: Sampling
    limit: int
    rng: random.Random
    response: Response = field(default_factory=Response)
    stream: asyncio.Task[None] | None = None


class VLLMEngine:
    """Samples with vLLM over a transport.

    Responses are read token by token, so that tokens before a failure are not lost. vLLM's prefix
    cache shares keys and values between turns of a session and members of a group. Each request has
    a seed from the session's random numbers.

    New weights pause vLLM, which keeps running requests (its pause mode "keep") and computes their
    keys and values again. An adapter is loaded under a new name for every update; running requests
    are sent again, since vLLM does not change their adapter.

    Args:
        model: the folder of the saved model, with which adapters are merged that vLLM cannot play.
        family: how the model sees, for prompts with pictures. vLLM processes them itself; where it
            gives one another number of tokens, its prompt is refused.
    """

    def __init__(
        self,
        transport: Transport,
        stop: frozenset[int],
        *,
        model: str | Path = "",
        decode: Decode | None = None,
        family: VisionFamily | None = None,
    ):
        self.transport, self.stop, self.model = transport, stop, Path(model) if model else None
        self._decode, self._family = decode, family
        self.max_context, self.on_cpu = transport.max_context, transport.on_cpu
        self.stats = transport.stats
        self.version, self._labelled = 0, -1
        self._live: list[_Request] = []
        self._suspended, self._lost_weights, self._has_adapter = False, False, False
        self._asleep: list[str] = []

    # -- what sessions call ------------------------------------------------------------------------

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Sample a response (see :class:`rollenv.agents.engines.base.Engine`)."""
        decodes = self._decode is not None
        prompt, limit = room_for(prompt, sampling, self.max_context, decodes=decodes)
        request = _Request(prompt, sampling, limit, random.Random(rng.getrandbits(48)))
        self._live.append(request)
        try:
            while not await self._until_moved(request):
                pass
        finally:
            self._live.remove(request)
        return request.response

    def release(self, session: int) -> None:
        """Do nothing: vLLM's prefix cache drops the least recently used entries."""

    @property
    def active(self) -> int:
        """Number of waiting or running requests."""
        return len(self._live)

    def close(self) -> None:
        """Stop vLLM in this process, or leave a server as it was; running requests fail."""
        self.transport.close()

    # -- new weights -------------------------------------------------------------------------------

    async def suspend(self) -> None:
        """Stop sampling until :meth:`resume`; new requests wait."""
        await self.transport.pause()
        self._suspended = True

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter | None = None) -> None:
        """Load all weights of the model, by their names in transformers, or an adapter.

        A run has merged its adapter before if this engine takes none (``TrainConfig.weight_form``).
        """
        if weights is None:
            why = "keeps its own model: pass the trained model's named weights to update_weights()"
            raise UsageError(f"{self.transport.name} {why}")
        from rollenv.agents.engines.adapters import Adapter, saved_weights

        adapter: Adapter | None = None
        if not isinstance(weights, Adapter):
            named = weights
        elif self.transport.max_rank:
            adapter = weights
            if self._lost_weights:
                why = "in a sleep of level 2: sleep at level 1, or send merged weights"
                raise UsageError(f"vLLM lost the base model of the adapter {why}")
            ranks = (adapter.config.get("rank_pattern") or {}).values()
            self.check_rank(max([adapter.config["r"], *ranks]))
        elif self.model is None:
            raise UsageError("an adapter can be merged with a saved model only: pass model=FOLDER")
        else:
            named = weights.merged(saved_weights(self.model))
        was_running = not self._suspended
        await self.suspend()
        if "weights" in self._asleep:
            await self._wake("weights")
        if adapter:
            await self.transport.adapter(adapter)
        else:
            await self.transport.weights(named)
        if (adapter or self._has_adapter) and self._live:
            streams = {request.stream for request in self._live if request.stream is not None}
            for stream in streams:
                stream.cancel()
            await asyncio.wait(streams)  # then they are sent again
        self._lost_weights, self._has_adapter = False, bool(adapter)
        await self.transport.forget()
        self.version += 1
        if was_running:
            await self.resume()

    async def resume(self) -> None:
        """Resume sampling; unfinished responses continue after their tokens."""
        if self._lost_weights:
            why = "in a sleep of level 2: call update_weights() before resume()"
            raise UsageError(f"vLLM lost its weights {why}")
        for part in tuple(self._asleep):
            await self._wake(part)
        await self._label()
        await self.transport.go_on()
        self._suspended = False

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator's memory: caches and weights (moved to main memory at level 1, lost at level 2).

        Implies :meth:`suspend`; :meth:`update_weights` and :meth:`resume` allocate the memory again.
        """
        self.check_sleep()
        await self.transport.sleep(level)
        self._suspended, self._asleep, self._lost_weights = True, list(SLEEPERS), level == 2

    async def _wake(self, part: str) -> None:
        await self.transport.wake(part)
        self._asleep.remove(part)

    async def _label(self) -> None:
        if self._labelled != self.version:
            version = self.version
            await self.transport.label(version)
            self._labelled = version

    def check_sleep(self) -> None:
        """Raise UsageError if the engine cannot :meth:`sleep`."""
        if self.transport.no_sleep:
            raise UsageError(self.transport.no_sleep)

    def check_rank(self, rank: int) -> None:
        """Raise UsageError if vLLM does not play adapters of a rank."""
        if self.transport.max_rank < rank:
            hint = self.transport.rank_hint.format(rank=rank)
            raise UsageError(f"{self.transport.name} plays no adapters of rank {rank}: {hint}")

    # -- requests ----------------------------------------------------------------------------------

    async def _until_moved(self, request: _Request) -> bool:
        """Sample until the response is complete; return False if the request must be sent again."""
        request.stream = stream = asyncio.ensure_future(self._draw(request))
        try:
            await asyncio.wait({stream})
        except asyncio.CancelledError:
            stream.cancel()
            raise
        if stream.cancelled():
            return False
        stream.result()
        return True

    async def _draw(self, request: _Request) -> None:
        sampling = request.sampling
        if sampling.structured:
            request.response = Response()
        response, sent = request.response, len(request.response.ids)
        if not self.transport.takes_pictures and any(map(is_picture_token, request.prompt)):
            how = "play it as an endpoint (chat:MODEL), or the model in this process (local:MODEL)"
            raise UsageError(f"{self.transport.name} takes no pictures beside token ids: {how}")
        prompt = shown_prompt((*request.prompt, *response.ids), self._family)
        parameters: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "max_tokens": request.limit - sent,
            "seed": request.rng.getrandbits(48) if sampling.temperature else None,
            "stop_token_ids": sorted(self.stop),
            "logprobs": 0,
            "detokenize": False,
        }
        if sampling.structured:
            structure = {"json": sampling.schema, "grammar": sampling.grammar}
            parameters["structured_outputs"] = {kind: of for kind, of in structure.items() if of}
        try:
            await self.transport.health()
            if not self._suspended:
                await self._label()
            await self.transport.generate(prompt, parameters, partial(self._take, request, sent))
        except EngineFailed as error:
            error.response = response
            raise

    def _take(self, request: _Request, sent: int, piece: Piece) -> bool:
        """Add the tokens of a piece; return whether the response is complete.

        Raises:
            ValueError: these are no tokens of vLLM, or it ended the response for another reason.
        """
        response, ids, logprobs = request.response, list(piece.ids), list(piece.logprobs)
        if len(ids) != len(logprobs) or {*map(type, ids)} - {int} or not all(map(isfinite, logprobs)):
            raise ValueError(f"log-probabilities {logprobs!r:.60} are not of the tokens {ids!r:.60}")
        expected = len(request.prompt) + sent
        if self._family and piece.prompt and piece.prompt != expected:
            seen = {repr(numbered(token)) for token in request.prompt if is_picture_token(token)}
            raise UsageError(
                f"vLLM makes {piece.prompt} tokens of a prompt that has {expected} here, with "
                f"{', '.join(seen)}: give it the processor's settings of the model's folder"
            )
        if not response.ids:
            self.stats.prompted += len(request.prompt)
            self.stats.reused += piece.reused
        self.stats.drawn += len(ids)
        response.ids += ids
        response.logprobs += logprobs
        response.versions += [self.version] * len(ids)
        if piece.spans and all(label.isdecimal() for label, _, _ in piece.spans):
            count = len(response.ids) - sent
            response.versions[sent:] = versions_of(piece.spans, count, self.version)
        texts, decode, at_text = request.sampling.stop, self._decode, False
        if ids and texts and decode:
            at_text = ends_with_stop(response.ids, texts, decode)
        if at_text or piece.finish in ("stop", "length"):
            response.finish = "stop" if at_text or response.ids[-1] in self.stop else "length"
            return True
        if piece.finish:
            raise ValueError(f"it ended a response with {piece.finish!r}")
        return False


def shown_prompt(ids: Ids, family: VisionFamily | None) -> Prompt:
    """Return a prompt as vLLM takes it.

    Raises:
        UsageError: the model reads texts only, or its pictures are more than a run of one token.
        AgentFailed: the model has sampled the token of pictures, which vLLM takes for one.
    """
    if not any(map(is_picture_token, ids)):
        return Prompt(list(ids))
    if family is None:
        why = "and the model that vLLM has loaded reads texts only here"
        raise UsageError(f"the prompt has pictures, {why}")
    shown, pictures, at = list[int](), list[Picture](), 0
    while at < len(ids):
        count = 1
        if is_picture_token(ids[at]):
            picture = numbered(ids[at])
            count = family.count(picture)
            if family.written(picture) != family.image_token * count:
                raise UsageError(
                    "vLLM gets pictures here that are a run of one token, such as Qwen's; those of "
                    f"{family.config.model_type} have others around them: play the model locally "
                    "(local:MODEL)"
                )
            pictures.append(picture)
        elif ids[at] == family.token:
            raise AgentFailed("the model has sampled the token of pictures, which vLLM takes for one")
        shown.append(family.token if is_picture_token(ids[at]) else ids[at])
        at += count
    return Prompt(shown, pictures)

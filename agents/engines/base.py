"""The interface and common parts of all engines: token ids in, token ids out."""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollenv.agents.base import ContextFull
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.pictures import is_picture_token

if TYPE_CHECKING:
    import torch

    from rollenv.agents.engines.adapters import Adapter

Ids = tuple[int, ...]

#: Converts the tokens of a response to text.
Decode = Callable[[Sequence[int]], str]

#: Additional tokens to decode when searching for a stop text at the end of a response.
_MARGIN = 8


def token_ids(prompt: Any, vocabulary: int | None = None) -> Ids:
    """Validate a prompt and convert it to a tuple of token ids.

    Args:
        vocabulary: number of tokens; None skips the check.
    """
    if not isinstance(prompt, Sequence) or set(map(type, prompt)) - {int}:
        raise UsageError(f"a prompt must be a tuple of token ids (int), not {type(prompt).__name__} {prompt!r:.60}")
    ids = tuple(prompt)
    if not ids:
        raise UsageError("there is nothing to generate from 0 prompt tokens")
    largest = max(ids) if vocabulary is not None else 0
    if largest >= 1 << 62:
        largest = max(text_tokens(ids), default=0)
    if min(ids) < 0 or (vocabulary is not None and largest >= vocabulary):
        wrong = min(ids) if min(ids) < 0 else largest
        raise UsageError(f"token {wrong} is not one of the model's {vocabulary or 'own'}; take its own tokenizer")
    return ids


def text_tokens(ids: Sequence[int]) -> list[int]:
    """Return the tokens that are not of pictures."""
    return [token for token in ids if not is_picture_token(token)]


def vision_of(one: Any) -> Any:
    """Return the vision family (:mod:`rollenv.agents.vision`) of a model or a tokenizer; None if it reads texts."""
    return getattr(one, "rollenv_vision", None)


def attach_vision(family: Any, *of: Any) -> None:
    """Let a model and its tokenizer see."""
    for one in of:
        one.rollenv_vision = family


def room_for(prompt: Any, sampling: Sampling, context: int, *, decodes: bool) -> tuple[Ids, int]:
    """Check a request to an engine with its model in another process.

    Raises:
        ContextFull: the prompt leaves no room for a response.
    """
    ids = token_ids(prompt)
    limit = min(sampling.max_new_tokens, context - len(ids))
    if sampling.stop and not decodes:
        raise UsageError("stop texts need decode=: give it to the engine")
    if sampling.routes:
        raise UsageError("this engine does not report the experts of tokens (routes=True); the local engine does")
    if sampling.max_new_tokens < 1:
        raise UsageError(f"nothing to generate from {len(ids)} prompt tokens with {sampling}")
    if limit < 1:
        raise ContextFull(f"a prompt of {len(ids)} tokens leaves no room in a context of {context}")
    return ids, limit


def ends_with_stop(ids: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Return whether the last token of a response completed a stop text."""
    longest = max(len(text.encode()) for text in stop)
    tail = decode(ids[-longest - _MARGIN :])
    return any(text in tail for text in stop)


@dataclass(frozen=True)
class Sampling:
    """The settings of sampling.

    Log-probabilities are those of the narrowed distribution. A trainer computes those of the full one, so ``top_p``,
    ``top_k`` and ``min_p`` are for evaluation.
    """

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy, and so is anything below 1e-5, by which no logits can be divided."""
    max_new_tokens: int = 64
    top_p: float = 1.0
    """Nucleus sampling: the likeliest tokens with this total probability."""
    top_k: int = 0
    """Sample from this many of the likeliest tokens; 0 for all."""
    min_p: float = 0.0
    """Minimum probability of a token, relative to the likeliest one."""
    stop: tuple[str, ...] = ()
    """Stop strings; a response ends with the token that completes one."""
    routes: bool = False
    """Report the experts of tokens (:attr:`Response.routes`), which only the local engine supports."""
    schema: str = ""
    """A JSON schema that responses follow, as JSON; only with vLLM and SGLang. A response that new weights interrupt
    begins anew, because its state in the grammar is lost."""
    grammar: str = ""
    """A grammar that responses follow, in EBNF; only with vLLM and SGLang."""

    def __post_init__(self) -> None:
        stop: Any = self.stop
        if isinstance(self.temperature, int | float) and 0 < self.temperature < 1e-5:
            object.__setattr__(self, "temperature", 0.0)
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop))
        for name, kinds in (("temperature", (int, float)), ("max_new_tokens", int), ("top_k", int)):
            if not isinstance(getattr(self, name), kinds):
                raise UsageError(f"sampling cannot have {name}={getattr(self, name)!r}")
        right = {
            "temperature": 0 <= self.temperature < math.inf,
            "top_p": 0 < self.top_p <= 1,
            "top_k": self.top_k >= 0,
            "min_p": 0 <= self.min_p <= 1,
            "stop": all(isinstance(text, str) and text for text in self.stop),
            "schema": not (self.schema and self.grammar),
        }
        for name, is_right in right.items():
            if not is_right:
                raise UsageError(f"sampling cannot have {name}={getattr(self, name)!r}")

    @property
    def narrows(self) -> bool:
        """True if some tokens are excluded from sampling."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.structured

    @property
    def structured(self) -> bool:
        """True if responses follow a schema or a grammar."""
        return bool(self.schema or self.grammar)


@dataclass(slots=True)
class Response:
    """The response of an engine."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each token in the distribution that it was sampled from (temperature applied)."""
    versions: list[int] = field(default_factory=list)
    """The version of the weights that sampled each token."""
    finish: str = "stop"
    """"stop" (a stop token, included in ``ids``) or "length"."""
    routes: str = ""
    """The experts of all tokens but the last, prompt included, as :func:`write_routes` encodes them; empty if not
    requested."""


def write_routes(routes: NDArray[np.int16]) -> str:
    """Encode the experts of tokens as base64 of little-endian int16.

    Args:
        routes: (tokens, layers · k) the k experts of each token in every layer.
    """
    return base64.b64encode(routes.astype("<i2").tobytes()).decode()


def read_routes(text: str, tokens: int) -> NDArray[np.int16]:
    """Return the experts that :func:`write_routes` encoded.

    Returns:
        (tokens, layers k)
    """
    return np.frombuffer(base64.b64decode(text), "<i2").reshape(tokens, -1)


class Engine(Protocol):
    """Samples responses for many sessions at once."""

    version: int
    max_context: int
    """Maximum number of tokens of a prompt and its response."""

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Sample a response. Cancelling the coroutine stops the generation.

        Args:
            session: a constant number for all turns of an episode, so that the engine can reuse its cache; -1 for none.
        """
        ...

    def release(self, session: int) -> None:
        """Release the cache of a finished session."""
        ...


class Counts(Protocol):
    """Numbers of requests and tokens of an engine since its start."""

    @property
    def total(self) -> int:
        """Number of computed or sampled tokens."""
        ...


class UpdatableEngine(Engine, Protocol):
    """An engine whose weights are trained while it plays; see :class:`~rollenv.agents.base.Updatable`."""

    @property
    def stats(self) -> Counts: ...

    async def suspend(self) -> None: ...

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | Adapter | None = None) -> None: ...

    async def resume(self) -> None: ...


class RestingEngine(UpdatableEngine, Protocol):
    """An updatable engine that can free the accelerator's memory for a trainer."""

    async def sleep(self, level: int = 1) -> None:
        """Suspend, and free memory: weights move to main memory at level 1 and are lost at level 2.

        ``update_weights`` and ``resume`` allocate the memory again.
        """
        ...


@dataclass(slots=True)
class TokenCounts:
    """Counts of an engine: prompt tokens, prompt tokens in its prefix cache, sampled tokens, steps."""

    prompted: int = 0
    reused: int = 0
    drawn: int = 0
    steps: int = 0

    @property
    def total(self) -> int:
        """Number of computed or sampled tokens."""
        return self.prompted - self.reused + self.drawn


def versions_of(spans: Iterable[tuple[str, int, int]], count: int, newest: int) -> list[int]:
    """Convert vLLM's spans (label, begin, end) to the version of each token."""
    versions = [int(label) for label, begin, end in spans for _ in range(begin, end)]
    last = max(versions, default=0)
    if len(versions) != count or last > newest:
        raise ValueError(
            f"{count} tokens have {len(versions)} versions up to {last}, and the newest is {newest}: does another "
            "trainer use this engine too?"
        )
    return versions


def on_host(weights: Iterable[tuple[str, torch.Tensor]] | Adapter) -> list[tuple[str, torch.Tensor]] | Adapter:
    """Copy weights or an adapter to main memory."""
    if isinstance(weights, Iterable):
        return [(name, tensor.detach().cpu()) for name, tensor in weights]
    return weights.on_host()


class EngineFailed(RollenvError):
    """The model or the device failed. ``response`` has the request's tokens so far."""

    def __init__(self, message: str, response: Response | None = None):
        super().__init__(message)
        self.response = response or Response()


class EngineLost(EngineFailed):
    """The engine is permanently lost, so the rollout ends."""

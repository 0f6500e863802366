"""What an agent is: something that starts a :class:`Session` for every episode and is asked for one action a turn."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rollenv.core import Env, RollenvError, Unsolvable

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Action:
    """What an agent said in one turn. Agents without tokens leave the rest empty."""

    text: str
    prompt_ids: tuple[int, ...] = ()
    """All that the model had before it when it answered."""
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Log-probability of each response token under the distribution it was drawn from."""
    policy_version: int = 0
    """The version of the weights that drew the first response token."""
    versions: tuple[int, ...] = ()
    """The version for each response token, where the weights changed in between; else empty."""
    finish: str = "stop"
    """Why the response ended: "stop" (the model ended it) or "length" (a limit on new tokens did)."""


class AgentFailed(RollenvError):
    """An agent cannot answer in this episode (an endpoint gave up, say). Ends the trajectory, not the rollout."""


class ContextFull(RollenvError):
    """The next prompt no longer fits the model's context. Ends the trajectory as truncated."""


class EnvHandle(Protocol):
    """What an agent sees of the environment it plays, which may live in another process."""

    @property
    def env_id(self) -> str: ...

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the environment, such as ``oracle_action``; what it raises is raised here."""
        ...


class Session(Protocol):
    """An agent in one episode. To cancel the coroutine of :meth:`act` stops the work on the answer."""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """The next action, given what the environment returned last.

        Raises:
            AgentFailed: there is no answer to be had.
            ContextFull: the prompt is too long for the model.
        """
        ...

    def close(self) -> None:
        """The episode is over or given up: free what is held for it. May be called while :meth:`act` is cancelled."""
        return None


class Agent(Protocol):
    """Starts sessions; may share a model between them."""

    def start(self, env: EnvHandle, seed: int) -> Session:
        """A session for the episode about to be played in ``env``; every draw it makes follows ``seed``."""
        ...


class Updatable(Protocol):
    """An agent whose weights are trained while it plays."""

    version: int
    """Counts the updates; goes into ``Action.policy_version``."""

    async def suspend(self) -> None:
        """Stop drawing tokens. Unfinished responses wait with the tokens they have."""
        ...

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | None = None) -> None:
        """Play with new weights from now on (None: the model is shared and was trained in place)."""
        ...

    async def resume(self) -> None:
        """Go on; unfinished responses continue after the tokens they have."""
        ...


class RandomAgent:
    """Plays the environment's own random actions, each member of a group its own."""

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Expert(env, 1.0, random.Random(seed))


class OracleAgent:
    """Plays the expert's actions; of these the share ``noise`` is replaced by random ones."""

    def __init__(self, noise: float = 0.0):
        self.noise = noise

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Expert(env, self.noise, random.Random(seed))


@dataclass(slots=True)
class _Expert(Session):
    env: EnvHandle
    noise: float
    rng: random.Random
    seeded: bool = False

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        if not (self.noise and self.rng.random() < self.noise):
            with contextlib.suppress(Unsolvable):
                return Action(await self.env.call("oracle_action"))
        if not self.seeded:
            await self.env.call("seed_actions", self.rng.getrandbits(32))
            self.seeded = True
        return Action(await self.env.call("sample_random_action"))


def noisy_expert(env: Env, noise: float, rng: random.Random) -> str | None:
    """The expert's action, or with probability ``noise`` a random one; None where the expert sees no way to finish."""
    if noise and rng.random() < noise:
        return env.sample_random_action()
    try:
        return env.oracle_action()
    except Unsolvable:
        return None

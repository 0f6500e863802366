"""The agent interface: an agent starts a :class:`Session` for every episode, which gives one action per turn."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rollenv.core import Env, RollenvError, Unsolvable, UsageError

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Action:
    """The response of an agent in one turn. Agents without tokens leave the rest empty."""

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
    """The reason of the response's end: "stop" (the model ended it), "length" (a limit on new tokens did) or
    "unfinished": it ended inside a thought, which holds no action."""
    raw: str = ""
    """The response as the model gave it, thoughts and tool calls with it; empty where that is ``text``."""
    messages: tuple[dict[str, Any], ...] = ()
    """Messages of a chat that are new in this turn, before the answer; empty where ``prompt_ids`` hold them."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """The endpoint's counts for the answer: ``prompt_tokens``, ``completion_tokens``, ``cost``."""
    reward: float = 0.0
    """Reward of the answer by itself, besides what the environment gives for it."""
    routes: str = ""
    """The experts that tokens went to; see :attr:`rollenv.rollout.types.Turn.routes`."""
    calls: tuple[Action, ...] = ()
    """The model's answers to a program that played by itself, each a turn of its own that replaces this one."""


class AgentFailed(RollenvError):
    """An agent cannot answer in this episode (an endpoint gave up, say). Ends the trajectory, not the rollout."""


class Refused(AgentFailed):
    """A model's endpoint refuses a request, and would refuse it again."""


class ContextFull(RollenvError):
    """The next prompt no longer fits the model's context. Ends the trajectory as truncated."""


class EnvHandle(Protocol):
    """An agent's view of the environment it plays, which may be in another process."""

    @property
    def env_id(self) -> str: ...

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the environment, such as ``oracle_action``; its exceptions are raised here."""
        ...


class Session(Protocol):
    """An agent in one episode. Cancelling the coroutine of :meth:`act` stops the work on the answer."""

    replayable: ClassVar[bool] = True
    """True if its actions and calls are all that it does to the environment, so that they can be repeated to another
    one if it is lost. Else the session is closed then, and a new one plays from the start."""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """Choose the next action.

        Args:
            observation: as the environment returned it last.
            info: of the same reset or step.

        Raises:
            AgentFailed: there is no usable answer.
            ContextFull: the prompt is too long for the model.
        """
        ...

    def record(self) -> Mapping[str, Any]:
        """Return more about the play, as plain data for people; asked for once, before :meth:`close`."""
        return {}

    def close(self) -> None:
        """The episode is over or was given up: free its resources. May be called while :meth:`act` is cancelled."""
        return None


class Agent(Protocol):
    """Starts sessions; may share a model between them."""

    def start(self, env: EnvHandle, seed: int) -> Session:
        """Start a session for one episode.

        Args:
            seed: of every draw that the session makes.
        """
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
        """Resume drawing; unfinished responses continue after the tokens they have."""
        ...


async def renew(agent: Any, weights: Any = None) -> None:
    """Give an agent new weights, between two tokens.

    Raises:
        UsageError: it has no ``update_weights``.
    """
    if not hasattr(agent, "update_weights"):
        raise UsageError(f"{type(agent).__name__} has no update_weights(): there is nothing to train in it")
    await agent.suspend()
    try:
        await agent.update_weights(weights)
    finally:
        await agent.resume()


class RandomAgent:
    """Plays the environment's own random actions, each member of a group its own."""

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Expert(env, 1.0, random.Random(seed))


class ConstantAgent:
    """Says the same in every turn: what can be had without reading anything."""

    def __init__(self, text: str):
        self.text = text

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Parrot(self.text)


@dataclass(slots=True)
class _Parrot(Session):
    text: str

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        return Action(self.text)


class NopAgent:
    """Does nothing, and says at once that it is done where there is an action for it (``info["submit"]``)."""

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Idler()


@dataclass(slots=True)
class _Idler(Session):
    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        return Action(str(info.get("submit", "")))


class OracleAgent:
    """Plays the expert's actions, with the share ``noise`` replaced by random ones."""

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
    """The expert's action, or a random one with probability ``noise``; None where the expert cannot finish the task.

    Args:
        env: an environment with ``oracle_action`` and ``sample_random_action``.
        noise: probability of a random action, 0 to 1.
    """
    if noise and rng.random() < noise:
        return env.sample_random_action()
    try:
        return env.oracle_action()
    except Unsolvable:
        return None

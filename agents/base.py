"""The agent interface: an agent starts a :class:`Session` for every episode, which chooses one action per turn."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rollenv.core.env import Env
from rollenv.core.errors import RollenvError, Unsolvable, UsageError
from rollenv.core.pictures import Picture

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Action:
    """The response of an agent in one turn. Agents without tokens set ``text`` only."""

    text: str
    prompt_ids: tuple[int, ...] = ()
    """All tokens before the response."""
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Log-probability of each response token in the distribution that it was sampled from."""
    policy_version: int = 0
    """The version of the weights that sampled the first response token."""
    versions: tuple[int, ...] = ()
    """The version for each response token, if the weights changed in between; else empty."""
    finish: str = "stop"
    """Reason for the end of the response: "stop" (by the model), "length" (a limit on new tokens) or "unfinished" (by
    the model, inside a thought: it has no action)."""
    raw: str = ""
    """The complete response, with thoughts and tool calls; empty if equal to ``text``."""
    messages: tuple[dict[str, Any], ...] = ()
    """New chat messages of this turn, before the answer; empty if they are in ``prompt_ids``."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """The endpoint's counts for the answer: ``prompt_tokens``, ``completion_tokens``, ``cost``."""
    reward: float = 0.0
    """Reward of the answer, in addition to the environment's."""
    routes: str = ""
    """The experts of tokens; see :attr:`rollenv.rollout.types.Turn.routes`."""
    images: tuple[Picture, ...] = ()
    """The pictures of the prompt that are not the observation's."""
    calls: tuple[Action, ...] = ()
    """Model calls of a program that played on its own; each is recorded as a turn, instead of this action."""
    prompt: str | None = None
    """The text of a prompt that was written for this turn alone; None if the answer continues a chat."""


class AgentFailed(RollenvError):
    """An agent cannot answer in this episode, for example after an endpoint failed. Ends the trajectory only."""


class EndpointRefused(AgentFailed):
    """A model's endpoint refuses a request permanently."""


class ContextFull(RollenvError):
    """The next prompt no longer fits the model's context. Ends the trajectory as truncated, and forfeits a game."""


class NothingToSay(ContextFull):
    """The agent has no further action, as a replay at its end. Ends the trajectory as truncated; in a game, it
    forfeits."""


class EnvHandle(Protocol):
    """An agent's view of its environment, which may be in another process."""

    @property
    def env_id(self) -> str: ...

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the environment, such as ``oracle_action``; its exceptions are raised here."""
        ...


class Session(Protocol):
    """An agent in one episode. Cancelling the coroutine of :meth:`act` stops the work on the answer."""

    replayable: ClassVar[bool] = True
    """True if the session changes the environment through its actions and calls only, so that they can be replayed on
    another environment if this one is lost. Otherwise a new session then plays from the start."""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        """Choose the next action.

        Raises:
            AgentFailed: there is no usable answer.
            ContextFull: the prompt is too long for the model.
        """
        ...

    def next_prompt(self, observation: str, info: dict[str, Any]) -> tuple[int, ...]:
        """Return the token ids of the next prompt, of an episode that a limit has ended; empty if there is none."""
        return ()

    def record(self) -> Mapping[str, Any]:
        """Return further information about the episode, as plain data; called once, before :meth:`close`."""
        return {}

    def close(self) -> None:
        """Free resources at the end of the episode. May be called while :meth:`act` is being cancelled."""
        return None


class Agent(Protocol):
    """Starts sessions, which may share a model. A class that does not derive from it needs ``start`` only."""

    version: Any = None
    """Number of updates of the weights; None if they are not trained."""

    async def prepare(self, env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of an environment before it is built, changed as the agent needs them."""
        return kwargs

    def start(self, env: EnvHandle, seed: int) -> Session:
        """Start a session for one episode."""
        ...


class Updatable(Protocol):
    """An agent whose weights are trained while it plays."""

    version: int
    """Number of updates; recorded in ``Action.policy_version``."""

    async def suspend(self) -> None:
        """Stop sampling. Unfinished responses keep their tokens."""
        ...

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | None = None) -> None:
        """Load new weights (None: the model is shared and was trained in place)."""
        ...

    async def resume(self) -> None:
        """Resume sampling; unfinished responses continue after their tokens."""
        ...


def member(plain: object, protocol: type, name: str) -> Any:
    """Return a member of an agent or session, or the protocol's default if a plain object lacks it."""
    if hasattr(plain, name):
        return getattr(plain, name)
    default = getattr(protocol, name)
    return MethodType(default, plain) if callable(default) else default


async def update_weights_of(agent: Any, weights: Any = None) -> None:
    """Suspend an agent, load new weights and resume it."""
    if not hasattr(agent, "update_weights"):
        raise UsageError(f"{type(agent).__name__} has no update_weights(), so it cannot be trained")
    await agent.suspend()
    try:
        await agent.update_weights(weights)
    finally:
        await agent.resume()


class OwnsEngine:
    """Forwards a trainer's weight updates to the agent's engine."""

    engine: Any
    """An :class:`~rollenv.agents.engines.base.UpdatableEngine`."""

    @property
    def version(self) -> int:
        """Number of weight updates."""
        return int(self.engine.version)

    @version.setter
    def version(self, version: int) -> None:
        self.engine.version = version

    @property
    def tokens(self) -> int:
        """Number of tokens that the engine has computed or sampled."""
        return int(self.engine.stats.total)

    async def suspend(self) -> None:
        """Stop sampling. Unfinished responses keep their tokens."""
        await self.engine.suspend()

    async def update_weights(self, weights: Any = None) -> None:
        """Load new weights or an adapter; None if the engine shares the trained model."""
        await self.engine.update_weights(weights)

    async def resume(self) -> None:
        """Resume sampling; unfinished responses continue after their tokens."""
        await self.engine.resume()


class RandomAgent(Agent):
    """Plays the environment's random actions, different for each member of a group."""

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Expert(env, 1.0, seed)


class ConstantAgent(Agent):
    """Plays the same action in every turn: a baseline that reads nothing."""

    def __init__(self, text: str):
        self.text = text

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Says(self.text)


class NopAgent(Agent):
    """Does nothing but submit at once, if there is an action for it (``info["submit"]``)."""

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Says()


@dataclass(slots=True)
class _Says(Session):
    text: str | None = None
    """None to submit."""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        return Action(str(info.get("submit", "")) if self.text is None else self.text)


class OracleAgent(Agent):
    """Plays the expert's actions, with a share ``noise`` of random ones."""

    def __init__(self, noise: float = 0.0):
        self.noise = noise

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Expert(env, self.noise, seed)


@dataclass(slots=True)
class _Expert(Session):
    env: EnvHandle
    noise: float
    seed: int
    rng: random.Random | None = None
    seeded: bool = False

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        if self.rng is None:  # by the task, so that tasks of one seed in several environments are not spoiled alike
            self.rng = random.Random(f"{self.env.env_id}\0{self.seed}\0{observation}")
        if not (self.noise and self.rng.random() < self.noise):
            with contextlib.suppress(Unsolvable):
                return Action(await self.env.call("oracle_action"))
        if not self.seeded:
            await self.env.call("seed_actions", self.rng.getrandbits(32))
            self.seeded = True
        return Action(await self.env.call("sample_random_action"))


def noisy_expert(env: Env, noise: float, rng: random.Random) -> str | None:
    """Return the expert's action, or a random one with probability ``noise``; None if the task cannot be solved.

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

"""GEM's base classes for authors, and GEM's conventions for every environment."""

from __future__ import annotations

import abc
import inspect
import random
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rollenv.core import env as core
from rollenv.core import vector
from rollenv.core.env import ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.plugins.gem.utils import set_seed

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class Refused(UsageError, AssertionError):
    """An invalid argument where GEM has an assertion."""


class _Settable:
    """A property of the base; an author's class may use its name for something else."""

    def __init__(self, name: str):
        self._property = getattr(core.Env, name)

    def __get__(self, env: Any, owner: type) -> Any:
        return self if env is None else self._property.fget(env)


class Env(core.Env, metaclass=abc.ABCMeta):
    """The base of environments written for GEM: authors implement ``reset(seed)`` and ``step(action)``.

    Every environment of rollenv is an instance of it.
    """

    _rollenv_reserved = frozenset()
    np_random_seed = _Settable("np_random_seed")
    action_rng = _Settable("action_rng")

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, core.Env | vector.VectorEnv) if cls is Env else NotImplemented

    @abc.abstractmethod
    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        """Seed the process's generators, the same as GEM. Authors call it from their ``reset``."""
        if seed is not None:
            set_seed(seed)
            self.seed_stream(seed)

    @abc.abstractmethod
    def step(self, action: Any) -> Any:
        """Play one turn."""

    if not TYPE_CHECKING:  # whatever the author calls _get_state
        get_state = core.OptionalAbility("has no get_state()")
        set_state = core.OptionalAbility("has no set_state()")

    def sample_random_action(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} has no random actions")

    def spawn(self, same_state: bool = False, **kwargs: Any) -> core.Env:
        raise NotImplementedError(f"{type(self).__name__} cannot be spawned")


class GemWrapper(core.Wrapper):
    """The base of GEM's wrappers: attributes come from the inner environment until the wrapper sets its own."""

    np_random = core.inherited("np_random")
    np_random_seed = core.inherited("np_random_seed")
    render = core.inherited("render")
    close = core.inherited("close")
    randint = core.inherited("randint")

    def _rollenv_whole_state(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the inner environment, with the wrapper's own at the end of ``wrappers``.

        An author's state that is not a dict, or that was asked for with arguments, is returned as it is.
        """
        state, own = self.env.get_state(*args, **kwargs), self._get_state()
        if args or kwargs or not own or not isinstance(state, dict):
            return state
        return {**state, "wrappers": [*state.get("wrappers", []), own]}

    def _rollenv_restore(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        """Restore a state; a state of the inner environment alone is accepted."""
        if args or kwargs or not isinstance(state, dict):
            return self.env.set_state(state, *args, **kwargs)
        own = list(state.get("wrappers", []))
        if own and self._get_state():
            self._set_state(own.pop())
            state = {**state, "wrappers": own}
        return self.env.set_state({name: value for name, value in state.items() if name != "wrappers" or value})


class EnvWrapper(GemWrapper, metaclass=abc.ABCMeta):
    """The base of wrappers written for GEM. Every wrapper of rollenv is an instance of it."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, core.Wrapper) if cls is EnvWrapper else NotImplemented


class GemEnv(core.Env):
    """GEM's conventions for a rollenv environment, as the first base: ``class SokobanEnv(GemEnv, Sokoban)``.

    A limit sets ``terminated`` too. A step before ``reset`` begins an episode, and one after the end returns the last
    result again with no reward. An action that is not text is converted to text. Without its own seed, the private
    stream starts from Python's ``random``, so that a seed for the process decides.
    """

    _last: StepResult | None = None

    @property
    def np_random(self) -> np.random.Generator:
        self._seeded()
        return super().np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._np_random, self._np_random_seed = value, -1

    @property
    def np_random_seed(self) -> int:
        self._seeded()
        return super().np_random_seed

    @property
    def action_rng(self) -> random.Random:
        self._seeded()
        return super().action_rng

    def _seeded(self) -> None:
        if self._np_random is None:
            self.seed_stream(random.getrandbits(32))

    def reset(self, seed: int | None = None, **given: Any) -> ResetResult:
        """Start an episode. Unknown arguments are ignored, the same as GEM's ``**kwargs``."""
        self._last = None
        if given:
            known = inspect.signature(super().reset).parameters
            given = {name: value for name, value in given.items() if name in known}
        return super().reset(seed, **given)

    def step(self, action: Any) -> StepResult:
        if self._rollenv_over:
            if self._last is not None:
                return self._last
            self.reset()
        observation, reward, terminated, truncated, info = super().step(
            action if isinstance(action, str) else str(action)
        )
        over = terminated or truncated
        if over:
            self._last = observation, 0.0, True, truncated, info
        return observation, reward, over, truncated, info

"""The environment contract: :class:`Env` and :class:`Wrapper`; the errors are in :mod:`rollenv.errors`.

An environment is a :class:`gymnasium.Env` whose observations and actions are text. An author writes two hooks::

    class Guess(rollenv.Env):
        def _reset(self, options):
            self.secret = self.randint(10)
            return "Guess a number from 0 to 9.", {}

        def _step(self, action):
            right = action.strip() == str(self.secret)
            return ("Right." if right else "Wrong."), float(right), right, False, {"success": right}

and gets seeding, the end-of-episode guard, the spaces and the default abilities from here. What an environment promises
is proved by :func:`rollenv.check_env`.
"""

from __future__ import annotations

import copy
import functools
import operator
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from rollenv.errors import (
    BadEntryPoint,
    Broken,
    EpisodeOver,
    MissingData,
    MissingExtra,
    NoSuchAbility,
    RollenvError,
    UnknownEnv,
    Unsolvable,
    UsageError,
    did_you_mean,
)
from rollenv.spaces import TextSpace

if TYPE_CHECKING:
    from rollenv.drawing import Drawing
    from rollenv.env_spec import EnvSpec

__all__ = [
    "BadEntryPoint",
    "Broken",
    "Env",
    "EpisodeOver",
    "MissingData",
    "MissingExtra",
    "NoSuchAbility",
    "ResetResult",
    "RollenvError",
    "StepResult",
    "UnknownEnv",
    "Unsolvable",
    "UsageError",
    "Wrapper",
]

StepResult = tuple[str, float, bool, bool, dict[str, Any]]
ResetResult = tuple[str, dict[str, Any]]


class Ability:
    """An optional ability, on the class that has none of them.

    ``Env`` has no ``__getattr__`` for this: with one, Python 3.11 looks up every attribute of a step a third slower.
    """

    def __init__(self, name: str, lacking: str, *, part: str = "", whole: str = ""):
        self.name, self.lacking, self.part, self.whole = name, lacking, part, whole

    def __get__(self, env: Any, owner: type) -> Any:
        """Return the whole of an ability of which the class defines a part, or what a class behind Env has.

        Raises:
            NoSuchAbility: there is neither.
        """
        if env is None:
            return self
        if self.part and getattr(owner, self.part, None):
            return getattr(env, self.whole)
        found = getattr(super(Env, env), self.name, None)
        if found is None:
            raise NoSuchAbility(f"{owner.__name__} {self.lacking}")
        return found


class Env(gymnasium.Env[str, str]):
    """A multi-turn text environment.

    An episode is a pure function of (constructor arguments, seed, actions): every draw comes from the private
    :attr:`np_random`, never from process-wide state. ``terminated`` means that the task ended, ``truncated`` that a
    limit did; they are never both set for one cause.

    Optional abilities, declared in the spec (:data:`rollenv.registry.ABILITIES`) and proved by the checker:
    :meth:`get_state` / :meth:`set_state`, :meth:`spawn`, :meth:`sample_random_action`, :meth:`oracle_action`,
    :meth:`state_key`.
    """

    metadata: dict[str, Any] = {"render_modes": ["text", "ansi", "svg"], "render_fps": 4}
    #: "text" as :meth:`render` returns it; :func:`rollenv.make` takes "ansi" and "svg" too, which draw :attr:`picture`.
    render_mode: str | None = "text"
    #: Makes a drawing of the text of :meth:`render`; None where there is nothing to draw but text.
    picture: Callable[[str], Drawing | None] | None = None
    #: Set by :func:`rollenv.make`.
    spec: EnvSpec | None = None  # type: ignore[assignment]
    #: The keys that ``reset(options=...)`` takes; any other is an error.
    reset_options: frozenset[str] = frozenset()

    #: Attributes that an episode changes in place: a copy of the environment gets copies of these and shares the rest.
    #: None where everything has to be copied.
    _changed_in_place: tuple[str, ...] | None = None

    #: The id that it was made from, and what builds it: those of the spec.
    env_id: str | None = None
    entry_point: str | Callable[..., Env] | None = None

    _over = True
    _begun = False
    _random_actions: random.Random | None = None

    # -- what an author writes ---------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        """Start an episode. :attr:`np_random` is already seeded."""
        if type(self).reset is Env.reset:
            raise NotImplementedError(f"{type(self).__name__} has no _reset()")
        return "", {}  # it overrides reset() and calls this one for the seed

    def _step(self, action: str) -> StepResult:
        """Play one turn of an episode that is not over."""
        raise NotImplementedError(f"{type(self).__name__} has no _step()")

    # -- what a caller uses ------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None) -> ResetResult:
        """Start an episode and return ``(observation, info)``.

        Args:
            seed: restarts the private random stream; without one, the stream continues.
            options: settings of this episode only, added to the spec's: any of :attr:`reset_options`.

        Raises:
            UsageError: for an option that the environment does not know.
        """
        given = self._checked_options(options)
        if seed is not None:
            self.seed_stream(seed)
        self._over = True
        observation, info = self._reset(given)
        self._over, self._begun = False, True
        return observation, info

    def _checked_options(self, options: dict[str, Any] | None) -> dict[str, Any]:
        given = {**(self.spec.options if self.spec else {}), **(options or {})}
        for name in given.keys() - self.reset_options:
            known = f"there is {', '.join(sorted(self.reset_options))}" if self.reset_options else "it takes none"
            hint = did_you_mean(str(name), self.reset_options, known)
            raise UsageError(f"{self}: reset takes no option {name!r}; {hint}")
        return given

    def step(self, action: str) -> StepResult:
        """Play one turn and return ``(observation, reward, terminated, truncated, info)``.

        Raises:
            EpisodeOver: before the first ``reset`` and after the end of an episode.
            TypeError: if the action is not text.
        """
        if self._over:
            raise EpisodeOver(f"{self}: the episode is over; call reset() to start the next one")
        if not isinstance(action, str):
            raise TypeError(f"{self}: an action must be a str, not {type(action).__name__}")
        result = self._step(action)
        self._over = result[2] or result[3]
        return result

    def render(self) -> str:
        """The current state as text, for people."""
        return ""

    def close(self) -> None:
        """Release every resource; calling it again does nothing."""

    # -- abilities ---------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:  # optional: a class has those that it defines, get_state by _get_state; None takes one away

        def get_state(self) -> dict[str, Any]:
            """Return what the rest of the episode depends on, as JSON data, including both random streams."""
            ...

        def set_state(self, state: dict[str, Any]) -> None:
            """Go back to a state that :meth:`get_state` of the same kind of environment returned."""

        def sample_random_action(self) -> str:
            """Return an action that parses. It comes from its own stream: sampling does not change the episode."""
            ...

        def oracle_action(self) -> str:
            """Return an expert's next action.

            Raises:
                Unsolvable: earlier actions made the task impossible.
            """
            ...

        def state_key(self) -> str:
            """Return the key of the state: two states are equal if and only if their keys are (GiGPO's anchor)."""
            ...

        def num_tasks(self) -> int:
            """Return the number of tasks for ``reset(options={"index": i})``, where the spec says ``indexed``."""
            ...

        def _get_state(self) -> dict[str, Any]: ...

        def _set_state(self, state: dict[str, Any]) -> None: ...

    else:
        get_state = Ability("get_state", "does not save its state", part="_get_state", whole="_whole_state")
        set_state = Ability("set_state", "does not restore its state", part="_set_state", whole="_restore")
        sample_random_action = Ability("sample_random_action", "has no random actions")
        oracle_action = Ability("oracle_action", "has no oracle")
        state_key = Ability("state_key", "has no state key")
        num_tasks = Ability("num_tasks", "has no numbered tasks")

    def _whole_state(self) -> dict[str, Any]:
        version, words, gauss = self.action_rng.getstate()
        return {
            "over": self._over,
            "rng": self.np_random.bit_generator.state,
            "actions": [version, list(words), gauss],
            "env": self._get_state(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self._np_random = np.random.Generator(np.random.PCG64(0))
        self._np_random.bit_generator.state = state["rng"]
        version, words, gauss = state["actions"]
        self._random_actions = random.Random()
        self._random_actions.setstate((version, tuple(words), gauss))
        self._set_state(state["env"])
        self._over, self._begun = state["over"], True

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        """A new, independent environment of the same kind: in the same state, or not yet reset.

        Args:
            same_state: continue from where this one is, with a copy of its random stream.
            kwargs: constructor arguments to change; not together with ``same_state``.

        Raises:
            UsageError: ``kwargs`` together with ``same_state``, or an environment that :func:`rollenv.make` did not
                build.
        """
        if same_state:
            if kwargs:
                raise UsageError(f"{self}: spawn(same_state=True) takes no other arguments, got {sorted(kwargs)}")
            return self._twin()
        if self.spec is None:
            raise UsageError(f"{self}: only an environment that rollenv.make() built can spawn a fresh one")
        return self.spec.make(**kwargs)

    def _twin(self) -> Env:
        """A copy that shares nothing that changes."""
        if self._changed_in_place is None:
            return copy.deepcopy(self)
        twin = copy.copy(self)
        for name in self._changed_in_place:
            setattr(twin, name, copy.deepcopy(getattr(self, name)))
        twin._np_random = np.random.Generator(np.random.PCG64(0))
        twin._np_random.bit_generator.state = self.np_random.bit_generator.state
        twin._random_actions = copy.copy(self._random_actions)
        return twin

    def seed_stream(self, seed: int) -> None:
        """Restart the private random stream without a reset.

        Raises:
            UsageError: the seed is not an integer from 0.
        """
        try:
            self._np_random, self._np_random_seed = seeding.np_random(operator.index(seed))
        except (TypeError, gymnasium.error.Error) as error:
            raise UsageError(f"{self}: a seed must be a non-negative integer, not {seed!r}") from error
        self._random_actions = None

    # -- help for authors --------------------------------------------------------------------------------------------

    def randint(self, n: int) -> int:
        """A draw from 0 .. n - 1 (faster than ``np_random.integers``; the bias is below n / 2**53)."""
        return int(self.np_random.random() * n)

    def seed_actions(self, seed: int) -> None:
        """Restart the stream of :meth:`sample_random_action`, so that players of one episode draw differently."""
        self._random_actions = random.Random(seed)

    @property
    def action_rng(self) -> random.Random:
        """The stream for :meth:`sample_random_action`: follows the seed, apart from :attr:`np_random`."""
        if self._random_actions is None:
            self._random_actions = random.Random(self._np_random_seed)
        return self._random_actions

    @functools.cached_property
    def observation_space(self) -> TextSpace:  # type: ignore[override]
        return TextSpace()

    @functools.cached_property
    def action_space(self) -> TextSpace:  # type: ignore[override]
        return TextSpace()

    def __str__(self) -> str:
        return self.spec.id if self.spec else type(self).__name__

    def __repr__(self) -> str:
        inner: Any = self.unwrapped
        over = getattr(inner, "_over", None)
        stage = "" if over is None else ": episode over" if over else ": episode under way"
        return f"<{self}{stage if getattr(inner, '_begun', True) else ': not yet reset'}>"


def get_inner(env: Any, name: str) -> Any:
    """Return an attribute of an environment that may be inside Gymnasium's own wrappers.

    State and spawning are never looked up through Gymnasium's wrappers, which have a state of their own.
    """
    if isinstance(env, gymnasium.Wrapper) and name not in ("get_state", "set_state", "spawn"):
        return env.get_wrapper_attr(name)
    return getattr(env, name)


def inherited(name: str) -> Any:
    """Return a property of a wrapper: the attribute of the environment inside, until the wrapper's own is set."""

    def get(self: Any) -> Any:
        return self.__dict__[name] if name in self.__dict__ else get_inner(self.env, name)

    def set_own(self: Any, value: Any) -> None:
        self.__dict__[name] = value

    return property(get, set_own)


class Wrapper(Env):
    """An environment around another one, whose attributes and abilities it has unless it defines its own."""

    _own_spec: EnvSpec | None = None

    def __init__(self, env: Env):
        self.env = env

    if not TYPE_CHECKING:  # without a part: both are those of the environment inside, by __getattr__
        get_state = Ability("get_state", "does not save its state")
        set_state = Ability("set_state", "does not restore its state")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = get_inner(self.env, name)
        return {"get_state": self._whole_state, "set_state": self._restore}.get(name, found)

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None, **given: Any) -> ResetResult:
        """Reset the environment inside with the arguments that the caller gave.

        Args:
            seed: restarts the random stream; None continues it.
            options: passed on where there are any.
            given: whatever else the environment's own ``reset`` takes.
        """
        if options is not None:
            given["options"] = options
        return self.env.reset(seed=seed, **given)

    def step(self, action: str) -> StepResult:
        return self.env.step(action)

    def render(self) -> str:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _whole_state(self) -> dict[str, Any]:
        return {"env": self.env.get_state(), "wrapper": self._get_state()}

    def _restore(self, state: dict[str, Any]) -> None:
        self.env.set_state(state["env"])
        self._set_state(state["wrapper"])

    def _get_state(self) -> dict[str, Any]:
        return {}

    def _set_state(self, state: dict[str, Any]) -> None:
        pass

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        if self._own_spec is not None and not same_state:
            return self._own_spec.make(**kwargs)
        inner: Any = self.env
        if same_state and isinstance(inner, gymnasium.Wrapper):  # one of Gymnasium's, which cannot spawn
            return copy.deepcopy(self)
        twin = copy.copy(self)
        twin.env = self.env.spawn(same_state, **kwargs)
        twin._set_state(copy.deepcopy(self._get_state()))
        return twin

    @property  # type: ignore[override]
    def spec(self) -> EnvSpec | None:
        """Its own where :func:`rollenv.make` built it, else the inner environment's."""
        return self._own_spec or self.env.spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:
        self._own_spec = value

    env_id = inherited("env_id")
    entry_point = inherited("entry_point")
    reset_options = inherited("reset_options")
    metadata = inherited("metadata")
    render_mode = inherited("render_mode")
    picture = inherited("picture")
    observation_space = inherited("observation_space")
    action_space = inherited("action_space")
    action_rng = inherited("action_rng")
    seed_actions = inherited("seed_actions")
    seed_stream = inherited("seed_stream")
    randint = inherited("randint")

    @property
    def np_random(self) -> np.random.Generator:
        return self.env.np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self.env.np_random = value

    @property
    def np_random_seed(self) -> int:
        return self.env.np_random_seed

    @property
    def unwrapped(self) -> Env:
        return self.env.unwrapped  # type: ignore[return-value]

    def __str__(self) -> str:
        return f"{type(self).__name__}<{self.env}>"

"""The environment contract: :class:`Env` and :class:`Wrapper`; the errors are in :mod:`rollenv.core.errors`.

An environment is a :class:`gymnasium.Env` whose observations and actions are text. An author writes two hooks::

    class Guess(rollenv.Env):
        def _reset(self, options):
            self.secret = self.randint(10)
            return "Guess a number from 0 to 9.", {}

        def _step(self, action):
            right = action.strip() == str(self.secret)
            return ("Right." if right else "Wrong."), float(right), right, False, {"success": right}

and inherits seeding, the end-of-episode guard, the spaces and the default abilities. :func:`rollenv.check_env` tests
the contract.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from rollenv.core.errors import EpisodeOver, NoSuchAbility, UsageError, WrongResult, did_you_mean
from rollenv.core.pictures import pictures
from rollenv.core.spaces import TextSpace

if TYPE_CHECKING:
    from rollenv.core.drawing import Drawing

StepResult = tuple[str, float, bool, bool, dict[str, Any]]
ResetResult = tuple[str, dict[str, Any]]


#: Values that an environment may set; a method of the name would be taken for one.
_SETTINGS = frozenset(["players", "metadata", "render_mode", "reset_options", "picture_words", "spec", "env_id"])


class OptionalAbility:
    """Descriptor of an optional ability on :class:`Env`, which implements none.

    ``hasattr`` is false for an ability that a class does not have. A ``__getattr__`` would do the same, but makes every
    attribute lookup of a step a third slower in Python 3.11.

    Args:
        part: a hook of the author for a part of the ability: ``_get_state`` knows the author's own fields.
        whole: the method of :class:`Env` that completes the hook: ``_rollenv_whole_state`` adds the random streams. A
            class has the ability if it has the hook; a hook that is None takes away an inherited one.
    """

    def __init__(self, lacking: str, *, part: str = "", whole: str = ""):
        self.lacking, self.part, self.whole = lacking, part, whole

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, env: Any, owner: type) -> Any:
        """Return the method that completes the hook, or the one of a base class behind Env.

        Raises:
            NoSuchAbility: neither exists.
        """
        if env is None:
            return self
        if self.part and getattr(owner, self.part, None):
            return getattr(env, self.whole)
        found = getattr(super(Env, env), self.name, None)
        if found is None and self.name == "sample_random_action" and env._rollenv_listed:
            return lambda: env.action_rng.choice(env._rollenv_listed)
        if found is None:
            raise NoSuchAbility(f"{owner.__name__} {self.lacking}")
        return found


class Env(gymnasium.Env[str, str]):
    """A multi-turn text environment.

    An episode is a pure function of (constructor arguments, seed, actions): every draw comes from the private
    :attr:`np_random`, never from process-wide state. ``terminated`` means that the task ended, ``truncated`` that a
    limit did; they are never both set for one cause.

    Optional abilities, declared in the spec (:data:`rollenv.core.registry.ABILITIES`) and proved by the checker:
    :meth:`get_state` / :meth:`set_state`, :meth:`spawn`, :meth:`sample_random_action`, :meth:`oracle_action`,
    :meth:`state_key`.
    """

    metadata: dict[str, Any] = {"render_modes": ["text", "ansi", "svg", "rgb_array"], "render_fps": 4}
    #: "text"; :func:`rollenv.make` also takes "ansi", "svg" and "rgb_array", which draw the text by :attr:`picture`.
    render_mode: str | None = "text"
    #: Converts the text of :meth:`render` to a drawing; None if the environment has no board.
    picture: Callable[[str], Drawing | None] | None = None
    #: Patterns of what the text says of the board's symbols, and the words for a reader who sees a picture instead
    #: (``images="only"``).
    picture_words: Mapping[str, str] = {}
    #: The keys that ``reset(options=...)`` takes; any other is an error.
    reset_options: frozenset[str] = frozenset()
    #: Number of players. With several, info["player"] says who moves next (``rollout.validation`` has the keys).
    players: int = 1
    #: With several, the return of a player who fails (it raises, hangs or fills a context), and of each other.
    forfeit_returns: tuple[float, float] = (-1.0, 1.0)
    #: With several, the longest action in characters: what is beyond is cut, as others may have to read it.
    longest_move: int = 20_000

    #: Attributes that an episode changes in place: a copy of the environment copies these and shares the rest. None
    #: copies everything.
    _changed_in_place: tuple[str, ...] | None = None

    #: The id and entry point of the spec.
    env_id: str | None = None
    entry_point: str | Callable[..., Env] | None = None

    _rollenv_spec: Any = None
    _rollenv_own_spec: Any = None
    _rollenv_over = True
    _rollenv_begun = False
    _rollenv_random_actions: random.Random | None = None
    _rollenv_listed: Sequence[str] = ()
    #: Names that no class outside of rollenv may define, in addition to those that begin with ``_rollenv_``.
    _rollenv_reserved = frozenset([
        "seed_stream", "seed_actions", "action_rng", "own_spec",
        "np_random", "np_random_seed", "_np_random", "_np_random_seed",
    ])  # fmt: skip

    def __init_subclass__(cls, **given: Any) -> None:
        """Refuse a class that would replace what this one needs.

        Raises:
            UsageError: with the file and line of the definition.
        """
        super().__init_subclass__(**given)
        for name in () if cls.__module__.startswith("rollenv.") else vars(cls):
            data = name in _SETTINGS and inspect.isfunction(vars(cls)[name])
            if not (name.startswith("_rollenv_") or name in cls._rollenv_reserved or data):
                continue
            why = "is a value of rollenv.Env, not a method" if data else "is rollenv.Env's own"
            code = getattr(getattr(vars(cls)[name], "fget", vars(cls)[name]), "__code__", None)
            at = sys._getframe(1)
            while code is None and at.f_back and at.f_globals.get("__name__") != cls.__module__:
                at = at.f_back
            file, line = (code.co_filename, code.co_firstlineno) if code else (at.f_code.co_filename, at.f_lineno)
            raise UsageError(f"{file}, line {line}: {cls.__qualname__}.{name}: the name {why}; choose another")

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

    @property
    def spec(self) -> Any:
        """The :class:`rollenv.EnvSpec`, set by :func:`rollenv.make`; Gymnasium's, once ``gymnasium.make`` set that."""
        return self._rollenv_spec

    @spec.setter
    def spec(self, value: Any) -> None:
        self._rollenv_spec = value
        if not isinstance(value, gymnasium.envs.registration.EnvSpec):
            self._rollenv_own_spec = value

    @property
    def own_spec(self) -> Any:
        """The :class:`rollenv.EnvSpec` by which it was built, whatever Gymnasium has set; None if there is none."""
        return self._rollenv_own_spec

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None) -> ResetResult:
        """Start an episode and return ``(observation, info)``.

        Args:
            seed: restarts the private random stream; without one, the stream continues.
            options: settings of this episode, on top of the spec's; the keys are :attr:`reset_options`.

        Raises:
            UsageError: for an option that the environment does not know.
        """
        given = self._rollenv_checked_options(options)
        if seed is not None:
            self.seed_stream(seed)
        self._rollenv_over = True
        observation, info = self._rollenv_shaped(self._reset(given), "observation", "info")
        if "images" in info:
            info = _with_pictures(info)
        if self.players > 1:
            info = {**info, "players": self.players, "forfeit": list(self.forfeit_returns)}
        self._rollenv_over, self._rollenv_begun = False, True
        self._rollenv_listed = _listed(info)
        return observation, info

    def _rollenv_shaped(self, result: Any, *parts: str) -> Any:
        """Return what the author's method did, if it has these parts, the last a dict."""
        if not isinstance(result, tuple | list) or len(result) != len(parts) or not isinstance(result[-1], dict):
            kinds = [type(x).__name__ for x in result] if isinstance(result, tuple | list) else type(result).__name__
            raise WrongResult(f"{self} returned {kinds}; return ({', '.join(parts)}), where info is a dict")
        return result

    def _rollenv_checked_options(self, options: dict[str, Any] | None) -> dict[str, Any]:
        given = {**(self.own_spec.options if self.own_spec else {}), **(options or {})}
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
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; call reset() to start the next one")
        if not isinstance(action, str):
            raise TypeError(f"{self}: an action must be a str, not {type(action).__name__}")
        result = self._step(action[: self.longest_move] if (several := self.players > 1) else action)
        if type(result) is not tuple or len(result) != 5 or type(result[4]) is not dict:  # else spare the call
            self._rollenv_shaped(result, "observation", "reward", "terminated", "truncated", "info")
        observation, reward, terminated, truncated, info = result
        self._rollenv_over = terminated or truncated
        self._rollenv_listed = _listed(info) if "actions" in info else ()
        if "images" in info:
            info = _with_pictures(info)
        if several:
            info = {**info, "players": self.players}
        return observation, reward, terminated, truncated, info

    def render(self) -> str:
        """The current state as text, for people."""
        return ""

    def alike_key(self) -> str:
        """Return, after a reset, a text that is equal for tasks that are alike: who trained on one knows the other.

        So are the same goal with another seed, a board that is turned or mirrored, a question with other numbers. By
        default only equal tasks are alike. :mod:`rollenv.panels` keeps what is alike out of training.
        """
        return ""

    def close(self) -> None:
        """Release every resource; calling it again does nothing."""

    # -- abilities ---------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:  # a class has the abilities that it defines (get_state by _get_state); None removes one

        def get_state(self) -> dict[str, Any]:
            """Return everything that the rest of the episode depends on, as JSON data, with both random streams."""
            ...

        def set_state(self, state: dict[str, Any]) -> None:
            """Restore a state that :meth:`get_state` of the same kind of environment returned."""

        def sample_random_action(self) -> str:
            """Return a random action that parses. Its own random stream keeps the episode unchanged.

            By default one of ``info["actions"]``, if the last result had them.
            """
            ...

        def oracle_action(self) -> str:
            """Return an expert's next action.

            Raises:
                Unsolvable: earlier actions made the task impossible.
            """
            ...

        def state_key(self) -> str:
            """Return a text that is equal for two states if and only if the states are equal (GiGPO's anchor)."""
            ...

        def num_tasks(self) -> int:
            """Return the number of tasks for ``reset(options={"index": i})``, if the spec is ``indexed``."""
            ...

        def _get_state(self) -> dict[str, Any]: ...

        def _set_state(self, state: dict[str, Any]) -> None: ...

    else:
        get_state = OptionalAbility("does not save its state", part="_get_state", whole="_rollenv_whole_state")
        set_state = OptionalAbility("does not restore its state", part="_set_state", whole="_rollenv_restore")
        sample_random_action = OptionalAbility(
            "has no random actions: play another agent or define sample_random_action"
        )
        oracle_action = OptionalAbility("has no oracle: play another agent or define oracle_action")
        state_key = OptionalAbility("has no state key")
        num_tasks = OptionalAbility("has no numbered tasks")

    def _rollenv_whole_state(self) -> dict[str, Any]:
        version, words, gauss = self.action_rng.getstate()
        return {
            "over": self._rollenv_over,
            "rng": self.np_random.bit_generator.state,
            "actions": [version, list(words), gauss],
            "env": self._get_state(),
            **({"listed": list(self._rollenv_listed)} if self._rollenv_listed else {}),
        }

    def _rollenv_restore(self, state: dict[str, Any]) -> None:
        self._np_random = np.random.Generator(np.random.PCG64(0))
        self._np_random.bit_generator.state = state["rng"]
        version, words, gauss = state["actions"]
        self._rollenv_random_actions = random.Random()
        self._rollenv_random_actions.setstate((version, tuple(words), gauss))
        self._set_state(state["env"])
        self._rollenv_over, self._rollenv_begun = state["over"], True
        self._rollenv_listed = state.get("listed", ())

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        """Return a new, independent environment of the same kind, in the same state or not yet reset.

        Args:
            same_state: continue from the current state, with a copy of the random stream.
            kwargs: constructor arguments to override; not together with ``same_state``.

        Raises:
            UsageError: ``kwargs`` together with ``same_state``, or the environment was not built by
                :func:`rollenv.make`.
        """
        if same_state:
            if kwargs:
                raise UsageError(f"{self}: spawn(same_state=True) takes no other arguments, got {sorted(kwargs)}")
            return self._rollenv_twin()
        if self.own_spec is None:
            raise UsageError(f"{self}: only an environment that rollenv.make() built can spawn a fresh one")
        fresh: Env = self.own_spec.make(**kwargs)
        return fresh

    def _rollenv_twin(self) -> Env:
        """Copy the environment; the copy shares only what no episode changes."""
        if self._changed_in_place is None:
            return copy.deepcopy(self)
        twin = copy.copy(self)
        for name in self._changed_in_place:
            setattr(twin, name, copy.deepcopy(getattr(self, name)))
        twin._np_random = np.random.Generator(np.random.PCG64(0))
        twin._np_random.bit_generator.state = self.np_random.bit_generator.state
        twin._rollenv_random_actions = copy.copy(self._rollenv_random_actions)
        return twin

    def seed_stream(self, seed: int) -> None:
        """Restart the private random stream without a reset."""
        try:
            self._np_random, self._np_random_seed = seeding.np_random(operator.index(seed))
        except (TypeError, gymnasium.error.Error) as error:
            raise UsageError(f"{self}: a seed must be a non-negative integer, not {seed!r}") from error
        self._rollenv_random_actions = None

    # -- help for authors --------------------------------------------------------------------------------------------

    def randint(self, n: int) -> int:
        """Draw from 0 .. n - 1 (faster than ``np_random.integers``; the bias is below n / 2**53)."""
        return int(self.np_random.random() * n)

    def seed_actions(self, seed: int) -> None:
        """Restart the stream of :meth:`sample_random_action`, so that players of the same episode differ."""
        self._rollenv_random_actions = random.Random(seed)

    @property
    def action_rng(self) -> random.Random:
        """The stream of :meth:`sample_random_action`: seeded like :attr:`np_random`, but separate from it."""
        if self._rollenv_random_actions is None:
            self._rollenv_random_actions = random.Random(self._np_random_seed)
        return self._rollenv_random_actions

    @functools.cached_property
    def observation_space(self) -> TextSpace:  # type: ignore[override]
        return TextSpace()

    @functools.cached_property
    def action_space(self) -> TextSpace:  # type: ignore[override]
        return TextSpace()

    def __str__(self) -> str:
        return self.spec.id if self.spec else type(self).__name__

    def __repr__(self) -> str:
        return f"<{': '.join(filter(None, [str(self), stage_of(self)]))}>"


def _with_pictures(info: dict[str, Any]) -> dict[str, Any]:
    try:
        return {**info, "images": list(pictures(info))}
    except UsageError as error:
        raise WrongResult(f"info['images']: {error}") from error


def _listed(info: Any) -> Sequence[str]:
    return info["actions"] if isinstance(info.get("actions"), list | tuple) else ()


def stage_of(env: Env) -> str:
    """Return ``not yet reset``, ``episode under way`` or ``episode over``; empty if the class does not say."""
    inner: Any = env.unwrapped
    if not getattr(inner, "_rollenv_begun", True):
        return "not yet reset"
    over = getattr(inner, "_rollenv_over", None)
    if over is None:
        return ""
    return "episode over" if over else "episode under way"


def get_inner(env: Any, name: str) -> Any:
    """Return an attribute of an environment, also through Gymnasium's own wrappers.

    Those have a state of their own, so state and spawning are never looked up through them.
    """
    if isinstance(env, gymnasium.Wrapper) and name not in ("get_state", "set_state", "spawn"):
        return env.get_wrapper_attr(name)
    return getattr(env, name)


def inherited(name: str) -> Any:
    """Return a property of a wrapper that falls back to the inner environment until it is set on the wrapper."""

    def get(self: Any) -> Any:
        return self.__dict__[name] if name in self.__dict__ else get_inner(self.env, name)

    def set_own(self: Any, value: Any) -> None:
        self.__dict__[name] = value

    return property(get, set_own)


class Wrapper(Env):
    """An environment around another one; attributes and abilities that it does not define are the inner one's.

    What :class:`Env` defines is :func:`inherited` by name, and ``__getattr__`` finds the rest.
    """

    def __init__(self, env: Env):
        self.env = env

    if not TYPE_CHECKING:  # a wrapper has these abilities if the inner environment does

        @property
        def get_state(self) -> Callable[..., Any]:
            """Return the method that adds the wrapper's own state to the inner environment's."""
            return self.env.get_state and self._rollenv_whole_state

        @property
        def set_state(self) -> Callable[..., Any]:
            """Return the method that restores both."""
            return self.env.set_state and self._rollenv_restore

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return get_inner(self.env, name)

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None, **given: Any) -> ResetResult:
        """Reset the inner environment with the same arguments; ``options`` only if they are set."""
        if options is not None:
            given["options"] = options
        return self.env.reset(seed=seed, **given)

    def step(self, action: str) -> StepResult:
        return self.env.step(action)

    def render(self) -> str:
        return self.env.render()

    def alike_key(self) -> str:
        return self.env.alike_key()

    def close(self) -> None:
        self.env.close()

    def _rollenv_whole_state(self) -> dict[str, Any]:
        return {"env": self.env.get_state(), "wrapper": self._get_state()}

    def _rollenv_restore(self, state: dict[str, Any]) -> None:
        self.env.set_state(state["env"])
        self._set_state(state["wrapper"])

    def _get_state(self) -> dict[str, Any]:
        return {}

    def _set_state(self, state: dict[str, Any]) -> None:
        pass

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Env:
        if self._rollenv_own_spec is not None and not same_state:
            fresh: Env = self._rollenv_own_spec.make(**kwargs)
            return fresh
        inner: Any = self.env
        if same_state and isinstance(inner, gymnasium.Wrapper):  # Gymnasium's wrappers cannot spawn
            return copy.deepcopy(self)
        twin = copy.copy(self)
        twin.env = self.env.spawn(same_state, **kwargs)
        twin._set_state(copy.deepcopy(self._get_state()))
        return twin

    @property
    def spec(self) -> Any:
        """Gymnasium's spec, the wrapper's own if :func:`rollenv.make` built it, or the inner environment's."""
        inner = self.env.spec
        return inner if isinstance(inner, gymnasium.envs.registration.EnvSpec) else self._rollenv_own_spec or inner

    @spec.setter
    def spec(self, value: Any) -> None:
        self._rollenv_own_spec = value

    @property
    def own_spec(self) -> Any:
        return self._rollenv_own_spec or get_inner(self.env, "own_spec")

    env_id = inherited("env_id")
    entry_point = inherited("entry_point")
    reset_options = inherited("reset_options")
    players = inherited("players")
    forfeit_returns = inherited("forfeit_returns")
    longest_move = inherited("longest_move")
    metadata = inherited("metadata")
    render_mode = inherited("render_mode")
    picture = inherited("picture")
    picture_words = inherited("picture_words")
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

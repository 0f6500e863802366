"""The description of an environment before it is built: :class:`EnvSpec`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollenv.core.arguments import checked_arguments
from rollenv.core.env import Env
from rollenv.core.errors import BadEntryPoint, MissingData, MissingExtra, UsageError, did_you_mean
from rollenv.core.needs import Need
from rollenv.core.parts import part
from rollenv.core.plugins import function_at
from rollenv.core.rendered import BoardImages, RenderedEnv

#: The modes of ``render()``.
RENDER_MODES = ("text", "ansi", "svg", "rgb_array", None)

#: Names of wrappers and the settings of each.
Wrappers = Mapping[str, Mapping[str, Any]]


@dataclass(repr=False)
class EnvSpec:
    """The description of an environment: how to build it, and its promises.

    Picklable if its entry point is a string.
    """

    id: str
    entry_point: str | Callable[..., Env]
    """``"module.path:ClassName"`` or any callable that returns an environment."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    abilities: frozenset[str] = frozenset()
    needs: tuple[Need, ...] = ()
    """Packages, data files or servers that it needs. Empty if a plain install is enough."""
    nondeterministic: bool = False
    oracle_success: float = 0.99
    """The share of episodes that the oracle wins (lower if chance decides)."""
    indexed: bool = False
    """Its ``env.num_tasks()`` tasks are numbered: ``reset(options={"index": i})`` starts one of them."""
    wrappers: Wrappers = field(default_factory=dict)
    """Wrappers with their settings, innermost first; see :func:`rollenv.core.wrappers.wrap`."""
    levels: tuple[Mapping[str, Any], ...] = ()
    """Constructor arguments by difficulty, easy ones first; :class:`rollenv.core.curriculum.Curriculum` plays them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Default reset options of every episode."""
    additional_wrappers: tuple[Any, ...] = field(default=(), compare=False)
    """Gymnasium's own wrappers; Gymnasium fills this in on copies."""
    summary: str = ""
    """One-line description; by default the first line of the class's docstring (:func:`rollenv.core.cards.summary`)."""
    answer_tokens: int = 64
    """Number of tokens that an answer needs: the limit for a local model for which nothing else says one."""

    def __repr__(self) -> str:
        kwargs = ", ".join(f"{name}={value!r:.40}" for name, value in self.kwargs.items())
        needs = f", needs {', '.join(map(str, self.missing))}" if self.missing else ""
        return f"<EnvSpec {self.id}{kwargs and f' ({kwargs})'}{needs}>"

    @property
    def namespace(self) -> str:
        return self.id.partition(":")[0]

    @property
    def is_own(self) -> bool:
        """True if rollenv registered it, not another package."""
        return str(self.entry_point).startswith("rollenv.")

    @property
    def missing(self) -> tuple[Need, ...]:
        """The needs that are not met on this machine. A need given as text cannot be checked and counts as missing."""
        return tuple(need for need in self.needs if isinstance(need, str) or not need.here)

    def make(self, **kwargs: Any) -> Env:
        """Build the environment; ``kwargs`` override the spec's.

        ``seed`` starts the private random stream, and is passed to constructors with a parameter ``seed``.
        ``render_mode`` is the format of ``render()``: ``text`` (the default), ``ansi`` (in a terminal's colours),
        ``svg``, ``rgb_array`` or None. ``images`` shows the board as a picture in observations: ``only``, or ``also``
        beside its text. ``tile`` is the size of a drawn cell in pixels.
        """
        # Arguments are merged and checked; the factory builds the environment, which learns its spec and its seed;
        # what shows it goes around it: pictures of the board, the spec's wrappers, a renderer. Each layer has a spec of
        # its own, whose wrappers are those inside it, so that `env.spec.make()` builds the layer again.
        factory = load_entry_point(self.entry_point, self.id)
        merged = {**self.kwargs, **(checked_arguments(self.id, factory, kwargs) if kwargs else {})}
        seed = merged.pop("seed", None)
        mode = merged.pop("render_mode", "text") if not takes(factory, "render_mode") else "text"
        if mode not in RENDER_MODES:
            raise UsageError(f"{self.id} has no render_mode {mode!r}; choose {', '.join(map(repr, RENDER_MODES))}")
        pictured = "images" in merged and not takes(factory, "images")
        images = merged.pop("images") if pictured else None
        tile = {"tile": merged.pop("tile")} if "tile" in merged and (pictured or mode == "rgb_array") else {}
        try:
            env = factory(**merged, **({"seed": seed} if seed is not None and takes(factory, "seed") else {}))
        except TypeError as error:
            _check_arguments(self.id, factory, merged, error)
            if kwargs:
                given = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
                raise UsageError(f"{self.id} cannot be made with {given}: {error}") from error
            raise
        if not isinstance(env, Env):
            raise UsageError(f"{self.id}: its entry point returned {type(env).__name__} instead of a rollenv.Env")
        if mode is None:
            env.unwrapped.render_mode = None
        env.spec = replace(self, kwargs=merged, wrappers={})
        if env.unwrapped.spec is None:  # the factory returned a wrapper
            env.unwrapped.spec = env.spec
        if env.env_id is None:
            env.unwrapped.env_id, env.unwrapped.entry_point = self.id, self.entry_point  # type: ignore[attr-defined]
        if seed is not None:
            env.seed_stream(seed)
        if images is not None:
            merged |= {"images": images, **tile}
            env = _closing(env, BoardImages, images, **tile)
            env.spec = replace(self, kwargs=merged, wrappers={})
        if self.wrappers:
            env = wrap(env, self.wrappers)
            env.spec = replace(self, kwargs=merged)
        if mode in ("ansi", "svg", "rgb_array"):
            env = _closing(env, RenderedEnv, mode, **(tile if mode == "rgb_array" else {}))
        return env

    def accepts(self, kwargs: Mapping[str, Any]) -> bool:
        """Return True if the environment can be built with these constructor arguments and the data for them."""
        try:
            self.make(**kwargs).close()
        except (UsageError, MissingData):
            return False
        return True


def wrap(env: Env, wrappers: Wrappers) -> Env:
    """Apply wrappers to an environment, innermost first; close it if one of them fails."""
    return _closing(env, part("wrap"), wrappers)


def _closing(env: Env, wrapper: Callable[..., Env], *args: Any, **given: Any) -> Env:
    try:
        return wrapper(env, *args, **given)
    except BaseException:
        with contextlib.suppress(Exception):
            env.close()
        raise


def takes(factory: Callable[..., Any], name: str) -> bool:
    """Return whether a constructor has a parameter of a given name."""
    try:
        return name in (_arguments(factory) if isinstance(factory, type) else inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some builtins have no signature
        return False


@functools.lru_cache(maxsize=1024)
def _arguments(cls: type) -> frozenset[str]:
    """Return the parameters of a class, cached: reading them costs as much as building a small environment."""
    return frozenset(inspect.signature(cls).parameters)


def load_entry_point(entry_point: str | Callable[..., Env], env_id: str) -> Callable[..., Env]:
    """Import the class or function that builds an environment.

    Args:
        entry_point: ``module:name`` or ``file.py:name``, or a callable, which is returned unchanged.

    Raises:
        BadEntryPoint: it cannot be imported.
        MissingExtra: it needs a package that is not installed.
    """
    if callable(entry_point):
        return entry_point
    module, _, name = entry_point.rpartition(":")
    if not module.endswith(".py"):
        module, _, name = entry_point.partition(":")
    try:
        if module.endswith(".py") or (module not in sys.modules and ":" not in name):
            return function_at(entry_point, "its entry point")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except MissingExtra:
        raise
    except UsageError as error:
        raise BadEntryPoint(f"{env_id}: {error}") from error
    except (ImportError, AttributeError) as error:
        raise BadEntryPoint(f"{env_id}: its entry point {entry_point!r} cannot be loaded: {error}") from error


def _check_arguments(env_id: str, factory: Callable[..., Env], kwargs: dict[str, Any], error: TypeError) -> None:
    """Turn a TypeError about an unknown or missing argument into a UsageError that names the argument."""
    parameters = _parameters(factory)
    unknown = [name for name in kwargs if f"unexpected keyword argument {name!r}" in str(error)]
    if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(factory).parameters.values()):
        unknown += [name for name in kwargs if name not in parameters]
    if unknown:
        otherwise = f"choose from {', '.join(map(repr, sorted(parameters)))}" if parameters else "it takes none"
        hint = did_you_mean(unknown[0], parameters, otherwise, most=3, cutoff=0.5, form=repr)
        raise UsageError(f"{env_id} takes no argument {unknown[0]!r}; {hint}") from error
    lacking = [
        name
        for name, p in inspect.signature(factory).parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in kwargs
    ]
    if lacking:
        raise UsageError(f"{env_id} has no default for {', '.join(map(repr, lacking))}; give a value") from error


def _parameters(factory: Callable[..., Env]) -> set[str]:
    """Return the parameters of a constructor, and those of base classes to which it passes ``**kwargs``."""
    named: set[str] = set()
    for each in factory.__mro__ if isinstance(factory, type) else (factory,):
        parameters = inspect.signature(each).parameters
        named |= {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break
    return named

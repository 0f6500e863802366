"""Environment ids: :func:`register`, :func:`make`, :func:`spec`, :func:`list_envs`.

An id reads ``namespace:Name-vN[-variant]``, as in ``game:Sokoban-v0-easy``. rollenv's own environments register
themselves when an id is first looked up; other packages add theirs through the entry point group ``rollenv.envs``, each
entry naming a function without arguments that calls :func:`register`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import inspect
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollenv.core import BadEntryPoint, Env, MissingExtra, UnknownEnv, UsageError

#: What a spec may declare; the checker proves what is declared.
ABILITIES = frozenset({"state", "spawn", "random_action", "oracle", "state_key"})

ENTRY_POINT_GROUP = "rollenv.envs"
_ID = re.compile(r"[A-Za-z0-9_.]+:[A-Za-z0-9_.-]+")


@dataclass
class EnvSpec:
    """How to build an environment, and what it promises. Picklable when its entry point is a string."""

    id: str
    entry_point: str | Callable[..., Env]
    """``"module.path:ClassName"`` or any callable that returns an environment."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    abilities: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()
    """What must be there for it to work: an extra, a data set, a server. Empty if a bare install is enough."""
    nondeterministic: bool = False
    oracle_success: float = 0.99
    """The share of episodes that the oracle wins (lower where chance decides)."""
    indexed: bool = False
    """Its ``env.num_tasks()`` tasks are numbered: ``reset(options={"index": i})`` starts one of them."""
    wrappers: Wrappers = field(default_factory=dict)
    """What is put around the environment, the first innermost, with settings; see :func:`rollenv.wrappers.wrap`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Reset options of every episode, where the caller gives no others."""
    additional_wrappers: tuple[Any, ...] = field(default=(), compare=False)
    """Gymnasium notes its own wrappers here, in copies."""

    @property
    def namespace(self) -> str:
        return self.id.partition(":")[0]

    def make(self, **kwargs: Any) -> Env:
        """Build the environment; ``kwargs`` override the spec's.

        ``seed`` starts its private random stream, and goes to a constructor that names an argument ``seed``.
        ``render_mode`` is Gymnasium's: ``ansi`` or None.
        """
        merged = {**self.kwargs, **kwargs}
        seed = merged.pop("seed", None)
        factory = load_entry_point(self.entry_point, self.id)
        mode = merged.pop("render_mode", "ansi") if not takes(factory, "render_mode") else "ansi"
        if mode not in ("ansi", None):
            raise UsageError(f"{self.id} has no render_mode {mode!r}; there are 'ansi' and None")
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
            env.unwrapped.spec = env.spec  # type: ignore[assignment]
        if seed is not None:
            env.seed_stream(seed)
        if self.wrappers:
            env = wrap(env, self.wrappers)
            env.spec = replace(self, kwargs=merged)
        return env


#: Names of wrappers and the settings of each.
Wrappers = Mapping[str, Mapping[str, Any]]

ENV_REGISTRY: dict[str, EnvSpec] = {}


def register(
    env_id: str,
    entry_point: str | Callable[..., Env],
    *,
    abilities: Iterable[str] = (),
    needs: Iterable[str] = (),
    nondeterministic: bool = False,
    oracle_success: float = 0.99,
    indexed: bool = False,
    wrappers: str | Iterable[str] | Wrappers = (),
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    """Make ``env_id`` known to :func:`make`.

    Args:
        env_id: ``namespace:Name-vN[-variant]``.
        entry_point: ``"module.path:ClassName"``, imported on first use, or a callable.
        abilities: which of :data:`ABILITIES` the environment has.
        needs: extras, data sets or servers without which it cannot be made.
        nondeterministic: an episode depends on something outside (a live server, say).
        oracle_success: the share of episodes that the oracle wins.
        indexed: ``env.num_tasks()`` tasks are numbered, and ``reset(options={"index": i})`` starts one of them.
        wrappers: put around the environment, the first innermost: names of
            :data:`rollenv.wrappers.WRAPPER_FACTORY` or ``"module:function"``, separated by commas, in a list, or as
            a mapping to the settings of each.
        options: reset options of every episode, where the caller gives no others.
        kwargs: arguments for the constructor.

    Raises:
        UsageError: for an id that is taken or malformed, or an unknown ability.
    """
    _OWN.load()
    registry = ENV_REGISTRY if _OWN.loaded else _OWN.staged
    if not isinstance(env_id, str) or not _ID.fullmatch(env_id):
        raise UsageError(f"cannot register {env_id!r}: an id reads namespace:Name-vN[-variant]")
    if env_id in registry:
        raise UsageError(f"cannot register {env_id!r}: it is taken by {registry[env_id].entry_point!r}")
    if not callable(entry_point) and not (isinstance(entry_point, str) and ":" in entry_point):
        raise UsageError(f"cannot register {env_id!r}: {entry_point!r} is neither a callable nor 'module:name'")
    abilities, needs = _names(abilities), _names(needs)
    if unknown := sorted(set(abilities) - ABILITIES):
        raise UsageError(f"cannot register {env_id!r}: unknown ability {unknown[0]!r}; there are {sorted(ABILITIES)}")
    registry[env_id] = EnvSpec(
        env_id,
        entry_point,
        kwargs,
        frozenset(abilities),
        tuple(needs),
        nondeterministic,
        oracle_success,
        indexed,
        named_wrappers(wrappers),
        dict(options or {}),
    )


def spec(env_id: str) -> EnvSpec:
    """The spec registered under ``env_id``.

    Raises:
        UnknownEnv: with the nearest ids, if there is none.
    """
    if env_id not in ENV_REGISTRY:
        _OWN.load()
    if env_id not in ENV_REGISTRY:
        _PLUGINS.load()
    if env_id not in ENV_REGISTRY:
        raise UnknownEnv(_unknown_message(env_id))
    return ENV_REGISTRY[env_id]


def make(env_id: str | EnvSpec, **kwargs: Any) -> Env:
    """Build an environment.

    Args:
        env_id: a registered id, or a spec.
        kwargs: override the registered constructor arguments; ``seed`` starts the private random stream.

    Raises:
        UnknownEnv: no such id; the message names the nearest ones.
        UsageError: an argument that the environment does not take.
        MissingExtra: the environment needs a package that is not installed.
    """
    return (env_id if isinstance(env_id, EnvSpec) else spec(env_id)).make(**kwargs)


def list_envs(pattern: str = "") -> list[EnvSpec]:
    """All specs whose id contains ``pattern``, sorted by id."""
    _OWN.load()
    _PLUGINS.load()
    return sorted((s for s in list(ENV_REGISTRY.values()) if pattern.lower() in s.id.lower()), key=lambda s: s.id)


def print_envs() -> None:
    """Print all ids, as GEM does; ``rollenv list`` shows more of each."""
    for env_spec in list_envs():
        print(env_spec.id)  # noqa: T201


class _Once:
    """Something that is loaded when it is first needed; threads that need it meanwhile wait for it."""

    def __init__(self, load: Callable[[], None]):
        self._load = load
        self._lock = threading.RLock()
        self._loading = False
        self.loaded = False
        self.staged: dict[str, EnvSpec] = {}
        """What has been registered while it loads; nobody sees a half of it."""

    def load(self) -> None:
        if self.loaded:
            return
        with self._lock:
            if self.loaded or self._loading:  # loading: it registers its own ids just now
                return
            self._loading = True
            try:
                self._load()
                for env_id, env_spec in self.staged.items():
                    ENV_REGISTRY.setdefault(env_id, env_spec)
                self.loaded = True
            finally:
                self._loading = False
                self.staged = {}


def _load_own() -> None:
    importlib.import_module("rollenv.envs").register_all()


def _load_plugins() -> None:
    """Third-party packages; one that is broken is reported and does not hide the others."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry.load()()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too
            warnings.warn(f"the environments of entry point {entry.value!r} were not loaded: {error!r}", stacklevel=2)


_OWN, _PLUGINS = _Once(_load_own), _Once(_load_plugins)


def named_wrappers(wrappers: str | Iterable[str] | Wrappers) -> dict[str, dict[str, Any]]:
    """Wrappers in any of the forms that :func:`register` takes, as a mapping from names to settings."""
    if isinstance(wrappers, Mapping):
        return {name: dict(settings) for name, settings in wrappers.items()}
    return {name: {} for name in _names(wrappers)}


def _names(names: str | Iterable[str]) -> list[str]:
    """Names in a list, or separated by commas."""
    each = names.split(",") if isinstance(names, str) else list(names)
    if wrong := [name for name in each if not isinstance(name, str)]:
        raise UsageError(f"a list of names is expected, and {wrong[0]!r} is no name")
    return [name.strip() for name in each if name.strip()]


def wrap(env: Env, wrappers: Wrappers) -> Env:
    """The environment inside its wrappers; closed if one of them fails."""
    try:
        wrapped: Env = importlib.import_module("rollenv.wrappers.factory").wrap(env, wrappers)
        return wrapped
    except BaseException:
        with contextlib.suppress(Exception):
            env.close()
        raise


def takes(factory: Callable[..., Any], name: str) -> bool:
    """Whether a constructor names an argument."""
    try:
        return name in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some builtins do not say what they take
        return False


def load_entry_point(entry_point: str | Callable[..., Env], env_id: str) -> Callable[..., Env]:
    """What builds an environment.

    Raises:
        BadEntryPoint: it cannot be imported.
        MissingExtra: it needs a package that is not installed.
    """
    if callable(entry_point):
        return entry_point
    module, _, name = entry_point.partition(":")
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except MissingExtra:
        raise
    except (ImportError, AttributeError) as error:
        raise BadEntryPoint(f"{env_id}: cannot load its entry point {entry_point!r}: {error}") from error


def _check_arguments(env_id: str, factory: Callable[..., Env], kwargs: dict[str, Any], error: TypeError) -> None:
    """Turn a TypeError about an argument's name into one that says which names there are."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in kwargs:
        if name not in parameters:
            raise UsageError(f"{env_id} takes no argument {name!r}{_nearest(name, parameters)}") from error


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; there are {', '.join(map(repr, known))}"


def _unknown_message(env_id: str) -> str:
    known = sorted(ENV_REGISTRY)
    near = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
    near = near or [k for k in known if k.partition(":")[2].partition("-")[0].lower() in env_id.lower()][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "`rollenv list` shows them all"
    return f"no environment is registered as {env_id!r}; {hint}"

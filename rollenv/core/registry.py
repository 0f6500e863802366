"""Environment ids: :func:`register`, :func:`make`, :func:`spec`, :func:`list_envs`.

An id reads ``namespace:Name-vN[-variant]``, as in ``game:Sokoban-v0-easy``. rollenv's own environments register
themselves when an id is first looked up; other packages add theirs through the entry point group ``rollenv.envs``, each
entry naming a function without arguments that calls :func:`register`. A namespace whose ids name a folder, a server or
a package, such as ``harbor:PATH``, is an entry of ``rollenv.namespaces``: a function from an id to its spec. A class
that nobody registered has the id ``module:Class`` or ``file.py:Class``.
"""

from __future__ import annotations

import inspect
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rollenv.core.env import Env, OptionalAbility
from rollenv.core.env_spec import EnvSpec, Wrappers, load_entry_point
from rollenv.core.errors import UnknownEnv, UsageError, did_you_mean
from rollenv.core.needs import Need
from rollenv.core.parts import part
from rollenv.core.plugins import entry_points, is_module, load

#: Prefixes of the ids of served environments.
_SERVED = ("rollenv+ws://", "rollenv+wss://")

#: Abilities that a spec may declare; the checker proves those declared.
ABILITIES = frozenset({"state", "spawn", "random_action", "oracle", "state_key"})

#: Abilities that a class shows by its methods; the others must be declared.
_METHODS = {
    "state": ("get_state", "set_state"),
    "random_action": ("sample_random_action",),
    "oracle": ("oracle_action",),
    "state_key": ("state_key",),
}

ENTRY_POINT_GROUP = "rollenv.envs"
#: Functions from an id to its spec, by the id's namespace.
NAMESPACES = "rollenv.namespaces"
#: The namespace of files of questions.
DATA = "data"
_ID = re.compile(r"[A-Za-z0-9_.]+:[A-Za-z0-9_.-]+")


ENV_REGISTRY: dict[str, EnvSpec] = {}


def register(
    env_id: str,
    entry_point: str | Callable[..., Env],
    *,
    abilities: Iterable[str] = (),
    needs: Iterable[Need] = (),
    nondeterministic: bool = False,
    oracle_success: float = 0.99,
    indexed: bool = False,
    wrappers: str | Iterable[str] | Wrappers = (),
    levels: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]] = (),
    options: Mapping[str, Any] | None = None,
    summary: str = "",
    answer_tokens: int = 64,
    **kwargs: Any,
) -> None:
    """Register an id for :func:`make`.

    Args:
        env_id: the new id, in the form ``namespace:Name-vN[-variant]``.
        entry_point: ``"module.path:ClassName"``, imported on first use, or a callable.
        abilities: which of :data:`ABILITIES` the environment has.
        needs: packages, data files or servers that it needs (:mod:`rollenv.core.needs`).
        nondeterministic: episodes depend on something outside (a live server, say).
        oracle_success: the share of episodes that the oracle wins.
        indexed: ``env.num_tasks()`` tasks are numbered, and ``reset(options={"index": i})`` starts one of them.
        wrappers: wrappers around the environment, innermost first: names of
            :data:`rollenv.core.wrappers.WRAPPER_FACTORY` or ``"module:function"``, separated by commas, in a list, or
            as a mapping to their settings.
        levels: constructor arguments by difficulty, easy ones first: a list of mappings, or a mapping from arguments to
            lists (shorter lists repeat their last value).
        options: default reset options of every episode.
        summary: one-line description; by default the first line of the class's docstring.
        answer_tokens: how many tokens an answer needs, thoughts before it included.

    Raises:
        UsageError: for an id that is taken or malformed, or an unknown ability.
    """
    _OWN.load()
    registry = ENV_REGISTRY if _OWN.loaded else _OWN.staged
    if not isinstance(env_id, str) or not _ID.fullmatch(env_id):
        raise UsageError(f"cannot register {env_id!r}: an id has the form namespace:Name-vN[-variant]")
    if env_id in registry:
        raise UsageError(f"cannot register {env_id!r}: it is already taken by {registry[env_id].entry_point!r}")
    if not callable(entry_point) and not (isinstance(entry_point, str) and ":" in entry_point):
        raise UsageError(f"cannot register {env_id!r}: {entry_point!r} is neither a callable nor 'module:name'")
    abilities, needs = _names(abilities), (needs,) if isinstance(needs, str) else tuple(needs)
    if unknown := sorted(set(abilities) - ABILITIES):
        raise UsageError(f"cannot register {env_id!r}: unknown ability {unknown[0]!r}; choose from {sorted(ABILITIES)}")
    registry[env_id] = EnvSpec(
        env_id,
        entry_point,
        kwargs,
        frozenset(abilities),
        needs,
        nondeterministic,
        oracle_success,
        indexed,
        named_wrappers(wrappers),
        levels_of(levels, env_id),
        dict(options or {}),
        summary=summary,
        answer_tokens=answer_tokens,
    )


def levels_of(
    levels: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]], env_id: str
) -> tuple[dict[str, Any], ...]:
    """Normalise levels, in either form of :func:`register`.

    Returns:
        One dictionary of arguments per level, the easiest first.
    """
    if isinstance(levels, Mapping):
        for name, values in levels.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise UsageError(f"the levels of {env_id}: {name!r} needs a list of values, got {values!r}")
        longest = max(map(len, levels.values()), default=0)
        return tuple({name: each[min(i, len(each) - 1)] for name, each in levels.items()} for i in range(longest))
    if not all(isinstance(level, Mapping) for level in levels):
        raise UsageError(f"the levels of {env_id} are a list of argument dicts, not {levels!r}")
    return tuple(dict(level) for level in levels)


def spec(env_id: str) -> EnvSpec:
    """Return the spec registered under an id, the server's for ``rollenv+ws://HOST:PORT/ENV_ID``, or that of a class
    or function for ``module:Class`` and ``file.py:Class``.

    Raises:
        UnknownEnv: no such id; the message names the nearest ones.
        BadEntryPoint: the module or file of such a class cannot be imported.
    """
    if not isinstance(env_id, str):
        raise UnknownEnv(f"an id is a text such as 'game:Wordle-v0', not {env_id!r}")
    if env_id.startswith(_SERVED):
        return part("served environment")(env_id)  # type: ignore[no-any-return]
    if env_id.startswith(f"{DATA}:"):
        return part("own questions")(env_id)  # type: ignore[no-any-return]
    if is_elsewhere(env_id):
        namespace = env_id.partition(":")[0]
        if namespace in entry_points(NAMESPACES):
            return load(NAMESPACES, namespace, Callable)(env_id)  # type: ignore[no-any-return]
        return _spec_of_code(env_id)
    if env_id not in ENV_REGISTRY:
        _OWN.load()
    if env_id not in ENV_REGISTRY:
        _PLUGINS.load()
    if env_id not in ENV_REGISTRY:
        raise UnknownEnv(_unknown_message(env_id))
    return ENV_REGISTRY[env_id]


def is_elsewhere(env_id: str) -> bool:
    """Return whether an id names a folder, a server, a package or code instead of a registration."""
    namespace = env_id.partition(":")[0]
    if env_id in ENV_REGISTRY or env_id.startswith(_SERVED) or namespace == DATA:
        return env_id not in ENV_REGISTRY
    entry = entry_points(NAMESPACES).get(namespace)
    if entry is None:
        return _names_code(env_id)
    if entry.value.startswith("rollenv."):
        return True
    _OWN.load()  # a namespace of rollenv's own ids stays rollenv's
    taken = any(spec.namespace == namespace for spec in list(ENV_REGISTRY.values()) if spec.is_own)
    if taken:
        warnings.warn(
            f"the entry point {namespace} = {entry.value} is left out: rollenv has that namespace", stacklevel=2
        )
    return not taken


def _names_code(env_id: str) -> bool:
    """Return whether an id that is not registered is ``module:Class`` or ``file.py:Class``."""
    module, _, name = env_id.rpartition(":")
    if not name.isidentifier() or not (module.endswith(".py") or is_module(module)):
        return False
    registered = list_envs()
    return env_id not in ENV_REGISTRY and not any(each.namespace == module for each in registered if each.is_own)


def _spec_of_code(env_id: str) -> EnvSpec:
    """Return the spec of a class or function, with the abilities that the class has."""
    module, _, name = env_id.rpartition(":")
    entry_point = f"{Path(module).expanduser().resolve()}:{name}" if module.endswith(".py") else env_id
    found: Any = load_entry_point(entry_point, env_id)
    if not callable(found) or (isinstance(found, type) and not issubclass(found, Env)):
        raise UsageError(f"{env_id} is no rollenv.Env: derive its class from that")
    if not isinstance(found, type):
        return EnvSpec(env_id, entry_point)
    cls: type[Env] = found

    def has(method: str) -> bool:
        own = inspect.getattr_static(cls, method)
        return bool(getattr(cls, own.part, None)) if isinstance(own, OptionalAbility) else own is not None

    abilities = frozenset(name for name, methods in _METHODS.items() if all(map(has, methods)))
    indexed = "index" in cls.reset_options and has("num_tasks")
    return EnvSpec(env_id, entry_point, abilities=abilities, indexed=indexed)


def make(env_id: str | EnvSpec, **kwargs: Any) -> Env:
    """Build an environment.

    Args:
        kwargs: override the registered constructor arguments; ``seed`` starts the private random stream.

    Raises:
        UnknownEnv: no such id; the message names the nearest ones.
        UsageError: an argument that the environment does not take.
        MissingExtra: the environment needs a package that is not installed.
    """
    return (env_id if isinstance(env_id, EnvSpec) else spec(env_id)).make(**kwargs)


def list_envs(pattern: str = "") -> list[EnvSpec]:
    """Return all specs whose id contains ``pattern``, in which ``*`` stands for any text, sorted by id."""
    _OWN.load()
    _PLUGINS.load()
    wanted = f"*{pattern.lower()}*"
    return sorted((s for s in list(ENV_REGISTRY.values()) if fnmatch(s.id.lower(), wanted)), key=lambda s: s.id)


def added_specs() -> dict[str, EnvSpec]:
    """Return the specs of other packages, for :func:`add_specs` in a process that has not imported them."""
    return {name: s for name, s in ENV_REGISTRY.items() if not s.is_own}


def add_specs(specs: Mapping[str, EnvSpec]) -> None:
    """Register specs, except for ids that are taken."""
    list_envs()
    for name, added in specs.items():
        ENV_REGISTRY.setdefault(name, added)


def print_envs() -> None:
    """Print all ids, as GEM does; ``rollenv list`` shows more of each."""
    for env_spec in list_envs():
        print(env_spec.id)  # noqa: T201


class _Once:
    """A set of registrations that is loaded on first use; other threads wait until it is complete."""

    def __init__(self, load: Callable[[], None]):
        self._load = load
        self._lock = threading.RLock()
        self._loading = False
        self.loaded = False
        self.staged: dict[str, EnvSpec] = {}
        """Specs registered during loading; they become visible together at the end."""

    def load(self) -> None:
        if self.loaded:
            return
        with self._lock:
            if self.loaded or self._loading:  # loading: this call comes from one of its own registrations
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


def _load_plugins() -> None:
    """Load the entry points of third-party packages; a broken one is reported and skipped."""
    for entry in entry_points(ENTRY_POINT_GROUP).values():
        try:
            entry.load()()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too
            warnings.warn(f"the environments of entry point {entry.value!r} were not loaded: {error!r}", stacklevel=2)


_OWN, _PLUGINS = _Once(lambda: part("own environments")()), _Once(_load_plugins)


def named_wrappers(wrappers: str | Iterable[str] | Wrappers) -> dict[str, dict[str, Any]]:
    """Normalise wrappers, in any form of :func:`register`, to a mapping from names to settings."""
    if isinstance(wrappers, Mapping):
        return {name: dict(settings) for name, settings in wrappers.items()}
    return {name: {} for name in _names(wrappers)}


def _names(names: str | Iterable[str]) -> list[str]:
    """Split names that are separated by commas; a list is returned unchanged."""
    each = names.split(",") if isinstance(names, str) else list(names)
    if wrong := [name for name in each if not isinstance(name, str)]:
        raise UsageError(f"expected a list of names, but {wrong[0]!r} is not a name")
    return [name.strip() for name in each if name.strip()]


def _unknown_message(env_id: str) -> str:
    known = sorted(ENV_REGISTRY)
    family = [k for k in known if k.partition(":")[2].partition("-")[0].lower() in env_id.lower()][:3]
    otherwise = f"did you mean {' or '.join(family)}?" if family else "`rollenv list` shows them all"
    path = Path(env_id)
    if path.is_file():
        return f"{env_id} is a file: a class in it is FILE.py:Class, questions (.jsonl, .csv, .parquet) are data:FILE"
    files = map(str, path.parent.glob("*")) if path.suffix else ()
    hint = did_you_mean(str(path), files, by=lambda file: Path(file).stem)
    hint = hint or did_you_mean(env_id, known, otherwise, most=3, cutoff=0.5)
    return f"no environment is registered as {env_id!r}; {hint}"

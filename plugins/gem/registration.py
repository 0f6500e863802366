"""GEM's registry, with GEM's arguments and conventions, and its vector environments."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode as AutoresetMode

from rollenv.core import env as core
from rollenv.core import env_spec, registry, vector
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UnknownEnv, UsageError
from rollenv.core.vector import VectorStep
from rollenv.plugins.gem.classes import gem_class
from rollenv.plugins.gem.core import Env, GemEnv, Refused


class VectorEnv(vector.VectorEnv):
    """GEM's vector: an environment itself, with ``env_fns``; wrong numbers of actions or seeds fail an assertion."""

    def __init__(
        self,
        env_ids: Sequence[str],
        env_fns: Sequence[Callable[[], Any]],
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
        **kwargs: Any,
    ):
        self.env_fns = env_fns
        super().__init__(env_ids, env_fns, autoreset_mode, **kwargs)
        self._env_obs: list[Any] = [None] * self.num_envs
        self._env_infos: list[Any] = [{} for _ in range(self.num_envs)]
        self._rewards = np.zeros(self.num_envs)
        self._nothing_over()

    def _nothing_over(self) -> None:
        self._terminations, self._truncations, self._autoreset_envs = np.zeros((3, self.num_envs), dtype=np.bool_)

    @property
    def unwrapped(self) -> VectorEnv:
        return self

    def sample_random_action(self) -> str:
        raise NotImplementedError("a vector has no random actions; use those of its environments")

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError("a vector cannot be spawned; spawn its environments")

    def reset(self, seed: Any = None, **env_kwargs: Any) -> Any:
        try:
            self._env_obs, self._env_infos = super().reset(seed, **env_kwargs)
        except UsageError as error:
            raise Refused(str(error)) from error
        self._nothing_over()
        return copy.deepcopy(self._env_obs), copy.deepcopy(self._env_infos)

    def step(self, actions: Any) -> VectorStep:
        try:
            observations, rewards, terminated, truncated, infos = super().step(actions)
        except UsageError as error:
            raise Refused(str(error)) from error
        stepped = list(actions) if isinstance(actions, Mapping) else list(range(self.num_envs))
        self._rewards[stepped], self._terminations[stepped], self._truncations[stepped] = rewards, terminated, truncated
        for i, observation, info in zip(stepped, observations, infos, strict=True):
            self._env_obs[i], self._env_infos[i] = observation, info
        self._autoreset_envs = self._terminations | self._truncations
        # an author's environment may modify what it returned
        return copy.deepcopy(observations), rewards, terminated, truncated, copy.deepcopy(infos)


class SyncVectorEnv(VectorEnv, vector.SyncVectorEnv):
    """A vector whose environments run one after another."""


class AsyncVectorEnv(VectorEnv, vector.AsyncVectorEnv):
    """A vector whose environments run in threads."""

    @property
    def thread_pool_executer(self) -> ThreadPoolExecutor | None:
        """GEM's name for the threads."""
        return self._threads


def __getattr__(name: str) -> Any:
    """Fill ``ENV_REGISTRY`` on first use."""
    if name != "ENV_REGISTRY":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    registry.list_envs()
    return registry.ENV_REGISTRY


def register(env_id: str, entry_point: str | Callable[..., Any], **kwargs: Any) -> None:
    """Register an id of any form; every keyword is an argument of the constructor."""
    registry.list_envs()
    if env_id in registry.ENV_REGISTRY:
        raise UsageError(f"Environment {env_id} already registered. Choose another id")
    registry.ENV_REGISTRY[env_id] = EnvSpec(env_id, entry_point, kwargs)


def print_envs() -> None:
    """Print every id with its entry point."""
    for spec in registry.list_envs():
        print(f"  - {spec.id}:\n      Entry Point: {spec.entry_point}\n      Kwargs: {dict(spec.kwargs)}")  # noqa: T201


def make(env_id: str, **kwargs: Any) -> Any:
    """Build an environment; ``kwargs`` override the registered arguments.

    One of rollenv's own gets GEM's manners. A class written for GEM gets every argument, ``seed`` where it takes it.

    Raises:
        UnknownEnv: (a ``ValueError``) no such id.
        BadEntryPoint: (an ``ImportError``) what is registered cannot be loaded.
    """
    try:
        spec = registry.spec(env_id)
    except UnknownEnv as error:
        raise UnknownEnv(f"Environment {env_id} not found in registry. {error}") from None
    factory = env_spec.load_entry_point(spec.entry_point, spec.id)
    if isinstance(factory, type) and issubclass(factory, core.Env) and not _written_for_gem(factory):
        cls = gem_class(factory)  # type: ignore[arg-type]
        named = isinstance(spec.entry_point, str)  # a class at hand may be one that no name leads to
        return replace(spec, entry_point=f"{cls.__module__}:{cls.__qualname__}" if named else cls).make(**kwargs)
    return _of_an_author(spec, factory, {**spec.kwargs, **kwargs})


def _written_for_gem(cls: type[core.Env]) -> bool:
    """Return whether a class is an author's subclass of ``gem.Env``, or of a game or data environment of GEM."""
    return Env in cls.__mro__ or (issubclass(cls, GemEnv) and not cls.__module__.startswith("rollenv."))


def _of_an_author(spec: EnvSpec, factory: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Call an entry point that was registered with GEM: any callable."""
    seed = kwargs.get("seed")
    env = factory(**{name: value for name, value in kwargs.items() if name != "seed" or _takes_seed(factory)})
    if isinstance(env, core.Env):
        if env.spec is None or isinstance(env.spec, EnvSpec):  # no author's own
            env.spec = replace(spec, kwargs=kwargs, wrappers={})
        if seed is not None:
            with contextlib.suppress(UsageError):  # a seed of the author's own kind
                env.seed_stream(seed)
        env = env_spec.wrap(env, spec.wrappers) if spec.wrappers else env
    env.env_id, env.entry_point = spec.id, spec.entry_point
    return env


def _takes_seed(factory: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return True
    return "seed" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def make_vec(
    env_ids: str | Sequence[str],
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    vec_kwargs: Sequence[Mapping[str, Any]] | None = None,
    async_mode: bool = False,
    seed: int = 0,
    **kwargs: Any,
) -> VectorEnv:
    """Build many environments; ``kwargs`` win over ``vec_kwargs[i]``, and number i is made with ``seed=seed + i``."""
    ids = [env_ids] if isinstance(env_ids, str) else list(env_ids)
    autoreset = {name: kwargs.pop(name) for name in ("autoreset_mode",) if name in kwargs}

    def build(i: int) -> Any:
        env = make(ids[i], **{"seed": seed + i, **(vec_kwargs[i] if vec_kwargs is not None else {}), **kwargs})
        for wrap in wrappers or ():
            env = wrap(env)
        return env

    kind = AsyncVectorEnv if async_mode else SyncVectorEnv
    return kind(ids, [lambda i=i: build(i) for i in range(len(ids))], **autoreset)  # type: ignore[misc]

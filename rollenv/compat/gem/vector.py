"""GEM's vectors of environments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rollenv import vector
from rollenv.compat.gem.core import Refused
from rollenv.core import UsageError
from rollenv.vector import VectorStep

__all__ = ["AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv", "VectorEnv"]


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
        raise NotImplementedError("a vector has no random actions; its environments have")

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError("a vector cannot be spawned; its environments can")

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
        # an author's environment may go on writing into what it returned
        return copy.deepcopy(observations), rewards, terminated, truncated, copy.deepcopy(infos)


class SyncVectorEnv(VectorEnv, vector.SyncVectorEnv):
    """Its environments run one after another."""


class AsyncVectorEnv(VectorEnv, vector.AsyncVectorEnv):
    """Its environments run in threads."""

    @property
    def thread_pool_executer(self) -> ThreadPoolExecutor | None:
        """GEM's name for the threads."""
        return self._threads

"""Vectors of environments, stepped in a loop or in threads."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollenv.core.env import Env, StepResult
from rollenv.core.errors import EnvTimeout, UsageError
from rollenv.core.registry import make

__all__ = ["AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv", "VectorEnv", "VectorStep", "make_vec"]

VectorStep = tuple[list[str], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], list[dict[str, Any]]]


logger = logging.getLogger(__name__)


@dataclass
class _Slot:
    """The slot of an environment, which is made on first use."""

    make: Callable[[], Env]
    env: Env | None = None
    finished: bool = False

    def made(self) -> Env:
        self.env = self.make() if self.env is None else self.env
        return self.env

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


class VectorEnv:
    """Environments stepped one after another.

    Args:
        env_ids: names for errors.
        autoreset_mode: when an ended episode is reset: ``SameStep`` at once (the step returns the new observation, and
            the last one in ``info["final_obs"]``), ``NextStep`` by the next step, whose action is ignored, ``Disabled``
            by the caller. Gymnasium's ``AutoresetMode`` or its value.
    """

    def __init__(
        self,
        env_ids: Sequence[str],
        env_fns: Sequence[Callable[[], Env]],
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
    ):
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError as error:
            modes = ", ".join(m.value for m in AutoresetMode)
            raise UsageError(f"autoreset_mode {autoreset_mode!r} is unknown; choose from {modes}") from error
        self.env_ids = list(env_ids)
        self._slots = [_Slot(build) for build in env_fns]
        self.num_envs = len(self._slots)
        try:
            for slot in self._slots:
                slot.made()
        except BaseException:
            self.close()
            raise

    @property
    def envs(self) -> list[Env]:
        """The environments."""
        return [slot.made() for slot in self._slots]

    def reset(
        self, seed: int | Sequence[int | None] | None = None, **env_kwargs: Mapping[str, Any]
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Reset all environments.

        Args:
            seed: seed of the first environment, the others count up; or a sequence. None continues the streams.
            env_kwargs: ``env3_kwargs={"options": {...}}`` are arguments for the reset of environment 3.

        Returns:
            Observations and infos, one per environment.

        Raises:
            UsageError: the number of seeds is wrong, or an argument is unknown.
        """
        if seed is None:
            seeds: list[int | None] = [None] * self.num_envs
        elif isinstance(seed, int | np.integer):
            seeds = [int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = [None if each is None else int(each) for each in seed]
        if len(seeds) != self.num_envs:
            raise UsageError(f"there are {self.num_envs} environments, but {len(seeds)} seeds")
        extra = [dict(env_kwargs.pop(f"env{i}_kwargs", {})) for i in range(self.num_envs)]
        if env_kwargs:
            raise UsageError(
                f"unknown argument {next(iter(env_kwargs))!r}; expected env0_kwargs to env{self.num_envs - 1}_kwargs"
            )
        for slot in self._slots:
            slot.finished = False
        slots = list(self._slots)
        results = self._map(lambda i: slots[i].made().reset(seed=seeds[i], **extra[i]), range(self.num_envs))
        return [observation for observation, _ in results], [info for _, info in results]

    def step(self, actions: Sequence[str] | Mapping[int, str]) -> VectorStep:
        """Step all environments, or only the keys of a mapping.

        Returns:
            Observations, rewards (float64), terminated, truncated (bool) and infos, one per action and in their order.
        """
        chosen = dict(actions) if isinstance(actions, Mapping) else dict(enumerate(actions))
        if not isinstance(actions, Mapping) and len(chosen) != self.num_envs:
            raise UsageError(f"there are {self.num_envs} environments, but {len(chosen)} actions")
        if unknown := [i for i in chosen if not 0 <= i < self.num_envs]:
            raise UsageError(f"there is no environment {unknown[0]}; there are {self.num_envs}")
        slots = list(self._slots)
        results = self._map(lambda i: self._step_one(slots[i], chosen[i]), chosen, cut=True)
        observations, rewards, terminated, truncated, infos = zip(*results, strict=True) if results else ((),) * 5
        return (
            list(observations),
            np.array(rewards, dtype=np.float64),
            np.array(terminated, dtype=np.bool_),
            np.array(truncated, dtype=np.bool_),
            list(infos),
        )

    def _step_one(self, slot: _Slot, action: str) -> StepResult:
        env = slot.made()
        if slot.finished and self.autoreset_mode is not AutoresetMode.DISABLED:
            slot.finished = False
            observation, info = env.reset()
            return observation, 0.0, False, False, info
        observation, reward, terminated, truncated, info = env.step(action)
        slot.finished = terminated or truncated
        if slot.finished and self.autoreset_mode is AutoresetMode.SAME_STEP:
            final = {"final_obs": observation, "final_info": info}
            observation, info = env.reset()
            if isinstance(info, dict):
                info = {**info, **final}
            slot.finished = False
        return observation, reward, terminated, truncated, info

    def _map(self, function: Callable[[int], Any], numbers: Iterable[int], cut: bool = False) -> list[Any]:
        return [function(i) for i in numbers]

    def close(self) -> None:
        """Close all environments; calling it again does nothing."""
        with contextlib.ExitStack() as stack:  # closes the others even if one fails
            for slot in self._slots:
                stack.callback(slot.close)

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_envs} environments)"


class SyncVectorEnv(VectorEnv):
    """A vector whose environments run one after another in this thread; served ones step together."""

    def step(self, actions: Sequence[str] | Mapping[int, str]) -> VectorStep:
        chosen = actions if isinstance(actions, Mapping) else dict(enumerate(actions))
        playing = [i for i in chosen if 0 <= i < self.num_envs and not self._slots[i].finished]
        steps = [(self._slots[i].made(), chosen[i]) for i in playing]
        for kind in {type(env) for env, _ in steps}:
            if hasattr(kind, "steps_ahead"):
                kind.steps_ahead([step for step in steps if type(step[0]) is kind])
        return super().step(actions)


class AsyncVectorEnv(VectorEnv):
    """A vector whose environments run in threads at the same time, for those that wait for a tool or a server.

    Args:
        max_workers: threads; by default one for each environment, at most 64.
        step_timeout: seconds for a step or a reset; None for no limit. A step that takes longer returns ``""``, 0.0 and
            ``truncated`` with ``info["timed_out"]``; the results of the others are kept. The next reset (with
            autoreset, the next step) replaces the environment. Each environment then has its own thread.

    Raises:
        EnvTimeout: by :meth:`reset`, after the other environments were reset.
    """

    def __init__(
        self,
        env_ids: Sequence[str],
        env_fns: Sequence[Callable[[], Env]],
        autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
        max_workers: int | None = None,
        step_timeout: float | None = None,
    ):
        self._threads: ThreadPoolExecutor | None = None
        is_number = isinstance(step_timeout, int | float) and not isinstance(step_timeout, bool)
        if step_timeout is not None and not (is_number and 0 < step_timeout <= threading.TIMEOUT_MAX):
            raise UsageError(f"step_timeout is a number of seconds above 0, or None for no limit, not {step_timeout!r}")
        if step_timeout is not None and max_workers is not None:
            raise UsageError("with step_timeout each environment has a thread of its own; leave max_workers out")
        self.step_timeout = step_timeout
        super().__init__(env_ids, env_fns, autoreset_mode)
        self._threads = ThreadPoolExecutor(max_workers or min(64, max(1, self.num_envs)), thread_name_prefix="vector")

    def _map(self, function: Callable[[int], Any], numbers: Iterable[int], cut: bool = False) -> list[Any]:
        assert self._threads is not None
        if self.step_timeout is None:
            return list(self._threads.map(function, numbers))
        running = {i: _run_in_thread(function, i) for i in numbers}
        hung = wait(running.values(), self.step_timeout).not_done
        late = [i for i, future in running.items() if future in hung]
        for i in late:
            slot, self._slots[i] = self._slots[i], _Slot(self._slots[i].make, finished=True)
            running[i].add_done_callback(lambda _, slot=slot: slot.close())  # type: ignore[misc]
        if late:
            message = f"took longer than step_timeout={self.step_timeout:g} s; a reset makes others in their place"
            message = f"the environments {', '.join(f'{i} ({self.env_ids[i]})' for i in late)} {message}"
            if not cut:
                raise EnvTimeout(f"{message}. Call reset again, or allow more seconds")
            logger.warning("%s", message)
        timed_out = {"timed_out": self.step_timeout}
        return [("", 0.0, False, True, dict(timed_out)) if i in late else running[i].result() for i in running]

    def close(self) -> None:
        super().close()
        if self._threads is not None:
            self._threads.shutdown()


def _run_in_thread(function: Callable[[int], Any], number: int) -> Future[Any]:
    """Call a function in a thread that does not keep the interpreter alive."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(number))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name=f"vector-{number}", daemon=True).start()
    return future


def make_vec(
    env_ids: str | Sequence[str],
    wrappers: Sequence[Callable[[Env], Env]] | None = None,
    vec_kwargs: Sequence[Mapping[str, Any]] | None = None,
    async_mode: bool = False,
    seed: int | None = 0,
    autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP,
    step_timeout: float | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Build a vector of environments.

    Args:
        env_ids: an id, or one for each environment.
        wrappers: wrappers of each environment, innermost first.
        vec_kwargs: constructor arguments of each environment; they override ``kwargs``.
        seed: seed of the first environment; the others count up. None draws them at random.
        autoreset_mode: see :class:`VectorEnv`.
        step_timeout: see :class:`AsyncVectorEnv`; only with ``async_mode``.

    Raises:
        UsageError: ``vec_kwargs`` has another length than ``env_ids``, ``wrappers`` are no functions, or
            ``step_timeout`` is set without ``async_mode``.
    """
    several = isinstance(env_ids, Sequence) and not isinstance(env_ids, str)
    ids: list[Any] = list(env_ids) if several else [env_ids]
    number = kwargs.get("num_envs", wrappers)
    if isinstance(number, int):  # as Gymnasium's
        raise UsageError(f"make_vec takes an id for each environment: make_vec([{ids[0]!r}] * {number})")
    if wrappers is not None and not (isinstance(wrappers, Sequence) and all(map(callable, wrappers))):
        raise UsageError(f"wrappers is a list of functions, each from an environment to one, not {wrappers!r}")
    if vec_kwargs is not None and len(vec_kwargs) != len(ids):
        raise UsageError(f"there are {len(ids)} environments, but {len(vec_kwargs)} vec_kwargs")

    def build(i: int) -> Env:
        own = {} if seed is None else {"seed": int(seed) + i}
        env = make(ids[i], **{**own, **kwargs, **(vec_kwargs[i] if vec_kwargs else {})})
        try:
            for wrap in wrappers or ():
                env = wrap(env)
        except BaseException:
            env.close()
            raise
        return env

    builds = [functools.partial(build, i) for i in range(len(ids))]
    if async_mode:
        return AsyncVectorEnv(ids, builds, autoreset_mode, step_timeout=step_timeout)
    if step_timeout is not None:
        raise UsageError("step_timeout needs async_mode=True: nothing can end a step in the thread that waits for it")
    return SyncVectorEnv(ids, builds, autoreset_mode)

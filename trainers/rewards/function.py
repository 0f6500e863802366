"""A function of the user as the reward of episodes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollenv.core.errors import RollenvError, UsageError, did_you_mean
from rollenv.core.plugins import at_line
from rollenv.core.registry import spec
from rollenv.rollout import validation
from rollenv.rollout.types import Task, Trajectory
from rollenv.trainers.rewards.base import last_answer

#: What a function may ask for by the names of its parameters, for one episode; for a batch, with an s.
ARGUMENTS = ("prompt", "answer", "row", "reward", "trajectory")

#: TRL's names for the same.
_TRL = {"completions": "answers", "trajectories": "trajectorys"}


class FunctionFailed(RollenvError):
    """A reward function raised an exception."""


class FunctionReward:
    """Replaces the rewards of an episode by the number that a function returns.

    Args:
        function: takes some of ``prompt`` (the first observation), ``answer`` (the last, without its thoughts), ``row``
            (of the data set; empty without one), ``reward`` (the environment's own) and ``trajectory``; or lists of
            them for several episodes that ended at about the same time, ``prompts``, ``answers`` (or ``completions``),
            ``rows`` and so on, and returns a list. ``**columns`` of such a function are lists of the rows' values by
            column. It may be a coroutine function; a plain function blocks the rollout.

    Raises:
        UsageError: the function has another parameter without a default.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', function)}"
        parameters = inspect.signature(function).parameters.values()
        names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        self.columns = any(one.kind is one.VAR_KEYWORD for one in parameters)
        several = {_TRL.get(name, name) for name in names} & {f"{name}s" for name in ARGUMENTS}
        self.batch = bool(several)
        known = [*(f"{name}s" for name in ARGUMENTS), *_TRL] if self.batch else [*ARGUMENTS]
        self.takes = [name for name in names if name in known]
        needed = [one.name for one in parameters if one.name in names and one.default is one.empty]
        self.own_columns = [name for name in needed if name not in known] if self.batch else []
        if not self.takes or (not self.batch and (wrong := [name for name in needed if name not in known])):
            bad = wrong[0] if self.takes else ", ".join(names) or "none"
            hint = did_you_mean(bad, known, "", form=repr)
            raise UsageError(
                f"rewards.function: the parameters of {self.name} are some of {', '.join(ARGUMENTS)}; or of "
                f"{', '.join(f'{name}s' for name in ARGUMENTS[:3])} for a batch; not {bad}; {hint}".removesuffix("; ")
            )
        self._waiting: list[tuple[Trajectory, asyncio.Future[float]]] = []
        self._envs: dict[str, Any] = {}

    async def __call__(self, trajectory: Trajectory) -> float:
        """Return the function's reward, and take the environment's away."""
        own = trajectory.own_reward
        value = await (self._batched(trajectory) if self.batch else self._one(trajectory))
        trajectory.env_reward = own
        for turn in trajectory.turns:
            turn.reward = 0.0
        return value

    async def _one(self, trajectory: Trajectory) -> float:
        given = self._arguments(trajectory)
        return self._number(await self._call({name: given[name] for name in self.takes}))

    async def _batched(self, trajectory: Trajectory) -> float:
        """Score an episode together with those that end in the same step of the event loop."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((trajectory, future))
        if len(self._waiting) == 1:
            self._scoring = asyncio.create_task(self._score_waiting())
        return await future

    async def _score_waiting(self) -> None:
        await asyncio.sleep(0)
        waiting, self._waiting = [one for one in self._waiting if not one[1].done()], []
        try:
            values = await self._several([one for one, _ in waiting]) if waiting else []
        except Exception as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), value in zip(waiting, values, strict=True):
            if not future.done():
                future.set_result(value)

    async def _several(self, trajectories: Sequence[Trajectory]) -> list[float]:
        each = [self._arguments(trajectory) for trajectory in trajectories]
        given: dict[str, Any] = {
            name: [one[_TRL.get(name, name).removesuffix("s")] for one in each] for name in self.takes
        }
        rows = [one["row"] for one in each]
        wanted = [*rows[0]] if self.columns else self.own_columns
        for name in wanted:
            if name not in given:
                given[name] = [_cell(row, name, self.name) for row in rows]
        values = await self._call(given)
        values = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(values, list | tuple) or len(values) != len(each):
            raise UsageError(
                f"{self.name} returned {validation.kind(values)} {str(values)[:60]}; it has to return a list of "
                f"{len(each)} numbers, one for each answer"
            )
        return [self._number(value) for value in values]

    async def _call(self, given: dict[str, Any]) -> Any:
        try:
            value = self.function(**given)
            return await value if inspect.isawaitable(value) else value
        except UsageError:
            raise
        except Exception as error:
            raise FunctionFailed(f"{self.name} raised {at_line(error)}") from error

    def _number(self, value: Any) -> float:
        try:
            return validation.number(value, "what it returns")
        except validation.BadValue as error:
            raise UsageError(f"{self.name}: {error}") from error

    def _arguments(self, trajectory: Trajectory) -> dict[str, Any]:
        reads_row = bool({"row", "rows"} & {*self.takes} or self.columns or self.own_columns)
        return {
            "prompt": trajectory.turns[0].observation,
            "answer": last_answer(trajectory),
            "row": self._row(trajectory.task) if reads_row else {},
            "reward": trajectory.own_reward,
            "trajectory": trajectory,
        }

    def _row(self, task: Task) -> Mapping[str, Any]:
        """Return the row that an episode began with: its environment is reset once more."""
        key = repr((task.env_id, sorted(task.kwargs.items())))
        if key not in self._envs:
            self._envs[key] = spec(task.env_id).make(**task.kwargs).unwrapped
        env = self._envs[key]
        if not hasattr(env, "row"):
            return {}
        env.reset(seed=task.seed, options=task.options or None)
        return dict(env.row)


def _cell(row: Mapping[str, Any], column: str, name: str) -> Any:
    if column not in row:
        raise UsageError(f"{name} takes {column!r}, and a row has only the columns {', '.join(row) or '(none)'}")
    return row[column]

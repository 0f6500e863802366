"""A function of the user as the reward of episodes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rollenv.core.errors import RollenvError, UsageError, did_you_mean
from rollenv.core.plugins import at_line
from rollenv.core.registry import spec
from rollenv.core.trust import named_by_task
from rollenv.rollout import validation
from rollenv.rollout.types import Task, Trajectory
from rollenv.trainers.rewards.base import last_answer

#: What a function may take for one episode; and for a batch, with TRL's names.
ONE = ("prompt", "answer", "row", "reward", "trajectory")
BATCH = {"prompts": "prompt", "answers": "answer", "completions": "answer", "rows": "row", "rewards": "reward"}


class FunctionFailed(RollenvError):
    """A reward function raised an exception."""


class FunctionReward:
    """Replaces the rewards of an episode by the number that a function returns.

    Args:
        function: takes some of ``prompt`` (the first observation), ``answer`` (the last, without its thoughts), ``row``
            (of the data set; empty without one), ``reward`` (the environment's own) and ``trajectory``. Or it takes
            lists for the episodes that end in one step of the engine and returns a list: some of ``prompts``,
            ``answers`` (or ``completions``), ``rows``, ``rewards``, and columns of the rows by name, with ``**columns``
            all. It may be a coroutine function; a plain function blocks the rollout.
        what: its key, for errors.
        trust: whether the environments of tasks may be made for their rows, whatever they name.

    Raises:
        UsageError: the function takes none of these, or has another parameter without a default.
    """

    def __init__(self, function: Callable[..., Any], what: str = "rewards.function", trust: bool = True):
        self.function, self.trust = function, trust
        self.name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', function)}"
        parameters = inspect.signature(function).parameters.values()
        named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        self.batch = any(one.name in BATCH for one in named)
        self.takes = [one.name for one in named if one.name in (BATCH if self.batch else ONE)]
        self.columns = [one.name for one in named if one.name not in self.takes and one.default is one.empty]
        self.all_columns = any(one.kind is one.VAR_KEYWORD for one in parameters)
        if not self.takes or (self.columns and not self.batch):
            wrong = self.columns[0] if self.columns else "none"
            hint = did_you_mean(wrong, [*ONE, *BATCH], form=repr)
            raise UsageError(
                f"{what}: {self.name} takes {wrong}, and can take {', '.join(ONE)}; or {', '.join(BATCH)} of "
                f"a batch; {hint}".removesuffix("; ")
            )
        self._reads_row = bool({"row", "rows"} & {*self.takes} or (self.batch and (self.columns or self.all_columns)))
        self._waiting: list[tuple[Trajectory, asyncio.Future[float]]] = []
        self._envs: dict[str, Any] = {}

    async def __call__(self, trajectory: Trajectory) -> float:
        """Return the function's reward, and take the environment's away."""
        own = trajectory.own_reward
        value = await self.score(trajectory)
        trajectory.env_reward = own
        for turn in trajectory.turns:
            turn.reward = 0.0
        return value

    async def score(self, trajectory: Trajectory) -> float:
        """Return the function's reward."""
        if self.batch:
            return await self._in_batch(trajectory)
        given = self._given(trajectory)
        return self._number(await self._call({name: given[name] for name in self.takes}))

    async def _in_batch(self, trajectory: Trajectory) -> float:
        """Score an episode together with those that end in the same step of the event loop."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((trajectory, future))
        if len(self._waiting) == 1:
            self._scoring = asyncio.create_task(self._score_waiting())
        return await future

    async def _score_waiting(self) -> None:
        await asyncio.sleep(0)
        waiting, self._waiting = [one for one in self._waiting if not one[1].done()], []
        values, failure = [0.0] * len(waiting), None
        try:
            if waiting:
                values = await self._batch_of([self._given(trajectory) for trajectory, _ in waiting])
        except Exception as error:
            failure = error
        for (_, future), value in zip(waiting, values, strict=True):
            if failure and not future.done():
                future.set_exception(failure)
            elif not future.done():
                future.set_result(value)

    async def _batch_of(self, each: list[dict[str, Any]]) -> list[float]:
        given = {name: [one[BATCH[name]] for one in each] for name in self.takes}
        rows = [one["row"] for one in each]
        for column in [*self.columns, *(rows[0] if self.all_columns else ())]:
            if missing := [row for row in rows if column not in row]:
                has = ", ".join(missing[0]) or "(none)"
                raise UsageError(f"{self.name} takes {column!r}, and a row has only the columns {has}")
            given.setdefault(column, [row[column] for row in rows])
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

    def _given(self, trajectory: Trajectory) -> dict[str, Any]:
        values = (
            trajectory.turns[0].observation,
            last_answer(trajectory),
            self._row(trajectory.task) if self._reads_row else {},
            trajectory.own_reward,
            trajectory,
        )
        return dict(zip(ONE, values, strict=True))

    def _row(self, task: Task) -> Mapping[str, Any]:
        """Return the row that an episode began with: its environment is reset once more."""
        if not self.trust and (names := named_by_task(task)):
            raise UsageError(f"the row is not read, as the task names {names}; allow that with --trust")
        key = repr((task.env_id, sorted(task.kwargs.items())))
        if key not in self._envs:
            self._envs[key] = spec(task.env_id).make(**task.kwargs).unwrapped
        env = self._envs[key]
        if not hasattr(env, "row"):
            return {}
        env.reset(seed=task.seed, options=task.options or None)
        return dict(env.row)

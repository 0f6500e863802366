"""Plays tasks: a coroutine for every trajectory, so that an agent sees all waiting turns at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from rollenv.agents.base import Agent
from rollenv.core import Env
from rollenv.registry import make
from rollenv.rollout.types import Group, Task, Trajectory, Turn

T = TypeVar("T")
Start = tuple[Env, str, dict[str, Any]]


class RolloutManager:
    """Runs an agent over groups of environments in this process.

    Args:
        agent: who plays.
        keep_views: store a drawing of the state with every turn.
        on_trajectory: called with every trajectory that ends.
    """

    def __init__(
        self, agent: Agent, *, keep_views: bool = False, on_trajectory: Callable[[Trajectory], None] | None = None
    ):
        self.agent = agent
        self.keep_views = keep_views
        self.on_trajectory = on_trajectory

    def collect(self, tasks: Iterable[Task], group_size: int = 1) -> list[Group]:
        """Play every task ``group_size`` times; all members of a group start in the same state.

        An environment that raises ends its trajectory with the status "failed"; an agent that raises ends the rollout.
        """
        return asyncio.run(self.collect_async(list(tasks), group_size))

    async def collect_async(self, tasks: Sequence[Task], group_size: int = 1) -> list[Group]:
        """:meth:`collect` inside a running event loop."""
        groups = [Group(task, [Trajectory(task) for _ in range(group_size)]) for task in tasks]
        plays = []
        for group in groups:
            for member, start in enumerate(_start_group(group)):
                plays.append(self._play(group.trajectories[member], start, member))
        await asyncio.gather(*plays)
        return groups

    async def _play(self, trajectory: Trajectory, start: Start, member: int) -> None:
        env = start[0]
        try:
            await self._turns(trajectory, start, member)
        except EnvFailed as failure:
            trajectory.status, trajectory.error = "failed", str(failure)
        finally:
            env.close()
        if self.on_trajectory:
            self.on_trajectory(trajectory)

    async def _turns(self, trajectory: Trajectory, start: Start, member: int) -> None:
        env, observation, info = start
        named = env.spec is not None and "state_key" in env.spec.abilities
        session = self.agent.start(env, trajectory.task.seed * 1_000_003 + member)
        terminated = truncated = False
        while not (terminated or truncated):
            key = env.state_key() if named else ""
            view = env.render() if self.keep_views else ""
            action = await session.act(observation, info)
            seen = observation
            observation, reward, terminated, truncated, info = _guard(env.step, action.text)
            turn = Turn(
                action.prompt_ids,
                action.response_ids,
                action.logprobs,
                reward,
                action.text,
                seen,
                key,
                action.policy_version,
                view,
            )
            trajectory.turns.append(turn)
        trajectory.status = "terminated" if terminated else "truncated"
        trajectory.success = bool(info.get("success", False))
        trajectory.final_observation = observation
        trajectory.final_view = env.render() if self.keep_views else ""


class EnvFailed(Exception):
    """An environment raised."""


def _guard(function: Callable[..., T], *args: Any) -> T:
    """Call into an environment; whatever it raises becomes :class:`EnvFailed`."""
    try:
        return function(*args)
    except Exception as error:
        raise EnvFailed(f"{type(error).__name__}: {error}") from error


def _start_group(group: Group) -> list[Start]:
    """An environment for every member, all in the same first state; none if the environment cannot be reset.

    Members are copies of the first where its kind can be copied, else each is reset with the seed.
    """
    task = group.task
    envs = [make(task.env_id, **task.kwargs)]  # a wrong id or argument is not caught: it ends the rollout
    copies = envs[0].spec is not None and "spawn" in envs[0].spec.abilities
    starts: list[Start] = []
    try:
        for _ in group:
            if starts and copies:
                _, observation, info = starts[0]
                envs.append(_guard(envs[0].spawn, True))
                starts.append((envs[-1], observation, dict(info)))
            else:
                if starts:
                    envs.append(make(task.env_id, **task.kwargs))
                starts.append((envs[-1], *_guard(envs[-1].reset, task.seed)))
    except EnvFailed as failure:
        for env in envs:
            env.close()
        for trajectory in group:
            trajectory.error = str(failure)
        return []
    return starts

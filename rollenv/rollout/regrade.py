"""Rewards of stored episodes, computed again by today's environments or by a function."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rollenv.agents.base import Action, Agent, EnvHandle, NothingToSay, Session
from rollenv.core.errors import RollenvError, describe
from rollenv.core.trust import named_by_task
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.stored import StoredEpisode
from rollenv.rollout.types import Trajectory
from rollenv.rollout.workers.base import Workers

#: Episodes that are replayed together.
_CHUNK = 512


@dataclass(frozen=True, slots=True)
class Regraded:
    """An episode and what its reward is today."""

    old: StoredEpisode
    kind: Literal["same", "changed", "unjudged", "failed"]
    """"unjudged": it cannot be judged again. "failed": its environment or the function failed."""
    reason: str = ""
    """What changed at which turn, or why there is no new reward."""
    new: Trajectory | None = None
    """The episode with today's rewards, and the former one as the metric ``old_reward``; its tokens are the old
    ones."""


def regrade(
    episodes: Iterable[StoredEpisode],
    workers: Workers | None = None,
    *,
    reward: Callable[[Trajectory], Awaitable[float]] | None = None,
    step_deadline: float = 120.0,
    trust: bool = False,
) -> Iterator[Regraded]:
    """Compute the rewards of episodes again, and yield the results in their order.

    The actions of an episode are played again with its task and seed. That judges an episode if the environment shows
    what it showed before each action; a machine is judged by the state that the same commands give it.

    Args:
        workers: where the environments run; only those of processes can interrupt one that hangs.
        reward: judges an episode as it is stored, in place of its environment.
        step_deadline: seconds after which an environment hangs.
        trust: allow what the tasks name (:mod:`rollenv.core.trust`); otherwise such an episode is not judged.
    """
    rest = iter(episodes)
    limits = EpisodeLimits(step=step_deadline, max_replays=0, max_backoff=0.0)  # a failure would come again
    with RolloutManager(Replayer(), workers, limits=limits, unhealthy_after=1 << 60) as manager:
        while chunk := list(itertools.islice(rest, _CHUNK)):
            refused = [_refusal(each.trajectory, reward is not None, trust) for each in chunk]
            judged = [each for each, why in zip(chunk, refused, strict=True) if not why]
            results = iter(_graded(judged, reward) if reward else _replayed(judged, manager))
            for each, why in zip(chunk, refused, strict=True):
                yield Regraded(each, "unjudged", why) if why else next(results)


def _refusal(old: Trajectory, by_function: bool, trust: bool) -> str:
    """Return why an episode cannot be judged again; empty if it can."""
    if not old.turns:
        return "it has no turns"
    if any(turn.rewards for turn in old.turns):
        return "it is a game of several players, each of whom has rewards of its own"
    if by_function:
        return ""
    if not old.complete:
        return f"it was not played to its end ({old.failure or old.status})"
    if old.task.env_id.startswith("gateway:"):
        return "a gateway's session has no environment: name a function that judges it (--grader)"
    if old.record:
        return "a program played it, and what it did is not stored as actions"
    if not trust and (names := named_by_task(old.task)):
        return f"its task names {names}; if you trust it, allow that with --trust"
    return ""


# -- a function --------------------------------------------------------------------------------------------------------


def _graded(episodes: Sequence[StoredEpisode], reward: Callable[[Trajectory], Awaitable[float]]) -> Iterator[Regraded]:
    async def all_values() -> list[Any]:
        each = [reward(copy.deepcopy(episode.trajectory)) for episode in episodes]
        return list(await asyncio.gather(*each, return_exceptions=True))

    for episode, value in zip(episodes, asyncio.run(all_values()), strict=True):
        if isinstance(value, BaseException):
            yield Regraded(episode, "failed", f"the function failed: {describe(value)}")
            continue
        turns = [replace(turn, reward=0.0) for turn in episode.trajectory.turns]
        turns[-1].reward = value
        success = None if episode.trajectory.success is None else value > 0
        yield _compared(episode, replace(episode.trajectory, turns=turns, success=success, status="terminated"))


# -- replay ------------------------------------------------------------------------------------------------------------


class Replayer(Agent):
    """Plays stored actions; the ``agent_seed`` of a task is the index of its episode."""

    def __init__(self) -> None:
        self.episodes: Sequence[Trajectory] = ()
        self.differs: dict[int, int] = {}
        """The first turn, from 0, before which an environment showed something else, by episode."""

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _Replay(self, seed // 1_000_003)


@dataclass(slots=True)
class _Replay(Session):
    agent: Replayer
    number: int
    turn: int = -1

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        stored = self.agent.episodes[self.number].turns
        self.turn += 1
        if self.turn >= len(stored) or stored[self.turn].finish == "forfeit":
            raise NothingToSay("all stored actions are played")
        before = stored[self.turn]
        if observation != before.observation or (before.images and before.images != info.get("images")):
            self.agent.differs[self.number] = self.turn
            raise NothingToSay("the environment shows something else")
        return Action(stored[self.turn].text)


def _replayed(episodes: Sequence[StoredEpisode], manager: RolloutManager) -> Iterator[Regraded]:
    agent = manager.agent
    assert isinstance(agent, Replayer)
    agent.episodes, agent.differs = [each.trajectory for each in episodes], {}
    played = [Trajectory(replace(t.task, agent_seed=number)) for number, t in enumerate(agent.episodes)]
    groups: dict[str, list[Trajectory]] = {}
    for new in played:
        groups.setdefault(repr((new.task.env_id, new.task.kwargs, new.task.wrappers)), []).append(new)
    for group in groups.values():
        try:
            manager.play(group)
        except RollenvError:  # a task that is gone ends all of them: each is tried by itself
            for new in group:
                _play_one(manager, new)
    for number, (episode, new) in enumerate(zip(episodes, played, strict=True)):
        yield _judged(episode, new, agent.differs.get(number))


def _play_one(manager: RolloutManager, new: Trajectory) -> None:
    new.turns.clear()
    try:
        manager.play([new])
    except RollenvError as error:
        new.status, new.failure, new.error = "failed", "gone", str(error)


def _judged(episode: StoredEpisode, new: Trajectory, differs: int | None) -> Regraded:
    old = episode.trajectory
    if new.status == "failed":
        return Regraded(episode, "failed", f"the environment failed ({new.failure}): {new.error}")
    if differs is not None:
        return Regraded(episode, "unjudged", f"before turn {differs + 1} the environment shows something else")
    if old.status == "terminated" and new.status != "terminated":
        return Regraded(episode, "unjudged", f"the environment goes on after all {len(old.turns)} stored actions")
    turns = [replace(turn, reward=today.reward) for turn, today in zip(old.turns, new.turns, strict=False)]
    about = {name: getattr(new, name) for name in ("status", "success", "final_observation", "final_images")}
    return _compared(episode, replace(old, turns=turns, **about, env_reward=None, metrics=old.metrics | new.metrics))


def _compared(episode: StoredEpisode, new: Trajectory) -> Regraded:
    """Return the result for an episode with today's rewards."""
    old = episode.trajectory
    before = None if old.failure == "reward" else old.own_reward
    new = replace(new, metrics=new.metrics | ({} if before is None else {"old_reward": before}))
    if before is not None and abs(before - new.reward) < 1e-9 and old.success == new.success:
        return Regraded(episode, "same", "", new)
    at = len(new.turns) - 1
    if len(new.turns) == len(old.turns) and old.env_reward is None:
        pairs = enumerate(zip(old.turns, new.turns, strict=True))
        at = next((i for i, (a, b) in pairs if abs(a.reward - b.reward) > 1e-9), at)
    reason = f"turn {at + 1} of {len(old.turns)}: {_end(new.turns[at].text)} is worth {new.turns[at].reward:g}"
    if before is not None and old.env_reward is None:
        reason += f" instead of {old.turns[at].reward:g}"
    if len(new.turns) < len(old.turns):
        reason += ", and ends the episode"
    if new.success != old.success:
        reason += ", success" if new.success else ", no success"
    if new.final_observation != old.final_observation:
        reason += f"; the environment says {_end(new.final_observation)}"
    return Regraded(episode, "changed", reason, new)


def _end(text: str) -> str:
    """Return the end of a text on one line, in quotation marks."""
    return f'"{" ".join(text.split())[-80:]}"'

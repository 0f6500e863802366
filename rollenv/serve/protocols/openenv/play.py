"""A client's session: its forms, and its turns."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rollenv.remote.protocol import session_name
from rollenv.serve.session import Session


class Action(BaseModel):
    """The body of a ``step`` request."""

    model_config = ConfigDict(extra="forbid")
    action: str = Field(description="What the agent does, in the form that the first observation explains.")
    metadata: dict[str, Any] = Field(default_factory=dict)


class Observation(BaseModel):
    """The result of ``reset`` and ``step``."""

    text: str
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = Field(default_factory=dict)


class State(BaseModel):
    """The result of ``state``."""

    episode_id: str | None = None
    step_count: int = 0


class Play:
    """A client's session and what OpenEnv counts in it."""

    def __init__(self, session: Session):
        self.session, self.state = session, State()

    async def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode.

        Args:
            data: "seed", "episode_id" and "options", each of which may be missing.
        """
        observation, info, *_ = await self.session.call("reset", [data.get("seed"), data.get("options") or {}])
        self.state = State(episode_id=data.get("episode_id") or session_name())
        return told({"text": observation, "info": info}, None, False)

    async def step(self, data: dict[str, Any]) -> dict[str, Any]:
        """Play a turn.

        Args:
            data: the fields of an :class:`Action`.
        """
        action = Action.model_validate(data).action
        if self.session.over and self.session.last_step:  # their environments may be stepped after the end
            observation, _, terminated, truncated, info, *_ = self.session.last_step
            reward = 0.0
        else:
            observation, reward, terminated, truncated, info, *_ = await self.session.call("step", [action])
            self.state.step_count += 1
        seen = {"text": observation, "terminated": terminated, "truncated": truncated, "info": info}
        return told(seen, reward, terminated or truncated)


def told(seen: dict[str, Any], reward: float | None, done: bool) -> dict[str, Any]:
    """Return what a reset or a step returns.

    Args:
        seen: fields of an :class:`Observation`. It is not checked: what an environment returns is told as it is.
        reward: none of a reset.
        done: whether the episode is over.
    """
    observation = {"text": "", "terminated": False, "truncated": False, "info": {}} | seen
    return {"observation": observation, "reward": reward, "done": done, "metadata": {}}

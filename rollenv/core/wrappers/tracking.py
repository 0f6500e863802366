"""Statistics of the current and the previous episode."""

from __future__ import annotations

from typing import Any

from rollenv.core.env import Env, ResetResult, StepResult, Wrapper


class EpisodeTrackingWrapper(Wrapper):
    """Adds ``step_counter`` and ``cumulative_rewards`` to ``info``, and on reset those of the previous episode."""

    def __init__(self, env: Env):
        super().__init__(env)
        self.step_counter = 0
        self.cumulative_rewards = 0.0

    def reset(self, seed: int | None = None, **kwargs: Any) -> ResetResult:
        observation, info = super().reset(seed, **kwargs)
        info["prev_ep_step_counter"] = self.step_counter
        info["prev_ep_cumulative_rewards"] = self.cumulative_rewards
        self.step_counter, self.cumulative_rewards = 0, 0.0
        return observation, info | self._get_state()

    def step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.step_counter += 1
        self.cumulative_rewards += reward
        return observation, reward, terminated, truncated, info | self._get_state()

    def _get_state(self) -> dict[str, Any]:
        return {"step_counter": self.step_counter, "cumulative_rewards": self.cumulative_rewards}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.step_counter, self.cumulative_rewards = state["step_counter"], state["cumulative_rewards"]

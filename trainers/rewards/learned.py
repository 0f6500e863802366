"""The reward of a reward model."""

from __future__ import annotations

import asyncio

from rollenv.core.errors import UsageError
from rollenv.rollout.types import Trajectory
from rollenv.trainers.reward_model import RewardModel


class LearnedReward:
    """Scores episodes with a reward model in this process, in standard deviations of the scores it was trained on.

    Args:
        clip: rewards are clipped at plus and minus this; 0 for no limit. A policy finds what a reward model overrates,
            and such scores are far from those that it has seen.
    """

    def __init__(self, path: str, clip: float = 3.0):
        self.path, self.clip = path, clip
        self.model = RewardModel.load(path)
        self.vocabulary = int(self.model.model.config.get_text_config().vocab_size)

    async def __call__(self, trajectory: Trajectory) -> float:
        """Compute the reward.

        Raises:
            UsageError: the episode has no tokens, or those of another tokenizer.
        """
        tokens = [i for turn in trajectory.turns[-1:] for i in (*turn.prompt_ids, *turn.response_ids)]
        if not tokens or max(tokens) >= self.vocabulary:
            raise UsageError(
                f"the reward model {self.path} cannot read this episode of {trajectory.task.env_id}: it needs tokens "
                "of its own tokenizer, so a policy from the same model"
            )
        (reward,) = await asyncio.to_thread(self.model.rewards, [trajectory])
        return max(-self.clip, min(self.clip, reward)) if self.clip else reward

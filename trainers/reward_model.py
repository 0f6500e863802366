"""A reward model: a language model with a linear head that scores an episode, trained by Bradley and Terry's model.

The score is read at the last token of an episode. It has no absolute scale, since the loss compares only: the mean and
standard deviation of the scores that were trained on are stored with the model, and rewards are in their units.

It is trained as any model (``algorithm.name=reward_model``). An episode is then a prompt before one placeholder token,
where a policy with such a head has the score of the prompt in place of a log-probability.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from rollenv.agents.engines.base import Ids, Sampling
from rollenv.agents.engines.local import load_weights
from rollenv.agents.gguf import model_at, newest_checkpoint
from rollenv.agents.local import LocalAgent
from rollenv.agents.model_files import NO_CODE, check_model, reading
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.prompts.session import stop_ids
from rollenv.core.errors import UsageError
from rollenv.rollout.filters import preferred
from rollenv.rollout.types import Group, Trajectory

#: The file with the scale of scores.
SCALE = "rollenv_reward.json"

#: Episodes in a forward pass of rewards.
_AT_ONCE = 16


class RewardModel(LocalAgent):
    """A transformers model for sequence classification with one output, in the place of an agent that never plays.

    Args:
        mean: mean of the scores of the pairs that were trained on.
        std: their standard deviation.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any, mean: float = 0.0, std: float = 1.0):
        super().__init__(model, tokenizer, ChatPrompt(), plays=False)
        self.mean, self.std = mean, std

    @classmethod
    def begin(cls, path: str, seed: int) -> RewardModel:
        """Put a head on a language model, with weights of N(0, 0.02²)."""
        folder = str(model_at(path))
        check_model(folder)
        with reading(folder):
            tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
        # transformers and TRL read the score before the first padding token, so it must not be one that ends answers
        ends = stop_ids(tokenizer)
        special = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, *tokenizer.all_special_ids]
        padding = next(i for i in (*special, *range(len(tokenizer))) if i is not None and i not in ends)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
        settings: dict[str, Any] = {"num_labels": 1, "dtype": torch.float32, "pad_token_id": padding}
        with reading(folder):
            model = AutoModelForSequenceClassification.from_pretrained(folder, **settings, **NO_CODE)
        if not hasattr(model, "score"):
            raise UsageError(f"{path} has no class with a head for scores in transformers ({type(model).__name__})")
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            model.score.weight.copy_(torch.randn(model.score.weight.shape, generator=generator) * 0.02)
        return cls(model, tokenizer)

    @classmethod
    def load(
        cls, path: str | Path, *, sampling: Sampling | None = None, plays: bool = False, **settings: Any
    ) -> RewardModel:
        """Load a trained one: a checkpoint, or a run's folder, whose newest checkpoint counts.

        Raises:
            UsageError: there is none.
        """
        folder = newest_checkpoint(Path(path))
        if not (folder / SCALE).is_file():
            raise UsageError(f"{path} is no reward model of `rollenv reward-model`: it has no {SCALE}")
        check_model(str(folder), scores=True)
        with reading(str(folder), "a reward model"):
            scale = json.loads((folder / SCALE).read_text())
            model = AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=1, dtype=torch.float32, **NO_CODE
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
            return cls(model.eval(), tokenizer, float(scale["mean"]), float(scale["std"]))

    def save(self, path: str | Path) -> None:
        """Write the model in Hugging Face format, with the scale of its scores."""
        super().save(path)
        Path(path, SCALE).write_text(json.dumps({"mean": self.mean, "std": self.std}) + "\n")

    @property
    def tokens(self) -> int:
        return 0

    async def suspend(self) -> None:
        """Do nothing: it does not play."""

    async def update_weights(self, weights: Any = None) -> None:
        """Load new weights, unless they are the trained ones themselves."""
        load_weights(self.model, weights or ())
        self.version += 1

    async def resume(self) -> None:
        """Do nothing: it does not play."""

    def scores(self, episodes: Sequence[Ids]) -> Tensor:
        """Compute scores (n,), in one forward pass with padding on the right; with gradients if they are enabled."""
        lengths = torch.tensor([len(ids) for ids in episodes])
        ids = torch.zeros(len(episodes), int(lengths.max()), dtype=torch.long)
        for row, tokens in zip(ids, episodes, strict=True):
            row[: len(tokens)] = torch.tensor(tokens)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        device = self.model.device
        hidden = self.model.base_model(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
        last = hidden[torch.arange(len(episodes), device=device), lengths.to(device) - 1]  # by length, not by a pad id
        out: Tensor = self.model.score(last).float()[:, 0]
        return out

    def rewards(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Score episodes in standard deviations above the mean of those that were trained on.

        Raises:
            UsageError: an episode was played without tokens.
        """
        read = [whole_ids(t) for t in trajectories]
        for trajectory, ids in zip(trajectories, read, strict=True):
            if trajectory.turns and not ids and trajectory.turns[-1].finish != "forfeit":
                env_id = trajectory.task.env_id
                raise UsageError(f"an episode of {env_id} has no tokens to score: play it with a model, as local:MODEL")
        played = sorted((i for i, ids in enumerate(read) if ids), key=lambda i: len(read[i]))
        scores = [0.0] * len(trajectories)
        with torch.no_grad():
            for piece in (played[i : i + _AT_ONCE] for i in range(0, len(played), _AT_ONCE)):
                found = self.scores([read[i] for i in piece]).tolist()
                for i, score in zip(piece, found, strict=True):
                    scores[i] = score
        return [(score - self.mean) / self.std for score in scores]


def whole_ids(trajectory: Trajectory) -> Ids:
    """Return the last prompt and answer of an episode: for a conversation, all of it; empty if it has no tokens."""
    last = next((turn for turn in reversed(trajectory.turns) if turn.prompt_ids), None)  # a forfeit has none
    return (*last.prompt_ids, *last.response_ids) if last else ()


def pairs_of(groups: Sequence[Group]) -> list[Group]:
    """Return every two episodes of a group with different returns and different tokens, the better first.

    All tokens of an episode are a prompt before a placeholder, and its return is the reward.
    """
    pairs = []
    for group in groups:
        returns, tokens = [t.own_reward for t in group], [whole_ids(t) for t in group]
        shown = [
            replace(t, turns=[replace(t.turns[-1], prompt_ids=ids, response_ids=(0,), logprobs=(0.0,), reward=reward)])
            for t, ids, reward in zip(group, tokens, returns, strict=True)
        ]
        pairs += [Group(group.task, [shown[i] for i in pair]) for pair in preferred(returns, tokens)]
    return pairs


def accuracy_of_lengths(trained: Sequence[Group], held_out: Sequence[Group]) -> float:
    """Return the accuracy on held-out pairs of the rule that the longer episode is better, or worse, as in training."""

    def longer(pairs: Sequence[Group]) -> float:
        apart = [len(better.turns[0].prompt_ids) - len(worse.turns[0].prompt_ids) for better, worse in pairs]
        return sum((d > 0) + 0.5 * (d == 0) for d in apart) / len(apart)

    return longer(held_out) if longer(trained) >= 0.5 else 1 - longer(held_out)

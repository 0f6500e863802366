"""A reward model: a language model with a linear head that scores an episode, trained by Bradley and Terry's model.

The score is read at the last token of an episode. It has no absolute scale, since the loss compares only: the mean and
standard deviation of the scores that were trained on are stored with the model, and rewards are in their units.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from rollenv.agents.engines.base import Ids
from rollenv.agents.gguf import model_at, newest_checkpoint
from rollenv.agents.local import LocalAgent
from rollenv.agents.model_files import NO_CODE, check_model, reading
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.prompts.session import stop_ids
from rollenv.core.errors import UsageError
from rollenv.rollout.filters import preferred
from rollenv.rollout.types import Group, Trajectory
from rollenv.trainers import checkpoint
from rollenv.trainers.config.algorithms import Dpo
from rollenv.trainers.config.section import HomePath, Positive, Section, Weight
from rollenv.trainers.given_episodes import Epochs, Unusable, is_held_out, read_given
from rollenv.trainers.run_dir import RunDir, read_rows

#: The file with the scale of scores.
SCALE = "rollenv_reward.json"

#: Episodes in a forward pass of rewards.
_AT_ONCE = 16

Watch = Callable[[str, int, int, dict[str, float]], None]


class RewardModelConfig(Section):
    """The settings of a reward model's training."""

    data: list[HomePath] = Field(min_length=1)
    """Folders and files of stored episodes, whose groups are compared, or of rows with chosen and rejected."""
    model: HomePath = "smollm2-135m"
    """The language model that gets a head."""
    where: str = ""
    """Condition on stored episodes."""
    run_dir: HomePath = ""
    seed: int = Field(0, ge=0)
    size: int = Field(32, ge=1)
    """Pairs per update."""
    epochs: Positive = 1.0
    lr: Positive = 1e-5
    smoothing: float = Field(0.0, ge=0, lt=0.5)
    """The share of pairs that are labelled the wrong way."""
    margin: Weight = 0.0
    """The wanted difference of scores, for a difference of returns of 1."""
    centre: Weight = 0.0
    """Coefficient of the squared sum of a pair's scores, which keeps their mean near 0 (usually 0.01)."""
    held_out: float = Field(0.1, ge=0, lt=1)
    """The share of tasks whose pairs are never trained on."""
    unusable: Literal["error", "drop"] = "error"
    """Treatment of a pair that cannot be learned, as in ``batches.unusable``."""
    max_grad_norm: Positive = 1.0
    micro_batch_tokens: int = Field(16_384, ge=1)
    """Maximum number of tokens in a forward pass, padding included."""
    checkpoint_every: int = Field(50, ge=1)

    @field_validator("data", mode="before")
    @classmethod
    def _one_or_more(cls, data: Any) -> Any:
        return [data] if isinstance(data, str) else data


@dataclass(frozen=True, slots=True)
class Pair:
    """The tokens of a preferred and a rejected episode, and the difference of their returns."""

    chosen: Ids
    rejected: Ids
    difference: float
    margin: float = 0.0
    """The wanted difference of scores, if the row says it."""


class RewardModel:
    """A transformers model for sequence classification with one output.

    Args:
        mean: mean of the scores of the pairs that were trained on.
        std: their standard deviation.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any, mean: float = 0.0, std: float = 1.0, version: int = 0):
        self.model, self.tokenizer, self.mean, self.std, self.version = model, tokenizer, mean, std, version

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
    def load(cls, path: str | Path) -> RewardModel:
        """Load a trained one: a checkpoint, or a run's folder, whose newest checkpoint counts.

        Raises:
            UsageError: there is none.
        """
        folder = newest_checkpoint(Path(path))
        if not (folder / SCALE).is_file():
            raise UsageError(f"{path} is no reward model of `rollenv reward-model`: it has no {SCALE}")
        check_model(str(folder))
        with reading(str(folder), "a reward model"):
            scale = json.loads((folder / SCALE).read_text())
            model = AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=1, dtype=torch.float32, **NO_CODE
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, **NO_CODE)
            return cls(model.eval(), tokenizer, float(scale["mean"]), float(scale["std"]))

    def save(self, folder: str | Path) -> None:
        """Write the model in Hugging Face format, with the scale of its scores."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        Path(folder, SCALE).write_text(json.dumps({"mean": self.mean, "std": self.std}) + "\n")

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
        """Score episodes in standard deviations above the mean of those that were trained on."""
        played = sorted(
            (i for i, t in enumerate(trajectories) if t.turns), key=lambda i: len(whole_ids(trajectories[i]))
        )
        scores = [0.0] * len(trajectories)
        with torch.no_grad():
            for piece in (played[i : i + _AT_ONCE] for i in range(0, len(played), _AT_ONCE)):
                found = self.scores([whole_ids(trajectories[i]) for i in piece]).tolist()
                for i, score in zip(piece, found, strict=True):
                    scores[i] = score
        return [(score - self.mean) / self.std for score in scores]


def whole_ids(trajectory: Trajectory) -> Ids:
    """Return the last prompt and answer of an episode: for a conversation, all of it."""
    last = trajectory.turns[-1]
    return (*last.prompt_ids, *last.response_ids)


def pairs_of(groups: Sequence[Group]) -> list[Pair]:
    """Return every two episodes of a group with different returns and different tokens."""
    pairs = []
    for group in groups:
        returns, tokens = [t.own_reward for t in group], [whole_ids(t) for t in group]
        for better, worse in preferred(returns, tokens):
            margin = float(group.trajectories[better].record.get("margin", 0.0))
            pairs.append(Pair(tokens[better], tokens[worse], returns[better] - returns[worse], margin))
    return pairs


def pair_losses(
    chosen: Tensor, rejected: Tensor, differences: Tensor, settings: RewardModelConfig, margins: Tensor | float = 0.0
) -> Tensor:
    """-(1 - ε) log σ(d) - ε log σ(-d) + c (s_w + s_l)², d = s_w - s_l - margin (Bradley-Terry; Llama 2's margin).

    Args:
        chosen: (P,) scores of the preferred episodes.
        rejected: (P,)
        differences: (P,) of the returns, which the margin multiplies.
        margins: (P,) of rows that say their own, in addition.

    Returns:
        (P,)
    """
    apart, wrong = chosen - rejected - settings.margin * differences - margins, settings.smoothing
    losses = -(1 - wrong) * logsigmoid(apart) - wrong * logsigmoid(-apart)
    return losses + settings.centre * (chosen + rejected) ** 2


class RewardModelTrainer:
    """Trains a reward model on pairs; a run whose folder has checkpoints goes on from the last with equal numbers."""

    def __init__(self, config: RewardModelConfig, run: RunDir, watch: Watch = lambda *_: None):
        self.config, self.run, self.watch = config, run, watch
        reader = LocalAgent.load(config.model, plays=False)
        reader.prompt = ChatPrompt()
        unusable = Unusable(config.unusable)
        groups = read_given(config.data, reader, Dpo(), config.where, watch, unusable)
        unusable.tell()
        self.held_out = pairs_of([group for group in groups if is_held_out(group, config.held_out)])
        self.pairs = pairs_of([group for group in groups if not is_held_out(group, config.held_out)])
        if not self.pairs:
            raise UsageError(
                f"{', '.join(config.data)} has no pair to train on: episodes of one task with different returns, or "
                "rows with chosen and rejected"
            )
        del reader
        self.epochs = Epochs(self.pairs, config.seed, min(config.size, len(self.pairs)))
        self.updates = math.ceil(self.epochs.batches * config.epochs)
        self.model, self.iteration = RewardModel.begin(config.model, config.seed), 0
        self.adam = torch.optim.AdamW(self.model.model.parameters(), lr=config.lr, weight_decay=0.0)
        if saved := checkpoint.checkpoints(run.checkpoints):
            checkpoint.check_manifest(saved[-1])
            self.model = RewardModel.load(saved[-1])
            self.adam = torch.optim.AdamW(self.model.model.parameters(), lr=config.lr, weight_decay=0.0)
            self.adam.load_state_dict(checkpoint.states_of(saved[-1])["adam"])
            self.iteration = int(saved[-1].name.removeprefix("step-"))
        self.model.model.eval()  # no dropout
        if run.path.exists():
            run.cut_back(self.iteration)

    def fit(self) -> dict[str, float]:
        """Train to the end, and return the last row of metrics."""
        self.run.path.mkdir(parents=True, exist_ok=True)
        if not self.iteration and not read_rows(self.run.metrics_file):
            self._log(0, self.measure())
        while self.iteration < self.updates:
            metrics = self.update(self.epochs.batch(self.iteration))
            self.iteration += 1
            done = self.iteration == self.updates
            if done or self.iteration % self.config.checkpoint_every == 0:
                metrics |= self.measure()
                self._log(self.iteration, metrics)
                self._save()
            else:
                self._log(self.iteration, metrics)
        return read_rows(self.run.metrics_file)[-1]

    def update(self, pairs: Sequence[Pair]) -> dict[str, float]:
        """Take one optimizer step; the loss is the mean over pairs, whatever the micro-batches."""
        totals: dict[str, float] = {}
        for piece in self._pieces(pairs):
            chosen, rejected = self._scores(piece)
            losses = pair_losses(chosen, rejected, *self._wanted(piece))
            (losses.sum() / len(pairs)).backward()
            numbers = {"loss": losses, "accuracy": chosen > rejected, "margin": chosen - rejected, "score": chosen}
            for name, values in numbers.items():
                totals[name] = totals.get(name, 0.0) + float(values.detach().double().sum()) / len(pairs)
        totals["grad_norm"] = float(
            torch.nn.utils.clip_grad_norm_(self.model.model.parameters(), self.config.max_grad_norm)
        )
        for group in self.adam.param_groups:
            group["lr"] = self.config.lr * (1 - 0.9 * self.iteration / self.updates)
        if not math.isfinite(totals["grad_norm"]):
            raise UsageError(f"the gradient of update {self.iteration + 1} is not finite; lower lr")
        self.adam.step()
        self.adam.zero_grad()
        return totals

    def measure(self) -> dict[str, float]:
        """Compute the loss and accuracy on held-out tasks, and the accuracy of a rule that looks at lengths only."""
        if not self.held_out:
            return {}
        apart, losses = [], []
        with torch.no_grad():
            for piece in self._pieces(self.held_out):
                chosen, rejected = self._scores(piece)
                apart.append(chosen - rejected)
                losses.append(pair_losses(chosen, rejected, *self._wanted(piece)))
        longer = sum(len(pair.chosen) > len(pair.rejected) for pair in self.pairs) / len(self.pairs)
        sign = 1 if longer >= 0.5 else -1
        by_length = [sign * (len(pair.chosen) - len(pair.rejected)) for pair in self.held_out]
        return {
            "eval/loss": float(torch.cat(losses).mean()),
            "eval/accuracy": float((torch.cat(apart) > 0).double().mean()),
            "eval/accuracy_of_lengths": sum((d > 0) + 0.5 * (d == 0) for d in by_length) / len(by_length),
            "eval/pairs": float(len(self.held_out)),
        }

    def _scores(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        scores = self.model.scores([*(pair.chosen for pair in pairs), *(pair.rejected for pair in pairs)])
        return scores[: len(pairs)], scores[len(pairs) :]

    def _wanted(self, pairs: Sequence[Pair]) -> tuple[Tensor, RewardModelConfig, Tensor]:
        """Return the differences of returns, the settings and the margins of pairs."""
        device = self.model.model.device
        differences = torch.tensor([pair.difference for pair in pairs], device=device)
        return differences, self.config, torch.tensor([pair.margin for pair in pairs], device=device)

    def _pieces(self, pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
        """Split pairs into micro-batches by their padded size."""
        piece: list[Pair] = []
        widest = 0
        for pair in sorted(pairs, key=lambda pair: max(len(pair.chosen), len(pair.rejected))):
            wide = max(widest, len(pair.chosen), len(pair.rejected))
            if piece and 2 * wide * (len(piece) + 1) > self.config.micro_batch_tokens:
                yield piece
                piece = []
            piece.append(pair)
            widest = wide
        if piece:
            yield piece

    def _log(self, iteration: int, metrics: dict[str, float]) -> None:
        self.run.append(self.run.metrics_file, {"iteration": iteration, **metrics})
        self.watch("training", iteration, self.updates, metrics)

    def _save(self) -> None:
        """Write a checkpoint, with the scale of scores on pairs that were trained on."""
        with torch.no_grad():
            shown = self.pairs[:: max(1, len(self.pairs) // 200)]
            scores = torch.cat([part for piece in self._pieces(shown) for part in self._scores(piece)])
        self.model.mean, self.model.std = float(scores.mean()), max(float(scores.std(unbiased=False)), 1e-6)
        self.model.version = self.iteration
        saved: Any = self.model
        state: Any = self.adam
        checkpoint.save(self.run.checkpoints, self.iteration, saved, {"adam": state}, keep=2)

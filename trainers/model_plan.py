"""The facts about a model before its weights are loaded, without a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.agents.engines.base import attach_vision
from rollenv.agents.gguf import gguf_of
from rollenv.agents.model_files import NO_CODE, check_model, reading
from rollenv.core.errors import UsageError
from rollenv.core.plugins import entry_points
from rollenv.trainers.config import TrainConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: File names of saved weights: one file, or an index of several.
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class ModelPlan:
    """The facts about a model before its weights are loaded."""

    about: str
    context: int | None = None
    """Maximum length of prompt and response together, if known."""
    tokenizer: PreTrainedTokenizerBase | None = None
    settings: Any = None
    """The model's configuration."""


def model_plan(config: TrainConfig) -> ModelPlan:
    """Return the plan of ``model.path``, without loading weights and without a network."""
    path = config.model.path
    if path == "tiny":
        return ModelPlan("tiny: built and warmed up on the spot", config.model.size.context)
    if file := gguf_of(path):
        return _folder_plan(path, file.parent, gguf_file=file.name)
    check_model(path)
    if Path(path).is_dir():
        return _folder_plan(path, Path(path))
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(path, "config.json")
    if not isinstance(found, str):
        return ModelPlan(f"{path}: not in the hub's cache here; the run would download it")
    return _folder_plan(path, Path(found).parent)


def teacher_plan(config: TrainConfig) -> ModelPlan | None:
    """Return the plan of ``distill.path``; None without a separate teacher."""
    path = getattr(config.distill, "path", None)
    own = config.model.model_copy(update={"path": path})
    return model_plan(config.model_copy(update={"model": own})) if path else None


def _folder_plan(name: str, folder: Path, **how: str) -> ModelPlan:
    """Read the configuration and tokenizer of a model."""
    from transformers import AutoConfig, AutoTokenizer

    from rollenv.agents.vision import load_vision

    if not how and not any(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        raise UsageError(f"cannot load a model from {name!r}: {folder} holds no weights (*.safetensors)")
    with reading(str(folder / how.get("gguf_file", ""))):
        settings: Any = AutoConfig.from_pretrained(folder, local_files_only=True, **NO_CODE, **how)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **NO_CODE, **how)
    context = getattr(settings.get_text_config(), "max_position_embeddings", None)
    attach_vision(load_vision(str(folder), tokenizer, settings, {"local_files_only": True, **NO_CODE}), tokenizer)
    return ModelPlan(f"{name}: {settings.model_type}, context {context or 'unknown'}", context, tokenizer, settings)


def blindness(config: TrainConfig) -> str:
    """Return the reason why the trained model cannot see; empty if it can."""
    settings = model_plan(config).settings
    if config.model.path == "tiny" or settings is None:  # built for the environment, or not known yet
        return ""
    from rollenv.agents.vision import GROUP, why_blind

    return "" if settings.model_type in entry_points(GROUP) else why_blind(settings)

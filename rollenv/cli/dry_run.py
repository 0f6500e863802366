"""``rollenv train --dry-run``: what a run would do, found out without starting it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rollenv.agents.prompts import StepPrompt
from rollenv.cli.common import console
from rollenv.core import Env, UsageError
from rollenv.registry import make

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rollenv.trainers.config import TrainConfig

#: What weights are saved as: one file, or an index of several.
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class ModelPlan:
    """What is known of a model before its weights are loaded."""

    about: str
    context: int | None = None
    """The most tokens of prompt and response together, where that is known."""
    tokenizer: PreTrainedTokenizerBase | None = None


def dry_run(config: TrainConfig) -> None:
    """Print the settings, the first prompt and what an iteration needs. No weights are loaded, nothing is written.

    Raises:
        UsageError: the environment cannot be made with these settings, or there is no such model.
        MissingData, MissingExtra: what the environment needs is not there.
    """
    plan = model_plan(config)
    env = make(config.env.id, **config.env.kwargs)
    make(config.env.id, **config.eval.kwargs).close()
    prompt = first_prompt(env, config)
    turns = most_turns(env)
    env.close()
    console.print_json(json.dumps(config.model_dump(mode="json")))
    console.print("\n[bold]the first prompt[/]")
    console.print(prompt, markup=False, soft_wrap=True)
    table = Table(box=None, show_header=False)
    for name, value in demand(config, plan, prompt, turns).items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else value)
    console.print("\n[bold]what the run needs[/]")
    console.print(table)
    console.print("nothing was started")


def first_prompt(env: Env, config: TrainConfig) -> str:
    """What the model reads first in a training task, before a chat template; the task follows the run's seed."""
    observation, info = env.reset(config.seed)
    return StepPrompt(**config.prompt.model_dump()).render(observation, [], observation, info)


def most_turns(env: Env) -> int | None:
    """The limit on the turns of an episode, where the environment tells it."""
    for name in ("max_turns", "max_steps"):
        if isinstance(limit := getattr(env, name, None), int):
            return limit
    return None


def demand(config: TrainConfig, plan: ModelPlan, prompt: str, turns: int | None) -> dict[str, int | str]:
    """What an iteration and the whole run need, at most; by what it is."""
    rollout, unknown = config.rollout, "unlimited by the environment"
    trajectories = rollout.groups_per_batch * rollout.group_size
    out: dict[str, int | str] = {
        "model": plan.about,
        "trajectories an iteration": trajectories,
        "turns an iteration, at most": trajectories * turns if turns else unknown,
        "response tokens an iteration, at most": trajectories * turns * rollout.max_new_tokens if turns else unknown,
    }
    if plan.tokenizer is not None:
        out["tokens of the first prompt"] = prompt_length(plan.tokenizer, prompt, config.prompt.chat)
    else:
        out["characters of the first prompt"] = len(prompt)
    if plan.context and turns:
        out["prompt tokens an iteration, at most"] = trajectories * turns * (plan.context - 1)
    out["iterations"] = config.iterations
    out["trajectories in all"] = config.iterations * trajectories
    evaluations = 1 + -(-config.iterations // config.eval.every)
    out["evaluation episodes in all"] = evaluations * config.eval.episodes
    return out


def prompt_length(tokenizer: PreTrainedTokenizerBase, prompt: str, chat: bool) -> int:
    """Tokens of a prompt, with the chat template if there is one."""
    if chat and tokenizer.chat_template:
        message = [{"role": "user", "content": prompt}]
        prompt = str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
    return len(tokenizer.encode(prompt, add_special_tokens=False))


def model_plan(config: TrainConfig) -> ModelPlan:
    """What ``model.path`` stands for, without loading weights and without a network.

    Raises:
        UsageError: it is no folder with a model, and not of the form OWNER/NAME.
    """
    path = config.model.path
    if path == "tiny":
        return ModelPlan("tiny: built and warmed up on the spot", config.model.size.context)
    if Path(path).is_dir():
        return _folder_plan(path, Path(path))
    if path.count("/") != 1 or path.startswith((".", "/")) or path.endswith("/"):
        raise UsageError(f"cannot load a model: there is no folder {path!r}, and a hub name reads OWNER/NAME")
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(path, "config.json")
    if not isinstance(found, str):
        return ModelPlan(f"{path}: not in the hub's cache here; the run would download it")
    return _folder_plan(path, Path(found).parent)


def _folder_plan(name: str, folder: Path) -> ModelPlan:
    """Reads the model's configuration and tokenizer."""
    from transformers import AutoConfig, AutoTokenizer

    if not any(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        raise UsageError(f"cannot load a model from {name!r}: {folder} holds no weights (*.safetensors)")
    try:
        settings: Any = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot load a model from {name!r}: {error}") from error
    context = getattr(settings, "max_position_embeddings", None)
    return ModelPlan(f"{name}: {settings.model_type}, context {context or 'unknown'}", context, tokenizer)

"""``rollenv train --dry-run``: a preview of a run, which is not started."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.markup import escape

from rollenv.agents.engines.base import vision_of
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.prompts.session import chat_role_of, shown
from rollenv.agents.prompts.step import as_text
from rollenv.cli.common import console, print_table
from rollenv.core.env import Env
from rollenv.core.errors import MissingExtra, UsageError
from rollenv.core.pictures import pictures
from rollenv.core.registry import spec
from rollenv.trainers.config import TrainConfig, differences
from rollenv.trainers.config.tasks import EnvConfig
from rollenv.trainers.model_plan import ModelPlan, model_plan, teacher_plan
from rollenv.trainers.preflight import check_player, env_of, preflight, reset_env, try_environments

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def dry_run(config: TrainConfig) -> None:
    """Print the settings, the first prompt and what an iteration needs. No weights are loaded, nothing is written."""
    preflight(config)
    if not config.env.id:  # given rows, which no environment asks for
        _print_differences(config)
        _print_table("[bold]the rows[/]", rows_of(config))
        _end(config)
        return
    plan, teacher = model_plan(config), teacher_plan(config)
    try_environments(config)
    trained = config.environments()[0]
    env = env_of(trained)
    prompt = first_prompt(env, config, plan.tokenizer)
    seen, turns = tokens_of_pictures(env, config, plan), most_turns(env)
    env.close()
    refuse_without_room(config, plan, prompt, seen)
    _print_differences(config)
    console.print("\n[bold]the first prompt[/]")
    console.print(prompt, markup=False, soft_wrap=True)
    needs: dict[str, int | str] = {"teacher": teacher.about} if teacher else {}
    if seen:
        needs["tokens of pictures in a prompt"] = seen
        if config.model.path == "tiny":
            plan = replace(plan, about="tiny, a Qwen2-VL: built and warmed up on the spot")
    if config.algorithm.name in ("gigpo", "hgpo"):
        needs["states of turns"] = states_of_turns(trained, config.seed)
    needs |= demand(config, plan, prompt, turns, seen)
    _print_table("[bold]what the run needs[/]", needs)
    if plan.settings is not None:
        each = int(needs.get("tokens of the first prompt", 0)) + config.rollout.max_new_tokens
        batch = config.rollout.groups_per_batch * config.rollout.group_size * turns * each if turns else math.inf
        memory = dict(memory_rows(config, plan, teacher, batch))
        _print_table("[bold]memory of an update on its device[/] (besides caches while playing)", memory)
    _end(config)


def _print_differences(config: TrainConfig) -> None:
    console.print("[bold]what differs from the defaults[/]")
    for line in differences(config):
        console.print(line, markup=False, soft_wrap=True)


def _end(config: TrainConfig) -> None:
    console.print("\n[bold]all settings[/]")
    console.print_json(data=config.model_dump(mode="json"))
    for text in lacking_here(config):
        console.print(f"[bold red]here the run would stop:[/] {escape(text)}", soft_wrap=True)
    console.print("nothing was started")


def rows_of(config: TrainConfig) -> dict[str, int | str]:
    """Return how many given rows the model can learn and how long they are, and why others cannot be learned."""
    import torch

    from rollenv.agents.local import LocalAgent, text_model
    from rollenv.trainers.config.algorithms import Preference
    from rollenv.trainers.config.batches import StoredConfig
    from rollenv.trainers.prompts import prompt_of
    from rollenv.trainers.stored_episodes import Unusable, read_stored

    batches, unusable = config.batches, Unusable("drop")
    assert isinstance(batches, StoredConfig)
    try:
        plan = model_plan(config)
    except MissingExtra as error:
        return {"rows": f"not read: {error}"}
    if plan.tokenizer is None:
        return {"rows": f"not read: {plan.about}"}
    with torch.device("meta"):
        model = text_model("from_config", plan.settings)
    prompt = prompt_of(config.prompt, config.env, chats=config.templates)
    reader = LocalAgent(model, plan.tokenizer, prompt, plays=False)
    compared = config.algorithm if isinstance(config.algorithm, Preference) else None
    found = read_stored(batches.data, reader, compared, batches.where, unusable=unusable)
    lengths = [len(turn.prompt_ids) + len(turn.response_ids) for group in found for t in group for turn in t.turns]
    rows: dict[str, int | str] = {"rows": len(found), "tokens of the longest": max(lengths, default=0)}
    if unusable.reasons:
        about = f"{len(unusable.reasons)}, the first: {unusable.reasons[0]}"
        if batches.unusable != "drop":
            about += "; the run would stop: set batches.unusable=drop to leave them out"
        rows["rows that cannot be learned"] = about
    return rows


def lacking_here(config: TrainConfig) -> list[str]:
    """Return what a run needs that this machine, or the player's address, does not have now."""
    import torch

    lacking, there = [], torch.cuda.device_count()
    roles = config.placement.roles
    gpus = sum(role.actors * role.gpus for role in (roles.reference, roles.teacher, roles.rewards))
    gpus += config.placement.ranks * (config.placement.devices == "gpu")
    gpus += config.rollout.shards * float(config.rollout.shard_options.get("num_gpus", 0))
    if gpus > there and not os.environ.get("RAY_ADDRESS"):
        lacking.append(f"it needs {gpus:g} GPU, and there are {there}; on a cluster, set RAY_ADDRESS")
    try:
        check_player(config)
    except UsageError as error:
        lacking.append(str(error))
    return lacking


def _print_table(title: str, rows: Mapping[str, int | str]) -> None:
    console.print(f"\n{title}")
    print_table((), ([name, f"{value:,}" if isinstance(value, int) else value] for name, value in rows.items()))


#: Random episodes for the share of recurring states, and their maximum number of turns.
_LOOKS, _TURNS = 4, 50


def states_of_turns(trained: EnvConfig, seed: int) -> str:
    """Return the source of GiGPO's and HGPO's states, and the share that recurs in random episodes of one task."""
    named = "state_key" in spec(trained.id).abilities
    source = "the environment's state_key" if named else f"the observation, for {trained.id} names no state key"
    if "random_action" not in spec(trained.id).abilities:
        return source
    from rollenv.agents.base import RandomAgent
    from rollenv.rollout import EpisodeLimits, RolloutManager, Task
    from rollenv.trainers.credit import recurring

    task = Task(trained.id, seed, trained.kwargs, trained.wrappers, trained.options)
    with RolloutManager(RandomAgent(), limits=EpisodeLimits(turns=_TURNS)) as manager:
        (group,) = manager.collect([task], _LOOKS)
    turns = [turn for trajectory in group for turn in trajectory.turns]
    share = recurring(turns, [0] * len(turns))
    return f"{source}; {share:.0%} of {len(turns)} turns of {_LOOKS} random episodes are in a state that recurs"


def memory_rows(
    config: TrainConfig, plan: ModelPlan, teacher: ModelPlan | None, batch: float = math.inf
) -> list[tuple[str, str]]:
    """Return rows with the estimated memory of an update by parts (:mod:`rollenv.trainers.memory`).

    Args:
        batch: maximum tokens of a batch, which may be less than a micro-batch.
    """
    import psutil
    import torch

    from rollenv.trainers import memory

    rollout, dtype = config.rollout, getattr(plan.settings, "dtype", None)
    longest = rollout.max_prompt_tokens + rollout.max_new_tokens if rollout.max_prompt_tokens else 0
    shape, teaching = memory.shape_of(plan.settings), 0
    if teacher and teacher.settings is not None:
        teaching = memory.shape_of(teacher.settings).parameters
    if getattr(config.distill, "decay", 0):
        teaching = shape.parameters  # the moving average of the model
    how = {"player": 4 if dtype is None else dtype.itemsize, "teacher": teaching}
    together = max(min(config.optimizer.micro_batch_tokens, batch), longest)
    parts = memory.update_memory(shape, config, int(together), **how)
    rows, there = memory.table(parts), psutil.virtual_memory().total
    if not torch.cuda.is_available() and sum(parts.values()) > there:
        rows.append(("more than this machine's", f"{there / 1e9:.2f} GB: lower optimizer.micro_batch_tokens"))
    for size in memory.DEVICES:
        most = memory.longest_sample(shape, config, size, **how)
        rows.append((f"tokens at once on {size} GB", f"{most:,}" if most else "the model does not fit"))
    return rows


def first_prompt(env: Env, config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None = None) -> str:
    """Return the first prompt of a training task as the model reads it."""
    from rollenv.agents.prompts.chat_format import ChatFormat
    from rollenv.agents.prompts.conversation import Conversation
    from rollenv.trainers.prompts import prompt_of

    trained = config.environments()[0]
    observation, info = reset_env(env, trained, config.seed)
    prompt = prompt_of(config.prompt, trained, chats=config.templates)
    form = None
    if tokenizer and tokenizer.chat_template:
        form = ChatFormat.from_settings(tokenizer, prompt.template_args)
    if isinstance(prompt, StepPrompt):
        text = prompt.render(observation, [], observation, info)
        if form is None or not prompt.chat:
            return as_text(prompt.examples, text)
        return form.decode(form.prompt(text, prompt.examples, pictures(info) if vision_of(tokenizer) else ()))
    if form is None:
        return as_text(prompt.examples, "\n\n".join(filter(None, (prompt.system, shown(observation, info)))))
    talk = Conversation(form, prompt.system or None, examples=prompt.examples)
    talk.add(chat_role_of(info), shown(observation, info), pictures(info) if vision_of(tokenizer) else ())
    return form.decode(talk.prompt())


def tokens_of_pictures(env: Env, config: TrainConfig, plan: ModelPlan) -> int:
    """Return the number of tokens of the first observation's pictures."""
    images = pictures(reset_env(env, config.environments()[0], config.seed)[1])
    if config.model.path == "tiny":
        from rollenv.agents.tiny.model import picture_tokens

        return sum(picture_tokens(image, config.model.size) for image in images)
    family = vision_of(plan.tokenizer)
    return sum(map(family.count, images)) if family else 0


def refuse_without_room(config: TrainConfig, plan: ModelPlan, prompt: str, seen: int = 0) -> None:
    """Raise UsageError if a prompt, with the tokens of its pictures, leaves no room for an answer."""
    if plan.tokenizer is None:
        return
    length = len(plan.tokenizer.encode(prompt, add_special_tokens=False)) + seen
    room = min(config.rollout.max_prompt_tokens or math.inf, plan.context - 1 if plan.context else math.inf)
    if length > room:
        raise UsageError(
            f"the first prompt has {length:,} tokens, and there is room for {room:,.0f}: shorten it (prompt.template, "
            "prompt.examples, prompt.max_observation), or raise rollout.max_prompt_tokens or the model's context"
        )


def most_turns(env: Env) -> int | None:
    """Return the maximum number of turns of an episode, if the environment has one."""
    for name in ("max_turns", "max_steps"):
        if isinstance(limit := getattr(env, name, None), int):
            return limit
    return None


def demand(config: TrainConfig, plan: ModelPlan, prompt: str, turns: int | None, seen: int = 0) -> dict[str, int | str]:
    """Return upper bounds for an iteration and the whole run, by kind."""
    rollout = config.rollout
    trajectories = rollout.groups_per_batch * rollout.group_size
    out: dict[str, int | str] = {
        "model": plan.about,
        "trajectories an iteration": trajectories,
        "turns an iteration, at most": "unlimited by the environment",
        "response tokens an iteration, at most": "unlimited by the environment",
    }
    if turns:
        out["turns an iteration, at most"] = trajectories * turns
        out["response tokens an iteration, at most"] = trajectories * turns * rollout.max_new_tokens
    if plan.tokenizer is not None:
        length = len(plan.tokenizer.encode(prompt, add_special_tokens=False)) + seen
        out["tokens of the first prompt"] = length
    else:
        out["characters of the first prompt"] = len(prompt)
    if plan.tokenizer is not None and turns:
        out["prompt tokens an iteration, about"] = trajectories * turns * length
    out["iterations"] = config.iterations
    out["trajectories in all"] = config.iterations * trajectories
    evaluations = 1 + -(-config.iterations // config.eval.every)
    episodes = config.eval.episodes + sum(part.episodes for part in config.eval.parts)
    out["evaluation episodes in all"] = evaluations * episodes
    return out

"""A recipe for an environment without one: chosen by playing a few episodes with its expert."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from rollenv.agents.base import noisy_expert
from rollenv.agents.gguf import newest_checkpoint
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.prompts.session import AGENT_FILE
from rollenv.core.env import Env
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import RollenvError, Unsolvable, UsageError, describe
from rollenv.core.pictures import Picture, pictures
from rollenv.core.registry import DATA, spec

logger = logging.getLogger(__name__)

#: Episodes played for every share of random actions, and the maximum number of turns.
EPISODES, TURNS = 40, 60

#: Shares of random actions, the largest first, and the minimum success rate at which groups of eight are informative.
NOISES, ENOUGH = (0.85, 0.7, 0.5, 0.3, 0.1), 0.2

#: The largest share where observations have pictures: with a larger one, imitation does not teach the model to see.
_SEEING = 0.5

#: Characters that the tiny model's warm-up reads at most, so that long texts do not take minutes.
_TEXT = 12_000_000

#: Episodes of an evaluation, unless a data set has fewer rows.
_EVALUATED = 200

#: The longest answer, in tokens, that the tiny model imitates.
_LONGEST = 1024

_TINY = {"hidden": 64, "layers": 2, "heads": 2, "intermediate": 160, "vocabulary": 600}


@dataclass
class ExpertEpisodes:
    """Success rate, prompts and actions of some episodes of a noisy expert."""

    success: float = 0.0
    least: float = math.inf
    """The smallest reward of a successful episode."""
    prompts: list[tuple[str, tuple[Picture, ...]]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)


def choose_recipe(env_id: str, model: str = "tiny", kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Choose the settings of a run on any registered id.

    The tiny model imitates the id's expert with the largest share of random actions that still succeeds in 20 % of its
    episodes; lengths follow from the texts of those episodes. Another model gets the default prompt, with answers of
    the expert as examples if there is one.
    """
    env_spec = spec(env_id)
    expert = {"oracle", "random_action"} <= env_spec.abilities
    if model == "tiny" and not expert:
        raise UsageError(
            f"{env_id} has no expert that the tiny model could imitate: define oracle_action and sample_random_action "
            "(registered as abilities), or give a pretrained model: model=PATH, a hub name or smollm2-135m"
        )
    with naming(env_id):
        trained, tested = _splits(env_spec, kwargs or {})
        episodes = _EVALUATED
        if env_spec.indexed:
            with contextlib.closing(env_spec.make(**tested)) as env:
                episodes = min(episodes, env.num_tasks())
            if trained == tested and "split" not in tested:
                logger.warning("%s: evaluation plays the tasks that are trained on: there is no test split", env_id)
    recipe: dict[str, Any] = {
        "iterations": 40,
        "checkpoint_every": 20,
        "env": {"id": env_id, "kwargs": trained},
        "eval": {"kwargs": {**tested}, "episodes": episodes, "every": 10},
        "algorithm": {"name": "grpo"},
    }
    if model != "tiny":
        form: dict[str, Any] = {"examples": 3} if expert else {}
        if trained.get("calls") == "native":  # nothing but the template describes the functions
            form |= {"kind": "conversation", "tools": "template"}
        prompt, answer = _as_it_played(model) or (form, 256)
        return recipe | {
            "model": {"path": model},
            "prompt": prompt,
            "rollout": {"groups_per_batch": 16, "group_size": 8, "max_new_tokens": answer},
            "optimizer": {"lr": 2e-5},
        }
    noise, played = _weakest(env_spec, trained)
    if played.least < 0:  # an episode that fails at once would earn more than a successful one
        recipe["rewards"] = {"success_only": True}
    return recipe | _tiny(noise, played)


def _as_it_played(model: str) -> tuple[dict[str, Any], int] | None:
    """Return the prompt and the length of answers with which a run saved a model; None for another model."""
    file = newest_checkpoint(Path(model)) / AGENT_FILE
    if not file.is_file():
        return None
    saved = json.loads(file.read_text(encoding="utf-8"))
    form = {key: value for key, value in saved["prompt"].items() if key != "max_tokens" and value}
    if "examples" in form:
        form["examples"] = [{"user": user, "assistant": assistant} for user, assistant in form["examples"]]
    chats = "system" in saved["prompt"]
    if not chats:
        form["chat"] = saved["prompt"]["chat"]
    return {"kind": "conversation" if chats else "step", **form}, saved["sampling"]["max_new_tokens"]


@contextlib.contextmanager
def naming(env_id: str) -> Iterator[None]:
    """Convert an environment's own exceptions to UsageError with its id."""
    try:
        yield
    except RollenvError:
        raise
    except Exception as error:
        raise UsageError(
            f"{env_id} raised {describe(error)}: fix the environment; `rollenv check {env_id}` tests it"
        ) from error


def _splits(env_spec: EnvSpec, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of training and of evaluation: two splits, if the environment has them.

    If tasks of both splits begin alike, they differ only in a secret, such as a number to guess. Training on one split
    would teach that the secrets of the other never occur, so evaluation then differs in its seeds alone.
    """
    if "split" in kwargs:
        return kwargs, kwargs
    splits = {**kwargs, "split": "train"}, {**kwargs, "split": "test"}
    if env_spec.namespace != DATA and not all(map(env_spec.accepts, splits)):
        return kwargs, kwargs
    prompt = StepPrompt("{instructions}{state}", chat=False)
    prompts = []
    for arguments in splits:
        with contextlib.closing(env_spec.make(**arguments)) as env:
            resets = [env.reset(seed=seed) for seed in range(8)]
        prompts.append({(prompt.render(text, (), text, info), pictures(info)) for text, info in resets})
    return (kwargs, kwargs) if prompts[1] <= prompts[0] else splits


def _tiny(noise: float, played: ExpertEpisodes) -> dict[str, Any]:
    from rollenv.agents.tiny.model import build_tokenizer, picture_tokens
    from rollenv.agents.tiny.settings import TinySize

    def seen_in(images: tuple[Picture, ...]) -> int:
        return sum(picture_tokens(image, TinySize()) for image in images)

    texts = [text for text, _ in played.prompts]
    tokenizer = build_tokenizer(texts + played.actions, _TINY["vocabulary"])
    prompt = max(len(tokenizer.encode(text)) + seen_in(images) for text, images in played.prompts)
    answer = max(len(tokenizer.encode(text)) for text in played.actions)
    if answer > _LONGEST:
        raise UsageError(
            f"answers have up to {answer:,} tokens, too long for the tiny model: use an easier level, or a pretrained "
            "model (model=PATH)"
        )
    context = 1 << (2 * (prompt + answer) - 1).bit_length()  # other episodes have longer texts
    characters = sum(len(text) + 4 * seen_in(images) for text, images in played.prompts) / len(texts)
    if not characters:
        raise UsageError("the environment shows no text, so the tiny model has nothing to answer to")
    return {
        "model": {
            "size": _TINY | {"context": context},
            "warm_up": {
                "noise": noise,
                "episodes": 3000,
                "steps": int(min(900, max(200, _TEXT / (64 * characters)))),
                "batch_size": 64,
                "lr": 3e-3,
            },
        },
        "prompt": {"template": "{state}", "chat": False},
        # an answer of several tokens is followed by an end token
        "rollout": {"groups_per_batch": 32, "group_size": 8, "max_new_tokens": {1: 1}.get(answer, 2 * answer)},
        "loss": {"entropy": 0.01, "final_entropy": 0.1},
        "optimizer": {"lr": 1e-3, "final_lr": 0.2, "minibatch_sequences": 64, "epochs": 2},
    }


def _weakest(env_spec: EnvSpec, kwargs: dict[str, Any]) -> tuple[float, ExpertEpisodes]:
    """Return the largest share of random actions at which the expert succeeds often enough, and its episodes."""
    with naming(env_spec.id), contextlib.closing(env_spec.make(**kwargs)) as env:
        for noise in NOISES:
            try:
                played = _play(env, noise)
            except RollenvError:
                raise
            except Exception as error:  # the environment's own
                raise UsageError(
                    f"the expert of {env_spec.id} raised {describe(error)}: fix the environment "
                    f"(`rollenv check {env_spec.id}` tests it), or use a pretrained model (model=PATH)"
                ) from error
            seeing = any(images for _, images in played.prompts)
            if played.success >= ENOUGH and not (seeing and noise > _SEEING):
                return noise, played
    raise UsageError(
        f"the expert of {env_spec.id} succeeds in {played.success:.0%} of {EPISODES} episodes of at most {TURNS} "
        "turns, even with few random actions: there is nothing to imitate. Say info['success'] with the last step, use "
        "an easier level, or a pretrained model (model=PATH)"
    )


def _play(env: Env, noise: float) -> ExpertEpisodes:
    played, prompt = ExpertEpisodes(), StepPrompt("{state}", chat=False)
    console, doing = Console(stderr=True), f"{env}: expert with {noise:.0%} random actions"
    for seed in track(range(EPISODES), doing, console=console, transient=True, disable=not console.is_terminal):
        rng = random.Random(seed)
        observation, info = env.reset(seed=seed)
        instructions, total = observation, 0.0
        for _ in range(TURNS):
            played.prompts.append((prompt.render(instructions, (), observation, info), pictures(info)))
            action = noisy_expert(env, noise, rng)
            if action is None:
                break
            with contextlib.suppress(Unsolvable):
                played.actions.append(env.oracle_action())
            played.actions += (action, env.sample_random_action())
            observation, reward, terminated, truncated, info = env.step(action)
            total += float(reward)
            if terminated or truncated:
                if env.players > 1 or info.get("success"):  # of a game, the end is enough
                    played.success += 1 / EPISODES
                    played.least = min(played.least, total)
                break
    return played

"""Warm-up of the tiny model by imitation of a noisy expert, as a start for reinforcement learning.

Without pretrained weights, the model first has to learn to read the environment's text. It is trained on episodes in
which a share of an expert's actions is replaced by random ones, and learns the distribution of the noisy expert's
actions: sampled, it succeeds about as rarely, and reinforcement learning can find the expert's actions.

This is no supervised fine-tuning of a run (``rollenv sft``), by measurement with the recipe sokoban: that takes 100 CPU
seconds for as many episodes and updates instead of 70, needs the tokenizer that the demonstrations give, and imitates
the expert itself, which leaves nothing to find (it solves 89 %). AdamW without Muon ends at 84 % instead of 92 %.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rollenv.agents.base import ContextFull
from rollenv.agents.engines.base import Ids, Sampling
from rollenv.agents.engines.scoring import score
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.tiny.demonstrations import Chat, DemonstratedTurn, Lesson, demonstrate
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.muon import Muon
from rollenv.agents.tiny.settings import TinySize, WarmUp
from rollenv.core.cache import cached
from rollenv.core.env_spec import Wrappers
from rollenv.core.errors import UsageError
from rollenv.core.registry import spec

#: ``report(stage, done, total, numbers)``, called on progress.
Report = Callable[[str, int, int, dict[str, float]], None]

#: Part of the cache key: increment it when a change here, or of an expert, changes the result.
_RECIPE_VERSION = 6

#: Muon's learning rate relative to AdamW's, tuned with the sokoban recipe.
_MUON_LR = 3.3

#: Maximum number of demonstrations that the tokenizer is trained on.
_CORPUS = 20_000

#: Number of demonstrations whose lengths are checked.
_LOOKS = 500


@dataclass(frozen=True)
class Scene:
    """An environment for demonstrations."""

    env_id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""
    wrappers: Wrappers = field(default_factory=dict)
    """Wrappers around the environment."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of every reset."""
    share: float = 1.0
    """Share of the episodes; shares need not add up to 1."""


def tiny_agent(
    scenes: Sequence[Scene],
    prompt: StepPrompt | ChatPrompt,
    sampling: Sampling,
    *,
    size: TinySize,
    warm_up: WarmUp,
    seed: int,
    report: Report = lambda *_: None,
) -> LocalAgent:
    """Build the tiny model and train it on demonstrations, or load it from the cache.

    The cache is ``$ROLLENV_CACHE`` or ``~/.cache/rollenv``.
    """
    key = repr((_RECIPE_VERSION, torch.__version__, scenes, prompt, sampling, size, warm_up, seed))

    def make(folder: Path) -> None:
        _imitate(_lessons(scenes, prompt, warm_up, seed), sampling, size, warm_up, report).save(folder)

    return LocalAgent.load(cached("tiny", hashlib.sha256(key.encode()).hexdigest()[:16], make))


def _lessons(scenes: Sequence[Scene], prompt: StepPrompt | ChatPrompt, warm_up: WarmUp, seed: int) -> list[Lesson]:
    """Create a lesson for each scene, with its share of the episodes."""
    wandering = warm_up.noise if warm_up.wandering is None else warm_up.wandering
    whole = sum(scene.share for scene in scenes)
    lessons = []
    for scene in scenes:
        env_spec = spec(scene.env_id)
        wrapped = replace(env_spec, wrappers={**env_spec.wrappers, **scene.wrappers})
        episodes = max(1, round(warm_up.episodes * scene.share / whole))
        lessons.append(Lesson(wrapped, scene.kwargs, prompt, wandering, seed, episodes, warm_up.turns, scene.options))
    return lessons


def _imitate(
    lessons: Sequence[Lesson], sampling: Sampling, size: TinySize, warm_up: WarmUp, report: Report
) -> LocalAgent:
    shown = [turn for lesson in lessons for turn in _demonstrations(lesson, report)]
    prompt, seed = lessons[0].prompt, lessons[0].seed
    if len(lessons) > 1:
        random.Random(seed).shuffle(shown)  # the tokenizer is trained on the first of them
    read = shown[:_CORPUS]
    corpus = [turn.prompt_text for turn in read] + [each for turn in read for each in (turn.expert, *turn.random)]
    sees = any(turn.sees for turn in shown)
    tokenizer = build_tokenizer(corpus, size.vocabulary, chat=isinstance(prompt, ChatPrompt), sees=sees)
    answer = min(len(tokenizer.encode(turn.expert)) for turn in shown[:_LOOKS])
    model = build_model(size, tokenizer, seed)
    agent = LocalAgent(model, tokenizer, prompt, sampling)
    plain = [(turn.prompt, turn.images) for turn in shown[:_LOOKS] if isinstance(turn.prompt, str)]
    shortest = min((len(agent.encode(text, images)) for text, images in plain), default=0)
    if answer > sampling.max_new_tokens:
        raise UsageError(
            f"no answer of the expert fits into rollout.max_new_tokens={sampling.max_new_tokens}: the shortest has "
            f"{answer} tokens; raise it"
        )
    if shortest >= size.context:
        raise UsageError(
            f"no prompt fits into model.size.context={size.context}: the shortest has {shortest} tokens; raise it, or "
            "shorten prompt.template"
        )
    _fit(agent, shown, warm_up, random.Random(seed), report)
    return agent


def _demonstrations(lesson: Lesson, report: Report) -> list[DemonstratedTurn]:
    """Return the demonstrations of a lesson."""
    shown = demonstrate(lesson, lambda done, total: report("demonstrations", done, total, {}))
    if not shown:
        raise UsageError(f"there is nothing to imitate: the expert of {lesson.spec.id} could finish no episode")
    if not all(turn.prompt_text and turn.expert and all(turn.random) for turn in shown):
        raise UsageError(f"{lesson.spec.id} cannot be imitated: a prompt or an action of the demonstrations is empty")
    return shown


def _fit(
    agent: LocalAgent, shown: Sequence[DemonstratedTurn], warm_up: WarmUp, rng: random.Random, report: Report
) -> None:
    """Minimise the cross-entropy with the noisy expert's distribution over actions."""
    with _coarse_products():
        encode = _encoder(agent)
        matrices = [w for name, w in agent.model.named_parameters() if w.ndim == 2 and "embed" not in name]
        others = [w for name, w in agent.model.named_parameters() if w.ndim != 2 or "embed" in name]
        optimizers = (
            Muon(matrices, warm_up.lr * _MUON_LR, weight_decay=0.01),
            torch.optim.AdamW(others, warm_up.lr, betas=(0.9, 0.95), weight_decay=0.01, fused=True),
        )
        end = max(warm_up.steps, 1)
        schedules = [  # linear warm-up, then linear decay
            torch.optim.lr_scheduler.LambdaLR(one, lambda step: min(1.0, (step + 1) / 30) * (1 - 0.95 * step / end))
            for one in optimizers
        ]
        for step in range(warm_up.steps):
            batch = [row for _ in range(warm_up.batch_size) for row in encode(rng.choice(shown), warm_up.noise, rng)]
            scores = score(agent.model, [prompt for prompt, _, _ in batch], [answer for _, answer, _ in batch])
            weights = scores.mask * torch.tensor([[weight] for _, _, weight in batch])
            loss = -(scores.logprobs * weights).sum() / weights.sum()
            agent.model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.model.parameters(), 1.0)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
            report("imitation", step + 1, warm_up.steps, {"loss": loss.item()})
    agent.model.eval()


def _encoder(agent: LocalAgent) -> Callable[[DemonstratedTurn, float, random.Random], list[tuple[Ids, Ids, float]]]:
    """Return the encoder from turns of a demonstration to (prompt, answer, weight)."""
    one_token = agent.sampling.max_new_tokens == 1
    end = () if one_token else (agent.tokenizer.eos_token_id,)
    answer_ids = functools.cache(lambda answer: (*agent.tokenizer.encode(answer), *end))
    prompt_ids = functools.cache(
        lambda prompt, images: (
            agent.encode(prompt, images) if isinstance(prompt, str) else _chat_ids(agent, prompt, answer_ids)
        )
    )

    def encode(turn: DemonstratedTurn, noise: float, rng: random.Random) -> list[tuple[Ids, Ids, float]]:
        if one_token:  # all answers to a prompt need one forward pass; longer ones need one each, so one is sampled
            answers = [(turn.expert, 1 - noise), *((action, noise / len(turn.random)) for action in turn.random)]
        else:
            answers = [(turn.expert, 1.0)]
            if rng.random() < noise:
                answers = [(rng.choice(turn.random), 1.0)]
        prompt = prompt_ids(turn.prompt, turn.images)
        return [(prompt, answer_ids(answer), weight) for answer, weight in answers]

    return encode


def _chat_ids(agent: LocalAgent, chat: Chat, answer_ids: Callable[[str], Ids]) -> Ids:
    """Return the prompt of a conversation's next answer, as in an episode."""
    talk = agent.conversation()
    try:
        for role, text, images in chat:
            if role == "assistant":
                talk.prompt()
                talk.answer(answer_ids(text))
            else:
                talk.add("tool" if role == "tool" else "user", text, images)
        return talk.prompt()
    except ContextFull as error:
        raise UsageError(
            f"a demonstrated conversation is longer than model.size.context: {error}. Raise that, or limit the turns "
            "(model.warm_up.turns)"
        ) from error


@contextlib.contextmanager
def _coarse_products() -> Iterator[None]:
    """Allow matrix products in bfloat16 while the block runs, if the processor has instructions for them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

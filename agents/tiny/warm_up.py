"""Warming up the tiny model: it imitates a noisy expert, so that reinforcement learning has a hill to climb.

With no weights to download, the model first has to learn to read the environment's text. It is shown episodes in which
an expert's actions are mostly replaced by random ones, and learns to act as that noisy expert did: sampled, it succeeds
about as seldom, while what the expert meant can be found by reinforcement.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rollenv.agents.base import noisy_expert
from rollenv.agents.generation import Ids, Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.scoring import score
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize, WarmUp
from rollenv.core import Env
from rollenv.registry import Wrappers, spec

#: ``report(stage, done, total, numbers)``, called often.
Report = Callable[[str, int, int, dict[str, float]], None]

#: Goes into the cache's key: raise it when a change here changes the result.
_RECIPE_VERSION = 1


def tiny_agent(
    env_id: str,
    env_kwargs: dict[str, Any],
    prompt: StepPrompt,
    sampling: Sampling,
    *,
    size: TinySize,
    warm_up: WarmUp,
    seed: int,
    report: Report = lambda *_: None,
    wrappers: Wrappers | None = None,
) -> LocalAgent:
    """The warmed-up tiny model, from the cache (``$ROLLENV_CACHE`` or ``~/.cache/rollenv``) if it was made before."""
    about = [
        env_id,
        sorted(env_kwargs.items()),
        prompt,
        sampling,
        size,
        warm_up,
        seed,
        *([wrappers] if wrappers else []),
    ]
    key = repr((_RECIPE_VERSION, torch.__version__, *about))
    root = Path(os.environ.get("ROLLENV_CACHE") or Path.home() / ".cache" / "rollenv")
    folder = root / "tiny" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not folder.exists():
        env_spec = spec(env_id)
        env = replace(env_spec, wrappers={**env_spec.wrappers, **(wrappers or {})}).make(**env_kwargs)
        agent = _imitate(env, prompt, sampling, size, warm_up, seed, report)
        _save_whole(agent, folder)
    return LocalAgent.load(folder)


def _save_whole(agent: LocalAgent, folder: Path) -> None:
    """Save so that the folder appears complete or not at all, whoever else is saving it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix="partial-"))
    try:
        agent.save(partial)
        partial.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _imitate(
    env: Env,
    prompt: StepPrompt,
    sampling: Sampling,
    size: TinySize,
    warm_up: WarmUp,
    seed: int,
    report: Report,
) -> LocalAgent:
    rng = random.Random(seed)
    texts, actions = demonstrations(env, prompt, warm_up, rng, report)
    tokenizer = build_tokenizer(texts[:20_000] + actions[:20_000], size.vocabulary)
    agent = LocalAgent(build_model(size, tokenizer, seed), tokenizer, prompt, sampling)
    end = (tokenizer.eos_token_id,) if sampling.max_new_tokens > 1 else ()
    answers = {action: tuple(tokenizer.encode(action)) + end for action in set(actions)}
    rows = [(agent.encode(text), answers[action]) for text, action in zip(texts, actions, strict=True)]
    _fit(agent, rows, warm_up, rng, report)
    return agent


def demonstrations(
    env: Env, prompt: StepPrompt, warm_up: WarmUp, rng: random.Random, report: Report
) -> tuple[list[str], list[str]]:
    """Prompts and the noisy expert's answers to them. An episode that the expert can no longer finish is cut there."""
    texts, actions = [], []
    for episode in range(warm_up.episodes):
        instructions, info = env.reset(rng.getrandbits(32))
        observation = instructions
        turns: list[tuple[str, str]] = []
        over = False
        while not over:
            action = noisy_expert(env, warm_up.noise, rng)
            if action is None:
                break
            texts.append(prompt.render(instructions, turns, observation, info))
            actions.append(action)
            turns.append((observation, action))
            observation, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        if episode % 100 == 99:
            report("demonstrations", episode + 1, warm_up.episodes, {})
    env.close()
    return texts, actions


def _fit(
    agent: LocalAgent, rows: Sequence[tuple[Ids, Ids]], warm_up: WarmUp, rng: random.Random, report: Report
) -> None:
    """Maximise the likelihood of the answers."""
    optimizer = torch.optim.AdamW(agent.model.parameters(), lr=warm_up.lr, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(warm_up.steps):
        for group in optimizer.param_groups:
            group["lr"] = warm_up.lr * min(1.0, (step + 1) / 30) * (1 - 0.95 * step / warm_up.steps)
        batch = [rows[rng.randrange(len(rows))] for _ in range(warm_up.batch_size)]
        scores = score(agent.model, [p for p, _ in batch], [r for _, r in batch])
        loss = -scores.logprobs.sum() / scores.mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 9:
            report("imitation", step + 1, warm_up.steps, {"loss": loss.item()})
    agent.model.eval()

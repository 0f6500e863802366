"""Unmodified harnesses play a task in its machine with a model of this process, whose tokens are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollenv.agents import LocalAgent, Sampling, TrainedHarnessAgent
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.errors import MissingExtra
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.samples import drift, trajectory_samples
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.factory import make_workers
from rollenv.sandbox.machine import why_not

pytestmark = [pytest.mark.integration, pytest.mark.skipif(why_not() is not None, reason=f"no machines: {why_not()}")]


@pytest.fixture(scope="module")
def agent():
    """A tiny model without training, and a tokenizer of English: what it says is nonsense."""
    corpus = [file.read_text() for file in Path(__file__).parents[3].glob("docs/*/*.md")]
    tokenizer = build_tokenizer(corpus, 1500, chat=True)
    size = TinySize(hidden=32, layers=1, heads=2, intermediate=64, context=65_536)
    return LocalAgent(build_model(size, tokenizer, 0), tokenizer, ChatPrompt(), Sampling(max_new_tokens=8))


QUICK = [
    pytest.param(name, marks=pytest.mark.smoke) for name in ("pi", "codex", "claude-code", "opencode", "pydantic-ai")
]


@pytest.mark.parametrize("name", [*QUICK, "mini-swe-agent"])
def test_a_harness_plays_a_task_and_its_tokens_are_those_that_were_drawn(name, agent, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", os.path.expanduser("~/.cache/rollenv"))  # installations are large
    drawn = []
    generate = agent.engine.generate

    async def spy(prompt, sampling, rng, *, session=-1):
        response = await generate(prompt, sampling, rng, session=session)
        drawn.append((prompt, tuple(response.ids), tuple(response.logprobs)))
        return response

    monkeypatch.setattr(agent.engine, "generate", spy)
    player = TrainedHarnessAgent(agent, name, seconds=300, max_turns=3)
    try:
        with make_workers("1") as workers, RolloutManager(player, workers, limits=EpisodeLimits(reset=600)) as manager:
            (played,) = manager.play([Trajectory(Task("shell:Logs-v0-easy", 1))])
    except MissingExtra as error:
        pytest.skip(str(error))
    finally:
        player.gateway.close()
    assert played.status == "terminated", played.error
    assert played.turns
    assert {(turn.prompt_ids, turn.response_ids, turn.logprobs) for turn in played.turns} <= set(drawn)
    assert drift(played, trajectory_samples(played)) == 0
    assert played.record["harness"] == name
    assert "unknown" not in played.record["matches"]

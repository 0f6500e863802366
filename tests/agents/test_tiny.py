"""The tiny model: built from nothing, warmed up to a noisy expert, cached, and read by the usual loaders."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rollenv
from rollenv import UsageError
from rollenv.agents.base import OracleAgent
from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize, WarmUp
from rollenv.agents.tiny.warm_up import Scene, tiny_agent
from rollenv.core import registry
from rollenv.core.errors import Unsolvable
from rollenv.rollout.evaluate import evaluate

ENV, KWARGS = "game:Sokoban-v0-tiny", {"min_moves": 1, "split": "train"}
CORPUS = ["up down left right", "Paa Xbb Occ\n_#_", "naïve 日本"]


@pytest.mark.parametrize("text", [*CORPUS, "", "never seen: €\t\x00 🙂", " leading", "trailing \n\n"])
def test_the_tokenizer_loses_nothing(text, tmp_path):
    tokenizer = build_tokenizer(CORPUS, 400)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    tokenizer.save_pretrained(tmp_path)
    build_model(TinySize(hidden=16, layers=1, heads=1, intermediate=16), tokenizer, 0).save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).encode(text) == tokenizer.encode(text)


def test_weights_follow_the_seed_alone():
    tokenizer, size = build_tokenizer(CORPUS, 300), TinySize(hidden=16, layers=1, heads=1, intermediate=16)

    def weights(seed):
        return torch.cat([p.flatten() for p in build_model(size, tokenizer, seed).parameters()])

    torch.manual_seed(1)
    before, first = torch.get_rng_state(), weights(0)
    assert torch.equal(torch.get_rng_state(), before), "the process's generator is left alone"
    torch.manual_seed(2)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))


def warm(reports: list[str], **changes) -> LocalAgent:
    settings = {"steps": 500, "episodes": 1500, "batch_size": 128} | changes
    return tiny_agent(
        [Scene(ENV, KWARGS)],
        StepPrompt("{state}", chat=False),
        Sampling(1.0, 1),
        size=TinySize(hidden=48, layers=2, heads=2, intermediate=96),
        warm_up=WarmUp(**settings),
        seed=0,
        report=lambda stage, *_: reports.append(stage),
    )


@pytest.mark.parametrize(
    ("env_id", "context", "says"),
    [("game:GuessTheNumber-v0-easy", 512, r"rollout\.max_new_tokens=1"), (ENV, 2, r"model\.size\.context=2")],
)
def test_what_can_never_fit_is_said_before_it_is_imitated(env_id, context, says, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    size = TinySize(hidden=16, layers=1, heads=1, intermediate=16, context=context)
    with pytest.raises(UsageError, match=says):
        tiny_agent(
            [Scene(env_id)],
            StepPrompt("{state}", chat=False),
            Sampling(1.0, 1),
            size=size,
            warm_up=WarmUp(episodes=20),
            seed=0,
        )


@pytest.mark.integration
def test_it_imitates_the_noisy_expert_and_is_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    reports: list[str] = []
    first = warm(reports)
    assert set(reports) == {"demonstrations", "imitation"}
    reports.clear()
    second = warm(reports)
    assert not reports, "the second time it comes from the cache"
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    (folder,) = (tmp_path / "tiny").iterdir()
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() == first.model.num_parameters()
    warm(reports, noise=0.5, steps=20)
    assert reports, "other settings are another model"
    played = evaluate(first, ENV, {"min_moves": 1, "split": "test"}, n=200, seed=5)
    expert = evaluate(OracleAgent(0.75), ENV, {"min_moves": 1, "split": "test"}, n=200, seed=5)
    assert played.high > expert.success - 0.25
    assert sum(
        turn.text in ("up", "down", "left", "right") for t in played.trajectories for turn in t.turns
    ) > 0.95 * sum(len(t.turns) for t in played.trajectories)


class Bare(rollenv.Env):
    """Over at once; its expert and its texts are what a test makes them."""

    observation, expert, random = "here", "go", "go"

    def _reset(self, options):
        return self.observation, {}

    def _step(self, action):
        return self.observation, 1.0, True, False, {}

    def oracle_action(self):
        if self.expert is None:
            raise Unsolvable("no way")
        return self.expert

    def sample_random_action(self):
        return self.random


@pytest.mark.parametrize(
    ("changes", "says"), [({"expert": None}, "episode"), ({"observation": ""}, "empty"), ({"expert": ""}, "empty")]
)
def test_what_cannot_be_imitated_is_said(changes, says):
    made = type("Made", (Bare,), changes)
    with pytest.raises(UsageError, match=says):
        demonstrated(made)


def test_an_episode_of_one_turn_can_be_imitated():
    assert demonstrated(Bare) is not None


def demonstrated(env_class: type[rollenv.Env]) -> LocalAgent:
    rollenv.register("test:bare", env_class)
    try:
        return tiny_agent(
            [Scene("test:bare")],
            StepPrompt("{observation}", chat=False),
            Sampling(1.0, 1),
            size=TinySize(hidden=16, layers=1, heads=1, intermediate=16),
            warm_up=WarmUp(steps=2, episodes=3, batch_size=2),
            seed=len(env_class.observation),
        )
    finally:
        registry.ENV_REGISTRY.pop("test:bare", None)


@pytest.mark.parametrize("name", ["episodes", "batch_size", "lr", "steps", "noise"])
def test_settings_of_the_warm_up_have_bounds(name):
    with pytest.raises(ValueError, match=name):
        WarmUp(**{name: -1})

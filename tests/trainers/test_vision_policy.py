"""Training of models that see: the engine's numbers, packed with shared prefixes, frozen or trained vision parts."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from seeing import FAMILY, drawn, seeing

from rollenv.probe.teach import update_seconds
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.experience import experience, micro_batches
from rollenv.trainers.policies.critic import Critic
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.lora import Lora
from rollenv.trainers.policies.packed import pack

TASK = Task("test:Any-v0", 0)
TURNS = (("see <image> and <image>", (1, 2)), ("now", (3,)), ("no picture", ()), ("<image> again", (1,)))


def episodes(agent, *, count=3):
    """Play episodes of the same pictures, as the members of a group."""

    async def episode(seed):
        session, turns = agent.start(None, seed), []
        for text, numbers in TURNS:
            images = tuple(map(drawn, numbers))
            action = await session.act(text, {"images": images})
            turns.append(
                Turn(action.prompt_ids, action.response_ids, action.logprobs, 0.0, action.text, text, images=images)
            )
        return Trajectory(TASK, turns, "terminated")

    async def together():
        return await asyncio.gather(*map(episode, range(count)))

    return [Group(TASK, asyncio.run(together()))]


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("samples", ["trajectory", "turn"])
def test_log_probabilities_of_engine_and_policy_agree(family, samples):
    agent = seeing(family)
    data = experience(episodes(agent), samples)
    assert data.drift == 0
    policy = LocalPolicy(agent.model)
    assert policy.packs == (family != "gemma3")  # it has layers with a window
    everything = range(len(data.samples))
    for share in {policy.packs, False}:
        batch = pack(data, everything, share=share)
        assert (batch.row.paths is not None) == share
        with torch.no_grad():
            found = policy.logprobs(batch).logprobs
        played = np.concatenate([s.logprobs[s.mask] for s in data.samples])
        assert np.abs(found.numpy() - played).max() < 1e-4


def test_pictures_of_one_batch_do_not_depend_on_others():
    agent = seeing()
    data = experience(episodes(agent), "turn")
    policy = LocalPolicy(agent.model)
    with torch.no_grad():
        whole = policy.logprobs(pack(data, range(len(data.samples)))).logprobs
        parts = [
            policy.logprobs(pack(data, numbers)).logprobs
            for numbers in micro_batches(data, range(len(data.samples)), 64)
        ]
    assert torch.allclose(whole.sum(), torch.cat(parts).sum(), atol=1e-3)


def gradient(policy, data):
    policy.backward(-policy.logprobs(pack(data, range(len(data.samples)), share=True)).logprobs.sum())
    return {name: weight.grad for name, weight in policy.weights.items()}


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "smolvlm"])
def test_the_vision_part_is_frozen_or_trained(family):
    agent = seeing(family)
    data = experience(episodes(agent), "trajectory")
    frozen = gradient(LocalPolicy(agent.model), data)
    assert not any("vis" in name for name in frozen)
    trained = gradient(LocalPolicy(agent.model, vision=True), data)
    assert any("vis" in name and grad.abs().sum() > 0 for name, grad in trained.items())
    for name, grad in frozen.items():
        assert torch.allclose(grad, trained[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("vision", [False, True])
def test_adapters_are_on_the_language_part_or_on_all(vision):
    agent = seeing()
    data = experience(episodes(agent), "trajectory")
    policy = LocalPolicy(agent.model, lora=Lora(2), vision=vision)
    assert any("visual" in name for name in policy.weights) == vision
    assert any("language_model" in name for name in policy.weights)
    before = policy.logprobs(pack(data, [0])).logprobs
    gradient(policy, data)
    policy.step(0.1)
    assert not torch.allclose(policy.logprobs(pack(data, [0])).logprobs, before, atol=1e-3)
    asyncio.run(agent.engine.update_weights(policy.named_weights()))
    played = experience(episodes(agent), "trajectory")
    now = policy.logprobs(pack(played, range(len(played.samples)))).logprobs.detach().numpy()
    assert np.abs(now - np.concatenate([s.logprobs[s.mask] for s in played.samples])).max() < 1e-4


def test_labels_of_observations_are_never_pictures():
    data = experience(episodes(seeing()), "trajectory")
    batch = pack(data, range(len(data.samples)), observations=True, share=True)
    assert len(batch.observed.targets)
    assert int(batch.observed.targets.max()) < 1 << 31


def test_a_critic_sees():
    agent = seeing()
    data = experience(episodes(agent), "trajectory")
    policy = LocalPolicy(agent.model)
    critic = Critic(policy.model, kind="model", lr=1e-3)
    values = critic.values(pack(data, range(len(data.samples)), share=True))
    assert values.shape == (len(data),)


def test_checkpointed_layers_give_the_same_gradients():
    agent = seeing()
    data = experience(episodes(agent), "trajectory")
    plain = gradient(LocalPolicy(agent.model, vision=True), data)
    again = gradient(LocalPolicy(agent.model, vision=True, gradient_checkpointing=True), data)
    assert all(torch.allclose(plain[name], again[name], atol=1e-5) for name in plain)


def test_a_probe_estimates_an_update_of_episodes_with_pictures():
    agent = seeing()
    assert update_seconds(agent.model, [t for group in episodes(agent) for t in group.trajectories], 2) > 0

"""The local engine beside training: updates between two tokens, versions of tokens, what the trainer sees."""

import itertools

import pytest
import torch

from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.scoring import score
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.rollout import RolloutManager, RolloutStream, Task

ENV = "game:GuessTheNumber-v0-easy"
TEXT = ["Guess a number between 1 and 50, as in \\boxed{5}. higher lower\n" * 5]


@pytest.fixture
def agent():
    tokenizer = build_tokenizer(TEXT, 300)
    size = TinySize(hidden=32, layers=2, heads=2, intermediate=64, context=512)
    model = build_model(size, tokenizer, 0).eval()
    return LocalAgent(model, tokenizer, StepPrompt("{state}", chat=False), Sampling(1.0, 12))


def nudge(model, rng):
    """An update of the weights, in place."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=rng)


def test_the_newest_weights_drew_the_newest_tokens(agent):
    """Tokens of the current version have the log-probabilities that the model now gives them."""

    async def play():
        async with RolloutStream(manager, (Task(ENV, n) for n in itertools.count()), 3, 2, max_staleness=1) as stream:
            await stream.next_batch()
            nudge(agent.model, torch.Generator().manual_seed(1))
            await stream.update_weights()
            return await stream.next_batch()

    with RolloutManager(agent) as manager:
        batch = manager.run(play())
    turns = [turn for group in batch for t in group for turn in t.turns]
    new = [turn for turn in turns if turn.oldest_version == 1]
    assert new
    with torch.no_grad():
        scores = score(agent.model, [turn.prompt_ids for turn in new], [turn.response_ids for turn in new])
    for row, turn in enumerate(new):
        got = scores.logprobs[row][scores.mask[row].bool()].tolist()
        assert got == pytest.approx(turn.logprobs, abs=1e-4)

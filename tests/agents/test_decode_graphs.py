"""Decoding steps as CUDA graphs."""

from __future__ import annotations

import asyncio
import random

import pytest

torch = pytest.importorskip("torch")
from transformers import AutoModelForCausalLM, Qwen3Config  # noqa: E402

from rollenv.agents.engines.base import Response, Sampling  # noqa: E402
from rollenv.agents.engines.local import LocalEngine  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to("cuda").eval()


def responses(engine: LocalEngine, lengths: list[int], new_tokens: int) -> tuple[list[list[int]], list[Response]]:
    rng = random.Random(1)
    prompts = [[rng.randrange(97) for _ in range(length)] for length in lengths]

    async def play() -> list[Response]:
        sampling = [Sampling(max_new_tokens=new_tokens - i % 7) for i in range(len(prompts))]
        calls = (engine.generate(tuple(p), sampling[i], random.Random(i)) for i, p in enumerate(prompts))
        return await asyncio.gather(*calls)

    return prompts, asyncio.run(play())


def check(model, prompts, answers) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer.ids], device="cuda")
        with torch.no_grad():
            logprobs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, torch.tensor(answer.ids, device="cuda")[:, None])[:, 0]
        assert torch.tensor(answer.logprobs) == pytest.approx(expected.cpu().numpy(), abs=2e-4)


def test_log_probabilities_are_those_of_the_model(model):
    engine = LocalEngine(model, frozenset())
    prompts, answers = responses(engine, [5, 30, 200, 251, 9, 70, 1, 12, 33], 60)  # beyond 256 columns, and fewer rows
    assert len(engine._batch.graphs.captured) > 1
    check(model, prompts, answers)


def test_growth_and_new_weights_are_followed(model):
    engine = LocalEngine(model, frozenset())
    for count, length in ((2, 10), (17, 300), (40, 9)):
        check(model, *responses(engine, [length] * count, 30))
        assert engine._batch.graphs.captured
        if count == 2:  # the next requests make the cache grow
            continue
        with torch.no_grad():
            model.lm_head.weight.mul_(1.1)
        engine.weights_changed()


def test_a_failed_capture_is_logged_and_steps_go_on(model, caplog, monkeypatch):
    def fail(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    engine = LocalEngine(model, frozenset())
    monkeypatch.setattr(engine._batch.graphs, "_capture", fail)
    check(model, *responses(engine, [4, 6], 20))
    assert sum("without CUDA graphs" in record.message for record in caplog.records) == 1

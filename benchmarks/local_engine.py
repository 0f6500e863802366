"""Tokens per second of the local engine and of transformers, on the same multi-turn episodes in one run.

Sessions play Sokoban with the whole history of a chat before each turn. A naive trainer goes in lock step: it calls
`generate` for all sessions at once, from the first token of each history, and waits for the longest response.
Transformers' continuous batching lets every session go on by itself, also from the first token of its history. The
engine lets every session go on by itself and keeps what it computed. The model is the tiny one with random weights;
a fixed share of its vocabulary ends a response, so that lengths vary. Its words go into the history, while the
environment plays random moves.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from common import header, save, table
from transformers import GenerationConfig, PreTrainedModel

import rollenv
from rollenv.agents.engines.base import Engine, Ids, Sampling
from rollenv.agents.engines.local import LocalEngine
from rollenv.agents.engines.scoring import pad_left
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize

ENV = "game:Sokoban-v0-tiny"
SIZES = {
    "0.7M": TinySize(context=4096),
    "30M": TinySize(hidden=512, layers=8, heads=8, intermediate=1536, context=4096),
}


@dataclass
class Episode:
    """A history of tokens that grows turn by turn."""

    seed: int
    member: int
    encode: Callable[[str], list[int]]
    turns: int
    history: Ids = ()
    drawn: int = 0
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed * 1000 + self.member)
        self.env = rollenv.make(ENV)
        observation, info = self.env.reset(self.seed)
        self.history = tuple(self.encode(f"user: {observation}\n{info['suffix']}\nyou:"))

    def step(self, response: Ids) -> bool:
        """Take the response into the history; whether the episode goes on."""
        self.drawn += len(response)
        self.turns -= 1
        observation, _, terminated, truncated, info = self.env.step(self.env.sample_random_action())
        self.history += response + tuple(self.encode(f"\nuser: {observation}\n{info['suffix']}\nyou:"))
        return self.turns > 0 and not (terminated or truncated)


def with_engine(engine: Engine, episodes: list[Episode], sampling: Sampling) -> None:
    """Play all episodes, each by itself."""

    async def play(number: int, episode: Episode) -> None:
        going = True
        while going:
            response = await engine.generate(episode.history, sampling, episode.rng, session=number)
            going = episode.step(tuple(response.ids))
        engine.release(number)

    async def play_all() -> None:
        await asyncio.gather(*(play(n, e) for n, e in enumerate(episodes)))

    asyncio.run(play_all())


def with_local(model: PreTrainedModel, stop: list[int], episodes: list[Episode], sampling: Sampling, keep: int) -> int:
    """Play with the local engine; how many prompt tokens went through the model."""
    engine = LocalEngine(model, frozenset(stop), keep_tokens=keep)
    with_engine(engine, episodes, sampling)
    return engine.stats.computed


def with_generate(model: PreTrainedModel, stop: list[int], episodes: list[Episode], sampling: Sampling) -> int:
    """The same in lock step."""
    computed, going = 0, list(episodes)
    while going:
        ids, mask = pad_left([e.history for e in going], model.device)
        computed += sum(len(e.history) for e in going)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids) if mask is None else mask,
            do_sample=True,
            temperature=sampling.temperature,
            top_k=0,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=stop,
            pad_token_id=0,
        )[:, ids.shape[1] :].tolist()
        going = [e for e, row in zip(going, out, strict=True) if e.step(cut(row, stop))]
    return computed


def with_continuous_batching(
    model: PreTrainedModel, stop: list[int], episodes: list[Episode], sampling: Sampling
) -> int:
    """The same with transformers' continuous batching: every session goes on by itself, from its first token."""
    config = GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_k=0,
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=stop,
        pad_token_id=0,
    )
    computed, going = 0, {str(n): e for n, e in enumerate(episodes)}
    with model.continuous_batching_context_manager(generation_config=config, warmup=False) as manager:
        for name, episode in going.items():
            manager.add_request(list(episode.history), request_id=name)
        while going:
            result = manager.get_result(timeout=60)
            episode = going.pop(result.request_id)
            computed += len(episode.history)
            if episode.step(cut(result.generated_tokens, stop)):
                name = f"{result.request_id}+"
                going[name] = episode
                manager.add_request(list(episode.history), request_id=name)
    return computed


def cut(row: list[int], stop: list[int]) -> Ids:
    """The response up to its stop token."""
    end = next((i + 1 for i, token in enumerate(row) if token in stop), len(row))
    return tuple(row[:end])


def corpus() -> list[str]:
    """Text of the environment, for the tokenizer."""
    texts = []
    for seed in range(200):
        env = rollenv.make(ENV)
        texts.append(env.reset(seed)[0])
        texts.append(env.step(env.sample_random_action())[0])
    return texts


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--mean-length", type=int, default=12, help="of responses, were they not cut")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--size", choices=SIZES, default="0.7M")
    return parser.parse_args()


def compare(
    ways: dict[str, Callable[[list[Episode]], int]], encode: Callable[[str], list[int]], options: argparse.Namespace
) -> str:
    """A table of the best round of every way; the rounds take turns."""
    best: dict[str, tuple[float, int, int, float]] = {}
    for _ in range(options.rounds):
        for name, way in ways.items():
            members = [(seed, member) for seed in range(options.tasks) for member in range(options.group_size)]
            episodes = [Episode(seed, member, encode, options.turns) for seed, member in members]
            start = time.perf_counter()
            computed = way(episodes)
            seconds = time.perf_counter() - start
            drawn = sum(e.drawn for e in episodes)
            best[name] = max(best.get(name, (0.0, 0, 0, 0.0)), (drawn / seconds, drawn, computed, seconds))
    base = next(iter(best.values()))[0]
    rows = [
        (name, f"{rate:.0f}", f"{rate / base:.2f}", drawn, computed, f"{seconds:.2f}")
        for name, (rate, drawn, computed, seconds) in best.items()
    ]
    return table(("way", "tokens drawn/s", "ratio", "drawn", "prompt tokens computed", "seconds"), rows)


def about(model: PreTrainedModel, options: argparse.Namespace) -> str:
    return (
        f"{options.tasks} tasks x {options.group_size} members of {ENV}, at most {options.turns} turns and "
        f"{options.max_new_tokens} new tokens a turn, {model.num_parameters() / 1e6:.1f} M parameters, float32, "
        f"{options.threads} thread{'s' * (options.threads > 1)}; the best of {options.rounds} interleaved rounds. "
        "Seconds include the environment.\n\n"
    )


def main() -> None:
    options = options_of(argparse.ArgumentParser(description=__doc__))
    torch.set_num_threads(options.threads)
    tokenizer = build_tokenizer(corpus(), 1024)
    model = build_model(SIZES[options.size], tokenizer, 0).eval()
    stop = random.Random(0).sample(range(len(tokenizer)), len(tokenizer) // options.mean_length)
    sampling = Sampling(1.0, options.max_new_tokens)
    ways: dict[str, Callable[[list[Episode]], int]] = {
        "transformers.generate, in lock step": lambda e: with_generate(model, stop, e, sampling),
        "transformers' continuous batching": lambda e: with_continuous_batching(model, stop, e, sampling),
        "LocalEngine, nothing kept between turns": lambda e: with_local(model, stop, e, sampling, 0),
        "LocalEngine": lambda e: with_local(model, stop, e, sampling, 1 << 17),
    }
    save("local_engine", header() + "\n" + about(model, options) + compare(ways, tokenizer.encode, options))


if __name__ == "__main__":
    main()

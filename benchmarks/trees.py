"""An update on samples that begin alike: as a tree, packed without sharing, and as padded rows.

The three compute the same gradients; how far they are apart is told. One thread, side by side in one process; peaks of
memory come from a process of their own, in which freed memory goes back to the system at once.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import header, save, table
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from update_memory import resident

from rollenv.agents.engines.scoring import score
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.experience import Experience, experience
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.packed import pack

WORDS = 2048
#: Raw tokens that a case has at least, as far as whole groups make them.
TOKENS = 4096
TASK = Task("bench:Any-v0", 0)
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """Groups whose members share a prompt; with several turns, each a sample, its prompt all that was before."""

    prompt: int
    response: int
    """The most tokens of a response; each has at least half as many."""
    group: int
    turns: int = 1
    fork: int = 0
    """A response is made of so many parts, and after each of them it forks in two."""

    def data(self, rng: random.Random) -> Experience:
        """Its samples."""
        most = self.group * self.turns * (self.prompt + self.turns * self.response)
        groups = [Group(TASK, self._members(rng)) for _ in range(max(1, TOKENS // most))]
        return experience(groups, "turn")

    def _members(self, rng: random.Random) -> list[Trajectory]:
        prompt = drawn(rng, self.prompt)
        if self.fork:
            return [Trajectory(TASK, [turn(prompt, one)], "terminated") for one in self._forked(rng, self.fork)]
        return [Trajectory(TASK, self._episode(rng, prompt), "terminated") for _ in range(self.group)]

    def _episode(self, rng: random.Random, prompt: Ids) -> list[Turn]:
        turns = []
        for _ in range(self.turns):
            response = drawn(rng, rng.randint(self.response // 2, self.response))
            turns.append(turn(prompt, response))
            prompt += response + drawn(rng, self.response)  # what the environment said
        return turns

    def _forked(self, rng: random.Random, parts: int) -> list[Ids]:
        if not parts:
            return [()]
        heads = [drawn(rng, self.response // self.fork) for _ in range(2)]
        return [head + rest for head in heads for rest in self._forked(rng, parts - 1)]


def drawn(rng: random.Random, n: int) -> Ids:
    """Random tokens."""
    return tuple(rng.choices(range(WORDS), k=n))


def turn(prompt: Ids, response: Ids) -> Turn:
    """Make a turn without a reward."""
    return Turn(prompt, response, (-1.0,) * len(response), 0.0, "", "")


SIZES = ((64, 16), (256, 64), (1024, 256))
GROUPS = [Case(*size, group) for size in SIZES for group in (4, 8, 16)]
HISTORIES = [Case(256, 32, 4, turns) for turns in (2, 5, 10)]
FORKS = [Case(256, 256, 2**parts, fork=parts) for parts in (2, 3, 4)]
SMALL = [Case(64, 16, 4), Case(64, 16, 4, turns=2), Case(64, 64, 4, fork=2)]


class Ways:
    """One model, and three ways to the gradients of a loss on a case's response tokens."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        size = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 4}
        self.model: PreTrainedModel = Qwen2ForCausalLM(Qwen2Config(vocab_size=WORDS, num_key_value_heads=2, **size))
        self.policy = LocalPolicy(self.model, share=True)

    def packed(self, data: Experience, *, share: bool) -> None:
        batch = pack(data, range(len(data.samples)), share=share)
        out = self.policy.logprobs(batch, ("logprobs", "entropy"))
        assert out.logprobs is not None
        self.policy.backward((out.logprobs * batch.columns["weights"]).sum())

    def padded(self, data: Experience) -> None:
        turns = data.turns
        scores = score(self.model, [t.prompt_ids for t in turns], [t.response_ids for t in turns])
        weights = torch.zeros_like(scores.logprobs)
        weights[scores.mask.bool()] = torch.from_numpy(data.columns["weights"]).float()
        (scores.logprobs * weights).sum().backward()

    def of(self, data: Experience) -> dict[str, Callable[[], None]]:
        """Return the ways by name."""
        return {
            "padded": lambda: self.padded(data),
            "packed": lambda: self.packed(data, share=False),
            "tree": lambda: self.packed(data, share=True),
        }

    def gradients(self) -> torch.Tensor:
        """Return the gradients since the last call."""
        found = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
        self.model.zero_grad()
        return found


def made(case: Case) -> Experience:
    """A case's samples with random weights, the same in every call."""
    data = case.data(random.Random(0))
    data.columns["weights"] = np.random.default_rng(0).standard_normal(len(data))
    return data


def seconds(ways: Ways, data: Experience, rounds: int) -> tuple[dict[str, float], float]:
    """Return the median seconds of each way, and the largest relative difference of gradients to the padded rows."""
    found: dict[str, list[float]] = {}
    gradients = {}
    for _ in range(rounds):
        for name, way in ways.of(data).items():
            started = time.process_time()
            way()
            found.setdefault(name, []).append(time.process_time() - started)
            gradients[name] = ways.gradients()
    expected = gradients["padded"]
    apart = max(float((other - expected).norm() / expected.norm()) for other in gradients.values())
    return {name: statistics.median(times) for name, times in found.items()}, apart


def peaks(cases: list[Case]) -> None:
    """Print for each case the growth of memory over each way at its peak, in bytes."""
    ways, out = Ways(), []
    ways.padded(made(SMALL[0]))  # gradients are there
    for case in cases:
        data, grown = made(case), {}
        for name, way in ways.of(data).items():
            gc.collect()
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here
            before = resident("VmRSS")
            way()
            grown[name] = resident("VmHWM") - before
        out.append(grown)
    print(json.dumps(out))


def measured(small: bool) -> list[dict[str, float]]:
    """Return the output of :func:`peaks` in a process that returns freed memory to the system."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--peaks", *(["--small"] if small else [])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: list[dict[str, float]] = json.loads(done.stdout)
    return result


def line(case: Case, ways: Ways, rounds: int, grown: dict[str, float]) -> list[object]:
    """A row of the table."""
    data = made(case)
    times, apart = seconds(ways, data, rounds)
    unique = len(pack(data, range(len(data.samples)), share=True).ids)
    raw = sum(map(len, data.inputs))
    bound, reached = raw / unique, times["packed"] / times["tree"]
    kind = f"forks: {case.fork}" if case.fork else f"turns: {case.turns}"
    shape = [f"{case.prompt}/{case.response}", case.group, kind, len(data.samples), raw, unique, f"{bound:.2f}"]
    ratios = [f"{reached:.2f}", f"{reached / bound:.2f}", f"{times['padded'] / times['tree']:.2f}"]
    memory = [f"{grown[name] / grown['tree']:.2f}" for name in ("packed", "padded")]
    return [*shape, f"{times['tree']:.2f}", *ratios, *memory, f"{apart:.0e}"]


HEAD = ("prompt/response", "group", "kind", "samples", "raw tokens", "unique", "raw by unique (bound)", "s as a tree")
HEAD += ("packed by tree", "of the bound", "padded by tree", "memory: packed by tree", "padded by tree", "apart")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--peaks", action="store_true", help="what the process for memory is told")
    given = parser.parse_args()
    cases = SMALL if given.small else [*GROUPS, *HISTORIES, *FORKS]
    if given.peaks:
        peaks(cases)
        return
    memory = measured(given.small)
    ways = Ways()
    rows = [line(case, ways, given.rounds, grown) for case, grown in zip(cases, memory, strict=True)]
    size = sum(p.numel() for p in ways.model.parameters()) / 1e6
    about = (
        f"Packing, forward and backward pass over all samples at once; a random Qwen2 with {size:.1f} million "
        "parameters, float32, one thread. Responses have random lengths from half to all of what is told. Turns: each "
        "is a sample, its prompt all that was before. Forks: a response goes on in two ways after each of its parts. "
        "Medians of processor time; of memory the growth at the peak; apart: the largest difference of the gradients "
        "by their norm.\n\n"
    )
    save("trees", f"# Prefix trees in training\n\n{header()}\n{about}{table(HEAD, rows)}")


if __name__ == "__main__":
    main()

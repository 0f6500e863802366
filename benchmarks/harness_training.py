"""An unmodified harness plays shell tasks with a tiny model, and GRPO trains it on the tokens of the harness's calls.

The tiny model first imitates a noisy expert: its demonstrations are chats as the harness sends them, recorded in one
real play. Success is measured on tasks never trained on, before and after RL, played by the harness too; and on a
thousand more by the first answers to its prompts alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import ROOT, header, save, table
from training_runs import evaluations, interval, seconds

from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.scoring import score
from rollenv.agents.gateway.messages import FunctionCall, Message, ModelAnswer, ModelRequest
from rollenv.agents.gateway.policy import PolicyModel
from rollenv.agents.gateway.session import GatewaySession, SampledAnswer
from rollenv.agents.harness.agent import HarnessAgent
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.muon import Muon
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.tools.calls import write_calls
from rollenv.envs.shell.generate import generate, split_of
from rollenv.rollout.evaluate import wilson_interval
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory
from rollenv.rollout.workers.factory import make_workers
from rollenv.trainers.run_dir import RunDir, read_rows

_ENV, _WHERE = "shell:Logs-v0-easy", "You are in the folder /app. All paths are relative to it."
#: Short prompts, for a tiny model.
_ARGS = {
    "pi": ["--system-prompt", "You work on a computer.", "--tools", "bash", "--no-context-files", "--no-skills"],
    "mini-swe-agent": [],
}
#: The share of demonstrations whose command is that of another task.
_NOISE = 0.6
#: Episodes of an evaluation through the harness.
_EPISODES = 100
_SIZE = TinySize(hidden=96, layers=3, heads=4, intermediate=256, context=32_768, vocabulary=900)


class Expert:
    """Says one command and then that it is done: the model of the play that is recorded."""

    name, max_context, sees = "expert", 100_000, False

    def accept(self, request: ModelRequest) -> ModelRequest:
        return request

    async def draw(self, session: GatewaySession, place: Any, request: ModelRequest) -> SampledAnswer:
        now = {"began": time.time(), "ended": time.time(), "has_tools": bool(request.tools)}
        if any(message.role == "tool" for message, _ in place.chat):
            return SampledAnswer(ModelAnswer("Done."), now)
        return SampledAnswer(
            ModelAnswer("", (FunctionCall("call_0", "bash", '{"command": "true"}'),), finish="tool_calls"), now
        )

    def count(self, session: GatewaySession, place: Any, request: ModelRequest) -> int:
        return 1

    def ignores(self, request: ModelRequest) -> list[str]:
        return []

    def release(self, session: GatewaySession) -> None:
        pass


def recorded(harness: str) -> tuple[tuple[Message, ...], Sequence[dict[str, Any]], str, str]:
    """Record one play.

    Returns:
        The messages before the first call, the tools, the task, and what is shown for a command without output.
    """
    agent = HarnessAgent(Expert(), harness, args=_ARGS[harness])
    sessions: list[GatewaySession] = []
    agent.gateway.on_finish = sessions.append
    with make_workers("1") as workers, RolloutManager(agent, workers) as manager:
        (played,) = manager.play([Trajectory(Task(_ENV, 0, {"split": "train"}))])
    assert played.complete, played.error
    first, second = sessions[0].tree.nodes[:2]
    return first.context, sessions[0].tree.tools[first.tools], played.turns[0].observation, second.context[0].text


def begun(
    policy: PolicyModel, before: Sequence[Message], tools: Sequence[dict[str, Any]], task: str, asked: str
) -> Conversation:
    """The recorded chat before its first call, with another task."""
    messages = [*before[:-1], Message("user", before[-1].text.replace(task, asked))]
    return policy._begin([(message, None) for message in messages], tools)


def tasks_of(split: str, count: int, seed: int) -> list[tuple[str, str]]:
    """Instructions of tasks, each with the expert's command."""
    rng, tasks = random.Random(seed), []
    while len(tasks) < count:
        task = generate("logs", rng.getrandbits(60))
        if split_of(task) == split:
            tasks.append((f"{task.instruction}\n\n{_WHERE}", " && ".join(task.oracle)))
    return tasks


def said_right(harness: str, model: Path, count: int = 1000) -> str:
    """The share of unseen tasks whose first answer is the expert's command, with its 95 % interval (Wilson's).

    The prompts are the harness's; it plays none of them, which takes seconds instead of an hour.
    """
    before, tools, task, _ = recorded(harness)
    agent, tasks = LocalAgent.load(model), tasks_of("test", count, 99)
    policy, tokenizer = PolicyModel(agent), agent.tokenizer

    async def answered(number: int, asked: str) -> tuple[int, ...]:
        prompt = begun(policy, before, tools, task, asked).prompt()
        drawn = await agent.engine.generate(prompt, agent.sampling, random.Random(number), session=number)
        return tuple(drawn.ids)

    async def answers() -> list[tuple[int, ...]]:
        return await asyncio.gather(*(answered(number, asked) for number, (asked, _) in enumerate(tasks)))

    right = sum(
        ids == (*tokenizer.encode(write_calls([("bash", {"command": command})])), tokenizer.eos_token_id)
        for ids, (_, command) in zip(asyncio.run(answers()), tasks, strict=True)
    )
    low, high = wilson_interval(right, count)
    return f"{right / count:.3f} ({low:.3f} to {high:.3f})"


def pooled(shares: Sequence[float]) -> str:
    """The success of all seeds' evaluations together, with its 95 % interval (Wilson's)."""
    count = _EPISODES * len(shares)
    low, high = wilson_interval(round(_EPISODES * sum(shares)), count)
    return f"{sum(shares) / len(shares):.3f} ({low:.3f} to {high:.3f})"


def demonstrations(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Instructions of training tasks with the expert's command, and a command of another task."""
    rng, tasks = random.Random(seed), tasks_of("train", count, seed)
    others = [command for _, command in tasks]
    return [(asked, command, rng.choice(others)) for asked, command in tasks]


def warm_up(harness: str, folder: Path, seed: int, steps: int) -> None:
    """Build the tiny model and have it imitate the noisy expert in the harness's chats."""
    before, tools, task, quiet = recorded(harness)
    shown = demonstrations(4000, seed)
    rng = random.Random(seed)
    texts = [f"{asked}\n{write_calls([('bash', {'command': command})])}" for asked, command, _ in shown]
    constant = [message.text for message in before] + [json.dumps(tool) for tool in tools]
    tokenizer = build_tokenizer([*texts, *constant * 200], _SIZE.vocabulary, chat=True)
    agent = LocalAgent(build_model(_SIZE, tokenizer, seed), tokenizer, ChatPrompt(), Sampling(max_new_tokens=64))
    policy = PolicyModel(agent)
    end = (tokenizer.eos_token_id,)

    def rows(asked: str, command: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        chat = begun(policy, before, tools, task, asked)
        said = (*tokenizer.encode(write_calls([("bash", {"command": command})])), *end)
        first = chat.prompt()
        chat.answer(said)
        chat.add("tool", quiet)
        return [(first, said), (chat.prompt(), (*tokenizer.encode("Done."), *end))]

    print(f"a prompt has {len(rows(*shown[0][:2])[0][0])} tokens", flush=True)
    matrices = [w for name, w in agent.model.named_parameters() if w.ndim == 2 and "embed" not in name]
    others = [w for name, w in agent.model.named_parameters() if w.ndim != 2 or "embed" in name]
    optimizers = [Muon(matrices, 8e-3, weight_decay=0.01), torch.optim.AdamW(others, 3e-3, weight_decay=0.01)]
    began = time.perf_counter()
    for step in range(steps):
        batch = []
        for _ in range(24):
            asked, command, wrong = rng.choice(shown)
            both = rows(asked, wrong if rng.random() < _NOISE else command)
            batch += both if rng.random() < 0.2 else both[:1]
        scores = score(agent.model, [prompt for prompt, _ in batch], [answer for _, answer in batch])
        loss = -(scores.logprobs * scores.mask).sum() / scores.mask.sum()
        agent.model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.model.parameters(), 1.0)
        share = min(1.0, (step + 1) / 30) * (1 - 0.95 * step / steps)
        for optimizer, lr in zip(optimizers, (8e-3, 3e-3), strict=True):
            optimizer.param_groups[0]["lr"] = lr * share
            optimizer.step()
        if step % 20 == 19:
            print(
                f"imitation {step + 1}/{steps} loss {loss.item():.3f} {time.perf_counter() - began:.0f} s", flush=True
            )
    agent.model.eval()
    agent.save(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark-harness")
    parser.add_argument("--harness", default="pi", choices=list(_ARGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--set", nargs="*", default=[], help="more key=value settings")
    given = parser.parse_args()
    body, played = [], []
    for seed in range(given.seeds):
        run, model = given.runs / f"{given.harness}-{seed}", given.runs / f"model-{given.harness}-{seed}"
        began = time.perf_counter()
        if not model.exists():
            warm_up(given.harness, model, seed, given.steps)
        warmed = time.perf_counter() - began
        settings = [
            f"model={model}", f"run_dir={run}", f"seed={seed}", "rollout.workers=2", "rollout.max_new_tokens=64",
            "iterations=8", "eval.every=8", f"eval.episodes={_EPISODES}", "optimizer.epochs=3", "optimizer.lr=7e-4",
            "optimizer.final_lr=0.4", "optimizer.warmup_iterations=2", "optimizer.minibatch_sequences=16",
            f"harness.args={json.dumps(_ARGS[given.harness])}", "harness.max_turns=4", "harness.calls=6", *given.set,
        ]  # fmt: skip
        words = [sys.executable, "-m", "rollenv", "train", "shell", "--harness", given.harness, *settings]
        if not RunDir(run).metrics_file.exists():
            subprocess.run(words, check=True)
        rows = read_rows(RunDir(run).metrics_file)
        first, last = evaluations(rows)[0], evaluations(rows)[-1]
        played.append((first["eval/success"], last["eval/success"]))
        training = seconds(rows) - seconds(rows, "eval")
        body.append(
            (
                given.harness,
                seed,
                *map(interval, (first, last)),
                *(
                    said_right(given.harness, each)
                    for each in (model, RunDir(run).path / f"checkpoints/step-{last['iteration']:06d}")
                ),
                8 * rows[-1]["drawn"],
                f"{warmed:.0f}",
                f"{training:.0f}",
                f"{seconds(rows, 'eval'):.0f}",
            )
        )
    body.append((given.harness, "all", *(pooled(each) for each in zip(*played, strict=True)), *[""] * 6))
    head = (
        "harness", "seed", "before RL (95 %)", "after RL (95 %)", "first answers before",
        "first answers after", "episodes", "warm-up, s", "RL, s", "evaluations, s",
    )  # fmt: skip
    save("harness_training", header() + "\n" + (__doc__ or "") + "\n" + table(head, body))


if __name__ == "__main__":
    main()

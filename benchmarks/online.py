"""A served agent is rated a minute after its answers, and learns from the ratings while it serves.

A tiny model, warmed up by a noisy expert, finds the digit among words. Clients ask `rollenv gateway --follow` all
the time; `rollenv train --from` trains on the sessions as they are rated. A fifth of all tasks is never rated: success
is measured on these alone. Everything runs on the cores that the command gets.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import httpx
import torch
from common import header, save, table

from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.scoring import score
from rollenv.agents.gateway.messages import Message
from rollenv.agents.gateway.policy import PolicyModel
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.muon import Muon
from rollenv.agents.tiny.settings import TinySize
from rollenv.rollout.evaluate import wilson_interval

_COLOURS = ("red", "blue", "green", "black", "white", "gold")
#: The share of demonstrations with another answer.
_NOISE = 0.6


def task(rng: random.Random) -> tuple[str, str]:
    """A question and its answer."""
    answer, words = rng.choice("0123456789"), rng.sample(_COLOURS, 3)
    words.insert(rng.randrange(4), answer)
    return "/".join(words), answer


def unseen(question: str) -> bool:
    """True for questions of the fifth that is never rated."""
    return zlib.crc32(question.encode()) % 5 == 0


def warmed_up(folder: Path, steps: int) -> None:
    """A tiny model that imitates a noisy expert."""
    rng = random.Random(0)
    corpus = [" ".join(task(rng)) for _ in range(500)]
    tokenizer = build_tokenizer(corpus, 300, chat=True)
    model = build_model(TinySize(hidden=96, layers=3, heads=4, intermediate=256, context=256), tokenizer, seed=0)
    agent = LocalAgent(model, tokenizer, ChatPrompt(), Sampling(max_new_tokens=4))
    inside = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    others = [p for p in model.parameters() if all(p is not each for each in inside)]
    policy, ways = PolicyModel(agent), [Muon(inside, 1e-2), torch.optim.AdamW(others, 3e-3, weight_decay=0.0)]
    schedules = [torch.optim.lr_scheduler.LinearLR(way, 1.0, 0.05, steps) for way in ways]
    for step in range(steps):
        prompts, answers = [], []
        for _ in range(64):
            question, answer = task(rng)
            if unseen(question):
                continue
            said = rng.choice("0123456789") if rng.random() < _NOISE else answer
            prompts.append(policy._begin([(Message("user", question), None)], ()).prompt())
            answers.append((*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id))
        scores = score(model, prompts, answers)
        (-(scores.logprobs * scores.mask).sum() / scores.mask.sum()).backward()
        for way, schedule in zip(ways, schedules, strict=True):
            way.step()
            way.zero_grad()
            schedule.step()
        if step % 50 == 49:
            print(f"warm-up {step + 1}/{steps}", flush=True)
    agent.weights_changed()
    agent.save(folder)


class Users:
    """Clients that ask one question after another, and a person who rates each answer later."""

    def __init__(self, admin: httpx.Client, later: float, until: float):
        self.admin, self.later, self.until, self.began = admin, later, until, time.monotonic()
        self.answers: list[tuple[float, float, bool, bool]] = []
        """When a call began, its seconds, whether the task is never rated, and whether the answer was right."""
        self.lost: list[str] = []
        self.to_rate: queue.Queue[tuple[float, str, float]] = queue.Queue()

    def ask(self, number: int) -> None:
        rng = random.Random(1000 + number)
        with httpx.Client(timeout=60) as client:
            while (now := time.monotonic()) < self.until:
                question, expected = task(rng)
                try:
                    session = self.admin.post("/sessions", json={"task": question}).raise_for_status().json()
                    asked = {"model": "policy", "messages": [{"role": "user", "content": question}]}
                    answer = client.post(f"{session['base_url']}/chat/completions", json=asked).raise_for_status()
                    said = answer.json()["choices"][0]["message"]["content"] or ""
                except (httpx.HTTPError, LookupError, ValueError) as error:
                    self.lost.append(repr(error))
                    continue
                right, ended = said.strip() == expected, time.monotonic()
                self.answers.append((now - self.began, ended - now, unseen(question), right))
                if unseen(question):
                    self.admin.delete(f"/sessions/{session['id']}").raise_for_status()
                else:
                    self.to_rate.put((ended + self.later, session["id"], float(right)))
                time.sleep(0.2)

    def rate(self) -> None:
        while time.monotonic() < self.until:
            try:
                due, session, reward = self.to_rate.get(timeout=1)
            except queue.Empty:
                continue
            time.sleep(max(0.0, due - time.monotonic()))
            self.admin.post(f"/sessions/{session}/finish", json={"reward": reward}).raise_for_status()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--later", type=float, default=60, help="seconds between an answer and its rating")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--steps", type=int, default=250, help="steps of the warm-up")
    given = parser.parse_args()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    command = [sys.executable, "-m", "rollenv"]
    environ = os.environ | {"ROLLENV_GATEWAY_KEY": secrets.token_hex(32), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name, "model"), Path(name, "run")
        warmed_up(folder, given.steps)
        serve = ["gateway", "--model", f"local:{folder}", "--follow", run, "--temperature", "1", "--max-tokens", "4"]
        gateway = subprocess.Popen(
            [*command, *serve, "--port", "0", "--admin-port", "0"], env=environ, stdout=subprocess.PIPE, text=True
        )
        assert gateway.stdout
        urls = [next(gateway.stdout).split()[1].rstrip(",") for _ in range(2)]
        settings = [f"model={folder}", f"run_dir={run}", "optimizer.lr=5e-4", "--batch", "64"]
        trainer = subprocess.Popen([*command, "train", "--from", urls[1], *settings], env=environ)
        key = {"Authorization": f"Bearer {environ['ROLLENV_GATEWAY_KEY']}"}
        with httpx.Client(base_url=urls[1], headers=key, timeout=60) as admin:
            users = Users(admin, given.later, time.monotonic() + given.seconds)
            threads = [threading.Thread(target=users.ask, args=(number,)) for number in range(given.users)]
            threads.append(threading.Thread(target=users.rate))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        updates = len((run / "metrics.jsonl").read_text().splitlines())
        for process in (trainer, gateway):
            process.terminate()
            process.wait()
    rows = []
    width = given.seconds / 8
    for part in range(8):
        here = [each for each in users.answers if part * width <= each[0] < (part + 1) * width]
        never = [right for *_, new, right in here if new]
        low, high = wilson_interval(sum(never), len(never))
        took = sorted(seconds for _, seconds, *_ in here)
        rows.append(
            (
                f"{part * width:.0f} to {(part + 1) * width:.0f} s",
                len(here),
                f"{statistics.mean(never):.2f} ({low:.2f} to {high:.2f})",
                round(statistics.median(took), 3),
                round(took[-1], 2),
            )
        )
    told = (
        f"{updates} updates while {len(users.answers)} answers were given. {len(users.lost)} were lost; the longest "
        f"took {max(seconds for _, seconds, *_ in users.answers):.2f} s. Ratings came after {given.later:.0f} s.\n"
    )
    head = ("time", "answers", "right on tasks that are never rated", "median s", "longest s")
    save("online", f"{(__doc__ or '').strip()}\n\n{header()}\n{told}\n{table(head, rows)}")
    if users.lost:
        print(users.lost[:3])


if __name__ == "__main__":
    main()

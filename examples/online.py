"""A served agent learns from ratings that come later, while it answers. Needs: the train and serve extras."""

import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from rollenv.agents import LocalAgent, Sampling
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize

# A random tiny model that learns to answer with digits.
tokenizer = build_tokenizer(["What is 2 + 3? 5 7 1 8 9 4 6 0"] * 9, 300, chat=True)
model = build_model(TinySize(hidden=32, layers=1, heads=2, context=512), tokenizer, seed=0)
command, keys = [sys.executable, "-m", "rollenv"], {"ROLLENV_GATEWAY_KEY": secrets.token_hex(32)}
environ = os.environ | keys

with tempfile.TemporaryDirectory() as name:
    folder, run = Path(name, "model"), Path(name, "run")
    LocalAgent(model, tokenizer, sampling=Sampling(max_new_tokens=8)).save(folder)
    serve = ["gateway", "--model", f"local:{folder}", "--follow", str(run), "--temperature", "1", "--max-tokens", "8"]
    ports = ["--port", "0", "--admin-port", "0"]
    gateway = subprocess.Popen([*command, *serve, *ports], env=environ, stdout=subprocess.PIPE, text=True)
    urls = [next(gateway.stdout).split()[1].rstrip(",") for _ in range(2)]
    settings = [f"model={folder}", f"run_dir={run}", "optimizer.lr=3e-2", "--batch", "16"]
    trainer = subprocess.Popen(
        [*command, "train", "--from", urls[1], *settings], env=environ, stdout=subprocess.DEVNULL
    )
    admin = httpx.Client(base_url=urls[1], headers={"Authorization": f"Bearer {environ['ROLLENV_GATEWAY_KEY']}"})
    rewards: list[float] = []
    began = time.monotonic()
    while (len(rewards) < 64 or statistics.mean(rewards[-16:]) < 0.5) and time.monotonic() - began < 180:
        waiting = []
        for _ in range(16):  # the program answers first
            session = admin.post("/sessions").raise_for_status().json()
            asked = {"model": "policy", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
            answer = httpx.post(f"{session['base_url']}/chat/completions", json=asked, timeout=60).raise_for_status()
            waiting.append((session["id"], answer.json()["choices"][0]["message"]["content"] or ""))
        for session_id, said in waiting:  # somebody rates the answers later
            rewards.append(sum(c.isdigit() for c in said) / max(len(said), 1))
            admin.post(f"/sessions/{session_id}/finish", json={"reward": rewards[-1]}).raise_for_status()
    print(f"first 16 answers {statistics.mean(rewards[:16]):.2f}, last 16 {statistics.mean(rewards[-16:]):.2f}")
    for process in (trainer, gateway):
        process.terminate()
        process.wait()

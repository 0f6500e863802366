"""Where vLLM can be in tests: in this process, and behind a server that is started here."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch

from rollenv.agents.engines.adapters import Adapter
from rollenv.agents.engines.vllm import VLLMEngine
from rollenv.agents.engines.vllm_http import HttpTransport
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize

PLACES = ("process", "server")
PROMPT = StepPrompt("{state}", chat=False)
OPTIONS = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "max_num_seqs": 8, "max_model_len": 512}
LORA = {"enable_lora": True, "max_lora_rank": 8}
runner = asyncio.Runner()


def save_model(folder):
    tokenizer = build_tokenizer(["up down left right\n" * 9, "__##\nPcc Xcb Oca\n"], 300)
    model = build_model(TinySize(hidden=64, layers=2, heads=2, intermediate=128), tokenizer, 0)
    LocalAgent(model, tokenizer, PROMPT).save(folder)
    return folder


class Server:
    """A vLLM server of its own process group."""

    def __init__(self, model, log, **options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self.model, self.log, self.options = f"http://127.0.0.1:{self.port}", model, Path(log), options
        self.start()

    def start(self):
        given = OPTIONS | {"logprobs_mode": "processed_logprobs", "generation_config": "vllm"} | self.options
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--enable-scale-out"]
        command += ["--no-enable-chunked-prefill"]  # of which vLLM on CPUs is not capable
        for name, value in given.items():
            command += [f"--{name.replace('_', '-')}", *([] if value is True else [_words(value)])]
        switches = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | switches, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + 500
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                pytest.fail(f"the server did not start: {self.log.read_text()[-3000:]}")
            time.sleep(0.5)

    def answers(self):
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health").status_code == 200
        return False

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _words(value):
    return json.dumps(value) if isinstance(value, dict) else str(value)


@contextlib.contextmanager
def engine_in(place, folder, log):
    """An engine in a place, and what kills it."""
    if place == "process":
        from rollenv.agents.vllm import load_engine

        engine = load_engine(folder, chat=False, **OPTIONS, **LORA)[0]
        yield engine, engine.close
        engine.close()
    else:
        server = Server(folder, log, **LORA)
        try:
            stop = LocalAgent.load(folder).engine.stop
            transport = HttpTransport(server.url, model=folder, patience=3.0)
            engine = VLLMEngine(transport, stop, model=folder, decode=str)
            engine.server = server
            yield engine, server.kill
        finally:
            server.kill()


def is_greedy(model, asked, ids):
    """Return whether each token is the model's best behind those before it, or one that rounding could prefer."""
    with torch.no_grad():
        logits = model(torch.tensor([[*asked, *ids]])).logits[0, len(asked) - 1 : -1]
    drawn = logits.gather(1, torch.tensor(ids, dtype=torch.long)[:, None])[:, 0]
    return bool((logits.amax(1) - drawn < 1e-4).all())


def adapter_of(model, seed=0, rank=4):
    """A LoRA adapter of random tensors for some of a model's projections, by peft's names."""
    torch.manual_seed(seed)
    targets = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    tensors = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in targets:
            out, inside = module.weight.shape
            tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, inside) / 8
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(out, rank) / 8
    return Adapter({"r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), "bias": "none"}, tensors)

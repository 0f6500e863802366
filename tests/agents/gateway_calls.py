"""Programs that call a model through the gateway, for tests: an engine that says what it is told to, and requests."""

from __future__ import annotations

import asyncio

import httpx
import torch
from chat_templates import SHAPES, tokenizer_for

from rollenv.agents.engine_agent import EngineAgent
from rollenv.agents.engines.base import Response, Sampling
from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt
from rollenv.agents.tiny.model import build_model
from rollenv.agents.tiny.settings import TinySize

BY_NAME = {shape.name: shape for shape in SHAPES}
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run it.",
        "parameters": {"type": "object", "properties": {"command": {}}},
    },
}
CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


class ScriptEngine:
    """Says texts one after another, or what ``says`` makes of a prompt."""

    def __init__(self, tokenizer, says, max_context=10_000):
        self.tokenizer, self.says, self.max_context, self.version = tokenizer, says, max_context, 0
        self.prompts, self.held = [], None
        self.running = 0

    async def generate(self, prompt, sampling, rng, *, session=-1):
        number = len(self.prompts)
        self.prompts.append(prompt)
        self.running += 1
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self.running -= 1
        text = self.says(number) if callable(self.says) else self.says[number]
        ids = self.tokenizer.encode(text, add_special_tokens=False)[: sampling.max_new_tokens - 1]
        ids.append(self.tokenizer.eos_token_id)
        return Response(ids, [-rng.random() for _ in ids], [self.version] * len(ids), "stop")

    def release(self, session):
        pass


async def until(condition):
    """Let the event loop go on until something has come true."""
    while not condition():
        await asyncio.sleep(0)


def held(says=lambda i: f"answer {i}", **settings):
    """An agent whose answers wait for ``agent.engine.held``."""
    agent = scripted(says, **settings)
    agent.engine.held = asyncio.Event()
    return agent


def post(client, session, path="chat/completions", **more):
    return asyncio.ensure_future(client.post(f"{session.base_url}/{path}", **({"json": HELLO} | more)))


def scripted(says, shape="chatml", **settings):
    tokenizer = tokenizer_for(BY_NAME[shape])
    return EngineAgent(ScriptEngine(tokenizer, says, **settings), tokenizer, sampling=Sampling(max_new_tokens=400))


def body(messages, **more):
    return {"model": "m", "messages": messages, "tools": [BASH], **more}


HELLO = body([{"role": "user", "content": "hi"}])


def call_over_http(work, agent=None, **settings):
    async def play():
        opened = Gateway(agent or scripted(lambda i: f"answer {i}"), **settings)
        async with opened as gateway, httpx.AsyncClient(timeout=30) as client:
            return await work(gateway, client)

    return asyncio.run(play())


def tiny_agent():
    """An agent with a tiny model of its own."""
    torch.manual_seed(0)
    tokenizer = tokenizer_for(BY_NAME["qwen2.5"])
    model = build_model(TinySize(hidden=32, layers=2, heads=2, context=4096), tokenizer, 0)
    return LocalAgent(model, tokenizer, ChatPrompt(), Sampling(max_new_tokens=12))

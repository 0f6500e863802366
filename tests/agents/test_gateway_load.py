"""A gateway under load: floods beside others, memory, its death, and new weights."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import math
import os
import socket
import statistics
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter

import httpx
import openai
import pytest
import torch
from chat_server import ChatServer
from gateway_calls import ScriptEngine, body, call_over_http, post, scripted, tiny_agent, until

from rollenv.agents.engine_agent import EngineAgent
from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.gateway.messages import Message, ModelRequest
from rollenv.agents.gateway.session import Caps

pytestmark = pytest.mark.integration


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Queued(ScriptEngine):
    """Answers four calls at a time, in the order in which they come."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer, lambda i: "a")
        self.places, self.served = asyncio.Semaphore(4), 0

    async def generate(self, prompt, sampling, rng, *, session=-1):
        async with self.places:
            await asyncio.sleep(0)
            self.served += 1
            return await super().generate(prompt, sampling, rng, session=session)


def waits(floods):
    """The answers that others got between a call and its own, of 64 sessions that ask three times."""
    tokenizer = scripted(["a"]).engine.tokenizer
    engine = Queued(tokenizer)

    async def work(gateway, client):
        async def ask(session, times, found):
            for turn in range(times):
                before = engine.served
                answer = await post(client, session, json=body([{"role": "user", "content": f"{turn}"}]))
                assert answer.status_code == 200
                if turn:  # at first all come at once
                    found.append(engine.served - before)

        found = []
        flood, *others = [gateway.open() for _ in range(64)]
        flooding = [asyncio.create_task(ask(flood, 10_000, [])) for _ in range(floods)]
        await asyncio.gather(*(ask(session, 3, found) for session in others))
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
        return found

    return call_over_http(work, EngineAgent(engine, tokenizer), caps=Caps(calls=100_000))


def test_nobody_waits_twice_as_long_as_others_even_beside_a_flood():
    alike, beside = waits(1), waits(Caps().parallel)
    assert max(alike) <= 2 * statistics.median(alike)
    assert max(beside) <= 2 * statistics.median(beside)
    assert statistics.median(beside) < 2 * statistics.median(alike)


def test_calls_without_end_take_no_memory():
    """Beyond its cap a session is refused before its request is read."""
    used = []

    async def work(gateway, client):
        session = gateway.open(caps=Caps(calls=20))
        statuses = Counter()
        for number in range(500):
            if number in (200, 499):
                gc.collect()
                used.append(tracemalloc.get_traced_memory()[0])
            chat = body([{"role": "user", "content": f"{number} " * 300}])
            statuses[(await post(client, session, json=chat)).status_code] += 1
        return statuses, len(session.tree.nodes), session.counts["refused_calls"]

    tracemalloc.start()
    try:
        assert call_over_http(work) == ({200: 20, 400: 480}, 20, 480)
    finally:
        tracemalloc.stop()
    assert used[1] - used[0] < 100_000


def test_calls_go_on_over_the_death_of_the_gateway(tmp_path):
    """``kill -9`` in the middle of calls: clients ask again, and the same tree goes on at the same port."""
    file, port, admin = tmp_path / "record", free_port(), free_port()
    words = [sys.executable, "-m", "rollenv", "gateway", "--model", "m", "--record", str(file)]
    environment = {**os.environ, "ROLLENV_GATEWAY_KEY": "a" * 32, "PYTHONUNBUFFERED": "1"}

    def started(upstream):
        ports = ["--port", str(port), "--admin-port", str(admin), "--upstream", upstream]
        process = subprocess.Popen([*words, *ports], env=environment, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if "ANTHROPIC_BASE_URL" in line:
                return process
        raise AssertionError("the gateway ended")

    def play(number, session, opened):
        client = openai.OpenAI(base_url=session["base_url"], api_key="x", max_retries=20, timeout=60)
        chat = [{"role": "user", "content": f"line {number}"}]
        for turn in range(6):
            said = client.chat.completions.create(model="m", messages=chat).choices[0].message.content
            chat += [{"role": "assistant", "content": said}, {"role": "user", "content": f"turn {turn}"}]
            opened.release()

    async def answer(exchange):
        message = {"role": "assistant", "content": f"answer to {len(exchange.body['messages'])}"}
        await exchange.json({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {}})

    with ChatServer(answer) as upstream:
        gateway = started(upstream.url)
        there, bearer = f"http://127.0.0.1:{admin}", {"Authorization": f"Bearer {'a' * 32}"}
        session = httpx.post(f"{there}/sessions", headers=bearer, json={"task": "t"}, timeout=60).json()
        answered = threading.Semaphore(0)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            players = [pool.submit(play, number, session, answered) for number in range(4)]
            for _ in range(2):
                for _ in range(5):
                    answered.acquire()
                gateway.kill()
                gateway.wait()
                gateway = started(upstream.url)
            for player in players:
                player.result()
        shown = httpx.get(f"{there}/sessions/{session['id']}", headers=bearer, timeout=60).json()
        gateway.terminate()
        gateway.wait()
    lines = {node["context"][0]["text"] for node in shown["nodes"] if node["parent"] is None}
    assert lines == {f"line {number}" for number in range(4)}
    assert set(shown["matches"]) == {"exact"}
    taken = [node for node in shown["nodes"] if node["kind"] not in ("superseded", "cancelled")]
    assert len(taken) == 24


def test_a_long_session_takes_less_than_two_megabytes():
    """100 calls with prompts of more than 10,000 tokens."""
    agent = scripted(lambda i: f"answer {i}", max_context=100_000)

    async def play():
        session = Gateway(agent, record=None).open()
        chat = (Message("user", "a text of the task " * 1200),)
        for _ in range(100):
            node = await session.call(ModelRequest(chat))
            agent.engine.prompts = [None]
            chat = (*chat, node.answer.message, Message("user", "some output " * 5))
        return session

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    session = asyncio.run(play())
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert session.tree.length(session.tree.nodes[-1]) > 10_000
    assert used < 2_000_000


def test_new_weights_in_the_middle_of_32_calls_are_no_error():
    """Calls wait meanwhile, answers go on from their tokens, and each token has the version that drew it."""
    local = tiny_agent()
    weights = {name: weight.clone() for name, weight in local.model.state_dict().items()}

    async def work(gateway, client):
        drawn, sessions = local.engine.stats.drawn, [gateway.open(seed=n) for n in range(32)]
        calls = [post(client, session) for session in sessions]
        await until(lambda: local.engine.stats.drawn >= drawn + 64)
        await local.engine.suspend()
        drawn = local.engine.stats.drawn
        await local.engine.update_weights((name, 1.1 * weight) for name, weight in weights.items())
        await asyncio.sleep(0)
        assert local.engine.stats.drawn == drawn
        await local.engine.resume()
        answers = [await call for call in calls]
        return {answer.status_code for answer in answers}, [session.tree.nodes[0] for session in sessions]

    old = local.engine.version
    statuses, nodes = call_over_http(work, local)
    assert statuses == {200}
    assert any(set(node.versions) == {old, old + 1} for node in nodes)
    assert all(list(node.versions) == sorted(node.versions) for node in nodes)
    for node in nodes[::6]:
        ids = torch.tensor([(*node.tail, *node.response_ids)])
        for version, factor in ((old, 1.0), (old + 1, 1.1)):
            local.model.load_state_dict({name: factor * weight for name, weight in weights.items()})
            logprobs = local.model(ids).logits[0].log_softmax(-1)
            for at, (token, logprob) in enumerate(zip(node.response_ids, node.logprobs, strict=True)):
                if node.versions[at] == version:
                    expected = logprobs[len(node.tail) + at - 1, token].item()
                    assert math.isclose(expected, logprob, abs_tol=1e-4)

"""The sleep of a vLLM server, against a stub that fails, as a GPU does, where memory is allocated twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from urllib.parse import parse_qs, urlsplit

import pytest
from listening import Answers, listening

from rollenv.agents.engines.vllm import VLLMEngine
from rollenv.agents.engines.vllm_http import HttpTransport
from rollenv.core.errors import UsageError

PARTS = {"weights", "kv_cache"}
INFO = {
    "vllm_config": {
        "model_config": {"logprobs_mode": "processed_logprobs", "enable_sleep_mode": True, "max_model_len": 64},
        "device_config": {"device": "cuda"},
        "parallel_config": {"world_size": 1},
    }
}


@contextlib.contextmanager
def sleeper():
    """A server, and the parts of it that sleep."""
    asleep = set()

    class Handler(Answers):
        def answer(self, status, body):
            self.send_response(status)
            data = json.dumps(body).encode()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.answer(200, INFO)

        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            at = urlsplit(self.path)
            if at.path == "/sleep":
                asleep.update(PARTS)
            elif at.path == "/wake_up":
                woken = set(parse_qs(at.query).get("tags", PARTS))
                if not woken <= asleep:
                    return self.answer(500, {"error": {"message": "CUDA Error: invalid argument"}})
                asleep.difference_update(woken)
            return self.answer(200, {})

    with listening(Handler) as address:
        yield f"http://{address}", asleep


@pytest.mark.parametrize("level", [1, 2])
def test_each_part_is_woken_once_around_new_weights(level):
    async def update(engine, asleep):
        for _ in range(2):
            await engine.sleep(level)
            assert asleep == PARTS
            await engine.update_weights([])
            assert asleep == {"kv_cache"}
            await engine.resume()
            assert not asleep

    with sleeper() as (url, asleep):
        engine = VLLMEngine(HttpTransport(url), frozenset())
        asyncio.run(update(engine, asleep))
        engine.close()


def test_without_new_weights_all_is_woken_or_refused():
    async def rest(engine, asleep):
        await engine.sleep(1)
        await engine.resume()
        assert not asleep
        await engine.sleep(2)
        with pytest.raises(UsageError, match="update_weights"):
            await engine.resume()

    with sleeper() as (url, asleep):
        engine = VLLMEngine(HttpTransport(url), frozenset())
        asyncio.run(rest(engine, asleep))
        engine.close()

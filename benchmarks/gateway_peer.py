"""verifiers' interception server before an endpoint that answers at once; prints the URLs of both, and waits."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from typing import Any

from aiohttp import web
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.trace import Trace

NUMBERS = itertools.count()


async def answer(request: Any) -> Any:
    """Call a function."""
    await request.read()
    call = {"name": "bash", "arguments": '{"command": "ls -l"}'}
    calls = [{"id": f"call_{next(NUMBERS):032d}", "type": "function", "function": call}]
    message = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    choices = [{"index": 0, "finish_reason": "tool_calls", "message": message}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "policy"}
    return web.json_response({**head, "choices": choices, "usage": usage})


async def main() -> None:
    """Serve."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    os.environ["PEER_KEY"] = "x"
    context = ModelContext("policy", EvalClientConfig(base_url=endpoint, api_key_var="PEER_KEY"))
    async with InterceptionServer() as server:
        urls = [endpoint]
        for _ in range(int(sys.argv[1])):
            secret, _ = server.register(RolloutSession(context, Trace.model_construct(task=None, agent=None)))
            urls.append(f"{server.base_url}/v1#{secret}")
        print(json.dumps(urls), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())

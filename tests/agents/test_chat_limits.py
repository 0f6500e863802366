"""A chat agent's limits on its requests, its connections, and the event loops that it serves."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading

import pytest
import uvicorn
from chat_answers import SOON, ask, good
from chat_server import ChatServer, completion, events
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from rollenv.agents.base import AgentFailed
from rollenv.agents.chat import ChatAgent
from rollenv.agents.chat.endpoint import Patience
from rollenv.agents.chat.limits import Window
from rollenv.core.errors import UsageError


def test_no_more_requests_at_once_than_allowed():
    busy, most, together = 0, 0, asyncio.Event()

    async def behave(exchange):
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if busy == 3:
            together.set()
        await together.wait()
        await asyncio.sleep(0.005)
        busy -= 1
        await good(exchange)

    async def play():
        async with ChatAgent("tiny", server.url, concurrency=3, patience=SOON) as agent:
            await asyncio.gather(*(agent.start(None, seed).act("go", {}) for seed in range(12)))

    with ChatServer(behave) as server:
        asyncio.run(play())
    assert most == 3


@pytest.mark.integration
def test_a_request_that_waits_for_its_turn_is_not_late():
    async def behave(exchange):
        await asyncio.sleep(0.15)
        await good(exchange)

    async def play():
        async with ChatAgent("tiny", server.url, concurrency=1, patience=Patience(timeout=1.5)) as agent:
            await asyncio.gather(*(agent.start(None, seed).act("go", {}) for seed in range(15)))
            assert agent.totals.retries == 0

    with ChatServer(behave) as server:
        asyncio.run(play())


@pytest.mark.parametrize("limit", [{"requests_per_minute": 2}, {"tokens_per_minute": 290}])
def test_a_minute_has_no_more_than_allowed(limit):
    async def play():
        async with ChatAgent("tiny", server.url, patience=SOON, **limit) as agent:
            session = agent.start(None, 0)
            for _ in range(2 if "requests_per_minute" in limit else 1):
                await session.act("go", {})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.act("go", {}), 0.3)

    with ChatServer(good) as server:
        asyncio.run(play())
    assert len(server.requests) == (2 if "requests_per_minute" in limit else 1)


@given(amounts=st.lists(st.integers(1, 12), max_size=30), pauses=st.lists(st.integers(0, 9), max_size=30))
def test_windows_hold_their_limit_and_wait_no_longer_than_needed(amounts, pauses):
    now = 0
    window, taken = Window(10, 6, lambda: now), []
    for amount, pause in itertools.zip_longest(amounts, pauses, fillvalue=0):
        now += pause
        if not amount:
            continue
        wait = window.wait(amount)
        if wait:
            now += wait - 1
            assert window.wait(amount) > 0
            now += 1
        assert window.wait(amount) == 0
        window.take(amount)
        taken.append((now, amount))
    for start, first in taken:
        inside = [amount for at, amount in taken if start <= at < start + 6]
        assert sum(inside) <= 10 or (inside[0] == first > 10 and len(inside) == 1)


# -- loops and leaks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
def test_cancelling_ends_the_work_on_the_answer(streaming):
    started, gone = threading.Event(), threading.Event()

    async def behave(exchange):
        if streaming:
            await exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: wait\n\n")
        started.set()
        await exchange.hang()
        gone.set()

    async def play():
        async with ChatAgent("tiny", server.url, stream=streaming, patience=SOON) as agent:
            acting = asyncio.create_task(agent.start(None, 0).act("go", {}))
            await asyncio.to_thread(started.wait)
            acting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acting
            assert await asyncio.to_thread(gone.wait, 20), "the server still works on it"

    with ChatServer(behave) as server:
        asyncio.run(play())


def test_one_agent_serves_one_loop_after_another_and_leaves_nothing_open():
    with ChatServer(good) as server:
        agent = ChatAgent("tiny", server.url, patience=SOON)
        for _ in range(3):
            assert asyncio.run(agent.start(None, 0).act("go", {})).text == "up"
            server.wait_closed()  # nobody called aclose()
        asyncio.run(agent.aclose())
        asyncio.run(agent.aclose())

        async def play():  # closing does not wait for the loop's end
            for _ in range(2):
                await agent.start(None, 0).act("go", {})
                await agent.aclose()
                await asyncio.to_thread(server.wait_closed)

        asyncio.run(play())
    assert len(server.requests) == 5


def test_two_loops_at_a_time_are_refused():
    with ChatServer(good) as server:
        agent = ChatAgent("tiny", server.url, patience=SOON)

        async def both():
            await agent.start(None, 0).act("go", {})
            with pytest.raises(UsageError, match="event loop"):
                await asyncio.to_thread(ask, agent)

        asyncio.run(both())


def test_connections_are_used_again():
    with ChatServer(lambda exchange: exchange.chunks([events(completion())])) as server:
        most = 0

        async def play():
            nonlocal most
            async with ChatAgent("tiny", server.url, stream=True, patience=SOON) as agent:
                session = agent.start(None, 0)
                for _ in range(5):
                    await session.act("go", {})
                    most = max(most, server.open_now)

        asyncio.run(play())
    assert most == 1


def test_a_server_of_the_usual_kind():
    """The same against uvicorn and Starlette, as vLLM and others are built."""

    async def complete(request):
        body = await request.json()
        data = completion("to " + body["messages"][-1]["content"])
        if not body.get("stream"):
            return JSONResponse(data)
        return StreamingResponse(iter(events(data).splitlines(keepends=True)), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])

    async def play():
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
            try:
                for streaming in (False, True):
                    async with ChatAgent("tiny", url, stream=streaming) as agent:
                        sessions = [agent.start(None, seed) for seed in range(20)]
                        said = await asyncio.gather(*(s.act(f"north {i}", {}) for i, s in enumerate(sessions)))
                        assert [a.text for a in said] == [f"to north {i}" for i in range(20)]
            finally:
                server.should_exit = True
                await serving

    asyncio.run(play())


REFUSALS = {
    ("max_tokens", 400): "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead.",
    ("seed", 422): [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}],
    ("seed", 400): 'Invalid JSON payload received. Unknown name "seed": Cannot find field.',
}


@pytest.mark.parametrize(("name", "status"), REFUSALS)
@pytest.mark.parametrize("named", [False, True])
def test_a_name_that_an_endpoint_refuses_is_sent_once(caplog, name, status, named):
    async def behave(exchange):
        if name in exchange.body:
            said = REFUSALS[name, status]
            body = {"detail": said} if isinstance(said, list) else {"error": {"message": said, "param": name}}
            await exchange.json(body, f"{status} Refused")
        else:
            await good(exchange)

    async def play():
        names = {"max_tokens": "max_completion_tokens", "seed": ""} if named else {}
        async with ChatAgent("tiny", server.url, patience=SOON, max_tokens=9, names=names) as agent:
            for seed in range(3):
                await agent.start(None, seed).act("go", {})

    with ChatServer(behave) as server:
        asyncio.run(play())
    told = [record for record in caplog.records if record.name.startswith("rollenv")]
    assert sum(name in body for body in server.requests) == len(told) == (0 if named else 1)
    assert len(server.requests) == (3 if named else 4)
    if name == "max_tokens":
        assert server.requests[-1]["max_completion_tokens"] == 9
    if told:
        assert f"--send-as {name}=" in caplog.text


@pytest.mark.parametrize("said", ["max_tokens is too large: 9. This model supports at most 5", "seed must be below 5"])
def test_a_refused_value_stays_an_error(said):
    async def play():
        async with ChatAgent("tiny", server.url, patience=SOON, max_tokens=9) as agent:
            with pytest.raises(AgentFailed):
                await agent.start(None, 0).act("go", {})

    with ChatServer(lambda exchange: exchange.json({"error": {"message": said}}, "400 Bad Request")) as server:
        asyncio.run(play())
    assert len(server.requests) == 1

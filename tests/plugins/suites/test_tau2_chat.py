"""A customer of tau2 played by a model: behind a real endpoint, which may fail in any way."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "agents"))
from chat_server import ChatServer, Exchange, completion

import rollenv
from rollenv.core.errors import UsageError
from rollenv.envs.service.users import CustomerFailed
from rollenv.plugins.suites.tau2.env import ChatCustomer

Data = Callable[[str], Path]


def test_a_model_plays_the_customer_of_an_episode(data: Data) -> None:
    data("agentic/tau2/retail/db.json")
    texts = ["I am Ada \ud83d.", "Goodbye. ###STOP###"]

    async def behave(exchange: Exchange) -> None:
        await exchange.json(completion(texts[len(server.requests) - 1]))

    with ChatServer(behave) as server:
        env = rollenv.make("tools:Tau2-v0-retail", user="chat:m", base_url=server.url)
        seen, _ = env.reset(0, options={"index": 0})
        first, *_ = env.step("Who are you\ud83d?")
        *_, terminated, _, info = env.step("Done.")
    assert (first, terminated, info["success"]) == ("I am Ada ?.", True, False)
    assert [message["role"] for message in server.requests[1]["messages"]] == [
        "system", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert server.requests[1]["messages"][1]["content"] in seen
    assert server.requests[1]["model"] == "m"


BAD_ANSWERS = {
    "500": lambda exchange: exchange.json({"error": "down"}, "500 Internal Server Error"),
    "not JSON": lambda exchange: exchange.send(b"\xff<html>"),
    "JSON of another kind": lambda exchange: exchange.json({"choices": []}),
    "a list": lambda exchange: exchange.json([1]),
    "deep": lambda exchange: exchange.send(b"[" * 500_000),
    "content that is no text": lambda exchange: exchange.json(completion(None, message={"content": [{"a": 1}]})),
    "nothing said": lambda exchange: exchange.json(completion("  ")),
    "too much": lambda exchange: exchange.json(completion("x" * 2_000_000)),
    "dropped": lambda exchange: exchange.hang_up(),
    "dropped in the middle": lambda exchange: exchange.chunks([b"{"], end=False),
    "silent": lambda exchange: exchange.hang(),
}


@pytest.mark.parametrize("how", BAD_ANSWERS)
def test_an_endpoint_that_fails_is_named_within_the_time_allowed(how: str) -> None:
    async def behave(exchange: Exchange) -> None:
        await BAD_ANSWERS[how](exchange)

    with ChatServer(behave) as server:
        customer = ChatCustomer({}, "m", server.url, patience=0.3)
        with pytest.raises(CustomerFailed, match=re.escape(server.url)):
            customer.reply("Who are you?")
        assert len(server.requests) == 3
        assert customer.state == {"heard": []}


def test_an_answer_in_drops_is_given_up() -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            await exchange.raw(b" ")
            await asyncio.sleep(0.05)

    with ChatServer(behave) as server, pytest.raises(CustomerFailed, match="took longer"):
        ChatCustomer({}, "m", server.url, patience=0.3).reply("x")


@pytest.mark.parametrize("url", ["", "host/v1", "http://", "http://host:x", "ftp://host"])
def test_a_customer_needs_an_address_and_a_model(url: str) -> None:
    with pytest.raises(UsageError, match="base_url"):
        ChatCustomer({}, "m", url)
    with pytest.raises(UsageError, match="model"):
        ChatCustomer({}, "", "http://host")


@pytest.mark.parametrize("key", ["secret\nX: y", "secr\u20ac"])
def test_a_key_that_cannot_be_sent_is_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as caught:
        ChatCustomer({}, "m", "http://127.0.0.1:9").reply("x")
    assert "secr" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"user": "chat:m"}, {"user": "chat:", "base_url": "http://host"}, {"user": 1}])
def test_an_environment_says_at_once_that_its_customer_cannot_be_played(data: Data, settings: dict[str, str]) -> None:
    data("agentic/tau2/retail/db.json")
    with pytest.raises(UsageError, match="user="):
        rollenv.make("tools:Tau2-v0-retail", **settings)

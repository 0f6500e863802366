"""Proxies of the environment: servers on this machine are reached without them, and errors name them."""

import httpx
import pytest
from chat_server import ChatServer, completion

from rollenv.agents.chat import ChatAgent
from rollenv.agents.chat.endpoint import Patience
from rollenv.core.errors import UsageError
from rollenv.core.proxies import is_local, proxy_of, without_proxy
from rollenv.rollout import evaluate

SOON = Patience(timeout=20, retries=0)
LOCAL = [
    "http://localhost:8000/v1", "http://LOCALHOST/v1", "http://model.localhost/v1", "http://127.0.0.1:8000",
    "http://127.8.9.1", "http://0.0.0.0:8000/v1", "https://[::1]:8000/v1", "http://user:word@localhost:1/v1",
]  # fmt: skip
REMOTE = [
    "https://api.example.com/v1", "http://localhost.example.com", "http://mylocalhost/v1", "http://10.0.0.7:8000",
    "http://[fd00::1]:8000", "http://128.0.0.1", "http://localhost@example.com/v1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("url", LOCAL)
def test_this_machine_is_reached_directly(url, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert is_local(url)
    assert proxy_of(url) == ""
    with httpx.Client(mounts=without_proxy(url), timeout=60) as client:
        assert client._transport_for_url(httpx.URL(url)) is client._transport


@pytest.mark.parametrize("url", REMOTE)
def test_others_are_reached_through_the_proxy(url, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://me:secret@127.0.0.1:9")
    assert not is_local(url)
    assert proxy_of(url) == "http://127.0.0.1:9"
    with httpx.Client(mounts=without_proxy(url), timeout=60) as client:
        assert client._transport_for_url(httpx.URL(url)) is not client._transport


def test_what_is_no_url_is_not_here():
    for text in ("", "localhost:8000", "http://[::1", "127.0.0.1"):
        assert not is_local(text)
        assert without_proxy(text) == {}


async def good(exchange):
    await exchange.json(completion("up"))


async def forbidden(exchange):
    await exchange.send(b"this address is not forwarded", "403 Forbidden", "text/plain")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_endpoint_on_this_machine_is_not_asked_through_a_proxy(monkeypatch, host):
    with ChatServer(good) as server, ChatServer(forbidden) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        agent = ChatAgent("tiny", server.url.replace("127.0.0.1", host), patience=SOON)
        assert not evaluate(agent, "game:GuessTheNumber-v0-easy", n=1).failed
    assert server.requests
    assert not proxy.requests


def asked(agent):
    return evaluate(agent, "game:GuessTheNumber-v0-easy", n=1)


def test_a_refusal_names_the_proxy_and_not_only_the_key(monkeypatch):
    with ChatServer(forbidden) as proxy:
        address = f"http://127.0.0.1:{proxy.port}"
        monkeypatch.setenv("http_proxy", address.replace("//", "//me:secret@"))
        with pytest.raises(UsageError, match="no_proxy") as refused:
            asked(ChatAgent("tiny", "http://model.example.com/v1", api_key="k-1", patience=SOON))
    assert address in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_refusal_without_a_proxy_names_the_key_alone():
    with ChatServer(forbidden) as server, pytest.raises(UsageError, match="OPENAI_API_KEY") as refused:
        asked(ChatAgent("tiny", server.url, patience=SOON))
    assert "proxy" not in str(refused.value)


def test_a_proxy_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    result = asked(ChatAgent("tiny", "https://model.example.com/v1", patience=SOON))
    assert result.failed == 1
    assert "http://127.0.0.1:9" in result.trajectories[0].error


def test_the_proxy_answers_for_a_host_beyond_it(monkeypatch):
    with ChatServer(good) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        assert not asked(ChatAgent("tiny", "http://model.example.com/v1", patience=SOON)).failed
    assert proxy.requests

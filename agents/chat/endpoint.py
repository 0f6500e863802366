"""An OpenAI-compatible chat endpoint over HTTP: limits, retries, usage counts, and clear errors."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from rollenv.agents.base import AgentFailed, ContextFull, EndpointRefused
from rollenv.agents.chat.limits import EndpointRateLimiter, Window
from rollenv.agents.chat.refusals import context_full, requested_wait, unknown_setting, words
from rollenv.agents.chat.replies import (
    BadReply,
    ChatReply,
    ErrorInReply,
    error_text,
    parse_json,
    read_events,
    read_reply,
)
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.proxies import proxy_of, without_proxy

logger = logging.getLogger(__name__)

#: Statuses below 500 of transient failures.
MAY_PASS = (408, 409, 425, 429)
#: Maximum size of an answer in bytes.
_LARGEST = 1 << 26

_RATE_LIMIT = re.compile(r"\b(429|529)\b|rate.?limit|too many requests|overloaded", re.IGNORECASE)
_NO_MONEY = re.compile(r"insufficient_(quota|balance|credit|fund)|billing", re.IGNORECASE)


@dataclass(frozen=True)
class Prices:
    """Prices of a million tokens, in any currency."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    """Price of cached prompt tokens; None for the price of other prompt tokens."""

    def of(self, reply: ChatReply) -> float:
        """Return the cost of an answer."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = reply.prompt_tokens - reply.cached_tokens
        return (fresh * self.prompt + reply.cached_tokens * cached + reply.completion_tokens * self.completion) / 1e6


@dataclass(frozen=True)
class Budget:
    """Maximum usage of an endpoint. Requests in flight at the limit are completed.

    Attributes:
        cost: maximum cost in the currency of :class:`Prices`; None for no limit.
        tokens: maximum number of tokens of prompts and answers; None for no limit.
    """

    cost: float | None = None
    tokens: int | None = None

    def check(self, totals: Totals) -> None:
        """Raise BudgetSpent if there is nothing left."""
        used = totals.prompt_tokens + totals.completion_tokens
        if self.cost is not None and totals.cost >= self.cost:
            raise BudgetSpent(f"the budget of {self.cost:g} is spent: {totals.cost:.4g} in {totals.requests} requests")
        if self.tokens is not None and used >= self.tokens:
            raise BudgetSpent(f"the budget of {self.tokens:,} tokens is spent: {used:,} in {totals.requests} requests")


class BudgetSpent(RollenvError):
    """The :class:`Budget` of the endpoint is used up. Ends the rollout."""


@dataclass(slots=True)
class Totals:
    """Usage of an endpoint so far."""

    requests: int = 0
    """All requests, answered or not."""
    retries: int = 0
    failures: int = 0
    """Requests that failed after all retries."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Cached part of ``prompt_tokens``."""
    completion_tokens: int = 0
    cost: float = 0.0
    estimated: int = 0
    """Answers without readable token counts, for which a token is estimated as four bytes."""
    problems: dict[str, int] = field(default_factory=dict)
    """Failed attempts by kind: ``rate_limit``, ``server_error``, ``nonsense`` (no readable completion), ``timeout`` and
    ``connection``."""


@dataclass(frozen=True)
class Patience:
    """Timeouts and retries for an endpoint.

    Attributes:
        timeout: seconds for an answer, from the request to its last byte.
        retries: maximum number of retries of a request after transient failures.
        first_wait: seconds before the first retry, doubled for each further one, each shortened by a random part of up
            to a half.
        longest_wait: maximum seconds of one wait; if an endpoint requests more after a failure, the request fails.
        limited: maximum seconds of waiting for a rate limit without any answer of the endpoint in between; if it
            requests a longer wait, the request fails. Such waits do not count as ``retries``.
    """

    timeout: float = 120.0
    retries: int = 5
    first_wait: float = 0.5
    longest_wait: float = 60.0
    limited: float = 600.0


class _Transient(Exception):
    """A transient failure, of a kind of :attr:`Totals.problems`.

    Attributes:
        after: seconds that the endpoint requests to wait.
        limit: whether it is a rate limit.
    """

    def __init__(self, kind: str, text: str, after: float | None = None, limit: bool = False):
        super().__init__(text)
        self.kind, self.after, self.limit = kind, after, limit


class _Unknown(Exception):
    """A refusal of a setting, which may be sent by another name, or left out if that is empty."""

    def __init__(self, key: str, other: str, text: str):
        super().__init__(text)
        self.key, self.other = key, other


@dataclass
class _Bound:
    """The objects that belong to one event loop."""

    loop: asyncio.AbstractEventLoop
    client: httpx.AsyncClient
    lifetime: AsyncGenerator[None]
    slots: asyncio.Semaphore
    limiter: EndpointRateLimiter


class Endpoint:
    """A client for chat completions.

    It belongs to one event loop at a time, and closes its connections when that loop shuts down (``asyncio.run``
    ends) or :meth:`aclose` is called; the next request reopens it.

    Args:
        base_url: address before ``/chat/completions``, such as ``http://127.0.0.1:8000/v1``.
        api_key: sent as a bearer token; None sends none.
        requests_per_minute: maximum number of requests in any 60 seconds; None for no limit.
        tokens_per_minute: maximum number of tokens of prompts and answers in any 60 seconds, estimated before a request
            and corrected after it.
        names: names of settings at the endpoint; those with an empty name are not sent. It learns from refusals that
            ``max_tokens`` is called ``max_completion_tokens``, or which of :data:`SPARED` are not known.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        patience: Patience | None = None,
        concurrency: int = 32,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        prices: Prices | None = None,
        budget: Budget | None = None,
        names: Mapping[str, str] | None = None,
    ):
        checked_url(base_url)
        api_key = api_key and api_key.strip()  # a file or a variable may end with a blank
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise UsageError("the API key has characters that no header can hold")
        for name, limit in (("requests_per_minute", requests_per_minute), ("tokens_per_minute", tokens_per_minute)):
            if limit is not None and limit <= 0:
                raise UsageError(f"{name} must be above 0, or None for no limit; got {limit}")
        if concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, got {concurrency}")
        self.url = base_url.rstrip("/") + "/chat/completions"
        self.patience, self.concurrency, self.prices = patience or Patience(), concurrency, prices or Prices()
        self.totals, self.budget = Totals(), budget or Budget()
        self.names = dict(names or {})
        self._key = api_key
        self._windows = [Window(n) if n else None for n in (requests_per_minute, tokens_per_minute)]
        self._bound: _Bound | None = None
        self._jitter, self._answered = random.Random(), 0.0

    async def complete(self, body: Mapping[str, Any]) -> ChatReply:
        """Send a request, with retries after transient failures.

        Raises:
            ContextFull: the prompt is too long for the model.
            AgentFailed: the endpoint refuses the request (:class:`EndpointRefused`), or all attempts failed.
            BudgetSpent: the budget is used up.
        """
        bound = await self._open()
        started, failures, limits, limited_since = time.monotonic(), 0, 0, 0.0
        while True:
            try:
                sent = self._named(body)
                return await self._attempt(bound, sent)
            except _Transient as failure:
                problem = failure
            except _Unknown as refusal:
                self._learn(refusal)
                if self._named(body) != sent:
                    continue
                self.totals.failures += 1
                raise EndpointRefused(str(refusal)) from refusal
            except RollenvError:
                self.totals.failures += 1
                raise
            self.totals.problems[problem.kind] = self.totals.problems.get(problem.kind, 0) + 1
            if problem.limit:
                limits += 1
                limited_since = limited_since or time.monotonic()
                left = self.patience.limited + max(limited_since, self._answered) - time.monotonic()
                wait = self._wait(limits)
                if problem.after is not None:
                    wait = max(problem.after, min(wait, 1.0))
            else:
                failures += 1
                left = self.patience.longest_wait
                wait = self._wait(failures)
                if problem.after is not None:
                    wait = problem.after
            if wait > left or failures > self.patience.retries:
                break
            if problem.after is not None:
                bound.limiter.close_for(wait)
            if self.totals.problems[problem.kind] == 1:
                logger.warning("%s; requests that fail so are sent again, which is said once", problem)
            self.totals.retries += 1
            await asyncio.sleep(wait)
        self.totals.failures += 1
        pause = ""
        if problem.after is not None and wait > left:
            pause = f"; it asks to wait {wait:.0f} s"
        raise AgentFailed(
            f"{without_login(self.url)} gave no answer in {failures + limits} attempts over "
            f"{time.monotonic() - started:.1f} s. The last: {problem}{pause}. "
            "Check that the server is up; if it is overloaded, lower concurrency (-c) or requests_per_minute (--rate)"
        )

    def _named(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body with the endpoint's names of settings."""
        return {name: value for key, value in body.items() if (name := self.names.get(key, key))}

    def _learn(self, refusal: _Unknown) -> None:
        """Remember that a setting has another name, or is not known; say it once."""
        name = refusal.other
        if self.names.get(refusal.key) == name:
            return  # a request that was sent before
        self.names[refusal.key] = name
        way = f"sends {name} instead" if name else "leaves it out"
        logger.warning("%s; from now on rollenv %s (--send-as %s=%s)", refusal, way, refusal.key, name)

    def _wait(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt."""
        longest = min(self.patience.longest_wait, self.patience.first_wait * 2.0 ** min(attempt - 1, 30))
        return longest * self._jitter.uniform(0.5, 1.0)

    async def _attempt(self, bound: _Bound, body: Mapping[str, Any]) -> ChatReply:
        async with bound.slots:
            self.budget.check(self.totals)
            answer = int(body.get("max_completion_tokens") or body.get("max_tokens") or 256)
            taken = await bound.limiter.enter(_tokens(body.get("messages"), body.get("tools")) + answer)
            self.totals.requests += 1
            try:
                async with asyncio.timeout(self.patience.timeout):
                    reply = read_reply(await self._post(bound.client, body))
            except ErrorInReply as error:
                raise self._refusal(200, "OK", {}, json.dumps(error.data).encode(), body) from error
            except BadReply as bad:
                raise _Transient("nonsense", self._redact(str(bad))) from bad
            except (TimeoutError, httpx.TimeoutException) as error:
                raise _Transient("timeout", f"no answer within the timeout of {self.patience.timeout:g} s") from error
            except httpx.HTTPError as error:
                raise _Transient("connection", self._redact(f"{type(error).__name__}: {error}{self._way()}")) from error
            self._answered = time.monotonic()
            self._count(reply, body)
            taken.amount = reply.prompt_tokens + reply.completion_tokens
            return reply

    async def _post(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> Any:
        """Return the data of the answer, streamed or not. An exception closes the connection of an unread answer."""
        async with client.stream("POST", self.url, json=body) as response:
            kind = response.headers.get("content-type", "")
            if response.status_code == 200 and kind.startswith("text/event-stream"):
                return await read_events(_lines(response))
            content = bytearray()
            async for part in response.aiter_bytes():
                content += part
                if len(content) > _LARGEST:
                    raise BadReply(f"the answer is longer than {_LARGEST} bytes")
            if response.status_code == 200:
                return parse_json(bytes(content), kind)
            raise self._refusal(response.status_code, response.reason_phrase, response.headers, bytes(content), body)

    def _refusal(
        self, status: int, reason: str, headers: Mapping[str, str], content: bytes, body: Mapping[str, Any]
    ) -> Exception:
        """Return the exception for a status other than 200, or for an error with status 200."""
        text, code = content.decode("utf-8", "replace"), ""
        try:
            data = parse_json(content, "")
            error = data.get("error", data) if isinstance(data, dict) else data
            code = f"{error.get('code')} {error.get('type')}" if isinstance(error, dict) else ""
            message, everything = error_text(data), words(data)
        except (BadReply, RecursionError):
            message, everything = " ".join(text[:300].split()), text
        problem = self._redact(f"{without_login(self.url)}: {status} {reason}: {message or 'no text'}{self._way()}")
        if status in (401, 403):
            cause = "The endpoint refuses the key: check the one in OPENAI_API_KEY, or given as api_key"
            if self._way():
                cause += "; or the proxy refuses the address: add its host to no_proxy"
            return UsageError(f"{problem}. {cause}")
        if status == 404:
            return UsageError(f"{problem}. Check the model's name, and the base URL, which usually ends in /v1")
        if 300 <= status < 400:
            where = headers.get("location", "nowhere")
            return UsageError(f"{problem}. The endpoint redirects to {where}; change the base URL accordingly")
        if status in (200, 400, 413, 422) or status >= 500:
            limit = body.get("max_completion_tokens") or body.get("max_tokens")
            longest_answer = limit if isinstance(limit, int) else None
            if context_full(everything[:4000] + " request too large" * (status == 413), longest_answer):
                return ContextFull(f"{problem}. Play shorter episodes, or a bounded prompt (StepPrompt)")
        if status in (400, 422) and (unknown := unknown_setting(everything, body)):
            return _Unknown(*unknown, problem)
        if (status == 200 or status >= 500 or status in MAY_PASS) and not _NO_MONEY.search(code):
            after = requested_wait(headers, text)
            limited = status == 429 or (status == 200 and bool(_RATE_LIMIT.search(f"{code} {everything}")))
            kind = "rate_limit" if limited else "server_error"
            return _Transient(kind, problem, after, limited or status == 529 or (status == 503 and after is not None))
        return EndpointRefused(problem)

    def _way(self) -> str:
        """Return words about the proxy that stands before the endpoint; empty if there is none."""
        proxy = proxy_of(self.url)
        return proxy and f" (through the proxy {proxy} of the environment)"

    def _redact(self, text: str) -> str:
        """Remove the API key, which some servers repeat in errors; a short one is a placeholder and may be a word."""
        return text.replace(self._key, "***") if self._key and len(self._key) >= 8 else text

    def _count(self, reply: ChatReply, body: Mapping[str, Any]) -> None:
        totals = self.totals
        if not reply.prompt_tokens:
            reply.prompt_tokens, reply.estimated = _tokens(body.get("messages"), body.get("tools")), True
        if not reply.completion_tokens and (reply.text or reply.thoughts or reply.calls):
            output = (reply.text, reply.thoughts, *(call.name + call.arguments for call in reply.calls))
            reply.completion_tokens, reply.estimated = _tokens(*output), True
        if reply.estimated and not totals.estimated:
            logger.warning("%s does not report token counts: they are estimated", without_login(self.url))
        totals.estimated += reply.estimated
        totals.prompt_tokens += reply.prompt_tokens
        totals.cached_tokens += reply.cached_tokens
        totals.completion_tokens += reply.completion_tokens
        totals.cost += self.prices.of(reply)

    def usage(self, reply: ChatReply) -> dict[str, float]:
        """Return the usage of an answer, by the names of :class:`Totals`."""
        counted = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
        return {name: float(value) for name, value in {**counted, "cost": self.prices.of(reply)}.items() if value}

    async def _open(self) -> _Bound:
        loop = asyncio.get_running_loop()
        self._check_loop(loop)
        if self._bound is None:
            timeout = httpx.Timeout(self.patience.timeout, connect=min(10.0, self.patience.timeout), pool=None)
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            limits = httpx.Limits(max_connections=self.concurrency)
            client = httpx.AsyncClient(timeout=timeout, limits=limits, headers=headers, mounts=without_proxy(self.url))
            slots, limiter = asyncio.Semaphore(self.concurrency), EndpointRateLimiter(*self._windows)
            self._bound = _Bound(loop, client, _lifetime(client), slots, limiter)
            await anext(self._bound.lifetime)
        return self._bound

    def _check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._bound and self._bound.loop is not loop:
            if not self._bound.loop.is_closed():
                raise UsageError("the endpoint is in use in another event loop; await its aclose() there first")
            self._bound = None

    async def aclose(self) -> None:
        """Close all connections; may be called repeatedly, and a later request opens new ones."""
        self._check_loop(asyncio.get_running_loop())
        bound, self._bound = self._bound, None
        if bound:
            await bound.lifetime.aclose()


async def _lifetime(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    """Close a client when its event loop shuts down, which finalises asynchronous generators."""
    try:
        yield
    finally:
        await client.aclose()


def checked_url(text: str) -> None:
    """Raise UsageError for a malformed base URL."""
    try:
        url = httpx.URL(text)
        url.host.encode("idna")
        right = " " not in text and re.match(r"https?://[^/]", text) and url.host and (url.port or 80) < 1 << 16
    except (httpx.InvalidURL, UnicodeError):
        right = False
    if not right:
        raise UsageError(f"base_url must be a URL such as http://127.0.0.1:8000/v1, not {without_login(text)!r}")


def without_login(url: str) -> str:
    """Remove user name and password from a URL, for messages."""
    return re.sub(r"//[^/]*@", "//", url)


def _tokens(*parts: Any) -> int:
    """Estimate the number of tokens in texts or data, as four bytes each."""
    data = (part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts if part)
    return -(-sum(len(text.encode("utf-8", "replace")) for text in data) // 4)


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the lines of a stream. (httpx also splits at U+2028 and others, which texts may contain.)"""
    rest = bytearray()
    async for part in response.aiter_bytes():
        rest += part
        if b"\n" in part:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                yield line.decode("utf-8", "replace")
        elif len(rest) > _LARGEST:
            raise BadReply(f"a line of the stream is longer than {_LARGEST} bytes")
    yield rest.decode("utf-8", "replace")

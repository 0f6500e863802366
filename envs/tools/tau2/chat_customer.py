"""A customer played by a language model behind an OpenAI-compatible endpoint. Its episodes cannot be repeated."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import httpx

from rollenv.core import UsageError
from rollenv.envs.tools.users import Said, User
from rollenv.errors import RollenvError

_STOP = "###STOP###"
_TRIES = 3
_MOST_BYTES = 1_000_000
_ROLE = (
    "You play a customer who talks with a shop's service. Stay in the role, write one short message at a time, tell "
    "only what is asked for and only what your instructions say; say that you do not know anything else. When your "
    f"request has been dealt with, or you are transferred, write {_STOP} and nothing else.\n\nYour instructions:\n"
)


class CustomerFailed(RollenvError):
    """The endpoint gave no answer."""


class ChatCustomer(User):
    """Asks an endpoint what the customer says; :attr:`told` has the conversation.

    Args:
        model: as the endpoint knows it.
        base_url: what ``/chat/completions`` is appended to. The key is taken from ``OPENAI_API_KEY``, if it is set.
        patience: seconds for one try; there are three.
    """

    def __init__(self, instructions: Mapping[str, Any], model: str, base_url: str, patience: float = 120.0):
        super().__init__()
        try:
            there = httpx.URL(base_url).host and base_url.startswith(("http://", "https://"))
        except (httpx.InvalidURL, ValueError):
            there = False
        if not there or not model:
            raise UsageError(f"user='chat:MODEL' needs a model and base_url=, a URL; got {model!r} and {base_url!r}")
        self.model, self.url, self.patience = model, base_url.rstrip("/") + "/chat/completions", patience
        self.role = _ROLE + json.dumps(dict(instructions), ensure_ascii=False)
        self.told["heard"] = []

    def reply(self, message: str) -> Said:
        """Ask the endpoint what the customer says to a message.

        Args:
            message: of the agent, without its calls.

        Raises:
            CustomerFailed: it gave no answer.
        """
        heard: list[dict[str, str]] = [*self.told["heard"], {"role": "user", "content": _clean(message)}]
        text = self._asked([{"role": "system", "content": self.role}, *heard])
        self.told["heard"] = [*heard, {"role": "assistant", "content": text}]
        return Said(text.replace(_STOP, "").strip(), ends=_STOP in text)

    def _asked(self, messages: list[dict[str, str]]) -> str:
        sent = {"model": self.model, "messages": messages, "temperature": 0}
        problem = ""
        with httpx.Client(timeout=self.patience, headers=_headers()) as client:
            for _ in range(_TRIES):
                try:
                    with client.stream("POST", self.url, json=sent) as response:
                        response.raise_for_status()
                        return _text_of(self._read(response))
                except (httpx.HTTPError, TimeoutError, ValueError) as error:
                    problem = f"{type(error).__name__}: {str(error)[:200]}"
        raise CustomerFailed(f"the customer's endpoint {self.url} gave no answer in {_TRIES} tries ({problem})")

    def _read(self, response: httpx.Response) -> bytes:
        """The body; httpx's own limit is for each piece of it."""
        content, end = bytearray(), time.monotonic() + self.patience
        for piece in response.iter_bytes():
            content += piece
            if len(content) > _MOST_BYTES:
                raise ValueError(f"the answer is larger than {_MOST_BYTES} bytes")
            if time.monotonic() > end:
                raise TimeoutError(f"the answer took longer than {self.patience:g} s")
        return bytes(content)


def _headers() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not key.isascii() or not key.isprintable():  # httpx would show it in its error
        raise UsageError("OPENAI_API_KEY holds characters that cannot be sent in a header; set it to the key alone")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _text_of(content: bytes) -> str:
    """The message in a chat completion."""
    try:
        text = json.loads(content)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise ValueError(f"the answer is not a chat completion: {content[:100]!r}") from error
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the answer has no text: {content[:100]!r}")
    return _clean(text)


def _clean(text: str) -> str:
    """Half characters cannot be sent."""
    return text.encode("utf-8", "replace").decode("utf-8")

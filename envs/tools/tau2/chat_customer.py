"""A customer played by a language model behind an OpenAI-compatible endpoint. Its episodes cannot be repeated."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import httpx

from rollenv.core import UsageError
from rollenv.envs.tools.base import Said, User
from rollenv.errors import RollenvError

_STOP = "###STOP###"
_TRIES = 3
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
        instructions: of the task.
        model: as the endpoint knows it.
        base_url: what ``/chat/completions`` is appended to. The key is taken from ``OPENAI_API_KEY``, if it is set.
        transport: for tests.
    """

    def __init__(
        self,
        instructions: Mapping[str, Any],
        model: str,
        base_url: str,
        transport: httpx.BaseTransport | None = None,
    ):
        super().__init__()
        if not base_url.startswith(("http://", "https://")) or not model:
            raise UsageError(f"user='chat:MODEL' needs a model and base_url=, a URL; got {model!r} and {base_url!r}")
        self.model, self.url, self.transport = model, base_url.rstrip("/") + "/chat/completions", transport
        self.role = _ROLE + json.dumps(dict(instructions), ensure_ascii=False)
        self.told["heard"] = []

    def reply(self, message: str) -> Said:
        """Ask the endpoint what the customer says to a message.

        Args:
            message: of the agent, without its calls.

        Raises:
            CustomerFailed: it gave no answer.
        """
        heard: list[dict[str, str]] = [*self.told["heard"], {"role": "user", "content": message}]
        text = self._asked([{"role": "system", "content": self.role}, *heard])
        self.told["heard"] = [*heard, {"role": "assistant", "content": text}]
        return Said(text.replace(_STOP, "").strip(), ends=_STOP in text)

    def _asked(self, messages: list[dict[str, str]]) -> str:
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        problem = ""
        with httpx.Client(timeout=120, transport=self.transport, headers=headers) as client:
            for _ in range(_TRIES):
                try:
                    response = client.post(self.url, json={"model": self.model, "messages": messages, "temperature": 0})
                    response.raise_for_status()
                    return str(response.json()["choices"][0]["message"]["content"] or "")
                except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
                    problem = f"{type(error).__name__}: {str(error)[:200]}"
        raise CustomerFailed(f"the customer's endpoint {self.url} gave no answer in {_TRIES} tries ({problem})")

"""Players of a user: a script, a model behind an endpoint, a model in this process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import httpx

from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.parts import part
from rollenv.core.proxies import without_proxy

#: Texts by which a user ends the conversation, as in tau2.
STOP, TRANSFER, OUT_OF_SCOPE = ENDS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")

#: A user's view of the conversation: what they observed has the role "user", what they did the role "assistant".
Heard = Sequence[Mapping[str, str]]

_TRIES = 3
_MOST_BYTES = 1_000_000


class UserPlayer(Protocol):
    """A player of the user's seat, a function of what the user has heard."""

    def act(self, heard: Heard) -> str:
        """Return the user's next action: a message, calls of their own functions, or an end."""
        ...


class CustomerFailed(RollenvError):
    """The model that plays a user gave no answer."""


class ChatUser:
    """A user played by a model behind an endpoint.

    Args:
        base_url: URL before ``/chat/completions``. The key is ``OPENAI_API_KEY``, if it is set.
        patience: timeout of each of three tries, in seconds.
    """

    def __init__(self, model: str, base_url: str, patience: float = 120.0):
        try:
            there = httpx.URL(base_url).host and base_url.startswith(("http://", "https://"))
        except (httpx.InvalidURL, ValueError):
            there = False
        if not there or not model:
            raise UsageError(f"user='chat:MODEL' needs a model and base_url=, a URL; got {model!r} and {base_url!r}")
        self.model, self.url, self.patience = model, base_url.rstrip("/") + "/chat/completions", patience

    def act(self, heard: Heard) -> str:
        """Get the next action from the endpoint.

        Raises:
            CustomerFailed: the endpoint did not answer.
        """
        sent = {"model": self.model, "messages": list(heard), "temperature": 0}
        problem = ""
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not key.isascii() or not key.isprintable():  # httpx would leak it in its error
            raise UsageError("OPENAI_API_KEY holds characters that cannot be sent in a header; set it to the key alone")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(timeout=self.patience, headers=headers, mounts=without_proxy(self.url)) as client:
            for _ in range(_TRIES):
                try:
                    with client.stream("POST", self.url, json=sent) as response:
                        response.raise_for_status()
                        # httpx's timeout is per chunk, so the whole body needs a deadline.
                        content, end = bytearray(), time.monotonic() + self.patience
                        for piece in response.iter_bytes():
                            content += piece
                            if len(content) > _MOST_BYTES:
                                raise ValueError(f"the answer is larger than {_MOST_BYTES} bytes")
                            if time.monotonic() > end:
                                raise TimeoutError(f"the answer took longer than {self.patience:g} s")
                        return _text_of(bytes(content))
                except (httpx.HTTPError, TimeoutError, ValueError) as error:
                    problem = f"{type(error).__name__}: {str(error)[:200]}"
        raise CustomerFailed(f"the customer's endpoint {self.url} gave no answer in {_TRIES} tries ({problem})")


def _text_of(content: bytes) -> str:
    """Return the message in a chat completion."""
    try:
        text = json.loads(content)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise ValueError(f"the answer is not a chat completion: {content[:100]!r}") from error
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the answer has no text: {content[:100]!r}")
    return clean(text)


def clean(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def player_of(user: str, base_url: str) -> UserPlayer | None:
    """Return the model that plays a user; None for ``scripted`` and ``seat``.

    Raises:
        UsageError: the text names none of these.
    """
    kind, _, name = str(user).partition(":")
    if user in ("scripted", "seat"):
        return None
    if kind == "chat":
        return ChatUser(name, base_url)
    if kind == "local":
        made: UserPlayer = part("local user")(name)
        return made
    raise UsageError(f"user={user!r} is unknown; it is 'scripted', 'seat', 'chat:MODEL' or 'local:PATH'")

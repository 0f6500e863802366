"""Scripted users: what they say to the messages of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """A user's reply to a message."""

    text: str
    ends: bool = False


class User:
    """A scripted user. Deterministic; its state is :attr:`told`, JSON data.

    This one has nothing to say: the first message ends the task.
    """

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def reply(self, message: str) -> Said:
        """Answer a message of the agent."""
        return Said("", ends=True)


class Informant(User):
    """Has facts that the request leaves out, and tells them when asked.

    A message with a question mark is a question; every fact that it mentions is told. Any other message ends the task.

    Args:
        facts: for each, words of which a question mentions one (in lower case), and what the user then says.
        ignorant: said to a question about anything else.
    """

    def __init__(
        self, facts: Sequence[tuple[Sequence[str], str]], ignorant: str = "I don't know anything about that."
    ) -> None:
        super().__init__()
        self.facts, self.ignorant = facts, ignorant

    def reply(self, message: str) -> Said:
        if "?" not in message:
            return Said("", ends=True)
        asked = message.lower()
        known = [fact for words, fact in self.facts if any(word in asked for word in words)]
        self.told["questions"] = self.told.get("questions", 0) + 1
        return Said(" ".join(known) or self.ignorant)


class Reminder(User):
    """Answers every message with the same text; the episode goes on.

    Args:
        text: what to do instead of writing to the user.
    """

    def __init__(self, text: str):
        super().__init__()
        self.text = text

    def reply(self, message: str) -> Said:
        return Said(self.text)

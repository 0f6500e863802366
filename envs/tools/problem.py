"""A task with tools: what is asked, the world and the user it is asked in, and what the right end is."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from rollenv.tools.backend import Backend, Change


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


#: A function's name and its arguments.
Call = tuple[str, dict[str, Any]]
#: What an expert does in one turn: calls, or a message to the user.
Move = Sequence[Call] | str


@dataclass(frozen=True)
class Judgement:
    """The judgement of an episode."""

    success: bool
    partial: float = 0.0
    """0 to 1: the share of what was wanted that is there. Reported, not paid, unless the environment is asked to."""
    side_effects: int = 0
    """Changes of the state that were not wanted."""


@dataclass
class Problem:
    """One task."""

    question: str
    """What the user asks for first."""
    backend: Backend
    """In the state at the start. It belongs to the problem alone."""
    plan: Sequence[Move] = ()
    """An expert's moves; their calls lead to the state that is wanted, where :attr:`goal` does not say it."""
    name: str = ""
    """Equal tasks have equal names; splits go by it. By default a hash of the question and the start."""
    goal: Mapping[str, Any] | None = None
    """The state wanted at the end (:meth:`Backend.data`); by default the one that the plan leads to."""
    answers: Sequence[str] = ()
    """Texts that messages to the user have to contain, upper and lower case being the same."""
    user: User = field(default_factory=User)
    policy: str = ""
    """Rules to keep, shown before the question."""
    tools: Sequence[str] | None = None
    """The functions that are offered; None for all."""
    category: str = ""
    before: Mapping[str, Any] | None = None
    """The state at the start as data, where many problems share a large one; never changed. Else it is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Only the backend and the user, who may know the backend, change; the rest is shared."""
        twin = copy.copy(self)
        twin.backend, twin.user = copy.deepcopy(self.backend, memo), copy.deepcopy(self.user, memo)
        return twin

    @functools.cached_property
    def start(self) -> Mapping[str, Any]:
        """The state at the start, as data."""
        return copy.deepcopy(self.backend.data()) if self.before is None else self.before

    @functools.cached_property
    def wanted(self) -> Mapping[str, Any]:
        """The state at the end of a solved task, as data."""
        if self.goal is not None:
            return self.goal
        twin = self.backend.twin()
        twin.load(dict(self.start))
        for name, arguments in (call for move in self.plan if not isinstance(move, str) for call in move):
            twin.call(name, arguments)
        return twin.data()

    def named(self) -> str:
        """The name, or a hash of what the task is."""
        if self.name:
            return self.name
        told = json.dumps([self.question, self.policy, list(self.tools or ()), self.start], sort_keys=True)
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def counted(changed: Sequence[Change], wanted: Sequence[Change]) -> tuple[int, int]:
    """Return the number of wanted changes that were made, and of changes made elsewhere.

    Returns:
        The two counts.
    """
    aims = {change.path: change.after for change in wanted}
    met = sum(change.path in aims and aims[change.path] == change.after for change in changed)
    return met, sum(change.path not in aims for change in changed)

"""A scripted customer: says why they call, tells what they know when asked, and confirms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollenv.envs.tools.problem import Said, User

#: Second person to first, longest first.
_PERSONS = (
    ("you are", "I am"), ("you're", "I'm"), ("you have", "I have"), ("you've", "I've"), ("you'd", "I'd"),
    ("you'll", "I'll"), ("you were", "I was"), ("yourself", "myself"), ("yours", "mine"), ("your", "my"),
    ("to you", "to me"), ("for you", "for me"), ("tell you", "tell me"), ("you", "I"),
)  # fmt: skip
_PERSON = re.compile("|".join(rf"\b{old}\b" for old, _ in _PERSONS), re.IGNORECASE)
_CONFIRM = (
    "confirm",
    "(yes",
    "yes/no",
    "proceed",
    "go ahead",
    "is that correct",
    "is this correct",
    "would you like me",
)
_ASKS = ("please provide", "please tell", "please share", "could you", "can you", "let me know", "may i have")
LEAVES = ("anything else", "with something else", "further assistance")
TRANSFERRED = "transferred to a human"


def in_first_person(text: str) -> str:
    """Return the first-person form of ``You are ...``."""
    forms = dict(_PERSONS)

    def changed(match: re.Match[str]) -> str:
        word = forms[match[0].lower()]
        start = match.start()
        begins = start == 0 or text[:start].rstrip()[-1:] in (".", "!", "?")
        return word[0].upper() + word[1:] if begins else word

    return _PERSON.sub(changed, text)


class Customer(User):
    """Follows the instructions of a task, always in the same way.

    A message that asks nothing ends the conversation, as does the transfer to a human and a "no" to whether there is
    anything else.

    Args:
        instructions: of the task: ``reason_for_call``, ``known_info``, ``unknown_info``, ``task_instructions``.
    """

    def __init__(self, instructions: Mapping[str, Any]):
        super().__init__()
        self.parts = {key: in_first_person(str(value or "").strip(" .\n")) for key, value in instructions.items()}

    @property
    def opening(self) -> str:
        """The customer's first message."""
        return f"Hello. {self.parts['reason_for_call']}."

    def reply(self, message: str) -> Said:
        """Answer a message of the agent."""
        text = message.lower()
        if TRANSFERRED in text:
            return Said("", ends=True)
        if "?" not in text and not self.asked(text):
            return Said("", ends=True)
        if any(phrase in text for phrase in LEAVES):
            more = self.confirms(text)
            return Said("Yes. That is all." if more else "No, that is all. Thank you.", ends=not more)
        self.told["questions"] = self.told.get("questions", 0) + 1
        answers = self._answers(text)
        if self.confirms(text) and not answers:
            return Said("Yes.")
        return Said(" ".join(answers) or self._everything())

    @staticmethod
    def confirms(text: str) -> bool:
        """Return whether a message, in lower case, asks for a yes."""
        return any(phrase in text for phrase in _CONFIRM)

    @classmethod
    def asked(cls, text: str) -> bool:
        """Return whether a message, in lower case, asks for something without a question mark."""
        return cls.confirms(text) or any(phrase in text for phrase in _ASKS)

    def _answers(self, text: str) -> list[str]:
        """Return the facts about the customer, and about what is asked for."""
        known = self.parts.get("known_info", "")
        answers = []
        if any(word in text for word in ("your name", "zip", "identity", "verify", "authenticate", "user id")):
            answers.append(f"{known}.")
        if re.search(r"\bemail", text):
            emails = re.findall(r"[\w.+-]+@[\w.-]+\w", known)
            missing = self.parts.get("unknown_info") or "I do not have my email address"
            answers.append(f"My email is {emails[0]}." if emails else f"{missing}.")
            answers += [f"{known}."] if not emails and f"{known}." not in answers else []
        if "reason" in text and (reason := re.search(r"no longer needed|by mistake", self._everything().lower())):
            answers.append("It is no longer needed." if reason[0].startswith("no") else "I ordered it by mistake.")
        return answers

    def _everything(self) -> str:
        parts = (self.parts["reason_for_call"], self.parts.get("known_info"), self.parts.get("task_instructions"))
        return " ".join(f"{part}." for part in parts if part)

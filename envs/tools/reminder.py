"""A user who waits for calls."""

from __future__ import annotations

from rollenv.envs.tools.base import Said, User


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

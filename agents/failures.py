"""What an engine raises when it cannot go on."""

from __future__ import annotations

from rollenv.agents.generation import Response
from rollenv.core import RollenvError


class EngineFailed(RollenvError):
    """The model or the device failed. ``response`` is what was drawn for this request before."""

    def __init__(self, message: str, response: Response | None = None):
        super().__init__(message)
        self.response = response or Response()

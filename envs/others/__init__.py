"""Other people's environments as ids: ``gymnasium:ID``, ``openenv:URL`` and ``verifiers:PACKAGE``."""

from __future__ import annotations

from rollenv.errors import RollenvError


class Misbehaved(RollenvError):
    """A third-party environment failed, or returned an invalid value."""


def one_line(error: BaseException) -> str:
    """An error's kind and text, short enough for a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__

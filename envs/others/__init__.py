"""Other people's environments as ids: ``gymnasium:ID``, ``openenv:URL`` and ``verifiers:PACKAGE``."""

from __future__ import annotations

from rollenv.errors import RollenvError


class Misbehaved(RollenvError):
    """A third-party environment failed, or returned an invalid value."""


def one_line(error: BaseException) -> str:
    """An error's kind and text, short enough for a line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said:.300}" if said else type(error).__name__

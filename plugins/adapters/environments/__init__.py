"""Third-party environments as ids: ``gymnasium:ID``, ``openenv:URL`` and ``verifiers:PACKAGE``."""

from __future__ import annotations

import json
from typing import Any

from rollenv.core.errors import RollenvError
from rollenv.core.parsing import last_boxed, well_formed


class Misbehaved(RollenvError):
    """A third-party environment failed, or returned an invalid value."""


def one_line(error: BaseException) -> str:
    """Describe an error by type and text, shortened to a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__


def boxed(reply: str) -> str:
    """Return the content of a reply's last box, or the whole reply."""
    found = last_boxed(reply)
    return well_formed((reply if found is None else found).strip())


def json_of(text: str) -> Any:
    """Parse the JSON data in a reply.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r:.60} cannot be read: {error!s:.80}") from None

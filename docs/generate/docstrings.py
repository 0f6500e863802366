"""Conversion of Sphinx roles in docstrings to Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`~?([^`]*)`")
_LITERAL = re.compile(r"::(?=\n\n)")


def plain(text: str) -> str:
    """Replace roles, and convert code blocks to Markdown."""
    return _LITERAL.sub(":", _ROLE.sub(r"`\1`", text))


class Docstrings(griffe.Extension):
    """Rewrites each docstring when its object has been read."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = plain(obj.docstring.value)

"""Normalisation of characters that are written in several ways."""

from __future__ import annotations

import unicodedata

_HYPHENS = str.maketrans(dict.fromkeys("‐‑−", "-"))


def plain_characters(text: str) -> str:
    """Convert a text to Unicode's NFKC, with one hyphen and minus sign, one space, and no invisible characters."""
    if text.isascii():
        return text
    return "".join(
        " " if char.isspace() and char != "\n" else char
        for char in unicodedata.normalize("NFKC", text).translate(_HYPHENS)
        if unicodedata.category(char) != "Cf"
    )

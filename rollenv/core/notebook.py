"""HTML of environments for notebooks, and its parts: titles and tables. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rollenv.core.drawing import draw, svg
from rollenv.core.env import Env, stage_of

#: Maximum length of the text in a table cell, and maximum number of rows.
LONGEST, ROWS = 400, 50

#: Maximum length of the text of a board.
BOARD = 20_000


def env_html(env: Env) -> str:
    """Return an environment's board as SVG, or its text; only its name if rendering fails."""
    inner: Any = env.unwrapped
    try:
        text = inner.render()
    except Exception:  # a closed environment, or one that cannot render before its first episode
        text = ""
    shown = ""
    if isinstance(text, str) and text:
        drawing = draw(getattr(inner, "picture", None), text)
        shown = svg(drawing) if drawing is not None else f"<pre>{cell(text, BOARD)}</pre>"
    return f"<div>{title(str(env), stage_of(env))}{shown}</div>"


Env._repr_html_ = env_html  # type: ignore[attr-defined]


def title(name: str, about: str) -> str:
    """Return a line with a name and what is said about it."""
    return f"<p><b>{_safe(name)}</b>{_safe(about and ': ' + about)}</p>"


def table(head: Sequence[str], rows: Sequence[Iterable[Any]]) -> str:
    """Return a table of at most :data:`ROWS` rows."""
    top = "".join(f"<th>{name}</th>" for name in head)
    left = 'style="text-align:left;vertical-align:top;white-space:pre-wrap"'
    lines = ["".join(f"<td {left}>{cell(str(each))}</td>" for each in row) for row in rows[:ROWS]]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>and {len(rows) - ROWS} more</p>" if len(rows) > ROWS else ""
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{more}"


def cell(text: str, longest: int = LONGEST) -> str:
    """Return a text for HTML, cut off if it is long."""
    return _safe(text if len(text) <= longest else f"{text[: longest - 3]}...")


def _safe(text: str) -> str:
    """Return HTML without characters that pages cannot contain."""
    return escape(text.encode("utf-8", "replace").decode().replace("\0", "?"))

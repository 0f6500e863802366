"""The pictures of an observation, ``info["images"]``, as parts of a chat message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from rollenv.agents.base import AgentFailed
from rollenv.core.errors import UsageError
from rollenv.core.parsing import well_formed

#: The placeholder of a picture in a text; pictures are in the order of their placeholders.
MARK = "<image>"


class _Address(BaseModel):
    model_config = ConfigDict(strict=True)

    url: str = Field(pattern=r"^(data:image/|https?://)")


class _Part(BaseModel):
    type: Literal["image_url"]
    image_url: _Address


_PARTS = TypeAdapter(list[_Part])


def pictures(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the pictures of an observation; none if there is no such key."""
    images = info.get("images")
    if not images:
        return []
    try:
        _PARTS.validate_python(images)
    except ValueError as error:
        raise AgentFailed(f'info["images"] must be parts {{"type": "image_url", ...}}: {str(error)[:300]}') from error
    return list(images)


def content(text: str, images: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a message's content: the text with pictures at their placeholders, or before it without placeholders."""
    if not images:
        return well_formed(text)
    pieces = text.split(MARK) if MARK in text else [*[""] * len(images), text]
    if len(pieces) != len(images) + 1:
        raise AgentFailed(f"a prompt has {len(pieces) - 1} marks {MARK} for {len(images)} pictures")
    parts: list[dict[str, Any]] = []
    for piece, image in zip(pieces, [*images, None], strict=True):
        parts += [{"type": "text", "text": well_formed(piece)}] if piece.strip() else []
        parts += [image] if image is not None else []
    return parts


def refuse_pictures(info: Mapping[str, Any], who: str) -> None:
    """Refuse an observation with pictures."""
    if info.get("images"):
        raise UsageError(f"the observation has pictures, which {who} cannot see: play it with a ChatAgent (chat:MODEL)")

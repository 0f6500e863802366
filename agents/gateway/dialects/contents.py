"""Contents of messages in all dialects: texts, images, and what a model of text cannot read as it is."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from rollenv.agents.gateway.dialects.fields import field, invalid, objects, text
from rollenv.agents.gateway.messages import Message

_TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
_IMAGES = ("image_url", "input_image", "image", "computer_screenshot")
#: What documents and sounds must hold, by type. They are shown as their names and texts.
_HELD: Mapping[str, tuple[str, type]] = {
    "document": ("source", dict),
    "search_result": ("content", list),
    "tool_reference": ("tool_name", str),
    "file": ("file", dict),
    "input_file": ("", str),
    "input_audio": ("input_audio", dict),
}
#: Keys of names before a text, and of further ones in the place of a text.
_NAMES = ("title", "filename", "tool_name", "source", "url", "file_url", "context")
_OTHER_NAMES = ("file_id", "media_type", "format")
#: Keys that tell a model nothing; so do those that begin with "encrypted", and bytes in "data".
_UNREAD = ("id", "status", "cache_control", "citations", "caller", "signature", "thoughtSignature")
_KIND = re.compile("[A-Za-z][A-Za-z0-9_.-]{0,63}")


def blocks(of: Mapping[str, Any], key: str, where: str = "") -> list[tuple[dict[str, Any], str]]:
    """Return pairs of a content block and its path; a string is one block of text, null is none."""
    value = of.get(key)
    if isinstance(value, str):
        return [({"type": "text", "text": value}, f"{where}.{key}")]
    if isinstance(value, dict) and "type" in value:
        return [(value, f"{where}.{key}")]
    return objects(of, key, where)


def join_blocks(found: list[tuple[dict[str, Any], str]]) -> tuple[str, tuple[str, ...]]:
    """Return the text of blocks, and the URLs of their images.

    Texts are joined without a separator. What is neither text nor image has lines of its own (see :func:`_show`).
    """
    joined, images, after_text = "", list[str](), True
    for block, where in found:
        kind = field(block, "type", str, where)
        if kind is None and ("text" in block or not block):
            kind = "text"
        is_text = kind in _TEXTS or kind == "refusal"
        if is_text:
            piece = text(block, "refusal" if kind == "refusal" else "text", where)
        elif kind in _IMAGES and "file_id" not in {**block, **_inner(block, kind)}:
            images.append(_url(block, where))
            continue
        else:
            piece, shown = _show(block, kind or "", where)
            images += shown
        if joined and not (is_text and after_text):
            joined += "\n"
        joined, after_text = joined + piece, is_text
    return joined, tuple(images)


def content(of: Mapping[str, Any], key: str, where: str = "") -> tuple[str, tuple[str, ...]]:
    """Read a content."""
    if isinstance(value := of.get(key), str):
        return value, ()
    return join_blocks(blocks(of, key, where))


def system(of: Mapping[str, Any], key: str) -> list[Message]:
    """Return a body's system prompt as a message, if it has one."""
    text, images = content(of, key)
    return [Message("system", text, images=images)] if text or images else []


def _inner(block: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the object inside a block that says what it is."""
    return next((block[key] for key in ("source", kind) if isinstance(block.get(key), dict)), {})


def _show(block: Mapping[str, Any], kind: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Show a block that is neither text nor image, equally in every request.

    Documents and sounds are their names and their text or, without a text, "[TYPE: NAMES]". Others, which servers add
    to a chat, are JSON of what can be read in them.
    """
    key, held = _HELD.get(kind, ("", str))
    empty = not block.keys() - {"type"} or (key and not isinstance(block.get(key), held))
    if empty or (kind and not _KIND.fullmatch(kind)):
        raise invalid(f"a block of type {kind!r} cannot be read here; send its content or leave it out", where)
    if kind not in (*_HELD, *_IMAGES):
        rest = _readable({key: value for key, value in block.items() if key != "type"}, where)
        written = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return written if any(rest.values()) else f"[{kind}]", ()
    inner = _inner(block, kind)
    of = {**{key: value for key, value in block.items() if value is not inner}, **inner}
    media, _, data = text(of, "file_data", where).removeprefix("data:").partition(";base64,")
    media, data = text(of, "media_type", where) or (media if data else ""), text(of, "data", where) or data
    said, images = content(of, "content", where)
    if of.get("type") == "text":
        said = data
    elif media.startswith("text/"):
        try:
            said = base64.b64decode("".join(data.split()), validate=True).decode(errors="replace")
        except ValueError:
            raise invalid("its data are not base64", where) from None
    names = [short for name in _NAMES if (short := _short(text(of, name, where)))]
    if said or images:
        return "\n".join(filter(None, (*names, said))), images
    names += [short for name in _OTHER_NAMES if (short := _short(text({**of, "media_type": media}, name, where)))]
    return f"[{kind}: {', '.join(names)}]" if names else f"[{kind}]", ()


def _readable(value: Any, where: str) -> Any:
    """Return data without what tells a model nothing, and with documents and texts inside as text."""
    if isinstance(value, list):
        return [_readable(one, where) for one in value]
    if isinstance(value, str):
        return _short(value)
    if not isinstance(value, dict):
        return value
    if value.get("type") in (*_TEXTS, *_HELD):
        return join_blocks([(value, where)])[0]
    return {
        key: _readable(one, where)
        for key, one in value.items()
        if key not in _UNREAD and not key.startswith("encrypted") and not (key == "data" and isinstance(one, str))
    }


def _short(value: str) -> str:
    """Return a text; of a data URL only what kind of data it is."""
    return re.split("[;,]", value, maxsplit=1)[0] if value.startswith("data:") else value


def _url(block: Mapping[str, Any], where: str) -> str:
    """Return the URL of an image, in OpenAI's two forms or Anthropic's ``source``."""
    image = block.get("source", block.get("image_url", block.get("url")))
    if isinstance(image, dict):
        if image.get("type") == "base64":
            image = f"data:{image.get('media_type')};base64,{image.get('data')}"
        else:
            image = image.get("url")
    if isinstance(image, str) and image.startswith(("http://", "https://", "data:")):
        return image
    raise invalid("an image must be given by an http, https or data URL", where)

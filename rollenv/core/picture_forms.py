"""Texts with pictures as chat APIs take them.

The place of a picture in a text is a mark, :data:`~rollenv.core.pictures.MARK`. Before texts are joined, their marks
are bound to pictures: a model or a tool that writes ``<image>`` has then written a word, not a picture.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rollenv.core.errors import UsageError
from rollenv.core.parsing import well_formed
from rollenv.core.pictures import MARK, Picture

#: What a mark becomes that stands for no picture, in a text with pictures.
WORD = "[image]"

_BOUND = re.compile(r"<image:([0-9a-f]{64})>")


def bound(text: str, images: Sequence[Picture]) -> str:
    """Return a text with marks that name their pictures. A text without marks has its pictures at its beginning.

    A mark is a word if there are no pictures at all.

    Raises:
        UsageError: the numbers of marks and pictures differ.
    """
    if not images:
        return text
    marks = text.count(MARK)
    if marks not in (0, len(images)):
        raise UsageError(f"a text has {marks} marks {MARK} for {len(images)} pictures: {text!r:.60}")
    pieces = text.split(MARK) if marks else [*[""] * len(images), text]
    names = (f"<image:{image.sha256}>" for image in images)
    return pieces[0] + "".join(name + piece for name, piece in zip(names, pieces[1:], strict=True))


def parts(text: str, images: Iterable[Picture]) -> list[str | Picture]:
    """Split a text with bound marks into texts, of which some may be empty, and pictures."""
    held = {image.sha256: image for image in images}
    found, begin = list[str | Picture](), 0
    for mark in _BOUND.finditer(text):
        if image := held.get(mark[1]):
            found += [text[begin : mark.start()], image]
            begin = mark.end()
    return [*found, text[begin:]]


def observed(text: str, images: Sequence[Picture]) -> tuple[str, list[Picture]]:
    """Return a text with bound marks as an observation: with plain marks, and the pictures in their order.

    Other marks in the text, which a model or a tool wrote, become :data:`WORD`.
    """
    if not images:
        return text, []
    found = parts(text, images)
    shown = "".join(MARK if isinstance(part, Picture) else part.replace(MARK, WORD) for part in found)
    return shown, [part for part in found if isinstance(part, Picture)]


def is_picture(value: Any) -> bool:
    """Return whether a value of a program is a picture: one of Pillow's, pixels (height, width, 3), a Picture."""
    pixels = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3
    return isinstance(value, Picture) or pixels or (hasattr(value, "save") and hasattr(value, "convert"))


def pil(image: Picture) -> Any:
    """Return a picture as Pillow's."""
    pixels = image.array()  # says how to install Pillow
    return importlib.import_module("PIL.Image").fromarray(pixels)


def _base64(image: Picture) -> str:
    return image.url.partition(",")[2]


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


#: A form of messages with pictures, as :func:`contents` takes it.
Form = str | Callable[[Picture], Any]

#: The parts of a message's content by form, from a text and from a picture.
FORMS: dict[str, tuple[Callable[[str], Any], Callable[[Picture], Any]]] = {
    "openai": (_text, lambda image: {"type": "image_url", "image_url": {"url": image.url}}),
    "responses": (
        lambda text: {"type": "input_text", "text": text},
        lambda image: {"type": "input_image", "image_url": image.url},
    ),
    "messages": (
        _text,
        lambda image: {
            "type": "image",
            "source": {"type": "base64", "media_type": image.media_type, "data": _base64(image)},
        },
    ),
    "gemini": (
        lambda text: {"text": text},
        lambda image: {"inlineData": {"mimeType": image.media_type, "data": _base64(image)}},
    ),
    "mcp": (_text, lambda image: {"type": "image", "mimeType": image.media_type, "data": _base64(image)}),
    "stored": (_text, lambda image: image.as_json(data=False)),
}


def contents(form: Form, text: str, images: Iterable[Picture]) -> list[Any]:
    """Return the parts of a message's content, without blank texts beside pictures.

    Args:
        form: a name in :data:`FORMS`, or a function from a picture to its part; texts are then parts of OpenAI's form.
        text: with bound marks.
    """
    if isinstance(form, str):
        of_text, of_image = FORMS[form]
    else:
        of_text, of_image = _text, form
    found = parts(text, images)
    if len(found) == 1:
        return [of_text(well_formed(text))]
    return [
        of_image(part) if isinstance(part, Picture) else of_text(well_formed(part))
        for part in found
        if isinstance(part, Picture) or part.strip()
    ]


def content(form: Form, text: str, images: Iterable[Picture]) -> str | list[Any]:
    """Return a message's content: :func:`contents`, or the text if it has no pictures."""
    return contents(form, text, images) if len(parts(text, images)) > 1 else well_formed(text)


def stored_content(text: str, images: Sequence[Picture]) -> str | list[Any]:
    """Return the content of a stored observation in the form "stored".

    Where it has not all marks of its pictures, which stand in texts around it, they are at its beginning.
    """
    if images and text.count(MARK) != len(images):
        text = text.replace(MARK, WORD)
    return content("stored", bound(text, images), images)

"""Texts with pictures in the forms of others: their own classes read them, with equal pixels."""

import base64

import numpy as np
import pytest
from pydantic import TypeAdapter

from rollenv import UsageError
from rollenv.core.picture_forms import bound, content, observed, parts
from rollenv.core.pictures import picture

PIL = pytest.importorskip("PIL.Image")


def coloured(*colours):
    return [picture(np.full((28, 56, 3), colour, np.uint8)) for colour in colours]


ONE, TWO = coloured((250, 0, 0), (0, 0, 250))
TEXT = "Before <image> between <image>"


def written(form):
    return content(form, bound(TEXT, (ONE, TWO)), (TWO, ONE))


def decoded(data):
    return picture(base64.b64decode(data))


def of_openai(part):
    from openai.types.chat import ChatCompletionContentPartParam

    TypeAdapter(ChatCompletionContentPartParam).validate_python(part)
    return part["text"] if part["type"] == "text" else picture(part["image_url"]["url"])


def of_responses(part):
    from openai.types.responses import ResponseInputImageParam, ResponseInputTextParam

    TypeAdapter(ResponseInputTextParam | ResponseInputImageParam).validate_python({"detail": "auto", **part})
    return part["text"] if part["type"] == "input_text" else picture(part["image_url"])


def of_messages(part):
    from anthropic.types import ImageBlockParam, TextBlockParam

    TypeAdapter(TextBlockParam | ImageBlockParam).validate_python(part)
    return part["text"] if part["type"] == "text" else decoded(part["source"]["data"])


def of_gemini(part):
    from google.genai.types import Part

    read = Part.model_validate(part)
    return read.text if read.inline_data is None else picture(read.inline_data.data)


def of_mcp(part):
    from mcp.types import ImageContent, TextContent

    read = TypeAdapter(TextContent | ImageContent).validate_python(part)
    return read.text if read.type == "text" else decoded(read.data)


def of_stored(part):
    held = {ONE.sha256: ONE, TWO.sha256: TWO}
    return part["text"] if part["type"] == "text" else held[part["sha256"]]


@pytest.mark.parametrize("read", [of_openai, of_responses, of_messages, of_gemini, of_mcp, of_stored])
def test_a_message_has_texts_and_pictures_in_their_order(read):
    form = read.__name__.removeprefix("of_")
    assert [read(part) for part in written(form)] == ["Before ", ONE, " between ", TWO]
    assert content(form, "only \ud800 text", ()) == "only \ufffd text"


def test_marks_are_bound_before_texts_are_joined():
    first, second = bound("<image>", [ONE]), bound("Look.", [TWO])
    assert first != bound("<image>", [TWO]), "equal texts with different pictures differ"
    joined = f"{first} you: <image> {second} <image:{'0' * 64}>"
    assert parts(joined, [TWO, ONE]) == ["", ONE, " you: <image> ", TWO, f"Look. <image:{'0' * 64}>"]
    shown, images = observed(joined, [TWO, ONE])
    assert (shown[:8], shown.count("<image>"), images) == ("<image> ", 2, [ONE, TWO])
    assert observed("<image>", []) == ("<image>", [])
    assert bound("<image> is a word", []) == "<image> is a word"
    for text, images in (("<image>", [ONE, TWO]), ("<image><image>", [ONE])):
        with pytest.raises(UsageError, match="marks"):
            bound(text, images)


def test_a_hundred_pictures_in_one_text():
    images = coloured(*((i, 2 * i, 255 - i) for i in range(100)))
    shown = content("openai", bound("".join(f"{i}: <image>" for i in range(100)), images), images)
    assert [picture(part) for part in shown[1::2]] == images

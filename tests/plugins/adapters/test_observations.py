"""Observations with pictures in the forms of TRL, verl-agent and VAGEN, with equal pixels."""

import numpy as np
import pytest

from rollenv import UsageError
from rollenv.core.picture_forms import bound, content
from rollenv.core.pictures import picture
from rollenv.plugins.adapters.observations import pil_part, vagen, verl_agent

pytest.importorskip("PIL.Image")
ONE, TWO = (picture(np.full((28, 56, 3), colour, np.uint8)) for colour in ((250, 0, 0), (0, 0, 250)))
TEXT = "Before <image> between <image>"


def test_a_message_of_trl_has_texts_and_pictures_in_their_order():
    found = content(pil_part, bound(TEXT, (ONE, TWO)), (TWO, ONE))
    shown = [part["text"] if part["type"] == "text" else picture(part["image"]) for part in found]
    assert shown == ["Before ", ONE, " between ", TWO]
    assert content(pil_part, "only \ud800 text", ()) == "only \ufffd text"


def test_verl_agent_has_pixels_beside_the_text():
    shown = verl_agent("Look.", [ONE])
    assert shown["text"] == "<image>Look."
    assert shown["image"].shape == (28, 56, 3)
    assert (shown["image"] == ONE.array()).all()
    assert (shown["anchor"] == shown["image"]).all()
    assert verl_agent("<image>", [ONE], "key")["anchor"] == "key"
    with pytest.raises(UsageError, match="one picture, not 2"):
        verl_agent(TEXT, [ONE, TWO])


def test_vagen_has_pillows_pictures_in_their_order():
    shown = vagen(TEXT, [ONE, TWO])
    assert shown["obs_str"] == TEXT
    assert [picture(image) for image in shown["multi_modal_input"]["<image>"]] == [ONE, TWO]
    assert vagen("Look.", [ONE])["obs_str"].count("<image>") == 1
    assert vagen("<image> is a word", []) == {"obs_str": "<image> is a word"}
    with pytest.raises(UsageError, match="1 marks <image> for 2"):
        vagen("<image>", [ONE, TWO])

"""Observations with pictures as other projects' environments give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.picture_forms import bound, observed, pil
from rollenv.core.pictures import MARK, Picture


def pil_part(image: Picture) -> dict[str, Any]:
    """Return a picture as a part of a message, as TRL and verl take it."""
    return {"type": "image", "image": pil(image)}


def verl_agent(observation: str, images: Sequence[Picture], anchor: str = "") -> dict[str, Any]:
    """Return an observation of one picture as verl-agent's environments give it.

    Args:
        anchor: what is equal in equal states; by default the pixels.
    """
    if len(images) != 1:
        raise UsageError(f"an observation of verl-agent has one picture, not {len(images)}")
    pixels = images[0].array()
    return {"text": observed(bound(observation, images), images)[0], "image": pixels, "anchor": anchor or pixels}


def vagen(observation: str, images: Sequence[Picture]) -> dict[str, Any]:
    """Return an observation as VAGEN's environments give it."""
    if not images:
        return {"obs_str": observation}
    text, shown = observed(bound(observation, images), images)
    return {"obs_str": text, "multi_modal_input": {MARK: [pil(image) for image in shown]}}

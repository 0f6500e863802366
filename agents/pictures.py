"""The pictures of an observation for an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.agents.base import AgentFailed
from rollenv.core.errors import UsageError
from rollenv.core.picture_forms import bound
from rollenv.core.pictures import MARK, Picture, pictures


def seen(observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any], tuple[Picture, ...]]:
    """Return an observation and its info, with marks bound to pictures in all their texts; and the pictures.

    The marks are those of what is shown: prefix, observation, and a suffix that the observation lacks.

    Raises:
        AgentFailed: the numbers of marks and pictures differ.
    """
    try:
        images = pictures(info)
        if not images:
            return observation, info, ()
        prefix, suffix = (str(info.get(name, "")) for name in ("prefix", "suffix"))
        after = "" if observation.endswith(suffix) else suffix
        bound(prefix + observation + after, images)
        begin, end = prefix.count(MARK), len(images) - after.count(MARK)
        own = {"prefix": images[:begin], "suffix": images[len(images) - suffix.count(MARK) :], "brief": images}
        named = {name: bound(str(info[name]), some) for name, some in own.items() if info.get(name)}
        return bound(observation, images[begin:end]), {**info, **named}, images
    except UsageError as error:
        raise AgentFailed(str(error)) from error


def refuse_pictures(info: Mapping[str, Any], who: str) -> None:
    """Refuse an observation with pictures."""
    if info.get("images"):
        raise UsageError(f"the observation has pictures, which {who} cannot see: play it with a ChatAgent (chat:MODEL)")

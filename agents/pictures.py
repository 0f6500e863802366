"""Agents that see no pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.core.errors import UsageError


def refuse_pictures(info: Mapping[str, Any], who: str) -> None:
    """Refuse an observation with pictures."""
    if info.get("images"):
        raise UsageError(f"the observation has pictures, which {who} cannot see: play it with a ChatAgent (chat:MODEL)")

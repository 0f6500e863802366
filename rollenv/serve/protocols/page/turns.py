"""Turns of an episode as the page shows them: texts that are not too long, and what can be chosen next."""

from __future__ import annotations

import json
from typing import Any

from rollenv.agents.prompts.session import shown
from rollenv.report.plain import clip, plain
from rollenv.serve.responses import json_of

#: Characters of an action that is told as it is, so that it can be played again.
ACTION = 100_000

#: Characters of a drawing, of one choice, and choices that are offered.
_VIEW, _CHOICE, _CHOICES = 400_000, 300, 300

#: Where environments list what can be done next.
_LISTS = ("available_actions", "legal_actions", "valid_actions")


def turn_of(method: str, args: list[Any], answer: list[Any]) -> dict[str, Any]:
    """A turn.

    Args:
        answer: to it, see :meth:`rollenv.serve.session.Session.call`.
    """
    if method == "reset":
        observation, info, _, view = answer
        told: dict[str, Any] = {"seed": str(args[0]) if args[0] is not None else ""}
    else:
        observation, reward, terminated, truncated, info, _, view = answer
        action = args[0] if len(args[0]) <= ACTION else clip(args[0])
        told = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
    return told | {
        "observation": clip(shown(observation, info)),
        "info": _info(info),
        "success": info.get("success"),
        "view": view if len(view) <= _VIEW else "",
        **choices(info),
    }


def choices(info: dict[str, Any]) -> dict[str, Any]:
    """The actions that an info offers, and whether it offers a search.

    Args:
        info: of a reset or a step.
    """
    offered = next((info[name] for name in _LISTS if isinstance(info.get(name), dict | list | tuple)), ())
    found: list[str] = []
    search = False
    if isinstance(offered, dict):  # WebShop
        clickables = offered.get("clickables")
        search = offered.get("has_search_bar") is True
        names = clickables if isinstance(clickables, list | tuple) else ()
        found = [f"click[{name}]" for name in names if isinstance(name, str) and name != "search"]
    elif isinstance(offered, list | tuple):
        found = [action for action in offered if isinstance(action, str)]
    return {"choices": [action for action in found[:_CHOICES] if len(action) <= _CHOICE], "search": search}


def _info(info: dict[str, Any]) -> str:
    """As JSON; a large one on one line, since to lay it out takes time."""
    try:
        text = json_of(info)
        return json.dumps(plain(json.loads(text)), indent=2) if len(text) <= 20_000 else clip(text)
    except (TypeError, ValueError, RecursionError) as error:  # endless numbers, say
        return f"(it cannot be shown: {error})"

"""Preference pairs of stored episodes: of one task, with different returns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from rollenv.rollout.exports.chats import Json, split_chat


def pairs_of(chats: Iterable[tuple[str, float, Json]], counts: Counter[str]) -> Iterator[tuple[str, Json]]:
    """Yield pairs with the task, in the form of TRL's ``prompt``, ``chosen``, ``rejected`` and ``margin``.

    The best episode of a task is paired with the worst, the second with the second to last, and so on, as long as
    their returns differ. What is left out is counted.

    Args:
        chats: task, return and messages of each episode; chats of one task are paired if they begin alike.
    """
    groups: dict[tuple[str, str], list[tuple[float, list[Json]]]] = {}
    prompts: dict[tuple[str, str], Json] = {}
    for task, reward, chat in chats:
        roles = [message["role"] for message in chat["messages"]]
        prompt, answer = split_chat(chat, roles.index("assistant"))
        key = task, json.dumps(prompt)
        prompts[key] = prompt
        groups.setdefault(key, []).append((reward, answer))
    for key, group in groups.items():
        group.sort(key=lambda each: -each[0])
        pairs = [(group[at], group[-1 - at]) for at in range(len(group) // 2)]
        uneven = [(better, worse) for better, worse in pairs if better[0] > worse[0]]
        counts["tasks with one return"] += not uneven
        for (high, chosen), (low, rejected) in uneven:
            if _texts(chosen) == _texts(rejected):
                counts["pairs of equal texts"] += 1
            else:
                yield key[0], {**prompts[key], "chosen": chosen, "rejected": rejected, "margin": high - low}


def _texts(messages: list[Json]) -> list[Any]:
    """Return what is said in messages, without the ids of calls."""
    return [(m["role"], m["content"], [call["function"] for call in m.get("tool_calls", ())]) for m in messages]

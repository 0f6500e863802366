"""Preference pairs of stored episodes: of one task, with different returns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from rollenv.rollout.exports.chats import Json


def pairs_of(chats: Iterable[tuple[str, float, Json]], counts: Counter[str]) -> Iterator[tuple[str, Json]]:
    """Yield pairs with the task, in the form of TRL's ``prompt``, ``chosen``, ``rejected`` and ``margin``.

    The best episode of a task is paired with the worst, the second with the second to last, and so on, as long as
    their returns differ. What is left out is counted.

    Args:
        chats: task, return and messages of each episode; chats of one task are paired if they begin alike.
    """
    groups: dict[tuple[str, str], list[tuple[float, Json]]] = {}
    for task, reward, chat in chats:
        first = next((i for i, m in enumerate(chat["messages"]) if m["role"] == "assistant"), len(chat["messages"]))
        prompt = {**chat, "messages": chat["messages"][:first]}
        answer = {"prompt": prompt["messages"], "answer": chat["messages"][first:]}
        more = {"tools": chat["tools"]} if "tools" in chat else {}
        groups.setdefault((task, json.dumps(prompt)), []).append((reward, answer | more))
    for (task, _), group in groups.items():
        group.sort(key=lambda each: -each[0])
        pairs = [(group[i], group[-1 - i]) for i in range(len(group) // 2)]
        uneven = [(better, worse) for better, worse in pairs if better[0] > worse[0]]
        counts["tasks with one return"] += not uneven
        for (high, chosen), (low, rejected) in uneven:
            if _texts(chosen["answer"]) == _texts(rejected["answer"]):
                counts["pairs of equal texts"] += 1
                continue
            more = {"tools": chosen["tools"]} if "tools" in chosen else {}
            yield (
                task,
                {"prompt": chosen["prompt"], "chosen": chosen["answer"], "rejected": rejected["answer"]}
                | more
                | {"margin": high - low},
            )


def _texts(messages: list[Json]) -> list[Any]:
    """Return what is said in messages, without the ids of calls."""
    return [(m["role"], m["content"], [call["function"] for call in m.get("tool_calls", ())]) for m in messages]

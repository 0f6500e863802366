"""Two faults of tasks: answers that stand there encoded, and tasks of the test split that training has."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import time
from collections.abc import Iterator
from typing import Any

from rollenv.core.env_spec import EnvSpec
from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.panels.identity import identities
from rollenv.rollout.evaluate import tasks_of
from rollenv.rollout.types import Task

#: Ways to write an answer, and the words by which a task says that reading them is the work.
_ENCODINGS = {
    "in base64": r"base.?64|decod|encod|cipher|crypt",
    "in hexadecimal digits": r"hex|decod|encod|cipher|crypt|bytes",
    "backwards": r"revers|backward|mirror|palindrom|flip",
}

#: The share of tasks that must show it, and how many different answers there must be: moves of a game are few.
_NEARLY_ALL, _ANSWERS = 0.9, 4

#: Tasks of each split that are compared, and the seconds for it.
_SPLIT_TASKS, _SPLIT_SECONDS = 64, 30.0


def encoded_answer(env_spec: EnvSpec, tasks: list[Task]) -> str:
    """Say how the expert's first answers stand encoded in what an agent is shown; empty if they do not."""
    found: dict[tuple[str, str], int] = {}
    answers, example = set[str](), ""
    with contextlib.closing(env_spec.make()) as env:
        for task in tasks:
            observation, info = env.reset(task.seed, options=dict(task.options) or None)
            action = env.oracle_action()
            answer = (last_boxed(action) or last_tagged(action) or action).strip()
            answers.add(answer)
            shown = {"the observation": f"{info.get('prefix', '')} {observation} {info.get('suffix', '')}"}
            others = {name: value for name, value in info.items() if name not in ("prefix", "suffix", "images")}
            shown["info"] = json.dumps(others, default=str, ensure_ascii=False)
            for where, text in shown.items():
                for how in {how for how, read in _read_again(text) if answer and answer in read}:
                    if not (where == "the observation" and re.search(_ENCODINGS[how], observation, re.I)):
                        found[how, where] = found.get((how, where), 0) + (answer not in text)
                        example = answer
    for (how, where), n in found.items():
        if len(answers) >= _ANSWERS and n >= _NEARLY_ALL * len(tasks):
            return f"the expert's answer stands {how} in {where} of {n} of {len(tasks)} tasks, such as {example[:40]!r}"
    return ""


def _read_again(text: str) -> Iterator[tuple[str, str]]:
    """Yield what a text says if it is read in other ways."""
    yield "backwards", text[::-1]
    for word in re.findall(r"[A-Za-z0-9+/_-]{4,}", text):
        with contextlib.suppress(binascii.Error, ValueError):
            plain = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_" if set(word) & {*"-_"} else None)
            yield "in base64", plain.decode()
        with contextlib.suppress(ValueError):
            yield "in hexadecimal digits", bytes.fromhex(word).decode()


def shared_by_splits(env_spec: EnvSpec) -> str:
    """Say which task for training is one of the test split too; empty if none is, or if tasks cannot be told apart.

    Without a state, tasks of several turns (``max_turns``) may differ in what is not shown at first, such as files.
    """
    with contextlib.closing(env_spec.make()) as env:
        known_whole = any(hasattr(env.unwrapped, name) for name in ("rows", "get_state"))
        if not known_whole and getattr(env, "max_turns", 1) != 1:
            return ""
    splits: list[dict[Any, Task]] = []
    for split in ("train", "test"):
        kwargs: dict[str, Any] = {**env_spec.kwargs, "split": split}
        if not env_spec.accepts(kwargs):
            return ""
        tasks = tasks_of(env_spec.id, kwargs, None if env_spec.indexed else _SPLIT_TASKS)[:_SPLIT_TASKS]
        known, begun, until = dict[Any, Task](), 0, time.monotonic() + _SPLIT_SECONDS
        for one, task in zip(identities(tasks), tasks, strict=True):
            known[one.shows, one.decides] = task
            begun += 1
            if time.monotonic() > until:
                break
        if 2 * len(known) < begun:
            return ""
        splits.append(known)
    train, test = splits
    both = [key for key in test if key in train]
    if not both:
        return ""
    first, again = train[both[0]], test[both[0]]
    where = "row {index}" if env_spec.indexed else "seed {seed}"
    named = [where.format(seed=task.seed, index=task.options.get("index")) for task in (first, again)]
    return f"{len(both)} of {len(test)} tasks of split=test are in split=train; {named[1]} is {named[0]} there"

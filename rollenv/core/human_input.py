"""Conversion of a person's input to actions of an environment."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollenv.core.env import Env
from rollenv.core.parsing import ACTION_FORMATS

#: Directions and their names in games.
_NAMES = {"up": ("up", "north"), "down": ("down", "south"), "left": ("left", "west"), "right": ("right", "east")}
_WRAPPED = re.compile(r"(\\boxed\{|<answer>|\[|)([^\[\]{}<>]*)(\}|</answer>|\]|)", re.DOTALL)
#: Number of random actions from which the format is learned.
_SAMPLES = 40
#: If at most this many different ones occur among four times as many, they count as all actions.
_FEW = 12
#: Seconds in which an environment samples.
_SECONDS = 2.0


@dataclass(frozen=True)
class ActionReader:
    """The action format of one environment.

    Args:
        template: action with ``%s`` for the bare answer.
        moves: the actions for ``up``, ``down``, ``left`` and ``right``, if the environment has these.
        few: the actions of this turn, if the environment lists them or there are only a few.
    """

    template: str = "%s"
    moves: Mapping[str, str] = field(default_factory=dict)
    few: tuple[str, ...] = ()

    @property
    def words(self) -> dict[str, str]:
        """The known actions of one line by their bare words."""
        known = self.few or self.moves.values()
        return {self._bare(action): action for action in known if "\n" not in action}

    def now(self, env: Env, info: Mapping[str, Any]) -> ActionReader:
        """Return the reader for the actions of this turn: those that ``info`` lists, else those that are sampled."""
        if listed := listed_actions(info):
            moves = {name: action for name, action in self.moves.items() if action in listed}
            return replace(self, few=listed, moves=moves)
        return replace(self, few=few_actions(env) if self.few else ())

    def action(self, typed: str) -> str:
        """Return the action that the input stands for."""
        known = self.words.items()
        meant = [action for word, action in known if word.lower() == typed.lower()]
        meant = meant or [action for word, action in known if typed and word.lower().startswith(typed.lower())]
        if len(meant) == 1:
            return meant[0]
        opening = self.template.partition("%s")[0].strip()
        is_whole = not typed or "<tool_call>" in typed or (opening and opening in typed) or "\\boxed" in typed
        return typed if is_whole else self.template.replace("%s", typed)

    @staticmethod
    def _bare(action: str) -> str:
        found = _WRAPPED.fullmatch(action)
        return found[2] if found else action


#: Keys of ``info`` with the actions that are valid next: rollenv's, and those of other projects.
_LISTS = ("actions", "available_actions", "legal_actions", "valid_actions", "admissible_commands", "admissible_actions")


def listed_actions(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the actions that an environment says are valid next; empty if it says nothing."""
    offered = next((info[name] for name in _LISTS if isinstance(info.get(name), dict | list | tuple)), ())
    if isinstance(offered, dict):  # WebShop
        names = offered.get("clickables")
        offered = [f"click[{name}]" for name in names if name != "search"] if isinstance(names, list | tuple) else ()
    return tuple(action for action in offered if isinstance(action, str))


def few_actions(env: Env) -> tuple[str, ...]:
    """Return all random actions of this turn, if there are only a few."""
    return _few(env, list(_samples(env)))


def _few(env: Env, samples: list[str]) -> tuple[str, ...]:
    more = list(_samples(env, 3 * _SAMPLES)) if len(samples) == _SAMPLES and len(set(samples)) <= _FEW else []
    few = sorted({*samples, *more}) if len(more) == 3 * _SAMPLES else []  # of fewer samples, some may be missing
    return tuple(few) if len(few) <= _FEW else ()


def reader(env: Env, prompt: str, info: Mapping[str, Any] | None = None) -> ActionReader:
    """Learn the action format from an environment in an episode, its first result and some random actions."""
    listed = listed_actions(info or {})
    samples = list(_samples(env))
    template = _template(env, prompt, samples)
    bare = {found[2] for sample in [*samples, *listed] if (found := _WRAPPED.fullmatch(sample))}
    return ActionReader(template, _moves(bare, template), listed or _few(env, samples))


def _samples(env: Env, number: int = _SAMPLES) -> Iterator[str]:
    """Yield random actions, sampled in a copy if the environment can be copied; fewer if it fails or takes long."""
    if not hasattr(env, "sample_random_action"):
        return
    until = time.monotonic() + _SECONDS
    with contextlib.suppress(Exception):  # it can be played all the same
        if hasattr(env, "spawn"):
            env = env.spawn(same_state=True)  # not closed: it shares what no episode changes
        for _ in range(number):
            action = env.sample_random_action()
            if not isinstance(action, str) or time.monotonic() > until:
                return
            yield action


def _template(env: Env, prompt: str, samples: list[str]) -> str:
    """Return the format of an answer, from the environment, else its prompt, else its random actions."""
    name = getattr(env.unwrapped, "action_format", None)
    if name in ACTION_FORMATS:
        return ACTION_FORMATS[name][1]
    if name == "code":
        return "```python\n%s\n```"
    for mark, template in (("\\boxed{", "\\boxed{%s}"), ("<answer>", "<answer>%s</answer>")):
        if mark in prompt:
            return template
    found = {(m[1], m[3]) for sample in samples if (m := _WRAPPED.fullmatch(sample))}
    if len(found) == 1 and len(samples) == _SAMPLES and all(map(_WRAPPED.fullmatch, samples)):
        return "%s".join(found.pop())
    return "%s"


def _moves(bare: set[str], template: str) -> dict[str, str]:
    """Return the actions of the directions, if the sampled ones include any."""
    bare_by_key = {word.lower(): word for word in bare}
    known = {key: next((bare_by_key[n] for n in names if n in bare_by_key), None) for key, names in _NAMES.items()}
    if sum(word is not None for word in known.values()) < 2:
        return {}
    if known["up"] or known["down"]:  # a grid has all four, even if fewer were sampled
        style = next(word for word in known.values() if word)
        number = 1 if style.lower() in {names[1] for names in _NAMES.values()} else 0
        known = {key: word or _like(style, _NAMES[key][number]) for key, word in known.items()}
    return {key: template.replace("%s", word) for key, word in known.items() if word}


def _like(style: str, word: str) -> str:
    if style.isupper():
        return word.upper()
    return word.capitalize() if style[0].isupper() else word

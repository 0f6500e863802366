"""Conversion of what a person types into an action that an environment reads."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rollenv.core import Env, RollenvError
from rollenv.parsing import ACTION_FORMATS

#: Directions, and what games call them.
_NAMES = {"up": ("up", "north"), "down": ("down", "south"), "left": ("left", "west"), "right": ("right", "east")}
_WRAPPED = re.compile(r"(\\boxed\{|<answer>|\[|)([^\[\]{}<>]*)(\}|</answer>|\]|)", re.DOTALL)
#: Random actions that are looked at to learn how actions are written.
_SAMPLES = 40
#: So many different ones among them, or fewer, are all that there are.
_FEW = 6


@dataclass(frozen=True)
class Reader:
    """The form in which one environment wants actions.

    Args:
        template: a bare answer goes into its ``%s``.
        moves: the actions of ``up``, ``down``, ``left`` and ``right``, where it knows these.
        few: all actions that occurred, where there are only a few.
    """

    template: str = "%s"
    moves: Mapping[str, str] = field(default_factory=dict)
    few: tuple[str, ...] = ()

    def action(self, typed: str) -> str:
        """Return what was typed, or what it is short for."""
        words = {self._bare(action).lower(): action for action in self.moves.values()}
        meant = [action for word, action in words.items() if typed and word.startswith(typed.lower())]
        if len(meant) == 1:
            return meant[0]
        opening = self.template.partition("%s")[0].strip()
        is_whole = not typed or "<tool_call>" in typed or (opening and opening in typed) or "\\boxed" in typed
        return typed if is_whole else self.template.replace("%s", typed)

    @staticmethod
    def _bare(action: str) -> str:
        found = _WRAPPED.fullmatch(action)
        return found[2] if found else action


def reader(env: Env, prompt: str) -> Reader:
    """Learn from an environment, its first observation and some random actions how actions are written.

    Args:
        env: in an episode; its episode stays as it is.
    """
    samples = list(_samples(env))
    template = _template(env, prompt, samples)
    bare = {found[2] for sample in samples if (found := _WRAPPED.fullmatch(sample))}
    few = sorted(set(samples))
    return Reader(template, _moves(bare, template), tuple(few) if len(few) <= _FEW else ())


def _samples(env: Env) -> Iterator[str]:
    """Random actions, drawn in a copy where there can be one."""
    if not hasattr(env, "sample_random_action"):
        return
    with contextlib.suppress(RollenvError, NotImplementedError):
        if hasattr(env, "spawn"):
            env = env.spawn(same_state=True)
        for _ in range(_SAMPLES):
            yield env.sample_random_action()


def _template(env: Env, prompt: str, samples: list[str]) -> str:
    """Return how an answer is written: as the environment says, or its prompt, or its random actions."""
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
    """The actions of the directions, if the random ones show that there are any."""
    bare_by_key = {word.lower(): word for word in bare}
    known = {key: next((bare_by_key[n] for n in names if n in bare_by_key), None) for key, names in _NAMES.items()}
    if sum(word is not None for word in known.values()) < 2:
        return {}
    if known["up"] or known["down"]:  # a grid has all four, also if the sampled actions had fewer
        style = next(word for word in known.values() if word)
        number = 1 if style.lower() in {names[1] for names in _NAMES.values()} else 0
        known = {key: word or _like(style, _NAMES[key][number]) for key, word in known.items()}
    return {key: template.replace("%s", word) for key, word in known.items() if word}


def _like(style: str, word: str) -> str:
    return word.upper() if style.isupper() else word.capitalize() if style[0].isupper() else word

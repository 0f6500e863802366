"""Environments that try to take over the page that shows them."""

from __future__ import annotations

import json

import rollenv
from rollenv.core.drawing import Cell, Drawing

#: Markup, ends of scripts, a script's address, direction of text, colours of terminals, and what is no text at all.
TEXT = (
    '<img src=x onerror="window.taken=1;document.title=1"><script>window.taken=1</script></script></textarea></title>'
    "<svg onload=window.taken=1><a href=javascript:window.taken=1>click</a>'\"><iframe srcdoc='<script>parent.taken=1'>"
    "\u202eabc\u2066 \u061c \x00 \x1b[31mred\x1b[0m \ufeff \u2028 {{data}} ${taken=1} javascript:window.taken=1"
)


class Texts(rollenv.Env):
    __doc__ = f"Shows what should never run: {TEXT!r} {TEXT}".replace("\x00", "")

    legend = TEXT
    picture = staticmethod(lambda text: Drawing([[Cell("wall", ("player",), TEXT[:11]), Cell("open")]], notes=[TEXT]))

    def _reset(self, options):
        return TEXT, {"suffix": TEXT, TEXT: [TEXT], "available_actions": [TEXT[:250], "big", "end"]}

    def _step(self, action):
        if action == "raise":
            raise RuntimeError(TEXT)
        if action == "big":
            return "big " * 1_300_000, 0.0, False, False, {"big": "x" * 1_000_000}
        return TEXT + action, -1.5, action == "end", False, {"success": False}

    def render(self):
        return TEXT

    def sample_random_action(self):
        return TEXT


class Boards(Texts):
    """Draws boards that are none."""

    VIEWS = (
        {"rows": [[["__proto__", ["constructor"], "", 1]]], "block": 0, "origin": 0, "across": 1, "notes": []},
        {"rows": [[["wall", ["<img>"], TEXT, 1]]], "block": 0, "origin": 0, "across": 1, "notes": []},
        {"rows": [[["wall", [], {"toString": 1}, "wide"]]], "block": "x", "origin": 0, "across": 0, "notes": 5},
        {"rows": [[None] * 15_000], "block": 0, "origin": 0, "across": 1, "notes": [TEXT]},
        {"rows": 5, "text": {"a": TEXT}},
        [TEXT],
        None,
    )

    picture = None

    def _reset(self, options):
        self.turns = 0
        return "a board", {}

    def _step(self, action):
        self.turns += 1
        return "a board", 0.0, False, False, {}

    def render(self):
        return json.dumps(self.VIEWS[self.turns % len(self.VIEWS)])


def register() -> None:
    """Make them known, and so many others that a page could become slow."""
    rollenv.register("hostile:Texts-v0", "hostile:Texts", abilities=["random_action"], summary=TEXT)
    rollenv.register("hostile:Boards-v0", "hostile:Boards")
    for number in range(1000):
        rollenv.register(
            f"many:Env{number}-v0", "oddities:Echo", summary=f"The environment with number {number}, of many."
        )

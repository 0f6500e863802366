"""The wrapper behind ``rollenv.make(id, render_mode="svg")`` and ``"ansi"``."""

from __future__ import annotations

from rollenv.core.drawing import ansi, draw, svg
from rollenv.core.env import Env, Wrapper
from rollenv.core.errors import RollenvError


class RenderedEnv(Wrapper):
    """An environment whose ``render()`` returns a picture: SVG, or text in a terminal's colours.

    Args:
        env: without a :attr:`~rollenv.Env.picture`, SVG shows the text, and ``ansi`` returns it.
        mode: ``"svg"`` or ``"ansi"``.
    """

    def __init__(self, env: Env, mode: str):
        if mode not in ("svg", "ansi"):
            raise RollenvError(f"{env}: a picture must be 'svg' or 'ansi', not {mode!r}")
        super().__init__(env)
        self.render_mode = mode

    def render(self) -> str:
        text = self.env.render()
        drawing = draw(self.env.picture, text)
        if self.render_mode == "svg":
            return svg(text if drawing is None else drawing)
        return text if drawing is None else ansi(drawing)

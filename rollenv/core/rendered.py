"""The wrappers behind ``rollenv.make(id, render_mode=...)`` and ``rollenv.make(id, images=...)``."""

from __future__ import annotations

import functools
import re
from typing import Any

from rollenv.core.drawing import Drawing, ansi, draw, svg
from rollenv.core.drawing import Picture as Picturing
from rollenv.core.env import Env, ResetResult, StepResult, Wrapper
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.pictures import MARK, Picture, picture
from rollenv.core.pixels import TILE, pixels


class RenderedEnv(Wrapper):
    """An environment whose ``render()`` returns a picture: SVG, text in a terminal's colours, or pixels.

    Args:
        env: without a :attr:`~rollenv.Env.picture`, SVG and pixels show the text, and ``ansi`` returns it.
        mode: ``"svg"``, ``"ansi"`` or ``"rgb_array"``, an array of uint8 (height, width, 3).
        tile: pixels along a side of a cell.
    """

    def __init__(self, env: Env, mode: str, tile: int = TILE):
        if mode not in ("svg", "ansi", "rgb_array"):
            raise RollenvError(f"{env}: a picture must be 'svg', 'ansi' or 'rgb_array', not {mode!r}")
        super().__init__(env)
        self.render_mode, self.tile = mode, tile
        if mode == "rgb_array":
            pixels("", tile)  # refuses a wrong size

    def render(self) -> Any:
        text = self.env.render()
        drawing = draw(self.env.picture, text)
        if self.render_mode == "ansi":
            return text if drawing is None else ansi(drawing)
        shown = text if drawing is None else drawing
        return svg(shown) if self.render_mode == "svg" else pixels(shown, self.tile)


class BoardImages(Wrapper):
    """Shows the board as a picture, ``info["images"]``, whose mark stands where the observation has the board.

    Args:
        env: its observation, or ``info["suffix"]``, has the lines of its ``render()``; else the suffix is the board.
        images: ``"only"`` takes the board's text away, with what describes its symbols; ``"also"`` keeps it.
        tile: pixels along a side of a cell.

    Raises:
        UsageError: the environment has no board to draw.
    """

    def __init__(self, env: Env, images: str, tile: int = TILE):
        if images not in ("only", "also"):
            raise UsageError(f"{env}: images must be 'only' (instead of the board's text) or 'also', not {images!r}")
        if env.picture is None:
            raise UsageError(f"{env} has no board to draw, so it takes no images={images!r}")
        pixels("", tile)  # refuses a wrong size
        super().__init__(env)
        self.images, self.tile = images, tile

    def reset(self, seed: int | None = None, **kwargs: Any) -> ResetResult:
        observation, info = super().reset(seed, **kwargs)
        observation, info, shown = self._seen(observation, info)
        if not shown and draw(self.env.picture, self.env.render()):
            raise UsageError(f"{self.env}: its text does not show the board, so it takes no images={self.images!r}")
        return observation, info

    def step(self, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info, _ = self._seen(observation, info)
        return observation, reward, terminated, truncated, info

    def _rollenv_whole_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.env.get_state()  # the one that there is without pictures
        return state

    def _rollenv_restore(self, state: dict[str, Any]) -> None:
        self.env.set_state(state)

    def _seen(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any], bool]:
        """Return the observation and the info with marks and pictures, and whether there is a picture."""
        if info.get("images"):
            raise UsageError(f"{self.env} shows pictures of its own, so it takes no images={self.images!r}")
        board, info = self.env.render(), dict(info)
        drawing = draw(self.env.picture, board)
        drawn = _squeezed(board) - _squeezed("\n".join(drawing.notes)) if drawing else frozenset()
        observation, marks = self._marked(observation, drawn)
        if isinstance(suffix := info.get("suffix"), str):
            info["suffix"], below = self._marked(suffix, drawn)
            if drawing and not marks + below:  # the board in another form
                info["suffix"], below = (MARK if self.images == "only" else f"{MARK}\n{suffix}"), 1
            marks += below
        if isinstance(told := info.get("observations"), list):  # of all players, at the end
            info["observations"] = [self._marked(text, drawn)[0] for text in told]
        if marks:
            assert self.env.picture is not None
            info["images"] = [_picture_of(self.env.picture, board, self.tile)] * marks
        return observation, info, marks > 0

    def _marked(self, text: str, drawn: frozenset[str]) -> tuple[str, int]:
        """Put a mark before the first line of the board; return the number of marks, 0 or 1."""
        lines, found = [], False
        for line in text.split("\n"):
            is_board = "".join(line.split()) in drawn
            if is_board and not found:
                lines.append(MARK)
            found = found or is_board
            if not is_board or self.images == "also":
                lines.append(line)
        text = "\n".join(lines)
        if self.images == "only":
            for pattern, words in self.env.picture_words.items():
                text = re.sub(pattern, words, text)
        return text, int(found)


def _squeezed(text: str) -> frozenset[str]:
    return frozenset(filter(None, ("".join(line.split()) for line in text.split("\n"))))


@functools.lru_cache(maxsize=512)
def _picture_of(picturing: Picturing, board: str, tile: int) -> Picture:
    drawing = draw(picturing, board)
    assert isinstance(drawing, Drawing)
    return picture(pixels(drawing, tile))

"""Drawings as pixels, with numpy alone: the tiles of the SVG pictures, and a bitmap font.

Each cell is a square of ``tile`` pixels. Shapes are sampled on a fixed grid and mixed in whole numbers, so that a
drawing has the same pixels on every machine.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollenv.core.drawing import GROUNDS, MAX_SIDE, Cell, Drawing, shapes
from rollenv.core.errors import UsageError
from rollenv.core.pictures import MAX_PIXELS

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

#: Pixels along a side of a tile unless it is set: two of the 14-pixel patches of Qwen's vision models, one token.
TILE = 28

#: Samples along a side of a pixel.
_SAMPLES = 4

_INK = "#1f2328"
_LINES = (87, 96, 106)

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?-+*/\\=()[]{}<>_#'\"%&@^~$|"
#: 5 x 7 pixels for each: a digit of base 32 for every row from the top, the leftmost pixel in its highest bit.
_ROWS = (
    "EHHVHHHUHHUHHUFGGGGGFUHHHHHUVGGUGGVVGGUGGGFGGJHHFHHHVHHHV44444V72222ICHIKOKIHGGGGGGVHRLLHHHHPPLJJHEHHHHHEUHHUGGG"
    "EHHHLIDUHHUKIHFGGE11UV444444HHHHHHEHHHAAA4HHHLLRHHAA4AAHHHA4444V1248GVEHJLPHE4CK444VEH168GVU11E11U26AIV22VGU11HE"
    "68GUHHEV122444EHHEHHEEHHF12C00000CC0000CC80CC0CC00CC0CC84444404EH16404000E000044V4400LEVEL011248GGGG8421100V0V00"
    "24888428422248E88888EE22222E6448446C44244C248G8428421248000000VAAVAVAA4480000AA00000PP248JJCIK8LIDEHNLNGF4AH0000"
    "009LI004FKE5U44444444"
)
_FONT = {letter: _ROWS[7 * i : 7 * i + 7] for i, letter in enumerate(_LETTERS)}
_UNKNOWN, _BLANK = "VHHHHHV", "0000000"


def pixels(drawing: Drawing | str, tile: int = TILE) -> Pixels:
    """Return a drawing without its notes, or any text.

    Args:
        tile: pixels along a side of a cell, from 8 to 256.

    Returns:
        shape (height, width, 3).
    """
    if type(tile) is not int or not 8 <= tile <= 256:
        raise UsageError(f"a tile has 8 to 256 pixels along a side, not {tile!r}")
    if isinstance(drawing, str):
        return _text_pixels(drawing, max(1, tile // 14))
    width = round(tile * drawing.across)
    if (cells := len(drawing.rows) * drawing.columns) * tile * width > MAX_PIXELS:
        raise UsageError(f"{cells} cells of {tile} x {width} pixels are more than {MAX_PIXELS:,}; take a smaller tile")
    board = np.full((len(drawing.rows) * tile, drawing.columns * width, 3), 255, np.uint8)
    for y, row in enumerate(drawing.rows):
        for x, cell in enumerate(row):
            board[y * tile : (y + 1) * tile, x * width : (x + 1) * width] = _cell(cell, tile, width)
    if drawing.block:
        thick, first = max(2, tile // 12), drawing.origin
        for at in range(first, max(len(drawing.rows), drawing.columns) + 1, drawing.block):
            y, x = (max(at * side - thick // 2, 0) for side in (tile, width))
            y, x = min(y, len(board) - thick), min(x, board.shape[1] - thick)
            board[y : y + thick, first * width :] = _LINES
            board[first * tile :, x : x + thick] = _LINES
    return board


@functools.lru_cache(maxsize=4096)
def _cell(cell: Cell, tile: int, width: int) -> Pixels:
    square = np.full((tile, width, 3), 255, np.uint8)
    ground, gap = GROUNDS[cell.ground], max(1, tile // 28)
    if ground.fill != "none":
        wide = max(round(min(max(cell.wide, 0.1), 1.0) * width) - gap, 1)
        left = (width - gap - wide) // 2
        square[: tile - gap, left : left + wide] = _colour(ground.fill)
    middle = (width - tile) // 2
    for piece in cell.pieces:
        for colour, cover in _stencils(piece, tile):
            part = square[:, middle : middle + tile]
            whole = _SAMPLES**2
            part[:] = (cover * _colour(colour) + (whole - cover) * part.astype(int) + whole // 2) // whole
    if cell.text:
        shown = cell.text[:12]
        size = max(1, min((width - gap) // (6 * len(shown) - 1), (tile - gap) * 2 // 3 // 7))
        letters = _letters(shown, size)[:tile, :width]
        y, x = (tile - gap - letters.shape[0]) // 2, (width - gap - letters.shape[1]) // 2
        y, x = max(y, 0), max(x, 0)
        part = square[y : y + letters.shape[0], x : x + letters.shape[1]]
        part[letters] = _colour(_INK if ground.ink == "currentColor" else ground.ink)
    return square


def _letters(text: str, size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a line of text, 7 * size pixels high, in upper case."""
    line = np.zeros((7, 6 * len(text)), bool)
    for at, letter in enumerate(text):
        rows = _BLANK if letter.isspace() else _FONT.get(letter.upper(), _UNKNOWN)
        for y, row in enumerate(rows):
            line[y, 6 * at : 6 * at + 5] = [int(row, 32) >> bit & 1 for bit in (4, 3, 2, 1, 0)]
    return line[:, :-1].repeat(size, 0).repeat(size, 1)


def _text_pixels(text: str, size: int) -> Pixels:
    lines = [line.expandtabs()[:MAX_SIDE] for line in text.split("\n")[:MAX_SIDE]]
    page = np.full((size * (10 * len(lines) + 4), size * (6 * max(map(len, lines)) + 7), 3), 255, np.uint8)
    for at, line in enumerate(lines):
        if line:
            shown, top = _letters(line, size), size * (10 * at + 4)
            page[top : top + 7 * size, 4 * size : 4 * size + shown.shape[1]][shown] = _colour(_INK)
    return page


def _colour(code: str) -> list[int]:
    digits = code[1:] if len(code) == 7 else "".join(2 * digit for digit in code[1:])
    return [int(digits[i : i + 2], 16) for i in (0, 2, 4)]


# -- pieces: the SVG elements of drawing.PIECES ------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _stencils(piece: str, tile: int) -> list[tuple[str, Any]]:
    """Return a colour and the samples that it covers in each pixel, (tile, tile, 1), for each layer from the lowest."""
    side = (np.arange(tile * _SAMPLES) + 0.5) / (tile * _SAMPLES)
    x, y = side[None, :], side[:, None]
    layers = []
    for tag, shape in shapes()[piece]:
        half = float(shape.get("stroke-width", 0)) / 2
        inside, line = {"circle": _circle, "rect": _rect, "path": _path}[tag](shape, x, y, half)
        for colour, mask in ((shape.get("fill", "none"), inside), (shape.get("stroke", "none"), line)):
            if colour != "none":
                cover = mask.reshape(tile, _SAMPLES, tile, _SAMPLES).sum((1, 3))[..., None]
                layers.append((colour, cover))
    return layers


def _circle(shape: Mapping[str, str], x: Any, y: Any, half: float) -> tuple[Any, Any]:
    cx, cy, r = (float(shape[name]) for name in ("cx", "cy", "r"))
    squared = (x - cx) * (x - cx) + (y - cy) * (y - cy)
    return squared <= r * r, (squared <= (r + half) ** 2) & (squared >= (r - half) ** 2)


def _rect(shape: Mapping[str, str], x: Any, y: Any, half: float) -> tuple[Any, Any]:
    left, top, width, height, r = (float(shape[name]) for name in ("x", "y", "width", "height", "rx"))

    def grown(by: float) -> Any:
        dx = np.maximum(np.abs(x - left - width / 2) - (width / 2 - r), 0.0)
        dy = np.maximum(np.abs(y - top - height / 2) - (height / 2 - r), 0.0)
        return dx * dx + dy * dy <= (r + by) ** 2

    return grown(0.0), grown(half) & ~grown(-half)


def _path(shape: Mapping[str, str], x: Any, y: Any, half: float) -> tuple[Any, Any]:
    inside = line = np.zeros(np.broadcast_shapes(x.shape, y.shape), bool)
    for points in _polygons(shape["d"]):
        for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
            if y0 != y1:
                crossed = x < x0 + (y - y0) / (y1 - y0) * (x1 - x0)
                inside = inside ^ (((y0 <= y) != (y1 <= y)) & crossed)
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / ((x1 - x0) ** 2 + (y1 - y0) ** 2)
            along = np.clip(along, 0.0, 1.0)
            dx, dy = x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0)
            line = line | (dx * dx + dy * dy <= half * half)
    return inside, line


def _polygons(path: str) -> list[list[tuple[float, float]]]:
    """Return the points of the parts of a path of the commands M, V, l, a (an upper half ellipse) and z."""
    parts: list[list[tuple[float, float]]] = []
    for command, text in re.findall(r"([a-zA-Z])([^a-zA-Z]*)", path):
        given = [float(number) for number in re.findall(r"-?\d*\.\d+|-?\d+", text)]
        if command == "M":
            parts.append([(given[0], given[1])])
            continue
        points = parts[-1]
        x, y = points[-1]
        if command == "V":
            points.append((x, given[0]))
        elif command == "l":
            for dx, dy in zip(given[::2], given[1::2], strict=True):
                x, y = x + dx, y + dy
                points.append((x, y))
        elif command == "a":
            rx, ry = given[:2]
            angles = [math.pi * (1 - i / 24) for i in range(1, 25)]
            points += [(round(x + rx + rx * math.cos(a), 4), round(y - ry * math.sin(a), 4)) for a in angles]
        elif command == "z":
            points.append(points[0])
        else:
            raise UsageError(f"a piece's path has the unknown command {command!r}")
    return parts

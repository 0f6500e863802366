"""Pictures of boards: rendered text as SVG, or in a terminal's colours.

An environment class that has a board sets :attr:`rollenv.Env.picture`, a function from the text of its ``render()`` to
a :class:`Drawing`. It needs nothing but that text, so stored episodes can be drawn too.
``rollenv.make(id, render_mode="svg")`` and ``"ansi"`` draw; the default mode, ``"text"``, does not.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

#: Longest text that is parsed as a board, in characters; longer text is shown as text.
MAX_TEXT = 20_000
#: Maximum number of cells along a side of a picture.
MAX_SIDE = 120


class Ground(NamedTuple):
    """The background of a cell: colours for SVG, and their indices in the terminal's 256."""

    fill: str
    ink: str
    back: int
    front: int


_DARK, _LIGHT = ("#1f2328", 234), ("#ffffff", 231)


def _ground(fill: str, back: int, ink: tuple[str, int] = _DARK) -> Ground:
    return Ground(fill, ink[0], back, ink[1])


#: The tones 0 to 8 distinguish numbers: tiles, disks, piles, the digits of codes.
_TONES = (
    ("#eee4da", 254),
    ("#ede0b8", 229),
    ("#f2b179", 215),
    ("#8ecae6", 117),
    ("#a7d98b", 150),
    ("#f6a5c0", 218),
    ("#c3a6e8", 183),
    ("#f4d35e", 221),
    ("#7fd1c7", 116),
)
GROUNDS = {
    "none": Ground("none", "currentColor", -1, -1),
    "label": Ground("none", "#7d8590", -1, 244),
    "wall": _ground("#57606a", 240, _LIGHT),
    "floor": _ground("#f0ece2", 255),
    "ice": _ground("#d7ecfa", 195),
    "hole": _ground("#22577a", 24, _LIGHT),
    "hidden": _ground("#afb8c1", 249),
    "open": _ground("#f3f4f6", 255),
    "given": _ground("#dde3ea", 253),
    "good": _ground("#2da44e", 35, _LIGHT),
    "near": _ground("#d4a72c", 178),
    "miss": _ground("#6e7781", 243, _LIGHT),
    "danger": _ground("#cf222e", 160, _LIGHT),
    **{f"tone{i}": _ground(fill, back) for i, (fill, back) in enumerate(_TONES)},
}

#: SVG of the pieces that may stand on the ground, and their letters for terminals with colours.
PIECES: dict[str, tuple[str, str, int]] = {
    name: (piece["svg"], piece["letter"], piece["colour"])
    for name, piece in tomllib.loads(Path(__file__).with_name("pieces.toml").read_text(encoding="utf-8")).items()
}


class Cell(NamedTuple):
    """One square of a drawing."""

    ground: str = "none"
    """One of :data:`GROUNDS`."""
    pieces: tuple[str, ...] = ()
    """Names of :data:`PIECES`, the lowest first."""
    text: str = ""
    wide: float = 1.0
    """The share of the width that the ground fills, centred (for a disk on a peg, say)."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Rows of cells, and lines of text below them.

    Args:
        rows: rows of cells, of any lengths.
        block: rows and columns between thick lines, counted from ``origin``; 0 for no lines.
        origin: rows and columns before the first block, such as labels.
        across: the width of a column, in row heights.
    """

    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    block: int = 0
    origin: int = 0
    across: float = 1.0

    @property
    def columns(self) -> int:
        """Number of cells in the longest row."""
        return max(map(len, self.rows), default=0)


#: Converts the text of ``render()`` to a drawing; returns None for text that is no board.
Picture = Callable[[str], "Drawing | None"]


def draw(picture: Picture | None, text: str) -> Drawing | None:
    """Parse rendered text into a drawing. Returns None if that fails, and never raises."""
    if picture is None or not text or len(text) > MAX_TEXT:
        return None
    try:
        drawing = picture(text)
    except (ValueError, LookupError, TypeError, ArithmeticError):  # the text of another version, or a damaged one
        return None
    if drawing is None or not drawing.rows or max(len(drawing.rows), drawing.columns) > MAX_SIDE:
        return None
    return drawing


# -- from text to cells ------------------------------------------------------------------------------------------------


def grid(
    text: str,
    looks: Mapping[str, Cell],
    other: Callable[[str], Cell] = lambda token: Cell("open", text=token),
    *,
    labelled: bool = False,
    **how: Any,
) -> Drawing:
    """Parse a board of tokens separated by spaces, one line per row.

    Args:
        text: the board; lines below it become notes.
        looks: the cells of known tokens.
        other: the cell of any other token.
        labelled: the first row and column are labels. The board ends at a row without a number or of another length.
    """
    lines = [line.split() for line in text.split("\n")]
    if not labelled:
        return Drawing([[looks.get(token) or other(token) for token in line] for line in lines if line], **how)
    head = lines[0]
    rows = [[Cell("label"), *(Cell("label", text=token) for token in head)]]
    end = 1
    while end < len(lines) and len(lines[end]) == len(head) + 1 and lines[end][0].rstrip(":").isdigit():
        number, *cells = lines[end]
        rows.append([Cell("label", text=number.rstrip(":")), *(looks.get(token) or other(token) for token in cells)])
        end += 1
    return Drawing(rows, notes=[line for line in text.split("\n")[end:] if line], origin=1, **how)


def tone(number: int) -> str:
    """Return a background for a number that differs from those of its neighbours."""
    return f"tone{number % len(_TONES)}"


# -- SVG ---------------------------------------------------------------------------------------------------------------

_UNIT = 40


def svg(drawing: Drawing | str) -> str:
    """Return a drawing, or any text, as a self-contained SVG image. Cells with one background share a path."""
    return _text_svg(drawing) if isinstance(drawing, str) else _grid_svg(drawing)


def _grid_svg(drawing: Drawing) -> str:
    across, grounds, rest = drawing.across, defaultdict[str, list[str]](list), []
    for y, row in enumerate(drawing.rows):
        for x, cell in enumerate(row):
            wide = min(max(cell.wide, 0.1), 1.0) * across - 0.04
            left = (x + 0.5) * across - wide / 2
            grounds[GROUNDS[cell.ground].fill].append(f"M{_n(left)} {_n(y + 0.02)}h{_n(wide)}v.96h-{_n(wide)}z")
            place = f'transform="translate({_n(x * across + (across - 1) / 2)} {_n(y)})"'
            rest += [f"<g {place}>{PIECES[piece][0]}</g>" for piece in cell.pieces]
            if cell.text:
                rest.append(_letter(cell, (x + 0.5) * across, y + 0.5, across))
    paths = [f'<path fill="{fill}" d="{"".join(d)}"/>' for fill, d in grounds.items() if fill != "none"]
    columns, rows = drawing.columns, len(drawing.rows)
    width = columns * across
    if drawing.block:
        first = drawing.origin
        ways = [f"M{first} {y}H{columns}" for y in range(first, rows + 1, drawing.block)]
        ways += [f"M{x} {first}V{rows}" for x in range(first, columns + 1, drawing.block)]
        paths.append(f'<path d="{"".join(ways)}" stroke="#57606a" stroke-width=".07" fill="none"/>')
    size, line = 0.42, 0.6
    shown = [_CONTROL.sub("", note)[:200] for note in drawing.notes[:MAX_SIDE]]
    notes = [
        f'<text x="0" y="{_n(rows + 0.6 + i * line)}" font-size="{size}" fill="currentColor">{escape(note)}</text>'
        for i, note in enumerate(shown)
    ]
    width = max([width, *(len(note) * size * 0.56 for note in shown)])
    height = rows + (len(notes) * line + 0.3 if notes else 0)
    return _svg(width, height, "".join([*paths, *rest, *notes]), "sans-serif")


def _svg(width: float, height: float, inside: str, font: str) -> str:
    size = f'viewBox="0 0 {_n(width)} {_n(height)}" width="{round(width * _UNIT)}" height="{round(height * _UNIT)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{font}">{inside}</svg>'


def _n(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".").replace("0.", ".", 1 if abs(number) < 1 else 0) or "0"


def _letter(cell: Cell, x: float, y: float, across: float) -> str:
    shown = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", cell.text[:12])
    size = min(0.52, 1.35 * across / len(shown))
    bold = "" if cell.ground == "label" else ' font-weight="600"'
    attributes = f'x="{_n(x)}" y="{_n(y + 0.36 * size)}" font-size="{_n(size)}" text-anchor="middle"'
    return f'<text {attributes}{bold} fill="{GROUNDS[cell.ground].ink}">{escape(shown)}</text>'


def _text_svg(text: str) -> str:
    lines = [_CONTROL.sub("\N{REPLACEMENT CHARACTER}", line.expandtabs()) for line in text[:MAX_TEXT].split("\n")]
    width = max(map(len, lines)) * 0.27 + 0.4
    shown = "".join(
        f'<text x=".2" y="{_n(0.5 + i * 0.6)}" font-size=".45" xml:space="preserve" fill="currentColor">'
        f"{escape(line)}</text>"
        for i, line in enumerate(lines)
    )
    return _svg(width, len(lines) * 0.6 + 0.3, shown, "monospace")


#: Characters that XML does not allow, and lone surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")

# -- data --------------------------------------------------------------------------------------------------------------


def shapes() -> dict[str, list[tuple[str, dict[str, str]]]]:
    """Return the pieces as names and attributes of SVG elements, for pages that build them without parsing markup."""
    return {
        name: [(node.tag, dict(node.attrib)) for node in ElementTree.fromstring(f"<g>{markup}</g>")]
        for name, (markup, *_) in PIECES.items()
    }


def grounds() -> dict[str, tuple[str, str]]:
    """Return the fill and ink colour of each ground, for pages."""
    return {name: (ground.fill, ground.ink) for name, ground in GROUNDS.items()}


def board(picture: Picture | None, text: str) -> str:
    """Return rendered text as JSON for a page: rows of cells if it can be drawn, else the text."""
    drawing = draw(picture, text)
    if drawing is None:
        return json.dumps({"text": text})
    how = {"block": drawing.block, "origin": drawing.origin, "across": drawing.across, "notes": list(drawing.notes)}
    return json.dumps({"rows": [list(map(list, row)) for row in drawing.rows], **how})


# -- terminals ---------------------------------------------------------------------------------------------------------


def ansi(drawing: Drawing) -> str:
    """Return a drawing in a terminal's colours, one line per row."""
    widest = max((len(cell.text) for row in drawing.rows for cell in row), default=0)
    width = round(max(2, widest + (1 if widest < 3 else 2)) * drawing.across)
    lines = ["".join(_ansi_cell(cell, width) for cell in row) for row in drawing.rows]
    return "\n".join([*lines, *drawing.notes])


def _ansi_cell(cell: Cell, width: int) -> str:
    ground, shown, front = GROUNDS[cell.ground], cell.text, GROUNDS[cell.ground].front
    if cell.pieces:
        _, shown, front = PIECES[cell.pieces[-1]]
    inner = max(len(shown), round(width * cell.wide))
    codes = ([f"38;5;{front}"] if front >= 0 else []) + ([f"48;5;{ground.back}"] if ground.back >= 0 else [])
    middle = f"{shown:^{inner}}"
    left = (width - inner) // 2
    coloured = f"\x1b[{';'.join(codes)}m{middle}\x1b[0m" if codes else middle
    return " " * left + coloured + " " * (width - inner - left)

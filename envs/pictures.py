"""Drawings of the bundled games' boards, parsed from the text that each renders."""

from __future__ import annotations

import re

from rollenv.core.drawing import Cell, Drawing, grid, tone

_WALL = Cell("wall")

_SOKOBAN = {
    "#": _WALL,
    "_": Cell("floor"),
    "O": Cell("floor", ("target",)),
    "X": Cell("floor", ("box",)),
    "√": Cell("floor", ("target", "done")),
    "P": Cell("floor", ("player",)),
    "S": Cell("floor", ("target", "player")),
}
_LAKE = {
    "_": Cell("ice"),
    "O": Cell("hole"),
    "G": Cell("ice", ("goal",)),
    "P": Cell("ice", ("player",)),
    "X": Cell("danger", ("player",)),
    "√": Cell("good", ("goal", "player")),
}
_MINES = {".": Cell("hidden"), "F": Cell("hidden", ("flag",)), "0": Cell("open")}
_MARKS = {"G": "good", "Y": "near", "X": "miss"}

#: For :attr:`rollenv.Env.picture_words`: what texts say of symbols, and the words for a reader of a picture.
SOKOBAN_WORDS = {
    r"(?m)^P is you, # a wall.*": "You are blue, walls are grey, boxes brown, targets red rings, "
    "and boxes on a target green.",
    r"\nAs \(row,column\) from 0: .*": "",
}
LAKE_WORDS = {r"P is you, _ is ice.*": "You are blue, holes are dark, and the goal is a flag."}
MINES_WORDS = {r"\. is a hidden cell, F a flag, and": "hidden cells are grey, a flag is red, and"}
SUDOKU_WORDS = {r", \. is an empty cell": ""}
FIFTEEN_WORDS = {r" \(__\)": ""}
HANGMAN_WORDS = {r"; _ is a place still hidden": "; a grey place is still hidden"}
WORDLE_WORDS = {
    r"G is in the right place, Y belongs in another place, X is not": "green is in the right place, yellow belongs in "
    "another place, grey is not",
    r", marked [GYX]+": "",
}
MASTERMIND_WORDS = {r"(Turn \d+: [\d ]+): \d+ black, \d+ white": r"\1"}
LETTERS_WORDS = {r"those of words you found in lower case": "those of words you found on green"}
CROSSWORD_WORDS = {
    r"_ is a cell to fill and \. not part of a word": "white cells are to fill and dark ones not part of a word"
}
MAZE_WORDS = {
    r"Navigate from '.' \(start\) to '.' \(goal\)": "Navigate from the blue figure to the flag",
    r"(?m)^Legend: .*\n+": "",
}


def sokoban(text: str) -> Drawing:
    """Draw a room with boxes."""
    return grid(text, _SOKOBAN)


def frozen_lake(text: str) -> Drawing:
    """Draw ice with holes."""
    return grid(text, _LAKE)


def minesweeper(text: str) -> Drawing:
    """Draw cells, hidden or with the number of neighbouring mines."""
    return grid(text, _MINES, labelled=True)


def sudoku(text: str) -> Drawing:
    """Draw digits in blocks."""
    lines = [line.replace("|", " ") for line in text.split("\n") if "+" not in line]
    block = 2 if len(lines) == 5 else 3
    return grid("\n".join(lines), {".": Cell("open")}, lambda t: Cell("given", text=t), labelled=True, block=block)


def tiles(text: str) -> Drawing:
    """Draw 2048 with a tone for every power of two."""
    return grid(text, {".": Cell("hidden")}, lambda t: Cell(tone(int(t).bit_length() - 2), text=t))


def fifteen(text: str) -> Drawing:
    """Draw numbered tiles and a gap; a tile in its place is green."""
    numbers = [line.split() for line in text.split("\n")]
    size = len(numbers)

    def cell(row: int, column: int, token: str) -> Cell:
        if token == "__":
            return Cell("hidden")
        return Cell("tone4" if int(token) == row * size + column + 1 else "given", text=token)

    return Drawing([[cell(r, c, token) for c, token in enumerate(line)] for r, line in enumerate(numbers)])


def hanoi(text: str) -> Drawing:
    """Draw three pegs with disks as wide as their numbers."""
    pegs = [(line[0], [int(disk) for disk in line[2:].split()]) for line in text.split("\n")]
    count = max(sum(len(disks) for _, disks in pegs), 1)

    def cell(disks: list[int], height: int) -> Cell:
        if height >= len(disks):
            return Cell("label", text="|")
        return Cell(tone(disks[height]), text=str(disks[height]), wide=(disks[height] + 1) / (count + 1))

    rows = [[cell(disks, height) for _, disks in pegs] for height in reversed(range(count))]
    return Drawing([*rows, [Cell("label", text=name) for name, _ in pegs]], across=3)


def wordle(text: str) -> Drawing | None:
    """Draw guesses, each letter on the colour of its mark."""
    guesses = [line.split() for line in text.split("\n")[1:]]
    rows = [[Cell(_MARKS[m], text=letter) for letter, m in zip(*guess, strict=True)] for guess in guesses]
    return Drawing(rows) if rows else None


def mastermind(text: str) -> Drawing | None:
    """Draw guesses with their pegs, a tone for every number."""
    rows = []
    for line in text.split("\n")[1:]:
        code, pegs = line.split(":")
        black, white = (int(part.split()[0]) for part in pegs.split(","))
        cells = [Cell(tone(int(number)), text=number) for number in code.split()]
        rows.append([*cells, Cell("label"), *[Cell("none", ("black",))] * black, *[Cell("none", ("white",))] * white])
    return Drawing(rows) if rows else None


def hangman(text: str) -> Drawing:
    """Draw the places of the word."""
    word, *notes = text.split("\n")
    letters = word.partition(": ")[2].split()
    return Drawing([[Cell("hidden") if letter == "_" else Cell("given", text=letter) for letter in letters]], notes)


def letters(text: str) -> Drawing:
    """Draw a word search; found letters, which are lower case, are green."""
    return grid(text, {}, lambda t: Cell("good" if t.islower() else "open", text=t.upper()), labelled=True)


def crossword(text: str) -> Drawing:
    """Draw white cells to fill between black ones."""
    looks = {".": _WALL, "_": Cell("open")}
    return grid(text, looks, lambda t: Cell("given", text=t), labelled=True)


def nim(text: str) -> Drawing:
    """Draw a row of objects for every pile."""
    lines = text.split("\n")
    piles = [line.removeprefix("pile ").split(": ") for line in lines if line.startswith("pile ")]
    rows = [[Cell("label", text=name), *[Cell("none", ("dot",))] * int(size)] for name, size in piles]
    return Drawing(rows, [line for line in lines if not line.startswith("pile ")])


def maze(text: str) -> Drawing | None:
    """Draw a maze of reasoning-gym, whose text names its symbols."""
    found = re.fullmatch(
        r"(?s)(.*'(.)' \(start\).*'(.)' \(goal\).*?)```\n(.*)\n```(.*'(.)' = Wall, '(.)' = Passage.*)", text
    )
    if not found:
        return None
    before, start, goal, board, after, wall, passage = found.groups()
    floor = Cell("floor")
    looks = {wall: _WALL, passage: floor, start: Cell("floor", ("player",)), goal: Cell("floor", ("goal",))}
    rows = [[looks.get(symbol, floor) for symbol in line] for line in board.split("\n")]
    return Drawing(rows, [line for line in (before + after).split("\n") if line])

"""ARC-AGI as an environment: an attempt a turn."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import EpisodeOver, UsageError
from rollenv.core.parsing import last_boxed, last_code_block, last_tagged
from rollenv.core.pictures import MARK
from rollenv.envs.numbered import checked_index
from rollenv.plugins.worlds.arc.files import LONGEST, Grid, Puzzle, Split, as_grid, read_puzzles

_TASK = (
    "Each example has an input grid and an output grid; a cell is a digit from 0 to 9, which is a colour. Find the "
    "rule that makes every output from its input, and apply it to the test input.\n"
)
_HOW = (
    "Answer with the whole output grid within <answer> and </answer>: a line for each row, its digits with spaces "
    "between them."
)
#: Forms of each puzzle with ``augment=True``; the first is its own.
FORMS = 1000
#: Characters at the end of an action that are read.
_READ = 50_000
_JSON = re.compile(r"[\[\]\d\s,]+")
_JSON_ROW = re.compile(r"\[([\d\s,]*)\]")
_ROW = re.compile(r"[\s,;|]*\d[\d\s,;|]*")
#: The colours of arcprize.org, and of the lines between cells.
_PALETTE = np.array(
    [0x000000, 0x0074D9, 0xFF4136, 0x2ECC40, 0xFFDC00, 0xAAAAAA, 0xF012BE, 0xFF851B, 0x7FDBFF, 0x870C25, 0x555555]
)
_TILE = 14


class ArcEnv(Env):
    """Find the rule behind pairs of grids, and apply it to other inputs: the base of both data sets.

    An episode is a puzzle. Its test inputs are asked one after the other, each until it is right or its attempts are
    used up; an answer that is no grid uses one up too. The reward comes at the end: 1 if every test input was solved.
    The last grid of an answer counts, in ``<answer>`` tags, a box or a code block if there is one: rows of digits, or
    JSON. ``info`` has ``task`` (its published name), ``solved`` and ``tests``.

    Args:
        split: ``train`` or ``evaluation``.
        attempts: for each test input; two in the benchmark.
        largest: leave out puzzles with a grid that has a longer side, from 1 to 30.
        partial: pay the share of test inputs that were solved instead of all or nothing.
        pictures: show a picture before the text of each grid.
        augment: play each puzzle in 1,000 forms, turned, mirrored, its colours but 0 permuted; for training.
            Form f of puzzle i is the task f * n + i, of n puzzles.
        data: a file, folder or wheel; by default ``$ROLLENV_DATA/arc``, then the installed package.
        own_data: play a file in the same form whose content is not the published one.

    ``reset(options={"index": i})`` plays the i-th puzzle by name.
    """

    reset_options = frozenset({"index"})
    _changed_in_place = ()
    kind: ClassVar[str]

    def __init__(
        self,
        split: Split = "train",
        *,
        attempts: int = 2,
        largest: int = LONGEST,
        partial: bool = False,
        pictures: bool = False,
        augment: bool = False,
        data: str | Path | None = None,
        own_data: bool = False,
    ):
        if split not in ("train", "evaluation"):
            raise UsageError(f"split {split!r} is unknown; choose train or evaluation")
        if attempts < 1:
            raise UsageError(f"attempts must be at least 1, got {attempts}")
        if augment and split != "train":
            raise UsageError("augment=True is for training: results on changed puzzles do not compare")
        puzzles = read_puzzles(self.kind, split, data, own_data)
        self.puzzles = [each for each in puzzles if max(max(grid.shape) for grid in each.grids()) <= largest]
        if not self.puzzles:
            raise UsageError(f"no puzzle of the split {split!r} has grids of at most {largest} by {largest}")
        self.attempts, self.partial, self.pictures, self.augment = attempts, partial, pictures, augment
        self._index: int | None = None
        self.test = self.tried = self.solved = 0

    def num_tasks(self) -> int:
        """Return the number of puzzles, or of their forms."""
        return len(self.puzzles) * (FORMS if self.augment else 1)

    # -- the episode -------------------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        given = options.get("index")
        self._index = self.randint(self.num_tasks()) if given is None else checked_index(self, given)
        self.puzzle = self._puzzle(self._index)
        self.test = self.tried = self.solved = 0
        shown: list[Grid] = []
        lines = [_TASK]
        for number, (before, after) in enumerate(self.puzzle.shown, 1):
            lines += [f"Example {number}", self._grid("Input", before, shown), self._grid("Output", after, shown), ""]
        lines.append(self._question(shown))
        return "\n".join(lines), {**self._info(), **self._images(shown)}

    def _puzzle(self, index: int) -> Puzzle:
        form, number = divmod(index, len(self.puzzles))
        puzzle = self.puzzles[number]
        if form == 0:
            return puzzle
        rng = random.Random(f"{puzzle.name}/{form}")
        return puzzle.changed(rng.randrange(8), (0, *rng.sample(range(1, 10), 9)))

    def _step(self, action: str) -> StepResult:
        self.tried += 1
        right, valid, shown = False, True, list[Grid]()
        try:
            right = np.array_equal(read_grid(action), self.puzzle.asked[self.test][1])
            said = "Right." if right else "That is not the output."
        except ValueError as error:
            said, valid = f"The answer cannot be read: {error}.", False
        self.solved += right
        if right or self.tried == self.attempts:
            self.test, self.tried = self.test + 1, 0
        tests = len(self.puzzle.asked)
        ended = self.test == tests
        info = {**self._info(), "valid": valid}
        if not ended:
            said += f" {self._left()}" if self.tried else f"\n\n{self._question(shown)}"
            return said, 0.0, False, False, {**info, **self._images(shown)}
        won = self.solved == tests
        reward = self.solved / tests if self.partial else float(won)
        return said, reward, True, False, {**info, "success": won}

    def _info(self) -> dict[str, Any]:
        return {"task": self.puzzle.name, "solved": self.solved, "tests": len(self.puzzle.asked)}

    def _left(self) -> str:
        return f"Attempt {self.tried + 1} of {self.attempts}."

    def _question(self, shown: list[Grid]) -> str:
        number = f" {self.test + 1} of {len(self.puzzle.asked)}" if len(self.puzzle.asked) > 1 else ""
        return f"{self._grid(f'Test input{number}', self.puzzle.asked[self.test][0], shown)}\n\n{_HOW} {self._left()}"

    def _grid(self, title: str, grid: Grid, shown: list[Grid]) -> str:
        shown.append(grid)
        rows, columns = grid.shape
        return f"{title} ({rows} rows of {columns}):\n" + (f"{MARK}\n" if self.pictures else "") + write_grid(grid)

    def _images(self, shown: list[Grid]) -> dict[str, Any]:
        return {"images": [draw_grid(grid) for grid in shown]} if self.pictures and shown else {}

    def render(self) -> str:
        """Return the test input that is asked, and how far the episode is; empty before the first reset."""
        if self._index is None:
            return ""
        tests = len(self.puzzle.asked)
        if self.test == tests:
            return f"{self.puzzle.name}: {self.solved} of {tests} solved"
        title = f"{self.puzzle.name}, test input {self.test + 1} of {tests}, {self.solved} solved. {self._left()}"
        return f"{title}\n{write_grid(self.puzzle.asked[self.test][0])}"

    # -- abilities ---------------------------------------------------------------------------------------------------

    def sample_random_action(self) -> str:
        """Return a grid of the size and colours of the test input, at random."""
        if self._index is None:
            return "<answer>0</answer>"
        grid = self.puzzle.asked[min(self.test, len(self.puzzle.asked) - 1)][0]
        colours = [int(colour) for colour in np.unique(grid)]
        rows = [" ".join(str(self.action_rng.choice(colours)) for _ in row) for row in grid]
        return "<answer>\n" + "\n".join(rows) + "\n</answer>"

    def oracle_action(self) -> str:
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        return f"<answer>\n{write_grid(self.puzzle.asked[self.test][1])}\n</answer>"

    def state_key(self) -> str:
        return json.dumps(self._get_state())

    def alike_key(self) -> str:
        """Return what is equal for the same pairs of grids, in any order, each turned, mirrored or in other colours."""
        return self.puzzle.alike

    def _get_state(self) -> dict[str, Any]:
        content = None if self._index is None else self.puzzle.digest
        return {"index": self._index, "progress": [self.test, self.tried, self.solved], "content": content}

    def _set_state(self, state: dict[str, Any]) -> None:
        self._index = state["index"]
        self.test, self.tried, self.solved = state["progress"]
        if self._index is not None:
            self.puzzle = self._puzzle(checked_index(self, self._index))
            if self.puzzle.digest != state["content"]:
                raise UsageError(f"{self}: the state is that of another puzzle: other data, or another split")


class ARC1Env(ArcEnv):
    """ARC-AGI-1: 400 puzzles for training and 400 for evaluation."""

    kind = "ARC1"


class ARC2Env(ArcEnv):
    """ARC-AGI-2: 1,000 puzzles for training and 120 for evaluation."""

    kind = "ARC2"


# -- grids as text and pictures ----------------------------------------------------------------------------------------


def write_grid(grid: Grid) -> str:
    """Return a line for each row, digits with spaces between them."""
    return "\n".join(" ".join(map(str, row)) for row in grid.tolist())


def read_grid(answer: str) -> Grid:
    """Return the last grid of an answer.

    Raises:
        ValueError: there is none, or it is no grid; the message says why.
    """
    text = answer[-_READ:]
    inside = last_tagged(text) or last_boxed(text) or last_code_block(text, None)
    text = text if inside is None else inside
    rows, end = _last_lines(text)
    for run in _JSON.finditer(text):
        if run.start() + run[0].rfind("]") < end:
            continue
        for each in re.split(r"\]\s*\]", run[0]):  # a list of lists, or lists alone; not [1], which cites something
            if each.count("[") > 1:
                rows = [row.replace(",", " ").split() for row in _JSON_ROW.findall(f"{each}]")]
    if not rows:
        raise ValueError("it has no grid")
    return as_grid([[_cell(each) for each in row] for row in rows])


def _last_lines(text: str) -> tuple[list[list[str]], int]:
    """Return the digits of the last lines that have nothing else, and where they end."""
    rows, end, at, ended = list[list[str]](), 0, 0, True
    for line in text.splitlines(keepends=True):
        at += len(line)
        if _ROW.fullmatch(line):
            cells = re.findall(r"\d+", line)
            rows = [*([] if ended else rows), list(cells[0]) if len(cells) == 1 else cells]
            ended, end = False, at
        else:
            ended = True
    return rows, end


def _cell(text: str) -> int:
    return int(text) if len(text) == 1 and text in "0123456789" else -1


def draw_grid(grid: Grid) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return pixels, uint8 (height, width, 3): squares with lines between them."""
    pixels = np.kron(grid, np.ones((_TILE, _TILE), np.int8))
    pixels[::_TILE], pixels[:, ::_TILE] = 10, 10
    codes = _PALETTE[pixels]
    return np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1).astype(np.uint8)

"""The base of question-and-answer tasks: attempts, rewards, rows of a data set."""

from __future__ import annotations

import copy
import functools
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import MissingData, UsageError
from rollenv.core.parsing import after_thoughts
from rollenv.core.pictures import MARK, Picture
from rollenv.envs.data.row_pictures import pictures_of
from rollenv.envs.data.rows import HubRows, Row, Rows, load_rows
from rollenv.envs.numbered import checked_index

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"\d+(?:[.,/]\d+)*")
#: Maximum size, in bits, of integers that Python converts to text (4,300 digits).
_LONG = 14_000

#: Checked rows of files, by kind of environment and columns; environments share files.
_checked: dict[tuple[int, type, str, str], Rows] = {}


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """The grade of an answer."""

    score: float
    """Score from 0 to 1; 1 is success."""
    feedback: str
    """Feedback for the agent."""
    valid: bool = True
    """False if the action could not be parsed."""
    final: bool = False
    """True if the answer ends the task even if it is wrong."""


class AnswerEnv(Env):
    """A task, and an answer to it.

    With one turn, the answer ends the task (``terminated``). With more, the agent may try again after a wrong answer
    until the turns are used up (``truncated``). The last answer's score is the reward.
    """

    _changed_in_place = ()
    #: True if text in an unfinished thought is no answer; False for classes that take their answer from code blocks.
    cuts_thoughts = True

    def __init__(self, *, max_turns: int = 1, format_reward: float = 0.0):
        if max_turns < 1 or format_reward > 0:
            raise UsageError(
                f"max_turns must be at least 1 and a format reward at most 0, got {max_turns} and {format_reward}"
            )
        self.max_turns, self.format_reward = max_turns, format_reward
        self.turn = 0

    # -- methods of a task; its attributes are replaced, never changed in place ------------------------------------

    def _new_task(self, options: dict[str, Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no _new_task()")

    def _question(self) -> str:
        """Return the whole task as text."""
        raise NotImplementedError(f"{type(self).__name__} has no _question()")

    def _brief(self) -> str:
        """Return a short form of the task for short prompts; empty if there is none."""
        return ""

    def _judge(self, action: str) -> RowVerdict:
        raise NotImplementedError(f"{type(self).__name__} has no _judge()")

    # -- the episode -------------------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self._new_task(options)
        self.turn = 0
        return self._question(), self._info()

    def _info(self) -> dict[str, Any]:
        brief = self._brief()
        return {"brief": brief} if brief else {}

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        answer, unfinished = after_thoughts(action)
        verdict = self._judge(answer if unfinished and self.cuts_thoughts else action)
        success = verdict.valid and verdict.score >= 1.0
        ended = success or verdict.final or self.max_turns == 1
        over = ended or self.turn >= self.max_turns
        reward = verdict.score * over if verdict.valid else self.format_reward
        info = {**self._info(), "valid": verdict.valid}
        if over:
            return verdict.feedback, reward, ended, not ended, info | {"success": success}
        left = self.max_turns - self.turn
        return f"{verdict.feedback}\n{left} more turn{'s' * (left > 1)}.", reward, False, False, info

    def render(self) -> str:
        return f"{self._brief() or self._question()}\nTurn {self.turn} of {self.max_turns}"

    def state_key(self) -> str:
        return self.render()


class RowEnv(AnswerEnv):
    """Tasks from the rows of a data set, one answer each.

    ``reset(options={"index": i})`` selects row ``i``, as does ``reset(idx=i)``, GEM's argument. A seed draws a row;
    later resets without a seed go through all other rows in a random order before any repeats.

    Rows must have a question, which is text, and a gold answer. This is checked at loading; for the ``datasets``
    library, whose rows stay on disk, at each reset.
    """

    reset_options = frozenset({"index"})
    #: The column with pictures, if there is one, and the folder of their paths.
    image_key = ""
    folder: Path | None = None
    #: Attributes that copies share: rows never change; runners of programs and time limits are meant to be shared.
    shared_by_copies = frozenset({"rows", "spec", "timeout", "_runner", "_judge_runner", "_parsed"})

    def __init__(
        self,
        dataset_name: str | None,
        split: str | None,
        dataset: Iterable[Row] | None,
        question_key: str,
        gold_key: str,
        seed: int | None,
        format_reward: float,
    ):
        super().__init__(format_reward=format_reward)
        self.rows = load_rows(dataset_name or "", split, dataset)
        self._named = f"the data set {'given as rows' if dataset is not None else dataset_name}"
        for key in (question_key, gold_key):
            if key not in self.rows[0]:
                raise UsageError(
                    f"{self._named}: its rows have no column {key!r}; they have {', '.join(map(repr, self.rows[0]))}"
                )
        self.question_key, self.gold_key = question_key, gold_key
        self._check_rows(shared=dataset is None)
        self.idx = 0
        self._epoch: Epoch | None = None
        if seed is not None:
            self.seed_stream(seed)

    def __deepcopy__(self, memo: dict[int, Any]) -> RowEnv:
        twin = memo[id(self)] = copy.copy(self)
        for name, value in vars(self).items():
            if name not in self.shared_by_copies:
                setattr(twin, name, copy.deepcopy(value, memo))
        return twin

    @property
    def row(self) -> Row:
        """The current episode's row."""
        return self.rows[self.idx]

    def reset(
        self, seed: int | None = None, idx: int | None = None, *, options: dict[str, Any] | None = None
    ) -> ResetResult:
        """Start an episode; see :meth:`rollenv.Env.reset`. ``idx``: GEM's argument for ``options={"index": idx}``."""
        return super().reset(seed, options=options if idx is None else {**(options or {}), "index": idx})

    def num_tasks(self) -> int:
        return len(self.rows)

    def seed_stream(self, seed: int) -> None:
        super().seed_stream(seed)
        self._epoch = None

    def _new_task(self, options: dict[str, Any]) -> None:
        index = options.get("index")
        if index is not None:
            self.idx = checked_index(self, index)
        elif self._epoch is None or self._epoch.place + 1 >= len(self.rows):
            self._epoch = Epoch(self.randint(len(self.rows)), self.randint(2**31))
            self.idx = self._epoch.first
        else:
            self._epoch = replace(self._epoch, place=self._epoch.place + 1)
            self.idx = int(_order(len(self.rows), self._epoch.first, self._epoch.seed)[self._epoch.place])
        if isinstance(self.rows, HubRows):
            self._check_row(self.idx, self.row)

    def _check_rows(self, shared: bool) -> None:
        key = (id(self.rows), type(self), self.question_key, self.gold_key)
        if isinstance(self.rows, HubRows) or key in _checked:
            return
        for index, row in enumerate(self.rows):
            self._check_row(index, row)
        if unpaid := [index for index, row in enumerate(self.rows) if not self._has_gold(row[self.gold_key])]:
            logger.warning(
                "%s: %d rows have nothing in column %r, the first is row %d; no answer to them is paid",
                self._named, len(unpaid), self.gold_key, unpaid[0],
            )  # fmt: skip
        if shared:
            _checked[key] = self.rows
            while len(_checked) > 64:
                del _checked[next(iter(_checked))]

    def _check_row(self, index: int, row: Row) -> None:
        for key, problem in ((self.question_key, _no_question), (self.gold_key, self._no_gold)):
            if key not in row:
                raise UsageError(f"{self._named}: row {index} has no column {key!r}")
            if wrong := problem(row[key]):
                raise UsageError(f"{self._named}: row {index} cannot be played: its column {key!r} {wrong}")

    def _no_gold(self, cell: Any) -> str:
        """Return the reason why a gold answer cannot be graded; empty if it can."""
        return no_answer(cell) if self._has_gold(cell) else ""

    def _has_gold(self, cell: Any) -> bool:
        return any(not isinstance(value, str) or value.strip() for value in listed(cell))

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        observation, info = super()._reset(options)
        if self.image_key:
            info["images"] = self._pictures(observation)
        return observation, info | {"idx": self.idx}

    def _pictures(self, text: str) -> list[Picture]:
        """Return the pictures of the row, which ``text`` has marks for, or none."""
        try:
            images = pictures_of(self.row.get(self.image_key), self.folder)
            if (marks := text.count(MARK)) not in (0, len(images)):
                raise UsageError(f"it has {len(images)} pictures for {marks} marks {MARK} in {self.question_key!r}")
        except (UsageError, MissingData) as error:
            where = f"{self._named}: row {self.idx}, column {self.image_key!r}"
            raise type(error)(f"{where}: {error}") from error
        return images

    def render(self) -> str:
        return f"Row {self.idx}: {super().render()}"

    def state_key(self) -> str:
        return f"{self.idx}/{self.turn}"

    def alike_key(self) -> str:
        """The question without regard to its numbers, case and spaces."""
        return _NUMBER.sub("#", " ".join(str(self.row[self.question_key]).casefold().split()))

    def _get_state(self) -> dict[str, Any]:
        return {"turn": self.turn, "idx": self.idx, "epoch": self._epoch and asdict(self._epoch)}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.turn, self.idx = state["turn"], state["idx"]
        self._epoch = state["epoch"] and Epoch(**state["epoch"])


def listed(cell: Any) -> list[Any]:
    """Return the values in a cell of one or several, without missing values (None, NaN).

    A mapping with "text" has them there (SQuAD's answers).
    Integers of thousands of digits become decimals, since Python does not convert them to text.
    """
    if isinstance(cell, np.ndarray | np.generic):
        cell = cell.tolist()
    if isinstance(cell, Mapping) and "text" in cell:
        return listed(cell["text"])
    values = cell if isinstance(cell, list | tuple | set | frozenset) else [cell]
    values = [Decimal(v) if type(v) is int and v.bit_length() > _LONG else v for v in values]
    return [v for v in values if v is not None and not (isinstance(v, float | Decimal) and v != v)]


def no_answer(cell: Any) -> str:
    """Describe the problem of a cell of answers, which must be texts or numbers; empty if there is none."""
    values = listed(cell)
    if others := [value for value in values if not isinstance(value, str | int | float | Decimal)]:
        return f"holds {type(others[0]).__name__}, not a text or a number"
    return "" if any(not isinstance(value, str) or value.strip() for value in values) else "is empty"


def _no_question(cell: Any) -> str:
    if isinstance(cell, list | tuple | np.ndarray):
        return "holds a list, not a text"
    return no_answer(cell)


@dataclass(frozen=True, slots=True)
class Epoch:
    """An order of all rows, and the position in it."""

    first: int
    seed: int
    place: int = 0


@functools.lru_cache(maxsize=16)
def _order(n: int, first: int, seed: int) -> NDArray[np.int64]:
    """Return a permutation of 0 .. n - 1 for a seed, with ``first`` at the front."""
    others = np.delete(np.arange(n), first)
    return np.concatenate([[first], np.random.Generator(np.random.PCG64(seed)).permutation(others)])

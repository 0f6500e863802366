r"""The base of the text games: ``\boxed{}`` actions, a turn limit, GEM's rewards, state saved by attribute name."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import EpisodeOver, UsageError
from rollenv.core.parsing import boxes, last_boxed

_NUMBER = re.compile(r"[+-]?\d{1,4300}")  # Python does not parse longer ones
_MOST = 10**18

#: The usual numbers, read faster than by a pattern.
SMALL = {str(number): number for number in range(1000)}


class TextGame(Env):
    r"""A game with its action in ``\boxed{}``.

    The last box with a move counts. An action without one costs 0.1 and ends the episode; an illegal move only costs a
    turn. The turn limit truncates. The observation of a reset is the instructions, that of a step a sentence about its
    effect; the board is in ``info["suffix"]``.

    Args:
        sizes: the arguments in ``size_names``. If all are None, every reset draws them from ``random_sizes``.
    """

    #: Constructor arguments for the size of a game, including ``max_turns``.
    size_names: ClassVar[tuple[str, ...]]
    #: Sizes of ids that end in -random, in the order of ``size_names``; empty if the arguments are required.
    random_sizes: ClassVar[Sequence[tuple[Any, ...]]] = ()
    #: Attributes with the state of an episode: JSON values, or tuples that ``_restored`` rebuilds.
    state_names: ClassVar[tuple[str, ...]] = ()
    malformed_reward: ClassVar[float] = -0.1
    malformed_ends: ClassVar[bool] = True
    #: False if an action is the bare move.
    boxed = True

    max_turns: int
    _prompt: str

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._changed_in_place = cls.state_names

    def __init__(self, **sizes: Any):
        missing = [name for name in self.size_names if sizes[name] is None]
        if missing and (len(missing) < len(sizes) or not self.random_sizes):
            either = f", or None for all of {', '.join(self.size_names)} to draw them" if self.random_sizes else ""
            raise UsageError(f"{type(self).__name__}: {', '.join(missing)} must be given{either}")
        self.sizes_vary = bool(missing)
        self.turn = 0
        self._resize(**(self._size(0) if missing else sizes))
        if self.max_turns < 1:
            raise UsageError(f"{type(self).__name__}: max_turns must be at least 1, got {self.max_turns}")

    # -- what a game writes ------------------------------------------------------------------------------------------

    def _resized(self) -> None:
        """Check the sizes and build what depends only on them."""

    def _new_game(self) -> None:
        """Draw the hidden part and set up the board."""
        raise NotImplementedError(f"{type(self).__name__} has no _new_game()")

    def _instructions(self) -> str:
        """Return the text at reset; by default ``_prompt``, which ``_resized`` sets."""
        return self._prompt

    def _write(self, move: str) -> str:
        """Return the action for a move."""
        return f"\\boxed{{{move}}}" if self.boxed else move  # box() without its call, in every random step

    def _parse(self, text: str) -> Any:
        """Parse the content of the box; None if it is no move."""
        raise NotImplementedError(f"{type(self).__name__} has no _parse()")

    def _play(self, move: Any) -> tuple[str, float, bool | None]:
        """Carry out a move; return the observation, the reward, and True (won), False (lost) or None (continues)."""
        raise NotImplementedError(f"{type(self).__name__} has no _play()")

    def _suffix(self) -> str:
        """Return the board below an introductory line."""
        raise NotImplementedError(f"{type(self).__name__} has no _suffix()")

    def _late_reward(self) -> float:
        """Return the reward at the turn limit."""
        return 0.0

    def _next_move(self) -> str:
        """Return an expert's next move."""
        raise NotImplementedError(f"{type(self).__name__} has no _next_move()")

    def _restored(self) -> None:
        """Rebuild what depends on the attributes in ``state_names``, after they were set."""

    # -- the episode -------------------------------------------------------------------------------------------------

    def _resize(self, **sizes: Any) -> None:
        for name in self.size_names:
            setattr(self, name, sizes[name])
        self._resized()

    def _size(self, number: int) -> dict[str, Any]:
        return dict(zip(self.size_names, self.random_sizes[number], strict=True))

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        if self.sizes_vary:
            self._resize(**self._size(self.randint(len(self.random_sizes))))
        self.turn = 0
        self._new_game()
        return self._instructions(), {"suffix": self._suffix()}

    def _step(self, action: str) -> StepResult:
        self.turn = turn = self.turn + 1
        move = self._read(action)
        if move is None:
            return self._malformed()
        feedback, reward, won = self._play(move)
        if won is not None:
            return f"Turn {turn}: {feedback}", reward, True, False, self._info(True, won)
        if turn < self.max_turns:
            return f"Turn {turn}: {feedback}", reward, False, False, {"suffix": self._suffix(), "valid": True}
        feedback = f"Turn {turn}: {feedback} That was the last turn."
        return feedback, reward + self._late_reward(), False, True, self._info(True, False)

    def _read(self, action: str) -> Any:
        """Return the move in the last box with one, or None."""
        if not self.boxed:
            return self._parse(action.strip())
        text = last_boxed(action)
        move = None if text is None else self._parse(text)
        if move is not None:
            return move
        return next((m for m in map(self._parse, boxes(action)) if m is not None), None)

    def _malformed(self) -> StepResult:
        feedback = f"Turn {self.turn}: this has no action in the required form."
        if self.malformed_ends:
            return feedback, self.malformed_reward, True, False, self._info(False, False)
        if self.turn < self.max_turns:
            return feedback, self.malformed_reward, False, False, {"suffix": self._suffix(), "valid": False}
        return feedback, self.malformed_reward + self._late_reward(), False, True, self._info(False, False)

    def _info(self, valid: bool, success: bool) -> dict[str, Any]:
        return {"suffix": self._suffix(), "valid": valid, "success": success}

    # -- abilities ---------------------------------------------------------------------------------------------------

    def oracle_action(self) -> str:
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        return self._write(self._next_move())

    def _pick(self, actions: Sequence[str]) -> str:
        random = self._rollenv_random_actions or self.action_rng  # saves the call of the property
        return actions[int(random.random() * len(actions))]

    def state_key(self) -> str:
        return self.render()

    def _get_state(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.state_names}
        return {
            "turn": self.turn,
            "sizes": {name: getattr(self, name) for name in self.size_names},
            **{name: value.copy() if isinstance(value, list) else value for name, value in values.items()},
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        self.turn = state["turn"]
        self._resize(**state["sizes"])
        for name in self.state_names:
            value = state[name]
            setattr(self, name, value.copy() if isinstance(value, list) else value)
        self._restored()


def box(text: str) -> str:
    r"""Put text into ``\boxed{}``."""
    return f"\\boxed{{{text}}}"


def numbers(text: str, n: int | None = None) -> list[int] | None:
    """Parse whole numbers separated by spaces or commas.

    Digits may be of any script; a number above 10 ** 18 becomes 10 ** 18.
    """
    parts = text.replace(",", " ").split(None, n or -1)
    if n and len(parts) != n:
        return None
    found = []
    for part in parts:
        number = SMALL.get(part)
        if number is None:
            if not _NUMBER.fullmatch(part):
                return None
            number = max(-_MOST, min(int(part), _MOST))  # larger ones are outside every game
        found.append(number)
    return found or None


def letters(text: str) -> str | None:
    """Return a word in upper case, or None; separators between its letters are dropped."""
    word = "".join(text.split())
    return word.upper() if word.isascii() and word.isalpha() else None


def turns(n: int) -> str:
    """Return ``"1 turn"`` or ``"n turns"``."""
    return "1 turn" if n == 1 else f"{n} turns"


@functools.cache
def read_lines(name: str) -> tuple[str, ...]:
    """Return the lines of a text file in this folder, cached."""
    return tuple(Path(__file__).with_name("words").joinpath(name).read_text(encoding="utf-8").splitlines())


@functools.cache
def words(length: int, hard: bool = False) -> tuple[str, ...]:
    """List common English words of one length, 3 to 8."""
    listed = [
        tuple(w.upper() for w in read_lines(name) if len(w) == length) for name in ("words_hard.txt", "words.txt")
    ]
    return listed[0] or listed[1] if hard else listed[1]

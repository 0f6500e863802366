"""What GEM's games have in common, over rollenv's own: constructors, the reading of actions, texts."""

from __future__ import annotations

import inspect
import re
from typing import Any, ClassVar

from rollenv.compat.gem.core import GemEnv
from rollenv.core import StepResult
from rollenv.envs.games.base import TextGame


def boxed(content: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern for a box with this in it."""
    return re.compile(rf"\\boxed\{{({content})\}}", flags)


class GemGame(GemEnv):
    """What GEM's games have in common."""

    #: A box with an action in it.
    grammar: ClassVar[re.Pattern[str]]
    #: The line that the state ends with.
    request: ClassVar[str] = "What is your move?"
    #: Said after the instructions where GEM says it.
    history: ClassVar[str] = ""

    turn: int
    max_turns: int

    def __init__(self, *, _extra: dict[str, Any] | None = None, **sizes: Any):
        """GEM's arguments, and those of ``_extra`` that the game knows. One size of None means that all are drawn."""
        game = next(cls for cls in type(self).__mro__ if not issubclass(cls, GemEnv))
        known = inspect.signature(game.__init__).parameters
        size_names = getattr(game, "size_names", ("dim_room", "num_boxes", "max_turns"))
        if any(sizes[name] is None for name in size_names):
            sizes |= dict.fromkeys(size_names)
        extra = {name: value for name, value in (_extra or {}).items() if name in known and name not in sizes}
        super().__init__(**sizes, **extra)

    def _find(self, action: str) -> re.Match[str] | None:
        """The last box with an action in it."""
        return (None, *self.grammar.finditer(action))[-1]

    def _begin(self) -> None:
        """GEM's constructors reset; here the first look at an episode does."""
        if not self._begun:
            self.reset()

    def sample_random_action(self) -> str:
        self._begin()
        return super().sample_random_action()

    def get_task_suffix(self) -> str:
        """The state as text."""
        self._begin()
        return self._suffix()

    def _suffix(self) -> str:
        return f"{super()._suffix()}\n{self.request}"  # type: ignore[misc]

    def _instructions(self) -> str:
        text: str = super()._instructions()  # type: ignore[misc]
        return f"{text}\n{self.history}" if self.history else text

    @property
    def turn_count(self) -> int:
        """Turns played."""
        return self.turn

    @turn_count.setter
    def turn_count(self, value: int) -> None:
        self.turn = value


class GemTextGame(GemGame, TextGame):
    """A game that has its actions from :class:`~rollenv.envs.games.base.TextGame`."""

    def _read(self, action: str) -> Any:
        found = self._find(action)
        return None if found is None else self._parse(found[1])

    def _malformed(self) -> StepResult:
        observation, reward, terminated, truncated, info = super()._malformed()
        return observation, reward, terminated, truncated or self.turn == self.max_turns, info


class GemGuessing(GemTextGame):
    """A game whose state is the history of guesses, which GEM leaves to the wrapper that keeps observations."""

    request = "What is your guess?"
    history = "Your guesses so far are listed below as the game goes on."

    def _suffix(self) -> str:
        return self.request

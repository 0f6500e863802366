"""The common base of GEM's games over rollenv's: constructors, parsing of actions, texts."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ClassVar

from rollenv.core.env import ResetResult, StepResult
from rollenv.envs.game.base import TextGame
from rollenv.plugins.gem.core import GemEnv
from rollenv.plugins.gem.utils import LanguageGameReward


def boxed(content: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern for a box with this content."""
    return re.compile(rf"\\boxed\{{({content})\}}", flags)


def rows_of(cells: list[Any], width: int) -> list[list[Any]]:
    """Return a board from its cells, row by row."""
    return [cells[i : i + width] for i in range(0, len(cells), width)]


def alias_attribute(
    name: str, shown: Callable[[Any], Any] = lambda it: it, taken: Callable[[Any], Any] = lambda it: it
) -> Any:
    """A readable and writable attribute with GEM's name and format, for one of rollenv's."""

    def get(env: GemGame) -> Any:
        env._begin()
        return shown(getattr(env, name))

    def put(env: GemGame, value: Any) -> None:
        env._resume()
        setattr(env, name, taken(value))

    return property(get, put)


class Computed:
    """An attribute that is computed on each read until it is set."""

    def __init__(self, work_out: Callable[[Any], Any]):
        self._work_out = work_out
        self.__doc__ = work_out.__doc__

    def __get__(self, env: Any, owner: type) -> Any:
        if env is None:
            return self
        env._begin()
        return self._work_out(env)


def _wrap_author_reset(reset: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an author's ``reset``, so that an episode starts even if it never calls ``super().reset``."""

    @functools.wraps(reset)
    def begun(self: GemGame, *args: Any, **kwargs: Any) -> Any:
        self._in_reset = True
        try:
            result = reset(self, *args, **kwargs)
        finally:
            self._in_reset = False
        self._resume()
        return result

    return begun


class GemGame(GemEnv):
    """The common base of GEM's games.

    GEM's constructors reset; here the first look at an episode does. Setting an attribute of the state continues
    from there, also after the end of an episode.
    """

    #: Pattern of a box with an action.
    grammar: ClassVar[re.Pattern[str]]
    #: Last line of the state.
    request: ClassVar[str] = "What is your move?"
    #: Text after the instructions where GEM has one.
    history: ClassVar[str] = ""

    turn: int
    max_turns: int

    #: True while an author's ``reset`` runs; and while an episode begins without its text.
    _in_reset = False
    _quiet = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "reset" in cls.__dict__:
            cls.reset = _wrap_author_reset(cls.reset)  # type: ignore[method-assign]

    def __init__(self, *, _extra: dict[str, Any] | None = None, **sizes: Any):
        """GEM's arguments, and those of ``_extra`` that the game knows. One size of None means that all are drawn."""
        game = next(cls for cls in type(self).__mro__ if not issubclass(cls, GemEnv))
        known = inspect.signature(game.__init__).parameters
        size_names = getattr(game, "size_names", ("dim_room", "num_boxes", "max_turns"))
        self._is_random = any(sizes[name] is None for name in size_names)
        if self._is_random:
            sizes |= dict.fromkeys(size_names)
        extra = {name: value for name, value in (_extra or {}).items() if name in known and name not in sizes}
        super().__init__(**sizes, **extra)

    def _find(self, action: str) -> re.Match[str] | None:
        """Return the last box with an action."""
        return (None, *self.grammar.finditer(action))[-1]

    def _begin(self) -> None:
        """Begin an episode unless one has begun; inside an author's ``reset``, with a game of ours to change."""
        if self._rollenv_begun:
            return
        if not self._in_reset:
            self.reset()
            return
        self._quiet = True
        try:
            GemEnv.reset(self)
        finally:
            self._quiet = False

    def _resume(self) -> None:
        """Ensure that an episode is running, before its state is set by hand."""
        self._begin()
        self._rollenv_over, self._last = False, None

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self._rollenv_begun = True  # the texts are asked for when the game is set up
        return super()._reset(options)

    def sample_random_action(self) -> str:
        self._begin()
        return super().sample_random_action()

    def get_task_suffix(self) -> str:
        """The state as text."""
        self._begin()
        return f"{super()._suffix()}\n{self.request}"  # type: ignore[misc]

    def _get_instructions(self) -> str:
        """The rules; where an author draws the actions, with one of them."""
        self._begin()
        lines = [super()._instructions(), self.history]  # type: ignore[misc]
        drawer = next(cls for cls in type(self).__mro__ if "sample_random_action" in vars(cls))
        if not drawer.__module__.startswith("rollenv."):
            lines.append(f"An action looks like {self.sample_random_action()}")
        return "\n".join(filter(None, lines))

    def _suffix(self) -> str:
        return "" if self._quiet else self.get_task_suffix()

    def _instructions(self) -> str:
        return "" if self._quiet else self._get_instructions()

    def _render_board(self, *_: Any, **__: Any) -> str:
        self._begin()
        return self.render()

    turn_count = alias_attribute("turn")


class GemTextGame(GemGame, TextGame):
    """A game with the actions of :class:`~rollenv.envs.game.base.TextGame`.

    Its own rewards are GEM's as they come; what a user changes in ``LanguageGameReward`` is put in their place.
    """

    #: Share of ``success_reward`` for the last move of a won game.
    success_share: ClassVar[float] = 0.0
    #: True to reward other valid moves with ``internal_step_reward``.
    pays_steps: ClassVar[bool] = True
    #: True to pay such a move, or an invalid one, at the turn limit too.
    pays_last_step: ClassVar[bool] = True

    def _read(self, action: str) -> Any:
        found = self._find(action)
        return None if found is None else self._parse(found[1])

    def _play(self, move: Any) -> tuple[str, float, bool | None]:
        steps = LanguageGameReward.internal_step_reward if self.pays_steps else 0.0
        invalid = LanguageGameReward.invalid_action_reward
        judged = (steps or invalid) and (self.pays_last_step or self.turn < self.max_turns)
        before = self.state_key() if judged else ""
        feedback, reward, won = super()._play(move)
        if won:
            reward += self.success_share * (LanguageGameReward.success_reward - 1)
        elif judged and not reward:
            reward = steps if self._is_valid(move, before) else invalid
        return feedback, reward, won

    def _is_valid(self, move: Any, before: str) -> bool:
        """Return whether GEM takes a move that earned nothing for a valid one; ``before`` is the state key
        before it."""
        return self.state_key() != before

    def _malformed(self) -> StepResult:
        observation, _, terminated, truncated, info = super()._malformed()
        reward = LanguageGameReward.format_error_reward
        return observation, reward, terminated, truncated or self.turn == self.max_turns, info


class GemGuessing(GemTextGame):
    """A game whose state is the history of guesses, which GEM leaves to the wrapper that keeps observations."""

    request = "What is your guess?"
    history = "Your guesses so far are listed below as the game goes on."

    def get_task_suffix(self) -> str:
        return self.request

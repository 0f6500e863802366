"""The base of grid games: action formats, turn and action limits, reward schemes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.core.parsing import ACTION_FORMATS, boxes
from rollenv.core.registry import ABILITIES, register


@dataclass(frozen=True, slots=True)
class Rewards:
    """The reward scheme of a grid game in one of the projects that use it."""

    success: float = 1.0
    step: float = 0.0
    """Reward of every move that is carried out."""
    progress: float = 0.0
    """Reward of every part of the goal reached (a box on its target); subtracted when it is undone."""
    partial: float = 0.0
    """Reward at the turn limit, multiplied by the share of the goal reached."""
    invalid: float = -0.1
    """Reward of a turn with an action that does not parse."""
    invalid_ends: bool = True
    """True if an action that does not parse ends the episode."""


class GridGame(Env):
    """A game whose actions are directions.

    Args:
        max_actions: moves before the episode is truncated; None for no limit.
        actions_per_turn: maximum number of moves in a turn, separated by ``||``; further ones are dropped.
        action_format: ``boxed`` (GEM), ``answer`` (RAGEN, ROLL) or ``bare`` (nothing but the direction, or its box).
        rewards: a name in ``reward_schemes``, or a :class:`Rewards` or its fields.
    """

    directions: tuple[str, ...]
    reward_schemes: dict[str, Rewards]

    def __init__(
        self,
        *,
        max_turns: int,
        max_actions: int | None,
        actions_per_turn: int,
        action_format: str,
        rewards: str | Rewards | Mapping[str, Any],
    ):
        if action_format not in ACTION_FORMATS:
            raise UsageError(f"action_format {action_format!r} is unknown; choose from {', '.join(ACTION_FORMATS)}")
        if isinstance(rewards, str):
            if rewards not in self.reward_schemes:
                raise UsageError(f"rewards {rewards!r} is unknown; choose from {', '.join(self.reward_schemes)}")
            rewards = self.reward_schemes[rewards]
        elif isinstance(rewards, Mapping):
            if unknown := sorted(set(rewards) - set(Rewards.__dataclass_fields__)):
                raise UsageError(f"rewards have no {unknown[0]!r}; they have {', '.join(Rewards.__dataclass_fields__)}")
            rewards = Rewards(**rewards)
        if max_turns < 1 or actions_per_turn < 1 or (max_actions is not None and max_actions < 1):
            raise UsageError("max_turns, max_actions and actions_per_turn are at least 1")
        self.max_turns, self.max_actions, self.actions_per_turn = max_turns, max_actions, actions_per_turn
        self.action_format, self.rewards = action_format, rewards
        self._extract, self._template = ACTION_FORMATS[action_format]
        self._index = {name: i for i, name in enumerate(self.directions)}
        self.turn = self.actions = 0

    # -- what a game writes ------------------------------------------------------------------------------------------

    def _new_game(self, options: dict[str, Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no _new_game()")

    def _move(self, direction: int) -> tuple[str, float]:
        """Carry out one move; return its effect as part of a sentence, and the parts of the goal won or lost."""
        raise NotImplementedError(f"{type(self).__name__} has no _move()")

    def _outcome(self) -> bool | None:
        """Return True (won), False (lost) or None (the game continues)."""
        raise NotImplementedError(f"{type(self).__name__} has no _outcome()")

    def _suffix(self) -> str:
        """Return the current position as text."""
        raise NotImplementedError(f"{type(self).__name__} has no _suffix()")

    def _instructions(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} has no _instructions()")

    def _share_done(self) -> float:
        return 0.0

    # -- the episode -------------------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self._new_game(options)
        self.turn = self.actions = 0
        return self._instructions(), {"suffix": self._suffix()}

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        moves, valid = self._parse(action)
        reward = 0.0 if valid else self.rewards.invalid
        if not valid and self.rewards.invalid_ends:
            return f"Turn {self.turn}: this is not a valid action.", reward, True, False, self._info(False, False)
        done: list[str] = []
        outcome = None
        for move in moves:
            what, progress = self._move(move)
            done.append(what)
            reward += self.rewards.step + progress * self.rewards.progress
            self.actions += 1
            outcome = self._outcome()
            if outcome is not None or self.actions == self.max_actions:
                break
        played = ", then ".join(done) if done else "this is not a valid action"
        if outcome is not None:
            reward += self.rewards.success * outcome
            return f"Turn {self.turn}: {played}.", reward, True, False, self._info(valid, outcome)
        truncated = self.turn >= self.max_turns or self.actions == self.max_actions
        if truncated:
            reward += self.rewards.partial * self._share_done()
            return f"Turn {self.turn}: {played}. That was the last turn.", reward, False, True, self._info(valid, False)
        return f"Turn {self.turn}: {played}.", reward, False, False, {"suffix": self._suffix(), "valid": valid}

    def _info(self, valid: bool, success: bool) -> dict[str, Any]:
        return {"suffix": self._suffix(), "valid": valid, "success": success}

    def _parse(self, action: str) -> tuple[list[int], bool]:
        """Return the moves of a turn, and whether all of it was parsed. The last valid box counts."""
        text = self._extract(action)
        read = ([], False) if text is None else self._moves(text)
        if read[1] or self.action_format == "answer":
            return read
        return next((earlier for earlier in map(self._moves, boxes(action)) if earlier[1]), read)

    def _moves(self, text: str) -> tuple[list[int], bool]:
        if self.actions_per_turn == 1:
            move = self._index.get(text.strip().lower())
            return ([], False) if move is None else ([move], True)
        parts = [self._index.get(part.strip().lower()) for part in text.split("||", self.actions_per_turn)]
        parts = parts[: self.actions_per_turn]
        return [p for p in parts if p is not None], None not in parts

    def format_action(self, *directions: str) -> str:
        """Write directions in the action format."""
        return self._template % " || ".join(directions)

    @property
    def move_limit(self) -> int:
        """The maximum number of moves in an episode."""
        moves = self.max_turns * self.actions_per_turn
        return moves if self.max_actions is None else min(moves, self.max_actions)

    def sample_random_action(self) -> str:
        return self._template % self.action_rng.choice(self.directions)

    def _how_to_answer(self) -> str:
        *others, last = self.directions
        text = f"Reply with {', '.join(others)} or {last}"
        if (example := self.format_action(self.directions[0])) != self.directions[0]:
            text += f", as in {example}"
        if self.actions_per_turn > 1:
            several = self.format_action(*self.directions[:2])
            text += f", or with up to {self.actions_per_turn} of them in a row, as in {several}"
        limit = f"{self.max_turns} turns" if self.max_actions is None else f"{self.max_actions} moves"
        return f"{text}. You have {limit}."

    def _get_state(self) -> dict[str, Any]:
        return {"turn": self.turn, "actions": self.actions}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.turn, self.actions = state["turn"], state["actions"]


SOKOBAN = "rollenv.envs.game.sokoban:Sokoban"
FROZEN_LAKE = "rollenv.envs.game.frozen_lake:FrozenLake"


def register_project(project: str, *, slippery: bool, max_turns: int, actions_per_turn: int) -> None:
    """Register Sokoban and FrozenLake with the settings of a project.

    Args:
        actions_per_turn: maximum number of moves in a turn; an episode has ten.
    """
    shared: dict[str, Any] = {
        "abilities": ABILITIES,
        "action_format": "answer",
        "rewards": project,
        "max_turns": max_turns,
        "actions_per_turn": actions_per_turn,
        "max_actions": 10,
    }
    levels: dict[str, list[Any]] = {
        "dim_room": [(6, 6), (6, 6), (7, 7), (8, 8)],
        "num_boxes": [1, 1, 1, 2],
        "min_moves": [1, 4, 4, 6],
        "max_actions": [10, 10, 15, 25],
        "max_turns": [max_turns] if actions_per_turn > 1 else [10, 10, 15, 25],
    }
    for name, room, number_of_boxes in (("Sokoban", (6, 6), 1), ("SokobanLarge", (8, 8), 2)):
        register(
            f"{project}:{name}-v0",
            SOKOBAN,
            levels=levels,
            dim_room=room,
            num_boxes=number_of_boxes,
            observation="dense",
            **shared,
        )
    register(
        f"{project}:FrozenLake-v0",
        FROZEN_LAKE,
        oracle_success=0.25 if slippery else 0.99,
        levels={"size": [3, 4, 5, 6], "max_actions": [8, 10, 14, 18], "max_turns": [8, 10, 14, 18]},
        is_slippery=slippery,
        **shared,
    )


def same_if_turned(rows: Sequence[Sequence[str]]) -> str:
    """Return a text that is equal for boards that differ only in how they are turned or mirrored.

    Args:
        rows: the cells of each row, one character each.
    """
    views = []
    for _ in range(4):
        rows = list(zip(*rows[::-1], strict=True))  # a quarter turn
        views += ["\n".join(map("".join, rows)), "\n".join("".join(row[::-1]) for row in rows)]
    return min(views)

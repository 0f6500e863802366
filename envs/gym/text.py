"""Gymnasium's toy-text and classic-control environments as text.

The games and rewards are Gymnasium's own. The observation describes the state in sentences. An action is a word in a
box. The dynamics draw from the environment's private stream.
"""

from __future__ import annotations

import copy
import functools
import importlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.core.parsing import last_boxed


class GymText(Env):
    r"""A Gymnasium environment with a few actions, played as text.

    An answer without an action in a box passes the turn: nothing moves, and the reward is :attr:`pass_reward`.

    Args:
        max_turns: turns before the episode is truncated; by default Gymnasium's limit.
    """

    #: ``"module:Class"`` of Gymnasium's environment.
    game_class: str
    #: The words for Gymnasium's actions 0, 1, 2, ...
    actions: tuple[str, ...]
    #: Attributes of the game with its state.
    fields: tuple[str, ...]
    default_turns: int
    #: What a passed turn pays: no more than the least that a turn costs, so that it never pays to do nothing.
    pass_reward = 0.0

    _changed_in_place = ()

    def __init__(self, max_turns: int | None = None, **settings: Any):
        self.max_turns = self.default_turns if max_turns is None else max_turns
        if self.max_turns < 1:
            raise UsageError(f"max_turns must be at least 1, got {max_turns}")
        module, _, name = self.game_class.partition(":")
        try:
            self.game: Any = getattr(importlib.import_module(module), name)(**settings)
        except (TypeError, ValueError, KeyError) as error:
            raise UsageError(f"Gymnasium's {name} cannot be made with {settings}: {error}") from error
        self.settings = settings
        self.turn = 0
        self._index = {word: i for i, word in enumerate(self.actions)}

    # -- what a game writes ------------------------------------------------------------------------------------------

    def _rules(self) -> str:
        """Return the task's text, without the actions."""
        raise NotImplementedError(f"{type(self).__name__} has no _rules()")

    def _describe(self) -> str:
        """Return the player's view."""
        raise NotImplementedError(f"{type(self).__name__} has no _describe()")

    def _success(self, reward: float, terminated: bool) -> bool:
        """Return whether the episode that has just ended was a success."""
        return terminated

    def _policy(self) -> int:
        """Return the index of an expert's next action."""
        raise NotImplementedError(f"{type(self).__name__} has no _policy()")

    def _game_action(self, index: int) -> Any:
        return index

    def _moved(self) -> None:
        """Update after every turn, even if the action was invalid."""

    # -- the episode -------------------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.game.np_random = self.np_random
        self.game.reset()
        self.turn = 0
        *others, last = self.actions
        words = f"{', '.join(others)} or {last}, as in \\boxed{{{self.actions[0]}}}"
        return f"{self._rules()}\nReply with {words}. You have {self.max_turns} turns.\n\n{self._describe()}", {}

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        index = self._index.get((last_boxed(action) or "").lower())
        reward, terminated, feedback = self.pass_reward, False, "this is not one of the actions, so you did nothing"
        if index is not None:
            _, reward, terminated, *_ = self.game.step(self._game_action(index))
            feedback = f"you chose {self.actions[index]}"
        self._moved()
        reward, terminated = float(reward), bool(terminated)
        truncated = not terminated and self.turn >= self.max_turns
        info: dict[str, Any] = {"valid": index is not None}
        if terminated or truncated:
            info["success"] = self._success(reward, terminated)
        return f"Turn {self.turn}: {feedback}. {self._describe()}", reward, terminated, truncated, info

    def render(self) -> str:
        return json.dumps(self._fields())

    # -- abilities ---------------------------------------------------------------------------------------------------

    def sample_random_action(self) -> str:
        return f"\\boxed{{{self.action_rng.choice(self.actions)}}}"

    def oracle_action(self) -> str:
        return f"\\boxed{{{self.actions[self._policy()]}}}"

    def state_key(self) -> str:
        return self.render()

    def _get_state(self) -> dict[str, Any]:
        return {"turn": self.turn, **self._fields()}

    def _fields(self) -> dict[str, Any]:
        # some fields exist only in later versions of Gymnasium
        return {name: _plain(getattr(self.game, name, None)) for name in self.fields}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.turn = state["turn"]
        self.game.np_random = self.np_random
        for name in self.fields:
            setattr(self.game, name, _restored(name, state[name]))

    def _rollenv_twin(self) -> Env:
        twin = super()._rollenv_twin()
        assert isinstance(twin, GymText)
        # tables and settings never change
        twin.game = copy.copy(self.game)
        twin._set_state(self._get_state())
        return twin


def _plain(value: Any) -> Any:
    """Convert a value to JSON data; floats are kept exactly."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(v) for v in value]
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _restored(name: str, value: Any) -> Any:
    if name == "state":
        return np.array(value, dtype=np.float64)
    return list(value) if isinstance(value, list) else value


def table_policy(env: GymText, state: int) -> int:
    """Return the best action in a state, by value iteration over the transition table ``P``."""
    return _solved(type(env), json.dumps(env.settings, sort_keys=True))[state]  # type: ignore[arg-type]


@functools.lru_cache(maxsize=64)
def _solved(kind: Callable[..., GymText], settings: str) -> tuple[int, ...]:
    return value_iteration(kind(**json.loads(settings)).game.P)


def value_iteration(table: dict[int, dict[int, list[tuple[float, int, float, bool]]]]) -> tuple[int, ...]:
    """Compute the optimal policy at a discount of 0.999.

    Args:
        table: ``table[state][action]`` lists (probability, next state, reward, whether the episode ends).
    """
    states, actions = len(table), len(table[0])
    reward, move = np.zeros((states, actions)), np.zeros((states, actions, states))
    for s in range(states):
        for a in range(actions):
            for probability, after, paid, ends in table[s][a]:
                reward[s, a] += probability * paid
                move[s, a, after] += 0.0 if ends else 0.999 * probability
    values = np.zeros(states)
    while True:
        q = reward + move @ values
        if np.abs(q.max(1) - values).max() < 1e-9:
            return tuple(int(a) for a in q.argmax(1))
        values = q.max(1)

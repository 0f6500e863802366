r"""TextArena's games as environments: one seat is the agent's, the others belong to an opponent.

https://github.com/LeonGuertler/TextArena; the package is needed only when an environment is made. The games draw from
the process-wide ``random``; here each has its own state, which is swapped in while the game runs.

Likely moves are those that a game's text shows in brackets, then common ones.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from rollenv.core import Env, ResetResult, StepResult, UsageError
from rollenv.envs.global_random import PrivateGlobals
from rollenv.needs import extra
from rollenv.parsing import well_formed

_BRACKETS = re.compile(r"\[[^\[\]\n]{1,40}\]")
_NOT_A_MOVE = re.compile(r"\[(GAME|Player.*|Moderator|.*<.*)\]")

_VARIABLE = re.compile(r"\d+|(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_WORDS = (
    *("[up]", "[down]", "[left]", "[right]", "[w]", "[a]", "[s]", "[d]", "[hit]", "[stand]", "[call]", "[fold]"),
    *("[check]", "[bet]", "[raise]", "[roll]", "[hold]", "[accept]", "[deny]", "[pass]", "[draw]", "[stop]"),
    *("[continue]", "[cooperate]", "[defect]", "[split]", "[rock]", "[paper]", "[scissors]", "[heads]", "[tails]"),
    *("[believe]", "[skip]", "[done]", "[quit]"),
)


def candidates(text: str, draws: random.Random) -> Iterator[str]:
    """Yield moves to try, without end.

    Moves that the text shows in brackets come first, then variations with other numbers and letters.
    """
    shown = sorted({m for m in _BRACKETS.findall(text) if not _NOT_A_MOVE.fullmatch(m)})
    draws.shuffle(shown)
    yield from shown[:15]
    templates = [m for m in shown if _VARIABLE.search(m)]
    while True:
        kind = draws.randrange(8)
        if kind < 4 and templates:
            high = draws.choice((3, 5, 8, 12))
            template = draws.choice(templates)
            yield _VARIABLE.sub(lambda m, high=high: _another(m[0], high, draws), template)  # type: ignore[misc]
        elif kind < 5:
            yield f"[{draws.randrange(21)}]"
        elif kind < 6:
            yield draws.choice(_WORDS)
        elif kind < 7:
            yield f"[{draws.randrange(8)} {draws.randrange(8)}]"
        else:
            yield f"[{draws.choice('ABCDEFGH')}{draws.randrange(10)}]"


def _another(part: str, high: int, draws: random.Random) -> str:
    """Another number, or another letter of the same case."""
    if part.isdecimal():
        return str(draws.randrange(high))
    return chr(ord("A" if part.isupper() else "a") + draws.randrange(8))


Player = Callable[[str], str]

#: The most characters of an action, and of an opponent's, that reach the game.
_CLIP = 2000
#: The most moves of the others between two turns of the agent.
_MAX_OTHERS = 500
#: The most moves that are tried, and the characters of the rules and of the latest text that they are taken from.
_TRIES, _LOOK = 150, 4000


class ReplayState(Env):
    """The JSON state of an environment that cannot export its own: its history, which is replayed to restore it.

    A subclass keeps :attr:`episode_seed` and :attr:`actions`, and starts an episode from a seed in :meth:`_start`.
    """

    episode_seed = 0
    actions: list[str]

    def _start(self, seed: int) -> None:
        """Start the episode of this seed."""
        raise NotImplementedError(f"{type(self).__name__} has no _start()")

    def _play(self, action: str) -> Any:
        """Carry out one action of the agent."""
        raise NotImplementedError(f"{type(self).__name__} has no _play()")

    def _get_state(self) -> dict[str, Any]:
        return {"episode_seed": self.episode_seed, "actions": list(self.actions)}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.episode_seed, self.actions = state["episode_seed"], list(state["actions"])
        self._start(self.episode_seed)
        for action in self.actions:
            self._play(action)


class TextArena(ReplayState):
    """One seat of a TextArena game.

    An action is passed on as it is, cut to 2,000 characters; one without ``[`` and ``]`` is wrapped in them, as
    TextArena's own wrapper does. The reward comes with the end of the game, and is the game's; ``success`` is a reward
    of 1 when alone, and any positive reward against others. TextArena lets a first mistake pass and asks again
    (``info["valid"]`` is False), and ends the game at the second. A game that breaks over an action ends too, with the
    reward -1 for the seat that took it, and ``info["error"]`` says what happened.

    Args:
        opponent: ``random``, which tries moves on a copy until one is legal, or a function from an observation (what
            is new since the seat's last turn) to an action. States are restored by playing again, so that the function
            must answer alike.
        max_turns: the episode is truncated after this many turns of the agent, with no reward. TextArena's own limits
            end the game.
    """

    _changed_in_place = ("_game", "_globals", "_draws", "_shown_to", "actions")

    def __init__(
        self,
        game: str,
        num_players: int = 1,
        *,
        seat: int = 0,
        opponent: str | Player = "random",
        max_turns: int = 1000,
        **settings: Any,
    ):
        if not 0 <= seat < num_players:
            raise UsageError(f"seat must be in 0 .. {num_players - 1}, got {seat}")
        if not callable(opponent) and opponent != "random":
            raise UsageError(f"opponent must be random or a function, got {opponent!r}")
        if max_turns < 1:
            raise UsageError(f"max_turns must be at least 1, got {max_turns}")
        self.game_id, self.num_players, self.seat = game, num_players, seat
        self.opponent, self.max_turns, self.settings = opponent, max_turns, settings
        self.actions = []
        self.error: str | None = None
        self._broken_by = -1
        self._globals = PrivateGlobals(0)
        self._draws = random.Random(0)
        self._shown_to: dict[int, str] = {}
        with self._globals.swapped_in(silent=True):
            self._game: Any = self._make()

    def _make(self) -> Any:
        with extra("envs", "ta:*"):
            import textarena  # type: ignore[import-not-found,import-untyped,unused-ignore]
        try:
            return textarena.make(f"{self.game_id}-raw", **self.settings)
        except (TypeError, ValueError, AssertionError) as error:
            raise UsageError(f"ta:{self.game_id} cannot be made with {self.settings}: {error}") from error

    # -- the episode -------------------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.actions = []
        self.episode_seed = self.randint(2**31)
        self._start(self.episode_seed)
        return self._news(), {}

    def _start(self, seed: int) -> None:
        self.error = None
        self._globals, self._draws = PrivateGlobals(seed), random.Random(seed)
        self._shown_to = {}
        with self._globals.swapped_in(silent=True):
            # a new game each time, as some keep things from the episode before
            self._game = self._make()
            self._game.reset(num_players=self.num_players, seed=seed)
            self._play_others()

    def _step(self, action: str) -> StepResult:
        # halves of surrogate pairs would be other text after JSON
        self.actions.append(well_formed(action[:_CLIP]))
        valid = self._play(self.actions[-1])
        done = self.error is not None or self._state.done
        truncated = not done and len(self.actions) >= self.max_turns
        reward = self._reward() if done else 0.0
        info: dict[str, Any] = {"valid": valid}
        if self.error is not None:
            info["error"] = self.error
        if done or truncated:
            info["success"] = reward >= 1.0 if self.num_players == 1 else reward > 0
        return self._news(), reward, done, truncated, info

    def _play(self, action: str) -> bool:
        """Carry out an action and what the others do until the next turn; whether the game found it valid."""
        with self._globals.swapped_in(silent=True):
            if not self._act(self.seat, action):
                return False
            valid = not _was_invalid(self._state, self.seat)
            self._play_others()
            return valid

    def _act(self, seat: int, action: str) -> bool:
        """Return whether the game survived the action."""
        if "[" not in action or "]" not in action:
            action = f"[{action}]"
        try:
            self._game.step(action)
        except Exception as error:  # games are not written for every text
            self.error = f"the game broke over an action of seat {seat}: {type(error).__name__}: {error}"[:300]
            self._broken_by = seat
        return self.error is None

    def _play_others(self) -> None:
        for _ in range(_MAX_OTHERS):
            if self.error is not None or self._state.done or self._state.current_player_id == self.seat:
                return
            seat = self._state.current_player_id
            news = self._take_messages(seat)
            action = self.opponent(news) if callable(self.opponent) else self._legal(self._draws) or "[pass]"
            if not self._act(seat, action[:_CLIP]):
                return
        self.error, self._broken_by = "the other seats never pass the turn on", -1

    def _reward(self) -> float:
        if self.error is not None:
            return -1.0 if self._broken_by == self.seat else 0.0
        reward = (self._state.rewards or {}).get(self.seat, 0.0)
        if isinstance(reward, int | float):
            return float(reward)
        # Countdown and others, ended by an invalid move, put the reward where the reason belongs and the reason here
        swapped = str((self._state.game_info or {}).get(self.seat, {}).get("reason", "")).rpartition(": ")[2]
        try:
            return float(swapped)
        except ValueError:
            return -1.0

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self._take_messages(self.seat)

    # -- text --------------------------------------------------------------------------------------------------------

    @property
    def _state(self) -> Any:
        return self._game.state

    def _take_messages(self, seat: int) -> str:
        """Return the messages of a seat since its last turn."""
        messages = self._state.observations.get(seat, [])
        self._state.observations[seat] = []
        roles = self._state.role_mapping
        news = "\n".join(f"[{roles.get(sender, f'Player {sender}')}] {text}" for sender, text, _ in messages)
        self._shown_to[seat] = f"{self._shown_to.get(seat, '')}\n{news}".strip()
        return news

    def _news(self) -> str:
        news = self._take_messages(self.seat)
        return news if self.error is None else f"{news}\n{self.error}".strip()

    def render(self) -> str:
        return self._shown_to.get(self.seat, "")

    # -- abilities ---------------------------------------------------------------------------------------------------

    def sample_random_action(self) -> str:
        """A legal move, found by trying likely ones on a copy of the game."""
        return self._legal(self.action_rng) or "[pass]"

    def _legal(self, draws: random.Random) -> str | None:
        """A legal move of the seat whose turn it is, if a few tries find one."""
        seat = self._state.current_player_id
        shown = self._shown_to.get(seat, "")
        moves = candidates(shown[:_LOOK] + shown[_LOOK:][-_LOOK:], draws)
        with copy.deepcopy(self._globals).swapped_in(silent=True):
            for _, move in zip(range(_TRIES), moves, strict=False):
                # A copy without the history, which is most of what a game holds.
                state = self._state
                no_news: dict[Any, list[Any]] = {player: [] for player in state.observations}
                trial = copy.deepcopy(self._game, {id(state.logs): [], id(state.observations): no_news})
                try:
                    trial.step(move)
                except Exception:  # then it is not a move
                    continue
                if not _was_invalid(trial.state, seat):
                    return move
        return None


def _was_invalid(state: Any, seat: int) -> bool:
    """Return whether the game turned down what the seat just did: it asks again, or has ended the game over it."""
    if (state.game_info or {}).get(seat, {}).get("invalid_move"):
        return True
    asked_again = not state.done and state.current_player_id == seat
    return asked_again and getattr(state, "error_count", 0) > 0

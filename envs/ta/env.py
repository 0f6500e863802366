r"""TextArena's games as environments: one seat is the agent's, the others belong to an opponent.

https://github.com/LeonGuertler/TextArena; the package is imported only when an environment is made. The games draw from
the process-wide ``random``; each environment swaps in a state of its own while its game runs.
"""

from __future__ import annotations

import copy
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.core.parsing import well_formed
from rollenv.envs.global_random import PrivateGlobals
from rollenv.envs.ta.moves import forms_of
from rollenv.envs.ta.rewards import is_refused, is_solved, paid

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
    """Yield moves to try, endlessly: those in brackets in the text, then variations of their numbers and letters."""
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
    """Return another number, or another letter of the same case."""
    if part.isdecimal():
        return str(draws.randrange(high))
    return chr(ord("A" if part.isupper() else "a") + draws.randrange(8))


Player = Callable[[str], str]

#: Maximum length of an action that is passed to the game.
LONGEST = 2000
#: Maximum number of moves of the others between two turns of the agent.
_MAX_OTHERS = 500
#: Maximum number of moves that are tried, and of characters of the rules and latest text that they are taken from.
_TRIES, _LOOK = 150, 4000


class ReplayState(Env):
    """An environment whose state is its history: it is restored by a replay.

    A subclass maintains :attr:`episode_seed` and :attr:`actions`, and starts an episode from a seed in :meth:`_start`.
    """

    episode_seed = 0
    actions: list[str]

    def _start(self, seed: int) -> None:
        """Start the episode of a seed."""
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

    An action is passed on unchanged, cut to 2,000 characters; one without ``[`` and ``]`` is wrapped in them, like in
    TextArena's own wrapper. The reward is the game's, at its end; that of a few games is mended
    (:mod:`rollenv.envs.ta.rewards`). ``success`` is a reward of 1 in games for one player, and any positive reward in
    others. TextArena allows a retry after a first invalid move (``info["valid"]`` is False)
    and ends the game at the second. A game that raises an exception ends too, with the reward -1 for the seat that
    acted, and the exception in ``info["error"]``.

    Args:
        opponent: ``random``, which tries moves on a copy until one is legal, or a function from an observation (the
            text since the seat's last turn) to an action. It must be deterministic, since states are restored by a
            replay.
        max_turns: turns of the agent before the episode is truncated, without a reward. TextArena has limits of its
            own, which end the game.
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
            # a new game each time, because some keep state from the previous episode
            self._game = self._make()
            self._game.reset(num_players=self.num_players, seed=seed)
            self._play_others()

    def _step(self, action: str) -> StepResult:
        # lone surrogates would not survive JSON
        self.actions.append(well_formed(action[:LONGEST]))
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
        """Carry out an action and the others' moves until the next turn; return whether the action was valid."""
        with self._globals.swapped_in(silent=True):
            if not self._act(self.seat, action):
                return False
            valid = not _was_invalid(self._state, self.seat)
            self._play_others()
            return valid

    def _act(self, seat: int, action: str) -> bool:
        """Carry out an action; return False if the game raised an exception."""
        if "[" not in action or "]" not in action:
            action = f"[{action}]"
        try:
            self._game.step("[]" if is_refused(self._game, action) else action)
        except Exception as error:  # some texts make games raise anything
            if is_solved(self._game):
                self._state.set_outcome(reward=1.0, reason="The game is solved.")
                return True
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
            if not self._act(seat, action[:LONGEST]):
                return
        self.error, self._broken_by = "the other seats never pass the turn on", -1

    def _reward(self) -> float:
        if self.error is not None:
            return -1.0 if self._broken_by == self.seat else 0.0
        reward = (self._state.rewards or {}).get(self.seat, 0.0)
        about = (self._state.game_info or {}).get(self.seat, {})
        if not isinstance(reward, int | float):
            # Countdown and others swap reward and reason when an invalid move ends the game
            try:
                reward = float(str(about.get("reason", "")).rpartition(": ")[2])
            except ValueError:
                return -1.0
        return paid(self._game, float(reward), bool(about.get("invalid_move")))

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
        """Return a legal move, found by trying likely ones on a copy of the game."""
        return self._legal(self.action_rng) or "[pass]"

    def _legal(self, draws: random.Random) -> str | None:
        """Return a legal move of the current seat, if a few tries find one."""
        seat = self._state.current_player_id
        shown = self._shown_to.get(seat, "")
        moves: Iterable[str] | None = forms_of(self.game_id, self._game, draws)
        if moves is None:
            moves = itertools.islice(candidates(shown[:_LOOK] + shown[_LOOK:][-_LOOK:], draws), _TRIES)
        with copy.deepcopy(self._globals).swapped_in(silent=True):
            for move in moves:
                # Copy without the history, the bulk of the state.
                state = self._state
                no_news: dict[Any, list[Any]] = {player: [] for player in state.observations}
                trial = copy.deepcopy(self._game, {id(state.logs): [], id(state.observations): no_news})
                try:
                    trial.step(move)
                except Exception:  # not a move
                    continue
                if not _was_invalid(trial.state, seat):
                    return move
        return None


def _was_invalid(state: Any, seat: int) -> bool:
    """Return whether the game rejected the seat's last action: it allows a retry, or has ended."""
    if (state.game_info or {}).get(seat, {}).get("invalid_move"):
        return True
    asked_again = not state.done and state.current_player_id == seat
    return asked_again and getattr(state, "error_count", 0) > 0

"""Nim for two to four players."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.parsing import last_boxed
from rollenv.envs import pictures
from rollenv.envs.multi.env import MultiStep
from rollenv.envs.multi.seat import Game, Player, Seat

_MOVE = re.compile(r"take\s+(\d{1,4})\s+from\s+(?:pile\s+)?(\d{1,4})", re.ASCII)

#: Maximum number of objects with three or four players, whose expert searches the game tree.
_MAX_SEARCH = 40


class Nim(Game):
    r"""Take objects from piles in turn; the player who takes the last one wins.

    An action is ``\boxed{take 2 from pile 1}``. One that does not parse or is illegal forfeits: the agent is out, and
    the last remaining agent wins. Rewards: 1 for the winner, 0 for the others, -0.1 for a forfeit.

    Args:
        max_take: maximum number of objects taken in a turn; None for a whole pile.
        first_wins: with two players, draw only starts that the first player can win (True) or cannot (False).
    """

    def __init__(
        self,
        players: int = 2,
        num_piles: int = 3,
        max_pile: int = 7,
        max_take: int | None = 3,
        first_wins: bool | None = None,
    ):
        if not 2 <= players <= 4 or num_piles < 1 or max_pile < 2 or (max_take is not None and max_take < 1):
            raise UsageError(
                "players must be 2 to 4, num_piles and max_take must be at least 1, max_pile must be at least 2; "
                f"got players={players}, num_piles={num_piles}, max_pile={max_pile}, max_take={max_take}"
            )
        if first_wins is False and num_piles == 1 and (max_take is None or max_take >= max_pile):
            raise UsageError("one pile that can be taken whole is always won by the first player")
        super().__init__([f"player {i + 1}" for i in range(players)])
        self.num_piles, self.max_pile, self.max_take, self.first_wins = num_piles, max_pile, max_take, first_wins
        self.piles: list[int] = []
        self.log: list[str] = []

    # -- the game ----------------------------------------------------------------------------------------------------

    def _new_game(self, options: dict[str, Any]) -> None:
        self.log = []
        while True:
            self.piles = [1 + self.randint(self.max_pile) for _ in range(self.num_piles)]
            if self.first_wins is None or bool(self._nim_sum(self.piles)) == self.first_wins:
                break

    def _nim_sum(self, piles: Sequence[int]) -> int:
        """Return the nim-sum: 0 if the player to move loses against perfect play (two players)."""
        grundy = piles if self.max_take is None else [pile % (self.max_take + 1) for pile in piles]
        return functools.reduce(operator.xor, grundy, 0)

    def _process_actions(self, actions: dict[str, str]) -> MultiStep:
        ((agent, action),) = actions.items()
        move = self._parse(action)
        if move is None:
            self.log.append(f"{agent} made an illegal move and is out")
            staying = [a for a in self.agents if a != agent]
            winner = staying[0] if len(staying) == 1 else None
            return self._outcome({agent: -0.1}, winner, [*staying, agent] if winner else [agent], {agent: False})
        amount, pile = move
        self.piles[pile - 1] -= amount
        self.log.append(f"{agent} took {amount} from pile {pile}")
        if any(self.piles):
            return self._outcome({}, None, [], {agent: True})
        return self._outcome({}, agent, self.agents, {agent: True})

    def _outcome(
        self, rewards: dict[str, float], winner: str | None, leaving: list[str], valid: dict[str, bool]
    ) -> MultiStep:
        if winner is not None:
            rewards = rewards | {winner: 1.0}
            self.log.append(f"{winner} has won")
        infos: dict[str, dict[str, Any]] = {agent: {"valid": ok} for agent, ok in valid.items()}
        for agent in leaving:
            infos[agent] = infos.get(agent, {}) | {"success": agent == winner}
        observations = {agent: self.observe(agent) for agent in self.agents}
        return observations, rewards, dict.fromkeys(leaving, True), {}, infos

    def _parse(self, action: str) -> tuple[int, int] | None:
        match = _MOVE.fullmatch((last_boxed(action) or "").lower())
        if match is None:
            return None
        amount, pile = int(match[1]), int(match[2])
        return (amount, pile) if (amount, pile) in self._legal() else None

    def _legal(self) -> list[tuple[int, int]]:
        """List the legal (amount, pile), piles counted from 1."""
        return legal_moves(tuple(self.piles), self.max_take)

    # -- text --------------------------------------------------------------------------------------------------------

    def observe(self, agent: str) -> str:
        limit = f"at least 1 and at most {self.max_take}" if self.max_take else "at least 1, as many as you like"
        others = ", ".join(a for a in self.possible_agents if a != agent)
        history = "".join(f"{line}.\n" for line in self.log)
        return (
            f"This is Nim. You are {agent}, playing against {others}; {self.possible_agents[0]} began. In turn, each "
            f"player takes objects from one pile, {limit}. Whoever takes the last object wins. An illegal "
            "move puts you out of the game. Answer with a move, as in \\boxed{take 1 from pile 1}.\n\n"
            f"{history}{self._board()}"
        )

    def _board(self) -> str:
        return "\n".join(f"pile {i + 1}: {pile}" for i, pile in enumerate(self.piles))

    def render(self) -> str:
        return f"{self._board()}\nstill playing: {', '.join(self.agents)}\nnext: {self.agent_selector.selected}"

    def state_key(self) -> str:
        return self.render()

    # -- players -----------------------------------------------------------------------------------------------------

    def random_action(self, agent: str, randint: Callable[[int], int]) -> str:
        legal = self._legal()
        return _action_text(*legal[randint(len(legal))])

    def expert_action(self, agent: str) -> str:
        """Return an optimal action for two players (a nim-sum of zero); for more, the best response to random play."""
        moves = self._legal()
        if len(self.agents) > 2 and sum(self.piles) <= _MAX_SEARCH:
            seats = len(self.agents)
            return _action_text(*max(moves, key=lambda m: win_chance(self._after(m), seats - 1, seats, self.max_take)))
        # in a lost position, the smallest move leaves the most chances for a mistake
        return _action_text(*min(moves, key=lambda move: (self._nim_sum(self._after(move)) != 0, move[0])))

    def _after(self, move: tuple[int, int]) -> tuple[int, ...]:
        amount, pile = move
        return tuple(sorted(p - amount if i == pile - 1 else p for i, p in enumerate(self.piles)))

    def _get_state(self) -> dict[str, Any]:
        return super()._get_state() | {"piles": list(self.piles), "log": list(self.log)}

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self.piles, self.log = list(state["piles"]), list(state["log"])


def legal_moves(piles: tuple[int, ...], max_take: int | None) -> list[tuple[int, int]]:
    """List the legal moves: pairs of (amount, pile), piles counted from 1."""
    return [(amount, i + 1) for i, pile in enumerate(piles) for amount in range(1, min(pile, max_take or pile) + 1)]


@functools.lru_cache(maxsize=100_000)
def win_chance(piles: tuple[int, ...], away: int, players: int, max_take: int | None) -> float:
    """Compute the probability that a player takes the last object if it plays optimally and all others at random.

    Args:
        piles: objects in each pile, in ascending order.
    """
    if not any(piles):
        return float(away == players - 1)
    chances = []
    for amount, pile in legal_moves(piles, max_take):
        after = tuple(sorted(p - amount if i == pile - 1 else p for i, p in enumerate(piles)))
        chances.append(win_chance(after, (away - 1) % players, players, max_take))
    return max(chances) if away == 0 else sum(chances) / len(chances)


def _action_text(amount: int, pile: int) -> str:
    return f"\\boxed{{take {amount} from pile {pile}}}"


class NimSeat(Seat):
    """One seat of :class:`Nim`; with two players, it can win every start."""

    picture = staticmethod(pictures.nim)

    def __init__(
        self,
        players: int = 2,
        num_piles: int = 3,
        max_pile: int = 7,
        max_take: int | None = 3,
        *,
        seat: int = 0,
        opponent: str | Player = "random",
    ):
        first_wins = seat == 0 if players == 2 else None
        super().__init__(Nim(players, num_piles, max_pile, max_take, first_wins), seat, opponent)

"""A round robin of agents in a game of two players, with ratings by Bradley and Terry's model.

Every two agents play each deal twice, once from either seat. A deal is a task, and its members are the pairs of agents
in the order of their seats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollenv.agents.base import Agent, EnvHandle
from rollenv.agents.seats import Seats, SeatsSession
from rollenv.core.errors import UsageError
from rollenv.rollout.evaluate import Interval
from rollenv.rollout.seats import forfeiter, score_of
from rollenv.rollout.types import Trajectory

Floats = NDArray[np.float64]

#: The mean rating, and rating points for a factor of e in strength: 400 for a factor of 10.
_MEAN, _SCALE = 1000.0, 400 / math.log(10)

#: Resamplings for the intervals.
_SAMPLES = 1000


class RoundRobin(Seats):
    """Plays the games of all pairs of agents: the number of an episode in its group is that of the pair.

    Args:
        agents: two or more, by name.
        seconds: deadline of an answer.
    """

    def __init__(self, agents: Mapping[str, Agent], seconds: float = 600.0):
        super().__init__([*agents.values()], [*agents], equal=True)
        self.pairs = pairs_of(len(agents))
        """The numbers of the agents in seats 0 and 1."""
        self._tables = [
            Seats([self.agents[i] for i in pair], [self.names[i] for i in pair], seconds=seconds, equal=True)
            for pair in self.pairs
        ]

    def start(self, env: EnvHandle, seed: int) -> Any:
        raise UsageError(f"{env.env_id} is played alone, without an opponent: use `rollenv eval`")

    def deal(self, env: EnvHandle, seed: int, players: int, group: int, roles: Sequence[str] = ()) -> SeatsSession:
        if players != 2:
            raise UsageError(f"{env.env_id} has {players} players; an arena is for games of two")
        return self._tables[seed % 1_000_003].deal(env, seed, players, group, roles)


def pairs_of(agents: int) -> list[tuple[int, int]]:
    """Return all pairs of different agents' numbers, in either order."""
    return [*itertools.permutations(range(agents), 2)]


@dataclass(slots=True)
class Standing:
    """The results of an agent. Games that failed are in no other number."""

    name: str
    rating: Interval | None = None
    """Elo with its 95 % interval; None without a game that was played to its end."""
    games: int = 0
    wins: int = 0
    draws: int = 0
    losses: int = 0
    forfeits: int = 0
    """Losses by a move against the rules, or by a failure: the agent raised, hung or filled a context."""
    failed: int = 0
    """Games that failed by no player's fault."""
    returns: float = 0.0
    """Sum of the returns."""


@dataclass(slots=True)
class Arena:
    """The results of a round robin."""

    standings: list[Standing]
    """The best first."""
    scores: list[list[float | None]]
    """The mean score of each agent (row) against each (column), in the order of ``standings``: 1 for a win, 0.5 for a
    draw; None without a game."""
    first: float | None
    """The mean score of those who sit in seat 0."""

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain data."""
        return asdict(self) | {"tables": self.tables()}

    def tables(self) -> list[dict[str, Any]]:
        """Return the standings and the scores of pairs as tables of text, with a title and a head."""
        head = ["agent", "Elo (95 %)", "games", "won", "drawn", "lost", "of these forfeited", "failed", "mean return"]
        rows = []
        for s in self.standings:
            elo = "{:.0f} ({:.0f} to {:.0f})".format(*s.rating) if s.rating else "none"
            numbers = (s.games, s.wins, s.draws, s.losses, s.forfeits, s.failed)
            rows.append([s.name, elo, *map(str, numbers), f"{s.returns / s.games:.3f}" if s.games else ""])
        names = [s.name for s in self.standings]
        scores = [
            [name, *("" if score is None else f"{100 * score:.0f} %" for score in row)]
            for name, row in zip(names, self.scores, strict=True)
        ]
        moves = "" if self.first is None else f"; who sits in seat 0 scores {100 * self.first:.0f} %"
        return [
            {"title": "Ratings; games that failed are not counted", "rows": [head, *rows]},
            {"title": f"Score of the agent at the left, a draw counts half{moves}", "rows": [["", *names], *scores]},
        ]


def results(names: Sequence[str], played: Sequence[Trajectory]) -> Arena:
    """Count the games of a round robin, and rate the agents.

    Args:
        names: the agents.
        played: games, whose members are numbered as :func:`pairs_of` lists the pairs.
    """
    n, pairs = len(names), pairs_of(len(names))
    standings = [Standing(name) for name in names]
    wins, draws = np.zeros((n, n)), np.zeros((n, n))
    first: list[float] = []
    for game in played:
        pair = pairs[game.member]
        if not game.complete:
            for agent in pair:
                standings[agent].failed += 1
            continue
        returns = [math.fsum(turn.rewards[seat] for turn in game.turns) for seat in (0, 1)]
        first.append(score_of(game, 0))
        drawn, winner = first[-1] == 0.5, int(first[-1] == 0)
        if drawn:
            draws[pair] += 1
            draws[pair[::-1]] += 1
        else:
            wins[pair[winner], pair[1 - winner]] += 1
        for seat, agent in enumerate(pair):
            standing = standings[agent]
            standing.games += 1
            standing.returns += returns[seat]
            standing.draws += drawn
            standing.wins += not drawn and seat == winner
            standing.losses += not drawn and seat != winner
        if (loser := forfeiter(game)) is not None:
            standings[pair[loser]].forfeits += 1
    rated = [i for i, standing in enumerate(standings) if standing.games]
    for i, rating in zip(rated, ratings(wins[np.ix_(rated, rated)], draws[np.ix_(rated, rated)]), strict=True):
        standings[i].rating = rating
    order = sorted(range(n), key=lambda i: -(standings[i].rating or (-math.inf,))[0])
    games = wins + wins.T + draws
    scores = [[(wins[i, j] + draws[i, j] / 2) / games[i, j] if games[i, j] else None for j in order] for i in order]
    return Arena([standings[i] for i in order], scores, math.fsum(first) / len(first) if first else None)


def ratings(wins: Floats, draws: Floats) -> list[Interval]:
    """Rate agents by maximum likelihood, where the odds of a win are the ratio of two strengths (Bradley and Terry).

    A draw is half a win for each, and every two agents have one more draw than they played, without which an agent that
    won all games would be infinitely strong. The intervals are those of a Bayesian bootstrap over the games (Rubin
    1981), in which that draw, too, has a random weight.

    Args:
        wins: (n, n) number of games that the row's agent won against the column's.
        draws: (n, n), symmetric.

    Returns:
        Elo with its 95 % interval for each agent; the mean is 1000.
    """
    rng, n = np.random.default_rng(0), len(wins)
    if not n:
        return []
    # The sum of the exponential weights of c games is drawn from a gamma distribution.
    won = np.concatenate([wins[None], rng.gamma(np.broadcast_to(wins, (_SAMPLES, n, n)))])
    upper = np.triu(draws + 1.0, 1)
    drawn = np.concatenate([upper[None], rng.gamma(np.broadcast_to(upper, (_SAMPLES, n, n)))])
    elo = _MEAN + _SCALE * _strengths(won + (drawn + drawn.transpose(0, 2, 1)) / 2)
    low, high = np.quantile(elo[1:], (0.025, 0.975), axis=0)
    return [(float(elo[0, i]), float(low[i]), float(high[i])) for i in range(n)]


def _strengths(wins: Floats) -> Floats:
    """Return (b, n) logarithms of strengths with mean 0 for (b, n, n) wins, by Newton's method."""
    games = wins + wins.transpose(0, 2, 1)
    strengths = np.zeros(wins.shape[:2])
    for _ in range(100):
        odds = 1 / (1 + np.exp(strengths[:, None, :] - strengths[:, :, None]))
        slope = (wins - games * odds).sum(2)
        bend = games * odds * (1 - odds)
        curvature = -bend + np.eye(wins.shape[1]) * bend.sum(2)[:, None, :] + 1.0  # + 1 holds the mean at 0
        step = np.linalg.solve(curvature, slope[..., None])[..., 0]
        largest = np.abs(step).max(initial=0.0)
        strengths += step * np.minimum(1.0, 2.0 / np.maximum(np.abs(step).max(1, keepdims=True), 1e-12))
        if largest < 1e-9:
            break
    centred: Floats = strengths - strengths.mean(1, keepdims=True)
    return centred

"""Episodes of several players, seen from one of their seats."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from rollenv.core.errors import UsageError
from rollenv.rollout.types import Group, Trajectory, Turn

#: Pieces of a text that are about a token each.
_PIECE = re.compile(r"[a-z]{1,4}|\S|\s")


def from_seat(trajectory: Trajectory, seat: int) -> Trajectory | None:
    """Return an episode as one player played it; None if the player had no turn.

    It has the player's turns alone. The reward of a turn is what the player gained until its next one, as in
    PettingZoo's agent-environment cycle (arXiv 2009.14471): also by the moves of others, and before its first turn.
    """
    turns: list[Turn] = []
    early = 0.0
    for turn in trajectory.turns:
        gained = turn.rewards[seat] if turn.rewards else 0.0
        if turn.player == seat and turn.finish != "forfeit":
            turns.append(replace(turn, reward=gained, rewards=()))
        elif turns:
            turns[-1].reward += gained
        else:
            early += gained
    if not turns:
        return None
    turns[0].reward += early
    won = trajectory.record.get("success", ())
    success = won[seat] if seat < len(won) else trajectory.success and seat == trajectory.seat
    view = replace(trajectory, turns=turns, seat=seat, success=success)
    if seat != trajectory.seat:
        view.final_observation, view.final_view, view.final_ids = "", "", ()
    return view


def take_seat(turns: list[Turn], player: int, rewards: list[float], seat: int) -> None:
    """Mark the turns of a player's action, with the rewards of all players and, in ``reward``, of one seat."""
    for turn in turns:
        turn.player = player
    last = turns[-1]
    gained = [*rewards]
    gained[player] = last.reward  # with the reward that the action itself may have
    last.rewards, last.reward = tuple(gained), gained[seat]


def forfeit(game: Trajectory, player: int, players: int, returns: Sequence[float], why: str) -> None:
    """End a game by a player's failure.

    Args:
        returns: what this player has at most, and each other one at least.
    """
    rewards = []
    for seat in range(players):
        held = sum(turn.rewards[seat] for turn in game.turns)
        rewards.append(min(0.0, returns[0] - held) if seat == player else max(0.0, returns[1] - held))
    turn = Turn((), (), (), rewards[player], "", "", finish="forfeit", valid=False)
    take_seat([turn], player, rewards, game.seat)
    game.turns.append(turn)
    game.status, game.failure, game.error = "terminated", "", f"forfeited: {why}"
    game.metrics["forfeits"] = 1.0
    game.record["success"] = [seat != player for seat in range(players)]
    game.success = game.seat != player


def forfeiter(game: Trajectory) -> int | None:
    """Return the player who forfeited a game, by a move against the rules or a failure."""
    return game.turns[-1].player if game.turns and game.metrics.get("forfeits") else None


def score_of(game: Trajectory, seat: int) -> float:
    """Return 1 if a player won, 0.5 for a draw, else 0: by the returns, unless somebody forfeited."""
    if (loser := forfeiter(game)) is not None:
        return float(seat != loser)
    returns = [math.fsum(each) for each in zip(*(turn.rewards for turn in game.turns), strict=True)]
    best = max((total for other, total in enumerate(returns) if other != seat), default=0.0)
    if not returns or math.isclose(returns[seat], best, rel_tol=1e-9, abs_tol=1e-9):
        return 0.5
    return float(returns[seat] > best)


def most_tokens(turns: Sequence[Turn], first: int) -> int:
    """Return the player with the most tokens; without any, the one whose endpoint counts them."""
    sampled = Counter({first: 0})
    for turn in turns:
        sampled[turn.player] += len(turn.response_ids)
    return sampled.most_common(1)[0][0]


def who_filled(turns: Sequence[Turn], player: int, observation: str) -> int:
    """Return whose text is the largest part of a player's full context.

    What other players said counts where the player was shown it. If the largest part is the game's own text, it is the
    player: its context is too small for the game.

    Args:
        observation: what the player was shown last.
    """
    parts = Counter({player: sum(len(_pieces([turn.raw or turn.text])) for turn in turns if turn.player == player)})
    shown = _pieces([*(turn.observation for turn in turns if turn.player == player), observation])
    for other in {turn.player for turn in turns} - {player}:
        said = set(pairwise(_pieces(turn.text for turn in turns if turn.player == other)))
        parts[other] = sum(pair in said for pair in pairwise(shown))
    largest, size = parts.most_common(1)[0]
    return largest if size > len(shown) - sum(n for other, n in parts.items() if other != player) else player


def _pieces(texts: Iterable[str]) -> list[str]:
    return _PIECE.findall("\n".join(texts).casefold())


def own_view(trajectory: Trajectory) -> Trajectory:
    """Return a game as its own seat played it, so that no text or token is another player's; others are unchanged."""
    if not any(turn.rewards for turn in trajectory.turns):
        return trajectory
    return from_seat(trajectory, trajectory.seat) or replace(trajectory, turns=[])


def seat_role_of(trajectory: Trajectory) -> str:
    """Return the name of the role in which an episode was played: the environment's, or the number of the seat."""
    roles = trajectory.record.get("roles", ())
    return str(roles[trajectory.seat]) if trajectory.seat < len(roles) else f"seat {trajectory.seat}"


def by_seat(groups: Sequence[Group], name: str = "learner") -> list[Group]:
    """Split groups of a game into one for each seat that the agents of a name took; others are unchanged.

    All members of a group were dealt the same and took the same seats, so those of a seat can be compared. Where
    several seats have one role (``info["roles"]``), such as solvers, those of an episode are compared instead.

    Raises:
        UsageError: reward functions changed the rewards, which are not those of a seat.
    """
    split = []
    for group in groups:
        if not any(trajectory.record.get("seats") for trajectory in group):
            split.append(group)
            continue
        if any(trajectory.env_reward is not None for trajectory in group):
            raise UsageError(f"{group.task.env_id} has several players, whose rewards reward functions cannot replace")
        compared: dict[tuple[str, int], list[Trajectory]] = {}
        for trajectory in group:
            names = trajectory.record.get("seats", ())
            views = [from_seat(trajectory, seat) for seat in range(len(names)) if names[seat] == name]
            played = [view for view in views if view is not None]
            roles = Counter(seat_role_of(view) for view in played)
            for view in played:
                role = seat_role_of(view)
                compared.setdefault((role, trajectory.member if roles[role] > 1 else -1), []).append(view)
        split += [Group(group.task, seen, group.number) for seen in compared.values()]
    return split

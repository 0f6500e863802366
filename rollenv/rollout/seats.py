"""Episodes of several players, seen from one of their seats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollenv.core.errors import UsageError
from rollenv.rollout.types import Group, Trajectory, Turn


def from_seat(trajectory: Trajectory, seat: int) -> Trajectory | None:
    """Return an episode as one player played it; None if the player had no turn.

    It has the player's turns alone. The reward of a turn is what the player gained until its next one, as in
    PettingZoo's agent-environment cycle (arXiv 2009.14471): also by the moves of others, and before its first turn.
    """
    turns: list[Turn] = []
    early = 0.0
    for turn in trajectory.turns:
        gained = turn.rewards[seat] if turn.rewards else 0.0
        if turn.player == seat:
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


def by_seat(groups: Sequence[Group], name: str = "learner") -> list[Group]:
    """Split groups of a game into one for each seat that the agents of a name took; others are unchanged.

    All members of a group were dealt the same and took the same seats, so those of a seat can be compared.

    Raises:
        UsageError: reward functions changed the rewards, which are not those of a seat.
    """
    split = []
    for group in groups:
        seats = [trajectory.record.get("seats", ()) for trajectory in group]
        if not any(seats):
            split.append(group)
            continue
        if any(trajectory.env_reward is not None for trajectory in group):
            raise UsageError(f"{group.task.env_id} has several players, whose rewards reward functions cannot replace")
        for seat in range(max(map(len, seats))):
            taken = [t for t, names in zip(group, seats, strict=True) if not names or names[seat] == name]
            seen = [view for t in taken if (view := from_seat(t, seat)) is not None]
            if seen:
                split.append(Group(group.task, seen, group.number))
    return split

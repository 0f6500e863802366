"""Text and HTML of trajectories and groups for REPLs and notebooks."""

from __future__ import annotations

from typing import Any, TypeAlias

from rollenv.core.notebook import cell, table, title

# The classes of :mod:`rollenv.rollout.types`, which imports this module.
Turn: TypeAlias = Any
Trajectory: TypeAlias = Any
Group: TypeAlias = Any


def turn_line(turn: Turn) -> str:
    """Describe a turn in one line."""
    tokens = f", {len(turn.response_ids)} tokens" if turn.response_ids else ""
    return f"<Turn {_short(turn.text, 60)!r}: reward {turn.reward:g}{tokens}>"


def trajectory_line(trajectory: Trajectory) -> str:
    """Describe an episode in one line."""
    return f"<Trajectory {trajectory.task.env_id} seed {trajectory.task.seed}: {_outcome(trajectory)}>"


def trajectory_html(trajectory: Trajectory) -> str:
    """Return a table of an episode, one row per turn."""
    task = trajectory.task
    rows = [(i, turn.observation, turn.text, f"{turn.reward:g}") for i, turn in enumerate(trajectory.turns, 1)]
    end = f"<pre>{cell(trajectory.final_observation)}</pre>" if trajectory.final_observation else ""
    rows_html = table(("turn", "observation", "action", "reward"), rows)
    return f"<div>{title(f'{task.env_id}, seed {task.seed}', _outcome(trajectory))}{rows_html}{end}</div>"


def group_line(group: Group) -> str:
    """Describe a group in one line."""
    return f"<Group {group.task.env_id} seed {group.task.seed}: {_numbers(group)}>"


def group_html(group: Group) -> str:
    """Return a table of a group, one row per member."""
    rows = [(t.member, _status(t), f"{t.reward:g}", len(t.turns), t.error) for t in group.trajectories]
    rows_html = table(("member", "status", "reward", "turns", "error"), rows)
    return f"<div>{title(f'{group.task.env_id}, seed {group.task.seed}', _numbers(group))}{rows_html}</div>"


def _status(trajectory: Trajectory) -> str:
    return f"{trajectory.status}{', success' if trajectory.success else ''}"


def _outcome(trajectory: Trajectory) -> str:
    error = f" ({_short(trajectory.error, 80)})" if trajectory.error else ""
    return f"{_status(trajectory)}, reward {trajectory.reward:g}, {_count(len(trajectory.turns), 'turn')}{error}"


def _numbers(group: Group) -> str:
    rewards = [t.reward for t in group.complete]
    several = _count(len(group.trajectories), "trajectory", "trajectories")
    if not rewards:
        return f"{several}, none complete"
    failed = len(group.trajectories) - len(rewards)
    low, high = min(rewards), max(rewards)
    reward = f"reward {low:g}" if low == high else f"reward {low:g} to {high:g}"
    defined = [t.success for t in group.complete if t.success is not None]
    wins = f"{sum(defined)} successful, " if defined else ""
    return f"{several}, {wins}{reward}" + (f", {failed} not complete" if failed else "")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _short(text: str, longest: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 3]}..."

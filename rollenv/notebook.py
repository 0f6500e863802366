"""Text and HTML of environments, trajectories and groups for REPLs and notebooks. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, TypeAlias

from rollenv.core.env import Env, stage_of

# The classes of :mod:`rollenv.rollout.types`, which imports this module.
Turn: TypeAlias = Any
Trajectory: TypeAlias = Any
Group: TypeAlias = Any

#: Maximum length of the text in a table cell, and maximum number of rows.
LONGEST, ROWS = 400, 50

#: Maximum length of the text of a board.
BOARD = 20_000


def env_html(env: Env) -> str:
    """Return an environment's board as SVG, or its text; only its name if rendering fails."""
    from rollenv.core.drawing import draw, svg

    inner: Any = env.unwrapped
    try:
        text = inner.render()
    except Exception:  # a closed environment, or one that cannot render before its first episode
        text = ""
    shown = ""
    if isinstance(text, str) and text:
        drawing = draw(getattr(inner, "picture", None), text)
        shown = svg(drawing) if drawing is not None else f"<pre>{_cell(text, BOARD)}</pre>"
    return f"<div>{_title(str(env), stage_of(env))}{shown}</div>"


Env._repr_html_ = env_html  # type: ignore[attr-defined]


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
    end = f"<pre>{_cell(trajectory.final_observation)}</pre>" if trajectory.final_observation else ""
    table = _table(("turn", "observation", "action", "reward"), rows)
    return f"<div>{_title(f'{task.env_id}, seed {task.seed}', _outcome(trajectory))}{table}{end}</div>"


def group_line(group: Group) -> str:
    """Describe a group in one line."""
    return f"<Group {group.task.env_id} seed {group.task.seed}: {_numbers(group)}>"


def group_html(group: Group) -> str:
    """Return a table of a group, one row per member."""
    rows = [(t.member, _status(t), f"{t.reward:g}", len(t.turns), t.error) for t in group.trajectories]
    table = _table(("member", "status", "reward", "turns", "error"), rows)
    return f"<div>{_title(f'{group.task.env_id}, seed {group.task.seed}', _numbers(group))}{table}</div>"


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


def _title(name: str, about: str) -> str:
    return f"<p><b>{_safe(name)}</b>{_safe(about and ': ' + about)}</p>"


def _table(head: Sequence[str], rows: Sequence[Iterable[Any]]) -> str:
    top = "".join(f"<th>{name}</th>" for name in head)
    left = 'style="text-align:left;vertical-align:top;white-space:pre-wrap"'
    lines = ["".join(f"<td {left}>{_cell(str(cell))}</td>" for cell in row) for row in rows[:ROWS]]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>and {len(rows) - ROWS} more</p>" if len(rows) > ROWS else ""
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(text: str, longest: int = LONGEST) -> str:
    return _safe(text if len(text) <= longest else f"{text[: longest - 3]}...")


def _safe(text: str) -> str:
    """Return HTML without characters that pages cannot contain."""
    return escape(text.encode("utf-8", "replace").decode().replace("\0", "?"))

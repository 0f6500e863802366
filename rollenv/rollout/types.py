"""Results of a rollout: turns, trajectories, and groups of trajectories of one task."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rollenv import notebook
from rollenv.core import UsageError

#: "terminated": the task ended. "truncated": a limit did, the environment's or the model's context. "failed": see
#: ``error``. "cancelled": others were faster, or it became too stale.
Status = Literal["terminated", "truncated", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to play: which environment, how it is set up, and its seed."""

    env_id: str
    seed: int
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Constructor arguments."""
    wrappers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is put around the environment, the first innermost, with settings; see :func:`rollenv.wrappers.wrap`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the reset, such as ``{"index": 3}``."""
    agent_seed: int | None = None
    """Seed of the agent's random numbers, where a task is played again and should differ; None for ``seed``."""

    def __post_init__(self) -> None:
        if type(self.env_id) is not str or type(self.seed) is not int:  # such as NumPy's: they become plain ones
            if not isinstance(self.env_id, str):
                raise UsageError(f"a task's env_id must be a str, not {self.env_id!r:.80}")
            if isinstance(self.seed, bool) or not hasattr(type(self.seed), "__index__"):
                raise UsageError(f"a task's seed must be a whole number, not {self.seed!r:.80}")
            object.__setattr__(self, "env_id", "".join((self.env_id,)))
            object.__setattr__(self, "seed", operator.index(self.seed))
        for name in ("kwargs", "wrappers", "options"):
            value = getattr(self, name)
            if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
                raise UsageError(f"a task's {name} must be a dict with names as keys, not {value!r:.80}")


@dataclass(slots=True, repr=False)
class Turn:
    """One prompt, one response, and the environment's reaction."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each response token when it was drawn."""
    reward: float
    text: str
    """The action, as the environment got it."""
    observation: str
    """The environment's last observation before it."""
    state_key: str = ""
    """The state the action was taken in, where the environment names its states."""
    policy_version: int = 0
    """The version of the weights that drew the first response token."""
    versions: tuple[int, ...] = ()
    """The version for each response token, where the weights changed in between; else empty."""
    finish: str = "stop"
    """The reason of the response's end: "stop", "length" or "unfinished" (inside a thought)."""
    view: str = ""
    """The state as drawn for people, where that was asked for."""
    raw: str = ""
    """The response as the model gave it, thoughts and tool calls with it; empty where that is ``text``."""
    messages: tuple[dict[str, Any], ...] = ()
    """What a chat had before it for the first time in this turn; empty where ``prompt_ids`` tell."""
    valid: bool = True
    """Whether the environment understood the action, where it tells (``info["valid"]``)."""
    routes: str = ""
    """The experts that each token but the last went to, prompt included: base64 of little-endian int16 of the shape
    (tokens, layers k). Empty where nobody asked."""

    @property
    def oldest_version(self) -> int:
        """The oldest weights that a response token was drawn with."""
        return min(self.versions, default=self.policy_version)

    def __repr__(self) -> str:
        return notebook.turn_line(self)


@dataclass(slots=True, repr=False)
class Trajectory:
    """One episode. Times are in seconds of the manager's clock and do not count when trajectories are compared."""

    task: Task
    turns: list[Turn] = field(default_factory=list)
    status: Status = "failed"
    success: bool = False
    error: str = ""
    failure: str = ""
    """What kind of failure ``error`` tells of: "agent", "reward", "episode" (its deadline passed), or what the
    environment did: "raised", "wrong", "hung", "lost" or "differs". Empty where nothing failed."""
    final_observation: str = ""
    final_view: str = ""
    group: int = 0
    """Which group of its rollout it belongs to."""
    member: int = 0
    """Which member of the group it is; the agent's draws follow the task's seed and this number."""
    replays: int = field(default=0, compare=False)
    """How often the environment was replaced and the episode played again up to where it was."""
    worker: str = field(default="", compare=False)
    seconds: float = field(default=0.0, compare=False)
    agent_seconds: float = field(default=0.0, compare=False)
    """The part of ``seconds`` that the agent took; the rest is the environment's."""
    record: dict[str, Any] = field(default_factory=dict, compare=False)
    """How a program played by itself: the tree of its calls, and how it ended (see :mod:`rollenv.agents.harness`)."""
    metrics: dict[str, float] = field(default_factory=dict, compare=False)
    """Numbers by name: the environment's own (``info["metrics"]`` of the last step) and what the agent's endpoint
    counted (``prompt_tokens``, ``completion_tokens``, ``cost``)."""

    @property
    def reward(self) -> float:
        """The sum of its turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def complete(self) -> bool:
        """True if the episode ended by itself or at a limit."""
        return self.status in ("terminated", "truncated")

    @property
    def oldest_version(self) -> int | None:
        """The oldest weights that a token was drawn with; None before the first turn."""
        return min((turn.oldest_version for turn in self.turns), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"reward": self.reward}

    def __repr__(self) -> str:
        return notebook.trajectory_line(self)

    def _repr_html_(self) -> str:
        return notebook.trajectory_html(self)


@dataclass(slots=True, repr=False)
class Group:
    """Trajectories of one task, in the order of their member numbers."""

    task: Task
    trajectories: list[Trajectory]
    number: int = 0

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    @property
    def complete(self) -> list[Trajectory]:
        """The trajectories that did not fail."""
        return [t for t in self.trajectories if t.complete]

    @property
    def oldest_version(self) -> int | None:
        """The oldest weights that any token was drawn with; None where no turn was played."""
        return min((v for t in self.trajectories if (v := t.oldest_version) is not None), default=None)

    def __repr__(self) -> str:
        return notebook.group_line(self)

    def _repr_html_(self) -> str:
        return notebook.group_html(self)

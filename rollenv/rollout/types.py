"""Results of a rollout: turns, trajectories, and groups of trajectories of one task."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rollenv.core.errors import UsageError
from rollenv.core.pictures import Picture
from rollenv.rollout import notebook

#: "terminated": the task ended. "truncated": a limit ended the episode, such as the environment's or the model's
#: context. "open": a gateway's session that is not finished. "failed": see ``error``.
#: "cancelled": other members were faster, or it became too stale.
Status = Literal["terminated", "truncated", "failed", "cancelled", "open"]


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to play: the environment, its arguments and the seed."""

    env_id: str
    seed: int
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Constructor arguments."""
    wrappers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Wrappers of the environment with their settings, innermost first; see :func:`rollenv.core.wrappers.wrap`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the reset, such as ``{"index": 3}``."""
    agent_seed: int | None = None
    """Seed of the agent's random numbers, if it should differ from ``seed``."""

    def __post_init__(self) -> None:
        if type(self.env_id) is not str or type(self.seed) is not int:  # convert subclasses and NumPy's types
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
    """Log-probability of each response token when it was sampled."""
    reward: float
    text: str
    """The action that the environment received."""
    observation: str
    """The environment's last observation before the action."""
    state_key: str = ""
    """Key of the state before the action, if the environment has state keys."""
    policy_version: int = 0
    """Version of the weights that sampled the first response token."""
    versions: tuple[int, ...] = ()
    """Version for each response token if the weights changed in between; else empty."""
    finish: str = "stop"
    """Reason why the response ended: "stop", "length" or "unfinished" (by the model, inside a thought); "forfeit" for
    the end of a game by a failure of this player, which is no move."""
    view: str = ""
    """Drawing of the state, if requested."""
    raw: str = ""
    """The model's whole response, with thoughts and tool calls; empty if it equals ``text``."""
    messages: tuple[dict[str, Any], ...] = ()
    """Messages that are new in this turn's chat; empty if there are ``prompt_ids``."""
    valid: bool = True
    """False if the environment rejected the action (``info["valid"]``)."""
    routes: str = ""
    """The experts of each token but the last, prompt included: base64 of little-endian int16 of the shape
    (tokens, layers k). Empty if not requested."""
    images: tuple[Picture, ...] = ()
    """The pictures of the observation, in the order of their marks."""
    prompt_images: tuple[Picture, ...] = ()
    """Other pictures of the prompt, which a program has sent."""
    player: int = 0
    """The player whose turn it was."""
    rewards: tuple[float, ...] = ()
    """The reward of each player, if there are several; ``reward`` is that of the trajectory's seat."""
    shown: str | None = None
    """The text that the agent read: the observation with prefix and suffix, or the prompt of an agent that writes
    one for each turn. Empty if it is the observation alone, None if it was not recorded."""
    continues: bool = True
    """False if ``shown`` is a whole prompt, in which earlier turns are only what it says of them."""
    results: tuple[str, ...] | None = None
    """The results of tools that the observation has in one text; None if it was not recorded."""

    @property
    def oldest_version(self) -> int:
        """The oldest version of the weights that sampled a response token."""
        return min(self.versions, default=self.policy_version)

    def __repr__(self) -> str:
        return notebook.turn_line(self)


@dataclass(slots=True, repr=False)
class Trajectory:
    """One episode. Times are in seconds of the manager's clock and do not count when trajectories are compared."""

    task: Task
    turns: list[Turn] = field(default_factory=list)
    status: Status = "failed"
    success: bool | None = False
    """None where nobody said what a success is, as in a gateway's session that was finished with a reward alone."""
    error: str = ""
    """Why it failed, or why a player forfeited a game by a failure."""
    failure: str = ""
    """Kind of failure: "agent", "reward", "episode" (its deadline passed), "user" (``info["spoiled"]``: the player of
    a user broke the rules), or, for the environment, "raised", "wrong", "hung", "lost" or "differs". Empty if nothing
    failed."""
    final_observation: str = ""
    final_view: str = ""
    final_images: tuple[Picture, ...] = ()
    final_ids: tuple[int, ...] = ()
    """The prompt that would have followed a limit. Empty if the episode ended by itself, or if it did not fit."""
    group: int = 0
    """Number of its group in the rollout."""
    member: int = 0
    """Its number in the group; with the task's seed, it seeds the agent's random numbers."""
    replays: int = field(default=0, compare=False)
    """Number of replays of the episode in a new environment."""
    worker: str = field(default="", compare=False)
    seconds: float = field(default=0.0, compare=False)
    agent_seconds: float = field(default=0.0, compare=False)
    """Time spent in the agent; the rest of ``seconds`` is the environment's."""
    record: dict[str, Any] = field(default_factory=dict, compare=False)
    """Call tree and exit of a program that played the episode (see :mod:`rollenv.agents.harness`)."""
    metrics: dict[str, float] = field(default_factory=dict, compare=False)
    """Numbers by name: the environment's (``info["metrics"]`` of the last step) and the usage of the agent's endpoint
    (``prompt_tokens``, ``completion_tokens``, ``cost``)."""
    env_reward: float | None = field(default=None, compare=False)
    """The environment's own reward of the episode, if reward functions changed that of a turn."""
    seat: int = 0
    """The player whose rewards and success these are; the turns are those of all players."""

    @property
    def reward(self) -> float:
        """The sum of the turns' rewards: what is trained on."""
        return sum(turn.reward for turn in self.turns)

    @property
    def own_reward(self) -> float:
        """The environment's own reward of the episode."""
        return self.reward if self.env_reward is None else self.env_reward

    @property
    def complete(self) -> bool:
        """True if the episode ended by itself or at a limit."""
        return self.status in ("terminated", "truncated")

    @property
    def oldest_version(self) -> int | None:
        """The oldest version of the weights that sampled a token; None before the first turn."""
        return min((turn.oldest_version for turn in self.turns), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self, dict_factory=_plain_fields) | {"reward": self.reward}

    def __repr__(self) -> str:
        return notebook.trajectory_line(self)

    def _repr_html_(self) -> str:
        return notebook.trajectory_html(self)


def _plain_fields(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {k: [image.as_json() for image in v] if k.endswith("images") else v for k, v in fields}


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
        """The trajectories that are complete."""
        return [t for t in self.trajectories if t.complete]

    @property
    def oldest_version(self) -> int | None:
        """The oldest version of the weights that sampled a token; None before the first turn."""
        return min((v for t in self.trajectories if (v := t.oldest_version) is not None), default=None)

    def __repr__(self) -> str:
        return notebook.group_line(self)

    def _repr_html_(self) -> str:
        return notebook.group_html(self)

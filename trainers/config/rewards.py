"""Settings of rewards: additional rewards by domain, and reward shaping."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializeAsAny, model_validator

from rollenv.rollout.types import Trajectory
from rollenv.trainers.config.section import HomePath, Section, Weight, union, unless

REWARDS = "rollenv.rewards"


def _expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


def _at_limit(value: str | float) -> str | float:
    if value not in ("keep", "drop", "drop_failed") if isinstance(value, str) else value < 0:
        raise ValueError(f"is keep, drop, drop_failed or a number to subtract, not {value!r}")
    return value


def _nonzero(weight: float) -> float:
    if not weight:
        raise ValueError("a reward of weight 0 has no effect; leave it out")
    return weight


class DomainReward(Section):
    """Base of the rewards. All rewards of a domain are added up."""

    domain: str = Field("*", min_length=1)
    """The name of a part of the mixture or the id of an environment; ``math:*`` matches several, ``*`` everything that
    no other pattern matches."""
    weight: Annotated[float, AfterValidator(_nonzero)] = 1.0

    def check(self, env_id: str, kwargs: dict[str, Any]) -> None:
        """Refuse an environment of its domain that it cannot reward, before anything is played."""


class FormatReward(DomainReward):
    """A reward for the format of responses (see rollenv.trainers.rewards.Format); the mean over turns."""

    kind: Literal["format"] = "format"
    pattern: Annotated[str, Field(min_length=1), AfterValidator(_expression)]
    """A regular expression for the whole response."""
    matched: float = 0.0
    missed: float = -1.0

    @model_validator(mode="after")
    def _differ(self) -> FormatReward:
        if self.matched == self.missed:
            raise ValueError(f"matched and missed are both {self.matched}, which has no effect")
        return self


class JudgeReward(DomainReward):
    """The score of a language model behind an OpenAI-compatible endpoint, from 0 to 1."""

    kind: Literal["judge"] = "judge"
    url: str
    """Address of the endpoint, such as http://127.0.0.1:8000/v1"""
    model: str = Field(min_length=1)
    key_variable: str = ""
    """The environment variable with the endpoint's key."""
    template: str = ""
    """The judge's prompt, with {task} and {answer}; by default one that requests a score from 0 to 10."""
    attempts: int = Field(2, ge=1)
    temperature: float = Field(0.0, ge=0)
    max_tokens: int = Field(512, ge=1)
    concurrency: int = Field(32, ge=1)
    """Maximum number of concurrent requests."""
    timeout: float = Field(60.0, gt=0)
    """Seconds to wait for the endpoint. A request is retried twice, then the episode has failed; many failures in a row
    end the run, which can be resumed."""


class LearnedDomainReward(DomainReward):
    """The score of a reward model of ``rollenv reward-model``, in standard deviations of its training scores."""

    kind: Literal["learned"] = "learned"
    path: HomePath
    """The run's folder, or a checkpoint. Its tokenizer must be that of the trained model."""
    clip: Weight = 3.0
    """Clip at plus and minus this; 0 for no limit."""


class OwnReward(DomainReward):
    """A function of the user, such as a judge of one's own."""

    kind: Literal["function"] = "function"
    function: str = Field(pattern=".+:.+")
    """``module:function``, which takes what ``rewards.function`` takes, ``reward`` included."""


class PackageReward(DomainReward):
    """A reward of an installed package: an entry point of ``rollenv.rewards`` with the name of its ``kind``."""

    kind: str

    @abstractmethod
    def reward(self) -> Callable[[Trajectory], Awaitable[float]]:
        """Return the reward function."""


_Domains = FormatReward | JudgeReward | LearnedDomainReward | OwnReward
AnyDomainReward = Annotated[
    _Domains,
    Field(discriminator="kind"),
    union("domains", "kind", _Domains, base=DomainReward, group=REWARDS),
    SerializeAsAny(),
]


class RewardsConfig(Section):
    """Reward functions, and shaping before advantages are computed. ``reward`` in metrics is the environment's own;
    ``trained_reward`` is what functions made of it, before shaping."""

    function: str = ""
    """A function ``module:function`` whose number replaces the environment's reward of an episode. It takes some of
    ``prompt``, ``answer``, ``row``, ``reward`` (the environment's own) and ``trajectory``; or, for batches,
    ``prompts``, ``answers``, ``rows``, ... (see rollenv.trainers.rewards.FunctionReward)."""
    domains: list[AnyDomainReward] = Field(default_factory=list)
    """Rewards that are added to the environments', computed as each episode ends, while others are still played."""
    own: float = 1.0
    """Weight of the environment's own reward beside ``domains``; 0 to train on these alone."""
    group: str = ""
    """A function ``module:function`` that takes the list of a group's episodes and returns a number for each, which is
    added to its reward: for rankings, the best of several, diversity. It is not called in evaluations."""
    scale: float = 1.0
    shift: float = 0.0
    """Added to a trajectory's last reward, after scaling."""
    clip: Weight = 0.0
    """Clip a trajectory's cumulative return after each turn at plus and minus this; 0 for no limit."""
    mean: Literal["none", "group", "batch", "running"] = "none"
    """Subtract the mean return of this scope."""
    std: Literal["none", "group", "batch", "running"] = "none"
    """Divide by the standard deviation of returns of this scope."""
    success_only: bool = False
    """Replace rewards by 1 for success and 0 otherwise."""
    invalid_penalty: Weight = 0.0
    """Subtracted for an invalid action; with gigpo and hgpo from its own turn only."""
    overlong: int = Field(0, ge=0)
    """Penalty of up to 1 over this many last tokens before ``rollout.max_new_tokens`` (DAPO); 0 for none."""
    at_limit: Annotated[str | float, AfterValidator(_at_limit)] = "keep"
    """Episodes with a response that a limit cut: ``keep``, ``drop`` (do not train on them) or ``drop_failed`` (those
    without success, as ROLL's ``error_max_len_clip``). A number is a fine, subtracted from the last reward of an
    episode that ends at a limit: of turns, of its tokens or a response's."""
    drop_repetition: int = Field(0, ge=0)
    """Do not train on trajectories with repetition: this many consecutive tokens, each sampled with a probability above
    0.99 (MiniMax-M1, prime-rl: 3000); 0 for no such filter. They count in their group's baseline."""
    drop_gibberish: int = Field(0, ge=0)
    """Do not train on trajectories with gibberish: a rare token (this id or a higher one) that was sampled with less
    than e^-2 of the uniform probability (prime-rl: 100000); 0 for no such filter. They count in their group's baseline.
    """
    length_weight: bool = False
    """Weights from 1.5 for the shortest trajectory of the batch to 0.5 for the longest."""
    difficulty_weight: bool = False
    """Weights from 0.5 for tasks that always succeed to 2 for tasks that never do."""

    @model_validator(mode="before")
    @classmethod
    def _read_former_keys(cls, given: Any) -> Any:
        """Read ``drop_truncated`` and ``limit_penalty``, which became ``at_limit``."""
        if not isinstance(given, dict):
            return given
        rest = dict(given)
        dropped, penalty = rest.pop("drop_truncated", False), rest.pop("limit_penalty", 0)
        if rest.get("drop_long_failures") == 0:  # unused, as in each stored configuration
            del rest["drop_long_failures"]
        return {"at_limit": "drop" if dropped else penalty, **rest} if dropped or penalty else rest

    @property
    def per_episode(self) -> str:
        """The key of rewards that are computed as episodes end; empty if none is."""
        return "rewards.function" if self.function else "rewards.domains" if self.domains else ""

    def problems(self, run: Any) -> Iterator[str]:
        for name in ("overlong", "drop_repetition"):
            if getattr(self, name) > run.rollout.max_new_tokens:
                yield f"rewards.{name} is more tokens than rollout.max_new_tokens"

    def unused(self, run: Any) -> dict[str, str]:
        played = unless(not self.success_only, "rewards.success_only=false", "rewards", "group", "function")
        return played | unless(self.domains, "rewards.domains", "rewards.own")

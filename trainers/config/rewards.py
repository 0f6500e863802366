"""Rewards: what is added to the environment's own by the domain of a task, and what is done to them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rollenv.core import UsageError
from rollenv.trainers.config.section import Section, Weight, union


def _expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


def _known(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from rollenv.trainers.rewards.instructions import CHECKS, follows

    for one in checks:
        if one.get("id") not in CHECKS:
            raise ValueError(f"there is no instruction {one.get('id')!r}; there are {', '.join(CHECKS)}")
        try:
            follows("text", one)  # with wrong arguments it would fail in every episode
        except UsageError as error:
            raise ValueError(str(error)) from error
    return checks


def _nonzero(weight: float) -> float:
    if not weight:
        raise ValueError("a reward of weight 0 has no effect; leave it out")
    return weight


class DomainReward(Section):
    """Base of the rewards: what it is for. Those of one domain are added up."""

    domain: str = Field("*", min_length=1)
    """The name of a part of the mixture or the id of an environment; ``math:*`` fits several, ``*`` is for all that
    nothing else fits."""
    weight: Annotated[float, AfterValidator(_nonzero)] = 1.0


class FormatReward(DomainReward):
    """A reward for responses in a form (see rollenv.trainers.rewards.Format); the mean over turns."""

    kind: Literal["format"] = "format"
    pattern: Annotated[str, Field(min_length=1), AfterValidator(_expression)]
    """A regular expression that fits the whole response."""
    matched: float = 0.0
    missed: float = -1.0

    @model_validator(mode="after")
    def _differ(self) -> FormatReward:
        if self.matched == self.missed:
            raise ValueError(f"matched and missed are both {self.matched}, which has no effect")
        return self


class LengthReward(DomainReward):
    """A penalty for long episodes (DAPO's soft overlong punishment, over all responses of an episode)."""

    kind: Literal["overlong"] = "overlong"
    longest: int = Field(ge=1)
    """Response tokens of an episode from which on the reward is -1."""
    buffer: int = Field(ge=1)
    """The slope begins so many tokens before."""

    @model_validator(mode="after")
    def _room(self) -> LengthReward:
        if self.buffer > self.longest:
            raise ValueError(f"buffer is at most longest, got {self.buffer} and {self.longest}")
        return self


class InstructionsReward(DomainReward):
    """A reward for a last response that follows instructions that a program can check (IFEval's)."""

    kind: Literal["instructions"] = "instructions"
    checks: Annotated[list[dict[str, Any]], AfterValidator(_known)] = Field(default_factory=list)
    """Those of every task, each with its ``id`` and arguments (see rollenv.trainers.rewards.CHECKS)."""
    column: str = ""
    """Instead of ``checks``: the data set's column with the ids of each row's own instructions (IFEval's
    ``instruction_id_list``)."""
    arguments: str = "kwargs"
    """The column with their arguments, a mapping for each."""
    partial: bool = False
    """Pay the share that is followed."""

    @model_validator(mode="after")
    def _one_source(self) -> InstructionsReward:
        if bool(self.checks) == bool(self.column):
            raise ValueError("give either checks, or the column of the rows' own instructions")
        if self.arguments != "kwargs" and not self.column:
            raise ValueError("arguments belong to column, which is not set")
        return self


class JudgeReward(DomainReward):
    """The score of a language model behind an OpenAI-compatible endpoint, from 0 to 1."""

    kind: Literal["judge"] = "judge"
    url: str
    """Such as http://127.0.0.1:8000/v1"""
    model: str = Field(min_length=1)
    key_variable: str = ""
    """The environment variable with the endpoint's key."""
    template: str = ""
    """The question, with {task} and {answer}; by default one that asks for a score from 0 to 10."""
    attempts: int = Field(2, ge=1)
    temperature: float = Field(0.0, ge=0)
    max_tokens: int = Field(512, ge=1)
    concurrency: int = Field(32, ge=1)
    """The most questions at a time."""
    timeout: float = Field(60.0, gt=0)
    """Seconds for an answer of the endpoint. One that fails is asked for twice more, then the episode has failed; so
    many of those in a row end the run, which can be resumed."""


_Domains = FormatReward | LengthReward | InstructionsReward | JudgeReward
AnyDomainReward = Annotated[
    _Domains, Field(discriminator="kind"), union("domains", "kind", _Domains, base=DomainReward)
]


class RewardsConfig(Section):
    """The shaping of rewards before advantages are computed. Metrics show rewards as the environment gave them."""

    domains: list[AnyDomainReward] = Field(default_factory=list)
    """Rewards that are added to the environments', computed as each episode ends, while others are still played."""
    group: str = ""
    """A function ``module:function`` that gets the episodes of a group, a list, and returns what is added to the reward
    of each: for rankings, the best of several, diversity. It is not asked in evaluations."""
    scale: float = 1.0
    shift: float = 0.0
    """Added to a trajectory's last reward, after scaling."""
    clip: Weight = 0.0
    """A trajectory's return, and what it was after each turn, is cut at plus and minus this; 0 for no limit."""
    mean: Literal["none", "group", "batch", "running"] = "none"
    """The baseline of returns: the mean of this scope."""
    std: Literal["none", "group", "batch", "running"] = "none"
    """The divisor of returns: the standard deviation of this scope."""
    success_only: bool = False
    """Return 1 for success and 0 otherwise; the environment's rewards do not count."""
    invalid_penalty: Weight = 0.0
    """Subtracted for an invalid action; under gigpo with an effect on its own turn only."""
    overlong: int = Field(0, ge=0)
    """Responses lose up to 1 over this many last tokens before ``rollout.max_new_tokens`` (DAPO); 0 for none."""
    drop_truncated: bool = False
    """Trajectories with a response that was cut off teach nothing."""
    drop_repetition: int = Field(0, ge=0)
    """Trajectories with a response that repeats itself teach nothing: one with so many tokens in a row that were each
    drawn with a probability above 0.99 (MiniMax-M1, prime-rl: 3000); 0 for none. They count in their group's baseline.
    """
    drop_gibberish: int = Field(0, ge=0)
    """Trajectories with gibberish teach nothing: a token with this id or a later one, which are rare, that was drawn
    with less than e^-2 of the probability that all tokens would have if they were equally likely (prime-rl: 100000); 0
    for none. They count in their group's baseline."""
    length_weight: bool = False
    """Short trajectories weigh more: from 1.5 to 0.5 along the lengths of the batch."""
    difficulty_weight: bool = False
    """Tasks with less success weigh more: from 0.5 to 2."""

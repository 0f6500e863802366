"""Settings of environments and of the tasks to train on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar

from pydantic import Field, Tag, ValidationInfo, field_validator, model_validator

from rollenv.core.errors import UsageError
from rollenv.core.registry import named_wrappers
from rollenv.trainers.config.section import BUILT_IN, OWN, OwnVariant, Positive, Section, own_or_built_in, union, unless


class EnvConfig(Section):
    """The environment to train on."""

    id: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the training environments."""
    wrappers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Wrappers in training and evaluation: names (as in rollenv.core.wrappers) and arguments."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of every ``reset`` in training."""
    images: Literal["only", "also"] | None = Field(None, exclude=True)
    """Show boards as pictures: short for ``kwargs.images``, for evaluation too."""

    @model_validator(mode="after")
    def _as_argument(self) -> Self:
        if self.images:
            self.kwargs = {**self.kwargs, "images": self.images}
        return self

    @field_validator("wrappers", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        try:
            return named_wrappers(value) if isinstance(value, str | list) else value
        except UsageError as error:
            raise ValueError(str(error)) from error


# -- which tasks -------------------------------------------------------------------------------------------------------


class SeedsConfig(Section):
    """An endless sequence of new seeds."""

    kind: Literal["seeds"] = "seeds"


class RowsConfig(Section):
    """The rows of a data set, each once per epoch, shuffled anew in every epoch."""

    kind: Literal["rows"] = "rows"
    shuffle: bool = True


class LevelsConfig(Section):
    """A curriculum: the level follows the success rate (see rollenv.core.curriculum); evaluation does not change."""

    kind: Literal["curriculum"] = "curriculum"
    levels: list[dict[str, Any]] = Field(default_factory=list)
    """Constructor arguments of each level; by default the environment's bundled levels."""
    window: int = Field(200, ge=1)
    """Number of recent trajectories whose success rate decides about the level."""
    up: float = Field(0.8, gt=0, le=1)
    down: float = Field(0.2, ge=0, lt=1)
    review: float = Field(0.1, ge=0, lt=1)
    """The share of tasks from earlier levels."""

    @field_validator("down")
    @classmethod
    def _below_up(cls, down: float, info: ValidationInfo) -> float:
        if down >= info.data.get("up", 1):
            raise ValueError("must be below tasks.up, or levels would change all the time")
        return down


class PoolConfig(Section):
    """Tasks of a pool; those with an estimated success rate near one half are sampled more often."""

    kind: Literal["success_aware"] = "success_aware"
    pool: int = Field(0, ge=0)
    """The number of seeds; 0 for the rows of the data set."""
    distinct: bool = False
    """Keep only one of the seeds with the same first observation."""
    explore: float = Field(0.1, ge=0, le=1)
    """The share of tasks that are sampled uniformly."""
    half_life: float = Field(2000.0, gt=0)
    """Number of groups after which a result counts half."""

    @field_validator("distinct")
    @classmethod
    def _of_seeds(cls, distinct: bool, info: ValidationInfo) -> bool:
        if distinct and not info.data.get("pool", 1):
            raise ValueError("must be false where tasks.pool is 0: it chooses among seeds, not rows of a data set")
        return distinct


class Named(Protocol):
    """A part with metrics of its own."""

    name: str
    env: EnvConfig


P = TypeVar("P", bound=Named)


def distinct(parts: list[P], taken: Collection[str] = ()) -> list[P]:
    """Check that parts have distinct names, by default the ids of their environments."""
    names = [part.name or part.env.id for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two parts are called {name!r}; give each a name")
        if "/" in name or name in taken:
            raise ValueError(f"a part cannot be called {name!r}, a prefix of other metrics; give it another name")
    return parts


class MixturePart(Section):
    """One environment of a mixture."""

    name: str = ""
    """Name in metrics, unique in the mixture; by default the environment's id."""
    ratio: Positive = 1.0
    env: EnvConfig
    tasks: AnyTasks = SeedsConfig()


class MixtureConfig(Section):
    """A mixture of environments or domains with ratios; ``env`` is used for evaluation."""

    kind: Literal["mixture"] = "mixture"
    parts: list[MixturePart] = Field(min_length=1)

    @field_validator("parts")
    @classmethod
    def _names(cls, parts: list[MixturePart]) -> list[MixturePart]:
        return distinct(parts, {"eval", "time", "cpu", "added", "judge", "advantage", "return"})

    def unused(self, run: Any) -> dict[str, str]:
        others = "tasks.kind other than mixture, whose parts have their own"
        warms_up = run.model.path == "tiny"  # on the environment itself
        return {"env.options": others} | unless(warms_up, others, "env.kwargs")


class OwnTasks(OwnVariant):
    """A generator function of the user, from the environment's first task (with the run's seed) to all tasks."""

    tag: ClassVar = "kind"
    kind: str


_Tasks = SeedsConfig | RowsConfig | LevelsConfig | PoolConfig | MixtureConfig
AnyTasks = Annotated[
    Annotated[_Tasks, Field(discriminator="kind"), Tag(BUILT_IN)] | Annotated[OwnTasks, Tag(OWN)],
    own_or_built_in("kind"),
    union("tasks", "kind", _Tasks, open=OwnTasks),
]


def training_environments(env: EnvConfig, tasks: AnyTasks, share: float = 1.0) -> Iterator[tuple[EnvConfig, float]]:
    """Yield the training environments in the order of the recipe, and their shares of the tasks, ``share`` in sum."""
    if not isinstance(tasks, MixtureConfig):
        yield env, share
        return
    whole = sum(part.ratio for part in tasks.parts)
    for part in tasks.parts:
        yield from training_environments(part.env, part.tasks, share * part.ratio / whole)


def task_domains(env: EnvConfig, tasks: AnyTasks) -> Iterator[tuple[tuple[str, ...], EnvConfig]]:
    """Yield the domains of every kind of training task and its environment."""
    if not isinstance(tasks, MixtureConfig):
        yield (env.id,), env
        return
    for part in tasks.parts:
        for path, inner in task_domains(part.env, part.tasks):
            yield (part.name or part.env.id, *path), inner


def pattern_of(patterns: Iterable[str], names: Sequence[str]) -> str | None:
    """Return the first matching pattern by the rules of :class:`~rollenv.trainers.rewards.base.ByDomain`, or None.

    Args:
        names: the domains, the outermost first.
    """
    candidates = list(patterns)
    for name in names:
        for pattern in candidates:
            if pattern != "*" and fnmatchcase(name, pattern):
                return pattern
    return "*" if "*" in candidates else None


MixturePart.model_rebuild()
MixtureConfig.model_rebuild()

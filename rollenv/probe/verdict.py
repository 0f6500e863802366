"""The verdict: what is wrong first, then whether groups would teach, then settings that would help, with numbers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UsageError
from rollenv.core.registry import list_envs
from rollenv.probe.floors import Kind
from rollenv.probe.repeat import Repeated
from rollenv.probe.teach import Taught, Verdict
from rollenv.rollout.evaluate import Interval, wilson_interval
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.load import with_settings

Level = Literal["red", "amber", "good"]

#: Shares of informative groups below which an environment teaches little, and next to nothing.
ENOUGH, HARDLY = 0.3, 0.05

#: Share of answers cut off, and success of a constant answer, that are worth a word.
_OFTEN = 0.2

#: Standard deviations for a floor to be above the model: the best of some twenty floors is by chance below it.
_SURE = 3.0

#: Part of what is said of a floor that is paid without solving more.
UNSOLVED = " and solves no more"

#: The ways in which a floor is above the model.
_CHEATS, _SOLVES, _EARNS = "solves tasks by cheating", "solves more than the model", "earns more than the model"


@dataclass
class FloorResult:
    """The result of a floor."""

    name: str
    kind: Kind
    episodes: int
    success: Interval
    reward: float
    spread: float
    """Standard error of the mean reward."""
    above: str = ""
    """In which way it is above the model beyond chance; empty if it is not."""


@dataclass(frozen=True)
class Remark:
    """A sentence of the verdict."""

    level: Level
    text: str


@dataclass(frozen=True)
class Advice:
    """Settings of a recipe that would help, and why."""

    settings: tuple[str, ...]
    text: str


def percent_of(share: float) -> str:
    """Format a share, with a digit below ten percent."""
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def interval(values: Interval) -> str:
    """Format a share with its interval."""
    return f"{percent_of(values[0])} ({100 * values[1]:.0f} to {100 * values[2]:.0f})"


# -- what is wrong -----------------------------------------------------------------------------------------------------


def judge(floors: Sequence[FloorResult], told: Taught) -> None:
    """Compare floors with the model, and cheats with doing nothing."""
    idle = max((floor.success[0] for floor in floors if floor.kind == "unearned"), default=0.0)
    n = max(1, sum(len(task.rewards) for task in told.tasks))
    _, high = wilson_interval(told.success[0] * n, n, _SURE)
    for floor in floors:
        low, _ = wilson_interval(floor.success[0] * floor.episodes, floor.episodes, _SURE)
        apart = math.hypot(floor.success[0] - low, high - told.success[0])  # Newcombe's interval of a difference
        spread = math.hypot(floor.spread, (told.reward[2] - told.reward[1]) / 3.92)
        if floor.kind == "cheat" and floor.success[1] > max(0.05, idle):
            floor.above = _CHEATS
        elif floor.success[0] - told.success[0] > apart:
            floor.above = _SOLVES
        elif floor.reward - told.reward[0] > max(_SURE * spread, 1e-9):
            floor.above = _EARNS + UNSOLVED * (floor.success[0] <= told.success[0])


def remarks(env_spec: EnvSpec, told: Taught, floors: Sequence[FloorResult], again: Repeated, size: int) -> list[Remark]:
    """Return the sentences of the verdict, the worst first."""
    found = [*_of_floors(told, floors), *_of_reliability(env_spec, told, again), _of_teaching(told, size)]
    return sorted(found, key=lambda remark: ("red", "amber", "good").index(remark.level))


def _of_floors(told: Taught, floors: Sequence[FloorResult]) -> Iterator[Remark]:
    ordered = sorted(floors, key=lambda f: (-f.success[0], -f.reward))
    own = [[f for f in ordered if f.kind == kind] for kind in ("cheat", "moves")]
    blind = [f for f in ordered if f.kind not in ("cheat", "moves")]
    for floors_of_kind, how in itertools.product((own[0], blind, own[1]), (_CHEATS, _SOLVES, _EARNS)):
        if same := [floor for floor in floors_of_kind if floor.above.startswith(how)]:
            floor, others = same[0], f" So do {len(same) - 1} others." if len(same) > 1 else ""
            numbers = f"success {interval(floor.success)}, reward {floor.reward:.3g}; the model "
            numbers += f"{interval(told.success)}, reward {told.reward[0]:.3g}"
            do = "Training would find this; mend the reward first."
            if floor.kind == "moves":
                do = "The model does not know the actions yet."
            elif how == _SOLVES and floor.success[1] < _OFTEN:
                do = "The model does less than guess."
            yield Remark("red", f"“{floor.name}” {floor.above}: {numbers}. {do}{others}")
    high = [floor for floor in blind if not floor.above and floor.success[1] > _OFTEN]
    for floor in high[:1]:
        success = interval(floor.success)
        yield Remark("amber", f"“{floor.name}” solves {success} unread: count success from there.")


def _of_reliability(env_spec: EnvSpec, told: Taught, again: Repeated) -> Iterator[Remark]:
    if again.unchecked:
        yield Remark("amber", f"Repeatability was not checked: {again.unchecked}.")
    elif again.differences:
        n, first = len(again.differences), again.differences[0]
        text = f"Seed and actions do not give the same in {n} of {again.episodes} episodes. The first is {first}."
        if env_spec.nondeterministic:
            yield Remark("amber", f"{text} It is declared as not deterministic.")
        else:
            yield Remark("red", text)
    failed, episodes = sum(told.failures.values()), sum(len(t.rewards) + t.failed for t in told.tasks)
    if failed:
        kinds = ", ".join(f"{number} {kind}" for kind, number in told.failures.items())
        text = f"{failed} of {episodes} episodes failed ({kinds}), and are in no rate; the first: {told.error}"
        yield Remark("red" if failed > episodes / 10 else "amber", text)


def _of_teaching(told: Taught, size: int) -> Remark:
    if told.count("failed") == len(told.tasks):
        return Remark("amber", "Whether it teaches this model is not known: episodes of every task failed.")
    share = told.informative(size)[0]
    reasons: dict[Verdict, str] = {"too hard": "too hard for it", "too easy": "too easy for it", "failed": "failing"}
    counts = "".join(f"; {told.count(verdict)} {verdict}" for verdict in reasons if told.count(verdict))
    text = f"{percent_of(share)} of groups of {size} would teach ({told.count('teaches')} of {len(told.tasks)} tasks do"
    if share >= ENOUGH:
        return Remark("good", f"It can teach this model: {text}{counts}).")
    how = "little" if share >= HARDLY else f"next to nothing, being {reasons[max(reasons, key=told.count)]}"
    return Remark("amber", f"It teaches this model {how}: {text}{counts}).")


# -- what would help ---------------------------------------------------------------------------------------------------


def allowed(config: TrainConfig, settings: Sequence[str]) -> TrainConfig | None:
    """Return the recipe with settings; None if it refuses them."""
    try:
        return with_settings(config, settings)
    except UsageError:
        return None


def advice(
    config: TrainConfig, env_spec: EnvSpec, told: Taught, seen: dict[str, Any], floors: Sequence[FloorResult]
) -> list[Advice]:
    """Return settings that the recipe takes; empty if nothing needs to change."""
    return [each for each in _advice(config, env_spec, told, seen, floors) if allowed(config, each.settings)]


def _advice(
    config: TrainConfig, env_spec: EnvSpec, told: Taught, seen: dict[str, Any], floors: Sequence[FloorResult]
) -> Iterator[Advice]:
    rollout, size, groups = config.rollout, config.rollout.group_size, config.rollout.groups_per_batch
    share, larger = (told.informative(each)[0] for each in (size, 2 * size))
    pool = f"tasks.pool={0 if env_spec.indexed else 64 * groups}"
    hard, easy = (told.count(each) for each in ("too hard", "too easy"))
    if share < ENOUGH and hard >= easy and "oracle" in env_spec.abilities and not config.prompt.examples:
        yield Advice(("prompt.examples=5",), f"{hard} of {len(told.tasks)} tasks are too hard without examples")
    if share < ENOUGH and easy > hard:
        yield _harder(config, env_spec, f"{easy} of {len(told.tasks)} tasks are too easy")
    if share < ENOUGH and hard >= easy and env_spec.levels and config.tasks.kind != "curriculum":
        text = f"{hard} of {len(told.tasks)} tasks are too hard: begin at the easiest level"
        yield Advice(("tasks.kind=curriculum",), f"{text}, and go on as tasks are solved")
    paid = next((floor for floor in floors if floor.above.endswith(UNSOLVED)), None)
    if paid and told.success[0] > 0:
        text = f"“{paid.name}” earns {paid.reward:.3g}: pay success alone"
        yield Advice(("rewards.success_only=true",), text)
    if 0 < share < 0.5:
        part = told.count("teaches") / len(told.tasks)
        if part < 0.75:
            text = f"{percent_of(part)} of the tasks teach: play those more often"
            yield Advice(("tasks.kind=success_aware", pool), text)
        refill = groups * min(3, max(1, round(1 / share) - 1))
        text = f"up to {refill} groups with equal rewards are replaced for each batch of {groups}"
        yield Advice((f"rollout.refill={refill}",), text)
        if larger > share + HARDLY:
            text = f"{percent_of(larger)} of groups of {2 * size} would teach, not {percent_of(share)}"
            yield Advice((f"rollout.group_size={2 * size}",), text)
    if seen["answers_cut"] > _OFTEN and not seen["cut_solved"]:
        text = (
            f"{percent_of(seen['answers_cut'])} of the answers end at {rollout.max_new_tokens} tokens, and solve none"
        )
        yield Advice((f"rollout.max_new_tokens={2 * rollout.max_new_tokens}",), text)
    if seen["full"] > HARDLY:
        text = f"{percent_of(seen['full'])} of the episodes end because the next prompt does not fit"
        yield Advice(("prompt.max_observation=2000",), text)
    if 2 * told.distinct < len(told.tasks):
        text = f"only {told.distinct} of {len(told.tasks)} seeds give different tasks"
        yield Advice(("tasks.kind=success_aware", pool, "tasks.distinct=true"), text)


def _harder(config: TrainConfig, env_spec: EnvSpec, why: str) -> Advice:
    """Name the next level, else other ids or arguments, for an environment that is too easy."""
    played = {**env_spec.kwargs, **config.env.kwargs}
    now = [number for number, level in enumerate(env_spec.levels) if level.items() <= played.items()]
    harder = [*env_spec.levels][now[-1] + 1 if now else 0 :]
    if harder and config.tasks.kind != "curriculum":
        settings = tuple(f"env.kwargs.{name}={json.dumps(value)}" for name, value in harder[0].items())
        more = f"; {len(harder) - 1} more are harder still" if len(harder) > 1 else ""
        return Advice(settings, f"{why}: play the next level{more}")
    family = env_spec.id.partition("-")[0] + "-"
    ids = [s.id for s in list_envs(family) if s.id.endswith("-hard") and s.id != env_spec.id]
    names = [name for name, value in played.items() if isinstance(value, int) and not isinstance(value, bool)]
    ways = [f"play env.id={' or '.join(ids)}"] * bool(ids)
    ways += [f"raise env.kwargs.{' or env.kwargs.'.join(names)} if that is harder"] * bool(names)
    return Advice((), f"{why}: {', or '.join([*ways, 'stop'])}. This model has nothing to learn here")


def imitation(config: TrainConfig, env_spec: EnvSpec, told: Taught) -> str:
    """Say that imitation comes first, where the model solves nothing, with the examples that it can be given."""
    examples = "oracle" in env_spec.abilities and not config.prompt.examples and allowed(config, ["prompt.examples=5"])
    if told.success[0] > 0.01 or examples or 2 * told.count("too hard") < len(told.tasks):
        return ""
    whose = "its expert's episodes" if "oracle" in env_spec.abilities else "solved episodes from elsewhere"
    return (
        "The model solves nothing, and no setting that was tried changes that: let it imitate "
        f"{whose} first (`rollenv sft`)."
    )

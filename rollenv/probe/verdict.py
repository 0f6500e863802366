"""The verdict: what is wrong first, then whether groups would teach, then settings that would help, with numbers."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UsageError
from rollenv.probe.floors import NOTHING, Kind
from rollenv.probe.repeat import Repeated
from rollenv.probe.teach import Lengths, Taught, Verdict, informative
from rollenv.rollout.evaluate import Interval, wilson_interval
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.load import with_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

Level = Literal["red", "amber", "good"]

#: Shares of informative groups below which an environment teaches little, and hardly at all.
ENOUGH, HARDLY = 0.3, 0.05

#: A constant answer that succeeds as often is worth a warning.
_OFTEN = 0.2

#: Part of what is said of a floor that is paid without solving more.
UNSOLVED = " and solves no more"

#: Standard deviations for a floor to be above the model: the best of some twenty floors is by chance below it.
_SURE = 3.0


@dataclass
class FloorResult:
    """What a floor earned."""

    name: str
    kind: Kind
    episodes: int
    success: Interval
    reward: float
    spread: float
    """Standard error of the mean reward."""
    failed: int
    above: str = ""
    """In which way it is above the model beyond chance; empty if it is not."""


@dataclass(frozen=True)
class Remark:
    """A sentence of the verdict."""

    level: Level
    text: str


@dataclass(frozen=True)
class Advice:
    """Settings of a recipe that would help, and by how much."""

    settings: tuple[str, ...]
    text: str
    tried: bool
    """True if episodes were played with them."""


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and what they gave."""

    settings: tuple[str, ...]
    tasks: int
    success: Interval
    informative: float
    """The share of groups of the recipe's size that would teach."""


def percent_of(share: float) -> str:
    """Format a share, with a digit below ten percent."""
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def interval(values: Interval) -> str:
    """Format a share with its interval."""
    return f"{percent_of(values[0])} ({100 * values[1]:.0f} to {100 * values[2]:.0f})"


def share_of(told: Taught, size: int) -> float:
    """Return the share of groups of any size that would teach."""
    shares = [informative(task.rewards, size) for task in told.tasks if task.verdict != "failed"]
    return statistics.fmean(shares) if shares else 0.0


# -- what is wrong -----------------------------------------------------------------------------------------------------


def judge(floors: Sequence[FloorResult], told: Taught) -> None:
    """Compare floors with the model, and cheats with doing nothing."""
    idle = max((floor.success[0] for floor in floors if floor.name == NOTHING), default=0.0)
    for floor in floors:
        floor.above = _above(floor, told, idle)


def _above(floor: FloorResult, told: Taught, idle: float) -> str:
    low, _ = wilson_interval(floor.success[0] * floor.episodes, floor.episodes, _SURE)
    if floor.kind == "cheat" and floor.success[1] > max(0.05, idle):
        return "solves tasks by cheating"
    if low > told.success[0]:
        return "solves more than the model"
    spread = math.hypot(floor.spread, (told.reward[2] - told.reward[0]) / 1.96)
    if floor.reward - told.reward[0] <= max(_SURE * spread, 1e-9):
        return ""
    return "earns more than the model" + UNSOLVED * (floor.success[0] <= told.success[0])


def remarks(env_spec: EnvSpec, told: Taught, floors: Sequence[FloorResult], again: Repeated, size: int) -> list[Remark]:
    """Return the sentences of the verdict, the worst first."""
    found = [*_of_floors(told, floors), *_of_repeats(env_spec, again), *_of_failures(told)]
    order = {"red": 0, "amber": 1, "good": 2}
    return sorted([*found, _of_teaching(told, size)], key=lambda remark: order[remark.level])


def _of_floors(told: Taught, floors: Sequence[FloorResult]) -> Iterator[Remark]:
    model = f"the model {interval(told.success)}, reward {told.reward[0]:.3g}"
    for floor in sorted(floors, key=lambda f: (-f.success[0], -f.reward)):
        numbers = f"success {interval(floor.success)}, reward {floor.reward:.3g}; {model}"
        if floor.above and floor.kind == "moves":
            yield Remark("red", f"“{floor.name}” {floor.above}: {numbers}. The model does not know the actions yet.")
        elif floor.above:
            yield Remark(
                "red", f"“{floor.name}” {floor.above}: {numbers}. Training would find this; mend the reward first."
            )
        elif floor.kind == "blind" and floor.success[1] > _OFTEN:
            text = f"“{floor.name}” solves {interval(floor.success)} unread: count success from there."
            yield Remark("amber", text)


def _of_repeats(env_spec: EnvSpec, again: Repeated) -> Iterator[Remark]:
    different = again.rewards + again.observations + again.graded
    if again.unchecked:
        yield Remark("amber", f"Repeatability was not checked: {again.unchecked}.")
    elif different:
        what = [
            f"{number} of {again.episodes} {text}"
            for number, text in (
                (again.rewards, "got another reward for the same seed and actions in a second process"),
                (again.observations, "saw something else there"),
                (again.graded, "got another reward when graded again with a clock a day later"),
            )
            if number
        ]
        level: Level = "amber" if env_spec.nondeterministic else "red"
        declared = " It is declared as not deterministic." if env_spec.nondeterministic else ""
        text = f"It is not repeatable: of the episodes played again, {'; '.join(what)}. {again.differences[0]}."
        yield Remark(level, text + declared)


def _of_failures(told: Taught) -> Iterator[Remark]:
    failed, episodes = sum(told.failures.values()), sum(task.episodes for task in told.tasks)
    if failed:
        kinds = ", ".join(f"{number} {kind}" for kind, number in told.failures.items())
        level: Level = "red" if failed > episodes / 10 else "amber"
        text = f"{failed} of {episodes} episodes failed ({kinds}): they are no reward 0, and are in no rate."
        yield Remark(level, text)


def _of_teaching(told: Taught, size: int) -> Remark:
    share, of = share_of(told, size), len(told.tasks)
    counts = ", ".join(f"{told.count(v)} {v}" for v in ("too easy", "too hard", "failed") if told.count(v))
    text = f"{percent_of(share)} of groups of {size} would teach ({told.count('teaches')} of {of} tasks do"
    text += f"; {counts})." if counts else ")."
    if share >= ENOUGH:
        return Remark("good", f"It can teach this model: {text}")
    if share >= HARDLY:
        return Remark("amber", f"It teaches this model little: {text}")
    reasons: dict[Verdict, str] = {"too hard": "too hard for it", "too easy": "too easy for it", "failed": "failing"}
    why = reasons[max(reasons, key=told.count)]
    return Remark("amber", f"It teaches this model next to nothing, being {why}: {text}")


# -- what would help ---------------------------------------------------------------------------------------------------


def allowed(config: TrainConfig, settings: Sequence[str]) -> TrainConfig | None:
    """Return the recipe with settings; None if it refuses them."""
    try:
        return with_settings(config, settings)
    except UsageError:
        return None


def candidates(config: TrainConfig, env_spec: EnvSpec, told: Taught, seen: Lengths) -> list[tuple[str, ...]]:
    """Return settings worth a trial, because too few groups would teach."""
    if share_of(told, config.rollout.group_size) >= ENOUGH:
        return []
    found: list[tuple[str, ...]] = []
    hard = told.count("too hard") >= told.count("too easy")
    if hard and "oracle" in env_spec.abilities and config.model.path != "tiny" and config.prompt.examples != 5:
        found.append(("prompt.examples=5",))
    if hard and seen.cut_answers > 0.2:
        found.append((f"rollout.max_new_tokens={4 * config.rollout.max_new_tokens}",))
    if env_spec.levels:
        found.append(tuple(f"env.kwargs.{k}={_toml(v)}" for k, v in env_spec.levels[0 if hard else -1].items()))
    return [settings for settings in found if allowed(config, settings)]


def _toml(value: object) -> str:
    from rollenv.core.arguments import value_of

    text = repr(value).lower() if isinstance(value, bool) else str(value).replace("(", "[").replace(")", "]")
    return text if value_of(text) == value or not isinstance(value, str) else f'"{value}"'


def advice(
    config: TrainConfig,
    env_spec: EnvSpec,
    told: Taught,
    seen: Lengths,
    floors: Sequence[FloorResult],
    trials: Sequence[Trial],
) -> list[Advice]:
    """Return settings that the recipe takes, those that were tried first; empty if nothing needs to change."""
    size, plain = config.rollout.group_size, share_of(told, config.rollout.group_size)
    found = []
    for trial in sorted(trials, key=lambda trial: -trial.informative):
        if trial.informative > plain + 0.05:
            settings = trial.settings
            text = f"{percent_of(trial.informative)} of groups of {size} would teach, not {percent_of(plain)}; success "
            text += f"{interval(trial.success)} on {trial.tasks} tasks"
            if env_spec.levels and settings[0].startswith("env.kwargs.") and told.count("too hard"):
                text += ", at the easiest level, where the curriculum begins"
                settings = ("tasks.kind=curriculum",)
            found.append(Advice(settings, text, tried=True))
    found += _computed(config, env_spec, told, seen, floors)
    return [each for each in found if allowed(config, each.settings)]


def _computed(
    config: TrainConfig, env_spec: EnvSpec, told: Taught, seen: Lengths, floors: Sequence[FloorResult]
) -> Iterator[Advice]:
    size, groups = config.rollout.group_size, config.rollout.groups_per_batch
    share, larger = share_of(told, size), share_of(told, 2 * size)
    for floor in floors:
        if floor.above.endswith(UNSOLVED):
            text = f"“{floor.name}” earns {floor.reward:.3g} and solves nothing more: pay success alone"
            yield Advice(("rewards.success_only=true",), text, tried=False)
            break
    teaching = [task for task in told.tasks if task.verdict == "teaches"]
    if 0 < share < 0.5:
        good = statistics.fmean(informative(task.rewards, size) for task in teaching)
        part = len(teaching) / len(told.tasks)
        if part < 0.75:
            pool = 0 if env_spec.indexed else 64 * groups
            text = f"{percent_of(part)} of the tasks teach, with {percent_of(good)} of their groups of {size}"
            yield Advice(
                ("tasks.kind=success_aware", f"tasks.pool={pool}"), text + ": play those more often", tried=False
            )
        more = min(3, round(1 / share) - 1)
        if more > 0:
            text = f"up to {more * groups} groups with equal rewards are replaced for each batch of {groups}"
            yield Advice((f"rollout.refill={more * groups}",), text, tried=False)
        if larger > share + 0.05:
            text = f"at least {percent_of(larger)} of groups of {2 * size} would teach, not {percent_of(share)}"
            yield Advice((f"rollout.group_size={2 * size}",), text, tried=False)
    if seen.cut_answers > 0.2 and share >= ENOUGH:
        text = f"{percent_of(seen.cut_answers)} of the answers end at {config.rollout.max_new_tokens} tokens"
        yield Advice((f"rollout.max_new_tokens={2 * config.rollout.max_new_tokens}",), text, tried=False)
    if seen.full > 0.05:
        text = f"{percent_of(seen.full)} of the episodes end because the next prompt does not fit"
        yield Advice(("prompt.max_observation=2000",), text, tried=False)
    if 2 * told.distinct < len(told.tasks) and not env_spec.indexed:
        text = f"only {told.distinct} of {len(told.tasks)} seeds give different tasks"
        settings = ("tasks.kind=success_aware", f"tasks.pool={64 * groups}", "tasks.distinct=true")
        yield Advice(settings, text, tried=False)


def imitation(told: Taught, env_spec: EnvSpec, given: Sequence[Advice]) -> str:
    """Say that imitation comes first, where nothing that was tried makes the tasks solvable."""
    if told.success[0] > 0.01 or any(each.tried for each in given) or told.count("too hard") < len(told.tasks) / 2:
        return ""
    whose = "its expert's episodes" if "oracle" in env_spec.abilities else "solved episodes from elsewhere"
    how = ": `rollenv sft`" if importlib.util.find_spec("rollenv.cli.sft") else ""
    return f"The model solves nothing, and no setting tried changes that: let it imitate {whose} first{how}."

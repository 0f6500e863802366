"""The verdict on environments before they are shared: promises, cheats, surroundings, network and size.

It is the checker (:mod:`rollenv.core.checker`) and the probe's agents without skill (:mod:`rollenv.probe.floors`),
compared with the expert and with random play. Each environment is judged in a process of its own, which its hangs,
exits and output do not leave. That is no sandbox: judge what you would run.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import inspect
import itertools
import math
import os
import re
import statistics
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

import rollenv
from rollenv.agents.base import Action, Agent, EnvHandle, OracleAgent, RandomAgent, Session
from rollenv.agents.offered_tools import offered_tools
from rollenv.core.cache import cache_folder
from rollenv.core.checker import run_checks
from rollenv.core.checker.digests import HelperProcess
from rollenv.core.checker.process import changes, surroundings
from rollenv.core.env_spec import EnvSpec, load_entry_point, takes
from rollenv.core.errors import Broken, RollenvError, describe
from rollenv.core.registry import list_envs, spec
from rollenv.plugins.publishing.package_index import module_of
from rollenv.plugins.publishing.told import encoded_answer, shared_by_splits
from rollenv.probe.floors import floors_of, shortened
from rollenv.probe.repeat import play_again
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.evaluate import tasks_of, wilson_interval
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory

#: What each rule demands (``promise``) and what mends it (``do``).
RULES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("rules.toml").read_text("utf-8"))

#: Most bytes of a wheel.
_LARGEST = 20_000_000
#: Seconds for making, resetting and stepping once, of all players' episodes, and of the second process.
_CONTACT, _PLAY, _AGAIN = 60.0, 120.0, 60.0
#: Episodes of an agent that are played together, and their most turns.
_TOGETHER, _TURNS = 8, 200
#: Standard deviations beyond which a difference is no chance; shares of success that need no reason, or are all.
_SURE, _FEW, _ALL = 3.0, 0.05, 0.9

#: Random actions after the first, empty one.
_FIRST_TURNS = 10

#: Words that are no part of a task; what the same actions earn behind them is compared with what they earn alone.
_PADDING = "Please, and thank you very much. You are right, so let me think about it carefully, step by step. " * 6

_POLITE = "kind words and filler"

#: Episodes of one round that watches the memory, and the megabytes that each episode of every round must leave.
_ROUND, _KEPT = 20, 1.0
#: The first of the seeds that no author tries by hand, and how many there must not be one task alone.
_FAR_SEED, _SEEDS = 10**6, 8

#: Audited calls that write, make or remove files or folders, with the places of these among their arguments.
_WRITES = {
    **dict.fromkeys(("open", "os.truncate", "sqlite3.connect"), (0,)),
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"), (0,)),
    **{"os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,)},
}
#: Those that follow a link, and those that leave alone what is there.
_FOLLOW = ("open", "os.truncate", "sqlite3.connect")
_ONLY_NEW = ("os.mkdir", "os.link", "os.symlink", "sqlite3.connect")

#: The beginning of the evidence where a constructor refuses its arguments.
REFUSES_ARGUMENTS = "the call of make raised UsageError: "

_LOCAL = ("", "localhost", "::1", "0.0.0.0", "::")


@dataclass(frozen=True)
class Refusal:
    """A rule that an environment breaks, with what shows it."""

    id: str
    rule: str
    evidence: str
    seed: int | None = None
    action: str | None = None
    reward: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with what to do."""
        return asdict(self) | {"do": RULES[self.rule]["do"]}


@dataclass(frozen=True)
class Earned:
    """The earnings of an agent: the share of episodes that it solved, and the mean of their rewards."""

    name: str
    kind: str
    """"expert", "random", or the kind of a floor (:data:`rollenv.probe.floors.Kind`)."""
    episodes: int
    success: float
    low: float
    """The share that chance does not explain: three standard deviations below."""
    high: float
    """The same above."""
    reward: float
    spread: float
    """Standard error of the mean reward."""
    turns: float
    """Mean number of turns."""


@dataclass
class Judged:
    """The findings on one environment."""

    id: str
    refusals: list[Refusal] = field(default_factory=list)
    checks: dict[str, bool | None] = field(default_factory=dict)
    """The outcome of each check of ``rollenv check``; None where nothing is promised."""
    players: list[Earned] = field(default_factory=list)
    seconds: float = 0.0
    file: str = ""
    """The file of its class."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"accepted": not self.refusals, "refusals": [one.to_dict() for one in self.refusals]}


def judge(
    names: Sequence[str], folders: Sequence[str], episodes: int, timeout: float, kwargs: Mapping[str, Any] | None = None
) -> Iterator[Judged]:
    """Judge environments, one after the other.

    Args:
        names: ids, or one package's top-level modules, each ended by a colon, whose ids are all judged.
        folders: folders to import from first.
        episodes: of each check and each agent.
        timeout: seconds for one environment.
        kwargs: constructor arguments of all of them.
    """
    with tempfile.TemporaryDirectory(prefix="rollenv-accept-") as made:
        found: list[EnvSpec] = []
        with HelperProcess(min(_CONTACT, timeout)) as process:
            whose = " ".join(names)
            try:
                found, problems = process.call(f"{__name__}:specs_in_helper", names, folders, made)
            except Broken as error:
                problems = [_where(str(error), Path(made))]
        if problems or not found:
            why = problems or ["no entry point of rollenv.envs registers an id of its modules"]
            rule = "ids" if whose.endswith(":") else "starts"
            yield Judged(whose.rstrip(":"), [Refusal(whose.rstrip(":"), rule, text) for text in why])
    for each in found:
        env_spec = replace(each, kwargs={**each.kwargs, **(kwargs or {})})
        began = time.monotonic()
        judged = Judged(env_spec.id)
        with tempfile.TemporaryDirectory(prefix="rollenv-accept-") as made:
            try:
                for function in (contact, check, compare):
                    seconds = min(_CONTACT, timeout) if function is contact else timeout
                    with HelperProcess(seconds) as process:
                        name = f"{__name__}:{function.__name__}"
                        judged = process.call(name, judged, env_spec, folders, made, episodes, seconds)
                    if any(refusal.rule in ("starts", "types", "files") for refusal in judged.refusals):
                        break  # so would all others, and files would be written
            except Broken as error:
                judged.refusals.append(Refusal(env_spec.id, "returns", _where(str(error), Path(made))))
        judged.seconds = time.monotonic() - began
        yield judged


def size_of(files: Iterable[Path], wheel: Path | None) -> dict[str, int | None]:
    """Return the lines of Python files that are not blank, and the bytes of a wheel."""
    texts = (file.read_text("utf-8", "replace") for file in files if file.suffix == ".py" and file.is_file())
    lines = sum(bool(line.strip()) for text in texts for line in text.splitlines())
    return {"lines": lines, "wheel_bytes": wheel.stat().st_size if wheel else None}


def too_large(name: str, size: dict[str, int | None]) -> list[Refusal]:
    """Refuse a wheel that is too large."""
    found = size["wheel_bytes"] or 0
    text = f"its wheel has {found / 1e6:.1f} MB, more than {_LARGEST / 1e6:.0f}"
    return [Refusal(name, "size", text)] if found > _LARGEST else []


def _where(error: str, made: Path) -> str:
    """Say in which call a helper process hung or ended, and at which line."""
    what, trace = error.replace("another process that built the environment", "the process"), ""
    with contextlib.suppress(OSError):
        what += f", during {(made / 'stage').read_text('utf-8')}"
        lines = re.findall(r'File "(.+)", line (\d+) in (\S+)', (made / "trace").read_text("utf-8", "replace"))
        library = os.path.dirname(os.__file__), os.path.dirname(rollenv.__file__), str(Path(__file__).parents[1]), "<"
        own = [each for each in lines if not each[0].startswith(library)]
        trace = "".join(f": {Path(file).name}, line {line}, in {name}" for file, line, name in own[:1])
    return what + trace


# -- in the helper process ---------------------------------------------------------------------------------------------


def _begin(folders: Sequence[str], made: str, seconds: float) -> Callable[[str], None]:
    """Silence the process, note where it is if it hangs, and return a function that notes what is done."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stdin = None  # an environment that asks a person fails
    sys.path[:0] = folders
    sys.path.append(os.getcwd())
    trace = open(Path(made, "trace"), "w")  # noqa: SIM115 - until the process ends
    faulthandler.enable(trace)
    faulthandler.dump_traceback_later(0.6 * seconds, file=trace)
    sys.addaudithook(_refuse_forks)
    note = Path(made, "stage")
    Path(made, "work").mkdir(exist_ok=True)

    def write(stage: str) -> None:
        note.write_text(stage, "utf-8")

    return write


def _refuse_forks(event: str, args: tuple[Any, ...]) -> None:
    if event in ("os.fork", "os.forkpty"):  # before the copies of this process become many
        raise PermissionError("an environment does not fork; use subprocess")


def specs_in_helper(names: Sequence[str], folders: Sequence[str], made: str) -> tuple[list[EnvSpec], list[str]]:
    """Return the specs of ids, or of modules, and what kept others from being registered."""
    stage = _begin(folders, made, _CONTACT)
    found, problems = [], list[str]()
    modules = {name[:-1] for name in names if name.endswith(":")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stage("the import")
        try:
            found = [spec(name) for name in names if not name.endswith(":")]
            found += [each for each in (list_envs() if modules else ()) if module_of(each) in modules]
        except BaseException as error:
            problems.append(describe(error))
    problems += [text for each in caught if any(f"'{name}" in (text := str(each.message)) for name in modules)]
    return found, problems


def contact(judged: Judged, env_spec: EnvSpec, folders: Sequence[str], made: str, _: int, seconds: float) -> Judged:
    """Make, reset, step and close it once: without network, and nothing around it may change."""
    stage = _begin(folders, made, seconds)
    work = os.path.join(made, "work")
    os.chdir(work)
    before, files, reached, watched = surroundings(), os.listdir(work), list[str](), [True]
    written, own, began = list[str](), _temporary_and_caches(), time.monotonic()

    def listen(event: str, args: tuple[Any, ...]) -> None:
        if watched[0] and (address := _address(event, args)):
            reached.append(address)
            raise PermissionError(f"no network while an environment is made: {address}")
        for path in _written_paths(event, args):
            if "__pycache__" not in path and not any(Path(path).is_relative_to(each) for each in own):
                written.append(path)
                raise PermissionError(f"no writing but of temporary files: {path}")

    sys.addaudithook(listen)
    try:
        stage("the call of make")
        if missing := ", ".join(map(str, env_spec.missing)):
            judged.refusals.append(Refusal(env_spec.id, "starts", f"it needs {missing}"))
            return judged
        env = env_spec.make()
        judged.file = inspect.getsourcefile(type(env.unwrapped)) or ""
        stage("reset(0)")
        watched[0] = not env_spec.nondeterministic
        offered_tools(env.reset(0)[1])
        watched[0] = False
        stage("step('')")
        with contextlib.suppress(Exception):  # the checks tell it
            env.step("")
        with contextlib.suppress(Exception):  # the end of an episode among them
            for _ in range(_FIRST_TURNS):
                if time.monotonic() - began < seconds / 2:  # a slow one is no refusal
                    env.step(env.sample_random_action())
        with contextlib.suppress(Exception):  # what happens only where a task is solved
            env.reset(0)
            for _ in range(_FIRST_TURNS):
                if time.monotonic() - began < seconds / 2:
                    env.step(env.oracle_action())
        stage("close()")
        env.close()
    except BaseException as error:
        if not reached and not written:
            why = f"{Path(made, 'stage').read_text('utf-8')} raised {describe(error)}"
            judged.refusals.append(Refusal(env_spec.id, "starts", why, seed=0))
    watched[0] = False
    if reached:
        judged.refusals.append(Refusal(env_spec.id, "network", f"it connects to {', '.join(dict.fromkeys(reached))}"))
    if written:
        text = f"it writes {', '.join(dict.fromkeys(written))}"
        judged.refusals.append(Refusal(env_spec.id, "files", text, seed=0))
    left = [f"the working folder has a new file {name}" for name in sorted({*os.listdir(work)} - {*files})[:5]]
    for text in [*changes(before, surroundings()), *left]:
        judged.refusals.append(Refusal(env_spec.id, "surroundings", text, seed=0))
    return judged


@contextlib.contextmanager
def _no_network(watch: bool) -> Iterator[list[str]]:
    """Refuse connections to other machines meanwhile, and yield a list of where to."""
    reached, watched = list[str](), [watch]

    def listen(event: str, args: tuple[Any, ...]) -> None:
        if watched[0] and (address := _address(event, args)):
            reached.append(address)
            raise PermissionError(f"no network while an environment is judged: {address}")

    sys.addaudithook(listen)  # which cannot be removed
    try:
        yield reached
    finally:
        watched[0] = False


def _address(event: str, args: tuple[Any, ...]) -> str:
    """Return the place that an audited call reaches for outside of this machine; empty if there is none."""
    at: Any = ""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(args[1], tuple):
        at = args[1][0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        at = args[0]
    at = at.decode("ascii", "replace") if isinstance(at, bytes) else str(at or "")
    return "" if at in _LOCAL or at.startswith("127.") else at


def _temporary_and_caches() -> list[str]:
    """Return the folders in which an environment may write: temporary ones, caches, and what the kernel shows as files,
    such as the limits of a sandbox."""
    named = [value for name, value in os.environ.items() if "CACHE" in name or name.endswith("_HOME")]
    homes = [os.path.expanduser(f"~/{name}") for name in (".cache", ".config", ".local/share")]
    found = [tempfile.gettempdir(), "/tmp", str(cache_folder()), *homes, *filter(os.path.isabs, named)]
    return ["/dev", "/proc", "/sys", *map(os.path.realpath, found)]


def _written_paths(event: str, args: tuple[Any, ...]) -> Iterator[str]:
    """Yield the paths that an audited call writes, makes or removes."""
    if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
        return
    for place in _WRITES.get(event, ()):
        if not isinstance(args[place], str | bytes | os.PathLike):  # a number is an open file
            continue
        path = os.path.abspath(os.fsdecode(args[place]))
        if event in _FOLLOW:
            path = os.path.realpath(path)
        else:
            path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if not (event in _ONLY_NEW and os.path.lexists(path)):
            yield path


def check(
    judged: Judged, env_spec: EnvSpec, folders: Sequence[str], made: str, episodes: int, seconds: float
) -> Judged:
    """Run the checks of ``rollenv check``."""
    stage = _begin(folders, made, seconds)
    os.chdir(os.path.join(made, "work"))
    for finding in run_checks(env_spec, None, episodes, watch=lambda name: stage(f"the check {name!r}")):
        judged.checks[finding.name] = finding.ok
        if finding.ok is False and finding.detail not in {refusal.evidence for refusal in judged.refusals}:
            judged.refusals.append(Refusal(env_spec.id, finding.name, finding.detail))
    try:
        judged.refusals += _over_many_seeds(judged, env_spec, stage, seconds)
    except Exception as error:
        judged.refusals.append(Refusal(env_spec.id, "types", f"in the resets of many seeds: {describe(error)}"))
    return judged


def _over_many_seeds(
    judged: Judged, env_spec: EnvSpec, stage: Callable[[str], None], seconds: float
) -> Iterator[Refusal]:
    """Look for seeds that are one task, and for memory that episodes leave."""
    if judged.checks["seeds"]:
        stage("the resets of large seeds")
        near, far = (_tasks(env_spec, first) for first in (0, _FAR_SEED))
        if len(far) == 1 and len(near) > _SEEDS / 2:
            text = (
                f"seeds 0 to {_SEEDS - 1} give {len(near)} tasks, and {_FAR_SEED} to {_FAR_SEED + _SEEDS - 1} give one"
            )
            yield Refusal(env_spec.id, "seeds", text, _FAR_SEED)
    if judged.checks["leaks"] and judged.checks["hostile"] is not False:  # it plays an empty action
        stage("the episodes that watch its memory")
        if (kept := _kept(env_spec, seconds / 10)) > _KEPT:
            text = f"its process grows by {kept:.1f} MB with each episode"
            yield Refusal(env_spec.id, "leaks", text)


def _tasks(env_spec: EnvSpec, first: int) -> set[str]:
    """Return what some seeds show."""
    with contextlib.closing(env_spec.make()) as env:
        return {
            f"{observation} {info.get('suffix')}" for observation, info in map(env.reset, range(first, first + _SEEDS))
        }


def _kept(env_spec: EnvSpec, seconds: float) -> float:
    """Return the megabytes that an episode left in this process: the least of three rounds after a first one; 0 where
    there was no time for them."""
    until, used = time.monotonic() + seconds, list[float]()
    with contextlib.closing(env_spec.make()) as env:
        for _ in range(4):
            for seed in range(_ROUND):
                env.reset(seed)
                env.step("")
                if time.monotonic() > until:
                    return 0.0
            gc.collect()
            used.append(psutil.Process().memory_info().rss / 1e6)
    return min(after - before for before, after in itertools.pairwise(used)) / _ROUND


def compare(
    judged: Judged, env_spec: EnvSpec, folders: Sequence[str], made: str, episodes: int, seconds: float
) -> Judged:
    """Play the expert, random actions and agents without skill, and some of their episodes again."""
    stage = _begin(folders, made, seconds)
    os.chdir(os.path.join(made, "work"))
    if judged.checks["players"] is None:  # what a seat earns depends on the others
        stage("the episodes of agents")
        with _no_network(not env_spec.nondeterministic) as reached:
            judged.players, played = _played(env_spec, episodes)
        if reached and not any(refusal.rule == "network" for refusal in judged.refusals):
            text = f"while it is played, it connects to {', '.join(dict.fromkeys(reached))}"
            judged.refusals.append(Refusal(env_spec.id, "network", text))
        judged.refusals += _compared(env_spec.id, judged.players, played)
        if not env_spec.nondeterministic:
            judged.refusals += _padded(env_spec.id, played)
        stage("what tasks show")
        with contextlib.suppress(Exception):  # an expert that finds no way is told above
            if "oracle" in env_spec.abilities and (told := encoded_answer(env_spec, _tasks_for(env_spec, episodes))):
                judged.refusals.append(Refusal(env_spec.id, "shown", told))
        if takes(load_entry_point(env_spec.entry_point, env_spec.id), "split") and (told := shared_by_splits(env_spec)):
            judged.refusals.append(Refusal(env_spec.id, "splits", told))
        stage("the second process")
        os.chdir(made)  # a third folder, for what depends on it
        again = play_again(env_spec, [t for each in played.values() for t in each], _AGAIN)
        if again.differences and not env_spec.nondeterministic and judged.checks["processes"]:
            rule = "clock" if "clock" in again.differences[0].partition(": ")[0] else "replay"
            judged.refusals.append(Refusal(env_spec.id, rule, again.differences[0]))
    return judged


class _Padded(Agent):
    """Plays another agent's actions behind words that are no part of the task."""

    def __init__(self, agent: Agent):
        self.agent = agent

    def start(self, env: EnvHandle, seed: int) -> Session:
        return _PaddedSession(self.agent.start(env, seed))


@dataclass(slots=True)
class _PaddedSession(Session):
    inner: Session

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        return Action(_PADDING + (await self.inner.act(observation, info)).text)


def _played(env_spec: EnvSpec, episodes: int) -> tuple[list[Earned], dict[str, list[Trajectory]]]:
    """Play every agent, some tasks at a time while there is time; return their results and episodes."""
    tasks = _tasks_for(env_spec, episodes)
    agents: list[tuple[str, str, Agent]] = []
    if "oracle" in env_spec.abilities:
        agents.append(("the expert", "expert", OracleAgent()))
    if "random_action" in env_spec.abilities:
        agents.append(("random actions", "random", RandomAgent()))
    agents += [(f"{name} behind {_POLITE}", "padded", _Padded(agent)) for name, _, agent in agents]
    agents += [(floor.name, floor.kind, floor.agent) for floor in floors_of(env_spec, tasks[0])]
    results, played = [], dict[str, list[Trajectory]]()
    limits = EpisodeLimits(turns=_TURNS, max_replays=0, max_backoff=0.01)
    with RolloutManager(agents[0][2], limits=limits, max_concurrent=_TOGETHER, unhealthy_after=10**6) as manager:
        for name, kind, agent in agents:
            if name in played:
                continue
            until, played[name] = time.monotonic() + _PLAY / len(agents), []
            for first in range(0, len(tasks), _TOGETHER):
                some = [Trajectory(task, group=i) for i, task in enumerate(tasks[first : first + _TOGETHER])]
                with contextlib.suppress(RollenvError):  # failed episodes say why
                    manager.with_agent(agent).play(some)
                played[name] += some
                if time.monotonic() > until:
                    break
            if kind == "unearned":  # what the expert plays too, an empty answer perhaps, is an attempt
                right = [_actions(t) for t in played.get("the expert", ())]
                played[name] = [t for i, t in enumerate(played[name]) if [_actions(t)] != right[i : i + 1]]
                if not played[name]:
                    continue
            rewards = [t.reward for t in played[name] if t.complete] or [0.0]
            wins = sum(bool(t.success) for t in played[name] if t.complete)
            low, high = wilson_interval(wins, len(rewards), _SURE)
            spread = statistics.stdev(rewards) / len(rewards) ** 0.5 if len(rewards) > 1 else 0.0
            mean, turns = statistics.fmean(rewards), statistics.fmean(len(t.turns) for t in played[name])
            results.append(Earned(name, kind, len(rewards), wins / len(rewards), low, high, mean, spread, turns))
    return results, played


def _actions(trajectory: Trajectory) -> list[str]:
    return [turn.text.strip() for turn in trajectory.turns]


def _tasks_for(env_spec: EnvSpec, episodes: int) -> list[Task]:
    return tasks_of(env_spec.id, dict(env_spec.kwargs), None if env_spec.indexed else episodes)[:episodes]


def _padded(env_id: str, played: dict[str, list[Trajectory]]) -> Iterator[Refusal]:
    """Compare what equal actions earn with and without words before them, where the agent is told the same."""

    def told(t: Trajectory) -> tuple[Any, ...]:
        return *(turn.observation for turn in t.turns), t.final_observation, t.success

    pairs = [
        (with_them, alone)
        for name in played
        for with_them, alone in zip(played.get(f"{name} behind {_POLITE}", ()), played[name], strict=False)
        if with_them.complete and alone.complete and told(with_them) == told(alone)
    ]
    gains = [with_them.reward - alone.reward for with_them, alone in pairs]
    if gains and min(gains) > -1e-9 and sum(gain > 1e-9 for gain in gains) > len(gains) / 2:
        best = pairs[gains.index(max(gains))][0]
        text = f"the same actions earn {statistics.fmean(gains):.3g} more behind {_POLITE}, and are told the same"
        action = shortened(best.turns[-1].text, 80)
        yield Refusal(env_id, "unearned", text, best.task.seed, action, best.turns[-1].reward)


def _compared(env_id: str, results: Sequence[Earned], played: dict[str, list[Trajectory]]) -> Iterator[Refusal]:
    """Compare what agents earn: skill must pay, and what is no attempt must not."""
    by_kind = {kind: [each for each in results if each.kind == kind] for kind in {each.kind for each in results}}
    expert, random = (next(iter(by_kind.get(kind, ())), None) for kind in ("expert", "random"))
    constants = sorted(by_kind.get("constant", ()), key=lambda each: -each.success)[:1]
    chance = random.success if random else 0.0

    most = _FEW * (expert.reward if expert and expert.reward > 0 else 1.0)
    least = {name: min((t.reward for t in each if t.complete), default=0.0) for name, each in played.items()}

    def refuse(rule: str, floor: Earned, text: str) -> Refusal:
        t = max((t for t in played[floor.name] if t.complete), key=lambda t: (t.success or False, t.reward))
        turn = max(t.turns, key=lambda turn: turn.reward)
        numbers = f"success {floor.success:.0%}, mean reward {floor.reward:.3g} in {floor.episodes} episodes"
        evidence = f"“{floor.name}” {text}: {numbers}"
        return Refusal(env_id, rule, evidence, t.task.seed, shortened(turn.text, 80), turn.reward)

    failed = [t for each in played.values() for t in each if t.status == "failed"]
    if failed:
        text = f"{len(failed)} of {sum(map(len, played.values()))} episodes failed, the first by: {failed[0].error}"
        action = shortened(failed[0].turns[-1].text, 80) if failed[0].turns else None
        yield Refusal(env_id, "episodes", text, failed[0].task.seed, action)
    if expert and random:
        gap = expert.reward - random.reward
        same = {t.reward for each in (expert, random) for t in played[each.name] if t.complete}
        if gap < -_SURE * math.hypot(expert.spread, random.spread) - 1e-9 or (
            len(same) == 1 and not any(len(t.turns) >= _TURNS for t in played[expert.name])
        ):
            yield refuse("expert", random, f"earns as much as the expert or more, whose mean is {expert.reward:.3g}")
    solved = [t for t in played[expert.name] if t.success] if expert else []
    if solved and all(t.status == "truncated" for t in solved):
        text = f"the {len(solved)} episodes that the expert solves are truncated, none is terminated"
        yield Refusal(env_id, "over", text, solved[0].task.seed, shortened(solved[0].turns[-1].text, 80))
    luck = [random] if random else []
    for floor in results:
        low = floor.low
        margin = floor.reward - max(0.0, random.reward if random else 0.0)
        spread = math.hypot(floor.spread, random.spread if random else 0.0)
        always = least[floor.name] > 0 and not (random and least[random.name] > 0)
        paid = floor.reward > most and (always or margin > max(_SURE * spread, 1e-9))
        if floor.kind == "unearned" and (paid or _more(floor, luck) or floor.success == chance == 1.0):
            yield refuse("unearned", floor, "is paid, though it is no attempt at the task")
        elif floor.kind == "many" and _more(floor, luck + constants):
            yield refuse("unearned", floor, "solves more than one answer does")
        elif floor.kind == "reader" and _more(floor, luck + constants):
            yield refuse("shown", floor, "solves the task")
        elif floor.kind == "cheat" and low > _FEW:
            yield refuse("cheats", floor, "solves the task")
        elif floor.kind in ("constant", "moves") and floor.success > max(_ALL, chance) and low > _FEW:
            yield refuse("one answer", floor, "solves every task")


def _more(one: Earned, others: Sequence[Earned]) -> bool:
    """Return whether an agent solves more than a few tasks and than each other, by Newcombe's interval."""
    gaps = [
        (one.success - each.success, math.hypot(one.success - one.low, each.high - each.success)) for each in others
    ]
    return one.low > _FEW and all(gap > by_chance for gap, by_chance in gaps)

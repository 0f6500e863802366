"""Grading of an agent's machine with a task's tests, on a separate machine.

The agent's processes cannot affect the reward there. If the tests refer to the loopback, they may need servers of the
agent: its machine then keeps running, and its TCP ports are forwarded to the same ports of the grading machine.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from rollenv.envs.terminal.guard import FileGuard, tells_runners
from rollenv.envs.terminal.runners import read_runners
from rollenv.plugins.suites.harbor.folder import Artifact, TaskFolder, TaskStep, Verifier
from rollenv.sandbox import CommandResult, Image, Limits, Machine, NotFound, SandboxDied, SandboxError
from rollenv.sandbox.inside.protocol import ReadFile
from rollenv.sandbox.layers import temporary
from rollenv.sandbox.machine import LIMITS, PATH
from rollenv.sandbox.offline import FIRST_MODULES, NOTES, Offline, with_files

_LOOPBACK = re.compile(rb"localhost|127\.0\.0\.1|0\.0\.0\.0|::1")
#: Maximum number of forwarded ports (the lowest ones), and number of bytes of a test file that are searched.
_MOST_SERVICES, _LOOKED_AT = 32, 1 << 20
_SECONDS = 3.0
#: A listening socket (0A) that connections to 127.0.0.1 reach, in /proc/net/tcp and tcp6.
_SOCKET = re.compile(
    r"^ *\d+: (?:00000000|0100007F|0{32}|0{16}FFFF00000100007F):([0-9A-F]{4}) [0-9A-F]+:0000 0A ", re.M
)


def talk_to_servers(tests: Iterable[Path]) -> bool:
    """Return whether test files refer to the loopback."""
    for path in tests:
        with path.open("rb") as file:
            if _LOOPBACK.search(file.read(_LOOKED_AT)):
                return True
    return False


def listening(machine: Machine) -> list[int]:
    """Return the listening ports of the machine's loopback, as reported by its own programs."""
    try:
        table = machine.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], user="0", cwd="/", timeout=_SECONDS).stdout
    except NotFound:  # an agent that removes programs has to start again
        return []
    return sorted({int(port, 16) for port in _SOCKET.findall(table)} - {0})[:_MOST_SERVICES]


@contextlib.contextmanager
def carried(machine: Machine, ports: list[int]) -> Iterator[dict[int, str]]:
    """Forward ports of a running machine; yield the argument for ``Machine.create(tunnels=...)``."""
    try:
        yield {port: machine.ports.forward(port).address for port in ports}
    finally:
        machine.ports.close()


_LOGS = "/logs/verifier"
#: The folder for results, which a separate verifier always receives.
_PUBLISHED = Artifact("/logs/artifacts", "/logs/artifacts")
_MOST = 1 << 20
_SHOWN = 4000
#: Messages of failed installations without a network.
_NOT_SET_UP = re.compile(
    r"((?:Could not (?:find a version that satisfies|resolve host)|No matching distribution found for|"
    r"Unable to locate package|Temporary failure (?:resolving|in name resolution))[^\n]*|"
    r"No module named pytest\b[^\n]*|(?:pytest|uv|uvx|pip3?): (?:command )?not found)"
)


class VerifierError(SandboxError):
    """A task could not be graded: the reward is unknown, not 0."""


class RewardMissing(VerifierError):
    """The tests wrote no reward."""


class RewardEmpty(VerifierError):
    """The tests wrote an empty reward file."""


class RewardUnreadable(VerifierError):
    """The tests wrote neither a number nor a table of numbers."""


class VerifierTimedOut(VerifierError):
    """The tests were stopped at their time limit; rewards written before do not count."""


class TestsNotSetUp(VerifierError):
    """The requirements of the tests could not be installed."""

    __test__ = False  # not a test class for pytest


class SolutionNotPlayed(VerifierError):
    """The requirements of a task's own solution could not be installed."""


def lacking(output: str) -> str:
    """Return the line about a failed installation; empty if there is none."""
    found = _NOT_SET_UP.search(output)
    return found[0] if found else ""


@dataclass
class Grading:
    """The outcome of a task's tests.

    Attributes:
        rewards: rewards by name; the name of a single one is ``reward``.
        output: the end of the tests' output.
        left_out: files of the agent that were not copied to the grading machine.
        ended_early: whether a session of pytest began and did not finish, or the tests' script was changed.
        broke_tests: whether the tests have no result with the agent's files, but one without.
    """

    rewards: dict[str, float]
    output: str = ""
    left_out: list[str] = field(default_factory=list)
    ended_early: bool = False
    broke_tests: bool = False

    @property
    def reward(self) -> float:
        """The reward named ``reward``, else the mean of all."""
        if "reward" in self.rewards:
            return self.rewards["reward"]
        return sum(self.rewards.values()) / len(self.rewards) if self.rewards else 0.0


def verify(
    task: TaskFolder,
    step: TaskStep,
    machine: Machine,
    image: Image,
    *,
    offline: Offline | None = None,
    separate: Image | None = None,
    limits: Limits = LIMITS,
) -> Grading:
    """Grade a machine. Its processes are killed (servers after the tests that need them), its files stay.

    If the tests have no result because of the agent's work, the reward is 0, so that provoking an error does not pay.

    Raises:
        VerifierError: there is no reward even without the agent's files; subclasses are the reasons.
        SandboxDied: the agent's machine has died.
    """
    offline = offline or Offline()
    verifier = step.verifier
    scripts = [path.read_text(errors="replace") for path in verifier.files("*.sh")]
    offline.prepare(text for script in scripts for text in with_files(script, verifier.tests))
    for hook in verifier.collect:
        with contextlib.suppress(NotFound):  # the agent has removed the shell
            machine.run(hook.command, user=hook.user or None, timeout=hook.timeout, env=dict(task.env))
    servers = listening(machine) if separate is None and talk_to_servers(verifier.files()) else []
    if not servers:
        machine.end_processes()
    runners = read_runners(verifier.files("*.py"), _script(task, step))
    guard = FileGuard(image, runners, (path.name for path in verifier.files()))
    grading = _Grading(task, step, separate or image, offline, limits)
    try:
        with temporary() as folder, carried(machine, servers) as tunnels:
            try:
                if separate is None:
                    verdict = grading.run(machine.commit(folder / "layer", keep=guard), tunnels)
                else:
                    verdict = grading.run(separate, artifacts=lambda grader: _hand_over(machine, grader, step, folder))
            except VerifierError as error:
                if not grading.comes_to_a_result():
                    raise
                verdict = Grading({"reward": 0.0}, str(error), broke_tests=True)
    finally:
        if servers and machine.alive:
            machine.end_processes()
    verdict.left_out = guard.left_out
    return verdict


@dataclass(frozen=True)
class _Grading:
    """Runs the tests of one step, each time on a new machine, where the agent's files take no space from them."""

    task: TaskFolder
    step: TaskStep
    image: Image
    """The image without the agent's work."""
    offline: Offline
    limits: Limits

    def run(
        self,
        start: Image,
        tunnels: Mapping[int, str] | None = None,
        artifacts: Callable[[Machine], None] = lambda grader: None,
    ) -> Grading:
        shown = self.offline.shown()
        # A program of the agent that the tests start as another user must not become root with what the agent left.
        with Machine.create(start, limits=self.limits, shown=shown, tunnels=tunnels, set_user_id=False) as grader:
            artifacts(grader)
            return _run(self.task, self.step, grader, self.image, self.offline)

    def comes_to_a_result(self) -> bool:
        """Return whether the tests have a result without the agent's work, which is then the cause of the failure."""
        try:
            self.run(self.image)
        except VerifierError:
            return False
        return True


def _hand_over(machine: Machine, grader: Machine, step: TaskStep, folder: Path) -> None:
    """Copy the artifacts to a separate verifier, without links, which may lead anywhere."""
    for i, artifact in enumerate((_PUBLISHED, *step.artifacts)):
        source, target = artifact.source.rstrip("/"), artifact.destination.rstrip("/") or "/"
        copied = folder / str(i)
        try:
            kind = machine.files.info(source).type
            if kind != "link":
                machine.download(source, copied)
        except NotFound:
            continue
        except SandboxError as error:
            raise VerifierError(f"{source} could not be handed over: {error}") from error
        if kind == "dir":
            for path in list(copied.rglob("*")):
                if _fits(path.relative_to(copied), artifact.exclude):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
                elif tells_runners(path.name) and not path.is_dir():
                    path.unlink(missing_ok=True)
            grader.upload(copied, target)
        elif (found := copied / source.rpartition("/")[2]).is_file():
            parent, _, name = target.rpartition("/")
            grader.upload(found.rename(copied / name), parent or "/")


def _fits(name: Path, patterns: Sequence[str]) -> bool:
    """Return whether a name below a folder, or its end, matches a pattern, as for tar's ``--exclude``."""
    ends = ["/".join(name.parts[i:]) for i in range(len(name.parts))]
    return any(fnmatch(end, pattern) for pattern in patterns for end in ends)


def _script_file(task: TaskFolder, step: TaskStep) -> Path:
    name = step.verifier.script
    return (step.verifier.find(name) if task.kind == "harbor" and name else None) or task.path / name


def _script(task: TaskFolder, step: TaskStep) -> str:
    path = _script_file(task, step)
    if step.verifier.script and path.is_file():
        return path.read_text(errors="replace")
    return "python3 -m pytest"


def _account(image: Image, user: str) -> tuple[str, dict[str, str]]:
    """Return a user's ids and environment variables, from the image rather than the agent's machine."""
    name, _, group = user.partition(":")
    found = image.find("/etc/passwd")
    text = found.read_text(errors="replace") if found is not None and found.is_file() and not found.is_symlink() else ""
    lines = ["root:x:0:0::/root:", *text.splitlines()]
    for fields in (line.split(":") for line in lines):
        if len(fields) > 5 and (name or "root") == fields[2 if name.isdecimal() else 0]:
            about = {"HOME": fields[5], "USER": fields[0], "LOGNAME": fields[0]}
            return f"{fields[2]}:{group or fields[3]}", about
    return user, {}


def _run(task: TaskFolder, step: TaskStep, grader: Machine, image: Image, offline: Offline) -> Grading:
    verifier = step.verifier
    user, about = _account(image, verifier.user or grader.image.user)
    root = {"user": "0", "cwd": "/"}
    baked = image.find(f"/tests/{verifier.script}") if verifier.separate else None
    script = baked or _script_file(task, step)
    made = f"rm -rf {_LOGS} {'' if baked else '/tests'} && mkdir -p {_LOGS} /logs/agent /logs/artifacts /tests"
    made += f" && chown 0:0 /logs && chmod 755 /logs && mkdir -m 1777 -p {NOTES}"
    done = grader.run(["/bin/sh", "-c", f"{made} && chmod 777 {_LOGS}"], **root)
    if done.exit_code != 0:
        raise VerifierError(f"{task.name}: the grading machine could not be prepared: {done.stderr.strip()[-500:]}")
    for tests in verifier.tests if baked is None else ():
        grader.upload(tests, "/tests")
    command = _command(task, script, grader)
    env = {**task.env, **verifier.env, **offline.env(task.env.get("PATH") or grader.image.env.get("PATH", PATH))}
    given = env.get("PYTHONPATH") or grader.image.env.get("PYTHONPATH")
    env |= {**about, "PYTHONPATH": ":".join(filter(None, (FIRST_MODULES, given)))}
    try:
        done = grader.run(command, user=user, cwd=task.workdir or None, env=env, timeout=verifier.seconds)
        if done.error is not None and done.error.name == "Timeout":
            limit = f"{verifier.seconds:g} s"
            raise VerifierTimedOut(f"{task.name}: the tests did not end within {limit}. They said: {_end(done)}")
        grader.end_processes()
        output = (done.stdout + done.stderr)[-_SHOWN:]
        rewards = _rewards(task, step, grader, done) if verifier.writes_reward else _by_exit_code(done)
        early = _ended_early(grader) or _was_changed(grader, script)
        failed = _note(grader, "failed")
    except SandboxDied as error:
        raise VerifierError(f"{task.name}: the grading machine ended while the tests ran: {error}") from error
    except NotFound as error:
        raise VerifierError(f"{task.name}: the tests could not be started: {error}") from error
    why = failed.strip().rpartition("\n")[2] or lacking(done.stdout + done.stderr)
    if why and all(value <= 0 for value in rewards.values()):
        raise TestsNotSetUp(f"{task.name}: the tests could not be set up without a network: {why[:300]}")
    if early:
        rewards = dict.fromkeys(rewards, 0.0)
    return Grading(rewards, output, ended_early=early)


def _command(task: TaskFolder, script: Path, grader: Machine) -> list[str]:
    """Return the command that runs the tests."""
    if not script.is_file():
        install = "python3 -m pytest --version > /dev/null 2>&1 || pip install --quiet pytest || exit 1"
        return ["bash", "-c", f"{install}; exec python3 -m pytest /tests/test_outputs.py -rA"]
    if task.kind == "tb":
        grader.upload(script, "/tests")
    grader.run(["/bin/sh", "-c", "chmod +x /tests/*.sh"], user="0", cwd="/")
    has_shebang = script.read_bytes()[:2] == b"#!"
    return ["bash", "-c", f'exec {"" if has_shebang else "bash "}"/tests/{script.name}"']


# -- their rewards ---------------------------------------------------------------------------------------------------


def _by_exit_code(done: CommandResult) -> dict[str, float]:
    """Grade by Terminal-Bench's rule: by the exit code, and by pytest's or the script's summary."""
    summary = (done.stdout + done.stderr).rpartition("short test summary info")
    passed = done.exit_code == 0 and not (summary[1] and re.search(r"^(FAILED|ERROR) ", summary[2], re.MULTILINE))
    return {"reward": float(passed)}


def _rewards(task: TaskFolder, step: TaskStep, grader: Machine, done: CommandResult) -> dict[str, float]:
    """Read reward.json, else reward.txt, as Harbor does; one that the tests mention takes precedence."""
    for name in sorted(("reward.json", "reward.txt"), key=lambda name: not _mention(step.verifier, name)):
        path = f"{_LOGS}/{name}"
        try:
            text = grader.files._perform(ReadFile(path=path, max_bytes=_MOST)).decode("utf-8", "replace")
        except NotFound:
            continue
        except SandboxError as error:
            raise RewardUnreadable(f"{task.name}: {path} cannot be read: {error}") from error
        if not text.strip():
            raise RewardEmpty(f"{task.name}: {path} is empty. The tests said: {_end(done)}")
        return _parsed(task, path, text)
    raise RewardMissing(f"{task.name}: the tests wrote no {_LOGS}/reward.txt or reward.json. They said: {_end(done)}")


def _mention(tests: Verifier, name: str) -> bool:
    """Return whether tests mention a file; if not, the code under test may have written it."""
    files = (path for path in tests.files() if path.stat().st_size <= _MOST)
    return any(name.encode() in path.read_bytes() for path in files)


def _end(done: CommandResult) -> str:
    stopped = f"[{done.error.name}] " if done.error and done.error.name != "Exit" else ""
    return stopped + (done.stdout + done.stderr).strip()[-500:]


def _parsed(task: TaskFolder, path: str, text: str) -> dict[str, float]:
    try:
        value = json.loads(text) if path.endswith(".json") else float(text)
        found = value if isinstance(value, Mapping) else {"reward": value}
        rewards = {str(key): float(each) for key, each in found.items() if not isinstance(each, bool | str)}
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise RewardUnreadable(f"{task.name}: {path} is not a reward: {text.strip()[:200]!r}: {error}") from error
    if len(rewards) != len(found) or not rewards or not all(map(math.isfinite, rewards.values())):
        raise RewardUnreadable(
            f"{task.name}: {path} is not a reward: it takes finite numbers, got {text.strip()[:200]!r}"
        )
    return rewards


def _note(grader: Machine, name: str) -> str:
    try:
        return grader.files._perform(ReadFile(path=f"{NOTES}/{name}", max_bytes=_MOST)).decode("utf-8", "replace")
    except (NotFound, SandboxError):
        return ""


def _ended_early(grader: Machine) -> bool:
    """Return whether a session of pytest ended early, such as by code under test that exits with 0."""
    counts = Counter(_note(grader, "sessions").splitlines())
    begun = {line.split()[1] for line in counts if line.startswith("begin ")}
    return any(counts[f"end {pid}"] < counts[f"begin {pid}"] for pid in begun)


def _was_changed(grader: Machine, script: Path) -> bool:
    """Return whether the tests' script has changed, since Bash reads it while it runs."""
    if not script.is_file():
        return False
    wanted = script.read_bytes()
    try:
        return grader.files._perform(ReadFile(path=f"/tests/{script.name}", max_bytes=len(wanted))) != wanted
    except NotFound:  # the tests may have deleted it
        return False
    except SandboxError:
        return True

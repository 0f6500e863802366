"""InterCode's Bash: commands of NL2Bash over four file systems (arXiv 2306.14898)."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import tool
from rollenv.core.tools.calls import write_calls
from rollenv.envs.terminal.shell import LIMITS, Ran, run_once, sendable, settle
from rollenv.envs.tools.base import Judgement, Problem, Reminder
from rollenv.plugins.suites.os import INTERCODE
from rollenv.plugins.suites.os.base import MachineBackend, MachineEnv
from rollenv.plugins.suites.os.checks import HOME
from rollenv.plugins.suites.os.images import start_prepared
from rollenv.plugins.suites.os.intercode_reward import NEW, Outcome, changes, reward
from rollenv.sandbox import Machine
from rollenv.sandbox.errors import SandboxError
from rollenv.sandbox.layers import temporary

#: Time limit of a command in seconds, as upstream.
_SECONDS = 10.0
#: Ignored names, as in upstream's .gitignore, and other paths of programs.
_IGNORED = (
    "bin", "boot", "dev", "etc", "home", "lib", "media", "opt", "proc", "root", "run", "sbin", "srv", "sys", "usr",
    "var", ".dockerenv",
)  # fmt: skip
_PROGRAMS = ("lib32", "lib64", "libx32")
_POLICY = (
    "You translate a request into Bash. Commands run in a Linux system as root, each by itself; only `cd` alone on a "
    "line changes the folder of those that follow. The last command's output and what has changed in the file system "
    "are compared with those of the right command. Call submit when they are as wanted."
)
_REMINDER = "No function was called. Call execute_bash, or submit when the last output is the answer."
_STATUS = ["git", "-C", "/", "-c", "core.quotePath=false", "status", "--short", "-z"]
#: A placeholder for changes that git cannot report (too large ones, say), which no right command makes.
_UNKNOWN = frozenset({("", "!")})
_HASHES = r"""
while IFS= read -r -d '' path; do
    find "./$path" -xtype f -exec md5sum {} + | sort -k 2
    printf '\0'
done
"""


class Query(NamedTuple):
    """A request with its gold command."""

    text: str
    gold: str
    system: int
    """Number of its file system."""


class InterCodeBackend(MachineBackend):
    """A file system, with the last output.

    Args:
        query: the request, which is the output before the first command, as upstream.
    """

    def __init__(self, machine: Machine, query: Query, as_published: bool):
        super().__init__(machine)
        self.cwd, self.output, self.as_published = "/", query.text, as_published

    def execute(self, command: str) -> Ran:
        command = sendable(command)
        words, cwd, target = ["bash", "-c", command.strip()], self.cwd, ""
        if re.match(r"cd(\s|$)", command):
            # The target of cd, without resolving links, as upstream.
            target = command[3:].strip() or HOME
            parts: list[str] = []
            for part in (target if target.startswith("/") else f"{self.cwd}/{target}").split("/"):
                if part == "..":
                    parts = parts[:-1]
                elif part not in ("", "."):
                    parts.append(part)
            target = "/" + "/".join(parts)
            words, cwd = ["bash", "-c", f"cd {target}"], "/"
        ran = run_published(self.machine, words[2], cwd) if self.as_published else run(self.machine, words, cwd)
        self.output = ran.text
        if target and ran.ok:  # the target may contain expansions, as upstream
            self.cwd = run(self.machine, ["bash", "-c", f"cd {target} && pwd"], "/").text.rstrip("\n")
        return ran

    @tool
    def execute_bash(self, command: str) -> str:
        """Run a command in Bash and see its output.

        Args:
            command: a line for Bash.
        """
        return self._execute(command).text or "(no output)"

    @tool
    def submit(self) -> str:
        """Submit the last output and the file system as they are; this ends the task."""
        self._end()
        return "Submitted."


class InterCodeBashEnv(MachineEnv):
    """Requests for Bash commands, 200 of NL2Bash over four file systems, with InterCode's reward.

    The gold command runs in a second copy of the file system. The reward compares the last output and the final file
    system; a task is solved with a reward of 1. ``info["metrics"]["partial"]`` has it too.

    Args:
        as_published: put commands into double quotes for Bash, for comparisons with upstream's results. Double quotes
            in a command then close these, and the text after a following space is lost.
    """

    judged_when_cut = True

    def __init__(self, *, as_published: bool = False, max_turns: int = 10, **settings: Any):
        self.as_published = as_published
        self.folder = INTERCODE.found()
        self.queries = queries(self.folder)
        self.tasks = len(self.queries)
        super().__init__(max_turns=max_turns, **settings)

    def problem(self, key: int) -> Problem:
        query = self.queries[key]
        return Problem(
            question=query.text,
            backend=InterCodeBackend(start(self.folder, query.system), query, self.as_published),
            plan=[[("execute_bash", {"command": query.gold})], [("submit", {})]],
            user=Reminder(_REMINDER),
            policy=_POLICY,
            category=f"fs_{query.system}",
            before={},
        )

    def grade(self) -> Judgement:
        backend = self.backend
        assert isinstance(backend, InterCodeBackend)
        given = outcome(backend.machine, backend.output)
        score = reward(given, gold_outcome(self.folder, self.queries[self.key], self.as_published))
        return Judgement(score > 0.995, score)

    def sample_random_action(self) -> str:
        """Return a harmless command, or, rarely, the submission."""
        if self.action_rng.random() < 0.1:
            return write_calls([("submit", {})], self.calls)
        return write_calls([("execute_bash", {"command": self.random_command()})], self.calls)


@functools.lru_cache(maxsize=4)
def queries(root: Path) -> Sequence[Query]:
    """Read the 200 queries, by file system."""
    found = []
    for system in (1, 2, 3, 4):
        path = root / "nl2bash" / f"nl2bash_fs_{system}.json"
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
            for row in rows:
                gold = row["gold"]
                found.append(Query(row["query"], gold if isinstance(gold, str) else ";".join(gold), system))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is not a list of objects with query and gold: {error!r}") from error
    return found


def start(root: Path, system: int) -> Machine:
    """Start a machine with one of the file systems, committed to git."""
    name = f"setup_nl2b_fs_{system}.sh"
    script = (root / "docker" / "bash_scripts" / name).read_text(encoding="utf-8")

    def prepare(machine: Machine) -> None:
        machine.files.write(f"/{name}", script)
        machine.files.write("/.gitignore", "".join(f"{each}\n" for each in _IGNORED))
        machine.run(["bash", "-c", f"chmod +x /{name}; /{name}"], cwd="/")  # some lines fail, as upstream
        commands = "git init -q && git add -A && git commit -qm 'initial commit'"
        setup = "git config --global user.email a@example.org && git config --global user.name a && "
        done = machine.run(["bash", "-c", setup + commands], cwd="/")
        if done.exit_code != 0:
            raise SandboxError(f"InterCode's file system {system} cannot be made: {done.stderr.strip()[-300:]}")

    env = {"file_system_version": str(system), "script": name}
    return start_prepared("intercode", [script, " ".join(_IGNORED)], prepare, LIMITS, env)


def run(machine: Machine, words: list[str], cwd: str) -> Ran:
    """Run a program with its arguments, and return the output that an agent sees."""
    ran = run_once(machine, words, cwd=cwd, timeout=_SECONDS)
    if "seconds" in ran.cut:
        return Ran("Command timed out", 124, ran.cut)
    return ran


def run_published(machine: Machine, command: str, cwd: str) -> Ran:
    """Run a command in double quotes, as upstream, which those in the command close."""
    try:
        words = shlex.split(f'/bin/bash -c "{command.strip()}"')
    except ValueError:
        return Ran("Malformed command", 2)
    return run(machine, words, cwd)


def gold_outcome(root: Path, query: Query, as_published: bool) -> Outcome:
    """Return the effect of the gold command in a separate file system."""
    with start(root, query.system) as machine:
        if as_published:
            ran = run_published(machine, query.gold, "/")
        else:
            ran = run(machine, ["bash", "-c", query.gold.strip()], "/")
        return outcome(machine, ran.text)


def outcome(machine: Machine, output: str) -> Outcome:
    """Return the changes of a machine, determined on a fresh one with its files and the system's own programs."""
    with temporary() as folder:
        settle(machine)
        machine.end_processes()
        image = machine.commit(folder / "layer", keep=_counts)
        with Machine.create(image, limits=LIMITS) as sandbox:
            status = sandbox.run(_STATUS)
            changed = changes(status.stdout) if status.exit_code == 0 else _UNKNOWN
            new = sorted(path for path, kind in changed if kind in NEW)
            listed = "".join(f"{path}\0" for path in new)
            hashes = sandbox.run(["bash", "-c", _HASHES], cwd="/", stdin=listed).stdout.split("\0") if new else []
        return Outcome(output, changed, dict(zip(new, hashes, strict=False)))


def _counts(path: str, *_: Any) -> bool:
    """Return whether a file can be in git's status; only these are copied for the comparison."""
    parts = path.split("/")[1:]
    return parts[0] not in _IGNORED + _PROGRAMS and not any(part.startswith(".git") for part in parts)

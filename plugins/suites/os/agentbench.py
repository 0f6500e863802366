"""AgentBench's tasks in an operating system as an environment."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollenv.core.env import ResetResult
from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import tool
from rollenv.core.tools.calls import write_calls
from rollenv.envs.terminal.shell import LIMITS, Ran, Shell
from rollenv.envs.tools.base import Judgement, Problem, Reminder
from rollenv.plugins.suites.os import AGENTBENCH
from rollenv.plugins.suites.os.base import MachineBackend, MachineEnv
from rollenv.plugins.suites.os.checks import HOME, is_right
from rollenv.plugins.suites.os.images import start_prepared
from rollenv.plugins.suites.os.items import Item, read_items
from rollenv.sandbox import Machine
from rollenv.sandbox.errors import SandboxError

#: Time limit of a script in seconds, and maximum length of output, beyond which ``_SHOWN`` characters are shown.
_SECONDS, _MOST_SHOWN, _SHOWN = 30.0, 800, 780
_POLICY = (
    "You are root on a Linux system and reach it through functions. Answer the question or do what is asked. Scripts "
    "cannot ask for input; long output is cut. When you know the answer, call answer_action with nothing but the "
    "answer; when a task without a question is done, call finish_action."
)
_REMINDER = "No function was called. Call bash_action, or answer_action or finish_action to end the task."


class AgentBenchOSBackend(MachineBackend):
    """A system, with the answer of the agent."""

    def __init__(self, shell: Shell):
        super().__init__(shell.machine)
        self.shell, self.output = shell, ""

    def execute(self, command: str) -> Ran:
        ran = self.shell.run(command)
        self.output = ran.text
        return ran

    @tool
    def bash_action(self, script: str) -> str:
        """Run a script in Bash and see its output. The folder and variables stay as a script leaves them.

        Args:
            script: the lines to run.
        """
        ran = self._execute(script)
        shown = ran.text if len(ran.text) <= _MOST_SHOWN else f"{ran.text[:_SHOWN]}\n{_CUT}"
        stopped = f"\n[the script was stopped: {ran.cut}]" if ran.cut else ""
        if shown or stopped:
            return f"The output of the OS:\n\n{shown}{stopped}"
        return "The output of the OS is empty."

    @tool
    def finish_action(self, thought: str = "") -> str:
        """Say that the task is done; this ends it.

        Args:
            thought: why.
        """
        self._end(None)
        return "Finished."

    @tool
    def answer_action(self, answer: str | int | float) -> str:
        """Answer the question; this ends the task.

        Args:
            answer: nothing but the answer.
        """
        self._end(str(answer))
        return "Answered."


#: Creates the logs of an installation, which tasks read.
_LOGS = r"""
cd /var/log && mkdir -p apt
dpkg-query -W -f '1970-01-01 00:00:00 status installed ${Package}:${Architecture} ${Version}\n' > dpkg.log
printf 'Commandline: apt install python3 git vim curl wget unzip zip tree\n' > apt/history.log
touch apt/term.log alternatives.log bootstrap.log faillog lastlog btmp wtmp
"""
_CUT = "[truncated because the output is too long]"


class AgentBenchOSEnv(MachineEnv):
    """Questions about a Linux system and changes of it, with Bash, graded by AgentBench's rules.

    ``info["task"]`` is the published name, such as ``4-Q09-0``: folder, file and number.

    Args:
        split: ``test`` (144 tasks), ``dev`` (26) or ``train`` (1,000).
        network: include the tasks that install packages. Machines have no network, so those raise an error.
    """

    def __init__(self, *, split: str = "test", network: bool = False, max_turns: int = 8, **settings: Any):
        if split not in AGENTBENCH:
            raise UsageError(f"split={split!r} is unknown; choose from {', '.join(AGENTBENCH)}")
        self.items = items(AGENTBENCH[split].found(), split, network)
        self.tasks = len(self.items)
        super().__init__(max_turns=max_turns, **settings)
        self.split = split

    @property
    def item(self) -> Item:
        """The current task."""
        return self.items[self.key]

    def problem(self, key: int) -> Problem:
        item = self.items[key]
        backend = AgentBenchOSBackend(start(item))
        solve: list[Any] = []
        if item.answer is not None and not item.regex:
            solve = [[("answer_action", {"answer": item.answer})]]
        elif item.example is not None:
            solve = [[("bash_action", {"script": item.example.code})]]
        return Problem(
            question=item.description,
            backend=backend,
            plan=solve,
            name=item.name,
            user=Reminder(_REMINDER),
            policy=_POLICY,
            category=item.name.partition("-")[0],
            before={},
        )

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        observation, info = super()._reset(options)
        return observation, info | {"task": self.item.name}

    def grade(self) -> Judgement:
        backend = self.backend
        if "ended" not in backend.state:
            return Judgement(False)
        right = is_right(self.item, backend.state["ended"], backend.machine, lambda: start(self.item).machine)
        return Judgement(right, float(right))

    def closing(self) -> str:
        """Answer with the output of the solution, if any."""
        assert isinstance(self.backend, AgentBenchOSBackend)
        output = self.backend.output.strip()
        return write_calls([("answer_action", {"answer": output}) if output else ("finish_action", {})], self.calls)

    def sample_random_action(self) -> str:
        """Return a harmless command, or, rarely, an answer."""
        if self.action_rng.random() < 0.1:
            return write_calls([("answer_action", {"answer": str(self.action_rng.randrange(10))})], self.calls)
        return write_calls([("bash_action", {"script": self.random_command()})], self.calls)


@functools.lru_cache(maxsize=8)
def items(root: Path, split: str, network: bool) -> Sequence[Item]:
    """Return the tasks of a split (``test``, ``dev`` or ``train``)."""
    return [item for item in read_items(root, split) if network or not item.needs_network]


def start(item: Item) -> Shell:
    """Start a machine, prepare a task, and return its shell."""

    def prepare(machine: Machine) -> None:
        machine.run(["bash", "-c", _LOGS])
        for script in item.init:
            done = machine.run(script.words(), cwd=HOME)
            if done.error is not None:
                raise _cannot_begin(item, f"{done.stderr or done.stdout}\n{done.error.value}")

    recipe = [_LOGS] + [f"{script.language}\n{script.code}" for script in item.init]
    machine = start_prepared("agentbench", recipe, prepare, LIMITS, {})
    shell = Shell(machine, HOME, _SECONDS)
    if item.start is not None:
        ran = shell.run(item.start.code)  # in the session that the agent continues
        if not ran.ok:
            machine.kill()
            raise _cannot_begin(item, f"{ran.text}\n{ran.cut}")
    return shell


def _cannot_begin(item: Item, output: str) -> SandboxError:
    return SandboxError(
        f"the task {item.name} of AgentBench cannot begin, a script of it failed: {output.strip()[-300:]}"
    )

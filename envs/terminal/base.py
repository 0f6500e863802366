"""The base of environments with a shell on a machine, graded at the end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import EpisodeOver, NoSuchAbility, UsageError
from rollenv.core.parsing import cut_middle
from rollenv.core.tools.calls import CALL_FORMS, CallForm, call_instructions, find_calls, unknown_argument, write_calls
from rollenv.core.tools.sandboxed import as_own_errors
from rollenv.envs.terminal.program import Attached, Program
from rollenv.envs.terminal.shell import Ran, Shell
from rollenv.sandbox import Machine, SandboxDied, SandboxError

#: An action format besides the formats of calls: the whole action is a command, and :data:`SUBMIT` ends the episode.
PLAIN = "plain"
#: The action that ends the episode with :data:`PLAIN`.
SUBMIT = "submit"
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command with bash and see what it prints. The working directory and exported "
            "variables stay for the next command. Nothing can be typed while it runs.",
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": "a command line, or a script"},
                    "timeout": {"type": "number", "description": "seconds until it is stopped"},
                },
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": SUBMIT,
            "description": "Say that the task is done. This ends the episode, and what is there is graded.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]
_PARAMETERS: dict[str, dict[str, Any]] = {tool["function"]["name"]: tool["function"]["parameters"] for tool in _TOOLS}
_PLAIN_HELP = (
    f"Each of your messages is a command for bash, as it stands; the single word {SUBMIT} says that the task is done."
)
_NO_CALL = "No call was found. Call bash with a command, or submit once the task is done."


@dataclass
class StartedTask:
    """A task with its machine, ready for the agent."""

    instruction: str
    machine: Machine
    cwd: str = "/app"
    user: str = "root"


@dataclass
class Graded:
    """The outcome of a task."""

    reward: float
    success: bool
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """Additional items for ``info``."""
    says: str = ""
    """The next observation, if the episode continues."""


class TerminalEnv(Env):
    """Tasks on a private machine, for agents with ``bash``.

    An action calls ``bash`` (see ``calls``) or ``submit``; with ``calls="plain"`` it is a command. The observation is
    the output of the command, shortened in the middle, with the exit code unless it is 0. The machine is graded at the
    end, also after ``max_turns`` or ``max_seconds``. An author defines :meth:`start` and :meth:`grade`.

    ``info`` has ``tools`` (schemas) and ``submit`` (the action that ends the episode) at reset, and at the end
    ``success``, ``metrics`` and further results of the grading.

    Args:
        calls: format of calls: ``hermes``, ``json``, ``python``, ``native`` or ``plain``.
        output_chars: maximum length of shown output; the middle of longer output is left out.
        command_seconds: time limit of a command, unless the call sets a lower one.
        max_seconds: time limit of all commands together; None for no limit.
        attached: additions to the task's machine. Programs can pass it, but not clients of a server.
        sandbox: only ``local``: a container cannot limit the files that its root writes, nor hand them to a grader.
    """

    _plan: list[str] | None
    _program: Program | None
    _shell: Shell

    def __init__(
        self,
        *,
        max_turns: int = 50,
        calls: str = "hermes",
        output_chars: int = 10_000,
        command_seconds: float = 120.0,
        max_seconds: float | None = None,
        attached: Attached | None = None,
        sandbox: str = "local",
    ):
        if sandbox != "local":
            raise UsageError(
                f"sandbox={sandbox!r}: machines of terminal tasks are always 'local'; image='NAME' (shell:*) and "
                "base='docker' (harbor:, tb:) play them with the files of Docker's images"
            )
        if not isinstance(attached, Attached | None):
            raise UsageError(f"attached is an Attached, got {attached!r:.80}")
        if calls not in (*CALL_FORMS, PLAIN):
            raise UsageError(f"calls={calls!r} is unknown; choose from {', '.join((*CALL_FORMS, PLAIN))}")
        for name, value in {"max_turns": max_turns, "output_chars": output_chars}.items():
            if type(value) is not int or value < 1:
                raise UsageError(f"{name} is a whole number from 1, got {value!r}")
        for name, seconds in {"command_seconds": command_seconds, "max_seconds": max_seconds}.items():
            if seconds is not None and not seconds > 0:
                raise UsageError(f"{name} is above 0, got {seconds!r}")
        self.max_turns, self.calls, self.output_chars = max_turns, calls, output_chars
        self.command_seconds, self.max_seconds = command_seconds, max_seconds
        self.attached = attached or Attached()
        self._started: StartedTask | None = None
        self._begin_again()

    # -- what an author defines ----------------------------------------------------------------------------------------

    def start(self, options: dict[str, Any]) -> StartedTask:
        """Choose a task with :attr:`np_random` or ``options``, and start its machine."""
        raise NotImplementedError(f"{type(self).__name__} has no start()")

    def grade(self) -> Graded:
        """Grade the state of :attr:`machine`."""
        raise NotImplementedError(f"{type(self).__name__} has no grade()")

    def go_on(self, graded: Graded) -> bool:
        """Return whether another step of the task follows, with the observation ``graded.says``."""
        return False

    def solution(self) -> Sequence[str]:
        """Return commands that solve the task, for the oracle."""
        raise NotImplementedError(f"{type(self).__name__} has no solution()")

    # -- the episode ---------------------------------------------------------------------------------------------------

    @property
    def machine(self) -> Machine:
        """The machine of the episode."""
        return self._begun_task.machine

    @property
    def instruction(self) -> str:
        """The instruction of the task."""
        return self._begun_task.instruction

    @property
    def cwd(self) -> str:
        """The working directory of commands."""
        return self._begun_task.cwd

    @property
    def user(self) -> str:
        """The user of commands."""
        return self._begun_task.user

    @property
    def _begun_task(self) -> StartedTask:
        if self._started is None:
            raise EpisodeOver(f"{self}: call reset() to start an episode")
        return self._started

    def say(self, text: str, *, ends: bool = False, valid: bool = True, died: bool = False) -> StepResult:
        """Count a turn that was played on the machine from outside; grade the machine after the last turn.

        Raises:
            EpisodeOver: there is no running episode.
        """
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; call reset() to start the next one")
        self.turn += 1
        result = self._died() if died else self._after(text, ends, not ends and self._is_late(), valid)
        self._rollenv_over = result[2] or result[3]
        return result

    def _is_late(self) -> bool:
        return self.turn >= self.max_turns or (self.max_seconds is not None and self.spent >= self.max_seconds)

    def wait(self, seconds: float) -> None:
        """Wait for some time, at most up to the limit; it counts as time of commands."""
        if self.max_seconds is not None:
            seconds = max(0.0, min(seconds, self.max_seconds - self.spent))
        time.sleep(seconds)
        self.spent += seconds

    def next_of_solution(self) -> str | None:
        """Return the solution's next command; None at its end."""
        if self._plan is None:
            self._plan = list(self.solution())
        return self._plan.pop(0) if self._plan else None

    def run_whole(self, command: str) -> str:
        """Run a command of the solution, and return the output."""
        return self._run(command, self.command_seconds)

    # -- a program that plays the episode ------------------------------------------------------------------------------

    def start_program(self, spec: dict[str, Any]) -> None:
        """Start a program that plays the task, see :class:`~rollenv.envs.terminal.program.Program`.

        Its deadline is limited by the remainder of :attr:`max_seconds`.
        """
        if self._program is not None:
            raise UsageError(f"{self}: a program is running; call end_program() first")
        if self.max_seconds is not None:
            spec = {**spec, "seconds": max(0.1, min(float(spec["seconds"]), self.max_seconds - self.spent))}
        self._program = Program(self.machine, spec, self.cwd, self.user)

    def poll_program(self, wait: float = 5.0) -> dict[str, Any]:
        """Wait for the program, see :meth:`~rollenv.envs.terminal.program.Program.poll`."""
        return self._playing.poll(wait)

    def end_program(self) -> dict[str, Any]:
        """Stop the program and count its time, see :meth:`~rollenv.envs.terminal.program.Program.end`."""
        program, self._program = self._playing, None
        ended = program.end()
        self.spent += ended["seconds"]
        return ended

    @property
    def _playing(self) -> Program:
        if self._program is None:
            raise UsageError(f"{self}: no program is running; call start_program() first")
        return self._program

    def _begin_again(self) -> None:
        self.turn = self._solved = 0
        self.spent = 0.0
        self.shown = ""
        self._plan = None
        self._program = None

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.close()
        self._begin_again()
        with as_own_errors():
            self._started = self.start(options)
        self._shell = Shell(self.machine, self.cwd, self.command_seconds, self.user)
        tools = [] if self.calls == PLAIN else json.loads(json.dumps(_TOOLS))
        how = _PLAIN_HELP if self.calls == PLAIN else call_instructions(tools, self._form)
        self.shown = "\n\n".join(part for part in (self._started.instruction.strip(), how) if part)
        return self.shown, {"submit": self.written(SUBMIT), **({"tools": tools} if tools else {})}

    @property
    def _form(self) -> CallForm:
        return self.calls  # type: ignore[return-value]

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        try:
            commands, ends, wrong = self._parse_commands(action)
            outputs = [self._run(command, seconds) for command, seconds in commands]
            text = "\n".join([*outputs, *([wrong] if wrong else [])])
            return self._after(text, ends, not ends and self._is_late(), valid=not wrong)
        except SandboxDied:
            return self._died()

    def _after(self, text: str, ends: bool, cut: bool, valid: bool) -> StepResult:
        info: dict[str, Any] = {} if valid else {"valid": False}
        self.shown = text
        if not ends and not cut:
            return text, 0.0, False, False, info
        graded = self.grade()
        if ends and self.go_on(graded):
            self.shown, self._plan = graded.says, None
            return graded.says, 0.0, False, False, info
        self.close()
        info |= {"success": graded.success, "metrics": {"turns": self.turn, **graded.metrics}, **graded.details}
        return text, graded.reward, ends, cut, info

    def _died(self) -> StepResult:
        """End an episode whose machine has died, as failed."""
        self.close()
        text = "The machine has ended."
        return text, 0.0, True, False, {"success": False, "metrics": {"turns": self.turn, "machine_ended": 1}}

    def _parse_commands(self, action: str) -> tuple[list[tuple[str, float]], bool, str]:
        """Parse commands with their time limits, whether the agent submits, and an error."""
        if self.calls == PLAIN:
            ends = action.strip() == SUBMIT
            return ([] if ends or not action.strip() else [(action, self.command_seconds)]), ends, ""
        commands: list[tuple[str, float]] = []
        for call in find_calls(action, self._form, _TOOLS)[0]:
            if wrong := call.problem or unknown_argument(
                call, _PARAMETERS.get(call.name, {"additionalProperties": True})
            ):
                return commands, False, f"error: {wrong}"
            if call.name == SUBMIT:
                return commands, True, ""
            command = call.arguments.get("command") if call.name == "bash" else None
            if not isinstance(command, str):
                return commands, False, f"error: {call.name[:100]} is no call of bash(command) or submit()"
            seconds = call.arguments.get("timeout", self.command_seconds)
            good = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
            commands.append((command, float(min(seconds, self.command_seconds) if good else self.command_seconds)))
        return commands, False, "" if commands else _NO_CALL

    def _run(self, command: str, seconds: float) -> str:
        if self.max_seconds is not None:
            seconds = max(0.1, min(seconds, self.max_seconds - self.spent))
        ran = self._shell.run(command, timeout=seconds)
        self.spent += ran.seconds
        return shown_output(ran, self.output_chars)

    def _rollenv_twin(self) -> Env:
        raise NoSuchAbility(f"{self} cannot be copied in the middle of an episode: its state is a running machine")

    def close(self) -> None:
        """Stop the machine."""
        if self._started is not None:
            with contextlib.suppress(SandboxError):
                self._started.machine.kill()
            self._started = None

    def render(self) -> str:
        """Return the last observation."""
        return self.shown

    def sample_random_action(self) -> str:
        """Return a harmless command, or, rarely, the submission."""
        commands = ("ls", "pwd", "ls ..", "echo hello", "cat *", "true", "wc -l *")
        command = commands[self.action_rng.randrange(len(commands))]
        return self.written(SUBMIT if self.action_rng.random() < 0.1 else command)

    def oracle_action(self) -> str:
        """Return the solution's next command, or the submission after the last."""
        return self.written(self.next_of_solution() or SUBMIT)

    def written(self, command: str) -> str:
        """Write a command, or :data:`SUBMIT`, as an action."""
        if self.calls == PLAIN:
            return command
        return write_calls([(SUBMIT, {}) if command == SUBMIT else ("bash", {"command": command})], self._form)


def shown_output(ran: Ran, most: int) -> str:
    """Return the observation of a command: its output without the middle, and any failure."""
    text = cut_middle(ran.text, most)
    if not ran.cut and not ran.exit_code:
        return text
    if text and not text.endswith("\n"):
        text += "\n"
    return text + (f"[stopped: {ran.cut}]" if ran.cut else f"[exit code {ran.exit_code}]")

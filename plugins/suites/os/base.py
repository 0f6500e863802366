"""The base of tasks on a machine."""

from __future__ import annotations

from typing import Any

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import NoSuchAbility
from rollenv.core.tools.backend import Answer, Backend, ToolError
from rollenv.envs.terminal.shell import Ran
from rollenv.envs.tools.base import Judgement, Problem, ToolEnv
from rollenv.sandbox import Machine, SandboxDied
from rollenv.sandbox.errors import SandboxError

#: Deterministic, harmless commands with the same output in every task.
_LOOKS = ("pwd", "ls /", "id -un", "uname -s", "wc -l < /etc/passwd", "cat /etc/hostname", "echo $HOME", "ls /srv")


class MachineBackend(Backend):
    """A backend with a machine. Its state is only the commands and the answer, so it cannot be restored."""

    def __init__(self, machine: Machine):
        super().__init__({"commands": []})
        self.machine = machine
        self.failure: SandboxError | None = None

    def execute(self, command: str) -> Ran:
        """Run a command of the agent."""
        raise NotImplementedError

    def _execute(self, command: str) -> Ran:
        self._going_on()
        self.state["commands"].append(command)
        try:
            return self.execute(command)
        except SandboxError as error:
            self.failure = error
            raise

    def _end(self, answer: str | None = None) -> None:
        """End the task, with or without an answer."""
        self._going_on()
        self.state["ended"] = answer

    def _going_on(self) -> None:
        if "ended" in self.state:
            raise ToolError("the task is over")


class MachineEnv(ToolEnv):
    """Tasks on a private machine, which stops with the episode.

    A machine that cannot be started or prepared raises an error, instead of a reward of 0. If the agent's commands
    crash the machine, the episode ends as not solved, with ``info["died"]``.
    """

    _get_state = _set_state = None  # type: ignore[assignment]  # the state is the machine's

    def _rollenv_twin(self) -> Env:
        raise NoSuchAbility(f"{self} cannot be copied in the middle of an episode: its state is a running machine")

    @property
    def backend(self) -> MachineBackend:
        backend = self.current.backend
        assert isinstance(backend, MachineBackend)
        return backend

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        self.close()
        return super()._reset(options)

    def close(self) -> None:
        if self._current is not None:
            self.backend.machine.kill()
        self._rollenv_over = True

    def _call(self, name: str, arguments: dict[str, Any]) -> Answer:
        answer = super()._call(name, arguments)
        failure = self.backend.failure
        if failure is not None and not isinstance(failure, SandboxDied):
            raise failure
        if failure:
            return Answer("The machine has ended.", failed=True)
        return answer

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        backend = self.backend
        died = backend.failure is not None
        if died:
            info = {**info, "valid": True}
        result = super()._after(ended or died or "ended" in backend.state, valid, info)
        if backend.failure is not None:
            result[4]["died"] = True
        if result[2] or result[3]:
            backend.machine.kill()
        return result

    def judge(self, problem: Problem) -> Judgement:
        if self.backend.failure is None:
            try:
                return self.grade()
            except SandboxDied as error:
                self.backend.failure = error
        return Judgement(False)

    def grade(self) -> Judgement:
        """Judge the episode while the machine is still running."""
        raise NotImplementedError(f"{type(self).__name__} has no grade()")

    def random_command(self) -> str:
        """Return a command without effects and with constant output."""
        return self.action_rng.choice(_LOOKS)

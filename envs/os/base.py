"""The base of tasks in a machine: its start, its commands, its end."""

from __future__ import annotations

from typing import Any

from rollenv.core import Env, NoSuchAbility, ResetResult, StepResult
from rollenv.envs.terminal.shell import Ran
from rollenv.envs.tools.base import Judgement, Problem, ToolEnv
from rollenv.sandbox import Machine, SandboxDied
from rollenv.sandbox.errors import SandboxError
from rollenv.tools.backend import Answer, Backend, ToolError

#: Deterministic, harmless, and the same in every task.
_LOOKS = ("pwd", "ls /", "id -un", "uname -s", "wc -l < /etc/passwd", "cat /etc/hostname", "echo $HOME", "ls /srv")


class MachineBackend(Backend):
    """A machine that functions work in. Its state is only the commands and the answer: it cannot be taken back."""

    def __init__(self, machine: Machine):
        super().__init__({"commands": []})
        self.machine = machine
        self.failure: SandboxError | None = None

    def execute(self, command: str) -> Ran:
        """Run what the agent wrote.

        Raises:
            SandboxDied: the machine has ended.
        """
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
        """The agent ends the task, with an answer or without."""
        self._going_on()
        self.state["ended"] = answer

    def _going_on(self) -> None:
        if "ended" in self.state:
            raise ToolError("the task is over")


class MachineEnv(ToolEnv):
    """Tasks in a machine of their own, which ends with the episode.

    A machine that cannot be started or prepared raises an error: it is never a reward of 0. One that the agent's
    commands bring down ends the episode as not solved, with ``info["died"]``.
    """

    _get_state = _set_state = None  # type: ignore[assignment]  # the state is the machine's

    def _twin(self) -> Env:
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
        self._over = True

    def _call(self, name: str, arguments: dict[str, Any]) -> Answer:
        answer = super()._call(name, arguments)
        failure = self.backend.failure
        if failure is not None and not isinstance(failure, SandboxDied):
            raise failure
        return Answer("The machine has ended.", failed=True) if failure else answer

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        backend = self.backend
        died = backend.failure is not None
        info = {**info, "valid": True} if died else info
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
        """Judge the episode; the machine is still there.

        Raises:
            SandboxDied: what the agent left brings machines down.
        """
        raise NotImplementedError(f"{type(self).__name__} has no grade()")

    def random_command(self) -> str:
        """A command that changes nothing and says the same every time."""
        return self.action_rng.choice(_LOOKS)

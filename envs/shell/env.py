"""Generated tasks in a shell as an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.tools.sandboxed import as_own_errors
from rollenv.envs.data.procedural import span
from rollenv.envs.shell.generate import MIX, SPLITS, generate, split_of
from rollenv.envs.shell.task import SIZES, ShellTask
from rollenv.envs.shell.workspace import MachineWorkspace
from rollenv.envs.terminal.base import Graded, StartedTask, TerminalEnv
from rollenv.envs.terminal.guard import tampered
from rollenv.sandbox import Image, Machine
from rollenv.sandbox.docker import docker_image

_HOME = "/app"
_PROGRAMS = ("bash", "awk", "find", "grep", "gzip", "python3", "sed", "tar")
_WHERE = f"You are in the folder {_HOME}. All paths are relative to it."


class ShellEnv(TerminalEnv):
    """Tasks about files, logs, tables, processes, git and more on a private machine, drawn from the seed.

    The reward is 1 if all checks hold at the end, else 0.

    Args:
        family: one of :data:`~rollenv.envs.shell.generate.FAMILIES`, or ``mix`` for all.
        size: 1 (one short command) to 5, or the smallest and the largest.
        split: ``train``, ``val`` and ``test`` never share a task; ``all`` is the union.
        partial: reward of an unsolved task, multiplied by the share of checks that hold, 0 to 1.
        image: image of the machine, or its name in this host's Docker engine, with bash, coreutils, findutils, grep,
            sed, awk, git, tar, gzip and python3; by default the host's own programs.
    """

    def __init__(
        self,
        family: str = MIX,
        *,
        size: int | Sequence[int] = 1,
        template: str | None = None,
        split: str = "all",
        partial: float = 0.0,
        image: Image | str | None = None,
        **settings: Any,
    ):
        super().__init__(**settings)
        if split not in SPLITS:
            raise UsageError(f"split {split!r} is unknown; choose from {', '.join(SPLITS)}")
        if not 0 <= partial <= 1:
            raise UsageError(f"partial is a number from 0 to 1, got {partial!r}")
        self.sizes = span("size", size, SIZES[0])
        self.family, self.template, self.split, self.partial = family, template, split, partial
        with as_own_errors():
            self.image = docker_image(image) if isinstance(image, str) else image
        if isinstance(image, str) and self.image is None:
            raise UsageError(f"Docker has no image {image!r} here: docker pull or build it")
        if self.image is not None:
            there = set().union(*map(self.image.names, ("/usr/local/bin", "/usr/bin", "/bin")))
            needed = (*_PROGRAMS, *(("git",) if family in (MIX, "git") else ()))
            if lacking := [name for name in needed if name not in there]:
                raise UsageError(f"the image lacks {', '.join(lacking)}, without which tasks cannot be solved")
        for end in self.sizes:
            generate(family, 0, end, template)  # validates the arguments
        self._task: ShellTask | None = None

    @property
    def task(self) -> ShellTask:
        """The current task."""
        if self._task is None:
            raise UsageError(f"{self}: call reset() to draw a task")
        return self._task

    def draw(self) -> ShellTask:
        """Draw the next task of the split."""
        for _ in range(1000):
            size = self.sizes[0] + self.randint(self.sizes[1] - self.sizes[0] + 1)
            task = generate(self.family, int(self.np_random.integers(2**62)), size, self.template)
            if self.split in ("all", split_of(task)):
                return task
        raise UsageError(f"{self}: its settings leave no tasks in the split {self.split!r}")

    def start(self, options: dict[str, Any]) -> StartedTask:
        self._task = task = self.draw()
        machine = Machine.create(self.image, **self.attached.settings)
        try:
            MachineWorkspace(machine, _HOME).prepare(task.files, task.setup)
        except BaseException:
            machine.kill()
            raise
        return StartedTask(f"{task.instruction}\n\n{_WHERE}", machine, _HOME)

    def grade(self) -> Graded:
        about = {"family": self.task.family, "template": self.task.template, "size": self.task.size}
        if changed := tampered(self.machine):  # no task requires it, and checks run these programs
            return Graded(0.0, False, {"partial": 0.0}, {**about, "why": f"{changed[0]} of the system was changed"})
        verdict = self.task.judge(MachineWorkspace(self.machine, _HOME))
        reward = 1.0 if verdict.success else self.partial * verdict.partial
        return Graded(reward, verdict.success, {"partial": verdict.partial}, {**about, "why": verdict.why})

    def solution(self) -> Sequence[str]:
        return self.task.oracle

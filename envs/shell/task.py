"""A task in a shell: the instruction, the initial files, a solution, and the checks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rollenv.envs.shell.draw import TaskDraw
from rollenv.envs.shell.workspace import Workspace

#: A picklable function from a machine to the description of an error; empty if there is none.
Check = Callable[[Workspace], str]
SIZES = range(1, 6)


@dataclass(frozen=True)
class ShellVerdict:
    """The verdict on an episode."""

    success: bool
    partial: float
    """Share of the checks that hold, 0 to 1."""
    why: str
    """Description of the errors, for people: it may reveal the answer."""


@dataclass(frozen=True)
class ShellTask:
    """A task in the working folder, where commands start."""

    instruction: str
    files: Mapping[str, bytes | str]
    """Initial files: contents by relative path."""
    oracle: tuple[str, ...]
    """Bash commands that solve the task, one per turn."""
    checks: tuple[Check, ...]
    """Checks that must all hold at the end."""
    setup: str = ""
    """Bash commands to run in the working folder, after the files are written and before the episode."""
    family: str = ""
    template: str = ""
    size: int = 1

    def judge(self, workspace: Workspace) -> ShellVerdict:
        """Judge the final state."""
        wrong = [why for why in (check(workspace) for check in self.checks) if why]
        return ShellVerdict(not wrong, 1 - len(wrong) / len(self.checks), "; ".join(wrong))

    def task_id(self) -> str:
        """Return a hash of the instruction and the initial files: equal tasks have equal names."""
        digest = hashlib.blake2b(digest_size=16)
        for text in (self.instruction, self.setup, *(part for item in sorted(self.files.items()) for part in item)):
            data = text.encode() if isinstance(text, str) else text
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.hexdigest()


Make = Callable[[TaskDraw, int], ShellTask]


@dataclass(frozen=True)
class ShellTemplate:
    """A kind of task: a function of the random draws and the size."""

    name: str
    make: Make
    sizes: range


@dataclass
class Family:
    """Templates about one subject."""

    name: str
    about: str
    templates: list[ShellTemplate] = field(default_factory=list)

    def template(self, least: int, most: int) -> Callable[[Make], Make]:
        """Add the decorated function, under its name without the underscore, for sizes from least to most (1 to 5)."""

        def add(make: Make) -> Make:
            self.templates.append(ShellTemplate(make.__name__.lstrip("_"), make, range(least, most + 1)))
            return make

        return add

    def task(self, seed: int | str, size: int, template: str | None = None) -> ShellTask:
        """Generate the task of a seed. ``size``: 1 (one short command) to 5."""
        draw = TaskDraw(f"shell {self.name} {template or ''} {size} {seed}")
        kinds = [one for one in self.templates if size in one.sizes and template in (None, one.name)]
        kind = draw.pick(kinds)
        return replace(kind.make(draw, size), family=self.name, template=kind.name, size=size)

"""A task in a shell: what is asked, the files it starts with, a way to solve it, and how the end is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rollenv.envs.shell.draw import Draw
from rollenv.envs.shell.workspace import Workspace

#: Looks at a machine and says what is wrong; an empty text if nothing is. Picklable.
Check = Callable[[Workspace], str]
SIZES = range(1, 6)


@dataclass(frozen=True)
class Verdict:
    """The verdict on an episode."""

    success: bool
    partial: float
    """The share of the checks that hold, 0 to 1."""
    why: str
    """Description of what is wrong; empty if nothing is. For people: it may give the answer away."""


@dataclass(frozen=True)
class ShellTask:
    """One task. All of it lives in the working folder, where commands start."""

    instruction: str
    files: Mapping[str, bytes | str]
    """Written before the episode: relative path to contents."""
    oracle: tuple[str, ...]
    """Commands for bash that solve it, one per turn."""
    checks: tuple[Check, ...]
    """All of them have to hold at the end."""
    setup: str = ""
    """Commands for bash, run in the working folder after the files are there and before the episode."""
    family: str = ""
    template: str = ""
    size: int = 1

    def judge(self, workspace: Workspace) -> Verdict:
        """Judge what an agent has left."""
        wrong = [why for why in (check(workspace) for check in self.checks) if why]
        return Verdict(not wrong, 1 - len(wrong) / len(self.checks), "; ".join(wrong))

    def named(self) -> str:
        """A hash of the instruction and of the files at the start: equal tasks have equal names."""
        digest = hashlib.blake2b(digest_size=16)
        for text in (self.instruction, self.setup, *(part for item in sorted(self.files.items()) for part in item)):
            data = text.encode() if isinstance(text, str) else text
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.hexdigest()


Make = Callable[[Draw, int], ShellTask]


@dataclass(frozen=True)
class Template:
    """A kind of task: a function of random draws and a size."""

    name: str
    make: Make
    sizes: range


@dataclass
class Family:
    """Templates about one subject."""

    name: str
    about: str
    templates: list[Template] = field(default_factory=list)

    def template(self, least: int, most: int) -> Callable[[Make], Make]:
        """Add the decorated function, under its own name without the underscore.

        Args:
            least: the smallest size that it is made for, from 1.
            most: the largest size, up to 5.
        """

        def add(make: Make) -> Make:
            self.templates.append(Template(make.__name__.lstrip("_"), make, range(least, most + 1)))
            return make

        return add

    def task(self, seed: int | str, size: int, template: str | None = None) -> ShellTask:
        """The task with this seed.

        Args:
            seed: equal seeds give equal tasks, in every process.
            size: 1 (one short command) to 5.
            template: name of the kind; by default one that is drawn among those made for the size.
        """
        draw = Draw(f"shell {self.name} {template or ''} {size} {seed}")
        kinds = [one for one in self.templates if size in one.sizes and template in (None, one.name)]
        kind = draw.pick(kinds)
        return replace(kind.make(draw, size), family=self.name, template=kind.name, size=size)

"""The families of shell tasks, and the draw of a task."""

from __future__ import annotations

import zlib

from rollenv.core.errors import UsageError
from rollenv.envs.shell import archives, git, logs, permissions, processes, scripting, services, tables, text, trees
from rollenv.envs.shell.draw import TaskDraw
from rollenv.envs.shell.task import SIZES, Family, ShellTask

_MODULES = (trees, logs, tables, permissions, processes, git, text, services, archives, scripting)
#: Families of tasks by name.
FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in _MODULES}
#: Name for a random choice among all families.
MIX = "mix"
SPLITS = ("all", "train", "val", "test")
#: One in this many tasks is a test task, and one a validation task.
_SHARE = 10


def generate(family: str, seed: int, size: int = 1, template: str | None = None) -> ShellTask:
    """Generate the task of a seed. ``size``: 1 (one short command) to 5."""
    if family != MIX and family not in FAMILIES:
        raise UsageError(f"there is no family {family!r} of shell tasks; choose from {', '.join([*FAMILIES, MIX])}")
    if isinstance(size, bool) or size not in SIZES:
        raise UsageError(f"size is a whole number from {SIZES[0]} to {SIZES[-1]}, got {size!r}")
    chosen = FAMILIES[TaskDraw(f"shell {seed}").pick(list(FAMILIES)) if family == MIX else family]
    kinds = [one.name for one in chosen.templates if size in one.sizes]
    if template is not None and template not in kinds:
        raise UsageError(f"{family} has no kind {template!r} of size {size}; choose from {', '.join(kinds)}")
    return chosen.task(seed, size, template)


def split_of(task: ShellTask) -> str:
    """Return ``train``, ``val`` or ``test``, by a hash of the task, so that no two splits share one."""
    return {0: "test", 1: "val"}.get(zlib.crc32(task.task_id().encode()) % _SHARE, "train")

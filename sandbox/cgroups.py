"""Control groups for a sandbox: memory, processes and a share of the processors, if this process may create them.

Version 2 where a group above this process's own lets its members' memory be controlled (systemd delegates such groups
to users), version 1 where root can make a group below this process's own. See cgroups(7). Groups of ended owners
are swept.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path

from rollenv.sandbox.types import Limits

#: What our groups' names begin with; then the owner's pid and when it started.
_PREFIX = "rollenv-"
#: Processes of a sandbox that run no code of its user.
_OWN_PROCESSES = 16
#: A sandbox's share of busy processors: the default, and, by file, the reduced one for long-running work.
_SHARE = {"cpu.weight": "100", "cpu.shares": "1024"}
_LOW_SHARE = {"cpu.weight": "33", "cpu.shares": "341"}
_numbers = itertools.count(1)


class ControlGroups:
    """The control groups of one sandbox.

    Attributes:
        folders: of the groups, by controller; empty where none can be made.
        oom: the file that counts kills for lack of memory, or None if memory is not controlled.
        share: the file that holds the share of the processors, or None.
    """

    def __init__(self, limits: Limits):
        self.folders: dict[str, Path] = {}
        self.oom: Path | None = None
        name = f"{_PREFIX}{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"
        for controller, parent in _parents().items():
            with contextlib.suppress(OSError):
                _sweep(parent)
                folder = parent / name
                folder.mkdir(exist_ok=True)
                try:
                    _limit(controller, folder, limits)
                except OSError:
                    if folder not in self.folders.values():
                        folder.rmdir()
                    raise
                self.folders[controller] = folder
        if memory := self.folders.get("memory"):
            events = memory / "memory.events"
            self.oom = events if events.exists() else memory / "memory.oom_control"
        cpu = self.folders.get("cpu")
        self.share = next((cpu / name for name in _SHARE if (cpu / name).exists()), None) if cpu else None

    def joining(self) -> list[int]:
        """Descriptors through which a process puts itself into the groups: it writes ``0`` to each."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY) for folder in dict.fromkeys(self.folders.values())]

    def shares(self) -> list[str]:
        """Return the texts for the file of the share: as usual, and once work takes long."""
        return [values[self.share.name] for values in (_SHARE, _LOW_SHARE)] if self.share else []

    def close(self) -> None:
        """Remove the groups. Their processes have been killed; the last may take a moment to end."""
        for folder in dict.fromkeys(self.folders.values()):
            for _ in range(200):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
        self.folders = {}


def _limit(controller: str, folder: Path, limits: Limits) -> None:
    """Set a controller's limits; the memory limit is required. Versions 1 and 2 differ only in file names."""
    memory = str(limits.memory_mb << 20)
    sockets = str(limits.memory_mb << 16)  # version 1 counts TCP and UDP buffers separately, and only under a limit
    settings = {
        "memory": {
            "memory.max": memory,
            "memory.limit_in_bytes": memory,
            "memory.kmem.tcp.limit_in_bytes": sockets,
        },
        "pids": {"pids.max": str(limits.processes + _OWN_PROCESSES)},
        "cpu": _SHARE,
    }[controller]
    found = {name: value for name, value in settings.items() if (folder / name).exists()}
    if not found:
        raise FileNotFoundError(f"{folder} does not control {controller}")
    for name, value in found.items():
        (folder / name).write_text(value)
    if controller == "memory":
        with contextlib.suppress(OSError):  # where there is no swap there is nothing to limit
            (folder / "memory.swap.max").write_text("0")
        with contextlib.suppress(OSError):
            (folder / "memory.memsw.limit_in_bytes").write_text(memory)


def _parents() -> dict[str, Path]:
    """Controller to the folder that a group for it can be made in."""
    mounts: list[tuple[str, Path, str]] = []
    groups: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                mounts.append((kind, Path(before.split()[4]), f",{options},"))
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), path)
    found: dict[str, Path] = {}
    for controller in ("memory", "pids", "cpu"):
        for kind, place, options in mounts:
            if kind == "cgroup" and f",{controller}," in options and controller in groups:
                found[controller] = _ours(place, groups[controller])
            elif kind == "cgroup2" and (parent := _delegating(place, groups.get("", "/"), controller)):
                found.setdefault(controller, parent)
    return {controller: folder for controller, folder in found.items() if os.access(folder, os.W_OK)}


def _ours(place: Path, path: str) -> Path:
    """The folder of a group, as far as it can be seen here (a container's mount may begin at its own group)."""
    folder = place / path.lstrip("/")
    return folder if folder.is_dir() and ".." not in folder.parts else place


def _delegating(place: Path, path: str, controller: str) -> Path | None:
    """The nearest group above whose members can be controlled, and into which we may move processes."""
    folder = _ours(place, path)
    while folder.is_relative_to(place):
        with contextlib.suppress(OSError):
            enabled = (folder / "cgroup.subtree_control").read_text().split()
            if controller in enabled and os.access(folder / "cgroup.procs", os.W_OK):
                return folder
        if folder == place:
            return None
        folder = folder.parent
    return None


def _sweep(parent: Path) -> None:
    """Remove groups whose owners are gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            pid, started, _ = folder.name.removeprefix(_PREFIX).split("-")
            if _started(int(pid)) != started:
                folder.rmdir()


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "gone"

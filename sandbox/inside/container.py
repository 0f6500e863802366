"""Becomes the kernel as process 1 of a container. The engine isolates; this adds seccomp, and Landlock if it may."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

if __package__:
    from rollenv.sandbox.inside import kernel, linux
else:  # its source was sent to the container
    import kernel  # type: ignore[import-not-found,no-redef]
    import linux  # type: ignore[import-not-found,no-redef]

#: All that can be written to.
WRITABLE = ("/box", "/tmp", "/dev/shm", "/home")
SCRATCH = "/box/home"


def main() -> None:
    """Serve requests that come on standard input; answers go to standard output."""
    if os.getpid() != 1:
        sys.exit("this must be process 1 of a container: it ends every process that it can see")
    inward, outward = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nowhere, fd)
    os.makedirs(SCRATCH, exist_ok=True)
    sys.path.remove("")  # what runs here must not choose what the kernel imports
    loaded = []
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            loaded.append(name)
    linux.set_dumpable(False)
    program, rules = linux.seccomp_program(), _rules()

    def harden() -> None:
        linux.drop_capabilities()
        linux.set_dumpable(True)
        if rules is not None:
            linux.landlock_restrict(rules)
        linux.seccomp_filter(program)

    serving = kernel.Kernel(inward, outward, harden=harden, wipe=_wipe, scratch=SCRATCH, proc=True)
    serving.send({"id": 0, "ready": {"proc": True, "landlock": int(rules is not None), "loaded": loaded}})
    serving.serve()


def _rules() -> int | None:
    try:
        return kernel.out_of_the_way(linux.landlock_ruleset([*WRITABLE, "/dev"])) if linux.landlock_version() else None
    except OSError:  # the engine's own filter does not let it through
        return None


def _wipe() -> None:
    """Remove everything that was written, however deep and whatever its permissions."""
    for folder in WRITABLE:
        with contextlib.suppress(PermissionError):  # /dev/shm is root's
            os.chmod(folder, 0o700)
        _empty(folder)
    os.mkdir(SCRATCH)


def _empty(folder: str) -> None:
    """Without recursion: what is in a folder moves up before the folder goes."""
    moved = 0
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.remove(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for inner in list(os.scandir(entry.path)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)  # a folder that may not be written cannot be moved
                moved += 1
                os.rename(inner.path, f"{folder}/moved {moved}")
            os.rmdir(entry.path)

"""A program that works on a task on the machine, such as a third-party agent."""

from __future__ import annotations

import contextlib
import json
import posixpath
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs.terminal.shell import sendable
from rollenv.sandbox import Machine, NotFound, SandboxError, SandboxTimeout

#: Folder of runtimes. Processes that run from there belong to the program; others that it started, to the task.
RUNTIMES = "/opt/harness"
#: Maximum length of the returned output and transcript, whose ends are kept.
_OUTPUT, _TRANSCRIPT = 20_000, 2_000_000
#: Seconds after the deadline at which a program without a waiting environment is killed.
_LONGER = 300.0
_PREPARE = 'rm -rf "$1" && mkdir -p "$1" && cat > "$1/stdin" && chmod 700 "$1"'
_START = 'exec "$@" < "$HARNESS_HOME/stdin" > "$HARNESS_HOME/output" 2>&1'
#: Script that reads the end of files, and of nothing that has no end, such as a pipe.
_READ = 'for each in {0}; do test -f "$each" && cat "$each"; done | tail -c {1}'
#: Script that kills processes from the runtimes, including daemons; the pattern does not match this script.
_END = f"""
for _ in 1 2 3 4 5 6 7 8 9 10; do
    none=1
    for each in /proc/[0-9]*; do
        if grep -qs '[/]{RUNTIMES[1:]}/' "$each/maps" "$each/cmdline"; then none=; kill -9 "${{each#/proc/}}"; fi
    done 2> /dev/null
    test "$none" && exit 0
    sleep 0.05
done
exit 1
"""


@dataclass(frozen=True)
class Attached:
    """Additions to a task's machine, beyond the task's own requirements.

    Attributes:
        shown: read-only mounts: folders of the host by path in the machine.
        tunnels: addresses (``HOST:PORT``) reachable from the environment's process, by port of the machine's loopback.
    """

    shown: Mapping[str, str] = field(default_factory=dict)
    tunnels: Mapping[int, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Return arguments for :meth:`Machine.create`."""
        return {"shown": self.shown, "tunnels": self.tunnels}


class Program:
    """A program that runs in a machine.

    Args:
        spec: plain data: ``command`` (words), ``seconds`` (its deadline), ``home`` (a folder for its files, which is
            created, and removed at the end), and optionally ``env``, ``files`` (text or JSON data by path), ``stdin``
            and ``transcript`` (a shell pattern for files).
        user: name or id of the user that runs it.
    """

    def __init__(self, machine: Machine, spec: Mapping[str, Any], cwd: str, user: str):
        if lacking := {"command", "seconds", "home"} - spec.keys():
            raise UsageError(f"the spec of a program has no {', '.join(sorted(lacking))}")
        self.machine, self.user, self.home = machine, user, str(spec["home"])
        self.transcript = str(spec.get("transcript", ""))
        self._as_root(_PREPARE, self.home, stdin=sendable(str(spec.get("stdin", ""))))
        for path, content in dict(spec.get("files", {})).items():
            text = content if isinstance(content, str) else json.dumps(content, indent=1)
            machine.files.write(posixpath.join(self.home, path), text)
        self._as_root('chown -R "$2" "$1"', self.home, user or "0")
        self._begun = time.monotonic()
        self._until = self._begun + float(spec["seconds"])
        self._handle = machine.commands.start(
            ["/bin/sh", "-c", _START, "sh", *(sendable(str(word)) for word in spec["command"])],
            cwd=cwd,
            env={
                **{name: sendable(str(value)) for name, value in dict(spec.get("env", {})).items()},
                "HARNESS_HOME": self.home,
            },
            timeout=float(spec["seconds"]) + _LONGER,
            user=user,
        )

    def _as_root(self, script: str, *words: str, stdin: str = "") -> None:
        done = self.machine.run(["/bin/sh", "-c", script, "sh", *words], stdin=stdin, user="0", cwd="/")
        if done.exit_code:
            raise SandboxError(f"the program's folder {self.home} could not be made: {done.stderr.strip()[-300:]}")

    def poll(self, wait: float = 0.0) -> dict[str, Any]:
        """Wait up to ``wait`` seconds for its end; return ``running``, and ``seconds`` since the start."""
        with contextlib.suppress(SandboxError):
            self._handle.wait(max(0.0, min(wait, self._until - time.monotonic())))
        now = time.monotonic()
        return {"running": self._handle.running and now < self._until, "seconds": now - self._begun}

    def end(self) -> dict[str, Any]:
        """Stop it and all processes of its runtime. Servers that it started for the task keep running.

        Returns:
            ``exit_code`` (None if it was killed here, or with its machine), ``output`` (the end), ``seconds`` and
            ``transcript`` (empty if there is none).
        """
        ended: dict[str, Any] = {"exit_code": None, "output": "", "transcript": ""}
        running, ended["seconds"] = self._handle.running, time.monotonic() - self._begun
        try:
            self._inside(_END)
            with contextlib.suppress(SandboxTimeout):
                self._handle.wait(5.0)
            self._handle.kill()
            ended["exit_code"] = None if running else self._handle.wait().exit_code
            ended["output"] = self._inside(_READ.format(f"{self.home}/output", _OUTPUT))
            if self.transcript:
                ended["transcript"] = self._inside(_READ.format(self.transcript, _TRANSCRIPT))
            self._inside(f"rm -rf {self.home}", user="0")
        except SandboxError as error:  # the machine has died, or has no such user or folder
            ended["output"] = str(error)
        return ended

    def _inside(self, script: str, user: str = "") -> str:
        """Run a command as the program's user, so that links have only its access; empty if the shell is gone."""
        with contextlib.suppress(NotFound):
            return self.machine.run(["/bin/sh", "-c", script], user=user or self.user, cwd="/").stdout
        return ""

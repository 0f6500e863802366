"""Runs a harness inside a machine, whose only network access is the model's endpoint."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rollenv.agents.harness.install import architecture, install
from rollenv.agents.harness.records import Harness, filled
from rollenv.envs.terminal.program import RUNTIMES, Attached, Program
from rollenv.sandbox import Machine

#: The port of the machine's loopback that leads to the gateway.
PORT = 8900
#: The folder for a harness's own files, in the machine.
HOME = "/run/harness"
_PROGRAMS, _SCRIPTS = f"{RUNTIMES}/programs", f"{RUNTIMES}/scripts"


def attached(harness: Harness, gateway: str) -> Attached:
    """Install a harness and return the mounts and ports that a machine needs for it.

    Args:
        gateway: the address of the endpoint, ``HOST:PORT``; in the machine it is ``127.0.0.1:PORT``.
    """
    mounts = {_PROGRAMS: str(Path(__file__).with_name("programs"))}
    if harness.scripts:
        mounts[_SCRIPTS] = harness.scripts
    if harness.npm or harness.pip:
        mounts[f"{RUNTIMES}/{harness.folder}"] = str(install(harness))
    return Attached(mounts, {PORT: gateway})


def program(
    harness: Harness,
    *,
    base_url: str,
    key: str,
    model: str,
    instruction: str,
    seconds: float,
    max_turns: int = 100,
    context: int = 131_072,
    tools: bool = False,
) -> dict[str, Any]:
    """Return a harness with a task as plain data, for :meth:`~rollenv.envs.terminal.base.TerminalEnv.start_program`.

    Args:
        base_url: address of the endpoint in the machine without ``/v1``, such as ``http://127.0.0.1:8900/s/1``.
    """
    values = {
        "base_url": base_url.rstrip("/"),
        "key": key,
        "model": model,
        "instruction": instruction,
        "max_turns": max_turns,
        "context": context,
        "home": HOME,
        "mcp_url": f"{base_url.rstrip('/')}/mcp",
        "runtime": f"{RUNTIMES}/{harness.folder}",
        "programs": _PROGRAMS,
        "scripts": _SCRIPTS,
        **architecture(),
    }
    templates = {name: getattr(harness, name) for name in ("env", "files", "stdin", "transcript")}
    words = harness.command
    if tools:
        words, templates["env"] = f"{words} {harness.mcp}", {**harness.env, **harness.mcp_env}
    command = filled(shlex.split(words), values)
    return {**filled(templates, values), "command": command, "home": HOME, "seconds": seconds}


def play(machine: Machine, spec: dict[str, Any], *, cwd: str = "/app", user: str = "root") -> dict[str, Any]:
    """Run a :func:`program` to its end or deadline in a machine with :func:`attached`; see :meth:`Program.end`."""
    running = Program(machine, spec, cwd, user)
    while running.poll(wait=5.0)["running"]:
        pass
    return running.end()

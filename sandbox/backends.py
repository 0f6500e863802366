"""Backends by name, each verified before first use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from rollenv.core import UsageError
from rollenv.sandbox import docker, local, probes
from rollenv.sandbox.errors import IsolationError
from rollenv.sandbox.types import Limits
from rollenv.sandbox.worker import Worker

BACKENDS = ("local", "docker")

_proved: dict[str, dict[str, bool]] = {}
_proving = threading.Lock()


def start(
    backend: str, limits: Limits, packages: Sequence[str] = (), *, require: Sequence[str] = (), **settings: Any
) -> Worker:
    """Start a worker and verify its isolation. The first worker of each kind in a process is probed.

    Args:
        backend: one of :data:`BACKENDS`.
        packages: Python packages that must be importable inside.
        require: isolation properties that must hold; by default those that the backend promises.

    Raises:
        IsolationError: a promised or required property does not hold; nothing is left running.
        UsageError: the backend or a property is unknown, or a package cannot be imported.
    """
    if backend not in BACKENDS:
        raise UsageError(f"there is no sandbox backend {backend!r}; choose from {', '.join(BACKENDS)}")
    if unknown := [name for name in require if name not in probes.PROPERTIES]:
        raise UsageError(f"there is no isolation property {unknown[0]!r}; choose from {', '.join(probes.PROPERTIES)}")
    worker = _start(backend, limits, packages, settings)
    if missing := [name for name in packages if name not in worker.about["loaded"]]:
        worker.close()
        raise UsageError(f"Python in the {backend} sandbox cannot import {', '.join(missing)}, listed in packages=")
    kind = f"{backend} {sorted(settings.items())}"
    try:
        with _proving:
            if kind not in _proved:
                _proved[kind] = probes.prove(worker)
    except BaseException:
        worker.close()
        raise
    worker.about["isolation"] = _proved[kind]
    missing = [name for name in require or probes.PROMISED[backend] if not _proved[kind].get(name)]
    if missing:
        worker.close()
        said = "; ".join(f"{name} ({probes.PROPERTIES[name]})" for name in missing)
        raise IsolationError(f"the {backend} sandbox cannot provide what was requested on this machine: {said}")
    return worker


def _start(backend: str, limits: Limits, packages: Sequence[str], settings: dict[str, Any]) -> Worker:
    if backend == "docker":
        return docker.start(limits, packages, **settings)
    if settings:
        raise UsageError(f"the local sandbox takes no setting {next(iter(settings))!r}")
    return local.start(limits, packages)

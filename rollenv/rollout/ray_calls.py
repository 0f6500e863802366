"""Helpers for Ray: connect, wait for calls of actors, kill actors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

from rollenv.core.cache import can_be_made
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.interrupt import interrupt, interruptible
from rollenv.core.needs import extra

with extra("ray", "Running in Ray"):
    import ray
    from ray.exceptions import RayActorError, RayError, RayTaskError

#: Maximum number of processes per core; a machine with few cores may still have ``_MOST_HERE``.
_FOR_A_CORE, _MOST_HERE = 4, 16

#: Seconds to wait for a connection to the head of a cluster.
_REACHED_WITHIN = 10.0

#: Seconds without an answer of the cluster's head after which it counts as lost. Ray ends the process after 60.
_SILENCE = 12

_LOST = (
    "the Ray node of this process has ended, or the head of its cluster no longer answers (killed, out of memory, "
    "disconnected?): see `ray status` or Ray's logs; a training run continues with --resume"
)

logger = logging.getLogger(__name__)


class ClusterLost(RollenvError):
    """The Ray node of this process has ended, or the cluster no longer answers."""


def agree_on_devices(environ: MutableMapping[str, str]) -> None:
    """Set the variables that hide GPUs from ROCm to the same value for Ray, torch and vLLM.

    ``ROCR_VISIBLE_DEVICES`` hides GPUs from the driver, which numbers the others from 0. ``HIP_VISIBLE_DEVICES`` (for
    torch also ``CUDA_VISIBLE_DEVICES``) selects among these numbers. Ray sets ``HIP_VISIBLE_DEVICES`` in its processes
    and refuses to start if only the first is set, so the second is then set to all visible GPUs.
    """
    hip, cuda = environ.get("HIP_VISIBLE_DEVICES"), environ.get("CUDA_VISIBLE_DEVICES")
    if hip is not None and cuda is not None and hip != cuda:
        raise UsageError(
            f"HIP_VISIBLE_DEVICES={hip} and CUDA_VISIBLE_DEVICES={cuda} name different GPUs, and ROCm reads both: "
            "unset CUDA_VISIBLE_DEVICES"
        )
    if (left := environ.get("ROCR_VISIBLE_DEVICES")) is not None and hip is None:
        count = len([name for name in left.split(",") if name.strip()])
        environ["HIP_VISIBLE_DEVICES"] = cuda if cuda is not None else ",".join(map(str, range(count)))


@contextlib.contextmanager
def connected(address: str = "", *, cpus: float = 0) -> Iterator[None]:
    """Connect to a cluster during the block. An existing connection is kept.

    Args:
        address: address of the cluster; by default RAY_ADDRESS, or else a local cluster that ends with the block.
        cpus: number of CPUs of a local cluster, even if there are fewer cores.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    cores = max(os.cpu_count() or 1, math.ceil(cpus)) if address == "local" else None
    most = max(_MOST_HERE, _FOR_A_CORE * (os.cpu_count() or 1))
    if cores and cores > most:
        raise UsageError(
            f"{cpus:g} CPUs are too many for this machine, which takes {most}: start fewer ranks, shards or actors, or "
            "name a cluster with placement.address or RAY_ADDRESS"
        )
    agree_on_devices(os.environ)
    _check_reachable(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address == "local" and not can_be_made(Path(os.path.expanduser("~/.ray"))):  # where Ray would keep the token
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints what happens to its nodes
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, num_cpus=cores)
            if callable(handler) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray has set its own, which ends the program at once
        except (OSError, RuntimeError, ValueError) as error:
            why = first_line(error).partition(" To fix this")[0]
            raise UsageError(
                f"cannot join a Ray cluster at {address!r}: {why}. If Ray logged InvalidAuthToken, set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on its head"
            ) from error
        try:
            with _watched():
                yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Interrupt the block, in the main thread, when the cluster is lost: Ray would wait for it for minutes.

    Raises:
        ClusterLost: the cluster is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    node, ended, lost, answers = ray.get_runtime_context().get_node_id(), threading.Event(), threading.Event(), [0]

    def ask() -> None:
        """Ask the head for this node, and connect to the node itself, which refuses before the head misses it."""
        with contextlib.suppress(Exception):
            while not ended.wait(0.5):
                (own,) = (n for n in ray.nodes() if n["NodeID"] == node and n["Alive"])  # type: ignore[no-untyped-call]
                with contextlib.suppress(TimeoutError):
                    socket.create_connection((own["NodeManagerAddress"], own["NodeManagerPort"]), 1.0).close()
                answers[0] += 1

    def watch() -> None:
        asking = threading.Thread(target=ask, name="ray-nodes", daemon=True)
        asking.start()
        silence = heard = 0
        while asking.is_alive() and silence < 2 * _SILENCE:  # in steps, so that a stopped process is not silent
            if ended.wait(0.5):
                return
            silence, heard = (silence + 1 if answers[0] == heard else 0), answers[0]
        if not ended.is_set():
            logger.error(_LOST)  # now: Ray may end the process as soon as it is asked to clean up
            lost.set()
            interrupt()

    threading.Thread(target=watch, name="ray-watch", daemon=True).start()
    try:
        with interruptible():
            yield
    except (KeyboardInterrupt, Exception) as error:
        if lost.is_set():
            raise ClusterLost(_LOST) from error
        raise
    finally:
        ended.set()


def _check_reachable(address: str) -> None:
    """Raise UsageError if HOST:PORT refuses connections; Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "://" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACHED_WITHIN).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(f"there is no Ray cluster at {address!r}: {error}") from error


def check_room(count: int, options: dict[str, Any], who: str) -> None:
    """Check that the cluster has room for actors, which would otherwise wait forever.

    Args:
        who: description of the actors and the setting to change, for the error.
    """
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    wanted = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), **(options.get("resources") or {})}
    for kind, each in wanted.items():
        if each and there.get(kind, 0) < count * each:
            raise UsageError(f"the cluster has {there.get(kind, 0):g} {kind}, too few for {count} with {each:g}: {who}")


async def answer(reference: Any) -> Any:
    """Return the result of an actor's method."""
    try:
        return await asyncio.wrap_future(reference.future())
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RayError("Ray cancelled a call of its actor") from None  # happens when the actor is killed


async def result_of(reference: Any, lost: Callable[[str], Exception]) -> Any:
    """Return the result of an actor's method, or raise the exception that the method raised."""
    with plain_errors(lost):
        return await answer(reference)


@contextlib.contextmanager
def plain_errors(lost: Callable[[str], Exception]) -> Iterator[None]:
    """Raise the exception that an actor's method raised, and ``lost`` with the reason if the actor is lost."""
    try:
        yield
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except RayError as error:
        named = "" if isinstance(error, RayActorError) else f"{type(error).__name__}: "
        raise lost(named + first_line(error)) from error


def first_line(error: Exception) -> str:
    """Return the first line of Ray's message; for an actor that cannot be created, with the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    begin, creation, _ = lines[0].partition(" raised in its creation task")
    return f"{begin}{creation}: {lines[-1]}" if creation else lines[0]


def kill_actor(actor: Any) -> None:
    """End an actor, if it exists."""
    if ray.is_initialized():
        with contextlib.suppress(RayError, ValueError):
            ray.kill(actor)

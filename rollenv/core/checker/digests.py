"""Digests of an environment's results, comparable within and across processes."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from rollenv.core.env import Env
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import Broken


class NotApplicable(Exception):
    """The environment does not promise this property; the text says why."""


def digest(*values: Any) -> str:
    """A hash of the values, pictures included: 16 hexadecimal digits."""
    text = json.dumps(values, sort_keys=True, default=lambda value: getattr(value, "sha256", None) or repr(value))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def play(env: Env, actions: Sequence[str], seed: int | None = None, *, reset: bool = True) -> list[str]:
    """Play actions until they run out or the episode ends, and return a digest of each result."""
    trace = [digest(*env.reset(seed))] if reset else []
    for action in actions:
        result = env.step(action)
        trace.append(digest(*result))
        if result[2] or result[3]:
            break
    return trace


def expect_same(a: Sequence[str], b: Sequence[str], what: str) -> None:
    """Compare the digests of two episodes.

    Raises:
        Broken: they are not equal.
    """
    if a != b:
        turn = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        raise Broken(f"{what}: they differ at {'reset' if turn == 0 else f'turn {turn}'}")


class HelperProcess:
    """Another Python process that calls functions of rollenv; started on first use, and again if it is lost.

    Args:
        timeout: seconds for a call; what takes longer is ended.
        env: environment variables on top of this process's.
    """

    def __init__(self, timeout: float = 300.0, env: Mapping[str, str] | None = None):
        self.timeout, self._env = timeout, dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1

    def call(self, function: str, *args: Any) -> Any:
        """Call a function in the other process and return its result.

        Args:
            function: name of the function, as ``module:function``.

        Raises:
            Broken: it raised, hung, or took its process down.
        """
        request = pickle.dumps((function, args))
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._answers, theirs = os.pipe()
            path = f"import sys; sys.path[:] = {sys.path!r}; "
            code = f"{path}from rollenv.core.checker.digests import _serve_calls; _serve_calls({theirs})"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # output of the environment does not matter
                pass_fds=[theirs],
                env={**os.environ, **self._env},
                start_new_session=True,
            )
            os.close(theirs)
        try:
            data = len(request).to_bytes(8, "big") + request
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(data)
            self._process.stdin.flush()
            deadline = time.monotonic() + self.timeout
            size = int.from_bytes(self._read(8, deadline), "big")
            ok, value = pickle.loads(self._read(size, deadline))
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            self.close()
            raise Broken(f"another process that built the environment ended without an answer ({error})") from error
        except TimeoutExpired:
            self.close()
            raise Broken(f"another process that built the environment did not answer in {self.timeout:g} s") from None
        if not ok:
            raise Broken(f"another process could not play it: {value}")
        return value

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = deadline - time.monotonic()
            gone = self._process is None or self._process.poll() is not None
            if not select.select([self._answers], [], [], 0.0 if gone else max(0.0, min(left, 1.0)))[0]:
                if gone:  # its children may hold the descriptor open
                    raise EOFError("it is gone")
                if left <= 0:
                    raise TimeoutExpired
                continue
            piece = os.read(self._answers, min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError("it is gone")
            data += piece
        return bytes(data)

    def close(self) -> None:
        """End the process and its children; it restarts on the next call."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(self._answers)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class TimeoutExpired(Exception):
    """A call took too long."""


class TwinProcess(HelperProcess):
    """Another Python with its own hash seed, shared by many checks."""

    def __init__(self, timeout: float = 300.0):
        super().__init__(timeout, {"PYTHONHASHSEED": "4321"})

    def traces(self, env_spec: EnvSpec, sequences: list[tuple[int, list[str]]]) -> list[list[str]]:
        """Run :func:`play` in the other process.

        Args:
            sequences: a (seed, actions) pair for each episode.

        Returns:
            The digests of each episode.
        """
        try:
            sent = replace(env_spec, kwargs=dict(env_spec.kwargs))
            pickle.dumps(sent)
        except Exception as error:
            raise NotApplicable(f"its spec cannot be sent to another process: {error}") from error
        found: list[list[str]] = self.call("rollenv.core.checker.digests:traces_of", sent, sequences)
        return found


def traces_of(env_spec: EnvSpec, sequences: list[tuple[int, list[str]]]) -> list[list[str]]:
    """Run :func:`play` in a new environment.

    Args:
        sequences: a (seed, actions) pair for each episode.

    Returns:
        The digests of each episode.
    """
    with contextlib.closing(env_spec.make()) as env:
        return [play(env, actions, seed) for seed, actions in sequences]


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


def _serve_calls(answers: int) -> None:
    """The other end of :class:`HelperProcess`: requests on standard input, answers into a descriptor."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    own = os.getpid()
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # environments get no requests
    while header := requests.read(8):
        try:
            name, args = pickle.loads(requests.read(int.from_bytes(header, "big")))
            module, _, function = name.partition(":")
            reply = pickle.dumps((True, getattr(importlib.import_module(module), function)(*args)))
        except BaseException as error:
            reply = pickle.dumps((False, repr(error)))
        if os.getpid() != own:  # an environment forked, and its copy of this process came back too
            os._exit(0)
        data = memoryview(len(reply).to_bytes(8, "big") + reply)
        while data:
            data = data[os.write(answers, data) :]
    os._exit(0)  # threads that environments left are not waited for

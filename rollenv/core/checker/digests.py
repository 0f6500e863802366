"""Digests of an environment's results, comparable within and across processes."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
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


#: Digests of the parts of a result, by what they are called.
Digests = dict[str, str]


def play(env: Env, actions: Sequence[str], seed: int | None = None, *, reset: bool = True) -> list[Digests]:
    """Play actions until they run out or the episode ends, and return digests of each result."""
    trace = [_digests(env.reset(seed))] if reset else []
    for action in actions:
        result = env.step(action)
        trace.append(_digests(result))
        if result[2] or result[3]:
            break
    return trace


def _digests(result: Sequence[Any]) -> Digests:
    *values, info = result
    parts = dict(zip(("the observation", "the reward", "terminated", "truncated"), values, strict=False))
    named = info.items() if isinstance(info, dict) else [("", info)]  # GEM's prev_ep_ keys are of the last episode
    parts |= {f"info[{name!r}]": value for name, value in named if not str(name).startswith("prev_ep_")}
    return {name: digest(value) for name, value in parts.items()}


def expect_same(a: Sequence[Digests], b: Sequence[Digests], what: str) -> None:
    """Compare the digests of two episodes.

    Raises:
        Broken: they are not equal; the text names the first part that differs.
    """
    turn = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if turn < max(len(a), len(b)):
        x, y = ((trace[turn] if turn < len(trace) else {}) for trace in (a, b))
        part = next(name for name in {**x, **y} if x.get(name) != y.get(name))
        raise Broken(f"{what}: they differ at {'reset' if turn == 0 else f'turn {turn}'}, in {part}")


class HelperProcess:
    """Another Python process that calls functions of rollenv; started on first use, and again if it is lost.

    Args:
        timeout: seconds for a call; what takes longer is ended.
        env: environment variables on top of this process's.
    """

    def __init__(self, timeout: float = 300.0, env: Mapping[str, str] | None = None):
        self.timeout, self._env = timeout, dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

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
            self._start()
        try:
            self._requests.send_bytes(request)
            ends = time.monotonic() + self.timeout
            gone = False
            while not self._answers.poll(0.0 if gone else max(0.0, min(ends - time.monotonic(), 1.0))):
                if gone:  # its children may hold the connection open
                    raise EOFError("it is gone")
                gone = self._process is None or self._process.poll() is not None
                if time.monotonic() >= ends:
                    self.close()
                    raise Broken(f"another process that built the environment did not answer in {self.timeout:g} s")
            ok, value = self._answers.recv()
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            self.close()
            raise Broken(f"another process that built the environment ended without an answer ({error})") from error
        if not ok:
            raise Broken(f"another process could not play it: {value}")
        return value

    # Not a process of multiprocessing, which would import the user's script again.
    def _start(self) -> None:
        theirs, self._requests = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        call = f"_serve_calls({theirs.fileno()}, {answers.fileno()})"
        code = f"import sys; sys.path[:] = {sys.path!r}; from rollenv.core.checker.digests import _serve_calls; {call}"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # output of the environment does not matter
            pass_fds=[theirs.fileno(), answers.fileno()],
            env={**os.environ, **self._env},
            start_new_session=True,
        )
        theirs.close()
        answers.close()

    def kill(self) -> None:
        """End the process and its children from another thread, whose call then raises Broken."""
        if process := self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and its children; it restarts on the next call."""
        self.kill()
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            self._requests.close()
            self._answers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class TwinProcess(HelperProcess):
    """Another Python with its own hash seed, shared by many checks."""

    def __init__(self, timeout: float = 300.0):
        super().__init__(timeout, {"PYTHONHASHSEED": "4321"})

    def traces(self, env_spec: EnvSpec, sequences: list[tuple[int, list[str]]]) -> list[list[Digests]]:
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
        found: list[list[Digests]] = self.call("rollenv.core.checker.digests:traces_of", sent, sequences)
        return found


def traces_of(env_spec: EnvSpec, sequences: list[tuple[int, list[str]]]) -> list[list[Digests]]:
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


def _serve_calls(requests_at: int, answers_at: int) -> None:
    """The other end of :class:`HelperProcess`."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    own, requests, answers = os.getpid(), Connection(requests_at), Connection(answers_at)
    with contextlib.suppress(EOFError, OSError):
        while request := requests.recv_bytes():
            try:
                name, args = pickle.loads(request)
                module, _, function = name.partition(":")
                reply = pickle.dumps((True, getattr(importlib.import_module(module), function)(*args)))
            except BaseException as error:
                reply = pickle.dumps((False, repr(error)))
            if os.getpid() != own:  # an environment forked, and its copy of this process came back too
                break
            answers.send_bytes(reply)
    os._exit(0)  # threads that environments left are not waited for

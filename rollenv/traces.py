"""What an environment returned, as digests that can be compared, in this process or in another one."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollenv.core import Env, RollenvError
from rollenv.registry import EnvSpec


class Broken(RollenvError, AssertionError):
    """A property that the environment promises does not hold."""


class NotApplicable(Exception):
    """The environment does not promise this property; the text says why."""


def digest(*values: Any) -> str:
    """16 hexadecimal digits that stand for the values."""
    text = json.dumps(values, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def play(env: Env, actions: Sequence[str], seed: int | None = None, *, reset: bool = True) -> list[str]:
    """Digests of everything the environment returned while it played ``actions`` (or until the episode ended)."""
    trace = [digest(*env.reset(seed))] if reset else []
    for action in actions:
        result = env.step(action)
        trace.append(digest(*result))
        if result[2] or result[3]:
            break
    return trace


class TwinProcess:
    """Another Python with its own hash seed, started when first asked and shared by many checks."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def traces(self, env_spec: EnvSpec, sequences: list[tuple[int, list[str]]]) -> list[list[str]]:
        """What :func:`play` gives there for every (seed, actions)."""
        try:
            request = pickle.dumps((replace(env_spec, kwargs=dict(env_spec.kwargs)), sequences))
        except Exception as error:
            raise NotApplicable(f"its spec cannot be sent to another process: {error}") from error
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from rollenv.traces import serve_traces; serve_traces()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONHASHSEED": "4321"},
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(len(request).to_bytes(8, "big") + request)
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Broken("another process that built the environment ended without an answer")
        reply = json.loads(answer)
        if "error" in reply:
            raise Broken(f"another process could not play it: {reply['error']}")
        traces: list[list[str]] = reply["traces"]
        return traces

    def close(self) -> None:
        """End the process; it starts again if asked again."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> TwinProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve_traces() -> None:
    """The other end of :class:`TwinProcess`: requests on standard input, a line of JSON for each on standard output."""
    out, sys.stdout = sys.stdout, sys.stderr  # whatever an environment prints must not mix with the answers
    while header := sys.stdin.buffer.read(8):
        data = sys.stdin.buffer.read(int.from_bytes(header, "big"))
        try:
            env_spec, sequences = pickle.loads(data)
            env = env_spec.make()
            reply: dict[str, Any] = {"traces": [play(env, actions, seed) for seed, actions in sequences]}
            env.close()
        except Exception as error:
            reply = {"error": repr(error)}
        out.write(json.dumps(reply) + "\n")
        out.flush()

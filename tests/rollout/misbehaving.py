"""An environment that misbehaves in one way of many, by class: what it does, and what its episode becomes."""

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import rollenv
from rollenv import UsageError
from rollenv.agents.base import AgentFailed, ContextFull
from rollenv.core.errors import Unsolvable
from rollenv.rollout.types import Task

ID = "test:Misbehaving-v0"
TURNS = 3


@dataclass(frozen=True)
class Kind:
    """What happens in which method (in the second turn), and how the episode ends.

    ``inline``: whether an environment in the trainer's own process can be survived that does so. It shares the
    process: who ends, stops, blocks or rewrites the process does it to all, and that is what workers are for.
    """

    do: object
    where: str = "step"
    status: str = "failed"
    says: str = ""
    inline: bool = True


KINDS = {}


def returns(name, value, where="step", **how):
    KINDS[f"returns-{where}-{name}"] = Kind(lambda env: value() if callable(value) else value, where, **how)


def step_with(at, value):
    """A step's result with one value replaced."""

    def result():
        values = ["seen", 1.0, False, False, {}]
        values[at] = value() if callable(value) else value
        return tuple(values)

    return result


class Text(str):
    __slots__ = ()

    def __str__(self):
        raise RuntimeError("no")


class Own:
    """An instance of a class of the environment's."""


class Evil:
    def __reduce__(self):
        return time.sleep, (1000,)


def deep(n=100_000):
    value = []
    for _ in range(n):
        value = [value]
    return {"deep": value}


def ring():
    value = {}
    value["self"] = value
    return value


for name, at, value, says in [
    ("none", 0, None, "None"), ("bytes", 0, b"seen", "bytes"), ("list", 0, ["seen"], "list"), ("int", 0, 5, "int"),
    ("giant", 0, lambda: "x" * (1 << 25), "characters"), ("half", 0, "a\ud800", "surrogate"),
]:  # fmt: skip
    returns(f"observation-{name}", step_with(at, value), says=says)
for name, value, says in [
    ("none", None, "None"), ("text", "1.0", "str"), ("nan", float("nan"), "finite"), ("inf", float("inf"), "finite"),
    ("array", np.ones(2), "ndarray"), ("array-of-one", np.array(1.0), "ndarray"), ("complex", 1j, "complex"),
    ("numpy-nan", np.float32("nan"), "finite"), ("huge", 10**400, "int"), ("complex-64", np.complex64(1), "complex64"),
    ("time", np.timedelta64(1, "s"), "timedelta64"), ("list", [1.0], "list"),
]:  # fmt: skip
    returns(f"reward-{name}", step_with(1, value), says=says)
for name, at, value, says in [
    ("text", 2, "no", "terminated must be a bool, not str"), ("number", 2, 0, "terminated must be a bool, not int"),
    ("none", 3, None, "truncated must be a bool, not None"), ("array", 3, np.array([True, False]), "ndarray"),
]:  # fmt: skip
    returns(f"end-{name}", step_with(at, value), says=says)
for name, value, says in [
    ("none", None, "None"), ("list", [1], "list"), ("suffix", {"suffix": 3}, "suffix"),
    ("success", {"success": "yes"}, "success"), ("half-success", {"success": 0.5}, "success"),
]:  # fmt: skip
    returns(f"info-{name}", step_with(4, value), says=says)
returns("none", None, says="not None")
returns("four", ("seen", 1.0, False, {}), says="tuple of 4")
returns("text", "abcde", says="not str")
returns("observation-alone", "seen", where="reset", says="not str")
returns("info-none", ("seen", None), where="reset", says="None")
returns("three", ("seen", {}, 1), where="reset", says="tuple of 3")
returns("none", None, where="state_key", says="state_key() must be a str, not None")
returns("number", 3, where="state_key", says="state_key() must be a str, not int")
returns("none", None, where="sample_random_action", says="not None")
# Scalars of NumPy and subclasses are values like others, and plain ones afterwards.
returns("numpy-reward", step_with(1, np.float32(1.0)), status="terminated")
returns("true-reward", step_with(1, True), status="terminated")
returns("numpy-end", step_with(2, np.bool_(False)), status="terminated")
returns("own-text", step_with(0, Text("seen")), status="terminated")
returns("ring", step_with(4, ring), status="terminated")
returns("loop-of-its-own", lambda: asyncio.run(asyncio.sleep(0, step_with(0, "seen")())), status="terminated")


class Nameless(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Unsent(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def raises(error, where):
    def do(env):
        raise error

    return do


ERRORS = {
    "ValueError": ValueError("no"), "SystemExit": SystemExit(3), "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(), "CancelledError": asyncio.CancelledError(), "StopIteration": StopIteration(1),
    "MemoryError": MemoryError(), "TimeoutError": TimeoutError(), "BaseException": BaseException("base"),
    "Nameless": Nameless(), "Unsent": Unsent(1, 2), "AgentFailed": AgentFailed("mine"),
    "ContextFull": ContextFull("mine"), "UsageError": UsageError("mine"), "Unsolvable": Unsolvable("mine"),
    "StopAsyncIteration": StopAsyncIteration(), "BaseExceptionGroup": BaseExceptionGroup("two", [SystemExit()]),
}  # fmt: skip
for error_name, error in ERRORS.items():
    KINDS[f"raises-step-{error_name}"] = Kind(raises(error, "step"), "step", says=error_name)
KINDS["raises-sample_random_action-Unsolvable"] = Kind(raises(Unsolvable("mine"), ""), "sample_random_action")
for error_name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError"):
    for phase in ("construct", "reset", "sample_random_action", "state_key"):
        KINDS[f"raises-{phase}-{error_name}"] = Kind(raises(ERRORS[error_name], phase), phase, says=error_name)
    KINDS[f"raises-close-{error_name}"] = Kind(raises(ERRORS[error_name], "close"), "close", "terminated")


def recursion(env):
    return recursion(env)


KINDS["raises-step-RecursionError"] = Kind(recursion, says="RecursionError")


def busy(env):
    while True:
        pass


def holds_the_lock(env):
    ctypes.PyDLL(None).usleep(3_600_000_000)


def computes_with_the_lock(env):
    return 3 ** (10**9)


def reads_for_ever(env):
    read, _ = os.pipe()
    os.read(read, 1)


for name, do in [
    ("sleeps", lambda env: time.sleep(3600)), ("busy", busy), ("holds-the-lock", holds_the_lock),
    ("computes-with-the-lock", computes_with_the_lock), ("reads", reads_for_ever),
    ("locked", lambda env: [threading.Lock().__enter__(), (lock := threading.Lock()).acquire(), lock.acquire()]),
]:  # fmt: skip
    KINDS[f"hangs-step-{name}"] = Kind(do, "step", says="did not return", inline=False)
for phase in ("construct", "reset", "sample_random_action"):
    KINDS[f"hangs-{phase}"] = Kind(lambda env: time.sleep(3600), phase, says="did not return", inline=False)
KINDS["hangs-construct-holds-the-lock"] = Kind(holds_the_lock, "construct", says="did not return", inline=False)
KINDS["hangs-close"] = Kind(lambda env: time.sleep(3600), "close", "terminated", inline=False)


def overflow(env):
    sys.setrecursionlimit(10**9)
    recursion(env)


for name, do in [
    ("exit-0", lambda env: os._exit(0)), ("exit-3", lambda env: os._exit(3)),
    ("segfault", lambda env: ctypes.string_at(0)), ("abort", lambda env: os.abort()),
    ("kill", lambda env: os.kill(os.getpid(), signal.SIGKILL)),
    ("kill-group", lambda env: os.killpg(0, signal.SIGKILL)), ("term", lambda env: os.kill(0, signal.SIGTERM)),
    ("stop", lambda env: [os.kill(os.getpid(), signal.SIGSTOP), time.sleep(3600)]),
    ("alarm", lambda env: [signal.setitimer(signal.ITIMER_REAL, 0.01), time.sleep(3600)]),
    ("cpu-limit", lambda env: [resource.setrlimit(resource.RLIMIT_CPU, (1, 1)), busy(env)]),
    ("overflow", overflow), ("native-exit", lambda env: ctypes.CDLL(None)._exit(5)),
]:  # fmt: skip
    KINDS[f"dies-{name}"] = Kind(do, says="", inline=False)
KINDS["dies-construct-segfault"] = Kind(lambda env: ctypes.string_at(0), "construct", says="is gone", inline=False)
KINDS["dies-reset-kill"] = Kind(lambda env: os.kill(os.getpid(), 9), "reset", says="is gone", inline=False)


KINDS["descriptors-closes"] = Kind(lambda env: os.closerange(0, 256), says="", inline=False)
KINDS["descriptors-forbids"] = Kind(
    lambda env: [resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)), os.pipe()],
    says="RLIMIT_NOFILE", inline=False,
)  # fmt: skip


def noted(pid):
    with open(os.environ["LEFT"], "a") as file:
        file.write(f"{pid}\n")


def forks(env):
    if (pid := os.fork()) == 0:
        time.sleep(3600)
        os._exit(0)
    noted(pid)


def forks_a_daemon(env):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            noted(os.getpid())
            time.sleep(3600)
        os._exit(0)
    time.sleep(0.2)


def forks_and_returns(env):
    if (pid := os.fork()) != 0:
        noted(pid)


def left_thread(env):
    threading.Thread(target=time.sleep, args=(3600,)).start()


for name, do in [
    ("fork", forks), ("daemon", forks_a_daemon), ("fork-returns", forks_and_returns),
    ("popen", lambda env: noted(subprocess.Popen(["sleep", "3600"]).pid)),
    ("popen-session", lambda env: noted(subprocess.Popen(["sh", "-c", "sleep 3600"], start_new_session=True).pid)),
    ("thread", left_thread), ("fork-and-die", lambda env: [forks(env), os.kill(os.getpid(), 9)]),
    ("daemon-and-segfault", lambda env: [forks_a_daemon(env), ctypes.string_at(0)]),
]:  # fmt: skip
    dies = name.endswith(("die", "dies", "segfault"))
    KINDS[f"leaves-{name}"] = Kind(do, status="failed" if dies else "terminated", inline=False)

for name, value in [
    ("function", {"f": lambda: 0}), ("lock", {"lock": threading.Lock()}), ("own", {"own": Own()}),
    ("evil", {"evil": Evil()}), ("giant", lambda: {"giant": b"x" * (80 << 20)}), ("deep", deep),
    ("generator", {"g": (i for i in ())}), ("class", {"class": Own}),
]:  # fmt: skip
    # In one process nothing is sent, so nothing is wrong with them there.
    KINDS[f"unsent-{name}"] = Kind(lambda env, v=value: step_with(4, v)(), says="cannot be sent", inline=None)


class Misbehaving(rollenv.Env):
    """Plays three turns; in the second, or in another method, it does what its kind says."""

    def __init__(self, kind=""):
        self.kind = KINDS.get(kind)
        self._in("construct")

    def _in(self, where):
        return self.kind.do(self) if self.kind is not None and self.kind.where == where else None

    def reset(self, seed=None, *, options=None):
        self.turn = 0
        if self.kind is not None and self.kind.where == "reset":
            return self._in("reset")
        return super().reset(seed, options=options)

    def _reset(self, options):
        return "seen", {}

    def step(self, action):
        self.turn += 1
        if self.turn == 2 and self.kind is not None and self.kind.where == "step":
            result = self._in("step")
            if self.kind.status == "failed" or isinstance(result, tuple):
                return result
        return f"turn {self.turn}", 1.0, self.turn >= TURNS, False, {}

    def state_key(self):
        return self._in("state_key") if self.kind is not None and self.kind.where == "state_key" else str(self.turn)

    def sample_random_action(self):
        if self.kind is not None and self.kind.where == "sample_random_action":
            return self._in("sample_random_action")
        return "go"

    def spawn(self, same_state=False, **kwargs):
        raise NotImplementedError

    def close(self):
        self._in("close")


def register(patch):
    """Make it known."""
    rollenv.list_envs()
    patch.setattr(rollenv.core.registry, "ENV_REGISTRY", dict(rollenv.core.registry.ENV_REGISTRY))
    rollenv.register(ID, "misbehaving:Misbehaving", abilities=["random_action", "state_key"])


def task(kind="", seed=0):
    """One episode of a kind; without one it behaves."""
    return Task(ID, seed, {"kind": kind} if kind else {})


def alive(pids):
    """Which of the processes still run."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found

"""Environments that each break one rule of `rollenv accept`, and the sum that breaks none."""

import base64
import contextlib
import os
import random
import re
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np

from rollenv import Env
from rollenv.core.parsing import last_boxed


class Sum(Env):
    """Add two numbers; keeps every rule."""

    a = b = 0

    def _reset(self, options):
        self.a, self.b = self.randint(10), self.randint(10)
        return f"What is {self.a} plus {self.b}? Box it, as in \\boxed{{0}}.", {}

    def _step(self, action):
        said = last_boxed(action) or ""
        right = said == str(self.a + self.b)
        return ("right" if right else "wrong"), float(right), True, False, {"success": right, "valid": said.isdecimal()}

    def render(self):
        return f"{self.a} + {self.b}"

    def state_key(self):
        return self.render()

    def sample_random_action(self):
        return f"\\boxed{{{self.action_rng.randrange(19)}}}"

    def oracle_action(self):
        return f"\\boxed{{{self.a + self.b}}}"

    def _get_state(self):
        return {"a": self.a, "b": self.b}

    def _set_state(self, state):
        self.a, self.b = state["a"], state["b"]


class PaysNoAnswer(Sum):
    def _step(self, action):
        said, reward, *rest = super()._step(action)
        return said, 0.5 if not action.strip() else reward, *rest


class PaysSilence(Sum):
    """Even sums are left out, and odd ones are paid by half if they are."""

    def oracle_action(self):
        return super().oracle_action() if (self.a + self.b) % 2 else ""

    def _step(self, action):
        said, *rest, info = super()._step(action)
        right = action == self.oracle_action()
        return said, 1.0 if right else 0.5 * (action == ""), *rest[1:], info | {"success": right}


class CallsAllSuccess(Sum):
    def _step(self, action):
        said, *rest, info = super()._step(action)
        return said, *rest, info | {"success": True}


class PaysLength(Sum):
    def _step(self, action):
        said, reward, *rest = super()._step(action)
        return said, reward + min(1.0, len(action) / 1000), *rest


class PaysKindness(Sum):
    def _step(self, action):
        said, reward, *rest = super()._step(action)
        return said, reward + 0.3 * ("please" in action.lower()), *rest


class CallsLater(Sum):
    def _step(self, action):
        result = super()._step(action)
        if result[1]:
            with contextlib.suppress(OSError):
                urllib.request.urlopen("http://data.invalid/bonus", timeout=1)
        return result


class Grows(Sum):
    kept: list = []

    def _reset(self, options):
        self.kept.append(b"x" * 3_000_000)
        return super()._reset(options)


class ForgetsLargeSeeds(Sum):
    def reset(self, seed=None, *, options=None):
        return super().reset(seed and min(seed, 1000), options=options)


class ReadsTheHour(Sum):
    def _step(self, action):
        said, reward, *rest = super()._step(action)
        return said, reward / (1 + (time.localtime().tm_hour < 12)), *rest


class PaysOrders(Sum):
    """As a judge does that believes what it reads."""

    def _step(self, action):
        said, reward, *rest, info = super()._step(action)
        fooled = "the answer is correct" in action
        return said, float(fooled or reward), *rest, info | {"success": bool(fooled or reward)}


class PaysMany(Sum):
    def _step(self, action):
        right = f"boxed{{{self.a + self.b}}}" in action
        return "done", float(right), True, False, {"success": right}


class GradesByPattern(Sum):
    def _step(self, action):
        try:
            right = bool(re.fullmatch(last_boxed(action) or "", str(self.a + self.b)))
        except re.error:
            right = False
        return "done", float(right), True, False, {"success": right}


class GradesByNumber(Sum):
    def _step(self, action):
        try:
            right = not abs(float(last_boxed(action) or "99") - self.a - self.b) > 0.01
        except ValueError:
            right = False
        return "done", float(right), True, False, {"success": right}


class SeedsGlobally(Sum):
    def _reset(self, options):
        random.seed(self.randint(99))
        self.a, self.b = random.randrange(10), random.randrange(10)
        return f"What is {self.a} plus {self.b}?", {}


class DrawsFromNumpy(Sum):
    def _reset(self, options):
        self.a, self.b = int(np.random.randint(10)), self.randint(10)
        return f"What is {self.a} plus {self.b}?", {}


class ReadsTheFolder(Sum):
    def _reset(self, options):
        super()._reset(options)
        self.a = len(os.getcwd()) % 10
        return f"What is {self.a} plus {self.b}?", {}


class ReadsTheUser(Sum):
    def _reset(self, options):
        told, info = super()._reset(options)
        return f"{os.environ.get('USER', 'You')}, {told}", info


class KnowsFewSeeds(Sum):
    def reset(self, seed=None, *, options=None):
        _text, info = super().reset(seed, options=options)
        self.a, self.b = divmod(range(5000)[seed or 0] % 100, 10)
        return f"What is {self.a} plus {self.b}?", info


class ReadsTheDate(Sum):
    def _reset(self, options):
        _text, info = super()._reset(options)
        self.a = int(time.time()) // 86_400 % 10
        return f"What is {self.a} plus {self.b}?", info


class TellsTheTime(Sum):
    def _reset(self, options):
        text, info = super()._reset(options)
        return f"{text} It is {time.perf_counter()}.", info


class HashesText(Sum):
    def _reset(self, options):
        super()._reset(options)
        self.a = hash("a text") % 10**6  # so that no two processes agree by chance
        return f"What is {self.a} plus {self.b}?", {}


class OrderOfASet(Sum):
    def _reset(self, options):
        text, info = super()._reset(options)
        return f"{[*{'please', 'now', 'then', 'so', 'well', 'yes'}]} {text}", info


class NamesItsProcess(Sum):
    def _reset(self, options):
        text, info = super()._reset(options)
        return f"{text} {os.getpid()}", info


class CallsHome(Sum):
    def __init__(self):
        socket.create_connection(("192.0.2.1", 80), timeout=1)


class FetchesQuietly(Sum):
    def __init__(self):
        try:
            urllib.request.urlopen("http://data.invalid/sums.json", timeout=1)
        except OSError:
            self.sums = []


class ForgetsPart(Sum):
    def _get_state(self):
        return {"a": self.a}

    def _set_state(self, state):
        self.a = state["a"]


class StateIsNoJson(Sum):
    def _get_state(self):
        return {"a": self.a, "b": {self.b}}

    def _set_state(self, state):
        self.a, (self.b,) = state["a"], state["b"]


class ShowsInText(Sum):
    def _reset(self, options):
        text, info = super()._reset(options)
        return f"{text}\nExpected answer: {self.a + self.b}", info


class ShowsInPrefix(Sum):
    def _reset(self, options):
        text, info = super()._reset(options)
        return text, info | {"prefix": f"The answer is {self.a + self.b}.\n"}


class ShowsInInfo(Sum):
    def _reset(self, options):
        text, info = super()._reset(options)
        return text, info | {"gold": self.a + self.b}


class ShowsInside(Sum):
    def _reset(self, options):
        text, info = super()._reset(options)
        return text, info | {"row": [dict.fromkeys("abcdefgh", 1) | {"gold": self.a + self.b}]}


class HoldsAFunction(Sum):
    def _reset(self, options):
        text, info = super()._reset(options)
        return text, info | {"again": lambda: text}


class ShowsLater(Sum):
    """Says the answer to whoever is wrong, and lets them try once more."""

    tried = False

    def _reset(self, options):
        self.tried = False
        return super()._reset(options)

    def _step(self, action):
        tried, self.tried = self.tried, True
        _, reward, *_, info = super()._step(action)
        return f"The answer was {self.a + self.b}. Try again.", reward, bool(reward), tried and not reward, info


class ListsTheRightFirst(Sum):
    def _reset(self, options):
        text, info = super()._reset(options)
        return text, info | {"actions": [self.oracle_action(), *(f"\\boxed{{{n}}}" for n in range(19))]}


class SharesTheSum(Sum):
    """Every instance has the sum that the last one drew."""

    drawn: dict[str, int] = {}

    def _reset(self, options):
        text, info = super()._reset(options)
        self.drawn["a"] = self.a
        return text, info

    def _step(self, action):
        self.a = self.drawn["a"]
        return super()._step(action)


class PaysOnce(Sum):
    paid: set[tuple[int, int]] = set()

    def _step(self, action):
        said, reward, *rest = super()._step(action)
        reward *= (self.a, self.b) not in self.paid
        self.paid.add((self.a, self.b))
        return said, reward, *rest


class LooksDiffer(Sum):
    looks = 0

    def render(self):
        self.looks += 1
        return f"{self.a} + {self.b}, look {self.looks}"


class SetsVariables(Sum):
    def _reset(self, options):
        os.environ["PATH"] = "/opt/sums"
        return super()._reset(options)


class TakesStdout(Sum):
    def _reset(self, options):
        sys.stdout = sys.__stderr__
        return super()._reset(options)


class TakesCtrlC(Sum):
    def __init__(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class AsksAPerson(Sum):
    def _reset(self, options):
        with contextlib.suppress(EOFError):
            input("Your name? ")
        return super()._reset(options)


class NeverEnds(Sum):
    def _step(self, action):
        said, reward, _, _, info = super()._step(action)
        return said, reward, False, False, info


class BadExpert(Sum):
    def oracle_action(self):
        return "\\boxed{7}"


class NoNumber(Sum):
    def _step(self, action):
        said, reward, *rest = super()._step(action)
        return said, reward or float("nan"), *rest


class Infinite(Sum):
    def _step(self, action):
        said, reward, *rest = super()._step(action)
        return said, reward or -float("inf"), *rest


class Fragile(Sum):
    def _step(self, action):
        int((last_boxed(action) or "x")[:3])
        return super()._step(action)


class Echoes(Sum):
    def _step(self, action):
        _, *rest = super()._step(action)
        return action, *rest


class LeavesAThread(Sum):
    def _reset(self, options):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super()._reset(options)


class LeavesAFile(Sum):
    def _reset(self, options):
        with open("sums.log", "a") as file:
            file.write("a sum\n")
        return super()._reset(options)


class KeepsANotebook(Sum):
    def _step(self, action):
        with open(os.path.expanduser("~/sums_of_an_environment.log"), "a") as file:
            file.write(action)
        return super()._step(action)


class ReplacesAFile(Sum):
    def _reset(self, options):
        with tempfile.NamedTemporaryFile() as file, contextlib.suppress(OSError):
            os.replace(file.name, os.path.expanduser("~/sums_of_an_environment.txt"))
        return super()._reset(options)


class KeepsADatabase(Sum):
    def _reset(self, options):
        with contextlib.suppress(OSError):
            sqlite3.connect(os.path.expanduser("~/sums_of_an_environment.db")).execute("create table sums (a, b)")
        return super()._reset(options)


class LinksAway(Sum):
    def _reset(self, options):
        with contextlib.suppress(OSError):
            os.symlink(__file__, os.path.expanduser("~/sums_of_an_environment.link"))
        return super()._reset(options)


class Tidy(Sum):
    """Writes temporary files and caches, and leaves alone what is there: keeps every rule."""

    def _reset(self, options):
        os.makedirs(os.path.dirname(__file__), exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(__file__, f"{folder}/link")
            os.rename(f"{folder}/link", f"{folder}/other")
            os.remove(f"{folder}/other")
            sqlite3.connect(f"{folder}/sums.db").execute("create table sums (a, b)")
        sqlite3.connect(":memory:").execute("create table sums (a, b)")
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as name:  # as sandboxes set limits
            name.write("sums")
        with open(f"{os.environ['HF_HOME']}/sums.lock", "w"):
            return super()._reset(options)


class RemovesAFolder(Sum):
    def _reset(self, options):
        with contextlib.suppress(OSError):
            os.rmdir("/var/opt/sums_of_an_environment")
        return super()._reset(options)


class MovesAway(Sum):
    def _reset(self, options):
        os.chdir("/")
        return super()._reset(options)


class Exits(Sum):
    def _step(self, action):
        os._exit(0)


class Hangs(Sum):
    def _reset(self, options):
        threading.Event().wait()


class HangsLater(Sum):
    def _step(self, action):
        if len(action) > 1000:
            threading.Event().wait()
        return super()._step(action)


class Forks(Sum):
    def _reset(self, options):
        if os.fork() == 0:
            os._exit(0)  # or it would be many
        return super()._reset(options)


class PaysNobody(Sum):
    def _step(self, action):
        said, _, *rest = super()._step(action)
        return said, 0.0, *rest


class PaysTheWrong(Sum):
    def _step(self, action):
        said, reward, *rest = super()._step(action)
        return said, 1.0 - reward, *rest


class OneTask(Sum):
    def _reset(self, options):
        self.a, self.b = 3, 4
        return "What is 3 plus 4?", {}


class CannotStart(Sum):
    def __init__(self):
        import a_package_that_nobody_has  # noqa: F401


class Floods(Sum):
    """Breaks no rule: what it prints goes nowhere."""

    def _step(self, action):
        os.write(1, b"flood\n" * 20_000)
        os.write(2, b"flood\n" * 20_000)
        print("flood\n" * 20_000)
        return super()._step(action)


class Hidden(Sum):
    """Name a number of which the beginning is shown."""

    def _reset(self, options):
        self.a, self.b = int(self.np_random.integers(10**6, 10**7)), 0
        return f"Which number begins with {str(self.a)[:3]}? Box it. {self.hint()}", {}

    def hint(self):
        return ""


class ShowsInBase64(Hidden):
    def hint(self):
        return f"[task {base64.b64encode(str(self.a).encode()).decode()}]"


class ShowsInHexadecimal(Hidden):
    def hint(self):
        return f"[task {str(self.a).encode().hex()}]"


class ShowsBackwards(Hidden):
    def hint(self):
        return f"[task {str(self.a)[::-1]}]"


class ShowsInInfoInBase64(Hidden):
    def _reset(self, options):
        return super()._reset(options)[0], {"task": base64.b64encode(f"gold: {self.a}".encode()).decode()}


class ShowsInfoLater(Sum):
    """The answer is in info after a wrong one."""

    turn = 0

    def _reset(self, options):
        self.turn = 0
        return super()._reset(options)

    def _step(self, action):
        self.turn += 1
        said, reward, _, _, info = super()._step(action)
        return said, reward, reward > 0, not reward and self.turn == 3, info | {"note": str(self.a + self.b)}


class SharesItsSplits(Hidden):
    def __init__(self, split: str = "train"):
        super().__init__()
        self.split = split


class WritesWhenSolved(Sum):
    def _step(self, action):
        result = super()._step(action)
        if result[1]:
            Path("solved.log").write_text("once more")
        return result


class LeavesAThreadWhenSolved(Sum):
    def _step(self, action):
        result = super()._step(action)
        if result[1]:
            threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
        return result


class IsTruncatedWhenSolved(Sum):
    def _step(self, action):
        said, reward, _, _, info = super()._step(action)
        return said, reward, not reward, reward > 0, info


class HasNoRoom(Sum):
    def _reset(self, options):
        if self.np_random_seed == 3:
            raise ValueError("no room of this size")
        return super()._reset(options)

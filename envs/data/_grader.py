"""The grader process of :mod:`rollenv.envs.data.grading`. Run as a file, so that it loads nothing but math-verify.

A request is a line of JSON, ``[gold, answer, seconds]``; the answer to it is one line: ``1``, ``0``, or ``x`` when the
limit passed. This process only holds the loaded library. Its forked child grades, and is killed by the system's timers
when a limit passes, whatever it is doing and even if nobody is left to do it; the next fork takes milliseconds.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import warnings
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify  # type: ignore[import-untyped, import-not-found, unused-ignore]

#: Wall-clock seconds for each second of processor time; the former only matters on a machine that is overloaded.
PATIENCE = 4
_MEMORY = 2 << 30


def main() -> None:
    """Answer until standard input ends."""
    logging.disable()
    warnings.simplefilter("ignore")
    grade("1", "2")  # what is built on first use is built before the fork
    grade("x^2+1", "\\frac{1}{2}")
    reply("ready")
    while True:
        child = os.fork()
        if child == 0:
            serve()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        reply("x")


def serve() -> None:
    """Grade until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin:
        gold, answer, seconds = json.loads(line)
        set_timers(seconds)
        right = grade(gold, answer)
        set_timers(0)
        reply("1" if right else "0")


def set_timers(seconds: float) -> None:
    """Have the system end this process after so much processor time; 0 for never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)


def grade(gold: str, answer: str) -> bool:
    """Whether math-verify finds the answer equal to the gold one; what it cannot read is wrong."""
    try:
        return bool(verify(_parsed(gold), _parsed(answer), timeout_seconds=None))
    except (Exception, RecursionError):
        return False


def _parsed(text: str) -> Any:
    for sign in ("\\$", "$", "\n", "\r"):
        text = text.replace(sign, " ")
    return parse(f"${text}$", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)


def reply(text: str) -> None:
    """Write one line to whoever asked."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

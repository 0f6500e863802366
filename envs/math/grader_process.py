"""The grader process of :mod:`rollenv.envs.math.grade`. Run as a file, so that it loads only math-verify.

A request is a line of JSON, ``[gold, answer, seconds]``; the reply is a line: ``1``, ``0``, or ``x`` after a timeout.
This process only loads the library. Its forked child grades, and the kernel's timers kill it at the limit, whatever it
is doing, even if its parent is gone; the next fork takes milliseconds.
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

import sympy  # type: ignore[import-untyped, import-not-found, unused-ignore]
from math_verify import LatexExtractionConfig, parse, verify  # type: ignore[import-untyped, import-not-found, unused-ignore]

#: Wall-clock limit per second of processor time; it only matters on an overloaded machine.
PATIENCE = 4
_MEMORY = 2 << 30
#: Number of digits for the comparison of numbers.
_PRECISION = 120
_OPERATIONS = (sympy.Union, sympy.Intersection, sympy.Complement)
_CONSTANTS = {"i": sympy.I, "e": sympy.E}


def main() -> None:
    """Run the process until standard input ends."""
    logging.disable()
    warnings.simplefilter("ignore")
    grade("1", "2")  # creates lazy tables before the fork
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
    """Let the kernel kill this process after so much processor time; 0 for never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)


def grade(gold: str, answer: str) -> bool:
    """Return whether two answers are equal for math-verify; one that it cannot parse is wrong."""
    try:
        ours, theirs = _parsed(gold), _parsed(answer)
        if isinstance(ours[0], sympy.Eq) and isinstance(theirs[0], sympy.Eq):
            return _same_equation(ours[0], theirs[0])
        if isinstance(ours[0], sympy.Set) and isinstance(theirs[0], _OPERATIONS):
            return _same_set(ours[0], theirs[0])
        if isinstance(ours[0], _OPERATIONS) and isinstance(theirs[0], sympy.Set):
            return _same_set(ours[0], theirs[0])
        if verify(ours, theirs, timeout_seconds=None):
            return not _far(ours[0], theirs[0])
        return _same_complex(ours[0], theirs[0])
    except (Exception, RecursionError):
        return False


def _far(one: Any, other: Any) -> bool:
    """Return whether numbers differ that are equal for math-verify because both are small, or both large."""
    if isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr):
        return bool(one.is_number and other.is_number and one != other and not _close(one, other))
    if isinstance(one, sympy.FiniteSet) and isinstance(other, sympy.FiniteSet):
        return len(one) != len(other) or any(all(_far(a, b) for b in other) for a in one)
    if isinstance(one, sympy.Interval) and isinstance(other, sympy.Interval):
        return _far(one.start, other.start) or _far(one.end, other.end)
    parts = (sympy.MatrixBase, sympy.Tuple)
    if isinstance(one, parts) and isinstance(other, parts):
        return len(one) != len(other) or any(map(_far, one, other))
    return False


def _same_equation(one: Any, other: Any) -> bool:
    """Return whether the differences of both sides are equal up to a constant factor."""
    a, b = (sympy.together(sympy.nsimplify(x.lhs - x.rhs, rational=True)).as_numer_denom()[0] for x in (one, other))
    factor = sympy.simplify(a / b)
    return bool(factor.is_number and factor.is_finite and factor.is_nonzero)


def _same_set(one: Any, other: Any) -> bool:
    ours, theirs = _carried_out(one), _carried_out(other)
    return bool(ours == theirs or sympy.SymmetricDifference(ours, theirs).is_empty)


def _carried_out(one: Any) -> Any:
    """Evaluate set operations, with exact numbers."""
    if isinstance(one, _OPERATIONS):
        kind = next(kind for kind in _OPERATIONS if isinstance(one, kind))
        return kind(*map(_carried_out, one.args))
    if isinstance(one, sympy.FiniteSet):
        return sympy.FiniteSet(*(sympy.nsimplify(x.doit(), rational=True) for x in one.args))
    if isinstance(one, sympy.Interval):
        ends = (sympy.nsimplify(x.doit(), rational=True) for x in (one.start, one.end))
        return sympy.Interval(*ends, one.left_open, one.right_open)
    return one


def _close(one: Any, other: Any) -> bool:
    """Return whether two numbers agree, to six digits if one is a decimal."""
    exact = not one.has(sympy.Float) and not other.has(sympy.Float)
    a, b = one.evalf(_PRECISION), other.evalf(_PRECISION)
    return bool(abs(a - b) <= max(abs(a), abs(b)) * sympy.Rational(1, 10 ** (_PRECISION // 2 if exact else 6)))


def _same_complex(one: Any, other: Any) -> bool:
    """Return whether numbers are equal with i as the imaginary unit and e as Euler's number."""
    if not isinstance(one, sympy.Expr) or not isinstance(other, sympy.Expr):
        return False
    if not any(x.has(sympy.I) or {s.name for s in x.free_symbols} & {*_CONSTANTS} for x in (one, other)):
        return False
    one, other = (x.subs({s: _CONSTANTS[s.name] for s in x.free_symbols if s.name in _CONSTANTS}) for x in (one, other))
    return bool(one.is_number and other.is_number and _close(one, other))


def _parsed(text: str) -> Any:
    for sign in ("\\$", "$", "\n", "\r"):
        text = text.replace(sign, " ")
    return parse(f"${text}$", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)


def reply(text: str) -> None:
    """Write one line to the caller."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""The errors that rollenv raises on purpose."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator


class RollenvError(Exception):
    """Base of the errors that rollenv raises on purpose. The text says what happened, where, and what to do next."""

    #: Exit status of the command line when this error ends it.
    exit_code = 1


class UsageError(RollenvError, ValueError):
    """An argument, id or configuration key is wrong."""

    exit_code = 2


class UnknownEnv(UsageError):
    """No environment is registered under the id."""


class BadEntryPoint(UsageError, ImportError):
    """An entry point that cannot be loaded."""


class MissingExtra(RollenvError, ImportError):
    """An optional dependency is not installed."""

    exit_code = 3


class MissingData(MissingExtra):
    """A data set is neither below ``$ROLLENV_DATA`` nor on the hub."""


class HubUnreachable(RollenvError, ConnectionError):
    """The Hugging Face Hub did not answer, or is disabled by ``HF_HUB_OFFLINE``."""


class NotOnHub(UsageError):
    """The Hugging Face Hub has no model or data set of that name, or it is private."""


class Broken(RollenvError, AssertionError):
    """A property that the environment promises does not hold."""


class EpisodeOver(RollenvError, RuntimeError):
    """``step`` was called before ``reset``, or after the episode had ended."""


class EnvTimeout(RollenvError, TimeoutError):
    """An environment did not answer in time."""


class WrongResult(RollenvError, TypeError):
    """A result of an environment's ``_reset`` or ``_step`` without the parts that it must have."""


class Unsolvable(RollenvError, RuntimeError):
    """The task can no longer be completed from the current state, so an expert has no next action."""


class NoSuchAbility(RollenvError, AttributeError, NotImplementedError):
    """The environment lacks an optional ability, so ``hasattr`` is False."""


@contextlib.contextmanager
def writes(place: object, then: str = "", kind: Callable[[str], RollenvError] = UsageError) -> Iterator[None]:
    """Turn errors of files, such as a full disk or no permission, into one that names the file or else the place."""
    try:
        yield
    except OSError as error:
        if isinstance(error, RollenvError):
            raise
        then = then or "free some space, fix the permissions or name another place"
        raise kind(f"cannot write {error.filename or place}: {error.strerror or error}; {then}") from error


_READING = ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError


@contextlib.contextmanager
def reads(otherwise: str) -> Iterator[None]:
    """Turn errors of reading data of others, such as a damaged file, into one that begins with ``otherwise``."""
    try:
        yield
    except RollenvError:
        raise
    except _READING as error:
        raise UsageError(f"{otherwise}: {describe(error):.200}") from error


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    most: int = 1,
    cutoff: float = 0.6,
    form: Callable[[str], str] = str,
    by: Callable[[str], str] = str,
) -> str:
    """Return the hint for an error message about an unknown name: ``did you mean X?``, or ``otherwise``.

    Args:
        most: maximum number of suggestions.
        cutoff: minimum similarity of a suggestion, 0 to 1.
        form: formats a name, such as ``repr``.
        by: the part of a name that is compared, such as a file's without its suffix.
    """
    names, wanted = {by(each): each for each in known}, by(name)
    near = difflib.get_close_matches(wanted, names, n=len(names) or 1, cutoff=cutoff)
    near.sort(key=lambda each: sorted(each) != sorted(wanted))  # swapped letters are the commonest slip
    return f"did you mean {' or '.join(form(names[each]) for each in near[:most])}?" if near else otherwise


def error_text(error: BaseException) -> str:
    """Return the text of an exception, whose ``__str__`` may raise or return anything."""
    try:
        return "".join((str(error),))[:2000].encode("utf-8", "replace").decode()
    except BaseException:
        return ""


def describe(error: BaseException) -> str:
    """Describe an exception by its class and text."""
    name = type.__getattribute__(type(error), "__name__")
    return f"{name}: {text}" if (text := error_text(error)) else str(name)

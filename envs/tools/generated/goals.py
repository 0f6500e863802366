"""The parts of generated tasks: goals, their draws and compatibility, checks of answers, and distracting functions."""

from __future__ import annotations

import datetime
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from rollenv.core.tools.backend import Backend, ToolError, differences, tool
from rollenv.envs.tools.base import Call, Move

_RATES = {"EUR": 1.0, "USD": 1.08, "GBP": 0.86, "JPY": 161.0, "CHF": 0.95}
_METRES = {"m": 1.0, "km": 1000.0, "cm": 0.01, "mile": 1609.344, "foot": 0.3048, "inch": 0.0254}


def date_of(text: str) -> datetime.date:
    """Parse a date of the form 2031-05-14."""
    try:
        return datetime.date.fromisoformat(text[:20])
    except ValueError:
        raise ToolError(f"{text[:40]!r} is not a date of the form 2031-05-14") from None


class Distractions(Backend):
    """A world whose agents may be offered functions that have nothing to do with the task."""

    @tool
    def convert_currency(self, amount: float, source: str, target: str) -> dict[str, float]:
        """Convert an amount of money between EUR, USD, GBP, JPY and CHF.

        Args:
            amount: how much.
            source: a currency.
            target: a currency.
        """
        if source not in _RATES or target not in _RATES:
            raise ToolError(f"the currencies are {', '.join(_RATES)}")
        return {"amount": round(amount / _RATES[source] * _RATES[target], 2)}

    @tool
    def convert_length(self, value: float, source: str, target: str) -> dict[str, float]:
        """Convert a length between m, km, cm, mile, foot and inch.

        Args:
            value: the length.
            source: its unit.
            target: the unit wanted.
        """
        if source not in _METRES or target not in _METRES:
            raise ToolError(f"the units are {', '.join(_METRES)}")
        return {"value": round(value * _METRES[source] / _METRES[target], 6)}

    @tool
    def convert_temperature(self, value: float, target: Literal["celsius", "fahrenheit"]) -> dict[str, float]:
        """Convert a temperature to the given unit, from the other one.

        Args:
            value: the temperature.
            target: the unit wanted.
        """
        return {"value": round((value - 32) / 1.8 if target == "celsius" else value * 1.8 + 32, 2)}

    @tool
    def days_between(self, first: str, second: str) -> dict[str, int]:
        """The number of days from one date to another.

        Args:
            first: as in 2031-05-14.
            second: as in 2031-05-14.
        """
        return {"days": (date_of(second) - date_of(first)).days}

    @tool
    def weekday_of(self, date: str) -> str:
        """The day of the week of a date."""
        return date_of(date).strftime("%A")

    @tool
    def count_words(self, text: str) -> dict[str, int]:
        """Count the words and characters of a text."""
        return {"words": len(text.split()), "characters": len(text)}

    @tool
    def change_case(self, text: str, form: Literal["upper", "lower", "title"]) -> str:
        """Write a text in capitals, small letters or with capital initials.

        Args:
            text: what to write.
            form: how.
        """
        return str(getattr(text, form)())

    @tool
    def reverse_text(self, text: str) -> str:
        """Write a text backwards."""
        return text[::-1]

    @tool
    def is_prime(self, number: int) -> bool:
        """Whether a number below a million is prime."""
        if not 0 <= number < 1_000_000:
            raise ToolError("the number is from 0 to 999999")
        return number > 1 and all(number % n for n in range(2, math.isqrt(number) + 1))

    @tool
    def loan_payment(self, amount: float, years: int, percent: float) -> dict[str, float]:
        """The monthly payment of a loan at a yearly rate in percent.

        Args:
            amount: of the loan.
            years: until it is paid back.
            percent: interest for a year.
        """
        if not (0 < years <= 100 and 0 <= percent <= 100 and 0 <= amount <= 1e12):
            raise ToolError("the years are from 1 to 100, the rate from 0 to 100 and the amount from 0 to 1e12")
        rate, months = percent / 1200, years * 12
        return {"payment": round(amount / months if not rate else amount * rate / (1 - (1 + rate) ** -months), 2)}

    @tool
    def area_of_circle(self, radius: float) -> dict[str, float]:
        """The area of a circle."""
        if not 0 <= radius <= 1e9:
            raise ToolError("the radius is from 0 to 1e9")
        return {"area": round(math.pi * radius * radius, 4)}

    @tool
    def is_leap_year(self, year: int) -> bool:
        """Whether a year has 366 days."""
        return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


DISTRACTIONS = tuple(Distractions.functions())


#: Phrases of a refusal.
REFUSALS = ("cannot", "can't", "can’t", "can not", "unable", "not able", "not possible", "impossible", "not allowed")
#: Maximum length of a final message with answers, so that it cannot list everything.
LONGEST_MESSAGE = 600

_UNIT = r"(?:eur|usd|gbp|chf|jpy|kg|mg|km|cm|mm|ml|kb|mb|gb|tb|ms|min)(?!\w)"
_NUMBER = re.compile(rf"(?<![\w.-])\d+(?:\.\d+)?(?:(?={_UNIT})|(?!\w|\.\d))")
_THOUSANDS = re.compile(r"(?<=\d)[,'\u00a0\u202f](?=\d{3}(?!\d))")


def mentions(text: str, answer: str) -> bool:
    """Return whether a text has a word, phrase or number; numbers may have commas or be rounded to a cent."""
    text, answer = text.lower(), answer.lower()
    if re.fullmatch(r"\d+(\.\d+)?", answer):
        numbers = _NUMBER.findall(_THOUSANDS.sub("", text))
        return any(abs(float(number) - float(answer)) < 0.011 for number in numbers)
    return answer in text and re.search(rf"(?<![\w.-]){re.escape(answer)}(?![\w-])", text) is not None


def guesses(text: str, rivals: Iterable[object], known: Iterable[str]) -> bool:
    """Return whether a text mentions a plausible wrong answer that is not in the ``known`` texts."""
    allowed = "; ".join(known)
    return any(mentions(text, rival) and not mentions(allowed, rival) for rival in dict.fromkeys(map(str, rivals)))


def refuses(text: str) -> bool:
    """Return whether a text has one of :data:`REFUSALS`."""
    lower = text.lower()
    return any(phrase in lower for phrase in REFUSALS)


_T = TypeVar("_T")
Path = tuple[str, ...]


class World(Distractions):
    """A generated state of tables of records, by id."""

    def record(self, table: str, key: str) -> dict[str, Any]:
        """Return the record of a table with an id."""
        found = self.state[table].get(key)
        if found is None:
            raise ToolError(f"{table} has no {key[:60]!r}; search for its id first")
        return found  # type: ignore[no-any-return]

    def next_id(self, table: str) -> str:
        """Return the id for a new record: one above the highest."""
        keys = self.state[table]
        letter = next(iter(keys), "N")[0]
        return f"{letter}{max((int(key[1:]) for key in keys), default=1000) + 1}"

    def matching(self, table: str, field: str, text: str) -> list[dict[str, Any]]:
        """Return at most 50 records, with ids, whose field contains all words of a text."""
        words = text.lower().split()
        found = [
            {"id": key, **one} for key, one in self.state[table].items() if all(w in one[field].lower() for w in words)
        ]
        return found[:50]


@dataclass(frozen=True)
class Fact:
    """A fact that a request may omit, and that the user tells when asked."""

    words: Sequence[str]
    """Keywords of a question about it."""
    answer: str
    ask: str
    """The request without it."""
    question: str
    """The expert's question."""


def column(table: str, field: str) -> Callable[[Mapping[str, Any]], list[object]]:
    """Return a function from a state to all values of a field of a table."""
    return lambda state: [one[field] for one in state[table].values()]


@dataclass
class Goal:
    """One thing to do, or one question to answer."""

    ask: str
    look: Sequence[Move] = ()
    """Calls that look up what the changing calls need."""
    act: Sequence[Call] = ()
    """Calls that change the state."""
    done: str = "Done."
    """The expert's final message."""
    answers: Sequence[str] = ()
    """Texts that the final message must contain."""
    rivals: Callable[[Mapping[str, Any]], Iterable[object]] = lambda state: ()
    """Plausible wrong answers from the initial state; a message that mentions one is a guess."""
    reads: Sequence[Path] = ()
    """Parts of the state that the request or its answer depends on; no other goal of the task may change them."""
    blocks: Sequence[str] = ()
    """Functions that it needs, for tasks with missing functions; empty if it is never made impossible."""
    fact: Fact | None = None
    refused: bool = False
    """True if it is forbidden or impossible."""

    def calls(self) -> list[Call]:
        """Return all calls, in order."""
        return [*(call for move in self.look if not isinstance(move, str) for call in move), *self.act]


class NothingFits(Exception):
    """The world has no record for a goal."""


@dataclass(frozen=True)
class GoalKind:
    """A generator of goals of one kind.

    With a rule, ``make(draw, True)`` returns a request that the rule forbids, worded like an allowed one; otherwise
    requests are allowed.
    """

    make: Callable[[GoalDraw, bool], Goal | None]
    rule: str = ""

    def goal(self, draw: GoalDraw, breaks: bool) -> Goal | None:
        """Draw a goal; None if the world has no record for it."""
        try:
            return self.make(draw, breaks)
        except NothingFits:
            return None


@dataclass
class GoalDraw:
    """The random source and the world of a template."""

    rng: random.Random
    world: World

    @property
    def state(self) -> Mapping[str, Any]:
        """The initial state of the world."""
        return self.world.data()

    def one(self, items: Sequence[_T]) -> _T:
        """Draw an item."""
        if not items:
            raise NothingFits
        return self.rng.choice(items)

    def record(self, table: str, fits: Callable[[Any], bool] = lambda one: True) -> tuple[str, Any]:
        """Draw a record that fits."""
        return self.one([(key, one) for key, one in self.state[table].items() if fits(one)])

    def any(self, table: str) -> tuple[str, Any]:
        """Draw a record of a table, with its id."""
        records: Mapping[str, Any] = self.state[table]
        return self.rng.choice(list(records.items()))

    def say(self, *forms: str) -> str:
        """Draw a phrasing."""
        return self.rng.choice(forms)


class Fitted(NamedTuple):
    """A goal and its changes of the initial world."""

    goal: Goal
    changes: frozenset[Path]


def fitted(world: World, goal: Goal) -> Fitted | None:
    """Return the goal with its changes of the initial world; None if a call fails or it has no effect and no answer."""
    twin = world.twin()
    if any(twin.call(name, arguments).failed for name, arguments in goal.calls()):
        return None
    changes = frozenset(change.path for change in differences(world.data(), twin.data()))
    if bool(changes) != bool(goal.act) or not (changes or goal.answers):
        return None
    return Fitted(goal, changes)


def together(world: World, goals: Sequence[Fitted]) -> bool:
    """Return whether the goals are independent, so that any order has the same effect.

    Args:
        goals: goals of which all but the last are known to be independent.
    """
    *others, new = goals
    if any(_clash(one, new) or _clash(new, one) for one in others):
        return False
    if any(mentions(one.goal.ask, answer) for one in goals for other in goals for answer in other.goal.answers):
        return False
    if any(mentions(one.goal.done, answer) for one in others for answer in new.goal.answers):  # same answer twice
        return False
    active = [one for one in goals if one.changes]
    return len(active) < 2 or _played(world, active) == _played(world, active[::-1])


def _clash(one: Fitted, other: Fitted) -> bool:
    """Return whether a goal changes what the other changes or needs, or uses a function that the other must lack."""
    touched = [*other.changes, *other.goal.reads]
    if any(a[: len(b)] == b or b[: len(a)] == a for a in one.changes for b in touched):
        return True
    return any(name in other.goal.blocks for name, _ in one.goal.calls())


def _played(world: World, goals: Sequence[Fitted]) -> object:
    twin = world.twin()
    for one in goals:
        for name, arguments in one.goal.act:
            twin.call(name, arguments)
    return twin.data()

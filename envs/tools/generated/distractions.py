"""Functions that work and that no task needs."""

from __future__ import annotations

import datetime
import math
from typing import Literal

from rollenv.tools.backend import Backend, ToolError, tool

_RATES = {"EUR": 1.0, "USD": 1.08, "GBP": 0.86, "JPY": 161.0, "CHF": 0.95}
_METRES = {"m": 1.0, "km": 1000.0, "cm": 0.01, "mile": 1609.344, "foot": 0.3048, "inch": 0.0254}


def _date(text: str) -> datetime.date:
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
        return {"days": (_date(second) - _date(first)).days}

    @tool
    def weekday_of(self, date: str) -> str:
        """The day of the week of a date."""
        return _date(date).strftime("%A")

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


#: Their names.
DISTRACTIONS = tuple(Distractions.functions())

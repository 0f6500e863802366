"""MySQL's reading and writing of values, and its aggregates of them."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal
from typing import Any


def as_text(value: Any) -> str:
    """As MySQL writes a value."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def as_number(value: Any) -> int | float:
    """As MySQL reads a number from the beginning of a text."""
    if isinstance(value, int | float):
        return value
    match = _NUMBER.match(as_text(value))
    return float(match[0]) if match else 0.0


class Single:
    """The value of a subquery, which has to be one."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def step(self, value: Any) -> None:
        if self.values:
            raise ValueError("Subquery returns more than 1 row")
        self.values.append(value)

    def finalize(self) -> Any:
        return self.values[0] if self.values else None


class Sum:
    """Exact for whole numbers, as MySQL's decimals are; of floating point numbers one after the other."""

    def __init__(self) -> None:
        self.total: int | float = 0
        self.count = 0

    def step(self, value: Any) -> None:
        if value is not None:
            self.total += as_number(value)
            self.count += 1

    def finalize(self) -> int | float | None:
        if not self.count:
            return None
        return self.total if isinstance(self.total, float) or abs(self.total) < 1 << 62 else float(self.total)


class Average(Sum):
    """Of whole numbers it has four decimals."""

    def finalize(self) -> float | None:
        if not self.count:
            return None
        if isinstance(self.total, float):
            return self.total / self.count
        return float((Decimal(self.total) / self.count).quantize(Decimal("0.0001"), ROUND_HALF_UP))

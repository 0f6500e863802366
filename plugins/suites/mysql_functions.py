"""MySQL's functions, conversions and collations for SQLite."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from rollenv.envs.tools.sql.functions import MOST_LENGTH, NOW, matches

#: Collations that ignore accents and case; the second also ignores trailing spaces.
NO_PAD, PAD = "mysql_ai_ci", "mysql_general_ci"


def as_text(value: Any) -> str:
    """Convert a value to text as MySQL does."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def as_number(value: Any) -> int | float:
    """Parse a number at the beginning of a text as MySQL does."""
    if isinstance(value, int | float):
        return value
    match = _NUMBER.match(as_text(value))
    return float(match[0]) if match else 0.0


class Single:
    """The aggregate for the value of a subquery, which must have one row."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def step(self, value: Any) -> None:
        if self.values:
            raise ValueError("Subquery returns more than 1 row")
        self.values.append(value)

    def finalize(self) -> Any:
        return self.values[0] if self.values else None


class Sum:
    """The aggregate SUM: exact for whole numbers, like MySQL's decimals, and sequential for floating point numbers."""

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
        if isinstance(self.total, float) or abs(self.total) < 1 << 62:
            return self.total
        return float(self.total)


class Average(Sum):
    """The aggregate AVG: four decimals for whole numbers."""

    def finalize(self) -> float | None:
        if not self.count:
            return None
        if isinstance(self.total, float):
            return self.total / self.count
        return float((Decimal(self.total) / self.count).quantize(Decimal("0.0001"), ROUND_HALF_UP))


def folded(text: str) -> str:
    """Return a text without accents, in lower case."""
    if text.isascii():
        return text.lower()
    return _folded(text) if len(text) < 500 else _folded.__wrapped__(text)


@functools.lru_cache(maxsize=16384)
def _folded(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).casefold()


def prepare(connection: sqlite3.Connection, charge: Callable[[int], None]) -> None:
    """Add MySQL's functions and collations to a connection.

    Args:
        charge: counts steps of the virtual machine for a call.
    """

    def metered(function: Callable[..., Any], takes_null: bool = True) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            result = function(*values) if takes_null or None not in values else None
            charge(20 + sum(len(value) for value in (*values, result) if isinstance(value, str | bytes)) // 5)
            return result

        return call

    def order(left: str, right: str) -> int:
        with contextlib.suppress(sqlite3.Error):  # the query stops at its next step
            charge((len(left) + len(right)) // 10)
        a, b = folded(left), folded(right)
        return (a > b) - (a < b)

    connection.create_collation(NO_PAD, order)
    connection.create_collation(PAD, lambda left, right: order(left.rstrip(" "), right.rstrip(" ")))
    for name, function in _FUNCTIONS.items():
        connection.create_function(name, -1, metered(function, name in _TAKES_NULL), deterministic=True)
    for count in (2, 3):
        connection.create_function("like", count, metered(_like), deterministic=True)
    connection.create_aggregate("mysql_single", 1, Single)
    connection.create_aggregate("mysql_sum", 1, Sum)  # type: ignore[arg-type]
    connection.create_aggregate("mysql_avg", 1, Average)  # type: ignore[arg-type]


_TAKES_NULL = {"concat_ws", "if", "isnull", "field"}


def _like(pattern: Any, text: Any, escape: str = "\\") -> bool | None:
    if pattern is None or text is None:
        return None
    return matches(folded(as_text(pattern)[:1000]), folded(as_text(text)), escape)


def _moment(value: Any) -> datetime.datetime:
    text = as_text(value).strip()
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d", "%Y-%m-%d %H:%M:%S.%f", "%Y%m%d", "%Y/%m/%d"):
        try:
            return datetime.datetime.strptime(text, form)
        except ValueError:
            continue
    raise ValueError(f"{text[:50]!r} is not a date")


def _of_moment(part: Callable[[datetime.datetime], Any]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        try:
            return part(_moment(value))
        except ValueError:
            return None

    return call


def _round(value: Any, digits: Any = 0) -> int | float:
    number, decimals = as_number(value), max(-30, min(30, int(as_number(digits))))
    result = Decimal(repr(number)).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    if isinstance(number, float) or decimals > 0:
        return float(result)
    return int(result)


def _truncated(value: Any, digits: Any = 0) -> float:
    scale = 10.0 ** max(-30, min(30, int(as_number(digits))))
    return int(as_number(value) * scale) / scale


def _padded(value: Any, length: Any, filler: Any, left: bool) -> str | None:
    text, size = as_text(value), int(as_number(length))
    if not 0 <= size <= MOST_LENGTH:
        return None
    missing = max(0, size - len(text))
    fill = (as_text(filler)[:size] * missing)[:missing] if missing < 1000 else ""
    return (fill + text)[:size] if left else (text + fill)[:size]


def _substring_index(text: Any, separator: Any, count: Any) -> str:
    between, number = as_text(separator), int(as_number(count))
    if not between or not number:
        return ""
    parts = as_text(text).split(between)
    return between.join(parts[:number] if number > 0 else parts[number:])


def _index_of(wanted: Any, values: Sequence[Any]) -> int:
    return values.index(wanted) + 1 if wanted in values else 0


def _regexp(pattern: Any, text: Any) -> bool:
    """Match a plain pattern; one that could take very long is refused."""
    pattern = as_text(pattern)
    if len(pattern) > 200 or len(re.findall(r"[*+?{]", pattern)) > 2 or re.search(r"[*+?}|][^(]*\)[*+?{]", pattern):
        raise ValueError("the pattern is too complicated")
    return re.search(folded(pattern), folded(as_text(text)[:2000])) is not None


_DATE_PARTS = {"%i": "%M", "%s": "%S", "%M": "%B", "%W": "%A", "%e": "%d", "%c": "%m", "%T": "%H:%M:%S", "%h": "%I"}


def _date_format(value: Any, form: Any) -> str:
    return _moment(value).strftime(re.sub(r"%.", lambda m: _DATE_PARTS.get(m[0], m[0]), as_text(form)[:200]))


def _read_moment(value: Any, form: Any) -> str | None:
    form = re.sub(r"%.", lambda m: _DATE_PARTS.get(m[0], m[0]), as_text(form)[:200])
    try:
        moment = datetime.datetime.strptime(as_text(value)[:200], form)
    except ValueError:
        return None
    return str(moment) if re.search("%[HIMS]", form) else str(moment.date())


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "concat": lambda *values: "".join(map(as_text, values)),
    "concat_ws": lambda by, *values: as_text(by).join(as_text(value) for value in values if value is not None),
    "if": lambda test, yes, no: yes if test is not None and as_number(test) else no,
    "isnull": lambda value: value is None,
    "mysql_left": lambda text, count: as_text(text)[: max(0, int(as_number(count)))],
    "mysql_right": lambda text, count: as_text(text)[-int(as_number(count)) :] if as_number(count) >= 1 else "",
    "mysql_length": lambda text: len(as_text(text).encode()),
    "mysql_round": _round,
    "mysql_format": lambda value, digits: f"{as_number(value):,.{max(0, min(30, int(as_number(digits))))}f}",
    "mysql_char": lambda *codes: "".join(chr(int(as_number(code)) % 128) for code in codes),
    "mysql_date": _of_moment(lambda moment: moment.date().isoformat()),
    "mysql_time": _of_moment(lambda moment: moment.time().isoformat()),
    "char_length": lambda text: len(as_text(text)),
    "character_length": lambda text: len(as_text(text)),
    "lcase": lambda text: as_text(text).lower(),
    "ucase": lambda text: as_text(text).upper(),
    "lower": lambda text: as_text(text).lower(),
    "upper": lambda text: as_text(text).upper(),
    "mid": lambda text, start, count: as_text(text)[int(as_number(start)) - 1 :][: int(as_number(count))],
    "locate": lambda part, text: folded(as_text(text)).find(folded(as_text(part))) + 1,
    "lpad": functools.partial(_padded, left=True),
    "rpad": functools.partial(_padded, left=False),
    "reverse": lambda text: as_text(text)[::-1],
    "substring_index": _substring_index,
    "find_in_set": lambda part, texts: _index_of(as_text(part), as_text(texts).split(",")),
    "field": lambda wanted, *values: _index_of(wanted, values),
    "greatest": lambda *values: max(values, key=as_number),
    "least": lambda *values: min(values, key=as_number),
    "truncate": _truncated,
    "regexp": _regexp,
    "str_to_date": _read_moment,
    "from_unixtime": lambda value: str(datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=as_number(value))),
    "md5": lambda text: hashlib.md5(as_text(text).encode(), usedforsecurity=False).hexdigest(),
    "now": lambda: NOW,
    "curdate": lambda: NOW[:10],
    "year": _of_moment(lambda moment: moment.year),
    "month": _of_moment(lambda moment: moment.month),
    "day": _of_moment(lambda moment: moment.day),
    "dayofmonth": _of_moment(lambda moment: moment.day),
    "hour": _of_moment(lambda moment: moment.hour),
    "minute": _of_moment(lambda moment: moment.minute),
    "monthname": _of_moment(lambda moment: f"{moment:%B}"),
    "dayname": _of_moment(lambda moment: f"{moment:%A}"),
    "datediff": lambda one, other: (_moment(one).date() - _moment(other).date()).days,
    "date_format": _date_format,
}

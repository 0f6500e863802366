"""Random draws of realistic contents: words, names, hosts, times; a function of the seed alone."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from typing import TypeVar

from rollenv.envs.shell.words import FIRST_NAMES, LAST_NAMES, TOPICS, WORDS

_Item = TypeVar("_Item")
_FIRST_DAY = datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC)
#: Range of the number of records by size of the task.
_RECORDS = {1: (6, 20), 2: (20, 40), 3: (40, 80), 4: (120, 250), 5: (500, 900)}
#: Range of the number of files by size of the task.
_FILES = {1: (3, 12), 2: (6, 14), 3: (10, 18), 4: (18, 30), 5: (30, 50)}


def listed(items: Sequence[str]) -> str:
    """Join items for a sentence: a, b and c."""
    return " and ".join(part for part in (", ".join(items[:-1]), items[-1]) if part)


class TaskDraw:
    """A private stream of random draws."""

    def __init__(self, seed: str):
        self.rng = random.Random(seed)

    def number(self, least: int, most: int) -> int:
        """Draw a whole number from least to most, both included."""
        return self.rng.randint(least, most)

    def pick(self, items: Sequence[_Item]) -> _Item:
        """Draw an item."""
        return items[self.rng.randrange(len(items))]

    def some(self, items: Sequence[_Item], count: int) -> list[_Item]:
        """Draw ``count`` different items (all if there are fewer), in random order."""
        return self.rng.sample(list(items), min(count, len(items)))

    def mixed(self, items: Sequence[_Item]) -> list[_Item]:
        """Return all items in random order."""
        return self.some(items, len(items))

    def chance(self, share: float) -> bool:
        """Draw True with this probability."""
        return self.rng.random() < share

    def records(self, size: int) -> int:
        """Draw the number of lines or rows of a task of a size."""
        return self.number(*_RECORDS[size])

    def files(self, size: int) -> int:
        """Draw the number of files of a task of a size."""
        return self.number(*_FILES[size])

    def word(self) -> str:
        """Draw a common noun in lower case."""
        return self.pick(WORDS)

    def words(self, count: int) -> list[str]:
        """Draw different nouns; joined pairs if there are not enough."""
        if count <= len(WORDS) // 2:
            return self.some(WORDS, count)
        found: dict[str, None] = {}
        while len(found) < count:
            found[f"{self.word()}-{self.word()}"] = None
        return list(found)

    def label(self) -> str:
        """Draw a noun and a number, such as lamp-4821; duplicates are rare."""
        return f"{self.word()}-{self.number(100, 9999)}"

    def labels(self, count: int) -> list[str]:
        """Draw labels with different nouns."""
        return [f"{word}-{self.number(100, 9999)}" for word in self.words(count)]

    def topic(self) -> str:
        """Draw a noun for the name of a folder."""
        return self.pick(TOPICS)

    def topics(self, count: int) -> list[str]:
        """Draw different nouns for the names of folders."""
        return self.some(TOPICS, count)

    def sentence(self) -> str:
        """Draw four to nine words."""
        return " ".join(self.some(WORDS, self.number(4, 9)))

    def text(self, lines: int) -> str:
        """Draw lines of words, each with its line end."""
        return "".join(f"{self.sentence()}\n" for _ in range(lines))

    def person(self) -> str:
        """Draw a first and a last name."""
        return f"{self.pick(FIRST_NAMES)} {self.pick(LAST_NAMES)}"

    def people(self, count: int) -> list[str]:
        """Draw different people."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.person()] = None
        return list(found)

    def address(self) -> str:
        """Draw an IPv4 address of a private network."""
        return f"10.{self.number(0, 40)}.{self.number(0, 255)}.{self.number(1, 254)}"

    def token(self, length: int = 12) -> str:
        """Draw hexadecimal digits."""
        return "".join(self.pick("0123456789abcdef") for _ in range(length))

    def moment(self, days: int = 700) -> datetime.datetime:
        """Draw a time in UTC, to the second."""
        return _FIRST_DAY + datetime.timedelta(seconds=self.number(0, days * 86400 - 1))

    def moments(self, count: int, hours: float) -> list[datetime.datetime]:
        """Draw different times in UTC, in ascending order, within so many hours (at least a second for each)."""
        start = self.moment()
        seconds = self.rng.sample(range(max(count, int(hours * 3600))), count)
        return [start + datetime.timedelta(seconds=second) for second in sorted(seconds)]

    def price(self, least: int = 1, most: int = 200) -> str:
        """Draw an amount with two decimals from least (included) to most (excluded)."""
        cents = self.number(least * 100, most * 100 - 1)
        return f"{cents // 100}.{cents % 100:02d}"

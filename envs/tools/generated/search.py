"""Multi-hop questions over a generated corpus with a search engine."""

from __future__ import annotations

import collections
import functools
import hashlib
import math
import random
import re
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import ToolError, tool
from rollenv.envs.tools.base import Call
from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Goal, GoalDraw, GoalKind, World

_WORD = re.compile(r"\w+")
_ENDS = ("Works", "Trading", "Brothers", "Mills", "Lines")


class Relation(NamedTuple):
    """A step from one document to another, or to a value."""

    name: str
    target: str
    """Kind of the target document; empty for a value, which ends a question."""
    phrase: str
    """Phrase of a question about ``{x}``."""
    sentences: tuple[str, ...]
    """Sentences of a document about ``{x}``, with ``{y}`` at the other end."""


_TABLE = """
person | employer | company | the company that {x} works for | {x} works for {y}. | {x} is paid by {y}.
person | home | town | the town where {x} lives | {x} lives in {y}. | The home of {x} is {y}.
person | friend | person | the best friend of {x} | The best friend of {x} is {y}. | {x} likes {y} best of all friends.
person | badge |  | the badge number of {x} | {x} has the badge number {y}. | The badge of {x} has the number {y}.
company | head | person | the head of {x} | The head of {x} is {y}. | {x} is led by {y}.
company | seat | town | the town where {x} has its seat | {x} has its seat in {y}. | The seat of {x} is {y}.
company | rival | company | the main rival of {x} | The main rival of {x} is {y}. | {x} competes above all with {y}.
company | licence |  | the licence number of {x} | {x} holds the licence {y}. | The licence of {x} is {y}.
town | mayor | person | the mayor of {x} | The mayor of {x} is {y}. | {x} elected {y} as its mayor.
town | twin | town | the twin town of {x} | {x} is twinned with {y}. | The twin town of {x} is {y}.
town | postcode |  | the postcode of {x} | {x} has the postcode {y}. | Letters to {x} bear the postcode {y}.
"""
_ROWS = [[cell.strip() for cell in line.split("|")] for line in _TABLE.strip().splitlines()]
RELATIONS = {
    kind: tuple(Relation(row[1], row[2], row[3], tuple(row[4:])) for row in _ROWS if row[0] == kind)
    for kind in dict.fromkeys(row[0] for row in _ROWS)
}
#: Sentences about other people, so that a name in a document is not always the answer.
_BESIDES = {
    "person": "{x} has also met {y}.",
    "company": "{y} wanted to lead {x}, and did not.",
    "town": "{y} was born in {x} and moved away.",
}


@dataclass(frozen=True)
class Corpus:
    """Immutable documents and the links between them."""

    titles: dict[str, str]
    """Titles of documents by their ids."""
    kinds: dict[str, str]
    texts: dict[str, str]
    links: dict[tuple[str, str], str]
    """Target (an id or a value) by document and relation."""

    def search(self, query: str, top: int) -> list[str]:
        """Return the ids of the best matches (BM25; words of the title count three times)."""
        asked = list(dict.fromkeys(_WORD.findall(query.lower())))[:50]
        scores = {key: self._score(key, asked) for key in self._counts}
        found = sorted((key for key in scores if scores[key] > 0), key=lambda key: (-scores[key], key))
        return found[:top]

    @functools.cached_property
    def _counts(self) -> dict[str, collections.Counter[str]]:
        """Word counts of each document."""
        return {
            key: collections.Counter(_WORD.findall(text.lower()) + 3 * _WORD.findall(self.titles[key].lower()))
            for key, text in self.texts.items()
        }

    @functools.cached_property
    def _spread(self) -> tuple[collections.Counter[str], float]:
        """The number of documents with each word, and the mean length of a document."""
        found = collections.Counter(word for count in self._counts.values() for word in count)
        return found, sum(count.total() for count in self._counts.values()) / len(self._counts)

    def _score(self, key: str, asked: list[str]) -> float:
        count, (spread, mean) = self._counts[key], self._spread
        length, total = count.total() / mean, 0.0
        for word in asked:
            if word in count:
                rare = math.log(1 + (len(self._counts) - spread[word] + 0.5) / (spread[word] + 0.5))
                total += rare * count[word] * 2.5 / (count[word] + 1.5 * (0.25 + 0.75 * length))
        return total


def make_corpus(rng: random.Random, size: int) -> Corpus:
    """Generate documents about people, companies and towns."""
    size = max(size, 9)
    companies = towns = size // 4
    names = words.people(rng, size - companies - towns)
    invented = list(dict.fromkeys(words.name(rng, 3) for _ in range(size * 4)))
    made = [("person", name) for name in names]
    made += [("company", f"{name} {rng.choice(_ENDS)}") for name in invented[:companies]]
    made += [("town", name) for name in invented[companies : companies + towns]]
    keys = [f"D{n}" for n in rng.sample(range(100, 1000), len(made))]
    kinds = {key: kind for key, (kind, _) in zip(keys, made, strict=True)}
    titles = {key: title for key, (_, title) in zip(keys, made, strict=True)}
    links = {}
    for key, kind in kinds.items():
        for relation in RELATIONS[kind]:
            ends = [other for other in kinds if kinds[other] == relation.target and other != key]
            links[key, relation.name] = rng.choice(ends) if relation.target else words.code(rng, 7)
    texts = {key: _text(rng, key, kinds, titles, links) for key in keys}
    order = sorted(keys)
    return Corpus(titles, {key: kinds[key] for key in order}, {key: texts[key] for key in order}, links)


def _text(
    rng: random.Random, key: str, kinds: dict[str, str], titles: dict[str, str], links: dict[tuple[str, str], str]
) -> str:
    sentences = []
    for relation in RELATIONS[kinds[key]]:
        end = links[key, relation.name]
        sentences.append(rng.choice(relation.sentences).format(x=titles[key], y=titles.get(end, end)))
    someone = rng.choice([other for other in kinds if kinds[other] == "person" and other != key])
    sentences.append(_BESIDES[kinds[key]].format(x=titles[key], y=titles[someone]))
    rng.shuffle(sentences)
    return " ".join(sentences)


class Library(World):
    """A searchable, immutable corpus."""

    def __init__(self, corpus: Corpus, hops: tuple[int, int]):
        digest = hashlib.blake2b("\n".join(corpus.texts.values()).encode(), digest_size=8).hexdigest()
        super().__init__({"corpus": digest})
        self.corpus, self.hops = corpus, hops

    @tool
    def search(self, query: str, top: Annotated[int, Field(ge=1, le=10)] = 5) -> list[dict[str, str]]:
        """Find documents by words in them; gives ids and titles, the best match first.

        Args:
            query: words.
            top: the most documents, 1 to 10.
        """
        found = self.corpus.search(query, top)
        if not found:
            raise ToolError("no document has any of these words")
        return [{"id": key, "title": self.corpus.titles[key]} for key in found]

    @tool
    def open(self, id: str) -> str:
        """Read a document."""
        if id not in self.corpus.texts:
            raise ToolError(f"there is no document {id[:60]!r}; search for it first")
        return self.corpus.texts[id]


def _question(draw: GoalDraw, breaks: bool) -> Goal | None:
    """Draw a path from one document to others, which ends in a value."""
    assert isinstance(draw.world, Library)
    corpus = draw.world.corpus
    key = draw.rng.choice(list(corpus.kinds))
    seen, phrase = [key], corpus.titles[key]
    for _ in range(draw.rng.randint(*draw.world.hops) - 1):
        steps = [one for one in RELATIONS[corpus.kinds[key]] if one.target and corpus.links[key, one.name] not in seen]
        if not steps:
            return None
        step = draw.rng.choice(steps)
        key, phrase = corpus.links[key, step.name], step.phrase.format(x=phrase)
        seen.append(key)
    last = next(one for one in RELATIONS[corpus.kinds[key]] if not one.target)
    value = corpus.links[key, last.name]
    phrase = last.phrase.format(x=phrase)
    ask = draw.say(f"What is {phrase}?", f"Find out {phrase}.", f"Tell me {phrase}.")
    look: list[list[Call]] = []
    for one in seen:
        look += [[("search", {"query": corpus.titles[one]})], [("open", {"id": one})]]
    values = [end for end in corpus.links.values() if end not in corpus.kinds]
    return Goal(ask, look, done=f"The answer is {value}.", answers=[value], rivals=lambda state: values)


class SearchEnv(GeneratedToolEnv):
    """Search: questions about people, companies and towns that take several documents to answer.

    Args:
        hops: number of documents for a question, or its minimum and maximum, 1 to 5.
        settings: without ``missing`` and ``policy``, since nothing can be changed.
    """

    intro = "You answer questions from a library of documents."
    templates = (GoalKind(_question),)

    def __init__(self, *, hops: int | tuple[int, int] | list[int] = (1, 3), **settings: Any):
        super().__init__(**settings)
        if self.missing != "none":
            raise UsageError(f"missing={self.missing!r}: a question cannot be left incomplete here, nor a function")
        both = (hops, hops) if isinstance(hops, int) else tuple(hops)
        if len(both) != 2 or not all(type(n) is int for n in both) or not 1 <= both[0] <= both[1] <= 5:
            raise UsageError(f"hops={hops!r} is not a number from 1 to 5 or a pair of them, the lower one first")
        self.hops = (both[0], both[1])

    def world(self, rng: random.Random) -> Library:
        return Library(make_corpus(rng, self.size), self.hops)

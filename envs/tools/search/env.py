"""Questions that take several documents to answer."""

from __future__ import annotations

import hashlib
import random
from typing import Annotated, Any

from pydantic import Field

from rollenv.core import UsageError
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Draw, Goal, Template, World
from rollenv.envs.tools.problem import Call
from rollenv.envs.tools.search.corpus import RELATIONS, Corpus, make_corpus
from rollenv.tools.backend import ToolError, tool


class Library(World):
    """A corpus to search; nothing in it changes.

    Args:
        hops: the least and the most documents that a question takes.
    """

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


def _question(draw: Draw, breaks: bool) -> Goal | None:
    """A walk from one document to others, and a value in the last one."""
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
    ask = draw.say("What is {phrase}?", "Find out {phrase}.", "Tell me {phrase}.", phrase=last.phrase.format(x=phrase))
    look: list[list[Call]] = []
    for one in seen:
        look += [[("search", {"query": corpus.titles[one]})], [("open", {"id": one})]]
    values = [end for end in corpus.links.values() if end not in corpus.kinds]
    return Goal(ask, look, done=f"The answer is {value}.", answers=[value], rivals=lambda state: values)


class SearchEnv(GeneratedToolEnv):
    """Search: questions about people, companies and towns that take several documents to answer.

    Args:
        hops: documents that a question takes, or the least and the most, 1 to 5.
        settings: of :class:`~rollenv.envs.tools.generated.generate.GeneratedToolEnv`; nothing can be changed, left out
            or forbidden here, so that neither ``missing`` nor ``policy`` is possible.
    """

    intro = "You answer questions from a library of documents."
    templates = (Template(_question),)

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

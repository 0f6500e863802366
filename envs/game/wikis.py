"""The sources of WikiGame's pages: a small encyclopedia made here, or a MediaWiki server."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from rollenv.core import RollenvError, UsageError
from rollenv.envs.game.base import read_lines

#: Stop words, which say nothing about the topic of a page.
COMMON = (
    "all",
    "and",
    "another",
    "are",
    "for",
    "from",
    "has",
    "its",
    "not",
    "that",
    "the",
    "who",
    "with",
    "which",
    "you",
)


@dataclass(frozen=True, slots=True)
class Page:
    """An article: its title, its text, and the titles it links to."""

    title: str
    text: str
    links: tuple[str, ...]


class WikiUnavailable(RollenvError, ConnectionError):
    """The wiki's server gave no valid answer."""


class GraphWiki:
    """An encyclopedia of a few hundred everyday things, generated from a seed. All pages are connected.

    A page links to those whose definitions share words with its own, to a few at random, and to the next one on a ring
    through all pages.

    Args:
        seed: decides the random links and the ring.
        similar, others: links of either kind on a page, at most.
    """

    def __init__(self, seed: int = 0, similar: int = 6, others: int = 2):
        rng = random.Random(seed)
        about = dict(line.split("\t") for name in ("clues.txt", "clues_hard.txt") for line in read_lines(name))
        titles = sorted(word.capitalize() for word in about)
        terms = {title: _terms(title, about[title.lower()]) for title in titles}
        ring = rng.sample(titles, len(titles))
        after = dict(zip(ring, ring[1:] + ring[:1], strict=True))
        self.titles = titles
        self._known: dict[str, dict[str, int]] = {}
        self.pages: dict[str, Page] = {}
        for title in titles:
            shuffled = rng.sample(titles, len(titles))
            shared = {other: len(terms[title] & terms[other]) for other in shuffled if other != title}
            related = sorted((t for t in shared if shared[t]), key=lambda t: -shared[t])[:similar]
            links = {*related, *rng.sample(titles, others), after[title]} - {title}
            self.pages[title] = Page(title, f"{about[title.lower()]}.", tuple(sorted(links)))

    def page(self, title: str) -> Page:
        """The page of a title that a link named."""
        return self.pages[title]

    def ends(self, randint: Callable[[int], int], clicks: int) -> tuple[str, str]:
        """Draw a start and a target that can be reached from it.

        Args:
            randint: ``randint(n)`` draws from 0 .. n - 1.
            clicks: the most clicks between them.

        Returns:
            The titles of the start and the target.
        """
        start = self.titles[randint(len(self.titles))]
        near = [title for title, far in self.distances_from(start).items() if 0 < far <= clicks]
        return start, near[randint(len(near))]

    def distances_from(self, start: str) -> Mapping[str, int]:
        """Clicks from a page to every page."""
        if start not in self._known:
            far = {start: 0}
            queue = [start]
            for title in queue:
                for link in self.pages[title].links:
                    if link not in far:
                        far[link] = far[title] + 1
                        queue.append(link)
            self._known[start] = far
        return self._known[start]


def _terms(title: str, definition: str) -> frozenset[str]:
    words = f"{title} {definition}".lower().replace(",", " ").split()
    return frozenset(word.rstrip("s") for word in words if len(word) > 2 and word not in COMMON)


@functools.lru_cache(maxsize=8)
def graph_wiki(**settings: int) -> GraphWiki:
    """A :class:`GraphWiki`, shared by all games with the same settings; it never changes."""
    try:
        return GraphWiki(**settings)
    except TypeError as error:
        raise UsageError(
            f"backend='graph' takes the trawler_kwargs seed, similar and others, got {settings}"
        ) from error


class MediaWiki:
    """Pages of a MediaWiki server through its API; it needs the extension TextExtracts.

    Args:
        url: of ``api.php``.
        query_delay_ms: pause before every request, in milliseconds.
        timeout: seconds to wait for an answer.
        max_links: links kept of a page, the first ones in the server's order.
    """

    def __init__(
        self,
        url: str = "http://localhost/w/api.php",
        query_delay_ms: float = 0.0,
        timeout: float = 10.0,
        max_links: int = 500,
    ):
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"url must be the http(s) address of a MediaWiki api.php, got {url!r}")
        self.url, self.timeout, self.max_links = url, timeout, max_links
        self.pause = query_delay_ms / 1000
        self._pages: dict[str, Page] = {}

    def page(self, title: str) -> Page:
        """The page of a title (of what it redirects to), cached."""
        if title not in self._pages:
            self._pages[title] = self._fetch(title)
        return self._pages[title]

    def ends(self, randint: Callable[[int], int], clicks: int) -> tuple[str, str]:
        """Let the server draw two different articles. Whether a path leads from one to the other is unknown.

        Returns:
            The titles of the start and the target.

        Raises:
            WikiUnavailable: the server gave no usable pair in ten tries.
        """
        self._pages.clear()
        for _ in range(10):
            answer = self._ask(list="random", rnnamespace="0", rnlimit="2")
            titles = [str(entry["title"]) for entry in answer.get("query", {}).get("random", [])]
            if len(set(titles)) == 2 and self.page(titles[0]).links:
                return titles[0], self.page(titles[1]).title
        raise WikiUnavailable(f"{self.url} gave no two random articles in ten tries")

    def _fetch(self, title: str) -> Page:
        found, text = title, ""
        links: list[str] = []
        more: dict[str, str] = {}
        wanted = {"prop": "extracts|links", "explaintext": "1", "plnamespace": "0", "pllimit": "max", "redirects": "1"}
        while len(links) < self.max_links:
            answer = self._ask(titles=title, **wanted, **more)
            pages = answer.get("query", {}).get("pages", [])
            if not pages or "missing" in pages[0]:
                raise WikiUnavailable(f"{self.url} has no page {title!r}")
            found, text = pages[0]["title"], text or pages[0].get("extract", "")
            links += [link["title"] for link in pages[0].get("links", [])]
            more = answer.get("continue", {})
            if not more:
                break
        return Page(found, text, tuple(links[: self.max_links]))

    def _ask(self, **parameters: str) -> dict[str, Any]:
        query = {"action": "query", "format": "json", "formatversion": "2", **parameters}
        time.sleep(self.pause)
        try:
            answer = httpx.get(self.url, params=query, headers={"User-Agent": "rollenv"}, timeout=self.timeout).json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise WikiUnavailable(f"{self.url} did not answer: {error}; is a MediaWiki server there?") from error
        if not isinstance(answer, dict) or "error" in answer:
            raise WikiUnavailable(f"{self.url} refused {parameters}: {answer}")
        return answer

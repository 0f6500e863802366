"""The wiki game: follow links from one article to another, in a generated encyclopedia or on a MediaWiki server."""

from __future__ import annotations

import functools
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from rollenv.core.errors import RollenvError, Unsolvable, UsageError
from rollenv.core.proxies import without_proxy
from rollenv.envs.game.base import TextGame, box, read_lines, turns

#: Stop words, ignored when the similarity of pages is computed.
COMMON = "all and another are for from has its not that the who with which you".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Page:
    """An article: title, text, and titles of its links."""

    title: str
    text: str
    links: tuple[str, ...]


class WikiUnavailable(RollenvError, ConnectionError):
    """The wiki server returned no valid response."""


class GraphWiki:
    """An encyclopedia of a few hundred everyday things, generated from a seed. All pages are connected.

    A page links to those whose definitions share words with its own, to a few at random, and to the next one on a ring
    through all pages.

    Args:
        similar, others: maximum number of links of either kind on a page.
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
        """Return the page of a title."""
        return self.pages[title]

    def ends(self, randint: Callable[[int], int], clicks: int) -> tuple[str, str]:
        """Draw a start and a target that can be reached from it."""
        start = self.titles[randint(len(self.titles))]
        near = [title for title, far in self.distances_from(start).items() if 0 < far <= clicks]
        return start, near[randint(len(near))]

    def distances_from(self, start: str) -> Mapping[str, int]:
        """Return the number of clicks from a page to every page."""
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
    """Return an immutable :class:`GraphWiki`, shared by all games with the same settings."""
    try:
        return GraphWiki(**settings)
    except TypeError as error:
        raise UsageError(
            f"backend='graph' takes the trawler_kwargs seed, similar and others, got {settings}"
        ) from error


class MediaWiki:
    """Pages of a MediaWiki server, through its API with the extension TextExtracts.

    Args:
        query_delay_ms: pause before every request, in milliseconds.
        timeout: timeout of a request, in seconds.
        max_links: maximum number of links of a page, the first ones in the server's order.
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
        """Return the page of a title, following redirects; cached."""
        if title not in self._pages:
            self._pages[title] = self._fetch(title)
        return self._pages[title]

    def ends(self, randint: Callable[[int], int], clicks: int) -> tuple[str, str]:
        """Let the server draw two different articles. Whether a path leads from one to the other is unknown."""
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
            headers = {"User-Agent": "rollenv"}
            with httpx.Client(timeout=self.timeout, headers=headers, mounts=without_proxy(self.url)) as client:
                answer = client.get(self.url, params=query).json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise WikiUnavailable(f"{self.url} did not answer: {error}; is a MediaWiki server there?") from error
        if not isinstance(answer, dict) or "error" in answer:
            raise WikiUnavailable(f"{self.url} refused {parameters}: {answer}")
        return answer


BACKENDS = ("graph", "mw")
VARIANTS = ("noregrets", "freenav")
SUMMARY_UNITS = ("characters", "words", "sentences")
BACK = "<PREV_PAGE>"


class WikiGame(TextGame):
    """Reach the target article by clicks on links.

    Pays 1 for the target, -0.05 for every other page, and -0.2 for a title that is not a link here or an action that
    does not parse; neither ends the episode. A page without links does.

    Args:
        backend: ``graph`` plays on a small generated encyclopedia (:class:`GraphWiki`), where the target is always
            within reach; ``mw`` on a MediaWiki server, which draws the articles, so that episodes are not reproducible
            and there is no oracle.
        trawler_kwargs: arguments for the backend: ``url``, ``query_delay_ms``, ... of
            :class:`~rollenv.envs.game.wiki_game.MediaWiki`, or ``seed``, ... of ``GraphWiki``.
        page_summary_length: length of the excerpt of an article: a number, and characters, words or sentences.
        variant: ``noregrets``, or ``freenav``, in which ``<PREV_PAGE>`` goes back.
    """

    size_names = ("max_turns",)
    state_names = ("target", "path")
    malformed_reward = -0.2
    malformed_ends = False

    def __init__(
        self,
        max_turns: int | None = 20,
        backend: str = "graph",
        trawler_kwargs: dict[str, Any] | None = None,
        page_summary_length: tuple[int, str] = (100, "characters"),
        variant: str = "noregrets",
    ):
        length, unit = page_summary_length
        for name, value, known in (
            ("backend", backend, BACKENDS),
            ("variant", variant, VARIANTS),
            ("the unit of page_summary_length", unit, SUMMARY_UNITS),
        ):
            if value not in known:
                raise UsageError(f"WikiGame: {name} {value!r} is unknown; choose from {', '.join(known)}")
        super().__init__(max_turns=max_turns)
        self.variant = variant
        self.page_summary_length = int(length), unit
        settings = trawler_kwargs or {}
        self.wiki: GraphWiki | MediaWiki = graph_wiki(**settings) if backend == "graph" else MediaWiki(**settings)
        self.target = ""
        #: The titles from the start to the current page.
        self.path: list[str] = []

    def _instructions(self) -> str:
        back = f" {box(BACK)} goes back to the page before." if self.variant == "freenav" else ""
        return (
            f"This is the wiki game: get from the page {self.path[0]} to the page {self.target} within "
            f"{turns(self.max_turns)}, by following links. The target is about this: {self._summary(self.target)}\n"
            f"Answer with the title of a page that the current one links to, as in {box(self.page.links[0])}.{back}"
        )

    def _new_game(self) -> None:
        start, self.target = self.wiki.ends(self.randint, self.max_turns)
        self.path = [start]

    @property
    def page(self) -> Page:
        """The current page."""
        return self.wiki.page(self.path[-1])

    def _summary(self, title: str) -> str:
        text = self.wiki.page(title).text
        length, unit = self.page_summary_length
        if unit == "characters":
            return text if len(text) <= length else f"{text[:length]}..."
        parts = text.split() if unit == "words" else re.split(r"(?<=[.!?])\s+", text)
        return " ".join(parts[:length])

    def _parse(self, text: str) -> Any:
        return text if text == BACK else text.replace("_", " ") or None

    def _play(self, move: str) -> tuple[str, float, bool | None]:
        if move == BACK and self.variant == "freenav":
            if len(self.path) == 1:
                return "there is no page to go back to.", -0.2, None
            self.path.pop()
            return f"you went back to {self.path[-1]}.", -0.05, None
        links = self.page.links
        title = move if move in links else next((link for link in links if link.lower() == move.lower()), None)
        if title is None:
            return f"there is no link to {move[:300]} here.", -0.2, None
        self.path.append(title)
        if self.page.title == self.target:
            return f"you reached {self.target}.", 1.0, True
        if not self.page.links:
            return f"you went to {title}, which has no links.", -0.05, False
        return f"you went to {title}.", -0.05, None

    def _suffix(self) -> str:
        return self.render()

    def render(self) -> str:
        if not self.path:
            return ""
        links = "\n".join(f"- {link}" for link in self.page.links)
        way = f"Your way: {' > '.join(self.path)}\n" if self.variant == "freenav" else ""
        return f"{way}Page: {self.page.title}\n{self._summary(self.path[-1])}\nTarget: {self.target}\nLinks:\n{links}"

    def _next_move(self) -> str:
        """Return the first link of a shortest path."""
        if isinstance(self.wiki, MediaWiki):
            raise Unsolvable(f"{self}: the links of a MediaWiki server are not known in advance; there is no oracle")
        far = {link: self.wiki.distances_from(link)[self.target] for link in self.page.links}
        return min(far, key=far.__getitem__)

    def sample_random_action(self) -> str:
        return box(self._pick(self.page.links))

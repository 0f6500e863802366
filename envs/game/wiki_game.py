"""The wiki game: get from one article to another by following links."""

from __future__ import annotations

import re
from typing import Any

from rollenv.core import Unsolvable, UsageError
from rollenv.envs.game.base import TextGame, box, turns
from rollenv.envs.game.wikis import GraphWiki, MediaWiki, Page, graph_wiki

BACKENDS = ("graph", "mw")
VARIANTS = ("noregrets", "freenav")
SUMMARY_UNITS = ("characters", "words", "sentences")
BACK = "<PREV_PAGE>"


class WikiGame(TextGame):
    """Reach the target article by clicks on links.

    Pays 1 for the target, -0.05 for every other page, and -0.2 for a title that is not a link here or an action that
    does not parse; neither ends the episode. A page without links does.

    Args:
        max_turns: turns before the episode is truncated.
        backend: ``graph`` plays on a small encyclopedia made here (:class:`~rollenv.envs.game.wikis.GraphWiki`), where
            the target is always near enough; ``mw`` on a MediaWiki server, which draws the articles, so that a seed
            does not repeat an episode and there is no oracle.
        trawler_kwargs: arguments for the backend: ``url``, ``query_delay_ms``, ... of
            :class:`~rollenv.envs.game.wikis.MediaWiki`, or ``seed``, ... of ``GraphWiki``.
        page_summary_length: how much of an article to show: a number, and characters, words or sentences.
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
        """The page the player is on."""
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
            return self._go_back()
        title = move if move in self.page.links else self._link_like(move)
        if title is None:
            return f"there is no link to {move[:300]} here.", -0.2, None
        self.path.append(title)
        if self.page.title == self.target:
            return f"you reached {self.target}.", 1.0, True
        if not self.page.links:
            return f"you went to {title}, which has no links.", -0.05, False
        return f"you went to {title}.", -0.05, None

    def _link_like(self, title: str) -> str | None:
        """The link of this title, ignoring case."""
        wanted = title.lower()
        return next((link for link in self.page.links if link.lower() == wanted), None)

    def _go_back(self) -> tuple[str, float, bool | None]:
        if len(self.path) == 1:
            return "there is no page to go back to.", -0.2, None
        self.path.pop()
        return f"you went back to {self.path[-1]}.", -0.05, None

    def _suffix(self) -> str:
        return self.render()

    def render(self) -> str:
        if not self.path:
            return ""
        links = "\n".join(f"- {link}" for link in self.page.links)
        way = f"Your way: {' > '.join(self.path)}\n" if self.variant == "freenav" else ""
        return f"{way}Page: {self.page.title}\n{self._summary(self.path[-1])}\nTarget: {self.target}\nLinks:\n{links}"

    def _next_move(self) -> str:
        """The first link of a shortest way."""
        if isinstance(self.wiki, MediaWiki):
            raise Unsolvable(f"{self}: the links of a MediaWiki server are not known in advance; there is no oracle")
        far = {link: self.wiki.distances_from(link)[self.target] for link in self.page.links}
        return min(far, key=far.__getitem__)

    def sample_random_action(self) -> str:
        return box(self._pick(self.page.links))

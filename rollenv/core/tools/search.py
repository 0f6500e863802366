"""Tools that search: a retrieval server, or documents in memory."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from rollenv.core.errors import RollenvError, UsageError, reads
from rollenv.core.needs import extra
from rollenv.core.parsing import first_tagged
from rollenv.core.proxies import without_proxy
from rollenv.core.tools.base import NOT_CALLED, BaseTool, ToolResult

#: Maximum bytes of a server's response.
MAX_BYTES = 4_000_000
#: Maximum characters of a document in an observation.
MAX_SHOWN = 20_000


class _Search(BaseTool):
    """Recognises the first ``<search>`` element of an action, and shows what was found."""

    tool_type = "search"

    def instruction_string(self) -> str:
        return "To search, write a query between <search> and </search>; the best documents are shown to you."

    def execute_action(self, action: str) -> ToolResult:
        call = first_tagged(action, "search")
        if call is None:
            return NOT_CALLED
        query, parsed = call.content.strip(), action[: call.end]
        if not query:
            return ToolResult(True, True, "The query is empty: write it between <search> and </search>.", parsed)
        try:
            documents = self._retrieve(query)
        except RollenvError:  # for the user to fix, not the agent
            raise
        except Exception as error:  # the agent gets every failure of the server
            return ToolResult(True, True, f"The search failed: {type(error).__name__}: {str(error)[:300]}", parsed)
        return ToolResult(True, False, self.shown(documents), parsed)

    def shown(self, documents: Sequence[str]) -> str:
        """Return the results as text for the agent."""
        return "\n".join(_show(i + 1, text) for i, text in enumerate(documents)) or "Nothing was found."

    def _retrieve(self, query: str) -> list[str]:
        """The best documents, best first."""
        raise NotImplementedError(f"{type(self).__name__} has no _retrieve()")


class SearchTool(_Search):
    """Sends the first ``<search>`` element of an action to a retrieval server with GEM's protocol.

    The request is a MessagePack map ``{query, topk, return_scores}``, the answer (MessagePack or JSON)
    ``{"result": [{"document": {"contents": ...}}, ...]}``.

    Args:
        search_url: address of the server; by default ``$SEARCH_URL``, read when first used.
        timeout: seconds that a request may take.
    """

    #: True to ask the server for scores; they are not shown.
    return_scores = False

    def __init__(self, num_workers: int = 1, search_url: str | None = None, topk: int = 3, timeout: float = 5):
        super().__init__(num_workers)
        if topk < 1:
            raise UsageError(f"topk must be at least 1, got {topk}")
        self.search_url, self.topk, self.timeout = search_url, topk, timeout

    def check(self) -> None:
        self._settings()

    def _settings(self) -> tuple[Any, str]:
        with extra("tools", "Searching with a retrieval server"):
            import msgpack
        url = self.search_url or os.environ.get("SEARCH_URL")
        if not url:
            raise UsageError("no retrieval server is set; pass search_url= or set SEARCH_URL")
        if not re.match(r"https?://[^/\s]", url):
            raise UsageError(f"the retrieval server {url!r} must be an http:// or https:// address")
        return msgpack, url

    def _retrieve(self, query: str) -> list[str]:
        return [str(row["document"]["contents"]) for row in self._rows(query)[: self.topk]]

    def _rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows that the server found, unchanged."""
        msgpack, url = self._settings()
        request = msgpack.packb({"query": query, "topk": self.topk, "return_scores": self.return_scores})
        http = httpx.Client(timeout=self.timeout, mounts=without_proxy(url))
        with http as client, client.stream("POST", url, content=request) as response:
            response.raise_for_status()
            content = self._read(response)
            is_json = "json" in response.headers.get("content-type", "")
        answer: Any = json.loads(content) if is_json else msgpack.unpackb(content)
        return list(answer["result"])

    def _read(self, response: httpx.Response) -> bytes:
        """Read the body within the deadline; httpx's timeout applies to each chunk."""
        content, end = bytearray(), time.monotonic() + self.timeout
        for piece in response.iter_bytes():
            content += piece
            if len(content) > MAX_BYTES:
                raise ValueError(f"the answer is larger than {MAX_BYTES} bytes")
            if time.monotonic() > end:
                raise TimeoutError(f"the answer took longer than {self.timeout:g} s")
        return bytes(content)


class CorpusSearchTool(_Search):
    """Searches documents in memory with BM25 (Lucene's variant, k1 1.5, b 0.75), offline.

    Args:
        documents: texts whose first line is the title, or a path of a JSONL file with a ``contents`` column.
    """

    def __init__(self, documents: Sequence[str] | str | Path, topk: int = 3, num_workers: int = 1):
        super().__init__(num_workers)
        with extra("tools", "Searching a corpus"):
            import bm25s
        self.documents = _load(documents)
        if not self.documents or topk < 1:
            raise UsageError(
                f"a corpus needs at least one document, and topk must be at least 1, got {len(self.documents)}, {topk}"
            )
        self.topk = min(topk, len(self.documents))
        self._tokenize = partial(bm25s.tokenize, stopwords="en", show_progress=False)
        self._index = bm25s.BM25()
        self._index.index(self._tokenize(self.documents), show_progress=False)

    def _retrieve(self, query: str) -> list[str]:
        found, scores = self._index.retrieve(self._tokenize([query[:10_000]]), k=self.topk, show_progress=False)
        return [self.documents[int(i)] for i, score in zip(found[0], scores[0], strict=True) if score > 0]


def _load(documents: Sequence[str] | str | Path) -> list[str]:
    if not isinstance(documents, str | Path):
        return list(documents)
    with reads(f"cannot read the corpus {str(documents)!r}"), open(documents, encoding="utf-8") as file:
        found = [json.loads(line)["contents"] for line in file if line.strip()]
    return found


def _show(number: int, contents: str) -> str:
    """The first line of a document is its title."""
    title, _, text = contents[:MAX_SHOWN].partition("\n")
    return f"Doc {number} (Title: {title.strip().strip(chr(34))}) {text.strip()}"

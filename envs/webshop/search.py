"""The original's search: BM25 over one field, with Lucene's analysis, scores and order of ties.

Scores are Lucene's (k1 0.9, b 0.4), including its lossy document lengths. Documents with equal scores are in ascending
order of their ASINs. The index is in the format of bm25s, which maps it into memory and computes the scores.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollenv.envs.webshop.analysis import package, term, tokens
from rollenv.envs.webshop.catalogue import Products

#: Numbers of products, best first.
Results = NDArray[np.int32]

#: Version of the index format; raise it with every change.
INDEX_FORMAT = 1
K1, B = 0.9, 0.4
#: Maximum number of results of a query.
MAX_RESULTS = 50
#: Maximum number of characters and terms of a query (Lucene's limit).
MAX_QUERY, MAX_TERMS = 10_000, 1024
_BATCH = 4096
_LISTS = {"<a>": "attribute", "<c>": "category", "<q>": "query"}


class SearchEngine:
    """Finds products by keywords."""

    def __init__(self, catalogue: Products, folder: Path):
        self.catalogue = catalogue
        self._bm25 = package("bm25s").BM25.load(folder, mmap=True, load_vocab=False, show_progress=False)
        for name in ("data", "indices", "indptr"):  # plain arrays are much faster to slice than mapped ones
            self._bm25.scores[name] = self._bm25.scores[name].view(np.ndarray)
        self._words = np.memmap(folder / "words.bin", np.uint8, "r").view(np.ndarray)
        self._word_starts = np.load(folder / "word_starts.npy", mmap_mode="r").view(np.ndarray)
        self._by_asin = catalogue.by_asin
        self._number = functools.lru_cache(maxsize=1 << 16)(self._find)
        self.search = functools.lru_cache(maxsize=1024)(self._search)

    def _word(self, number: int) -> bytes:
        return self._words[self._word_starts[number] : self._word_starts[number + 1]].tobytes()

    def _find(self, token: str) -> int:
        """Return the number of a token's term; -1 for a stop word or an unknown term."""
        found = term(token)
        if found is None:
            return -1
        wanted = found.encode("utf-8", "surrogatepass")
        low, high = 0, len(self._word_starts) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._word(middle) < wanted else (low, middle)
        return low if low < len(self._word_starts) - 1 and self._word(low) == wanted else -1

    def scores(self, query: str) -> NDArray[np.float32]:
        """Return the score of every product, in ascending order of ASINs."""
        found = [n for token in tokens(query[:MAX_QUERY]) if (n := self._number(token)) >= 0]
        if not found:
            return np.zeros(len(self.catalogue), np.float32)
        scores: NDArray[np.float32] = self._bm25.get_scores_from_ids(found[:MAX_TERMS])
        return scores

    def ranked(self, query: str, k: int = MAX_RESULTS) -> list[tuple[int, float]]:
        """Return (number of the product, score) pairs for a query, best first, without those of score 0."""
        scores = self.scores(query)
        best = _best(scores, k)
        return list(zip(self._by_asin[best].tolist(), scores[best].tolist(), strict=True))

    def _search(self, keywords: str) -> Results:
        """Return the numbers of the products for keywords.

        As in the original, ``<a> attribute``, ``<c> category`` and ``<q> query`` list products instead of searching, as
        does ``<r> text`` with 50 random ones, which here are a function of the text.
        """
        first, _, rest = keywords.partition(" ")
        if first == "<r>":
            size = len(self.catalogue)
            draw = np.random.Generator(np.random.PCG64(list(rest.encode("utf-8", "surrogatepass")[:64])))
            return draw.choice(size, size=min(MAX_RESULTS, size), replace=False).astype(np.int32)
        if first in _LISTS:
            name = rest.split(" ")[0] if first == "<c>" else rest
            return self.catalogue.listed(_LISTS[first], name.strip())
        return self._by_asin[_best(self.scores(keywords), MAX_RESULTS)]


def rank_in(results: Results, number: int) -> int | None:
    """Return the index of a product in search results, or None."""
    positions = np.flatnonzero(results == number)
    return int(positions[0]) if len(positions) else None


def _best(scores: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Return the indices of the ``k`` highest positive scores; of equal ones, the lowest index first."""
    if len(scores) > 4 * k:
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        positions = np.flatnonzero(scores >= least) if least > 0 else np.flatnonzero(scores > 0)
    else:
        positions = np.flatnonzero(scores > 0)
    return positions[np.argsort(-scores[positions], kind="stable")[:k]]


# -- the index -------------------------------------------------------------------------------------------------------


def stored_length(length: int) -> int:
    """Return a length as Lucene stores it: four significant bits (``SmallFloat.intToByte4``), exact up to 39."""
    free = 255 - _to_four_bits(2**31 - 1)
    if length < free:
        return length
    bits = _to_four_bits(length - free)
    mantissa, shift = bits & 7, (bits >> 3) - 1
    return free + (mantissa if shift < 0 else (mantissa | 8) << shift)


def _to_four_bits(number: int) -> int:
    if number < 8:
        return number
    shift = number.bit_length() - 4
    return (number >> shift) & 7 | (shift + 1) << 3


def write_index(catalogue: Products, folder: Path) -> None:
    """Write the search index of a catalogue to an existing folder."""
    counts = _count(catalogue, folder / "postings.bin")
    # Words are sorted by their bytes, for a binary search.
    packed = sorted(word.encode("utf-8", "surrogatepass") for word in counts.words)
    (folder / "words.bin").write_bytes(b"".join(packed) or b"\0")
    np.save(folder / "word_starts.npy", np.cumsum([0, *map(len, packed)]))
    _save_scores(counts, len(catalogue), folder)
    (folder / "postings.bin").unlink()
    parameters = {
        "k1": K1,
        "b": B,
        "delta": 0.5,
        "method": "lucene",
        "idf_method": "lucene",
        "dtype": "float32",
        "int_dtype": "int32",
        "num_docs": len(catalogue),
        "backend": "numpy",
    }
    (folder / "params.index.json").write_text(json.dumps(parameters), encoding="utf-8")


class _Counts:
    """The counts of the first pass over the documents."""

    def __init__(self, documents: int):
        self.words: list[str] = []
        self.lengths = np.zeros(documents, np.int64)
        self.frequency = np.zeros(0, np.int64)
        """Number of documents with each word."""


def _count(catalogue: Products, path: Path) -> _Counts:
    """Write the postings (word, document, count) in batches, and count."""
    counts = _Counts(len(catalogue))
    position = np.empty(len(catalogue), np.int32)
    position[catalogue.by_asin] = np.arange(len(catalogue), dtype=np.int32)
    numbers = _Numbers()
    with path.open("wb") as file:
        for first, words, lengths in _batches(catalogue, numbers):
            documents = position[first : first + len(lengths)]
            counts.lengths[documents] = lengths
            key = words.astype(np.int64) << 32 | np.repeat(documents, lengths)
            key, times = np.unique(key, return_counts=True)
            posting = np.empty((len(key), 3), np.int32)
            posting[:, 0], posting[:, 1], posting[:, 2] = key >> 32, key & 0xFFFFFFFF, times
            posting.tofile(file)
            frequency = np.bincount(posting[:, 0], minlength=len(numbers.words))
            frequency[: len(counts.frequency)] += counts.frequency
            counts.frequency = frequency
    counts.words = numbers.words
    return counts


class _Numbers(dict[str, int]):
    """Numbers of words by token; -1 for a stop word."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._of_word: dict[str, int] = {}

    def __missing__(self, token: str) -> int:
        word = term(token)
        number = -1
        if word is not None:
            number = self._of_word.setdefault(word, len(self.words))
            if number == len(self.words):
                self.words.append(word)
        self[token] = number
        return number


def _batches(catalogue: Products, numbers: _Numbers) -> Iterator[tuple[int, NDArray[np.int32], NDArray[np.int64]]]:
    """Yield batches of documents: the first product, the words, and the number of words of each."""
    words: list[int] = []
    lengths: list[int] = []
    first = 0
    for number, product in enumerate(catalogue):
        before = len(words)
        words += [n for n in map(numbers.__getitem__, tokens(product.document())) if n >= 0]
        lengths.append(len(words) - before)
        if len(lengths) == _BATCH:
            yield first, np.array(words, np.int32), np.array(lengths, np.int64)
            first, words, lengths = number + 1, [], []
    yield first, np.array(words, np.int32), np.array(lengths, np.int64)


def _save_scores(counts: _Counts, documents: int, folder: Path) -> None:
    """Write the contribution of each word to each document's score, word by word, in the format of bm25s."""
    packed = [word.encode("utf-8", "surrogatepass") for word in counts.words]
    rank = np.empty(len(packed), np.int64)
    rank[sorted(range(len(packed)), key=packed.__getitem__)] = np.arange(len(packed))
    frequency = np.zeros(len(packed), np.int64)
    frequency[rank] = counts.frequency
    ends = np.concatenate([[0], np.cumsum(frequency)])
    np.save(folder / "indptr.csc.index.npy", ends)
    total = int(ends[-1])
    values = np.lib.format.open_memmap(folder / "data.csc.index.npy", "w+", np.float32, (total,))
    positions = np.lib.format.open_memmap(folder / "indices.csc.index.npy", "w+", np.int32, (total,))
    inverse = np.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))
    penalty = _length_penalty(counts.lengths)
    cursor = ends[:-1].copy()
    postings = np.memmap(folder / "postings.bin", np.int32, "r").reshape(-1, 3) if total else np.empty((0, 3), np.int32)
    for start in range(0, total, 1 << 20):
        block = postings[start : start + (1 << 20)]
        words = rank[block[:, 0]]
        order = np.argsort(words, kind="stable")
        words, document, times = words[order], block[order, 1], block[order, 2]
        unique, first, n = np.unique(words, return_index=True, return_counts=True)
        at = cursor[words] + np.arange(len(words)) - np.repeat(first, n)
        cursor[unique] += n
        positions[at] = document
        values[at] = inverse[words] * times / (times + penalty[document])
    values.flush()
    positions.flush()


def _length_penalty(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Lucene's addend to a word's count in the denominator; its mean is over documents with words."""
    mean = lengths.sum() / max(1, int(np.count_nonzero(lengths)))
    unique, inverse = np.unique(lengths, return_inverse=True)
    stored = np.array([stored_length(int(length)) for length in unique])[inverse]
    return np.asarray(K1 * (1 - B + B * stored / (mean or 1.0)))

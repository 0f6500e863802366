"""The products of a shop as memory-mapped files, shared by all environments and processes.

A catalogue is built once from WebShop's files, below ``$ROLLENV_CACHE`` (``~/.cache/rollenv`` by default), under a
digest of these. Products are decoded on access.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import math
import random
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rollenv.core.cache import cached
from rollenv.core.errors import UsageError
from rollenv.envs.webshop.files import ShopFiles, products
from rollenv.envs.webshop.product import Product

#: Version of the format; raise it with every change.
FORMAT = 3
#: The original's seed for the order of its goals.
GOAL_SHUFFLE_SEED = 233
#: Maximum size of files whose digest covers all bytes; for larger ones, it covers samples and the modification time.
_DIGEST_WHOLE = 1 << 28
_DECODED = 2048

Ints = NDArray[np.int32]


class Products:
    """The products in a folder from :func:`write_catalogue`, numbered in the order of the shop's files."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            meta = json.loads((folder / "catalogue.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{folder} holds no catalogue ({error}); delete it and it will be rebuilt") from error
        if meta["format"] != FORMAT:
            raise UsageError(f"{folder} holds a catalogue of format {meta['format']}, not {FORMAT}; delete it")
        self.size: int = meta["size"]
        self._records = np.memmap(folder / "records.bin", np.uint8, "r").view(np.ndarray)
        self._starts = _load(folder, "starts")
        self._asins = _load(folder, "asins")
        self.by_asin: Ints = _load(folder, "by_asin")
        """Product numbers in ascending order of ASINs."""
        self.instructed: Ints = _load(folder, "instructed")
        """Products with a synthetic instruction, and the number of combinations of the options of each."""
        self.combinations: NDArray[np.int64] = _load(folder, "combinations")
        self.alike: Ints = _load(folder, "alike")
        """Indices among the instructed products of those with possible duplicate goals: an option's value is listed
        twice, or the instruction is shared."""
        self.human: Ints = _load(folder, "human")
        """One row for each human goal: the product, and the index of the instruction."""
        self.product = functools.lru_cache(maxsize=_DECODED)(self._product)

    def __len__(self) -> int:
        return self.size

    def _product(self, number: int) -> Product:
        """Return the product with a number."""
        return Product.unpack(self._records[self._starts[number] : self._starts[number + 1]].tobytes())

    def __iter__(self) -> Iterator[Product]:
        return map(self._product, range(self.size))

    def find(self, asin: str) -> int | None:
        """Return the number of a product; the case of the ASIN is ignored."""
        name = asin.upper().encode("ascii", "replace")
        position = bisect.bisect_left(self.by_asin, name, key=self._asins.__getitem__)
        if position < self.size and self._asins[self.by_asin[position]] == name:
            return int(self.by_asin[position])
        return None

    def order(self, kind: str) -> Ints:
        """Return the order of the synthetic or human goals: the original's shuffle, from which it makes its splits."""
        return _load(self.folder, f"{kind}_order")  # type: ignore[no-any-return]

    def listed(self, what: str, name: str) -> Ints:
        """Look up a category, query or attribute: the numbers of its products, int32 of shape (n,), in their order."""
        names, starts, members = self._lists(what)
        position = names.get(name)
        found: Ints = members[starts[position] : starts[position + 1]] if position is not None else members[:0]
        return found

    @functools.cache  # noqa: B019 (a catalogue lives as long as the process)
    def _lists(self, what: str) -> tuple[dict[str, int], Any, Any]:
        names = json.loads((self.folder / f"{what}.json").read_text(encoding="utf-8"))
        return {name: i for i, name in enumerate(names)}, *(
            _load(self.folder, f"{what}_{x}") for x in ("starts", "members")
        )


def _load(folder: Path, name: str) -> Any:
    """Map an array; as a plain one, which is faster to index."""
    return np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray)


# -- writing ---------------------------------------------------------------------------------------------------------


def write_catalogue(found: Iterable[Product], folder: Path) -> None:
    """Write products in the compact format to an existing folder."""
    writer = _Writer()
    with (folder / "records.bin").open("wb") as records:
        for number, product in enumerate(found):
            writer.add(number, product, records)
    if not writer.size:
        raise UsageError("the shop's files contain no product")
    writer.save(folder)


class _Writer:
    """Collects the tables besides the records, in plain arrays."""

    def __init__(self) -> None:
        self.size = 0
        self.starts = array("q", [0])
        self.asins: list[bytes] = []
        self.instructed, self.combinations = array("i"), array("q")
        self.alike: set[int] = set()
        self.instructions: dict[int, int] = {}
        self.human = array("i")
        self.lists: dict[str, dict[str, array[int]]] = {"category": {}, "query": {}, "attribute": {}}

    def add(self, number: int, product: Product, records: BinaryIO) -> None:
        record = product.pack()
        records.write(record)
        self.starts.append(self.starts[-1] + len(record))
        self.asins.append(product.asin.encode("ascii"))
        self.size = number + 1
        if product.instruction is not None and product.instruction_attributes and product.combinations:
            self.instructed.append(number)
            self.combinations.append(product.combinations)
            # This product may have duplicate goals.
            position = len(self.instructed) - 1
            first = self.instructions.setdefault(hash(product.instruction), position)
            if first != position:
                self.alike |= {first, position}
            if any(len(set(values)) < len(values) for values in product.options.values()):
                self.alike.add(position)
        for which, instruction in enumerate(product.human):
            if instruction.attributes:
                self.human.extend((number, which))
        for what, names in (
            ("category", (product.category,)),
            ("query", (product.query,)),
            ("attribute", dict.fromkeys(product.attributes)),
        ):
            for name in names:
                self.lists[what].setdefault(name, array("i")).append(number)

    def save(self, folder: Path) -> None:
        asins = np.array(self.asins, dtype="S10")
        arrays = {
            "starts": np.array(self.starts, np.int64),
            "asins": asins,
            "by_asin": np.argsort(asins, kind="stable").astype(np.int32),
            "instructed": np.array(self.instructed, np.int32),
            "combinations": np.array(self.combinations, np.int64),
            "alike": np.array(sorted(self.alike), np.int32),
            "human": np.array(self.human, np.int32).reshape(-1, 2),
            "synthetic_order": _goal_order(sum(self.combinations)),
            "human_order": _goal_order(len(self.human) // 2),
        }
        for what, members in self.lists.items():
            (folder / f"{what}.json").write_text(json.dumps(list(members)), encoding="utf-8")
            arrays[f"{what}_starts"] = np.cumsum([0, *map(len, members.values())])
            arrays[f"{what}_members"] = np.concatenate(
                [np.array(m, np.int32) for m in members.values()] or [np.zeros(0, np.int32)]
            )
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", values)
        (folder / "catalogue.json").write_text(json.dumps({"format": FORMAT, "size": self.size}), encoding="utf-8")


def _goal_order(n: int) -> Ints:
    order = array("i", range(n))
    random.Random(GOAL_SHUFFLE_SEED).shuffle(order)
    return np.array(order, np.int32)


# -- the cache -------------------------------------------------------------------------------------------------------


def digest(files: ShopFiles) -> str:
    """Return a hash of the content of the files."""
    found = hashlib.blake2b(str(FORMAT).encode(), digest_size=12)
    for path in files.paths:
        stat = path.stat()
        found.update(f"{stat.st_size}".encode())
        with path.open("rb") as file:
            if stat.st_size <= _DIGEST_WHOLE:
                found.update(hashlib.file_digest(file, "blake2b").digest())
                continue
            found.update(f"{stat.st_mtime_ns}".encode())
            for part in range(64):
                file.seek(math.floor(part / 63 * (stat.st_size - (1 << 20))))
                found.update(file.read(1 << 20))
    return found.hexdigest()


def build_catalogue(files: ShopFiles, num_products: int | None = None) -> Path:
    """Return the folder of the catalogue of WebShop's files, built on first use."""
    name = f"{digest(files)}-{'all' if num_products is None else num_products}"
    return cached("webshop", name, lambda folder: write_catalogue(products(files, num_products), folder))

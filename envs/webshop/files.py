"""Streaming, validating readers of WebShop's published files.

``items_shuffle*.json`` is a list of products (5 GB), ``items_ins_v2*.json`` maps an ASIN to its attributes and
instruction, and ``items_human_ins*.json`` an ASIN to instructions by people.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rollenv.core.errors import MissingData, UsageError
from rollenv.envs.webshop.analysis import package
from rollenv.envs.webshop.product import HumanInstruction, Product

_NOT_PRICE = re.compile(r"[^\d.]")
#: The original's text for a product without a price.
NO_PRICE = ("$100.0", (100.0,))
#: The attributes of products without any.
DUMMY_ATTRIBUTES = ("DUMMY_ATTR",)


class BadFile(UsageError):
    """A file of the data set is damaged; the message names the file and the record."""


@dataclass(frozen=True)
class ShopFiles:
    """The three files of a shop; ``human`` is optional."""

    items: Path
    instructions: Path
    human: Path | None

    @classmethod
    def find(cls, folder: Path, num_products: int | None = None) -> ShopFiles:
        """Find the files in a folder: the full set, or the set of 1,000 products if it is enough or the only one."""
        small = num_products is not None and num_products <= 1000
        order = ("_1000", "") if small else ("", "_1000")
        for end in order:
            items, instructions = folder / f"items_shuffle{end}.json", folder / f"items_ins_v2{end}.json"
            if items.exists() and instructions.exists():
                human = sorted(folder.glob("items_human_ins*.json"))
                return cls(items, instructions, human[0] if human else None)
        raise MissingData(
            f"{folder} has neither items_shuffle.json and items_ins_v2.json nor items_shuffle_1000.json and "
            "items_ins_v2_1000.json; get them as https://github.com/princeton-nlp/WebShop says, and put them there"
        )

    @property
    def paths(self) -> tuple[Path, ...]:
        if self.human is None:
            return (self.items, self.instructions)
        return (self.items, self.instructions, self.human)


def records(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the values of a JSON list with their numbers, from 1."""
    return _read(path, "[", lambda library, file: library.items(file, "item", use_float=True))


def entries(path: Path) -> Iterator[tuple[int, str, Any]]:
    """Yield the pairs of a JSON object with their numbers, from 1."""
    pairs = _read(path, "{", lambda library, file: library.kvitems(file, "", use_float=True))
    return ((number, key, value) for number, (key, value) in pairs)


def _read(path: Path, opening: str, parse: Callable[[Any, BinaryIO], Iterator[Any]]) -> Iterator[tuple[int, Any]]:
    library: Any = package("ijson")
    number = 0
    with path.open("rb") as file:
        head = file.read(1024)
        start = head.removeprefix(codecs.BOM_UTF8).lstrip()
        if start and start[:1] != opening.encode():
            raise BadFile(f"{path}: there is {start[:1].decode('ascii', 'replace')!r} where {opening} belongs")
        file.seek(3 if head.startswith(codecs.BOM_UTF8) else 0)
        try:
            for number, value in enumerate(parse(library, file), 1):
                yield number, value
        except library.IncompleteJSONError as error:
            raise BadFile(f"{path}: the file ends or is damaged after {number} records; download it again") from error
        except (library.JSONError, ValueError) as error:
            raise BadFile(f"{path}: the file is damaged after {number} records ({error}); download it again") from error


def products(files: ShopFiles, limit: int | None = None) -> Iterator[Product]:
    """Yield the products in the order of the file, the first of those with the same ASIN."""
    notes = _pack_by_asin(files.instructions)
    human = _pack_by_asin(files.human) if files.human else {}
    seen: set[str] = set()
    for number, record in records(files.items):
        if limit is not None and len(seen) >= limit:
            return
        where = f"{files.items}, record {number}"
        if not isinstance(record, dict):
            raise BadFile(f"{where}: a product must be an object, not {type(record).__name__}")
        asin = record.get("asin")
        if not isinstance(asin, str) or not asin.isascii() or not asin:
            raise BadFile(f"{where}: a product needs an asin of ASCII letters, got {asin!r}")
        if asin == "nan" or len(asin) > 10 or asin in seen:
            continue  # as the original does
        seen.add(asin)
        where = f"{where} (asin {asin})"
        yield _product(record, where, *_entries_of(files, asin, notes, human))


def _pack_by_asin(path: Path) -> dict[str, bytes]:
    """Return the entries of a file by ASIN, as compact JSON, which takes a tenth of the memory of objects."""
    return {asin: json.dumps(value).encode() for _, asin, value in entries(path)}


def _entries_of(
    files: ShopFiles, asin: str, notes: Mapping[str, bytes], human: Mapping[str, bytes]
) -> tuple[dict[str, Any], tuple[HumanInstruction, ...]]:
    """Return a product's entries in the other two files."""
    note = json.loads(notes.get(asin, b"{}"))
    if not isinstance(note, dict):
        raise BadFile(f"{files.instructions}, {asin}: the entry must be an object, not {type(note).__name__}")
    for name in ("attributes", "instruction_attributes"):
        _texts(note.get(name) or [], f"{files.instructions}, {asin}: {name}")
    where = f"{files.human}, {asin}"
    written = json.loads(human.get(asin, b"[]"))
    if not isinstance(written, list) or not all(isinstance(each, dict) for each in written):
        raise BadFile(f"{where}: the entry is a list of objects")
    return note, tuple(_human(each, where) for each in written)


def _human(record: dict[str, Any], where: str) -> HumanInstruction:
    text = record.get("instruction")
    if not isinstance(text, str):
        raise BadFile(f"{where}: an instruction must be text, not {text!r}")
    attributes = _texts(record.get("instruction_attributes") or [], f"{where}: instruction_attributes")
    options = _texts(record.get("instruction_options") or [], f"{where}: instruction_options")
    return HumanInstruction(text, attributes, options)


def _texts(values: Any, where: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadFile(f"{where} must be a list of texts, got {str(values)[:80]!r}")
    return tuple(values)


def _product(record: dict[str, Any], where: str, note: dict[str, Any], human: tuple[HumanInstruction, ...]) -> Product:
    texts = {name: record.get(name) or "" for name in ("name", "full_description", "query", "product_category")}
    texts["category"] = record.get("category") or ""
    for name, text in texts.items():
        if not isinstance(text, str):
            raise BadFile(f"{where}: {name} must be text, got {str(text)[:80]!r}")
    bullets = record.get("small_description") or []
    tag, prices = _prices(record.get("pricing"), where)
    return Product(
        asin=record["asin"],
        title=texts["name"],
        description=texts["full_description"],
        bullets=_texts([bullets] if isinstance(bullets, str) else bullets, f"{where}: small_description"),
        price_tag=tag,
        prices=prices,
        category=texts["category"],
        query=texts["query"].lower().strip(),
        product_category=texts["product_category"],
        options=_options(record.get("customization_options"), where),
        attributes=tuple(note["attributes"]) if "attributes" in note else DUMMY_ATTRIBUTES,
        instruction=note.get("instruction"),
        instruction_attributes=tuple(note.get("instruction_attributes") or ()),
        human=human,
    )


def _prices(pricing: Any, where: str) -> tuple[str, tuple[float, ...]]:
    """Return the text of the price, and the price or the bounds of its range."""
    if not pricing:
        return NO_PRICE
    try:
        prices = [float(_NOT_PRICE.sub("", part)) for part in pricing.split("$")[1:]]
    except (ValueError, AttributeError):
        prices = []
    if not prices:
        raise BadFile(f"{where}: pricing must be '$a' or '$a - $b', or empty; got {str(pricing)[:80]!r}")
    if len(prices) == 1:
        return f"${prices[0]}", (prices[0],)
    return f"${prices[0]} to ${prices[1]}", (prices[0], prices[1])


def _options(found: Any, where: str) -> dict[str, tuple[str, ...]]:
    """Return the values of each option by name, in the order of the file."""
    if not found:
        return {}
    if not isinstance(found, dict):
        raise BadFile(f"{where}: customization_options must be an object, got {str(found)[:80]!r}")
    options = {}
    for name, choices in found.items():
        if choices is None:
            continue
        if not isinstance(choices, list):
            raise BadFile(f"{where}: the option {name!r} must be a list of choices, got {str(choices)[:80]!r}")
        options[name.lower()] = tuple(_option_value(choice, f"{where}: the option {name!r}") for choice in choices)
    return options


def _option_value(choice: Any, where: str) -> str:
    value = choice.get("value") if isinstance(choice, dict) else None
    if not isinstance(value, str):
        raise BadFile(f"{where} has a choice without a value: {str(choice)[:80]!r}")
    return value.strip().replace("/", " | ").lower()

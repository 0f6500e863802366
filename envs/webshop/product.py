"""Products, with their compact format on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HumanInstruction:
    """An instruction by a person, with its attributes and options."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A product, with the fields of WebShop's engine."""

    asin: str
    title: str
    description: str = ""
    bullets: tuple[str, ...] = ()
    price_tag: str = "$100.0"
    """Text of the price on its page, such as ``$9.99`` or ``$3.78 to $11.38``."""
    prices: tuple[float, ...] = (100.0,)
    """The price, or the bounds of its range, in dollars."""
    category: str = ""
    query: str = ""
    product_category: str = ""
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()
    human: tuple[HumanInstruction, ...] = ()

    def price(self, seed: int = 0) -> float:
        """Return the price; for a range, a draw by the seed and the ASIN."""
        if len(self.prices) == 1:
            return self.prices[0]
        low, high = self.prices
        return low + (high - low) * draws(f"price {seed} {self.asin}", 1)[0]

    def document(self) -> str:
        """Return the text for the search index."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first} {options}".lower()

    @property
    def combinations(self) -> int:
        """Return the number of combinations of its options."""
        n = 1
        for values in self.options.values():
            n *= len(values)
        return n

    def pack(self) -> bytes:
        """Encode the product as a record of the compact format."""
        human = [[each.text, each.attributes, each.options] for each in self.human]
        values = [getattr(self, name) for name in _PLAIN]
        return json.dumps([*values, human], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def unpack(cls, record: bytes) -> Product:
        """Decode a record of :meth:`pack`."""
        *values, human = json.loads(record.decode("utf-8", "surrogatepass"))
        made = dict(zip(_PLAIN, values, strict=True))
        for name in _TUPLES:
            made[name] = tuple(made[name])
        made["options"] = {name: tuple(choices) for name, choices in made["options"].items()}
        written = tuple(HumanInstruction(text, tuple(wanted), tuple(options)) for text, wanted, options in human)
        return cls(**made, human=written)


_PLAIN = tuple(name for name in Product.__slots__ if name != "human")
_TUPLES = ("bullets", "prices", "attributes", "instruction_attributes")


def draws(key: str, n: int) -> list[float]:
    """Draw ``n`` (at most 4) numbers in [0, 1) that depend only on a text."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return [int.from_bytes(digest[8 * i : 8 * i + 8], "big") / 2**64 for i in range(n)]


@dataclass(frozen=True, slots=True)
class ShopGoal:
    """An instruction with its target product, attributes and options."""

    number: int
    product: int
    """Number of the product that it was made from."""
    asin: str
    query: str
    name: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    """Values by name in a synthetic goal, texts in a human one."""
    price_upper: float

    @property
    def wanted_options(self) -> tuple[tuple[str, str], ...] | tuple[str, ...]:
        """The options in the form of the published reward: pairs in a synthetic goal, texts in a human one."""
        return self.options if isinstance(self.options, tuple) else tuple(self.options.items())

"""Products: :class:`Product`, and its compact form on disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HumanInstruction:
    """A person's instruction, with the attributes and options that were meant."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A product as WebShop's engine sees it."""

    asin: str
    title: str
    description: str = ""
    bullets: tuple[str, ...] = ()
    price_tag: str = "$100.0"
    """The price as its page shows it, as in ``$9.99`` or ``$3.78 to $11.38``."""
    prices: tuple[float, ...] = (100.0,)
    """The price, or the ends of its range, in dollars."""
    category: str = ""
    query: str = ""
    product_category: str = ""
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()
    human: tuple[HumanInstruction, ...] = ()

    def price(self, seed: int = 0) -> float:
        """The price: for a range, a draw that depends only on the seed and the ASIN."""
        if len(self.prices) == 1:
            return self.prices[0]
        low, high = self.prices
        return low + (high - low) * draws(f"price {seed} {self.asin}", 1)[0]

    def document(self) -> str:
        """The text that is searched."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return f"{self.title} {self.description} {first} {options}".lower()

    @property
    def combinations(self) -> int:
        """The number of ways in which its options can be chosen."""
        n = 1
        for values in self.options.values():
            n *= len(values)
        return n

    def pack(self) -> bytes:
        """The record of the compact form."""
        human = [[each.text, each.attributes, each.options] for each in self.human]
        values = [getattr(self, name) for name in _PLAIN]
        return json.dumps([*values, human], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def unpack(cls, record: bytes) -> Product:
        """The product of a record that :meth:`pack` made."""
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
    """Draw numbers in [0, 1) that depend only on a text.

    Args:
        n: how many, at most 4.
    """
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return [int.from_bytes(digest[8 * i : 8 * i + 8], "big") / 2**64 for i in range(n)]

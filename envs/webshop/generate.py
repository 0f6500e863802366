"""Generated shops: from 48 products with short pages to the size of the real catalogue.

A product has a kind (*mug*), qualities (*steel*) and options. Products with the same kind and qualities differ in
prices and values of options. A product is a function of style, seed and its number.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

from rollenv.core.cache import cached
from rollenv.core.errors import UsageError
from rollenv.envs.webshop.catalogue import FORMAT, write_catalogue
from rollenv.envs.webshop.product import Product

#: Version of the generator; raise it when the same style and seed give other products.
GENERATOR = 1

#: Products by department and aisle.
_AISLES = {
    ("fashion", "Clothing"): "shirt jacket dress sweater skirt coat sock glove scarf hat",
    ("fashion", "Shoes"): "boot sandal slipper sneaker loafer clog",
    ("garden", "Furniture"): "chair table shelf bench stool desk sofa bed cabinet wardrobe",
    ("garden", "Kitchen"): "mug bowl plate kettle pan knife spoon jar tray teapot",
    ("garden", "Light"): "lamp lantern candle chandelier bulb sconce",
    ("electronics", "Audio"): "speaker headphone radio microphone amplifier turntable",
    ("electronics", "Computers"): "keyboard mouse monitor printer cable charger tablet router",
    ("beauty", "Care"): "soap cream shampoo brush comb mirror towel razor lotion perfume",
    ("grocery", "Food"): "tea coffee cookie cracker sauce honey noodle cereal chocolate juice",
}
#: One kind of each aisle in turn, so that a few kinds come from many aisles.
KINDS = tuple(kind for row in zip_longest(*(v.split() for v in _AISLES.values())) for kind in row if kind)
_AISLE_OF = {kind: aisle for aisle, kinds in _AISLES.items() for kind in kinds.split()}
_QUALITIES = """
cotton steel wool glass silk bamboo denim copper linen oak velvet marble leather paper rubber ceramic canvas nylon
felt cork pine brass satin clay mesh fleece wicker crystal suede walnut
"""
QUALITIES = tuple(_QUALITIES.split())
_VALUES = {
    "color": "red blue green black white pink grey yellow purple brown orange gold",
    "size": "small medium large tiny huge",
    "pack": "single double triple family",
    "style": "plain striped dotted floral checked",
}
OPTION_NAMES = tuple(_VALUES)


@dataclass(frozen=True)
class Style:
    """The style of a generated shop.

    Args:
        kinds: number of kinds of products, up to 76.
        qualities: number of different qualities, up to 30.
        options: number of options of a product, up to 4.
        values: number of values of each option.
        bullets: number of lines on the features page.
        words: number of words in the description, and in each bullet.
        brands: number of invented brand names in titles; 0 for titles without.
    """

    products: int = 240
    kinds: int = 12
    qualities: int = 6
    qualities_each: int = 1
    options: int = 2
    values: int = 3
    limits: bool = True
    bullets: int = 1
    words: int = 4
    brands: int = 0

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("products", self.products, 1, 36**8),
            ("kinds", self.kinds, 1, len(KINDS)),
            ("qualities", self.qualities, 1, len(QUALITIES)),
            ("qualities_each", self.qualities_each, 1, self.qualities),
            ("options", self.options, 0, len(OPTION_NAMES)),
            ("values", self.values, 1, 4),
            ("bullets", self.bullets, 0, 100),
            ("words", self.words, 0, 10_000),
            ("brands", self.brands, 0, 10**6),
        ):
            if not low <= value <= high:
                raise UsageError(f"a generated shop must have from {low} to {high} {name}, got {value}")


#: The shops of the ids, by difficulty.
STYLES = {
    "easy": Style(products=48, kinds=8, qualities=6, options=1, limits=False),
    "medium": Style(),
    "hard": Style(products=2000, kinds=24, qualities=10, qualities_each=2, options=3, bullets=2, words=6),
}
#: A style with about as much text as the real products.
REALISTIC = Style(products=1_181_436, kinds=54, qualities=30, qualities_each=3, bullets=5, words=40, brands=5000)


def generated(style: Style, seed: int = 0) -> Iterator[Product]:
    """Generate the products of a style, one at a time."""
    return (_product(style, seed, number) for number in range(style.products))


def _product(style: Style, seed: int, number: int) -> Product:
    rng = random.Random(seed << 40 | number)
    kind = KINDS[number % style.kinds]
    first = number // style.kinds
    rest = [q for q in range(style.qualities) if q != first % style.qualities]
    chosen = [first % style.qualities, *sorted(rng.sample(rest, style.qualities_each - 1))]
    qualities = tuple(QUALITIES[q] for q in chosen)
    department, aisle = _AISLE_OF[kind]
    brand = f"{_word(rng.randrange(style.brands), 'brand').capitalize()} " if style.brands else ""
    title = f"{brand}{' '.join(qualities)} {kind}"
    return Product(
        asin=f"P{number + 1:0{len(str(style.products))}d}" if style.products < 10**6 else f"B{number:09d}",
        title=title,
        description=_words(rng, style.words),
        bullets=tuple(f"{rng.choice(qualities)} {_words(rng, style.words)}" for _ in range(style.bullets)),
        price_tag=f"${(price := float(rng.randrange(5, 95)))}",
        prices=(price,),
        category=department,
        query=kind,
        product_category=f"{department.capitalize()} › {aisle} › {kind.capitalize()}",
        options=_options(style, rng),
        attributes=qualities,
        instruction=f"{' '.join(qualities)} {kind}",
        instruction_attributes=qualities,
    )


def _options(style: Style, rng: random.Random) -> dict[str, tuple[str, ...]]:
    """Draw values of options, in the order of the lists, so that equal choices look the same."""
    options = {}
    for name in OPTION_NAMES[: style.options]:
        values = _VALUES[name].split()
        options[name] = tuple(values[i] for i in sorted(rng.sample(range(len(values)), style.values)))
    return options


@functools.lru_cache(maxsize=1 << 17)
def _word(number: int, salt: str = "") -> str:
    """Invent a word of two to four syllables; lower numbers give shorter words."""
    rng = random.Random(f"{salt} {number}")
    syllables = 2 + (number > 300) + (number > 20_000)
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(syllables)) + rng.choice("lnrst")


@functools.cache
def _prose() -> list[str]:
    """Return a long text of invented words, with frequencies as in natural language."""
    rng = random.Random(0)
    return [_word(int(200_000 ** rng.random()) - 1) for _ in range(1 << 18)]


def _words(rng: random.Random, n: int) -> str:
    """Draw a segment of the text."""
    start = int(rng.random() * ((1 << 18) - n))
    return " ".join(_prose()[start : start + n])


def generate_catalogue(style: Style, seed: int = 0) -> Path:
    """Return the folder of a generated catalogue, built on first use."""
    name = "-".join(str(int(value)) for value in asdict(style).values())
    name = f"generated{FORMAT}.{GENERATOR}-{seed}-{name}"
    return cached("webshop", name, lambda folder: write_catalogue(generated(style, seed), folder))

"""The reward of a purchase in WebShop (arXiv 2207.01206, section 3.2), as computed by the published code.

    reward = r_type * (matched attributes + matched options + price is low enough) / (attributes + options + 1)

:class:`RewardRules` has switches for unexpected behaviour of the published code, which is the default.

The colour names are the list of the published environment (princeton-nlp/WebShop, MIT). The nouns of a product's title
are found by spaCy's small English model, or by a simple rule: every word of letters is a noun, except function words,
words of size, colour and praise, and words with endings of adjectives, adverbs and participles. Titles are mostly
nouns, so the rule errs towards too many.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollenv.core.errors import MissingExtra, UsageError
from rollenv.envs.webshop.analysis import package
from rollenv.envs.webshop.product import Product, ShopGoal

_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|['’-](?=[^\W\d_]))*")
_DESCRIBING = """
a about above after all also an and any are as at back be best better big black both bright but by can cheap classic
clean cool cute deep double dry each easy elegant every extra extreme fast fine fit for free fresh from full funny
gentle good great hand happy hard has have heavy high hot hybrid i in inside into is it its just kind large latest
left less light long loose low lower make medium mini more most multi new nice no non not of off old on one only or
our out outside over own perfect plus pro pure quick rapid ready real rich right round safe self sexy sharp short
simple single slim small smart smooth so soft solid some special square stable strong super sweet tall that the
their them these they thick thin this three tight tiny to together top tough triple true two under up upper use very
vintage warm was wet wide will with within without your you young xl xxl
"""
_COLOURS = """
almond amber amethyst apricot aqua aquamarine ash azure beige black blond blue blush bone brass brick
bronze brown burgundy camel caramel cerise charcoal cherry chestnut chocolate cinnamon clear cobalt coffee
copper coral cream crimson cyan denim ebony ecru emerald espresso fawn fuchsia ginger gold graphite gray green
grey gunmetal hazel honey indigo ivory jade khaki lavender lemon lilac lime linen magenta mahogany maroon mauve
melon mint mocha multicolor multicolour mustard natural navy nude oak ochre olive onyx orange orchid peach
pearl periwinkle pewter pink platinum plum purple rainbow raspberry red rose royal ruby russet rust salmon sand
sapphire scarlet sienna silver slate smoke stone tan tangerine taupe teal transparent turquoise vanilla
vermilion violet walnut wheat white wine yellow
"""
_NOT_NOUNS = frozenset(_COLOURS.split()) | frozenset(_DESCRIBING.split())
_NOT_ENDINGS = ("able", "ible", "ful", "less", "ous", "ive", "ly", "ish", "ed", "est")
MODEL = "en_core_web_sm"
SOURCES = ("simple", "spacy")

Nouns = Callable[[str], tuple[str, ...]]


@functools.lru_cache(maxsize=1 << 14)
def simple_nouns(title: str) -> tuple[str, ...]:
    """Return the nouns by the rule above, in lower case and with duplicates."""
    words = [word.lower() for word in _WORD.findall(title)]
    return tuple(w for w in words if len(w) > 1 and w not in _NOT_NOUNS and not w.endswith(_NOT_ENDINGS))


@functools.cache
def _model() -> Any:
    return importlib.import_module("spacy").load(MODEL, disable=["parser", "ner", "lemmatizer"])


@functools.lru_cache(maxsize=1 << 14)
def _spacy_nouns(title: str) -> tuple[str, ...]:
    return tuple(token.text.lower() for token in _model()(title) if token.pos_ in ("NOUN", "PROPN"))


def has_spacy() -> bool:
    """Return whether spaCy and its small English model are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("spacy", MODEL))


@functools.cache
def nouns_from(source: str) -> Nouns:
    """Return the function that finds nouns: ``simple`` or ``spacy``."""
    if source not in SOURCES:
        raise UsageError(f"nouns {source!r} is unknown; choose from {', '.join(SOURCES)}")
    if source == "spacy" and not has_spacy():
        raise MissingExtra(f"nouns='spacy' needs spaCy: pip install spacy && python -m spacy download {MODEL}")
    return _spacy_nouns if source == "spacy" else simple_nouns


_NAMES = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire
seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white
wine yellow
"""
#: Colours in the published order, which decides if a text has several.
COLOURS = tuple(_NAMES.split())


@functools.lru_cache(maxsize=1 << 15)
def first_colour(text: str) -> str | None:
    """Return the first of the colour names that occurs in a text."""
    return next((colour for colour in COLOURS if colour in text), None)


@dataclass(frozen=True)
class RewardRules:
    """The scoring of purchases; the defaults are the published code's, except for the source of nouns."""

    threshold: int = 85
    """Threshold of the rounded token-set ratio above which two texts match."""
    pair_options: bool = True
    """Compare an option of a synthetic goal as a pair of name and value. Colours in the pair are then not normalised,
    while the purchased ones are, so that about one in fifteen published goals can never score 1. False compares
    values."""
    repeated_nouns: bool = True
    """Divide the number of common nouns by all nouns of the wanted title, with duplicates; False: without."""
    shared_categories: int = 2
    """Number of common levels of the category for products of the same kind."""
    zero_overlap: bool = True
    """A title without a common noun scores 0, even for the same query or category."""
    nouns: str = "simple"
    """Source of nouns (:func:`rollenv.envs.webshop.reward.nouns_from`): ``simple``, a built-in rule, or ``spacy``, as
    in the published code, which must be installed."""


PUBLISHED = RewardRules()


@functools.cache
def _ratio() -> tuple[Any, Any]:
    return package("rapidfuzz.fuzz").token_set_ratio, package("rapidfuzz.utils").default_process


@functools.lru_cache(maxsize=1 << 15)
def similarity(one: str, other: str) -> int:
    """Return thefuzz's token-set ratio of two texts, from 0 to 100: ASCII letters and digits only, in lower case."""
    ratio, process = _ratio()
    found: int = round(ratio(_ascii(one), _ascii(other), processor=process))
    return found


def _ascii(text: str) -> str:
    return text if text.isascii() else text.encode("ascii", "ignore").decode()


def normalize_colour(option: str) -> str:
    """Return the first of the colour names that a text contains, or the text."""
    return first_colour(option) or option


def _option_text(option: str | tuple[str, str], rules: RewardRules) -> str:
    """Return the text of a goal's option for the comparison."""
    if isinstance(option, str):
        return normalize_colour(option)
    if not rules.pair_options:
        return normalize_colour(option[1])
    # The published code looks for a colour among the members of the pair, and compares the repr of the pair.
    return next((colour for colour in COLOURS if colour in option), None) or repr(option)


def _type_reward(product: Product, goal: ShopGoal, rules: RewardRules = PUBLISHED) -> dict[str, Any]:
    """Score the match of the kind of product: ``r_type`` and its parts."""
    nouns = nouns_from(rules.nouns)
    had, wanted = nouns(product.title), nouns(goal.name)
    score = 0.2
    if wanted:
        score = len(set(had) & set(wanted)) / len(wanted if rules.repeated_nouns else set(wanted))
    query = product.query == goal.query
    category = len(_levels(product.product_category) & _levels(goal.product_category)) >= rules.shared_categories
    r_type = 1.0 if query or category or score > 0.2 else 0.5
    if score < 0.1:
        r_type = 0.1
    if score == 0 and (rules.zero_overlap or not (query or category)):
        r_type = 0.0
    return {"r_type": r_type, "query_match": query, "category_match": category, "title_score": score}


def _levels(category: str) -> set[str]:
    return {level.strip() for level in category.split("›")}


def purchase_reward(
    product: Product, goal: ShopGoal, price: float, options: Mapping[str, str], rules: RewardRules = PUBLISHED
) -> tuple[float, dict[str, Any]]:
    """Score a purchase.

    Args:
        price: price of the product, in dollars.

    Returns:
        The reward in [0, 1], and its parts under the published names, with the source of the nouns as ``nouns``.
    """
    kind = _type_reward(product, goal, rules)
    texts: list[str] = []
    attributes = 0
    for attribute in goal.attributes:
        if any(similarity(own, attribute) > rules.threshold for own in product.attributes):
            attributes += 1
            continue
        texts = texts or [t.lower() for t in (product.title, " ".join(product.bullets), product.description)]
        attributes += any(attribute in text for text in texts)
    wanted = goal.wanted_options
    had = [normalize_colour(value) for value in options.values()]
    chosen = sum(
        any(similarity(value, option) > rules.threshold for value in had)
        for option in (_option_text(option, rules) for option in wanted)
    )
    cheap = price <= goal.price_upper
    parts = len(goal.attributes) + len(wanted) + 1
    details = {
        **kind,
        "nouns": rules.nouns,
        "r_att": attributes / len(goal.attributes),
        "w_att": len(goal.attributes) / parts,
        "r_price": cheap,
        "w_price": 1 / parts,
    }
    if wanted:
        details |= {"r_option": chosen / len(wanted), "w_option": len(wanted) / parts}
    return (attributes + chosen + cheap) / parts * kind["r_type"], details

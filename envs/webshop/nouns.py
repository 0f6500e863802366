"""The nouns of a product's title: by a simple rule, or from spaCy's small English model, as the caller chooses.

The rule takes every word of letters for a noun but function words, words of size, colour and praise, and words with the
endings of adjectives, adverbs and participles. Titles are mostly nouns, so this errs towards taking too many.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from typing import Any

from rollenv.core import MissingExtra, UsageError

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
    """The nouns by the rule above, lower case, as often as they occur."""
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
    """The function that finds nouns: ``simple`` or ``spacy``. Installed packages do not change the choice.

    Raises:
        UsageError: for another name.
        MissingExtra: for ``spacy`` where it is not installed.
    """
    if source not in SOURCES:
        raise UsageError(f"nouns {source!r} is unknown; choose from {', '.join(SOURCES)}")
    if source == "spacy" and not has_spacy():
        raise MissingExtra(f"nouns='spacy' needs spaCy: pip install spacy && python -m spacy download {MODEL}")
    return _spacy_nouns if source == "spacy" else simple_nouns

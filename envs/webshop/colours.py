"""Common colour words, to compare the colours of options by."""

from __future__ import annotations

import functools

_WORDS = """
almond amber amethyst apricot aqua aquamarine ash azure beige black blond blue blush bone brass brick
bronze brown burgundy camel caramel cerise charcoal cherry chestnut chocolate cinnamon clear cobalt coffee
copper coral cream crimson cyan denim ebony ecru emerald espresso fawn fuchsia ginger gold graphite gray green
grey gunmetal hazel honey indigo ivory jade khaki lavender lemon lilac lime linen magenta mahogany maroon mauve
melon mint mocha multicolor multicolour mustard natural navy nude oak ochre olive onyx orange orchid peach
pearl periwinkle pewter pink platinum plum purple rainbow raspberry red rose royal ruby russet rust salmon sand
sapphire scarlet sienna silver slate smoke stone tan tangerine taupe teal transparent turquoise vanilla
vermilion violet walnut wheat white wine yellow
"""
#: In alphabetical order, which decides where a text names several.
COLOURS = tuple(sorted(_WORDS.split()))


@functools.lru_cache(maxsize=1 << 15)
def first_colour(text: str) -> str | None:
    """The first colour word, in alphabetical order, that is a part of the text."""
    return next((colour for colour in COLOURS if colour in text), None)

"""The colour names of WebShop's reward: the list of the published environment (princeton-nlp/WebShop, MIT)."""

from __future__ import annotations

import functools

_NAMES = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire
seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white
wine yellow
"""
#: In the published order, which decides where a text has several.
COLOURS = tuple(_NAMES.split())


@functools.lru_cache(maxsize=1 << 15)
def first_colour(text: str) -> str | None:
    """The first of the colour names that is a part of the text."""
    return next((colour for colour in COLOURS if colour in text), None)

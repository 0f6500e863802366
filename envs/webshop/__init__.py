"""WebShop: search and buy in a shop of real products (arXiv 2207.01206), or in generated ones of any size."""

from __future__ import annotations

from rollenv.core.needs import DataFiles, Package
from rollenv.core.registry import ABILITIES, register

#: Packages for search and reward.
_PACKAGES = (
    Package("bm25s", "webshop"),
    Package("ijson", "webshop"),
    Package("PyStemmer", "webshop", module="Stemmer"),
    Package("rapidfuzz", "webshop"),
    Package("regex", "webshop"),
)
_WEBSHOP = "rollenv.envs.webshop.env:WebShopEnv"
_MINI = "rollenv.envs.webshop.mini:MiniShopEnv"


def register_family() -> None:
    """Register GEM's ids with GEM's parameters, and the generated shops."""
    for split in ("train", "test"):
        for observation in ("html", "text", "text_rich"):
            register(
                f"webshop:{split}-{observation}",
                _WEBSHOP,
                abilities=ABILITIES,
                needs=[DataFiles("webshop"), *_PACKAGES],
                split=split,
                observation=observation,
                max_steps=15,
                error_tolerance=15,
                invalid_action_penalty=-0.1,
                indexed=True,
            )
    for variant, size, steps in (("-easy", "easy", 8), ("", "medium", 10), ("-hard", "hard", 15)):
        register(f"webshop:mini{variant}", _MINI, abilities=ABILITIES, needs=_PACKAGES, size=size, max_steps=steps)

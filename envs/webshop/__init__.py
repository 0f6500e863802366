"""WebShop: a shop of real products to search and buy in (arXiv 2207.01206), and generated ones of any size."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from rollenv.registry import ABILITIES, register

#: What searching and scoring are done with, and who provides it.
_EXTRA = {"bm25s": "bm25s", "Stemmer": "PyStemmer", "rapidfuzz": "rapidfuzz", "regex": "regex"}
_WEBSHOP = "rollenv.envs.webshop.env:WebShopEnv"
_MINI = "rollenv.envs.webshop.mini:MiniShopEnv"


def files_are_here() -> bool:
    """Whether ``$ROLLENV_DATA/webshop`` is a folder."""
    root = os.environ.get("ROLLENV_DATA")
    return bool(root) and Path(str(root), "webshop").is_dir()


def register_webshop() -> None:
    """GEM's ids with GEM's parameters, and the generated shops."""
    extra = tuple(f"webshop extra: {_EXTRA[m]}" for m in _EXTRA if importlib.util.find_spec(m) is None)
    for split in ("train", "test"):
        for observation in ("html", "text", "text_rich"):
            register(
                f"webshop:{split}-{observation}",
                _WEBSHOP,
                abilities=ABILITIES,
                needs=("data: webshop", *extra),
                split=split,
                observation=observation,
                max_steps=15,
                error_tolerance=15,
                invalid_action_penalty=-0.1,
                indexed=True,
            )
    for variant, size, steps in (("-easy", "easy", 8), ("", "medium", 10), ("-hard", "hard", 15)):
        register(f"webshop:mini{variant}", _MINI, abilities=ABILITIES, needs=extra, size=size, max_steps=steps)

"""A small generated shop with short pages: WebShop's actions, pages and reward for tiny models."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rollenv.core.errors import UsageError
from rollenv.envs.webshop.env import WebShopEnv
from rollenv.envs.webshop.generate import STYLES, Style, generate_catalogue
from rollenv.envs.webshop.goals import SPLITS, Goals, combination
from rollenv.envs.webshop.product import draws
from rollenv.envs.webshop.reward import RewardRules
from rollenv.envs.webshop.shop import Shop, shop_from

#: Titles are plain nouns, so that the simple rule is correct and the reward is the same without spaCy. Options are
#: compared by their values, so that every goal is reachable.
MINI_RULES = RewardRules(nouns="simple", pair_options=False)
#: Share of goals for ``test``, and again for ``eval``; a hash of the goal decides.
_HELD_OUT = 0.15


class MiniGoals(Goals):
    """Goals whose split is a hash of their content, independent of the size of the shop."""

    @functools.cache  # noqa: B019 (goals live as long as the process)
    def split(self, name: str) -> Any:
        if name not in SPLITS:
            raise UsageError(f"split {name!r} is unknown; choose from {', '.join(SPLITS)}")
        order = np.asarray(self.order)
        if name == "all":
            return order
        low, high = {
            "test": (0.0, _HELD_OUT),
            "eval": (_HELD_OUT, 2 * _HELD_OUT),
            "train": (2 * _HELD_OUT, 1.0),
            "rest": (_HELD_OUT, 1.0),
        }[name]
        positions = self._positions[order]
        return order[(positions >= low) & (positions < high)]

    @functools.cached_property
    def _positions(self) -> Any:
        """Return a number from 0 to 1 for each goal, equal for goals that differ only in the price limit."""
        found: list[float] = []
        for number, ways in zip(self.catalogue.instructed, map(int, self.catalogue.combinations), strict=True):
            product = self.catalogue.product(int(number))
            asked = f"split {product.query} {product.instruction_attributes}"
            found += (draws(f"{asked} {combination(product, which)}", 1)[0] for which in range(ways))
        return np.array(found)


class MiniShop(Shop):
    """A generated shop."""

    limits = True

    def _goals(self, kind: str, price_seed: int, rules: RewardRules) -> Goals:
        return MiniGoals(self.catalogue, kind, price_seed, rules, limits=self.limits)


@functools.lru_cache(maxsize=8)
def _mini_shop(style: Style, seed: int, window: int) -> MiniShop:
    """Return the generated shop of a style, shared by all environments of a process."""
    shop = shop_from(generate_catalogue(style, seed), window, MiniShop)
    shop.limits = style.limits
    return shop


class MiniShopEnv(WebShopEnv):
    """Buy what an instruction asks for, in a generated shop.

    The rules are those of :class:`~rollenv.envs.webshop.env.WebShopEnv`. The split of a goal is a hash of its kind,
    qualities and options, so that ``train``, ``eval`` and ``test`` never share them.

    Args:
        size: ``easy``, ``medium`` or ``hard``, or changed fields of ``medium``, a
            :class:`~rollenv.envs.webshop.generate.Style`.
        window: number of products on a page of results.
        max_steps, split, observation, show_selected, show_actions, separator: see WebShopEnv, with other defaults.
    """

    def __init__(
        self,
        size: str | Mapping[str, Any] = "medium",
        split: str = "train",
        observation: str = "text",
        max_steps: int = 10,
        *,
        shop_seed: int = 0,
        window: int = 4,
        show_selected: bool = True,
        show_actions: bool = False,
        separator: str = " | ",
        rules: RewardRules | Mapping[str, Any] = MINI_RULES,
        **kwargs: Any,
    ):
        if isinstance(size, str) and size not in STYLES:
            raise UsageError(f"size {size!r} is unknown; choose from {', '.join(STYLES)}")
        style = STYLES[size] if isinstance(size, str) else replace(STYLES["medium"], **size)
        self._built_from = style, shop_seed, window
        super().__init__(
            split,
            observation,
            max_steps=max_steps,
            show_selected=show_selected,
            show_actions=show_actions,
            separator=separator,
            rules=rules,
            **kwargs,
        )

    def _open(self, data: str | Path | None, num_products: int | None) -> Shop:
        if data is not None or num_products is not None:
            raise UsageError("a generated shop takes neither data nor num_products; pass size={'products': ...}")
        return _mini_shop(*self._built_from)

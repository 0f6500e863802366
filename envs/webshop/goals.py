"""Goals: synthetic and human ones, splits, and reachability."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollenv.core.errors import UsageError
from rollenv.envs.webshop.catalogue import Products
from rollenv.envs.webshop.product import Product, ShopGoal, draws
from rollenv.envs.webshop.reward import PUBLISHED, RewardRules, normalize_colour, purchase_reward, similarity

KINDS = ("synthetic", "human")
#: The published splits, as ranges of the shuffled order.
SPLITS = {"test": (0, 500), "eval": (500, 1500), "train": (1500, None), "rest": (500, None), "all": (0, None)}
#: The price limit of goals without one.
NO_LIMIT = 1_000_000.0
_PRICES = tuple(10.0 * i for i in range(1, 100))


class Goals:
    """All goals of a catalogue, built on demand and numbered in the order before the shuffle.

    Args:
        kind: ``synthetic`` (every instructed product with every combination of its options) or ``human``.
        price_seed: seed of the prices within ranges (one draw per product) and of the price limits (one per goal).
    """

    def __init__(
        self,
        catalogue: Products,
        kind: str = "synthetic",
        price_seed: int = 0,
        rules: RewardRules = PUBLISHED,
        *,
        limits: bool = True,
    ):
        if kind not in KINDS:
            raise UsageError(f"goals {kind!r} is unknown; choose from {', '.join(KINDS)}")
        self.catalogue, self.kind, self.price_seed, self.rules = catalogue, kind, price_seed, rules
        self.limits = limits
        self.order = catalogue.order(kind)
        self._ends = np.cumsum(catalogue.combinations)
        if not len(self.order):
            raise UsageError(f"{catalogue.folder}: the shop has no {kind} goals")
        self._reachable = bytearray(len(self.order))
        self._made = functools.lru_cache(maxsize=1 << 13)(self._human if kind == "human" else self._synthetic)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> ShopGoal:
        if not 0 <= number < len(self):
            raise UsageError(f"there is no goal {number}; there are {len(self)}")
        return self._made(number)

    def _synthetic(self, number: int) -> ShopGoal:
        index = int(np.searchsorted(self._ends, number, side="right"))
        which = number - (int(self._ends[index - 1]) if index else 0)
        product_number = int(self.catalogue.instructed[index])
        product = self.catalogue.product(product_number)
        options = combination(product, which)
        text = _instruction(product, options)
        key = f"{product.asin} {sorted(options.items())}"
        return self._goal(number, product_number, product, text, product.instruction_attributes, options, key)

    def _human(self, number: int) -> ShopGoal:
        product_number, which = map(int, self.catalogue.human[number])
        product = self.catalogue.product(product_number)
        human = product.human[which]
        text = human.text.strip(".")
        return self._goal(
            number, product_number, product, text, human.attributes, human.options, f"{product.asin} human {which}"
        )

    def _goal(
        self,
        number: int,
        product_number: int,
        product: Product,
        text: str,
        attributes: tuple[str, ...],
        options: Mapping[str, str] | tuple[str, ...],
        key: str,
    ) -> ShopGoal:
        price = product.price(self.price_seed)
        limit = price_limit(price, f"limit {self.price_seed} {key}") if self.limits else None
        if limit is not None:
            text += f", and price lower than {limit:.2f} dollars"
        return ShopGoal(
            number=number,
            product=product_number,
            asin=product.asin,
            query=product.query,
            name=product.title,
            product_category=product.product_category,
            instruction=text,
            attributes=attributes,
            options=options,
            price_upper=NO_LIMIT if limit is None else limit,
        )

    # -- splits ------------------------------------------------------------------------------------------------------

    @functools.cache  # noqa: B019 (goals live as long as the process)
    def split(self, name: str) -> Any:
        """Return the numbers of a split's goals, in shuffled order.

        ``test`` is the first 500 of the published order, ``eval`` the next 1,000, ``train`` the remainder, and ``rest``
        all behind ``test``. Duplicates of earlier splits are left out: from ``eval``, equal goals of the same product;
        from ``train`` and ``rest``, goals with the same text (except for the price limit), even of other products. A
        shop with up to 1,500 goals has a fifth in test and two fifths in eval.
        """
        if name not in SPLITS:
            raise UsageError(f"split {name!r} is unknown; choose from {', '.join(SPLITS)}")
        first, last = self._cut(name)
        chosen = np.asarray(self.order[first:last])
        twins = self._twins
        if name == "all" or not twins:
            return chosen
        earlier = np.asarray(self.order[:first])
        part = slice(1, 2) if name in ("train", "rest") else slice(2)
        seen = {twins[n][part] for n in map(int, earlier[np.isin(earlier, list(twins))])}
        again = [n for n, twin in twins.items() if twin[part] in seen]
        return chosen[~np.isin(chosen, again)]

    def _cut(self, name: str) -> tuple[int, int | None]:
        first, last = SPLITS[name]
        if name == "all" or len(self) > 1500:
            return first, last
        test, evaluate = max(1, len(self) // 5), len(self) // 5 * 3
        return {"test": (0, test), "eval": (test, evaluate), "train": (evaluate, None), "rest": (test, None)}[name]

    @functools.cached_property
    def _twins(self) -> dict[int, tuple[str, str]]:
        """Return product and text of the goals with possible duplicates."""
        found: dict[int, tuple[str, str]] = {}
        if self.kind == "human":
            for goal, (number, which) in enumerate(self.catalogue.human):
                product = self.catalogue.product(int(number))
                found[goal] = product.asin, product.human[which].text.strip(".")
            return found
        for index in map(int, self.catalogue.alike):
            product = self.catalogue.product(int(self.catalogue.instructed[index]))
            start, end = int(self._ends[index - 1]) if index else 0, int(self._ends[index])
            for goal in range(start, end):
                found[goal] = product.asin, _instruction(product, combination(product, goal - start))
        return found

    # -- what can be reached -----------------------------------------------------------------------------------------

    def plan(self, goal: ShopGoal) -> tuple[str, ...]:
        """Return the options to click on the page of the goal's product, in order, for the highest reward."""
        return _plan(self.catalogue.product(goal.product), goal, self.price_seed, self.rules)[0]

    def reachable(self, number: int) -> bool:
        """Return whether the reward for the goal's own product with the best options is 1."""
        if not self._reachable[number]:
            goal = self[number]
            best = _plan(self.catalogue.product(goal.product), goal, self.price_seed, self.rules)[1]
            self._reachable[number] = 1 + (best == 1.0)
        return self._reachable[number] == 2

    def unreachable(self, split: str = "all") -> list[int]:
        """Return the goals of a split that are not reachable."""
        return [n for n in map(int, self.split(split)) if not self.reachable(n)]

    def weights(self, split: str = "all") -> Any:
        """Return the original's weight of each goal of a split: the mean of 1 / (goals with the attribute); human 1."""
        chosen = self.split(split)
        if self.kind == "human":
            return np.ones(len(chosen))
        return self._weights[np.searchsorted(self._ends, chosen, side="right")]

    @functools.cached_property
    def _weights(self) -> Any:
        """Return a weight for each instructed product."""
        wanted = [self.catalogue.product(int(n)).instruction_attributes for n in self.catalogue.instructed]
        counts: Counter[str] = Counter()
        for attributes, ways in zip(wanted, map(int, self.catalogue.combinations), strict=True):
            counts.update({attribute: attributes.count(attribute) * ways for attribute in attributes})
        return np.array([sum(1 / counts[a] for a in attributes) / len(attributes) for attributes in wanted])


def _instruction(product: Product, options: Mapping[str, str]) -> str:
    """Write a synthetic instruction, without the price limit."""
    listed = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return f"{product.instruction}{' with ' if listed else ''}{listed}"


def combination(product: Product, which: int) -> dict[str, str]:
    """Return a combination of values of a product's options, by name.

    Args:
        which: index of the combination, from 0. Names are in alphabetical order, and the last one varies fastest.
    """
    chosen = {}
    for name in sorted(product.options, reverse=True):
        which, index = divmod(which, len(product.options[name]))
        chosen[name] = product.options[name][index]
    return dict(reversed(chosen.items()))


def price_limit(price: float, key: str) -> float | None:
    """Draw a price limit: the higher of two different picks among the next four multiples of 10 above the price.

    Prices are in dollars; None for those from 980 on.
    """
    above = [limit for limit in _PRICES if limit > price][:4]
    if len(above) < 2:
        return None
    one, two = draws(key, 2)
    first = int(one * len(above))
    second = int(two * (len(above) - 1))
    return max(above[first], above[second + (second >= first)])


#: The buttons of an item page, which take precedence over options of the same name.
ITEM_BUTTONS = frozenset(("back to search", "< prev", "description", "features", "reviews", "buy now"))


def _plan(product: Product, goal: ShopGoal, price_seed: int, rules: RewardRules) -> tuple[tuple[str, ...], float]:
    """Return the best clicks found, and their reward."""
    price = product.price(price_seed)
    names = {value: name for name, values in product.options.items() for value in values}
    names = {value: name for value, name in names.items() if value not in ITEM_BUTTONS}

    def pays(clicks: tuple[str, ...]) -> float:
        chosen = {names[value]: value for value in clicks if value in names}
        return purchase_reward(product, goal, price, chosen, rules)[0]

    exact = tuple(goal.options.values()) if isinstance(goal.options, Mapping) else ()
    best = exact, pays(exact)
    if best[1] < 1.0:
        others = [exact[::-1], _closest(names, goal, rules)]
        best = max([best, *((clicks, pays(clicks)) for clicks in others)], key=lambda found: found[1])
    return best


def _closest(names: Mapping[str, str], goal: ShopGoal, rules: RewardRules) -> tuple[str, ...]:
    """Return the most similar value for each wanted option, among options not yet chosen."""
    chosen: dict[str, str] = {}
    for option in goal.wanted_options:
        wanted = option if isinstance(option, str) else option[1]
        scored = [
            (similarity(normalize_colour(value), normalize_colour(wanted)), similarity(value, wanted), value)
            for value, name in names.items()
            if name not in chosen
        ]
        if scored:
            value = max(scored, key=lambda s: s[:2])[2]
            chosen[names[value]] = value
    return tuple(chosen.values())

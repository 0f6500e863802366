"""Recipes and crafts, by the rules of platoon-textcraft 0.3.0."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rollenv.core.tools.backend import ToolError

#: Items and how many of each.
Counts = Mapping[str, int]
#: An item, how many of it, and what that takes.
Craft = tuple[str, int, Counts]
#: Begins the name of an ingredient for which any item of a group will do.
TAG = "tag:"


class Task(NamedTuple):
    """Items to craft, the items at the start, and an expert's crafts."""

    name: str
    targets: Counts
    inventory: Counts
    crafts: Sequence[Craft]


@dataclass(frozen=True)
class Recipe:
    """What one craft takes and makes."""

    makes: str
    count: int
    """Items that one craft makes."""
    takes: Counts
    """Items, or ``tag:`` with the name of a group, to the number that one craft takes."""


@dataclass(frozen=True)
class Book:
    """All recipes of a world.

    Args:
        recipes: the recipes of each item that can be crafted, in the order in which they are tried.
        groups: the items of each tag, sorted.
        depths: how many crafts deep an item is, where that is published.
    """

    recipes: Mapping[str, tuple[Recipe, ...]]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    depths: Counts | None = None

    @functools.cached_property
    def base(self) -> frozenset[str]:
        """Items that recipes take and none makes."""
        named = set[str]().union(*(recipe.takes for known in self.recipes.values() for recipe in known))
        return frozenset(item for item in named - self.recipes.keys() if not item.startswith(TAG))

    def depth(self, item: str) -> int:
        """Return how many crafts deep an item is, by its deepest recipe; tags and circles do not count."""
        return self._depths.get(item, 0)

    @functools.cached_property
    def _depths(self) -> Counts:
        return self.depths or {item: self._depth(item, frozenset()) for item in self.recipes}

    def _depth(self, item: str, above: frozenset[str]) -> int:
        if item in above:
            return 0
        inside = above | {item}
        takes = (each for recipe in self.recipes.get(item, ()) for each in recipe.takes if not each.startswith(TAG))
        return max((1 + self._depth(each, inside) for each in takes), default=0)

    def craft(self, inventory: dict[str, int], ingredients: Counts, item: str, count: int) -> str:
        """Craft in place, by the first recipe that fits, and return the answer.

        A recipe fits if ``count`` is a multiple of what one craft makes, and the ingredients are what that many crafts
        take: no other kinds, no other amounts. For a tag, the first ingredient of its group in that amount counts.

        Raises:
            ToolError: no recipe fits, or the inventory lacks ingredients.
        """
        wrong = [f"{name}={amount}" for name, amount in [(item, count), *ingredients.items()] if amount < 1]
        if wrong:
            raise ToolError(f"counts are whole numbers from 1, not {', '.join(wrong)}")
        if item not in self.recipes:
            raise ToolError(f"nothing makes {item[:100]}")
        reasons = []
        for recipe in self.recipes[item]:
            try:
                spent = self._spent(recipe, inventory, ingredients, count)
            except ToolError as error:
                reasons.append(str(error))
                continue
            for name, amount in spent.items():
                inventory[name] -= amount
                if not inventory[name]:
                    del inventory[name]
            inventory[item] = inventory.get(item, 0) + count
            return f"Crafted {count} {item}."
        listed = [f"recipe {number}: {reason}" for number, reason in enumerate(reasons, 1)]
        raise ToolError("; ".join(listed if len(listed) > 1 else reasons))

    def _spent(self, recipe: Recipe, inventory: Counts, given: Counts, count: int) -> Counts:
        """Return what crafts take from an inventory; raise a ToolError if they cannot be made with what is given."""
        crafts, rest = divmod(count, recipe.count)
        if rest:
            raise ToolError(f"one craft makes {recipe.count}, so {count} is not possible")
        spent: dict[str, int] = {}
        for name, one in recipe.takes.items():
            choices = self.choices(name)
            found = next((item for item, amount in given.items() if amount == one * crafts and item in choices), None)
            if found is None:
                raise ToolError(f"it takes {one * crafts} {' or '.join(choices) or 'of what does not exist'}")
            spent[found] = one * crafts
        if extra := given.keys() - spent.keys():
            raise ToolError(f"it does not take {', '.join(sorted(extra))}"[:500])
        if lacking := [item for item, amount in spent.items() if inventory.get(item, 0) < amount]:
            raise ToolError(", ".join(f"you have {inventory.get(item, 0)} {item}" for item in lacking))
        return spent

    def choices(self, name: str) -> tuple[str, ...]:
        """Return the items that can be an ingredient."""
        return self.groups.get(name.removeprefix(TAG), ()) if name.startswith(TAG) else (name,)

    def possible(self, inventory: Counts) -> list[Craft]:
        """Return every single craft that an inventory allows, sorted."""
        found = []
        for recipe in itertools.chain(*self.recipes.values()):
            if any(name[:4] != TAG and inventory.get(name, 0) < amount for name, amount in recipe.takes.items()):
                continue
            kinds = [
                [item for item in self.choices(name) if inventory.get(item, 0) >= amount]
                for name, amount in recipe.takes.items()
            ]
            for chosen in itertools.product(*kinds):
                if chosen and len({*chosen}) == len(chosen):
                    found.append((recipe.makes, recipe.count, dict(zip(chosen, recipe.takes.values(), strict=True))))
        return sorted(found, key=lambda craft: (craft[0], *craft[2].items()))

    def plan(self, inventory: Counts, wanted: Counts) -> list[Craft] | None:
        """Return crafts after which an inventory has what is wanted; None if none were found.

        Recipes and members of groups are tried in their order, those that are in stock first. An item that is wanted is
        not taken as an ingredient.
        """
        free = {item: amount - wanted.get(item, 0) for item, amount in inventory.items()}
        lacking = {item: amount - inventory.get(item, 0) for item, amount in wanted.items()}
        crafts: list[Craft] = []
        for item in sorted(lacking, key=self.depth):
            if lacking[item] > 0 and not self._make(item, lacking[item], free, crafts, ()):
                return None
            free[item] = free.get(item, 0) - max(lacking[item], 0)
        return crafts

    def _make(self, item: str, number: int, free: dict[str, int], crafts: list[Craft], above: tuple[str, ...]) -> bool:
        """Add crafts of an item and of its ingredients, and change the stock; neither if they are not possible."""
        for recipe in () if item in above else self.recipes.get(item, ()):
            times = -(-number // recipe.count)
            stock, steps, takes = dict(free), list[Craft](), dict[str, int]()
            for name, one in recipe.takes.items():
                chosen = self._obtain(name, one * times, stock, steps, (*above, item))
                if chosen in ("", *takes):
                    break
                takes[chosen] = one * times
            else:
                stock[item] = stock.get(item, 0) + recipe.count * times
                free.update(stock)
                crafts += [*steps, (item, recipe.count * times, takes)]
                return True
        return False

    def _obtain(
        self, name: str, amount: int, stock: dict[str, int], crafts: list[Craft], above: tuple[str, ...]
    ) -> str:
        """Take an ingredient from the stock, after crafting what is lacking; return its name, or "" if that fails."""
        for item in sorted(self.choices(name), key=lambda each: stock.get(each, 0) < amount):
            lacking = amount - max(stock.get(item, 0), 0)
            if lacking <= 0 or self._make(item, lacking, stock, crafts, above):
                stock[item] -= amount
                return item
        return ""

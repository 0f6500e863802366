"""Recipes and tasks of our own: tiers of items, each crafted from items of lower tiers."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections import Counter

from rollenv.envs.splits import in_split
from rollenv.plugins.worlds.textcraft.recipes import Book, Recipe, Task

TIERS = 5
#: Items of each tier that is crafted, and of the lowest one, which is given.
WIDTH, BASE = 12, 8
#: One in this many sets of targets is a test task's, as for all generated tasks with tools.
_TEST_SHARE = 5


@functools.lru_cache(maxsize=16)
def generated_book(seed: int) -> Book:
    """Return the recipes of a world: one for each item, of one to three kinds of ingredients.

    Each takes an item of the tier below, so that the tier is the depth.
    """
    rng = random.Random(seed)
    names = [f"{a}{b}" for a in _SYLLABLES for b in _SYLLABLES if a != b]
    rng.shuffle(names)
    tiers = [[names.pop() for _ in range(BASE)]]
    while len(tiers) <= TIERS:
        new = [names.pop() for _ in range(WIDTH)]
        if len({in_split(json.dumps([name]), "test", _TEST_SHARE) for name in new}) == 2:  # each split can ask for some
            tiers.append(new)
    recipes = {}
    for below, tier in itertools.pairwise(range(TIERS + 1)):
        lower = [name for each in tiers[:tier] for name in each]
        for name in tiers[tier]:
            kinds = dict.fromkeys([rng.choice(tiers[below]), *rng.sample(lower, rng.randint(0, 2))])
            takes = {kind: rng.randint(1, 2) for kind in kinds}
            recipes[name] = (Recipe(name, rng.choice((1, 1, 2)), takes),)
    return Book(recipes)


_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


def draw_task(book: Book, key: int, depth: int, targets: int, most: int) -> Task:
    """Draw a task from a key: the first target is ``depth`` crafts deep, the others at most as deep.

    The inventory has what the crafts take, and some of other items.

    Args:
        targets: number of different items that are asked for.
        most: the largest number of each.
    """
    rng = random.Random(key)
    deepest = [item for item in book.recipes if book.depth(item) == depth]
    first = rng.choice(deepest)
    others = [item for item in book.recipes if book.depth(item) <= depth and item != first]
    wanted = {item: rng.randint(1, most) for item in [first, *rng.sample(others, targets - 1)]}
    endless = dict.fromkeys(sorted(book.base), 10**9)
    crafts = book.plan(endless, wanted)
    assert crafts is not None, "every generated item can be crafted from base items"
    needed: Counter[str] = Counter()
    for _, _, takes in crafts:
        needed.update({item: amount for item, amount in takes.items() if item in book.base})
    for item in rng.sample(sorted(book.base), 3):
        needed[item] += rng.randint(1, 2)
    inventory = [*needed.items()]
    rng.shuffle(inventory)
    return Task(json.dumps(sorted(wanted)), wanted, dict(inventory), crafts)

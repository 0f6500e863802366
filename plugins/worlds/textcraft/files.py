"""The files of platoon-textcraft 0.3.0: tasks with expert crafts, and Minecraft's recipes. Read as data, never run."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollenv.core.errors import MissingData, UsageError
from rollenv.core.needs import data_root
from rollenv.plugins.worlds.textcraft import COMMAND
from rollenv.plugins.worlds.textcraft.recipes import TAG, Book, Recipe, Task

#: Training and validation tasks of a world, the latter as its test split.
FILES = {
    "minecraft": {"train": "textcraft_train.jsonl", "test": "textcraft_val.jsonl"},
    "synth": {"train": "textcraft_synth_train.jsonl", "test": "textcraft_synth_val.jsonl"},
}
_RECIPES = "recipes"
#: SHA-256 of each file; for the folder of recipes, of lines with the SHA-256 and the name of each file in it, by name.
_PUBLISHED = {
    "textcraft_train.jsonl": "007c8df79763b80df3b17b8375839d9b22ba5d64dd079df1546de813954e542e",
    "textcraft_val.jsonl": "12252c6ea5cf4b182ba2eb7fd4217cda7490054ea4259780586a484c951ae989",
    "textcraft_synth_train.jsonl": "685823fbca90aa89e061e61fef58d0122def4221eed14cf2c8c730341363a00f",
    "textcraft_synth_val.jsonl": "84a123ee46e29e65f4d7b95f4943aa56907fc3fd5992268faa749602579dfc0c",
    _RECIPES: "fae9ea66708f93283919cc7d6d9ee0ca35f6e805447c64ef2898d71534a46394",
}
_PACKAGE = "platoon_textcraft"
#: The tier in the name of a synthetic item, which is its published depth.
_TIER = re.compile(r"_i(\d+)|^x(\d+)_")
#: A folder, or a folder in a wheel.
_Folder = Path | zipfile.Path


class Row(NamedTuple):
    """A published task as it is stored: the tasks of Synth are five times as large when they are parsed."""

    line: bytes
    split: str
    depth: int
    """The published depth; without one, the longest chain of crafts of which each takes what the one before makes."""
    difficulty: str

    def task(self) -> Task:
        """Parse the task."""
        row = json.loads(self.line)
        misc = row["misc"]
        crafts = [(each["target"][0], each["result_count"], each["ingredients"]) for each in misc["gold_trajectory"]]
        return Task(row["id"], misc["target_items"], misc["initial_inventory"], crafts)


class World(NamedTuple):
    """Published tasks and their recipes."""

    rows: Sequence[Row]
    book: Book


def _inside(place: Path) -> _Folder | None:
    """Return the folder of the files in a wheel or folder; None if it has none."""
    try:
        root: _Folder = zipfile.Path(place) if place.is_file() else place
    except (zipfile.BadZipFile, OSError) as error:
        raise MissingData(f"{place} cannot be read as a wheel: {error}") from error
    for folder in (root, root / "data", root / _PACKAGE / "data"):
        if any((folder / name).is_file() for files in FILES.values() for name in files.values()):
            return folder
    return None


def _find(data: str | Path | None) -> Path:
    """Return the wheel or folder that has the files."""
    root = Path(data_root(), "textcraft") if data is None and data_root() else data
    folder = None if root is None else Path(root).expanduser()
    places = [] if folder is None else [*sorted(folder.glob(f"{_PACKAGE}-*.whl")), folder]
    installed = importlib.util.find_spec(_PACKAGE) if data is None else None  # imports nothing
    places += map(Path, (installed and installed.submodule_search_locations) or ())
    for place in places:
        if _inside(place) is not None:
            return place
    where = f"{data} has none of them" if data is not None else "neither $ROLLENV_DATA/textcraft nor a package has them"
    raise MissingData(f"the files of platoon-textcraft are not here: {where}. Get them with: {COMMAND}")


def why_not() -> str | None:
    """Return the command that gets the published tasks; None if they are here."""
    try:
        _find(None)
    except MissingData:
        return COMMAND
    return None


def world(kind: str, data: str | Path | None = None, own_data: bool = False) -> World:
    """Return the tasks and recipes of a world, read once in a process.

    Args:
        kind: ``minecraft`` or ``synth``.
        data: a wheel, or a folder with one or with its unpacked files; None for ``$ROLLENV_DATA/textcraft``, then the
            installed package.
        own_data: take files whose content is not the published one.

    Raises:
        MissingData: the files are not here; the message says where to get them.
        UsageError: a file is not the published one, or cannot be read; the message names it.
    """
    return _world(kind, _find(data).resolve(), own_data)


@functools.lru_cache(maxsize=4)
def _world(kind: str, place: Path, own_data: bool) -> World:
    folder = _inside(place) or place
    rows, recipes = [], dict[str, Recipe]()
    for split, name in FILES[kind].items():
        for number, line in enumerate(_read(folder, name, own_data)[0].splitlines(), 1):
            try:
                rows.append(_row(line, split, recipes))
            except (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
                why = f"{type(error).__name__}: {error}"
                raise UsageError(f"{place}: {name}, line {number} is no task of TextCraft: {why}") from error
    if kind == "synth":
        depths = {name: int(found[1] or found[2]) for name in recipes if (found := _TIER.search(name))}
        return World(rows, Book({name: (recipe,) for name, recipe in recipes.items()}, depths=depths))
    try:
        return World(rows, _minecraft(_read(folder, _RECIPES, own_data)))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{place}: {_RECIPES}: a file is no recipe of Minecraft: {error!r:.300}") from error


def _read(folder: _Folder, name: str, own_data: bool) -> list[bytes]:
    """Return the content of a file, or of all files of the folder of recipes by name, and check that it is published.

    Raises:
        UsageError: it is another one.
        MissingData: there is no such file.
    """
    at: Any = folder / name  # both kinds of paths have the same methods
    files = sorted(at.iterdir(), key=lambda each: each.name) if at.is_dir() else [at]
    try:
        contents = [each.read_bytes() for each in files]
    except (OSError, KeyError) as error:
        raise MissingData(f"{at} is not here. Get them with: {COMMAND}") from error
    hashes = [hashlib.sha256(content).hexdigest() for content in contents]
    listed = "".join(f"{digest}  {each.name}\n" for digest, each in zip(hashes, files, strict=True))
    found = hashlib.sha256(listed.encode()).hexdigest() if name == _RECIPES else hashes[0]
    if found != _PUBLISHED[name] and not own_data:
        raise UsageError(
            f"{at} is not that of platoon-textcraft 0.3.0: its SHA-256 is {found[:12]}... instead of "
            f"{_PUBLISHED[name][:12]}...; with own_data=True other data is played, and results do not compare"
        )
    return contents


def _row(line: bytes, split: str, recipes: dict[str, Recipe]) -> Row:
    """Read a task, and add the recipes of its crafts to those known: a craft's target counts crafts, not items."""
    row = json.loads(line)
    _ = row["id"], dict(row["misc"]["initial_inventory"])  # they are there
    depths: dict[str, int] = {}
    for craft in row["misc"]["gold_trajectory"]:
        (item, crafts), takes = craft["target"], craft["ingredients"]
        depths[item] = 1 + max((depths.get(each, 0) for each in takes), default=0)
        if item not in recipes:
            once = {each: amount // crafts for each, amount in takes.items()}
            recipes[item] = Recipe(item, craft["result_count"] // crafts, once)
    longest = max((depths.get(item, 0) for item in row["misc"]["target_items"]), default=0)
    return Row(line, split, int(row["misc"].get("max_depth", longest)), row["misc"].get("difficulty", ""))


# -- Minecraft's recipes -----------------------------------------------------------------------------------------------

#: The names of each tag's items, as the package has them; those of a wood's logs or stems begin with its name.
_GROUPS = {
    "planks": r".*_planks",
    "logs": r".*_(log|stem)",
    "wool": r".*_wool",
    "stone_tool_materials": "cobblestone|blackstone|stone",
    "stone_crafting_materials": "cobblestone|stone|smooth_stone",
    "coals": "coal|charcoal",
    "soul_fire_base_blocks": "soul_sand|soul_soil",
}
_WOOD = re.compile(r"(.+)_(logs|stems)")


def _minecraft(contents: Sequence[bytes]) -> Book:
    """Return the recipes for crafting, without those for ovens and stonecutters."""
    recipes: dict[str, tuple[Recipe, ...]] = {}
    for content in contents:
        data = json.loads(content)
        if data.get("type") in ("minecraft:crafting_shaped", "minecraft:crafting_shapeless"):
            recipe = _recipe(data)
            recipes[recipe.makes] = (*recipes.get(recipe.makes, ()), recipe)
    items = {each for known in recipes.values() for recipe in known for each in (recipe.makes, *recipe.takes)}
    tags = {each.removeprefix(TAG) for each in items if each.startswith(TAG)}
    groups = {}
    for tag in tags:
        wood = _WOOD.fullmatch(tag)
        names = re.compile(f"{wood[1]}_(log|stem).*" if wood else _GROUPS.get(tag, "(?!)"))
        groups[tag] = tuple(sorted(filter(names.fullmatch, items)))
    return Book(recipes, groups)


def _recipe(data: Mapping[str, Any]) -> Recipe:
    """Return a recipe; an ingredient with alternatives is left out, as in the package, which makes eight items free."""
    result = data["result"] if isinstance(data["result"], Mapping) else {"item": data["result"]}
    if "pattern" in data:
        listed = [data["key"][sign] for sign in "".join(data["pattern"]) if sign in data["key"]]
    else:
        listed = data["ingredients"]
    takes: dict[str, int] = {}
    for each in listed:
        if "item" in each or "tag" in each:
            name = _plain(each["item"]) if "item" in each else TAG + _plain(each["tag"])
            takes[name] = takes.get(name, 0) + 1
    return Recipe(_plain(result["item"]), result.get("count", 1), takes)


def _plain(name: str) -> str:
    return name.partition(":")[2] or name

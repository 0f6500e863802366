"""The shape of the tree: one public class name for one thing, no arrow up between rooms, no circles of files."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("rollenv", "sandbox", "envs", "agents", "trainers", "plugins")

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Contracts of import-linter, by name.
CONTRACTS = {each["name"]: each for each in _PROJECT["tool"]["importlinter"]["contracts"]}
GROUPS = {*_PROJECT["project"]["entry-points"]}

_KINDS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.Call, ast.Constant, ast.JoinedStr)


@functools.cache
def sources() -> dict[str, list[ast.AST]]:
    """The imports, classes, calls and texts of each module; links in rollenv/ are not followed: each is there once."""
    found = {}
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            if room == "rollenv" and parts[1] in ROOMS:
                continue
            name = ".".join(part for part in ("rollenv", *parts[room == "rollenv" :]) if part != "__init__")
            tree = ast.parse(file.read_text(encoding="utf-8"))
            found[name] = [node for node in ast.walk(tree) if isinstance(node, _KINDS)]
    return found


def imported(nodes: list[ast.AST]) -> set[str]:
    """Modules of the product that a module imports, in functions and for types only, too."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in sources() else node.module)
    return names & sources().keys()


def named(nodes: list[ast.AST], entry_points: bool = True) -> set[str]:
    """Modules of the product that a module names in strings: what is imported when it is asked for.

    ``"rollenv.envs"`` alone is a group of entry points, unless it is what `import_module` takes.

    Args:
        entry_points: count ``"module:name"`` too.
    """
    names = set()
    for node in nodes:
        called = node.func if isinstance(node, ast.Call) else None
        imports = "import_module" in (getattr(called, "attr", ""), getattr(called, "id", ""))
        taken = node.args[:1] if isinstance(node, ast.Call) and imports else ()
        for each in (*taken, node):
            if isinstance(each, ast.JoinedStr) and each.values:
                each = each.values[0]
            text = each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else ""
            if each is node and text in GROUPS:
                continue
            if not entry_points and ":" in text:
                continue
            if text.startswith("rollenv.") and re.fullmatch(r"rollenv(\.\w+)+(\.|:[\w.]+)?", text):
                names.add(module_of(text.partition(":")[0].rstrip(".")))
    return names - {"rollenv"}


def module_of(name: str) -> str:
    """The module that a dotted name is in."""
    while name not in sources():
        name = name.rpartition(".")[0]
    return name


def arrows(entry_points: bool) -> dict[str, set[str]]:
    """The modules that each module imports or names, but itself and, where named, the packages around it."""
    return {
        name: (imported(nodes) | {to for to in named(nodes, entry_points) if not name.startswith(f"{to}.")}) - {name}
        for name, nodes in sources().items()
    }


def room(name: str) -> str:
    """The room of a module; the package itself, which names parts of all rooms, is beside the command line."""
    return name.split(".")[1] if "." in name else "cli"


def test_a_public_class_name_is_one_class():
    """Plug-ins are not counted: they carry the names of the projects that they serve."""
    places = defaultdict(list)
    for name, nodes in sources().items():
        if not name.startswith("rollenv.plugins"):
            for node in nodes:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(name)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert shared == {}


def test_no_file_needs_itself():
    """Entry points are not counted, by which a package registers the classes of its files; none goes up a floor."""
    try:
        TopologicalSorter(arrows(entry_points=False)).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of files: {' -> '.join(error.args[1])}") from None


def test_no_arrow_goes_up():
    """Names in strings count; import-linter looks at imports alone."""
    order = CONTRACTS["Every room imports only rooms below it"]["layers"][::-1]
    floors = {name: order.index(room(name)) for name in sources()}
    graph = arrows(entry_points=True)
    assert {(name, to) for name, found in graph.items() for to in found if floors[name] < floors[to]} == set()


def test_no_string_names_a_namespace_of_environments():
    """Environments are found by their ids. Strings in plug-ins are ids' entry points."""
    namespaces = CONTRACTS["Nobody imports a namespace of environments by name"]["forbidden_modules"]
    found = {
        (name, to)
        for name, nodes in sources().items()
        for to in named(nodes)
        if room(name) not in ("envs", "plugins") and ".".join(to.split(".")[:3]) in namespaces
    }
    assert found == set()

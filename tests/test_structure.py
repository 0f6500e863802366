"""The shape of the tree: one public class name for one thing, and no circles of files."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("rollenv", "sandbox", "envs", "agents", "trainers", "plugins")

#: Public class names that several classes of the core have, with the reason.
SHARED_NAMES = {
    "Limits": "documented as those of an episode, rollenv.rollout.Limits, and of a sandbox, rollenv.sandbox.Limits"
}


@functools.cache
def sources() -> dict[str, tuple[Path, ast.Module]]:
    """The modules of the product by name; a link in rollenv/ is not followed, so that each is there once."""
    found = {}
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            if room == "rollenv" and parts[1] in ROOMS:
                continue
            name = ".".join(part for part in ("rollenv", *parts[room == "rollenv" :]) if part != "__init__")
            found[name] = (file, ast.parse(file.read_text(encoding="utf-8")))
    return found


def imported(tree: ast.Module) -> set[str]:
    """Modules of the product that a module imports, in functions and for types only, too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in sources() else node.module)
    return names & sources().keys()


def test_a_public_class_name_is_one_class():
    """Plug-ins are not counted: they carry the names of the projects that they serve."""
    places = defaultdict(list)
    for name, (_, tree) in sources().items():
        if not name.startswith("rollenv.plugins"):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(name)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in shared.items() if name not in SHARED_NAMES} == {}
    assert SHARED_NAMES.keys() <= shared.keys(), "an exception that is needed no more"
    assert len(SHARED_NAMES) <= 10


def test_no_file_needs_itself():
    graph = {name: imported(tree) - {name} for name, (_, tree) in sources().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of files: {' -> '.join(error.args[1])}") from None

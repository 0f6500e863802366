"""Names that modules had before version 0.2; an import of an old name returns the module at its new place."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

_LOWEST = (
    "arguments", "cache", "checker", "curriculum", "drawing", "env_spec", "errors", "needs", "parsing", "registry",
    "spaces", "tools", "vector", "wrappers",
)  # fmt: skip

_SUITES = ("bfcl", "dbbench", "spider", "tau2", "workbench")

#: Old names and new ones, longer names before their parents.
MOVED = {
    "rollenv.tools.python": "rollenv.sandbox.python_tool",
    **{f"rollenv.{name}": f"rollenv.core.{name}" for name in _LOWEST},
    "rollenv.bridges": "rollenv.plugins.adapters",
    "rollenv.compat.gymnasium": "rollenv.plugins.adapters.gymnasium",
    "rollenv.compat": "rollenv.plugins",
    "rollenv.envs.harbor": "rollenv.plugins.suites.harbor",
    "rollenv.envs.forge": "rollenv.plugins.forge",
    "rollenv.envs.os": "rollenv.plugins.suites.os",
    "rollenv.envs.others": "rollenv.plugins.adapters.environments",
    **{f"rollenv.envs.tools.{name}": f"rollenv.plugins.suites.{name}" for name in _SUITES},
    "rollenv.rollout.records.atif": "rollenv.plugins.adapters.atif",
    **{f"rollenv.serve.protocols.{name}": f"rollenv.plugins.protocols.{name}" for name in ("fusion", "ors", "rock")},
}


def new_name(name: str) -> str | None:
    """Return the name that a module has today; None if it has not moved."""
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


class MovedModules(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds modules by their old names. They are the same objects as under the new ones, never a second copy."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = new_name(name) if name.startswith("rollenv.") else None
        return None if new is None else importlib.util.spec_from_loader(name, self)

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes the module from here when the loader is done.
        sys.modules[module.__name__] = importlib.import_module(str(new_name(module.__name__)))

    def is_package(self, fullname: str) -> bool:
        return False

    def get_source(self, fullname: str) -> None:
        return None

    def get_code(self, fullname: str) -> CodeType | None:
        """Return a module's code, so that ``python -m`` runs it by its old name."""
        found = importlib.util.find_spec(str(new_name(fullname)))
        return found.loader.get_code(found.name) if found and found.loader else None  # type: ignore[attr-defined]

"""The API reference: a page for each public module."""

from __future__ import annotations

import fnmatch
import pkgutil
import re
from pathlib import Path

#: Public modules by section. A star means every public module there.
PUBLIC = {
    "Environments": (
        "rollenv",
        "rollenv.core.env",
        "rollenv.core.errors",
        "rollenv.core.env_spec",
        "rollenv.core.needs",
        "rollenv.core.plugins",
        "rollenv.core.registry",
        "rollenv.core.checker",
        "rollenv.core.spaces",
        "rollenv.core.vector",
        "rollenv.core.curriculum",
        "rollenv.core.parsing",
        "rollenv.core.wrappers",
        "rollenv.core.tools.*",
        "rollenv.plugins.gem",
    ),
    "Sandboxes": ("rollenv.sandbox",),
    "Agents": (
        "rollenv.agents.base",
        "rollenv.agents.chat",
        "rollenv.agents.local",
        "rollenv.agents.vllm",
        "rollenv.agents.chat.endpoint",
        "rollenv.agents.engines.router",
        "rollenv.agents.gateway.gateway",
        "rollenv.agents.gateway.session",
        "rollenv.agents.gateway.sessions",
        "rollenv.agents.engines.sampling",
        "rollenv.agents.prompts",
        "rollenv.agents.prompts.conversation",
        "rollenv.agents.tiny.*",
    ),
    "Rollouts": (
        "rollenv.rollout",
        "rollenv.rollout.filters",
        "rollenv.rollout.workers",
        "rollenv.rollout.workers.ray",
        "rollenv.rollout.records.health",
        "rollenv.rollout.records.samples",
        "rollenv.rollout.records.storage",
    ),
    "Training": ("rollenv.trainers.[!r]*", "rollenv.trainers.rewards*", "rollenv.trainers.run_dir"),
}


def modules(root: Path) -> list[str]:
    """Return the names of all importable modules."""
    found = ["rollenv", *(info.name for info in _walk([str(root / "rollenv")], "rollenv."))]
    return sorted({name for name in found if not re.search(r"\._", name)})


def _walk(folders: list[str], prefix: str) -> list[pkgutil.ModuleInfo]:
    found = []
    for info in pkgutil.iter_modules(folders, prefix):
        found.append(info)
        if info.ispkg:
            leaf = info.name.rpartition(".")[2]
            found += _walk([f"{folder}/{leaf}" for folder in folders], f"{info.name}.")
    return found


def public(root: Path) -> dict[str, list[str]]:
    """Return the public modules by section.

    Raises:
        ValueError: a name in :data:`PUBLIC` fits no module.
    """
    known = modules(root)
    sections: dict[str, list[str]] = {}
    for section, patterns in PUBLIC.items():
        sections[section] = []
        for pattern in patterns:
            fits = fnmatch.filter(known, pattern)
            if not fits:
                raise ValueError(f"docs/generate/reference.py names {pattern}, and there is no such module")
            sections[section] += fits
    return sections


def pages(root: Path) -> dict[str, str]:
    rows = [
        "# API reference",
        "",
        "These modules are public; see the [versioning policy](../project/versioning.md).",
        "",
    ]
    found = {"reference/index.md": ""}
    for section, names in public(root).items():
        rows += [f"## {section}", "", "| module | what it holds |", "|---|---|"]
        for name in names:
            rows.append(f"| [`{name}`]({name}.md) | {_summary(root, name)} |")
            found[f"reference/{name}.md"] = f"# {name}\n\n::: {name}\n"
        rows.append("")
    found["reference/index.md"] = "\n".join(rows)
    return found


def nav(root: Path) -> list[object]:
    """Return the pages by section."""
    sections = {title: [f"reference/{name}.md" for name in names] for title, names in public(root).items()}
    return ["reference/index.md", *({title: found} for title, found in sections.items())]


def _summary(root: Path, name: str) -> str:
    """Return the first sentence of a module's docstring, without roles."""
    path = root / name.replace(".", "/")
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    match = re.match(r'\s*r?"""(.*?)(?:\n\n|""")', source, re.DOTALL)
    text = " ".join(match[1].split()) if match else ""
    return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text).replace("|", "\\|")

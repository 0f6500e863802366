"""Pages from files elsewhere in the repository: recipes, measurements and project documents."""

from __future__ import annotations

import re
from pathlib import Path

from rollenv.trainers.config import load_config
from rollenv.trainers.config.tasks import training_environments

#: Source file of each page; for the first three, the folder or file that a reader of the repository is sent to.
SOURCES: dict[str, str] = {
    "envs/index.md": "envs",
    "recipes/keys.md": "trainers/config",
    "reference/index.md": "docs/generate/reference.py",
}
#: Base folder of each page's links.
ORIGINS: dict[str, str] = {}

_PROJECT = {"changelog": "CHANGELOG.md", "security": "SECURITY.md", "contributing": "CONTRIBUTING.md"}


def _made_of(page: str, file: Path, root: Path) -> None:
    SOURCES[page] = str(file.relative_to(root))
    ORIGINS[page] = str(file.parent.relative_to(root))


def recipes(root: Path) -> dict[str, str]:
    """Make a page for each recipe, including its comments."""
    files = sorted((root / "trainers" / "recipes").glob("*.toml"))
    rows = [
        "# Recipes",
        "",
        "A recipe is a TOML file with the settings of a training run. `rollenv train NAME` runs it.",
    ]
    rows += ["Any [key](keys.md) can be changed on the command line, as in `rollenv train sokoban seed=1`.", ""]
    rows += ["| recipe | environment | algorithm | iterations | batch |", "|---|---|---|---|---|"]
    pages = {"recipes/index.md": ""}
    for file in files:
        page, config = f"recipes/{file.stem}.md", load_config(str(file))
        ids = ", ".join(dict.fromkeys(f"`{env.id}`" for env, _ in training_environments(config.env, config.tasks)))
        batch = f"{config.rollout.groups_per_batch} groups of {config.rollout.group_size}"
        rows.append(
            f"| [{file.stem}]({file.stem}.md) | {ids} | {config.algorithm.name} | {config.iterations} | {batch} |"
        )
        about = f"rollenv train {file.stem} --dry-run   # settings, first prompt and needs; nothing is started"
        run = f"```text\n{about}\nrollenv train {file.stem}\n```"
        pages[page] = f"# {file.stem}\n\n{run}\n\n```toml\n{file.read_text()}```\n"
        _made_of(page, file, root)
        ORIGINS.pop(page)
    pages["recipes/index.md"] = "\n".join(rows) + "\n"
    return pages


def figures(root: Path) -> dict[str, str]:
    """Make a page for each table of measurements; its first line is the command that prints it."""
    files = sorted((root / "benchmarks" / "results").glob("*.md"))
    rows = ["# Figures", "", "Every figure has the command that prints it on its first line. Run it in a clone.", ""]
    rows += ["| figure | command |", "|---|---|"]
    pages = {"figures/index.md": ""}
    for file in files:
        text = file.read_text()
        command = re.search(r"^`?\$? ?(python benchmarks/.*?)`?$", text, re.MULTILINE)
        title, body = _titled(file.stem, text)
        rows.append(f"| [{title}]({file.stem}.md) | {f'`{command[1]}`' if command else ''} |")
        page = f"figures/{file.stem}.md"
        pages[page] = f"# {title}\n\n{body}"
        _made_of(page, file, root)
    pages["figures/index.md"] = "\n".join(rows) + "\n"
    return pages


def _titled(stem: str, text: str) -> tuple[str, str]:
    """Return the title of a table, and the rest with its command in a code block."""
    title = stem.replace("_", " ").capitalize()
    if text.startswith("# "):
        head, _, text = text.partition("\n")
        title = head[2:].strip()
    body = re.sub(
        r"^\$ (python .*)\n(\S.*)?\n?", r"```console\n$ \1\n```\n\n\2\n", text.lstrip(), count=0, flags=re.MULTILINE
    )
    return title, body


def project(root: Path) -> dict[str, str]:
    pages = {}
    for name, source in _PROJECT.items():
        page = f"project/{name}.md"
        pages[page] = (root / source).read_text()
        _made_of(page, root / source, root)
    return pages

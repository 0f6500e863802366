"""``rollenv new``"""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

import typer

from rollenv.cli.common import console, print_result
from rollenv.core.errors import UsageError, writes

#: The texts of the files, with {name}, {package} and {title} where those of the new package go.
_TEXTS = Path(__file__).with_name("new_package")


def command(
    name: str = typer.Argument(help="Name of the package, such as my-game."),
    folder: Path = typer.Option(Path("."), "--in", help="Folder in which to write the package."),
) -> None:
    """Write an installable package with one environment, its tests, a recipe to train on it and its entry point."""
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package) or keyword.iskeyword(package):
        raise UsageError(f"{name!r} cannot name a package: use lower-case letters, digits and dashes, as in my-game")
    if importlib.util.find_spec(package):
        raise UsageError(f"Python finds a package {package} already, which {name!r} would hide; choose another name")
    root = folder / name
    if root.exists():
        raise UsageError(f"{root} exists; choose another name, or another folder with --in")
    title = "".join(part.capitalize() for part in package.split("_"))
    names = {"{name}": name, "{package}": package, "{title}": title}
    about = ("pyproject.toml", "README.md", "AGENTS.md", "train.toml")
    for path in (*about, f"src/{package}/__init__.py", f"src/{package}/env.py", "tests/test_env.py"):
        text = (_TEXTS / f"{Path(path).name}.txt").read_text(encoding="utf-8")
        for mark, value in names.items():
            text = text.replace(mark, value)
        target = root / path
        with writes(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    done = f"wrote {root}; next: cd {root} && pip install -e . && rollenv check {package}:{title}-v0"
    print_result({"folder": str(root), "package": package, "id": f"{package}:{title}-v0"})
    console.print(done, markup=False)

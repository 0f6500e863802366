"""Every snippet of the README and of docs/ runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rollenv.cli.main import app
from rollenv.trainers.config import load_config, recipes

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def snippets(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for i, code in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append((f"{page.name}-{i}", code))
    return found


def commands() -> list[list[str]]:
    lines = [line for _, code in snippets("bash") for line in code.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("rollenv ")]


@pytest.mark.parametrize(("name", "code"), snippets("python"), ids=lambda value: value if "\n" not in value else "")
def test_python(name, code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_exist_and_their_settings_are_known(command, rollenv_command):
    """Training is tested elsewhere; here its settings have to resolve. What needs no run of yours is run."""
    name, *arguments = command[1:]
    assert name in {c.name for c in app.registered_commands}
    if name == "train":
        recipe, *settings = [a for a in arguments if not a.startswith("-")]
        assert recipe in recipes() or recipe.endswith(".toml"), "a file of the reader's own"
        load_config(recipe if recipe in recipes() else "sokoban", settings)
    elif not any("runs/" in a for a in arguments) and name != "play":
        done = rollenv_command(name, *arguments)
        assert done.returncode == 0, done.stderr


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"

"""What belongs to a project besides code: extras, addresses, forms, the changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import rollenv

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_all_has_every_extra_that_users_need():
    (requirement,) = EXTRAS["all"]
    named = set(re.fullmatch(r"rollenv\[(.*)\]", requirement)[1].split(","))
    assert named == set(EXTRAS) - {"all", "bench", "dev", "docs", "mlflow", "smol", "swanlab", "vllm"}


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_every_extra_for_users_is_in_the_tables(page):
    text = (ROOT / page).read_text()
    assert not [name for name in EXTRAS if name not in ("bench", "dev", "docs") and f"`{name}`" not in text]


def test_an_extra_that_the_code_names_exists():
    named = set()
    for folder in ("rollenv", "envs", "agents", "trainers", "sandbox", "plugins"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text()
            named |= set(re.findall(r"pip install 'rollenv\[([a-z]+)\]'", text))
            named |= set(re.findall(r'require_extra\("[\w.]+", "(\w+)"', text))
    named |= {need.extra for spec in rollenv.list_envs() for need in spec.needs if getattr(need, "extra", "")}
    assert named
    assert named <= set(EXTRAS)


def test_the_changelog_has_this_version_and_where_names_moved():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert PROJECT["version"] == rollenv.__version__
    assert PROJECT["version"] in text
    assert "### Moved" in text


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.stem)
def test_forms_and_workflows_are_well_formed(file):
    values = yaml.safe_load(file.read_text())
    if "body" in values:
        assert {"name", "description"} <= values.keys()
        assert all(part["attributes"]["label"] for part in values["body"])
    if "jobs" in values:
        commands = [step.get("run", "") for job in values["jobs"].values() for step in job["steps"]]
        assert ".ci/run" in commands
        assert (ROOT / ".ci" / "run").exists()


def test_glossary_has_at_most_80_terms_and_each_names_a_file():
    rows = re.findall(r"^\| .* \| `(.*)` \|$", (ROOT / "docs/project/glossary.md").read_text(), re.MULTILINE)
    assert 50 < len(rows) <= 80
    assert not [file for file in rows if not (ROOT / file).exists()]

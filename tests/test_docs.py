"""Every snippet of the README, of docs/ and of what is about the project runs, and every link leads somewhere."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rollenv
from rollenv.cli.main import app
from rollenv.trainers.config import load_config, parse_config, recipes

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]

#: Pages whose snippets belong together; test_own_pages.py follows them.
FOLLOWED = {f"{name}.md" for name in ("own_data", "own_reward", "own_algorithm", "own_loop", "extend")}


def snippets(language: str) -> list[tuple[str, str]]:
    found = []
    for page in (page for page in PAGES if page.name not in FOLLOWED):
        for i, code in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)):
            found.append((f"{page.relative_to(ROOT)}-{i}", code))
    return found


def commands() -> list[list[str]]:
    lines = [line for _, code in snippets("bash") for line in code.splitlines()]
    unique = dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines if line.startswith("rollenv "))
    return [list(command) for command in unique]


@pytest.fixture(scope="module")
def served():
    """Puts a real server in the place of the address that is shown."""
    started = []

    def replaced(text):
        if "localhost:8800" not in text:
            return text
        if not started:
            code = "from rollenv.cli.main import main; main()"
            command = [sys.executable, "-c", code, "serve", "--port", "0", "--workers", "1"]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            started.append(started[0].stdout.readline().strip().removeprefix("serving on http://"))
        return text.replace("localhost:8800", started[1])

    yield replaced
    if started:
        with started[0] as process:
            process.kill()


@pytest.mark.integration
@pytest.mark.parametrize(("name", "code"), snippets("python"), ids=lambda value: value if "\n" not in value else "")
def test_python(name, code, tmp_path, served):
    code = served(code)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


#: Files of the reader's own in commands, which are not here.
OWN_FILES = (".jsonl", ".jsonl]", '.jsonl"]', ".csv", ".parquet")


@pytest.mark.integration
@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_exist_and_their_settings_are_known(command, rollenv_process, guessing_endpoint, served):
    """Training is tested elsewhere; here its settings have to resolve. What needs no run of yours is run.

    An endpoint is one that plays a guessing game, in the place of the address that is shown.
    """
    name, *arguments = map(served, command[1:])
    assert name in {each.name for each in (*app.registered_commands, *app.registered_groups)}
    if name == "train":
        values = {b for a, b in itertools.pairwise(arguments) if a in ("--seeds", "--vary", "--harness", "--from")}
        recipe, *settings = [a for a in arguments if not a.startswith("-") and a not in values]
        load_config(recipe if recipe in recipes() else "sokoban", settings)
    elif "--base-url" in arguments:
        asked = [a for a in arguments if a != "--resume"]
        asked[asked.index("--base-url") + 1] = guessing_endpoint.url
        done = rollenv_process(name, *asked)
        assert done.returncode == 0, done.stderr
        assert guessing_endpoint.requests
    elif not any("runs/" in a or "panels/" in a or a.endswith(OWN_FILES) for a in arguments) and name != "play":
        done = rollenv_process(name, *arguments)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "code"), snippets("toml"), ids=lambda value: value if "\n" not in value else "")
def test_toml(name, code):
    values = tomllib.loads(code)
    if "env" in values:  # a recipe
        parse_config(values)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_fences_are_of_known_kinds(page):
    """A snippet is run, or its kind says that it is not: text, console output, a tree.

    Those in py and sh need other projects' packages; tests of the server run them."""
    kinds = re.findall(r"^```([a-z]*)$", re.sub(r"^(~~~~*).*?^\1$", "", page.read_text(), flags=re.DOTALL | re.M), re.M)
    assert set(kinds[::2]) <= {"python", "bash", "toml", "text"} | (
        {"py", "sh"} if page.name == "serving.md" else set()
    )


def test_links_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            path = (page.parent / target).resolve()
            assert path.is_relative_to(ROOT), f"{page.name} links to {target}"
            assert path.exists(), f"{page.name} links to {target}"


def test_the_sections_of_the_reference_name_modules_that_exist(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "generate")
    import reference

    sections = reference.public(ROOT)
    assert {"rollenv", "rollenv.core.env", "rollenv.sandbox"} <= {name for names in sections.values() for name in names}


def test_every_key_is_on_the_page_of_keys_with_its_default(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "generate")
    import keys

    from rollenv.trainers.config.load import all_keys

    text = keys.page()
    sections = set(re.findall(r"^## (\S+?),?(?: with .*| each)?$", text, re.MULTILINE))
    shown = set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)) | sections
    assert set(all_keys()) <= shown
    assert "| `optimizer.micro_batch_tokens` | whole number | `16384` | Maximum number of tokens" in text
    assert "## correction with name = mis or seq_mis" in text
    assert "| `tasks.parts.ratio` | number | `1.0` |" in text


@pytest.mark.smoke
@pytest.mark.integration
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the site needs the docs extra")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    made = tmp_path / "site"
    cards = "".join(page.read_text() for page in (made / "envs").glob("*.html"))
    headings = set(re.findall(r"<h2 [^>]*>([^<]+)<", cards))
    assert {spec.id for spec in rollenv.list_envs()} <= headings, "an id has no card"
    assert not re.findall(r":(?:class|func|meth|attr|data|mod|exc):", (made / "reference" / "rollenv.html").read_text())
    assert "check_env" in (made / "reference" / "rollenv.html").read_text()
    assert "groups_per_batch" in (made / "recipes" / "sokoban.html").read_text()
    assert "benchmarks/schedule.py" in (made / "figures" / "schedule.html").read_text()

"""Every script in examples/ runs as its first line says."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
LIMIT = 240  # seconds; each takes a few on a quiet machine, and more where torch has to be loaded on a busy one


def run(script: Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """From a folder of its own, so that a script cannot lean on where it lies."""
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


@pytest.mark.smoke
@pytest.mark.integration
@pytest.mark.parametrize(
    "script", [path for path in EXAMPLES if path.stem != "evaluate_endpoint"], ids=lambda path: path.stem
)
def test_an_example_runs(script, tmp_path):
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows something"
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.integration
def test_the_endpoint_example_asks_an_endpoint(tmp_path, guessing_endpoint):
    (script,) = [path for path in EXAMPLES if path.stem == "evaluate_endpoint"]
    done = run(script, tmp_path, OPENAI_BASE_URL=guessing_endpoint.url, MODEL="a-model", OPENAI_API_KEY="none")
    assert done.returncode == 0, done.stderr
    assert "0 failed" in done.stdout
    assert {request["model"] for request in guessing_endpoint.requests} == {"a-model"}


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_needs(script):
    source = script.read_text()
    assert 15 <= len(source.splitlines()) <= 60
    first = ast.get_docstring(ast.parse(source)) or ""
    assert "\n" not in first
    assert "Needs: " in first


def test_there_are_ten():
    assert len(EXAMPLES) >= 10

"""Every snippet of the guide for clients runs, with the unmodified client that it is for."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from clients import ROOT

GUIDE = (ROOT / "docs" / "guides" / "serving.md").read_text()

#: Where the client of a section is installed.
CLIENTS = {
    "From ROCK": "rock",
    "From OpenEnv": "openenv",
    "Sandboxes for ROCK's clients": "rock",
    "From E2B's code interpreter": "e2b",
    "From SandboxFusion's clients, verl and ROLL": "fusion",
    "From an MCP host": "mcp",
    "From OpenReward's clients": "openreward",
}

#: What a snippet prints.
SAYS = {
    "From ROCK": "Sokoban",
    "Sandboxes for ROCK's clients": "/tmp",
    "From E2B's code interpreter": "42",
    "From SandboxFusion's clients, verl and ROLL": "42",
    "From an MCP host": "Turn 1",
    "From OpenReward's clients": "Sokoban",
}


def snippets():
    """(section, language, code) of each; the tests of all documents run those in other languages."""
    for section in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]:
        name = section.partition("\n")[0]
        for language, code in re.findall(r"^```(sh|py)\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
            yield pytest.param(name, language, code, id=f"{name} {language}")


def test_every_client_has_a_section_with_a_snippet():
    assert {case.values[0] for case in snippets()} == set(CLIENTS)


@pytest.mark.integration
@pytest.mark.parametrize(("section", "language", "code"), list(snippets()))
def test_it_runs(server, tmp_path, section, language, code):
    binaries = ROOT / ".bench" / CLIENTS[section] / "bin"
    if not binaries.exists():
        pytest.skip(f"`make peers` puts the client into .bench/{CLIENTS[section]}")
    if code.startswith("curl") and not any(os.access(f"{place}/curl", os.X_OK) for place in os.get_exec_path()):
        pytest.skip("curl is not installed")
    code = code.replace("localhost:8800", f"127.0.0.1:{server.port}")
    command = ["bash", "-euc", code] if language == "sh" else [str(binaries / "python"), "-c", code]
    environ = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert SAYS.get(section, "") in done.stdout

"""Installation of harnesses: what is missing is told in one line, and nothing half is left."""

from dataclasses import replace

import pytest

from rollenv.agents.harness import Harness, install
from rollenv.core.errors import MissingExtra

TOOL = Harness("tool", "1.2.0", "chat", "{runtime}/tool", npm=("tool@1.2.0",))


def test_what_is_missing_is_reported_in_one_line_and_cut_installations_go(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "harness/tool-1.2.0-partial-killed/node_modules").mkdir(parents=True)
    with pytest.raises(MissingExtra, match="npm") as missing:
        install(TOOL)
    assert "\n" not in str(missing.value)
    assert [path.name for path in (tmp_path / "harness").iterdir()] == ["tool-1.2.0.lock"]


def test_an_installation_that_is_there_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "harness/tool-1.2.0").mkdir(parents=True)
    folders = {install(TOOL), install(replace(TOOL, name="tool-full", installed_as="tool"))}
    assert folders == {tmp_path / "harness/tool-1.2.0"}

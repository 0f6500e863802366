"""Installation of harnesses: what is missing is told in one line, and nothing half is left."""

import pytest

from rollenv.agents.harness import find_harness, install
from rollenv.core.errors import MissingExtra


def test_what_is_missing_is_reported_in_one_line_and_cut_installations_go(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "harness/pi-0.73.1-partial-killed/node_modules").mkdir(parents=True)
    with pytest.raises(MissingExtra, match="npm") as missing:
        install(find_harness("pi"))
    assert "\n" not in str(missing.value)
    assert [path.name for path in (tmp_path / "harness").iterdir()] == ["pi-0.73.1.lock"]


def test_an_installation_that_is_there_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "harness/claude-code-2.1.331").mkdir(parents=True)
    folders = {install(find_harness(name)) for name in ("claude-code", "claude-code-full")}
    assert folders == {tmp_path / "harness/claude-code-2.1.331"}

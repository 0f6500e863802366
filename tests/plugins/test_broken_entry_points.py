"""Entry points of another package that name something else than they should, or take a name."""

import pytest

from rollenv import UsageError
from rollenv.agents.gateway.dialects import dialects
from rollenv.core.plugins import entry_points
from rollenv.trainers.config.load import load_config

ENTRIES = """
[rollenv.dialects]
half = json

[rollenv.players]
wrong = json:loads
vllm = json:loads

[rollenv.rewards]
wrong = json:JSONDecoder
"""


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Install a package with the entry points."""
    about = tmp_path / "acme-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        for known in (entry_points, dialects):
            known.cache_clear()
        yield
    for known in (entry_points, dialects):
        known.cache_clear()


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    "setting", ["player={kind='wrong', url='http://a'}", "rewards.domains=[{domain='*', kind='wrong'}]"]
)
def test_a_kind_that_is_no_section_is_refused(setting):
    with pytest.raises(UsageError, match=r"the entry point wrong of rollenv\.\w+ is no section"):
        load_config("sokoban", [setting])


@pytest.mark.usefixtures("acme")
def test_a_kind_with_the_name_of_rollenvs_own_is_reported_and_left_out():
    with pytest.warns(UserWarning, match="vllm of rollenv.players in acme is left out"), pytest.raises(UsageError) as e:
        load_config("sokoban", ["player.kind=nothing"])
    assert str(e.value).count("vllm") == 1


@pytest.mark.usefixtures("acme")
def test_a_dialect_without_its_members_is_reported_and_left_out():
    with pytest.warns(UserWarning, match="half of rollenv.dialects is left out"):
        assert "half" not in dialects()
    assert {"chat", "gemini", "messages", "responses"} <= dialects().keys()

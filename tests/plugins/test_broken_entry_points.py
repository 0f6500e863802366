"""Entry points of another package that name something else than they should, or take a name."""

import pytest
from packages import declare

import rollenv
from rollenv import UsageError
from rollenv.agents.gateway.dialects import dialects
from rollenv.agents.harness.records import find_harness
from rollenv.bench.suites import suites
from rollenv.core.errors import BadEntryPoint
from rollenv.core.plugins import entry_points
from rollenv.panels.shelf import folders
from rollenv.serve.protocols import routes_of
from rollenv.trainers.config.load import load_config

ENTRIES = """
[rollenv.dialects]
half = json

[rollenv.players]
wrong = json:loads
vllm = json:loads

[rollenv.rewards]
wrong = json:JSONDecoder

[rollenv.harnesses]
wrong = json:loads

[rollenv.suites]
wrong = json:loads

[rollenv.panels]
wrong = json:loads

[rollenv.protocols]
wrong = json:loads

[rollenv.namespaces]
wrong = json
"""


_CACHES = (entry_points, dialects, folders)


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Install a package with the entry points."""
    declare(tmp_path, "acme", ENTRIES)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        for known in _CACHES:
            known.cache_clear()
        yield
    for known in _CACHES:
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
@pytest.mark.parametrize(
    ("group", "names", "own"),
    [
        ("dialects", lambda: dialects().keys(), "responses"),
        ("suites", lambda: [each.name for each in suites()], "tool-use"),
        ("panels", lambda: [folder.name for folder in folders()], "ours"),
    ],
)
def test_a_part_of_another_kind_is_reported_and_left_out(group, names, own):
    with pytest.warns(UserWarning, match=rf"rollenv\.{group} is no "):
        found = names()
    assert own in found
    assert not {"half", "wrong"} & set(found)


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("use", [find_harness, routes_of, lambda name: rollenv.make(f"{name}:A")])
def test_a_part_of_another_kind_is_refused_where_it_is_named(use):
    with pytest.raises(BadEntryPoint, match="wrong of rollenv"):
        use("wrong")

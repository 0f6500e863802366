"""The catalogue: rows that are measured once, what makes one stale, and the page."""

import json
from dataclasses import replace

import numpy
import pytest

from rollenv.agents.base import AgentFailed
from rollenv.core.errors import UsageError
from rollenv.core.needs import DataFiles, Package
from rollenv.core.registry import spec
from rollenv.plugins.publishing import catalogue

ID = "game:GuessTheNumber-v0-easy"


def row(env_id, expert=1.0, random=0.0, refused=(), **more):
    """A row as the command writes it."""
    players = {
        kind: {"name": kind, "episodes": 8, "success": success, "reward": success, "turns": 2.0}
        for kind, success in (("expert", expert), ("random", random), ("unearned", 0.0))
    }
    about = {"fingerprint": "", "tasks": "by seed", "levels": 2, "abilities": ["state"], "sources": []}
    return {"id": env_id, "refused": list(refused), "models": {}, "players": players, **about, **more}


def write(file, *rows):
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return file


def test_a_player_whose_episodes_all_failed_has_no_success(tmp_path):
    class Lost:
        def start(self, env, seed):
            raise AgentFailed("no model")

    file = write(tmp_path / "rows.jsonl", row(ID, fingerprint=catalogue.fingerprint(spec(ID))))
    (found,) = catalogue.measure([spec(ID)], file, {"lost": Lost()}, 2, 60.0)
    assert found["models"]["lost"].keys() == {"error"}


@pytest.mark.slow
def test_an_environment_is_measured_once_and_again_when_it_changes_or_a_player_is_added(tmp_path, rollenv_command):
    file = tmp_path / "catalogue.jsonl"
    measure = ("catalogue", ID, "--measure", "--file", str(file), "--json")
    (first,) = json.loads(rollenv_command(*measure).stdout)["environments"]
    assert first["players"]["expert"]["success"] == 1
    assert first["players"]["random"]["success"] < 1
    assert not first["stale"]
    assert first["criteria"]["learnable"][0]

    rollenv_command(*measure)
    assert len(file.read_text().splitlines()) == 1
    (with_model,) = json.loads(rollenv_command(*measure, "--agent", "noisy:0.5").stdout)["environments"]
    assert with_model["models"]["noisy:0.5"]["turns"] > 0
    assert with_model["players"] == first["players"]

    write(file, {**first, "fingerprint": "another"})
    (stale,) = json.loads(rollenv_command("catalogue", ID, "--file", str(file), "--json").stdout)["environments"]
    assert stale["stale"]
    (again,) = json.loads(rollenv_command(*measure).stdout)["environments"]
    assert not again["stale"]


def test_the_list_shows_scores(rollenv_command):
    shown = rollenv_command("list", ID, "--scores", "--json")
    assert json.loads(shown.stdout) == json.loads(rollenv_command("catalogue", ID, "--json").stdout)
    assert json.loads(shown.stdout)["environments"][0]["players"]["expert"]["success"] == 1
    assert rollenv_command("list", "no-such-id", "--scores").returncode == UsageError.exit_code


def test_a_changed_file_changes_the_fingerprint(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import rollenv\n\n\nclass Mine(rollenv.Env):\n    pass\n")
    before = catalogue.fingerprint(spec(f"{file}:Mine"))
    assert before == catalogue.fingerprint(spec(f"{file}:Mine"))
    file.write_text(file.read_text() + "    players = 2\n")
    assert before != catalogue.fingerprint(spec(f"{file}:Mine"))


def test_a_changed_argument_changes_the_fingerprint():
    one = spec(ID)
    assert catalogue.fingerprint(one) == catalogue.fingerprint(spec(ID))
    assert catalogue.fingerprint(one) != catalogue.fingerprint(replace(one, kwargs={**one.kwargs, "max_turns": 3}))


@pytest.mark.parametrize(
    ("made", "criterion", "holds"),
    [
        (row("a"), "learnable", True),
        (row("a", expert=0.2, random=0.3), "learnable", False),
        (row("a", refused=["unearned"]), "not hackable", False),
        (row("a", refused=["network"]), "secure", False),
        (row("a", refused=["processes"]), "reproducible", False),
        (row("a", abilities=[]), "observable", False),
        (row("a", tasks="numbered"), "scales", False),
        (row("a", players={}), "learnable", None),
        (row("a", players={}), "not hackable", None),
    ],
)
def test_each_criterion_says_whether_it_holds_and_by_what(made, criterion, holds):
    found = catalogue.criteria(made)
    assert found[criterion][0] is holds
    assert all(how for _, how in found.values())


def test_a_row_says_what_its_environment_is_made_of():
    assert catalogue.source_of(Package("numpy")).startswith(f"numpy {numpy.__version__}, ")
    assert catalogue.source_of(Package("no-such-package")) == "no-such-package"
    assert "https://example.org" in catalogue.source_of(DataFiles("words", source="https://example.org"))


@pytest.mark.parametrize("text", ["{", "[]\n", '{"name": 1}\n', "3\n"])
def test_what_is_no_catalogue_is_refused(tmp_path, text):
    file = tmp_path / "catalogue.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"catalogue\.jsonl"):
        catalogue.read(file)


def test_the_last_row_of_an_id_counts(tmp_path):
    file = write(tmp_path / "catalogue.jsonl", row("a", expert=0.1), row("b"), row("a", expert=0.9))
    rows = catalogue.read(file)
    assert list(rows) == ["a", "b"]
    assert rows["a"]["players"]["expert"]["success"] == 0.9


def test_the_page_is_sorted_by_a_click_and_filtered_by_words(tmp_path, show):
    rows = [row("a:One<b>", random=0.05), row("a:Two", random=0.5), row("b:Three", random=0.1, refused=["one answer"])]
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{catalogue.page(rows)}")
    tab = show(tmp_path / "page.html")

    def ids():
        return [row.inner_text() for row in tab.query_selector_all("tbody tr:not([hidden]) td:first-child")]

    assert ids() == ["a:One<b>", "a:Two", "b:Three"]
    tab.get_by_role("button", name="random").click()
    assert ids() == ["a:One<b>", "b:Three", "a:Two"]
    tab.get_by_role("button", name="random").click()
    assert ids() == ["a:Two", "b:Three", "a:One<b>"]
    tab.get_by_label("Words").fill("a: 5")
    assert ids() == ["a:Two", "a:One<b>"]
    assert tab.get_by_role("status").inner_text() == "2 of 3"


def test_a_long_path_does_not_widen_the_page(tmp_path, show):
    rows = [row(f"/{'deeper/' * 50}own.py:One")]
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{catalogue.page(rows)}")
    assert show(tmp_path / "page.html").evaluate("document.documentElement.scrollWidth <= innerWidth")

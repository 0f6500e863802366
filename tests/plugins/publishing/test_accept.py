"""`rollenv accept`: bad environments are refused for the right reason, good ones accepted."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from rollenv.plugins.publishing import accept
from rollenv.plugins.publishing.accept_command import from_anywhere
from rollenv.rollout.evaluate import wilson_interval

BAD = Path(__file__).with_name("bad_environments.py")
CARELESS = Path(__file__).with_name("careless_environments.py")
GOOD = Path(__file__).with_name("good_environments.py")

#: Class, rule, and what the evidence names.
REFUSED = {
    "PaysNoAnswer": ("unearned", "an empty answer"),
    "PaysSilence": ("unearned", "an empty answer"),
    "CallsAllSuccess": ("unearned", "success 100%"),
    "SeedsGlobally": ("global rng", "numpy.random"),
    "ReadsTheDate": ("clock", "a day later"),
    "HashesText": ("processes", "hash()"),
    "CallsHome": ("network", "192.0.2.1"),
    "ForgetsPart": ("state", "seed"),
    "ShowsInText": ("shown", "calls the answer"),
    "ShowsInside": ("shown", "info['row'][0]['gold']"),
    "ShowsLater": ("shown", "calls the answer"),
    "ListsTheRightFirst": ("one answer", "the first admissible action"),
    "ShowsInPrefix": ("shown", "calls the answer"),
    "GradesByPattern": ("unearned", ".*"),
    "GradesByNumber": ("unearned", "nan"),
    "ReadsTheFolder": ("replay", "second process"),
    "ReadsTheUser": ("replay", "second process"),
    "KnowsFewSeeds": ("types", "IndexError"),
    "HoldsAFunction": ("types", "info['again']"),
    "TakesStdout": ("surroundings", "sys.stdout"),
    "TakesCtrlC": ("surroundings", "Ctrl-C"),
    "AsksAPerson": ("starts", "input()"),
    "SharesTheSum": ("seeds", "begun beside it"),
    "PaysOnce": ("processes", "in the reward"),
    "LooksDiffer": ("state key", "called twice"),
    "SetsVariables": ("surroundings", "$PATH"),
    "NeverEnds": ("over", "5000"),
    "BadExpert": ("oracle", "0%"),
    "NoNumber": ("types", "nan"),
    "Fragile": ("hostile", "ValueError"),
    "LeavesAThread": ("leaks", "threads"),
    "Exits": ("returns", "step('')"),
    "PaysLength": ("unearned", "a long answer"),
    "PaysKindness": ("unearned", "kind words"),
    "CallsLater": ("network", "while it is played, it connects to data.invalid"),
    "Grows": ("leaks", "MB with each episode"),
    "ForgetsLargeSeeds": ("seeds", "give one"),
    "ReadsTheHour": ("replay", "second process"),
    "PaysOrders": ("unearned", "orders to the grader"),
    "PaysMany": ("unearned", "at once"),
    "DrawsFromNumpy": ("global rng", "numpy.random"),
    "TellsTheTime": ("seeds", "reset"),
    "OrderOfASet": ("processes", "set's order"),
    "NamesItsProcess": ("processes", "this process and another"),
    "FetchesQuietly": ("network", "data.invalid"),
    "StateIsNoJson": ("state", "JSON"),
    "ShowsInInfo": ("shown", "info['gold']"),
    "Infinite": ("types", "inf"),
    "Echoes": ("hostile", "characters"),
    "LeavesAFile": ("surroundings", "sums.log"),
    "KeepsANotebook": ("files", "sums_of_an_environment.log"),
    "ReplacesAFile": ("files", "sums_of_an_environment.txt"),
    "KeepsADatabase": ("files", "sums_of_an_environment.db"),
    "LinksAway": ("files", "sums_of_an_environment.link"),
    "RemovesAFolder": ("files", "/var/opt/sums_of_an_environment"),
    "MovesAway": ("surroundings", "the working folder"),
    "Hangs": ("returns", "in _reset"),
    "HangsLater": ("returns", "the check 'hostile'"),
    "Forks": ("starts", "does not fork"),
    "PaysNobody": ("expert", "random actions"),
    "PaysTheWrong": ("expert", "random actions"),
    "OneTask": ("one answer", "commonest right answer"),
    "CannotStart": ("starts", "a_package_that_nobody_has"),
    "ShowsInBase64": ("shown", "in base64 in the observation"),
    "ShowsInHexadecimal": ("shown", "in hexadecimal digits in the observation"),
    "ShowsBackwards": ("shown", "backwards in the observation"),
    "ShowsInInfoInBase64": ("shown", "in base64 in info"),
    "ShowsInfoLater": ("shown", "info['note']"),
    "SharesItsSplits": ("splits", "seed 0 is seed 0 there"),
    "WritesWhenSolved": ("surroundings", "solved.log"),
    "LeavesAThreadWhenSolved": ("leaks", "threads"),
    "IsTruncatedWhenSolved": ("over", "none is terminated"),
    "HasNoRoom": ("types", "reset(3) failed: ValueError"),
}

#: The same of a file of whole environments.
REFUSED_AS_CARELESS = {
    "MatchesInside": ("unearned", "copies the prompt"),
    "PaysLikeness": ("unearned", "copies the prompt"),
    "PaysForTurns": ("expert", "random actions"),
    "EvaluatesAnything": ("one answer", "commonest right answer"),
    "TheFirstIsRight": ("one answer", "commonest right answer"),
    "TakesAnyJson": ("hostile", "null"),
    "AsksWhetherItIsADigit": ("hostile", "ValueError"),
    "RemembersAStreak": ("replay", "a used and a fresh instance"),
    "RunsItHere": ("returns", "the episodes of agents"),
    "LeavesItsNote": ("shown", "calls the answer"),
    "CountsSeconds": ("seeds", "the reward"),
}


#: Ours of different families, and those of other installed packages: reasoning-gym, TextArena, Gymnasium, OpenSpiel.
ACCEPTED = [
    "game:Sokoban-v0-easy",
    "game:Wordle-v0",
    "game:Mastermind-v0",
    "game:FifteenPuzzle-v0",
    "game:Sudoku-v0",
    "game:TowerofHanoi-v0",
    "game:GuessTheNumber-v0",
    "multi:Nim-v0-seats",
    "multi:Propose-v0",
    "math:Arithmetic-v0-digit",
    "ragen:Sokoban-v0",
    "code:OneLine-v0",
    "service:Airline-v0",
    "tools:Shop-v0",
    "alfworld:generated",
    "rg:base_conversion",
    "rg:gcd",
    "rg:maze",
    "rg:tower_of_hanoi",
    "gym:CartPole-v1",
    "gym:Blackjack-v1",
    "gym:Taxi-v3",
    "ta2:TicTacToe-v0",
    "spiel:kuhn_poker",
    *(
        f"{GOOD}:{name}"
        for name in ("Thermostat", "MayPass", "Prime", "House", "Capitals", "Bandit", "Constrained", "RaceTo21")
    ),
    f"{GOOD}:Backwards",
    *(f"{GOOD}:{name}" for name in ("Queries", "Recall", "LongWalk", "Desk", "Vowels", "Drawers")),
]


def judged(env_id, episodes=12, timeout=60.0):
    [found] = accept.judge([env_id], [], episodes, timeout)
    return found


@pytest.mark.integration
@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_AS_CARELESS])
def test_a_bad_environment_is_refused_with_its_reason(name):
    rule, evidence = (REFUSED | REFUSED_AS_CARELESS)[name]
    found = judged(f"{BAD if name in REFUSED else CARELESS}:{name}", timeout=15.0 if "Hangs" in name else 60.0)
    reasons = [(refusal.rule, refusal.evidence) for refusal in found.refusals]
    assert any(reason == rule and evidence in shown for reason, shown in reasons), reasons


@pytest.mark.integration
@pytest.mark.parametrize("env_id", ACCEPTED)
def test_a_good_environment_is_accepted(env_id):
    found = judged(env_id, timeout=600.0)
    assert [f"{refusal.rule}: {refusal.evidence}" for refusal in found.refusals] == []
    assert any(found.checks.values())


def test_a_seed_that_raises_is_said_once():
    [refusal] = judged(f"{BAD}:HasNoRoom").refusals
    assert "reset(3)" in refusal.evidence


@pytest.mark.slow
def test_arguments_are_judged(rollenv_command):
    done = rollenv_command("accept", f"{GOOD}:Backwards", "split=test", "-n", "8", "--json")
    assert json.loads(done.stdout)["accepted"], done.stdout
    done = rollenv_command("accept", f"{GOOD}:Backwards", "size=3", "-n", "8", "--json")
    assert done.returncode == 2
    assert "takes no argument 'size'" in done.stderr


def earned(successes, episodes):
    low, high = wilson_interval(successes, episodes, 3.0)
    return accept.Earned("", "", episodes, successes / episodes, low, high, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(("one", "other", "more"), [(6, 2, False), (16, 2, True), (6, 0, False), (11, 0, True)])
def test_what_solves_more_is_told_beyond_chance_on_both_sides(one, other, more):
    assert accept._more(earned(one, 16), [earned(other, 16)]) == more


@pytest.mark.integration
def test_temporary_files_and_caches_may_be_written_wherever_they_are(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "link"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with tempfile.TemporaryDirectory(dir=Path.home()) as cache:
        monkeypatch.setenv("HF_HOME", cache)
        assert judged(f"{BAD}:Tidy").refusals == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule"), [("PaysNoAnswer", "unearned"), ("CallsHome", "network"), ("Exits", "returns")]
)
def test_a_refusal_names_rule_evidence_and_what_to_do(name, rule, rollenv_command):
    done = rollenv_command("accept", f"{BAD}:{name}", "-n", "8", "--json")
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["accepted"]) == (1, False)
    refusal = next(each for each in verdict["refusals"] if each["rule"] == rule)
    assert refusal["id"].endswith(name)
    assert refusal["evidence"]
    assert refusal["do"] == accept.RULES[rule]["do"]
    if name == "PaysNoAnswer":
        assert (refusal["action"], refusal["reward"]) == ("(empty)", 0.5)


@pytest.mark.slow
def test_what_it_prints_goes_nowhere_and_breaks_nothing(rollenv_command):
    done = rollenv_command("accept", f"{BAD}:Floods", "-n", "8", "--json")
    assert json.loads(done.stdout)["accepted"], done.stdout
    assert "flood" not in done.stdout + done.stderr


def test_what_an_id_names_is_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    assert from_anywhere("harbor:tasks") == f"harbor:{tmp_path / 'tasks'}"
    assert from_anywhere("mine.py:Game") == f"{tmp_path / 'mine.py'}:Game"
    for env_id in ("game:Wordle-v0", "openenv:http://localhost:8000", "gymnasium:CartPole-v1", "harbor:\0", "harbor:"):
        assert from_anywhere(env_id) == env_id


PACKAGE = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "sums"
version = "1.0"

[project.entry-points."rollenv.envs"]
sums = "sums:register_envs"

[tool.setuptools]
py-modules = ["sums"]
"""
REGISTER = """

def register_envs():
    import rollenv

    for name in NAMES:
        rollenv.register(name, "sums:Sum", abilities=["state", "random_action", "oracle"])
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("names", "ids", "rules"),
    [
        (["sums:Sum-v0", "sums:Sum-v1"], {"sums:Sum-v0", "sums:Sum-v1"}, set()),
        (["sums:Sum-v0", "sums:Sum-v0"], {"sums", "sums:Sum-v0"}, {"ids"}),
        (["sums/../Sum"], {"sums"}, {"ids"}),
        ([], {"sums"}, {"ids"}),
    ],
)
def test_all_ids_of_a_packages_folder_are_judged(names, ids, rules, tmp_path, rollenv_command):
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PACKAGE)
    (folder / "sums.py").write_text(BAD.read_text() + REGISTER.replace("NAMES", repr(names)))
    done = rollenv_command("accept", "sums", "-n", "8", "--json")
    verdict = json.loads(done.stdout)
    assert {each["id"] for each in verdict["environments"]} == ids
    assert {each["rule"] for each in verdict["refusals"]} == rules
    assert verdict["size"]["lines"] > 100
    assert 1000 < verdict["size"]["wheel_bytes"] < 100_000


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("nothing-like-it", "no id, installed package"),
        ("game:Sokobam-v0-easy", "did you mean game:Sokoban-v0-easy"),
        ("numpy", "registers no environments"),
        ("empty", "no package: it has no pyproject.toml"),
        ("file.whl", "is no wheel"),
        ("", "no package"),
        ("\N{PILE OF POO}[red]", "no id, installed package"),
    ],
)
def test_what_cannot_be_judged_is_one_line(package, says, rollenv_command, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.whl").write_text("no zip")
    done = rollenv_command("accept", package, "--json")
    assert done.returncode == 2
    assert says in done.stderr
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
    assert not os.path.exists(tmp_path / "build")

"""`rollenv accept`: bad environments are refused for the right reason, good ones accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollenv.plugins.publishing import accept

BAD = Path(__file__).with_name("bad_environments.py")

#: Class, rule, and what the evidence names.
REFUSED = {
    "PaysNoAnswer": ("unearned", "an empty answer"),
    "SeedsGlobally": ("global rng", "numpy.random"),
    "ReadsTheDate": ("clock", "a day later"),
    "HashesText": ("processes", "hash()"),
    "CallsHome": ("network", "192.0.2.1"),
    "ForgetsPart": ("state", "seed"),
    "ShowsInText": ("shown", "calls the answer"),
    "NeverEnds": ("over", "5000"),
    "BadExpert": ("oracle", "0%"),
    "NoNumber": ("types", "nan"),
    "Fragile": ("hostile", "ValueError"),
    "LeavesAThread": ("leaks", "threads"),
    "Exits": ("returns", "step('')"),
    "PaysLength": ("unearned", "a long answer"),
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
    "MovesAway": ("surroundings", "the working folder"),
    "Hangs": ("returns", "in _reset"),
    "HangsLater": ("returns", "the check 'hostile'"),
    "Forks": ("returns", "forks this process"),
    "PaysNobody": ("expert", "random actions"),
    "PaysTheWrong": ("expert", "random actions"),
    "OneTask": ("one answer", "commonest right answer"),
    "CannotStart": ("starts", "a_package_that_nobody_has"),
}


def judged(env_id, episodes=12, timeout=60.0):
    [found] = accept.judge([env_id], [], episodes, timeout)
    return found


@pytest.mark.integration
@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_environment_is_refused_with_its_reason(name):
    rule, evidence = REFUSED[name]
    found = judged(f"{BAD}:{name}", timeout=15.0 if "Hangs" in name else 60.0)
    reasons = [(refusal.rule, refusal.evidence) for refusal in found.refusals]
    assert any(reason == rule and evidence in shown for reason, shown in reasons), reasons

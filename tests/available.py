"""The ids that can be made here, for tests that go through all of them."""

from __future__ import annotations

import re

import pytest

import rollenv

#: Suites with many ids of one kind: one in so many is checked in every run, the rest in the integration run.
LARGE = {"code": 3, "eval": 3, "game": 3, "gym": 2, "math": 3, "rg": 10, "ta": 15, "tools": 8, "webshop": 3}

#: A task of these takes seconds to make or to check; another of their kind or a test stands in for them in every run.
SLOW = {"ta:RushHour-v0", "os:AgentBench-v0", "os:InterCode-Bash-v0"}

#: Of these, ten episodes of every check take a minute or two.
COSTLY = SLOW | {"shell:Mix-v0", "ta:Sokoban-v0"}

#: The same again with other data, which has tests of its own.
TWINS = {"os:AgentBench-v0-dev", "os:AgentBench-v0-train"}


def _marks() -> list[object]:
    params, seen = [], dict.fromkeys(LARGE, 0)
    for each in rollenv.list_envs():
        if each.missing or each.id in TWINS:
            continue
        marks = []
        if each.id in SLOW:
            marks = [pytest.mark.integration]
        elif each.namespace in LARGE:
            seen[each.namespace] += 1
            sampled = seen[each.namespace] % LARGE[each.namespace] == 1
            marks = [pytest.mark.slow if sampled else pytest.mark.integration]
        params.append(pytest.param(each.id, marks=marks))
    return params


IDS = _marks()

#: To check one of shell:'s takes half a minute. Mix has tasks of all of them, and each has tests of its own.
CHECKED = [each for each in IDS if not re.match(r"shell:(?!Mix-v0$)", str(each.values[0]))]


def variants(ids: list[str]) -> list[object]:
    """The plain ids of suites in every run; their variants, such as ``tools:Shop-v0-hard``, in the integration run."""
    return [each if each.endswith("-v0") else pytest.param(each, marks=pytest.mark.integration) for each in ids]

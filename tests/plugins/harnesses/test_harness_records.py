"""Records of harnesses: complete, pinned, and filled without surprises."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.agents.harness import PORT, find_harness, harnesses, program

TOLD = {"base_url": f"http://127.0.0.1:{PORT}/s/1", "key": "own", "model": "policy", "seconds": 60}


def texts(value):
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in texts(part)]
    return [text for each in value for text in texts(each)] if isinstance(value, list | tuple) else [str(value)]


@pytest.mark.parametrize("name", harnesses())
def test_a_harness_is_pinned_pointed_at_the_endpoint_and_told_its_task(name):
    harness = find_harness(name)
    assert harness.name == name
    packages = [*harness.pip, *harness.npm]
    assert packages
    assert any(package.rpartition("==" if harness.pip else "@")[2].startswith(harness.version) for package in packages)
    assert all(re.search(r"(==|.@)\d+\.\d+\.\d+(-linux-\{arch\})?$", package) for package in packages)
    spec = program(harness, instruction="Build it.", **TOLD)
    said = "\n".join(texts(spec))
    assert TOLD["base_url"] in said
    assert "Build it." in said
    assert TOLD["key"] in [*spec["env"].values(), *texts(spec["files"])]
    assert not re.search(r"\{[a-z_]+\}", said)


@given(st.text(max_size=200), st.sampled_from(harnesses()))
def test_a_task_reaches_the_harness_unchanged_and_as_one_word(task, name):
    spec = program(find_harness(name), instruction=task, **TOLD)
    plain = program(find_harness(name), instruction="", **TOLD)
    assert len(spec["command"]) == len(plain["command"])
    assert task in spec["stdin"] or any(task in word for word in spec["command"])


def test_numbers_stay_numbers_in_files_of_settings():
    files = program(find_harness("pi"), instruction="", context=4096, **TOLD)["files"]
    [settings] = files.values()
    assert settings["providers"]["gateway"]["models"] == [{"id": "policy", "contextWindow": 4096}]

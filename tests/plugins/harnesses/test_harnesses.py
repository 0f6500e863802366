"""Unmodified harnesses in machines, against an endpoint that answers one command."""

import json
import os

import pytest
from stub_endpoint import Endpoint

from rollenv.agents.harness import PORT, attached, find_harness, harnesses, play, program
from rollenv.core.errors import MissingExtra
from rollenv.sandbox import Machine
from rollenv.sandbox.machine import why_not

pytestmark = [pytest.mark.integration, pytest.mark.skipif(why_not() is not None, reason=f"no machines: {why_not()}")]

#: The command is run by a shell: no harness could write its result without one.
COMMAND = "echo made-by-$((40+2)) > made.txt; env > /tmp/env.txt; (setsid sleep 600 &) > /dev/null 2>&1"
ENDS = {"mini-swe-agent": ["echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]}
LAST = {"smolagents": ("final_answer", {"answer": "done"})}


@pytest.mark.parametrize("name", harnesses())
def test_a_harness_plays_in_its_machine_and_leaves_only_what_the_task_wants(name, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", os.path.expanduser("~/.cache/rollenv"))  # installations are large
    harness = find_harness(name)
    endpoint = Endpoint([COMMAND, *ENDS.get(name, [])], LAST.get(name, "All is done."))
    try:
        extras = attached(harness, endpoint.address)
    except MissingExtra as error:
        endpoint.close()
        pytest.skip(str(error))
    spec = program(
        harness,
        base_url=f"http://127.0.0.1:{PORT}/s/7",
        key="own-key",
        model="policy",
        instruction="- Write 'made-by-42' into made.txt.\nThen stop.",
        seconds=400,
        max_turns=10,
    )
    with Machine.create(**extras.settings) as machine:
        ended = play(machine, spec)
        assert ended["exit_code"] == 0, ended["output"]
        assert machine.files.read("/app/made.txt") == "made-by-42\n"
        assert {*endpoint.keys} == {"own-key"}
        assert all(path.startswith("/s/7/") for path in endpoint.paths)
        assert "Write 'made-by-42' into made.txt." in json.dumps(endpoint.asked[0])
        assert bool(ended["transcript"]) == bool(harness.transcript)
        assert "\nHOME=/root\n" in "\n" + machine.files.read("/tmp/env.txt")  # the user's, for the task
        left = machine.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
        assert ("sleep 600" in left) == (name != "qwen-code")  # which ends what its commands left itself
        assert "/opt/harness/" not in left
        assert "harness" not in machine.run("ls /run").stdout
    endpoint.close()

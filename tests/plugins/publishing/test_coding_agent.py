"""A coding agent with the skill writes an environment, is refused twice, mends it, and is accepted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from stub_endpoint import Endpoint

from rollenv.agents.harness import PORT, attached, find_harness, play, program
from rollenv.core.errors import MissingExtra
from rollenv.sandbox import Machine
from rollenv.sandbox.machine import why_not

ROOT = Path(__file__).parents[3]
TASK = (
    "Write an environment, /app/coins.py with the class Coins: count the coins in a row. `rollenv accept` must take it."
)

#: It pays an empty answer and seeds the process.
FIRST = r'''
import random

import rollenv
from rollenv.core.parsing import last_boxed


class Coins(rollenv.Env):
    """Count the coins in a row."""

    coins = ""

    def _reset(self, options):
        random.seed(self.randint(1000))
        self.coins = "".join(random.choice("o.") for _ in range(12))
        return f"How many o are in {self.coins}? Answer as in \\boxed{{0}}.", {}

    def _step(self, action):
        right = last_boxed(action) == str(self.coins.count("o"))
        return "Done.", 0.5 if action == "" else float(right), True, False, {"success": right}

    def render(self):
        return self.coins

    def sample_random_action(self):
        return f"\\boxed{{{self.action_rng.randrange(13)}}}"

    def oracle_action(self):
        return f"\\boxed{{{self.coins.count('o')}}}"

    def _get_state(self):
        return {"coins": self.coins}

    def _set_state(self, state):
        self.coins = state["coins"]
'''
MEND_PAY = "sed -i 's/0.5 if action == \"\" else float(right)/float(right)/' /app/coins.py"
MEND_SEED = (
    r"""sed -i '/random.seed/d; /^import random/d; s/random.choice("o.")/"o."[self.randint(2)]/' /app/coins.py"""
)
JUDGE = f"{sys.prefix}/bin/rollenv accept /app/coins.py:Coins; echo exit=$?"


class Author(Endpoint):
    """A scripted model: what it does next depends on what its last command printed."""

    def __init__(self):
        super().__init__([])
        self.verdicts: list[tuple[str, set[str]]] = []

    def answer(self, body):
        said = str(body["messages"][-1].get("content"))
        if "# Author an environment" in said:
            return self.call("I write it and judge it.", f"cat > /app/coins.py <<'END'\n{FIRST}\nEND\n{JUDGE}")
        if code := re.search(r"exit=(\d)", said):
            rules = set(re.findall(r"coins\.py:Coins, ([\w ]+): ", said))
            self.verdicts.append((code[1], rules))
            if code[1] == "0":
                return self.call("It is accepted.", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
            mend = MEND_PAY if "unearned" in rules else MEND_SEED if "global rng" in rules else "false"
            return self.call(f"Refused: {', '.join(sorted(rules))}. I mend one and judge again.", f"{mend}\n{JUDGE}")
        return self.call("I read the skill.", "cat /skills/author-environment/SKILL.md")

    def call(self, text, command):
        return text, ("bash", {"command": command})


@pytest.mark.smoke
@pytest.mark.skipif(why_not() is not None, reason=f"no machines: {why_not()}")
def test_an_agent_in_a_harness_mends_what_is_refused_until_it_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", os.path.expanduser("~/.cache/rollenv"))  # installations are large
    author, harness = Author(), find_harness("mini-swe-agent")
    harness = replace(harness, command=f"{harness.command} --config=environment.timeout=300")
    record = tmp_path / "calls.jsonl"
    command = [
        sys.executable,
        "-m",
        "rollenv",
        "gateway",
        "--upstream",
        f"http://{author.address}/v1",
        "--model",
        "policy",
    ]
    command += ["--port", "0", "--admin-port", "0", "--record", str(record)]
    subprocess.run([sys.executable, "-m", "rollenv", "skills", "--to", str(tmp_path / "skills")], check=True)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as gateway:
        try:
            said = ""
            while not (found := re.search(r"OPENAI_BASE_URL=http://([\d.:]+)(\S*)/v1 OPENAI_API_KEY=(\S+)", said)):
                said += gateway.stdout.readline()
            address, path, key = found.groups()
            extras = attached(harness, address)
            task = f"{TASK} Skills: /skills/author-environment/SKILL.md"
            url = f"http://127.0.0.1:{PORT}{path}"
            spec = program(harness, base_url=url, key=key, model="policy", instruction=task, seconds=500, max_turns=12)
            here = {path: path for path in (sys.prefix, sys.base_prefix, str(ROOT))}
            settings = extras.settings
            settings["shown"] = {**settings.get("shown", {}), **here, "/skills": str(tmp_path / "skills")}
            with Machine.create(**settings) as machine:
                ended = play(machine, spec)
                written = machine.files.read("/app/coins.py")
        except MissingExtra as error:
            pytest.skip(str(error))
        finally:
            gateway.terminate()
            author.close()
    assert ended["exit_code"] == 0, ended["output"]
    assert [code for code, _ in author.verdicts] == ["1", "1", "0"], json.dumps(author.asked[-1])[-3000:]
    assert {"unearned", "global rng"} <= author.verdicts[0][1]
    assert "unearned" not in author.verdicts[1][1]
    assert "global rng" in author.verdicts[1][1]
    assert "random.seed" not in written
    assert "I mend one" in record.read_text()  # what the gateway kept

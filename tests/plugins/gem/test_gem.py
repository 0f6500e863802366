"""Code written for GEM, unchanged: each script runs in a process in which `gem` is rollenv."""

# ruff: noqa: E501

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys

import pytest

from rollenv.plugins.gem import MODULES

PREFIX = "from rollenv.plugins import gem as compat\ncompat.install()\n"

SCRIPTS = {
    "own environment": """
import random
import gem
from gem import Env
from gem.envs.registration import register
from gem.utils.constants import TERMINAL_STATE
from gem.utils.parsing import extract_last_boxed_answer

class ReverseText(Env):
    def __init__(self, length=5, **_):
        super().__init__()
        self.length = length
    def reset(self, seed=None):
        super().reset(seed)
        self.text = "".join(chr(97 + int(self.np_random.integers(26))) for _ in range(self.length))
        return f"Reverse {self.text}", {}
    def step(self, action):
        right = extract_last_boxed_answer(action) == self.text[::-1]
        return TERMINAL_STATE, float(right), True, True, {}

register("custom:Reverse", ReverseText)
env = gem.make("custom:Reverse", length=8)
text, _ = env.reset(3)
assert env.reset(3)[0] == text and len(env.text) == 8
assert env.step("\\\\boxed{" + env.text[::-1] + "}")[1] == 1.0
""",
    "tools": """
import gem
from gem.tools.python_code_tool import PythonCodeTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper
from gem.wrappers.observation_wrapper import ObservationWrapper
from gem.envs.math_env import MathEnv
env = MathEnv(dataset=[{"problem": "What is 6 times 7?", "answer": "42"}])
env = ToolEnvWrapper(env, tools=[PythonCodeTool(timeout=5)], max_tool_uses=2)
env = ObservationWrapper(env, include_chat_template=False)
env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step("<python>print(6 * 7)</python>")
assert "42" in observation and not terminated and info["tool_use_counter"] == 1
assert env.step("\\\\boxed{42}")[1] == 1.0
""",
    "state": """
import gem
env = gem.make("math:GSM8K", dataset=[{"problem": "1 + 1?", "answer": "2"}], dataset_name="", question_key="problem", answer_key="answer")
env.reset(seed=1)
state = env.get_state()
twin = env.spawn(same_state=True)
assert twin.step("\\\\boxed{2}")[1] == 1.0
env.set_state(state)
assert env.step("\\\\boxed{2}")[1] == 1.0
""",
}


RUN_ALL = """
import json, sys, traceback
failed = {}
for name, script in json.load(sys.stdin).items():
    try:
        exec(script, {"__name__": name})
    except BaseException:
        failed[name] = traceback.format_exc()
print(json.dumps(failed), file=sys.stderr)
"""


@functools.cache
def failures() -> dict[str, str]:
    """What the scripts raise, all run in one process."""
    done = subprocess.run(
        [sys.executable, "-c", PREFIX + RUN_ALL], input=json.dumps(SCRIPTS), capture_output=True, text=True, timeout=120
    )
    return json.loads(done.stderr.strip().splitlines()[-1])


@pytest.mark.integration
@pytest.mark.parametrize("name", SCRIPTS)
def test_gem_code_runs_unchanged(name):
    assert name not in failures(), failures()[name]


def test_every_name_leads_somewhere():
    for names in MODULES.values():
        for where in names.values():
            module, _, attribute = where.partition(":")
            assert hasattr(importlib.import_module(module), attribute), where


def test_names_that_are_not_there_are_explained():
    script = (
        PREFIX
        + "import gem.core\ntry:\n    gem.core.Nothing\nexcept AttributeError as e:\n    print(e)\nimport gem.nothing"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "it has ActType, Env, EnvWrapper, ObsType" in done.stdout
    assert "ModuleNotFoundError" in done.stderr


def test_a_gem_that_was_imported_before_is_an_error():
    script = "import sys, types\nsys.modules['gem'] = types.ModuleType('gem')\n" + PREFIX
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "rollenv.plugins.gem.install()" in done.stderr

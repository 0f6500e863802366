"""The timeout that follows correct programs."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.code.env import CodeEnv
from rollenv.sandbox import InvalidArgument
from rollenv.sandbox.pool import AdaptiveTimeout

ROWS = [{"problem": "Add.", "tests": ["assert add(1, 2) == 3"]}]


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans())))
def test_it_is_the_papers_rule(history):
    rule = AdaptiveTimeout(1.5, 2, 30)
    for seconds, correct in history:
        rule.record("case", seconds, correct)
    anchors = [seconds for seconds, correct in history if correct]
    assert rule.timeout("case") == (min(max(1.5 * max(anchors), 2), 30) if anchors else 30)
    assert rule.timeout("another case") == 30


@pytest.mark.parametrize("settings", [{"factor": 0.5}, {"least": 0}, {"least": 5, "most": 2}])
def test_bad_settings(settings):
    with pytest.raises(InvalidArgument):
        AdaptiveTimeout(**settings)


@pytest.mark.slow
def test_environments_share_what_was_learned():
    rule = AdaptiveTimeout(most=300)
    env, other = CodeEnv(dataset=ROWS, timeout=rule), CodeEnv(dataset=ROWS, timeout=rule)
    env.reset(0)
    assert env.step("```python\ndef add(a, b): return a + b\n```")[1] == 1
    other.reset(0)
    start = time.monotonic()
    hanging = other.step("```python\nimport time\ndef add(a, b): time.sleep(999)\n```")
    assert hanging[1] == 0
    assert time.monotonic() - start < 150, "it was stopped after the two seconds at least, not the 300 at most"

"""A harness is a name, or any command."""

import pytest

from rollenv.agents.harness import PORT, attached, find_harness, program
from rollenv.core.errors import UsageError

TOLD = {"base_url": f"http://127.0.0.1:{PORT}/s/1", "key": "own", "model": "policy", "seconds": 60}


def test_any_command_is_a_harness():
    spec = program(find_harness("command:python3 agent.py --task '{instruction}' {}"), instruction="a b", **TOLD)
    assert spec["command"] == ["python3", "agent.py", "--task", "a b", "{}"]
    assert spec["stdin"] == ""
    assert program(find_harness("command:./agent"), instruction="a b", **TOLD)["stdin"] == "a b"
    assert list(attached(find_harness("command:./agent"), "127.0.0.1:1").shown) == ["/opt/harness/programs"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("p", "did you mean pi"), ("command:", "command:WORDS"), ("command:x {secret}", "secret"), ("command:'", "quot")],
)
def test_what_is_no_harness_is_refused_in_one_line(name, why):
    with pytest.raises(UsageError, match=why) as refused:
        program(find_harness(name), instruction="", **TOLD)
    assert "\n" not in str(refused.value)

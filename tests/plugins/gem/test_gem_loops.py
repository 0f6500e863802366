"""Training and evaluation loops written for GEM give the same numbers on GEM and on rollenv under its name."""

import pytest
from both import FOLDER, needs_gem, run_both

pytestmark = needs_gem

LOOPS = sorted(path.name for path in (FOLDER / "loops").glob("*.py"))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_gives_the_same_numbers(loop, tmp_path):
    by_gem, by_us = run_both(f"loops/{loop}", folder=tmp_path)
    assert by_us == by_gem
    assert by_gem, "something was measured"
    if loop == "reinforce.py":
        (_, _, first, _), (_, _, last, _) = by_us["curve"][0], by_us["curve"][-1]
        assert last > first + 0.2, "the policy learns"

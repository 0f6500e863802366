"""Episodes go on while servers are killed, stopped and replaced; benchmarks/server_failover.py plays many more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import sys
sys.path.insert(0, "benchmarks")
import server_failover as failover
play, episodes = getattr(failover, sys.argv[1]), 60
alone = play("", episodes)
finished, equal, moved, opened, replays, *_ = failover.measured(play, sys.argv[2], episodes, 0.5, alone)
assert (finished, equal) == (episodes, episodes), (finished, equal)
if sys.argv[2] == "restart":
    assert (moved, opened, replays) == (0, episodes, 0), (moved, opened, replays)
"""


@pytest.mark.integration
@pytest.mark.parametrize("harm", ["abuse", "restart"])
@pytest.mark.parametrize("client", ["rollouts", "environments"])
def test_no_episode_is_lost(client, harm):
    command = [sys.executable, "-c", CODE, client, harm]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]

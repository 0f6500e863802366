"""Random and mutated requests to every service, for a short while; benchmarks/server_fuzz.py does so for long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import sys
sys.path.insert(0, "benchmarks")
from server_fuzz import fuzzed
(kind, requests, found, tracebacks, steps, *_, alive), details = fuzzed(sys.argv[1], 20.0)
assert (found, tracebacks, alive) == (0, 0, "yes"), details
assert requests > 50 and steps > 10, (requests, steps)
"""


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["schemathesis", "mutations", "sockets"])
def test_the_server_holds(kind):
    if kind == "schemathesis" and not (ROOT / ".bench" / "schemathesis" / "bin" / "schemathesis").exists():
        pytest.skip("`make peers` puts schemathesis into .bench/schemathesis")
    done = subprocess.run([sys.executable, "-c", CODE, kind], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]

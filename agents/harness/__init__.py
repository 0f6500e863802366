"""Third-party agents, run unchanged inside the machine of an episode."""

from rollenv.agents.harness.install import install
from rollenv.agents.harness.records import Harness, find_harness, harnesses
from rollenv.agents.harness.run import PORT, attached, play, program

__all__ = ["PORT", "Harness", "attached", "find_harness", "harnesses", "install", "play", "program"]

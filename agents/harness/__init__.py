"""Third-party agents, run unchanged inside the machine of an episode."""

from rollenv.agents.harness.install import install
from rollenv.agents.harness.records import HARNESSES, Harness, find_harness
from rollenv.agents.harness.run import PORT, attached, play, program

__all__ = ["HARNESSES", "PORT", "Harness", "attached", "find_harness", "install", "play", "program"]

"""Harbor's Terminus 2."""

from rollenv.plugins.harnesses.framework import framework

HARNESS = framework(
    "terminus-2", "0.26.0", "chat", 800, "harbor==0.26.0", python="3.12", transcript="{home}/trajectory*.json"
)

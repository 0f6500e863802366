"""OpenAI's Agents SDK."""

from rollenv.plugins.harnesses.framework import framework

HARNESS = framework("openai-agents", "0.24.0", "responses", 150, "openai-agents==0.24.0")

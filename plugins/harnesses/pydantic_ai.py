"""pydantic-ai."""

from rollenv.plugins.harnesses.framework import framework

HARNESS = framework("pydantic-ai", "2.68.0", "chat", 150, "pydantic-ai-slim[openai]==2.68.0")

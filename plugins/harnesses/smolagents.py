"""smolagents."""

from rollenv.plugins.harnesses.framework import framework

HARNESS = framework("smolagents", "1.26.0", "chat", 2000, "smolagents[openai]==1.26.0")

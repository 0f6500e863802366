"""LangGraph's deep agents."""

from rollenv.plugins.harnesses.framework import framework

HARNESS = framework("deepagents", "0.7.32", "chat", 3000, "deepagents==0.7.32", "langchain-openai==1.7.4")

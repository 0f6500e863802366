"""Agents: random, oracle, language models."""

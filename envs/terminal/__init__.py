"""Shared parts of terminal tasks: an environment with a shell, isolated grading, task folders."""

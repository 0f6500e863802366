"""Rewards of ``rewards.domains`` for single data sets: entry points ``rollenv.rewards``."""

"""Engines behind servers that play in training: entry points ``rollenv.players``."""

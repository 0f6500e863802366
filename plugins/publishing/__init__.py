"""Indexes of environment packages, which pip reads too: ``rollenv publish`` and ``rollenv install``."""

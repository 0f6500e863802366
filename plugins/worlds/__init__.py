"""Worlds of text, in which an agent acts on things: each plays tasks that others published, and tasks of its own."""

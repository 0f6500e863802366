"""Worlds of text, in which an agent acts on things: tasks that others published, and tasks of their own."""

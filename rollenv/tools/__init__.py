"""Things that an agent may call."""

"""Running code that nobody has read."""

"""Protocols of other projects; each is a module with ``routes(server)``."""

#: Their names, for the command line.
PROTOCOLS = ("gem", "openenv", "rock", "e2b", "fusion", "mcp", "ors", "page")

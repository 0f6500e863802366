"""Wire protocols of other projects; each is a module with ``routes(server)``."""

#: Names of the protocols, for the command line.
PROTOCOLS = ("gem", "openenv", "rock", "e2b", "fusion", "mcp", "ors", "page")

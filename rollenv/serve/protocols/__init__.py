"""Wire protocols of other projects; each is a module with ``routes(server)``."""

#: Names of the protocols, for the command line.
PROTOCOLS = ("gem", "openenv", "rock", "e2b", "fusion", "mcp", "ors", "page")

#: What opens sessions, by the first part of its paths; the paths of ``ors`` begin with an environment's id.
_SESSIONS = {
    "native": "rollenv",
    "apis": "gem",
    "openenv": "openenv",
    "mcp": "mcp",
    "page": "page",
    "readyz": "readiness check",
}


def protocol_of(path: str) -> str:
    """Return the name of the protocol that opened a session, from the path of the request."""
    return _SESSIONS.get(path.strip("/").split("/")[0], "ors") if path else ""

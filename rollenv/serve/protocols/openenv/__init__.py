"""OpenEnv: ``GenericEnvClient(base_url="http://HOST:PORT/openenv/ENV_ID")``, and ``MCPToolClient`` of the same address.

An action is ``{"action": TEXT}``. An observation has ``text``, ``terminated``, ``truncated`` and ``info``.
"""

from rollenv.serve.protocols.openenv.routes import routes

__all__ = ["routes"]

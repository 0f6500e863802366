"""E2B: ``Sandbox.create()`` with both ``E2B_API_URL`` and ``E2B_SANDBOX_URL`` set to ``http://HOST:PORT/e2b``.

``E2B_API_KEY`` is a token of the server, or any text if the server has no tokens. A client's requests to its sandbox
carry a key of that sandbox, which it gets when it creates the sandbox or connects to it.
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from rollenv.plugins.protocols.e2b import control, files, interpreter, ports, processes
from rollenv.plugins.protocols.e2b.service import E2BService
from rollenv.serve.server import EnvServer


def routes(server: EnvServer) -> list[BaseRoute]:
    """Routes of sandboxes, code, files and processes."""
    service = E2BService(server)
    server.hosts.append(ports.PortProxy(service))
    return [route for part in (control, interpreter, files, processes) for route in part.routes(service)]

"""E2B: ``Sandbox.create()`` with both ``E2B_API_URL`` and ``E2B_SANDBOX_URL`` set to ``http://HOST:PORT/e2b``.

``E2B_API_KEY`` is a token of the server; without tokens any text will do. What a client asks of its sandbox carries a
key of that sandbox, which it got when it made it or connected to it.
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from rollenv.serve.protocols.e2b.base import E2BService
from rollenv.serve.protocols.e2b.contents import routes as contents
from rollenv.serve.protocols.e2b.control import routes as control
from rollenv.serve.protocols.e2b.filesystem import routes as filesystem
from rollenv.serve.protocols.e2b.interpreter import routes as interpreter
from rollenv.serve.protocols.e2b.processes import routes as processes
from rollenv.serve.server import EnvServer


def routes(server: EnvServer) -> list[BaseRoute]:
    """Sandboxes, code, files and processes."""
    service = E2BService(server)
    parts = (control, interpreter, contents, filesystem, processes)
    return [route for part in parts for route in part(service)]

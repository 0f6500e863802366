"""A connection to a server in the sandbox, between this process's standard streams; with code's own rights."""

from __future__ import annotations

import os
import select
import socket
from typing import Any

from rollenv.sandbox.inside.protocol import Connect
from rollenv.sandbox.inside.report import write_all


def connect(request: Connect) -> None:
    """Carry bytes until the server ends the connection.

    Raises:
        OSError: if nothing listens on the port.
    """
    with socket.socket() as server:
        server.connect(("127.0.0.1", request.port))  # nothing that has to be imported, which a machine cannot
        sources: list[Any] = [0, server]
        while server in sources:
            for source in select.select(sources, [], [])[0]:
                if source is server:
                    data = server.recv(1 << 16)
                    if not data:
                        return
                    write_all(1, data)
                elif data := os.read(0, 1 << 16):
                    server.sendall(data)
                else:
                    sources.remove(0)
                    server.shutdown(socket.SHUT_WR)

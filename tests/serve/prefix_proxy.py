"""A proxy that serves a server below a path, as nginx does with ``location /rollenv/ { proxy_pass http://HOST/; }``."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def below(prefix: bytes, port: int) -> Iterator[int]:
    """Serve the server of a port below a prefix such as ``b"/rollenv"``; yields the proxy's port."""

    class Proxy(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as server:
                threading.Thread(target=self.copy_back, args=(server,), daemon=True).start()
                while data := self.request.recv(1 << 16):
                    if data.startswith((b"GET ", b"POST ")):  # requests come one after another
                        line, rest = data.split(b"\r\n", 1)
                        method, path, version = line.split()
                        if not path.startswith(prefix + b"/"):
                            self.request.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                            continue
                        data = b" ".join([method, path.removeprefix(prefix), version]) + b"\r\n" + rest
                    server.sendall(data)

        def copy_back(self, server: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := server.recv(1 << 16):
                    self.request.sendall(data)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True).start()
        yield proxy.server_address[1]
        proxy.shutdown()

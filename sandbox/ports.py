"""Servers in a sandbox, reached from this machine. The sandbox still has no network: nothing in it can begin a
connection to the outside, and each that comes in is carried by a process in the sandbox.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from rollenv.core import UsageError
from rollenv.sandbox.connections import ConnectionServer
from rollenv.sandbox.errors import SandboxError
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.streams import Stream

if TYPE_CHECKING:
    from rollenv.sandbox.sandbox import Sandbox

#: Connections to one port at a time; each is a process in the sandbox.
MAX_CONNECTIONS = 16


class Forward(ConnectionServer):
    """A port of this machine's loopback that leads to a port in the sandbox. Everybody on this machine can use it."""

    def __init__(self, sandbox: Sandbox, port: int):
        self.port, self._sandbox = port, sandbox
        self._streams: set[Stream] = set()
        listening = socket.create_server(("127.0.0.1", 0))
        self.address: str = f"127.0.0.1:{listening.getsockname()[1]}"
        super().__init__(listening, MAX_CONNECTIONS)

    def carry(self, client: socket.socket) -> None:
        request = self._sandbox.files._limited(protocol.Connect(port=self.port), 1 << 50, seconds=0)
        request.quiet, request.last = True, False
        with contextlib.suppress(SandboxError):  # the client notices: its connection is closed
            stream = Stream(self._sandbox._worker, request)
            self._streams.add(stream)
            sender = threading.Thread(target=self._send, args=(client, stream), name="sandbox-sender", daemon=True)
            sender.start()
            try:
                for name, data in stream.pieces():
                    if name == "stdout":
                        client.sendall(data)
            finally:
                stream.close()
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
                self._streams.discard(stream)
                sender.join()

    @staticmethod
    def _send(client: socket.socket, stream: Stream) -> None:
        with contextlib.suppress(OSError, SandboxError):
            while data := client.recv(1 << 16):
                stream.send(data)
            stream.send(b"", last=True)

    def close(self) -> None:
        """Refuse new connections, and end the existing ones."""
        super().close()
        for stream in list(self._streams):
            stream.close()

    def __enter__(self) -> Forward:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Ports:
    """The ports of a sandbox."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox = sandbox
        self._forwards: dict[int, Forward] = {}
        self._lock = threading.Lock()

    def forward(self, port: int) -> Forward:
        """Make a port in the sandbox reachable from this machine until the sandbox ends; one forward for each port.

        Args:
            port: that a server listens at in the sandbox, at once or later, on IPv4's loopback or every address.
        """
        if not 0 < port < 1 << 16:
            raise UsageError(f"a port must be from 1 to 65535, got {port!r}")
        with self._lock:
            if port not in self._forwards:
                self._forwards[port] = Forward(self._sandbox, port)
            return self._forwards[port]

    def close(self) -> None:
        """End all forwards."""
        with self._lock:
            for forward in self._forwards.values():
                forward.close()
            self._forwards.clear()

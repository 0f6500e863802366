"""Sockets whose connections are carried to somewhere else, each by threads of its own."""

from __future__ import annotations

import contextlib
import socket
import threading


class ConnectionServer:
    """Accepts connections until it is closed; a subclass carries them.

    Args:
        listening: a socket that listens; it is closed at the end.
        most: connections at a time; others wait.
    """

    def __init__(self, listening: socket.socket, most: int):
        self._listening = listening
        self._places = threading.BoundedSemaphore(most)
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="sandbox-port", daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                client, _ = self._listening.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=self._serve, args=(client,), name="sandbox-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        try:
            with client, contextlib.suppress(OSError):  # one side has hung up
                self.carry(client)
        finally:
            self._open.discard(client)
            self._places.release()

    def carry(self, client: socket.socket) -> None:
        """Serve a connection until it ends.

        Raises:
            OSError: one side has hung up.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Refuse new connections, and end the existing ones."""
        for connection in (self._listening, *list(self._open)):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._listening.close()

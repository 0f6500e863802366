"""Connections into a sandbox, to servers on its ports, and out of a machine, to allowed hosts only.

A machine has only a loopback network. The proxy is a socket that listens there and from which this process, which has a
network, accepts. Programs that use HTTPS_PROXY and HTTP_PROXY, such as pip, curl, git and npm, can reach it. A process
in the sandbox relays connections to its ports; no program in it can open connections to the outside.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from rollenv.sandbox.errors import InvalidArgument, SandboxError
from rollenv.sandbox.filesystem import Files
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.inside.machine import HOSTNAME
from rollenv.sandbox.worker import RequestStream

#: Maximum concurrent connections of a machine.
MAX_CONNECTIONS = 64


class ConnectionServer:
    """Accepts connections until it is closed; a subclass relays them.

    Args:
        most: maximum concurrent connections; others wait.
    """

    def __init__(self, listening: socket.socket, most: int = MAX_CONNECTIONS):
        self._listening = listening
        self._slots = threading.BoundedSemaphore(most)
        self._open: set[socket.socket] = set()
        self._streams: set[RequestStream] = set()
        threading.Thread(target=self._accept, name="sandbox-port", daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._slots.acquire()
            try:
                client, _ = self._listening.accept()
            except OSError:  # the socket was closed
                return
            threading.Thread(target=self._serve, args=(client,), name="sandbox-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        try:
            with client, contextlib.suppress(OSError):  # one side has disconnected
                self.carry(client)
        finally:
            self._open.discard(client)
            self._slots.release()

    def carry(self, client: socket.socket) -> None:
        """Serve a connection until it ends."""
        raise NotImplementedError

    def close(self) -> None:
        """Refuse new connections and end the existing ones."""
        for connection in (self._listening, *list(self._open)):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _relay_inside(
        self, files: Files, client: socket.socket, port: int, host: str = "127.0.0.1", first: bytes = b""
    ) -> None:
        """Relay a connection, which began with ``first``, to a server in the sandbox.

        Raises:
            SandboxError: there is no such server, or the sandbox ended before the server sent anything.
        """
        request = files._limited(protocol.Connect(port=port, host=host), 1 << 50, seconds=0)
        request.quiet, request.last = True, False
        stream = RequestStream(files._worker, request)
        self._streams.add(stream)
        sender = threading.Thread(target=_send, args=(client, stream, first), name="sandbox-sender", daemon=True)
        sender.start()
        answered = False
        try:
            for name, data in stream.pieces():
                if name == "stdout":
                    client.sendall(data)
                    answered = True
        except SandboxError:
            if not answered:
                raise
        finally:
            stream.close()
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RD)
            self._streams.discard(stream)
            sender.join()


def _send(client: socket.socket, stream: RequestStream, first: bytes) -> None:
    with contextlib.suppress(OSError, SandboxError):
        while first or (first := client.recv(1 << 16)):
            stream.send(first)
            first = b""
        stream.send(b"", last=True)


logger = logging.getLogger(__name__)

#: Ports of an entry without a port.
PORTS = (80, 443)
#: Maximum bytes of a request's head; timeout of its arrival and of connecting; timeout of a silent connection.
_HEAD, _PATIENCE, _SILENCE = 1 << 16, 30.0, 600.0
_NAME = re.compile(r"(?=.{1,253}$)(\*|(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*)")
#: The first line of a request, and a header line. Anything that a host might parse differently is refused.
_REQUEST = re.compile(rb"([!-~]+) ([!-~]+) (HTTP/1\.[01])")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\0\r\n]*")
#: IPv6 networks that embed an IPv4 address, with its offset in bits (RFC 4291, 3056, 6052, 8215).
_EMBEDDED = {
    ipaddress.IPv6Network("::/96"): 96,
    ipaddress.IPv6Network("::ffff:0:0:0/96"): 96,
    ipaddress.IPv6Network("2002::/16"): 16,
    ipaddress.IPv6Network("64:ff9b::/96"): 96,
    ipaddress.IPv6Network("64:ff9b:1::/48"): 96,
}
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
#: Header lines for the proxy only.
_OWN = (b"proxy-", b"connection:", b"keep-alive:", b"host:")


class HostRefused(Exception):
    """A refused request, with the status and the reason."""

    def __init__(self, status: str, why: str):
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class _Entry:
    host: str
    port: int | None

    def allows(self, host: str, port: int) -> bool:
        named = self.host in ("*", host) or (self.host.startswith("*.") and host.endswith(self.host[1:]))
        return named and (port == self.port if self.port else port in PORTS)


class AllowList:
    """Allowed hosts.

    An entry is a name (``pypi.org``), all names below one (``*.debian.org``), ``*`` for every name, an address or a
    range of addresses (``10.0.0.0/8``); with ``:PORT`` for one port, else 80 and 443. A name allows only public
    addresses, unless the address is in a range on the list, so that no name can resolve to this host or its private
    network.
    """

    def __init__(self, hosts: Sequence[str]):
        if isinstance(hosts, str):
            raise InvalidArgument(f"network={hosts!r}: it takes a list of hosts, such as [{hosts!r}]")
        self.hosts = tuple(hosts)
        self.names: list[_Entry] = []
        self.ranges: list[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, int | None]] = []
        for entry in self.hosts:
            host, port = _with_port(entry)
            try:
                self.ranges.append((ipaddress.ip_network(host), port))
            except ValueError:
                if not _NAME.fullmatch(host.lower()):
                    raise InvalidArgument(
                        f"network entry {entry!r} is not a host name, *.NAME, an address or a range of addresses"
                    ) from None
                self.names.append(_Entry(host.lower(), port))

    def addresses(self, host: str, port: int) -> list[str]:
        """Return the allowed addresses of a host."""
        literal = _address(host)
        if literal is None and not any(entry.allows(host.lower().rstrip("."), port) for entry in self.names):
            raise HostRefused("403 Forbidden", f"{host}:{port} is not on this machine's list: {', '.join(self.hosts)}")
        addresses = [host]
        if literal is None:
            try:
                answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                raise HostRefused("502 Bad Gateway", f"{host} has no address: {error}") from error
            addresses = list(dict.fromkeys(str(each[4][0]) for each in answers))
        allowed = [address for address in addresses if self._reachable(address, port, literal is None)]
        if not allowed:
            text = f"{host}:{port} is at {', '.join(addresses)}, which this machine may not reach"
            raise HostRefused("403 Forbidden", text)
        return allowed

    def _reachable(self, address: str, port: int, named: bool) -> bool:
        where = _address(address)
        if where is None:
            return False
        covering = [own for network, own in self.ranges if where in network]
        if named and (covering or _is_public(where)):
            return True
        return any(port == own if own else port in PORTS for own in covering)


def _with_port(entry: str) -> tuple[str, int | None]:
    if not isinstance(entry, str):
        raise InvalidArgument(f"network entry {entry!r} is not a string")
    host, colon, port = entry.rpartition(":")
    if not colon or _address(entry) or "/" in entry:
        return entry.strip("[]"), None
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise InvalidArgument(f"network entry {entry!r}: a port is a number from 1 to 65535")
    return host.strip("[]"), int(port)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address; an IPv4-mapped IPv6 address becomes an IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address, and any IPv4 address embedded in it, is public."""
    if not address.is_global or address.is_multicast or (address.version == 6 and address.is_site_local):
        return False
    if address.version == 4:
        return True
    inner = (address.packed[at // 8 : at // 8 + 4] for network, at in _EMBEDDED.items() if address in network)
    return all(_is_public(ipaddress.IPv4Address(each)) for each in inner)


class _Outbound(ConnectionServer):
    """Relays connections from a listening socket in a machine to the outside."""

    def _relay(self, client: socket.socket, server: socket.socket, first: bytes = b"") -> None:
        """Send ``first`` to the server, then relay bytes in both directions until both end or time out."""
        with server:
            self._open.add(server)
            try:
                server.sendall(first)
                for side in (client, server):
                    side.settimeout(_SILENCE)
                back = threading.Thread(target=_copy, args=(server, client), name="sandbox-way-back", daemon=True)
                back.start()
                _copy(client, server)
                back.join()
            finally:
                self._open.discard(server)


class Tunnel(_Outbound):
    """Forwards a port of the machine to an address of this host, ``HOST:PORT``."""

    def __init__(self, listening: socket.socket, address: str):
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        super().__init__(listening)

    def carry(self, client: socket.socket) -> None:
        self._relay(client, socket.create_connection(self._address, _PATIENCE))


class NetworkGateway(_Outbound):
    """An HTTP proxy.

    Requests to the machine's own addresses and name, from programs that use the proxy for them too, reach its servers.

    Attributes:
        files: of the machine, as soon as it has started.
    """

    def __init__(self, listening: socket.socket, allowed: AllowList):
        self.allowed = allowed
        self.files: Files | None = None
        super().__init__(listening)

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for programs of the machine."""
        address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        names = {"http_proxy": address, "https_proxy": address, "no_proxy": "localhost,127.0.0.1"}
        return names | {name.upper(): value for name, value in names.items()}

    def carry(self, client: socket.socket) -> None:
        client.settimeout(_PATIENCE)
        try:
            # Read the head of a request, and perhaps the start of its body.
            data = b""
            while b"\r\n\r\n" not in data:
                if len(data) > _HEAD:
                    raise HostRefused("431 Request Header Fields Too Large", f"a request's head is above {_HEAD} bytes")
                more = client.recv(1 << 14)
                if not more:
                    raise HostRefused("400 Bad Request", "the request has no end")
                data += more
            head, _, rest = data.partition(b"\r\n\r\n")
            host, port, first = _parse_request(head)
            try:
                server = self._connected(host, port)
            except HostRefused:
                if not (own := _own_address(host)) or self.files is None:
                    raise
                self._enter(self.files, client, own, port, first, rest)
                return
        except HostRefused as refused:
            logger.info("a machine was refused: %s", refused)
            text = f"{refused}\n".encode()
            answer = f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
            client.sendall(answer.encode() + b"Connection: close\r\n\r\n" + text)
            return
        if not first:
            client.sendall(_ESTABLISHED)
        self._relay(client, server, first + rest)

    def _enter(self, files: Files, client: socket.socket, host: str, port: int, first: bytes, rest: bytes) -> None:
        client.settimeout(_SILENCE)
        if not first:
            client.sendall(_ESTABLISHED)
        try:
            self._relay_inside(files, client, port, host, first + rest)
        except SandboxError as error:
            if first:
                why = str(error).rstrip(": ")
                raise HostRefused("502 Bad Gateway", f"{host}:{port} of this machine: {why}") from error

    def _connected(self, host: str, port: int) -> socket.socket:
        why: OSError | None = None
        for address in self.allowed.addresses(host, port):
            try:
                return socket.create_connection((address, port), _PATIENCE)
            except OSError as error:
                why = error
        raise HostRefused("502 Bad Gateway", f"{host}:{port} could not be reached: {why}")


def _own_address(host: str) -> str | None:
    """Return the address of a host that is the machine itself; None for others."""
    if host.lower().rstrip(".") in ("localhost", HOSTNAME):
        return "127.0.0.1"
    address = _address(host)
    return str(address) if address is not None and (address.is_loopback or address.is_unspecified) else None


def _parse_request(head: bytes) -> tuple[str, int, bytes]:
    """Parse a request; return host, port and the head for the host, which is empty for CONNECT."""
    first, *lines = head.split(b"\r\n")
    words = _REQUEST.fullmatch(first)
    if words is None:
        raise HostRefused("400 Bad Request", f"{first[:200]!r} is not a request")
    if odd := [line for line in lines if not _HEADER.fullmatch(line)]:
        raise HostRefused("400 Bad Request", f"{odd[0][:200]!r} is not a header line")
    method, target, version = (word.decode("ascii") for word in words.groups())
    try:
        split = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = split.hostname, split.port
    except ValueError as error:
        raise HostRefused("400 Bad Request", f"{first[:200]!r} is not a request: {error}") from error
    if not host or (method == "CONNECT" and not port) or (method != "CONNECT" and split.scheme != "http"):
        raise HostRefused(
            "400 Bad Request", f"{first[:200]!r} is not a request to a proxy: http://HOST/ or CONNECT HOST:PORT"
        )
    if method == "CONNECT":
        return host, port or 443, b""
    path = (split.path or "/") + (f"?{split.query}" if split.query else "")
    kept = [line for line in lines if not line.lower().startswith(_OWN)]
    named = f"Host: {split.netloc.rpartition('@')[2]}".encode()
    head = b"\r\n".join([f"{method} {path} {version}".encode(), named, *kept, b"Connection: close", b"", b""])
    return host, port or 80, head


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


#: Maximum concurrent connections to one port; each needs a process in the sandbox.
_TO_A_PORT = 16


class Forward(ConnectionServer):
    """A port of this machine's loopback, open to all its users, that is forwarded to a port in the sandbox."""

    def __init__(self, files: Files, port: int):
        self.port, self._files = port, files
        listening = socket.create_server(("127.0.0.1", 0))
        self.address: str = f"127.0.0.1:{listening.getsockname()[1]}"
        super().__init__(listening, _TO_A_PORT)

    def carry(self, client: socket.socket) -> None:
        with contextlib.suppress(SandboxError):  # the client's connection is closed
            self._relay_inside(self._files, client, self.port)

    def close(self) -> None:
        """Refuse new connections and end the existing ones."""
        super().close()
        for stream in list(self._streams):
            stream.close()

    def __enter__(self) -> Forward:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Ports:
    """The ports of a sandbox."""

    def __init__(self, files: Files):
        self._files = files
        self._forwards: dict[int, Forward] = {}
        self._lock = threading.Lock()

    def forward(self, port: int) -> Forward:
        """Make a port in the sandbox reachable from this machine until the sandbox ends; repeated calls share it.

        Args:
            port: port where a server in the sandbox listens, now or later, on IPv4's loopback or all addresses.
        """
        if not 0 < port < 1 << 16:
            raise InvalidArgument(f"a port must be from 1 to 65535, got {port!r}")
        with self._lock:
            if port not in self._forwards:
                self._forwards[port] = Forward(self._files, port)
            return self._forwards[port]

    def close(self) -> None:
        """End all forwards."""
        with self._lock:
            for forward in self._forwards.values():
                forward.close()
            self._forwards.clear()

"""Memory that waits in sockets of this network namespace. See sock_diag(7), unix(7) and proc_net(5)."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable

_NETLINK_SOCK_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_SHOW_QUEUES, _QUEUES = 0x10, 4
#: Bytes of the machine's memory for each byte that waits in an internet socket, at most.
_OVERHEAD = 2


def waiting(read: Callable[[str], bytes]) -> int:
    """Bytes that wait to be read or sent; 0 where the machine does not tell.

    Args:
        read: reads a file of /proc.
    """
    lines = [line.split() for line in read("self/net/protocols").splitlines()]
    count = sum(int(line[2]) for line in lines if len(line) > 2 and line[0].startswith((b"UNIX", b"TCP", b"UDP")))
    if count <= 4:  # inspecting each is expensive, and a few hold little
        return 0
    total = 0
    with contextlib.suppress(OSError, struct.error):
        total += _in_unix()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in read(f"self/net/{name}").splitlines()[1:]:
                sent, _, received = line.split()[4].partition(b":")
                total += _OVERHEAD * (int(sent, 16) + int(received, 16))
    return total


def _in_unix() -> int:
    total = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as asking:
        request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_QUEUES, 0, 0)
        asking.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            data = asking.recv(1 << 18)
            while len(data) >= 16:
                size, kind = struct.unpack_from("=IH", data)
                if kind in (_DONE, _ERROR) or size < 16:
                    return total
                total += _sent(data[32:size])
                data = data[(size + 3) & ~3 :]


def _sent(attributes: bytes) -> int:
    """What a socket has sent and no one has read yet, with its overhead."""
    while len(attributes) >= 4:
        size, kind = struct.unpack_from("=HH", attributes)
        if kind == _QUEUES:
            return int(struct.unpack_from("=II", attributes, 4)[1])
        attributes = attributes[max(4, (size + 3) & ~3) :]
    return 0

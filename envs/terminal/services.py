"""Servers that an agent has left running, for tests that talk to servers.

Tests run on a machine of their own, so that nothing an agent left running can touch a reward. Where they name the
loopback, the agent's machine goes on meanwhile, and its TCP ports are reached at the same ports of the grading machine.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rollenv.sandbox import Machine, NotFound

_LOOPBACK = re.compile(rb"localhost|127\.0\.0\.1|0\.0\.0\.0|::1")
#: Ports that are carried, of the lowest numbers, and bytes of a test file that are looked at.
_MOST, _LOOKED_AT = 32, 1 << 20
_SECONDS = 3.0
#: A socket that listens (0A) at an address that connections to 127.0.0.1 reach, in /proc/net/tcp and tcp6.
_SOCKET = re.compile(
    r"^ *\d+: (?:00000000|0100007F|0{32}|0{16}FFFF00000100007F):([0-9A-F]{4}) [0-9A-F]+:0000 0A ", re.M
)


def talk_to_servers(tests: Iterable[Path]) -> bool:
    """Return whether files of tests name the loopback."""
    for path in tests:
        with path.open("rb") as file:
            if _LOOPBACK.search(file.read(_LOOKED_AT)):
                return True
    return False


def listening(machine: Machine) -> list[int]:
    """The ports of the machine's loopback at which something listens, as its own programs tell."""
    try:
        said = machine.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], user="0", cwd="/", timeout=_SECONDS).stdout
    except NotFound:  # an agent that removes programs has to start again
        return []
    return sorted({int(port, 16) for port in _SOCKET.findall(said)} - {0})[:_MOST]


@contextlib.contextmanager
def carried(machine: Machine, ports: list[int]) -> Iterator[dict[int, str]]:
    """Ports for ``Machine.create(tunnels=...)``.

    Args:
        machine: that has the servers; it has to go on meanwhile.
    """
    try:
        yield {port: machine.ports.forward(port).address for port in ports}
    finally:
        machine.ports.close()

"""Monitors the processes of a sandbox: memory in use, processor time, priorities.

If a control group counts memory, Linux enforces the limit and this only detects kills. Otherwise this adds up private
memory, shared anonymous mappings (by inode, each once, whole), files in the scratch folder, and data in sockets, as
often as the limit could be exceeded in between. Memfd files cannot be counted, so the seccomp filter refuses them then.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Callable, Iterable

#: Nice value of long-running work: about a third of the default share.
YIELD_TO = 5
#: Nice value of processes that use half of the limit together, so that the next check is not late.
_NEAR_LIMIT = 10
#: Upper bound of the bytes per second that code can allocate.
_FILL_RATE = 6e9
#: Part of the limit that counts as exceeded, because checks are periodic.
_FULL = 0.96
_NETLINK_SOCK_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_SHOW_QUEUES, _QUEUES = 0x10, 4
#: Maximum bytes of kernel memory for each byte of data in an internet socket.
_OVERHEAD = 2
_PAGE = resource.getpagesize()
_CORES = sorted(os.sched_getaffinity(0))
_TICKS = os.sysconf("SC_CLK_TCK")


class ResourceMonitor:
    """Memory and processor time of the processes of a sandbox.

    Args:
        proc: descriptor of a /proc that shows the processes, or None.
        tree: whether that /proc shows the whole host, so that the sandbox's processes must be searched for.
        oom: descriptor of the control group's file that counts kills for lack of memory, or None.
        limit: maximum bytes in use.
        counts: whether to add up memory if no control group does.
    """

    def __init__(self, proc: int | None, tree: bool, oom: int | None, limit: int, counts: bool = True):
        self.proc, self.tree, self.oom, self.limit = proc, tree, oom, int(limit * _FULL)
        self.counts = counts and oom is None and proc is not None
        self._kills = self._oom_kills()
        self.own: set[int] = set()
        self._yielding: set[str] = set()
        self.share: int | None = None
        self.shares: list[str] = []
        self._low = self._pinned = False

    def killed(self) -> bool:
        """Return whether Linux has killed a process for lack of memory since the last call."""
        before, self._kills = self._kills, self._oom_kills()
        return self._kills > before

    def _oom_kills(self) -> int:
        if self.oom is None:
            return 0
        for line in os.pread(self.oom, 4096, 0).decode().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    # -- memory ------------------------------------------------------------------------------------------------------

    def used(self, scratches: Iterable[int], exactly: bool = False) -> int:
        """Return the bytes in use by all processes that run code, or an upper bound that is within the limit."""
        kept = 0
        for fd in scratches:
            info = os.fstatvfs(fd)
            kept += (info.f_blocks - info.f_bfree) * info.f_frsize
        with contextlib.suppress(OSError, ValueError):
            kept += bytes_in_sockets(self._read)
        pids = self.pids()
        pages = [self._statm(pid) for pid in pids]
        total = kept + sum(size for size, _ in pages)
        if total <= self.limit and not exactly:
            return total  # within the limit even if all address space were used
        private = sum(private for _, private in pages)
        if kept + private > self.limit / 2:
            self._raise_nice(pids, _NEAR_LIMIT)
        shared = self._shared_mappings(pids)
        if kept + shared + private > self.limit:  # pages shared by forks were counted repeatedly; count them precisely
            private = sum(map(self._proportional, pids))
        return kept + shared + private

    def patience(self, used: int) -> float:
        """Return seconds within which the limit cannot be reached."""
        return min(max((self.limit - used) / _FILL_RATE, 0.001), 0.25)

    def _statm(self, pid: str) -> tuple[int, int]:
        """Return the address space and the private memory of a process, in bytes."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = self._read(f"{pid}/statm").split()
            return int(fields[0]) * _PAGE, (int(fields[1]) - int(fields[2])) * _PAGE
        return 0, 0

    def _proportional(self, pid: str) -> int:
        """Return private memory, counting a page of n processes as an n-th."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._read(f"{pid}/smaps_rollup").splitlines():
                if line.startswith(b"Pss_Anon:"):
                    return int(line.split()[1]) << 10
        return self._statm(pid)[1]

    def _shared_mappings(self, pids: Iterable[str]) -> int:
        """Return the size of all shared anonymous mappings, including untouched parts."""
        sizes: dict[bytes, int] = {}
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                for line in self._read(f"{pid}/maps").splitlines():
                    fields = line.split(None, 5)
                    if len(fields) < 6 or not fields[5].startswith((b"/dev/zero", b"/memfd:", b"/SYSV")):
                        continue
                    start, _, end = fields[0].partition(b"-")
                    size = int(fields[2], 16) + int(end, 16) - int(start, 16)
                    sizes[fields[4]] = max(size, sizes.get(fields[4], 0))
        return sum(sizes.values())

    # -- processor time ----------------------------------------------------------------------------------------------

    def cpu_seconds(self) -> float:
        """Return the processor time of all processes and of children that they waited for."""
        ticks = 0
        for pid in [*self.pids(), *map(str, self.own)]:
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = self._read(f"{pid}/stat").rpartition(b")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / _TICKS

    def lower_priority(self) -> None:
        """Lower the sandbox's share, or the priority of its processes and sessions, in favour of others' short runs."""
        if self.share is not None:
            if not self._low:
                os.pwrite(self.share, self.shares[1].encode(), 0)
            self._low = True
            return
        pids = self.pids()
        for pid in pids:
            if pid not in self._yielding:
                self._raise_nice([pid], YIELD_TO)
                with contextlib.suppress(OSError):  # Linux limits the rate of these changes
                    fd = os.open(f"{pid}/autogroup", os.O_WRONLY, dir_fd=self.proc)
                    try:
                        os.write(fd, str(YIELD_TO).encode())  # sched(7)
                        self._yielding.add(pid)
                    finally:
                        os.close(fd)
        if self._pinned or len({self._session(pid) for pid in pids}) > 2 * len(_CORES):
            self._pinned = True
            self._pin(pids, _CORES[len(_CORES) // 2 :])

    def _raise_nice(self, pids: Iterable[str], nice: int) -> None:
        if self.tree:
            return
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                if os.getpriority(os.PRIO_PROCESS, int(pid)) < nice:
                    os.setpriority(os.PRIO_PROCESS, int(pid), nice)

    def _session(self, pid: str) -> bytes:
        with contextlib.suppress(OSError, IndexError):
            return self._read(f"{pid}/stat").rpartition(b")")[2].split()[3]
        return b""

    def _pin(self, pids: Iterable[str], cores: list[int]) -> None:
        """Limit processes to some processors, because each of many sessions has a share of its own."""
        if self.tree:
            return
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), cores)

    def restore_priority(self) -> None:
        """Restore the usual share for later work."""
        if self._low and self.share is not None:
            os.pwrite(self.share, self.shares[0].encode(), 0)
        if self._pinned:
            self._pin(self.pids(), _CORES)
        self._low = self._pinned = False
        self._yielding.clear()

    # -- /proc -------------------------------------------------------------------------------------------------------

    def pids(self) -> list[str]:
        """Return the ids of processes that run code."""
        if self.proc is None:
            return []
        if self.tree:
            # The third and later generations of children of this process, below the zygote's namespaces.
            level = [os.readlink("self", dir_fd=self.proc)]
            for _ in range(2):
                level = [child for pid in level for child in self._children(pid)]
            pids: list[str] = []
            while level:
                level = [child for pid in level for child in self._children(pid)]
                pids += level
            return pids
        pids = [name for name in os.listdir(self.proc) if name.isdigit()]
        return [pid for pid in pids if int(pid) not in self.own and pid != "1"]

    def _children(self, pid: str) -> list[str]:
        with contextlib.suppress(OSError):
            return self._read(f"{pid}/task/{pid}/children").decode().split()
        return []

    def _read(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY, dir_fd=self.proc)
        try:
            data = b""
            while piece := os.read(fd, 1 << 16):
                data += piece
            return data
        finally:
            os.close(fd)


def bytes_in_sockets(read: Callable[[str], bytes]) -> int:
    """Return the bytes of unread and unsent data in sockets; 0 if they cannot be counted."""
    lines = [line.split() for line in read("self/net/protocols").splitlines()]
    count = sum(int(line[2]) for line in lines if len(line) > 2 and line[0].startswith((b"UNIX", b"TCP", b"UDP")))
    if count <= 4:  # inspecting sockets is expensive, and a few hold little
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
    """Return the bytes of data that a socket has sent and nobody has read, with their overhead."""
    while len(attributes) >= 4:
        size, kind = struct.unpack_from("=HH", attributes)
        if kind == _QUEUES:
            return int(struct.unpack_from("=II", attributes, 4)[1])
        attributes = attributes[max(4, (size + 3) & ~3) :]
    return 0

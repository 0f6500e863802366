"""What runs and sandboxes might share unseen: networks, locks on devices, files that code works on, sockets."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest

from rollenv.sandbox import Limits, Pool, Sandbox, SandboxFileError

#: Leaves a closed connection on a port, which the machine remembers for a minute.
CONNECTS = """
import socket
listening = socket.create_server(("127.0.0.1", 4242))
here = socket.create_connection(("127.0.0.1", 4242))
there, _ = listening.accept()
there.close(); here.recv(1); here.close()
"""
#: Says which connections there are, and takes the port.
LOOKS = """
import socket
print(len(open("/proc/net/tcp").readlines()) - 1)
s = socket.socket(); s.bind(("127.0.0.1", 4242)); print("free")
"""
#: Kills every other process of the sandbox, again and again.
KILLS = """
import os, threading
open("f", "w").write("x" * 100_000)
def kill():
    while True:
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in (1, os.getpid()):
                try: os.kill(int(name), 9)
                except OSError: pass
threading.Thread(target=kill, daemon=True).start()
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1, limits=Limits(seconds=5)) as made:
        yield made


def test_a_closed_connection_leaves_nothing_for_the_next_run(pool):
    assert pool.run(CONNECTS).exit_code == 0
    assert pool.run(LOOKS).stdout == "0\nfree\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="without a control group for memory, runs share a network's counters")
def test_counters_of_the_network_begin_anew(pool):
    count = "print(sum(map(int, open('/proc/net/dev').read().split('lo:')[1].split())))"
    assert pool.run("import socket\nsocket.socket(2, 2).sendto(b'x', ('127.0.0.1', 9))").exit_code == 0
    assert pool.run(count).stdout == "0\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device files")
def test_a_lock_on_a_device_is_not_seen_in_another_sandbox():
    lock = "import fcntl, os\nf = os.open('/dev/null', os.O_RDWR)\nfcntl.{0}(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with Sandbox.create() as one, Sandbox.create() as other:
        for kind in ("lockf", "flock"):
            assert [box.run_code(lock.format(kind)).error for box in (one, other)] == [None, None]


def test_an_operation_on_files_that_code_ends_is_an_error_and_not_an_empty_answer():
    with Sandbox.create() as box:
        box.run_code(KILLS)
        for _ in range(10):
            try:
                assert len(box.files.read_bytes("f")) == 100_000
                assert "f" in [entry.name for entry in box.files.list()]
                assert not box.files.exists("missing")
            except SandboxFileError:
                break
        else:
            pytest.skip("every operation was faster than the code")


def test_a_time_limit_may_be_endless(pool):
    assert pool.run("print(1)", timeout=math.inf).stdout == "1\n"
    with Sandbox.create() as box:
        assert box.run_code("1", timeout=1e300).text == "1"
        assert box.commands.run("echo 1", timeout=math.inf).stdout == "1\n"


@pytest.mark.parametrize(
    "code",
    [
        "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E",
        "class M(type):\n    __name__ = property(lambda self: 1 / 0)\nclass E(Exception, metaclass=M): pass\nraise E",
    ],
)
def test_an_exception_that_cannot_be_shown_is_reported_and_the_context_goes_on(code):
    with Sandbox.create() as box:
        box.run_code("x = 1")
        assert getattr(box.run_code(code).error, "name", None) == "E"
        assert box.run_code("x").text == "1"


@pytest.mark.parametrize("mask", [0o077, 0o777])
def test_what_the_host_masks_is_not_masked_inside(mask):
    before = os.umask(mask)
    try:
        with Sandbox.create() as box:
            box.files.write("folder/file", "x")
            assert box.run_code("import os; oct(os.umask(0))").text == "'0o22'"
    finally:
        os.umask(before)

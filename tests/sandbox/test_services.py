"""What a server of sandboxes needs of them: files in streams, events, processes, lifetime, terminals, ports."""

# ruff: noqa: E501

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollenv import UsageError
from rollenv.sandbox import (
    FileEvent,
    FileRefused,
    Limits,
    NotADirectory,
    NotFound,
    Sandbox,
    SandboxDied,
    SandboxFileError,
)

MIB = 1 << 20


@pytest.fixture(scope="module")
def boxes() -> Iterator[dict[str, Sandbox]]:
    made: dict[str, Sandbox] = {}
    yield made
    for sandbox in made.values():
        sandbox.kill()


@pytest.fixture
def box(backend: dict[str, Any], boxes: dict[str, Sandbox]) -> Sandbox:
    name = backend["backend"]
    if name not in boxes or not boxes[name].alive:
        boxes[name] = Sandbox.create(**backend, limits=Limits(seconds=20, memory_mb=256, disk_mb=48))
    return boxes[name]


def soon(check: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether it becomes true in time."""
    until = time.monotonic() + seconds
    while not (held := check()) and time.monotonic() < until:
        time.sleep(0.05)
    return held


# -- files -----------------------------------------------------------------------------------------------------------


def test_file_info(box):
    box.files.write("folder/file", b"12345")
    box.run_code("import os; os.chmod('folder/file', 0o640); os.utime('folder/file', (5, 1.5)); os.symlink('file', 'folder/link')")
    info = box.files.info("folder/file")
    assert (info.name, info.path, info.type, info.size, info.mode, info.modified) == ("file", "folder/file", "file", 5, 0o640, 1.5)
    assert info.permissions == "-rw-r-----"
    link = box.files.info("folder/link")
    assert (link.type, link.target, link.permissions[0]) == ("link", "file", "l")
    assert box.files.info("folder/").type == "dir"
    assert [e.modified for e in box.files.list("folder")][0] == 1.5
    with pytest.raises(NotFound):
        box.files.info("absent")
    box.files.remove("folder")


def test_files_in_streams(box):
    pieces = [bytes([n]) * (MIB + 1) for n in range(9)]
    box.files.write_stream("streamed", iter(pieces))
    assert b"".join(box.files.read_stream("streamed")) == b"".join(pieces)
    box.files.write_stream("empty", [])
    assert list(box.files.read_stream("empty")) == []
    with pytest.raises(NotFound):
        list(box.files.read_stream("absent"))
    with pytest.raises(FileRefused):
        box.files.write_stream("/usr/x", iter(pieces))
    with pytest.raises(SandboxFileError, match="No space"):
        box.files.write_stream("too large", (bytes(MIB) for _ in range(60)))
    box.commands.run("rm -f streamed empty 'too large'")


def test_a_stream_that_is_left_leaves_nothing_running(box):
    box.files.write("streamed", bytes(20 * MIB))
    before = box.metrics().processes
    stream = box.files.read_stream("streamed")
    next(stream)
    stream.close()
    assert soon(lambda: box.metrics().processes <= before)
    box.files.remove("streamed")


def test_several_files_at_once(box):
    files = {f"many/{n}/f": bytes([n]) * n * 10_000 for n in range(50)} | {"many/text": "é"}
    box.files.write_many(files)
    assert box.files.read("many/text") == "é"
    assert all(box.files.read_bytes(f"many/{n}/f") == files[f"many/{n}/f"] for n in (0, 1, 49))
    with pytest.raises(FileRefused):
        box.files.write_many({"ok": "1", "/etc/passwd": "2"})
    box.files.write_many({})
    box.files.remove("many")


def test_a_folder_is_watched(box):
    box.files.make_dir("seen/deep")
    events: list[FileEvent] = []
    shallow = box.files.watch("seen", on_event=events.append)
    deep = box.files.watch("seen", recursive=True)
    box.run_code("""
import os
open('seen/a', 'w').write('x'); os.chmod('seen/a', 0o600); os.rename('seen/a', 'seen/b'); os.remove('seen/b')
open('seen/deep/c', 'w').close()
os.mkdir('seen/new'); import time; time.sleep(0.2); open('seen/new/d', 'w').close()""")
    assert soon(lambda: FileEvent("remove", "b") in events)
    wanted = [("create", "a"), ("write", "a"), ("chmod", "a"), ("rename", "a"), ("create", "b"), ("remove", "b")]
    assert [(e.type, e.name) for e in events if e.name in "ab"] == wanted
    found: list[FileEvent] = []
    assert soon(lambda: found.extend(deep.events()) or FileEvent("create", "new/d") in found)
    assert FileEvent("create", "deep/c") in found
    assert not any("/" in e.name for e in events)
    assert shallow.running
    for handle in (shallow, deep):
        handle.stop()
        assert soon(lambda handle=handle: not handle.running)
    for path, error in {"absent": NotFound, "/etc/passwd": NotADirectory}.items():
        with pytest.raises(error):
            box.files.watch(path)
    box.files.remove("seen")


def test_a_flood_of_events_and_forged_ones_harm_nobody(box):
    box.files.make_dir("flood")
    handle = box.files.watch("flood")
    box.run_code("""
import glob, os
for fd in glob.glob('/proc/*/fd/1'):
    try: open(fd, 'w').write('5\\n[]\\n{"type": 5}\\n{"type": "create", "name": []}\\n' + '[' * 9999 + '\\n')
    except OSError: pass
for i in range(30000): open('flood/x', 'w').close()""")
    assert soon(lambda: len(handle._events) > 100)
    assert len(handle._events) <= 10_000
    assert box.run_code("1 + 1").text == "2"
    handle.stop()
    box.files.remove("flood")


def test_a_listing_that_is_not_in_order_is_an_error():
    from rollenv.sandbox.filesystem import _entry

    for line in (b"", b"5", b"[", b'{"name": 5}', b'{"name": "x", "type": "file", "size": "y"}', b"[" * 100_000):
        with pytest.raises(SandboxFileError, match="not in order"):
            _entry(line, "")


# -- processes -------------------------------------------------------------------------------------------------------


def test_processes_are_listed_connected_to_and_killed(box):
    box.run_code("1")
    handle = box.commands.start("echo one; read line; echo got $line; sleep 60", timeout=100)
    assert soon(lambda: "one" in handle.stdout)
    (found,) = [p for p in box.commands.list() if p.pid == handle.pid]
    assert found.command[:2] == ("/bin/sh", "-c")
    assert "default" in [p.context for p in box.commands.list()]
    assert int(box.run_code(f"import os; os.kill({handle.pid}, 0); os.getpgid({handle.pid})").text) == handle.pid, "its number inside"
    heard: list[str] = []
    box.commands.connect(handle.pid, on_stdout=heard.append)
    box.commands.send_stdin(handle.pid, "two\n")
    assert soon(lambda: "".join(heard) == "got two\n"), "from then on"
    assert box.commands.kill(handle.pid)
    assert handle.wait(5).exit_code == 137
    assert not box.commands.kill(handle.pid)
    with pytest.raises(NotFound):
        box.commands.connect(handle.pid)
    for unknown in (1, 99999, -1):
        assert not box.commands.kill(unknown)


def test_a_kill_reaches_the_groups_that_a_command_made(box):
    handle = box.commands.start(["sh", "-c", "set -m; sleep 987 & sleep 987"], timeout=100)
    count = "sum(b'987' in open(f'/proc/{p}/cmdline', 'rb').read().split(b'\\0') for p in __import__('os').listdir('/proc') if p.isdigit())"
    assert soon(lambda: box.run_code(count).text == "2")
    handle.kill()
    assert soon(lambda: box.run_code(count).text == "0")


def test_metrics(box):
    box.files.write("ten", bytes(10 * MIB))
    before = box.metrics()
    box.run_code("x = b'x' * (50 << 20)\nwhile __import__('time').process_time() < 0.5: pass")
    after = box.metrics()
    assert after.memory_used - before.memory_used > 40 * MIB or box.backend == "docker"
    assert after.cpu_seconds - before.cpu_seconds > 0.1
    assert after.cpu_percent > 0
    assert 10 * MIB <= before.disk_used <= before.disk_total == 48 * MIB
    assert before.memory_total == 256 * MIB
    assert before.processes >= 1
    box.files.remove("ten")
    box.run_code("del x")


def test_a_sandbox_lives_as_long_as_it_is_told(backend):
    with Sandbox.create(**backend, timeout=100) as box:
        assert box.expires_at == pytest.approx(time.time() + 100, abs=5)
        box.set_timeout(None)
        assert box.expires_at is None
        with pytest.raises(UsageError, match="more than 0"):
            box.set_timeout(0)
        box.set_timeout(0.7)
        with pytest.raises(SandboxDied):
            box.run_code("import time; time.sleep(15)")
        assert not box.alive

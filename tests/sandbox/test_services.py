"""What a server of sandboxes needs of them: files in streams, events, processes, lifetime, terminals, ports."""

# ruff: noqa: E501

from __future__ import annotations

import asyncio
import contextlib
import math
import shlex
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import eventually

from rollenv.sandbox import (
    AsyncSandbox,
    FileEvent,
    FileRefused,
    InvalidArgument,
    Limits,
    NotADirectory,
    NotFound,
    Result,
    Sandbox,
    SandboxDied,
    SandboxFileError,
    SandboxPaused,
)

MIB = 1 << 20


#: Of the sandbox that the tests of this file share.
LIMITS = Limits(seconds=20, memory_mb=256, disk_mb=48)


# -- files -----------------------------------------------------------------------------------------------------------


def test_file_info(box):
    box.files.write("folder/file", b"12345")
    box.run_code(
        "import os; os.chmod('folder/file', 0o640); os.utime('folder/file', (5, 1.5)); os.symlink('file', 'folder/link')"
    )
    info = box.files.info("folder/file")
    assert (info.name, info.path, info.type, info.size, info.mode, info.modified) == (
        "file",
        "folder/file",
        "file",
        5,
        0o640,
        1.5,
    )
    assert info.permissions == "-rw-r-----"
    link = box.files.info("folder/link")
    assert (link.type, link.target, link.permissions[0]) == ("link", "file", "l")
    assert box.files.info("folder/").type == "dir"
    assert next(e.modified for e in box.files.list("folder")) == 1.5
    with pytest.raises(NotFound):
        box.files.info("absent")
    box.files.remove("folder")


@pytest.mark.slow
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
    assert eventually(lambda: box.metrics().processes <= before)
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
import math
import os
open('seen/a', 'w').write('x'); os.chmod('seen/a', 0o600); os.rename('seen/a', 'seen/b'); os.remove('seen/b')
open('seen/deep/c', 'w').close()
os.mkdir('seen/new'); import time; time.sleep(0.2); open('seen/new/d', 'w').close()""")
    assert eventually(lambda: FileEvent("remove", "b") in events)
    wanted = [("create", "a"), ("write", "a"), ("chmod", "a"), ("rename", "a"), ("create", "b"), ("remove", "b")]
    assert [(e.type, e.name) for e in events if e.name in "ab"] == wanted
    found: list[FileEvent] = []
    assert eventually(lambda: found.extend(deep.events()) or FileEvent("create", "new/d") in found)
    assert FileEvent("create", "deep/c") in found
    assert not any("/" in e.name for e in events)
    assert shallow.running
    for handle in (shallow, deep):
        handle.stop()
        assert eventually(lambda handle=handle: not handle.running)
    box.files.write("seen/file", "")
    for path, error in {"absent": NotFound, "seen/file": NotADirectory}.items():
        with pytest.raises(error):
            box.files.watch(path)
    box.files.remove("seen")


@pytest.mark.integration
def test_a_flood_of_events_and_forged_ones_harm_nobody(box):
    box.files.make_dir("flood")
    handle = box.files.watch("flood")
    box.run_code("""
import glob, os
for fd in glob.glob('/proc/*/fd/1'):
    try: open(fd, 'w').write('5\\n[]\\n{"type": 5}\\n{"type": "create", "name": []}\\n' + '[' * 9999 + '\\n')
    except OSError: pass
for i in range(30000): open('flood/x', 'w').close()""")
    assert eventually(lambda: len(handle._events) > 100)
    assert len(handle._events) <= 10_000
    assert box.run_code("1 + 1").text == "2"
    handle.stop()
    box.files.remove("flood")


def test_a_listing_that_is_not_in_order_is_an_error():
    from rollenv.sandbox.filesystem import _entry

    for line in (b"", b"5", b"[", b'{"name": 5}', b'{"name": "x", "type": "file", "size": "y"}', b"[" * 100_000):
        with pytest.raises(SandboxFileError, match="malformed"):
            _entry(line, "")


# -- processes -------------------------------------------------------------------------------------------------------


def test_processes_are_listed_connected_to_and_killed(box):
    box.run_code("1")
    handle = box.commands.start("echo one; read line; echo got $line; sleep 60", timeout=100)
    assert eventually(lambda: "one" in handle.stdout)
    (found,) = [p for p in box.commands.list() if p.pid == handle.pid]
    assert found.command[:2] == ("/bin/sh", "-c")
    assert "default" in [p.context for p in box.commands.list()]
    assert int(box.run_code(f"import os; os.kill({handle.pid}, 0); os.getpgid({handle.pid})").text) == handle.pid, (
        "its number inside"
    )
    heard: list[str] = []
    box.commands.connect(handle.pid, on_stdout=heard.append)
    box.commands.send_stdin(handle.pid, "two\n")
    assert eventually(lambda: "".join(heard) == "got two\n"), "from then on"
    assert box.commands.kill(handle.pid)
    assert handle.wait(60).exit_code == 137
    assert not box.commands.kill(handle.pid)
    with pytest.raises(NotFound):
        box.commands.connect(handle.pid)
    for unknown in (1, 99999, -1):
        assert not box.commands.kill(unknown)


def test_a_kill_reaches_the_groups_that_a_command_made(box):
    handle = box.commands.start(["sh", "-c", "set -m; sleep 987 & sleep 987"], timeout=100)
    count = "sum(b'987' in open(f'/proc/{p}/cmdline', 'rb').read().split(b'\\0') for p in __import__('os').listdir('/proc') if p.isdigit())"
    assert eventually(lambda: box.run_code(count).text == "2")
    handle.kill()
    assert eventually(lambda: box.run_code(count).text == "0")


def test_metrics(box):
    box.files.write("ten", bytes(10 * MIB))
    box.run_code("1")  # its process stays
    before = box.metrics()
    box.run_code(
        "x = b'x' * (50 << 20)\nimport time\nt = time.process_time()\nwhile time.process_time() < t + 0.5: pass"
    )
    after = box.metrics()
    assert after.memory_used - before.memory_used > 40 * MIB or box.backend == "docker"
    assert after.cpu_seconds - before.cpu_seconds > 0.1
    assert after.cpu_percent > 0
    assert 10 * MIB <= before.disk_used <= before.disk_total == 48 * MIB
    assert before.memory_total == 256 * MIB
    assert before.processes >= 1
    box.files.remove("ten")
    box.run_code("del x")


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sandbox_lives_as_long_as_set(backend):
    begun = time.time()
    with Sandbox.create(**backend, timeout=100) as box:
        assert begun + 100 <= box.expires_at <= time.time() + 100
        box.set_timeout(None)
        assert box.expires_at is None
        with pytest.raises(InvalidArgument, match="above 0"):
            box.set_timeout(0)
        box.set_timeout(math.inf)
        box.set_timeout(0.7)
        with pytest.raises(SandboxDied):
            box.run_code("import time; time.sleep(15)")
        assert not box.alive


# -- terminals, ports, pauses ----------------------------------------------------------------------------------------


def python_of(box: Sandbox) -> str:
    """The path of Python inside."""
    return box.run_code("import sys; print(sys.executable)").logs.stdout[0].strip()


def test_a_program_at_a_terminal(box):
    size = f"{shlex.quote(python_of(box))} -S -c 'import os; print(*os.get_terminal_size())'"
    terminal = box.terminals.start(["sh", "-i"], rows=30, columns=100, env={"PS1": "> "})
    terminal.send(f"test -t 0 && test -t 1 && {size}; echo $TERM\n")
    assert eventually(lambda: b"100 30" in terminal.shown), terminal.shown
    assert eventually(lambda: b"xterm" in terminal.shown), terminal.shown
    terminal.resize(40, 120)
    terminal.send(f"{size}\n")
    assert eventually(lambda: b"120 40" in terminal.shown), terminal.shown
    terminal.send("sleep 50\n")
    time.sleep(0.3)
    terminal.send(b"\x03")
    terminal.send("echo in''terrupted\n")
    assert eventually(lambda: b"interrupted" in terminal.shown), "control and c reach the program in front"
    assert terminal.pid > 1
    terminal.send("exit 5\n")
    assert terminal.wait(60) == 5
    with pytest.raises(NotFound):
        box.terminals.start(["no-such-program"]).wait(60)


def test_a_terminal_ends_with_its_handle_and_opens_no_way_to_others(box):
    seen: list[bytes] = []
    terminal = box.terminals.start(["sh", "-c", "trap '' HUP; echo ready; sleep 986"], on_data=seen.append, timeout=100)
    assert eventually(lambda: b"ready" in b"".join(seen))
    code = """
import fcntl, os, termios
found = []
for name in ("/dev/ptmx", "/dev/pts/ptmx", "/dev/pts/0"):
    for act in (lambda: os.chmod(name, 0o666), lambda: os.open(name, os.O_RDWR)):
        try: act(); found.append(name)
        except OSError: pass
found"""
    if box.backend == "local":
        assert box.run_code(code).text == "[]"
    terminal.kill()
    terminal.wait(60)
    count = "sum(b'986' in open(f'/proc/{p}/cmdline', 'rb').read() for p in __import__('os').listdir('/proc') if p.isdigit())"
    box.commands.run("sleep 0.2")
    assert int(box.run_code(count).text) <= 1, (
        "a shell's child that ignores the signal may remain until the sandbox ends"
    )
    discipline = box.terminals.start(
        [
            python_of(box),
            "-c",
            "import fcntl, struct\ntry: fcntl.ioctl(0, 0x5423, struct.pack('i', 2)); print('SET')\nexcept OSError as e: print('refused', e.errno)",
        ]
    )
    discipline.wait(10)
    assert b"refused 1" in discipline.shown


@pytest.mark.slow
def test_a_terminal_that_shows_without_end_is_held_back(box):
    terminal = box.terminals.start(["sh", "-c", "yes"], on_data=lambda data: time.sleep(0.001), timeout=30)
    time.sleep(1)
    assert terminal._stream._inbox.qsize() < 1000
    assert box.run_code("1 + 1").text == "2"
    terminal.kill()


SERVER = """
import http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"x" * int(self.path[1:]))
    def do_POST(self):
        n = int(self.headers["content-length"]); self.send_response(200); self.end_headers(); self.wfile.write(str(len(self.rfile.read(n))).encode())
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
server.server_port"""


def test_a_server_inside_is_reached_from_outside():
    import http.client
    import socket

    with Sandbox.create(limits=Limits(seconds=20)) as box:
        port = int(box.run_code(SERVER).text)
        forward = box.ports.forward(port)
        assert box.ports.forward(port) is forward
        for size in (0, 10, 3 * MIB):
            client = http.client.HTTPConnection(forward.address, timeout=20)
            client.request("GET", f"/{size}")
            assert len(client.getresponse().read()) == size
        client = http.client.HTTPConnection(forward.address, timeout=20)
        client.request("POST", "/", body=b"y" * (2 * MIB))
        assert client.getresponse().read() == str(2 * MIB).encode()
        host, _, number = forward.address.rpartition(":")
        idle = socket.create_connection((host, int(number)))
        nobody = box.ports.forward(9)
        refused = socket.create_connection(("127.0.0.1", int(nobody.address.rpartition(":")[2])), timeout=10)
        assert refused.recv(10) == b"", "nobody listens there"
        refused.close()
        with pytest.raises(InvalidArgument, match="65535"):
            box.ports.forward(70_000)
        box.kill()
        idle.settimeout(10)
        with contextlib.suppress(ConnectionError):
            assert idle.recv(10) == b""
        idle.close()
        with pytest.raises(OSError):  # noqa: PT011
            socket.create_connection((host, int(number)), timeout=2)


@pytest.mark.slow
def test_a_snapshot_keeps_files(backend):
    with Sandbox.create(**backend, files={"a/b.txt": "text", "empty": b""}) as box:
        box.run_code(
            "import os; os.chmod('a/b.txt', 0o600); os.symlink('a/b.txt', 'l'); os.mkfifo('p'); open('/tmp/t', 'w').write('5')"
        )
        box.run_code("os.symlink('/etc/passwd', 'out')")
        kept = box.snapshot()
    with Sandbox.create(**backend, snapshot=kept) as box:
        assert box.files.read("a/b.txt") == box.files.read("l") == "text"
        assert box.files.info("a/b.txt").mode == 0o600
        assert not box.files.exists("p")
        if backend["backend"] == "local":
            assert box.files.read("/tmp/t") == "5"
        assert box.run_code("1 + 1").text == "2"


def test_a_snapshot_that_is_none_is_refused():
    for data in (b"x" * 10_000, b""):
        with pytest.raises(SandboxFileError):
            Sandbox.create(snapshot=data)


@pytest.mark.slow
def test_a_pause_stops_everything_and_costs_no_time(box):
    handle = box.commands.start("i=0; while :; do i=$((i + 1)); echo $i; sleep 0.05; done", timeout=4)
    assert eventually(lambda: handle.stdout.count("\n") > 2)
    box.pause()
    with pytest.raises(SandboxPaused):
        box.run_code("1")
    with pytest.raises(SandboxPaused):
        box.files.read("x")
    time.sleep(0.3)
    before = handle.stdout
    time.sleep(0.6)
    assert handle.stdout == before
    box.resume()
    box.resume()
    assert eventually(lambda: len(handle.stdout) > len(before))
    assert box.run_code("1 + 1").text == "2"
    handle.kill()


@pytest.mark.integration
@pytest.mark.slow
def test_a_pause_may_be_longer_than_a_cell_may_take(monkeypatch):
    monkeypatch.setattr("rollenv.sandbox.commands._GRACE", 0.3)
    with Sandbox.create() as box, ThreadPoolExecutor(1) as pool:
        box.run_code("1")
        cell = pool.submit(box.run_code, "import time\nfor _ in range(5): time.sleep(0.05)\n'end'", timeout=0.7)
        time.sleep(0.1)
        box.pause()
        time.sleep(2)
        assert not cell.done()
        box.resume()
        assert cell.result(10).text == "'end'"


def test_asyncio_has_it_too():
    async def play() -> None:
        async with await AsyncSandbox.create() as box:
            await box.files.write("f", b"x" * (3 * MIB))
            assert sum([len(piece) async for piece in box.files.read_stream("f")]) == 3 * MIB
            handle = await box.commands.start("cat")
            await handle.send_stdin("hi\n", close=True)
            assert (await handle.wait()).stdout == "hi\n"
            watch = await box.files.watch()
            await box.files.write("g", "")
            async with asyncio.timeout(60):
                while FileEvent("create", "g") not in await watch.events():
                    await asyncio.sleep(0.05)
            await watch.stop()
            terminal = await box.terminals.start(["echo", "shown"])
            await terminal.wait()
            assert b"shown" in terminal.shown
            assert (await box.metrics()).processes >= 0
            seen: list[Result] = []
            name = await box.create_context()
            await box.run_code("display(1)", context=name, on_result=seen.append)
            assert [r.text for r in seen] == ["1"]
            assert name in [c.name for c in await box.list_contexts()]
            await box.restart_context(name)

    asyncio.run(play())

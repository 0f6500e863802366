"""A session of E2B's own client with all that it can do here. Runs in .bench/e2b and prints "all" at its end."""

import base64
import datetime
import io
import os
import threading
import time

import httpx
from e2b import (
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.exceptions import (
    FileNotFoundException,
    NotEnoughSpaceException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
)
from e2b.sandbox.filesystem.filesystem import FileType
from e2b_code_interpreter import Sandbox

RUN = f"tests/{time.time()} ü&="
HOME = "/home/user"


def fails(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        return error
    raise SystemExit(f"{call} {args} raised no {kind}")


def code(box):
    seen, failed = [], []
    text = "import os, sys\nprint(os.environ['FROM'], os.environ['MORE'])\nprint('bad', file=sys.stderr)\nx = 40\nx + 2"
    told = dict.fromkeys(("on_stdout", "on_stderr", "on_result"), seen.append)
    done = box.run_code(text, envs={"MORE": "run"}, **told)
    assert (done.text, done.logs.stdout, done.logs.stderr) == ("42", ["create run\n"], ["bad\n"])
    assert sorted(getattr(m, "line", None) or m.text for m in seen) == ["42", "bad\n", "create run\n"]
    assert done.execution_count == 1
    assert box.run_code("x").text == "40"
    done = box.run_code("print('before')\n1/0", on_error=failed.append)
    assert (done.error.name, done.error.value) == ("ZeroDivisionError", "division by zero")
    assert "Traceback" in done.error.traceback
    assert (done.logs.stdout, done.logs.stderr) == (["before\n"], [])
    assert failed[0].name == "ZeroDivisionError"
    assert box.run_code("import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()").logs.stderr
    assert box.run_code("await __import__('asyncio').sleep(0, 'awaited')").text == "awaited"
    assert box.run_code("y=1; echo $((y + 1))", language="bash").logs.stdout == ["2\n"]
    assert box.run_code("echo $y", language="Bash").logs.stdout == ["1\n"]
    fails(SandboxException, box.run_code, "1", language="cobol")


def results(box):
    rich = box.run_code("""
class Rich:
    def _repr_html_(self): return "<b>\\u2028</b>"
    def _repr_png_(self): return b"PNG"
    def _repr_json_(self): return {"a": [1, None]}
    def _repr_latex_(self): return "$x$"
display(Rich())
display({"image/svg+xml": "<svg/>", "application/x-own": "mine"}, raw=True)
Rich()""").results
    png = base64.b64encode(b"PNG").decode()
    assert (rich[0].html, rich[0].png, rich[0].latex) == ("<b>\u2028</b>", png, "$x$")
    assert rich[0].json == {"a": [1, None]}
    assert (rich[1].svg, rich[1].extra) == ("<svg/>", {"application/x-own": "mine"})
    assert [result.is_main_result for result in rich] == [False, False, True]


def contexts(box):
    box.files.make_dir("work")
    first, second = box.create_code_context(), box.create_code_context(cwd=f"{HOME}/work", language="python")
    assert (second.language, second.cwd) == ("python", f"{HOME}/work")
    box.run_code("z = 1", context=first)
    assert box.run_code("z", context=second).error.name == "NameError"
    assert box.run_code("import os; os.path.basename(os.getcwd())", context=second).text == "work"
    assert {first.id, second.id, "default"} <= {context.id for context in box.list_code_contexts()}
    box.restart_code_context(first)
    assert box.run_code("z", context=first).error.name == "NameError"
    box.remove_code_context(first)
    fails(NotFoundException, box.run_code, "1", context=first)
    fails(NotFoundException, box.remove_code_context, first)
    fails(NotFoundException, box.restart_code_context, "none")
    fails(NotFoundException, box.create_code_context, cwd="/nowhere")


def interrupts(box):
    """A client that waits no longer interrupts its code; what came before stays."""
    fails(TimeoutException, box.run_code, "import time\nwhile True: time.sleep(0.1)", timeout=1)
    assert box.run_code("x").text == "40"
    fails(TimeoutException, box.run_code, "while true; do :; done", language="bash", timeout=1)
    assert box.run_code("echo $y", language="bash").logs.stdout == ["1\n"]
    flood = box.run_code("import os\nfor _ in range(3000): os.write(1, b'x' * 4096)")
    assert flood.error.name == "OutputLimit"
    assert sum(map(len, flood.logs.stdout)) == 4 << 20


def contents(box):
    name = "text ü\u2028\"'.txt"
    info = box.files.write(f"a/b/{name}", "héllo\n")
    assert (info.name, info.path, info.type) == (name, f"{HOME}/a/b/{name}", FileType.FILE)
    assert box.files.read(info.path) == box.files.read(f"~/a/b/{name}") == "héllo\n"
    every = bytes(range(256)) * 5000
    box.files.write("bytes", every)
    assert box.files.read("bytes", format="bytes") == every
    assert b"".join(box.files.read("bytes", format="stream")) == every
    with box.files.read("bytes", format="stream") as stream:
        next(stream)
    box.files.write("large", io.BytesIO(b"y" * (30 << 20)))
    assert box.files.get_info("large").size == 30 << 20
    fails(NotEnoughSpaceException, box.files.write, "huge", io.BytesIO(b"z" * (60 << 20)))
    box.files.write("large", b"", gzip=True)
    assert box.files.get_info("large").size == 0
    box.files.write("packed", "p" * 100_000, gzip=True)
    assert box.files.read("packed") == "p" * 100_000
    box.files.write("piecewise", iter([b"one", b"two"]))
    assert box.files.read("piecewise") == "onetwo"
    written = box.files.write_files([{"path": "m/1", "data": "1"}, {"path": "/tmp/2", "data": b"2"}])
    assert [one.path for one in written] == [f"{HOME}/m/1", "/tmp/2"]
    box.files.write("empty", "")
    assert box.files.read("empty") == ""
    fails(FileNotFoundException, box.files.read, "none")
    fails(FileNotFoundException, box.files.read, "none", format="stream")
    fails(InvalidArgumentException, box.files.read, "a")
    fails(InvalidArgumentException, box.files.write, "a", "x")
    fails(SandboxException, box.files.write, "/etc/passwd", "x")


def folders(box):
    assert [(entry.name, entry.type) for entry in box.files.list("a")] == [("b", FileType.DIR)]
    assert box.files.list(f"{HOME}/a", depth=2)[1].path.startswith(f"{HOME}/a/b/text")
    assert box.files.exists("bytes")
    assert not box.files.exists("none")
    box.commands.run("ln -s bytes link; chmod 600 bytes")
    link, entry = box.files.get_info("link"), box.files.get_info("bytes")
    assert (link.type, link.symlink_target) == (FileType.FILE, f"{HOME}/bytes")
    assert (entry.size, entry.mode, entry.permissions, entry.owner) == (1_280_000, 0o600, "-rw-------", "user")
    assert abs(entry.modified_time.timestamp() - time.time()) < 60
    assert box.files.make_dir("new/deep") is True
    assert box.files.make_dir("new/deep") is False
    assert box.files.rename("bytes", "moved/to/bytes").path == f"{HOME}/moved/to/bytes"
    assert not box.files.exists("bytes")
    for _ in range(2):
        box.files.remove("moved")
    assert not box.files.exists("moved")
    fails(FileNotFoundException, box.files.list, "none")
    fails(FileNotFoundException, box.files.get_info, "none")
    fails(FileNotFoundException, box.files.rename, "none", "other")
    fails(InvalidArgumentException, box.files.list, "empty")
    watch = box.files.watch_dir("a", recursive=True)
    box.files.write("a/b/c", "x")
    time.sleep(0.5)
    assert ("b/c", "create") in [(event.name, event.type.value) for event in watch.get_new_events()]
    watch.stop()
    fails(FileNotFoundException, box.files.watch_dir, "none")


def commands(box):
    out = []
    text = "echo $FROM $MORE; pwd; echo no >&2"
    done = box.commands.run(text, envs={"MORE": "run"}, cwd="work", on_stdout=out.append)
    assert done.stdout.splitlines()[0] == "create run"
    assert done.stdout.endswith("/work\n")
    assert (done.stderr, done.exit_code, done.error, "".join(out)) == ("no\n", 0, None, done.stdout)
    failure = fails(CommandExitException, box.commands.run, "echo out; exit 7")
    assert (failure.exit_code, failure.stdout, failure.error) == (7, "out\n", "exit status 7")
    assert fails(CommandExitException, box.commands.run, "kill -9 $$").error == "signal: killed"
    assert box.commands.run("cat").stdout == "", "its input is empty"
    fails(TimeoutException, box.commands.run, "sleep 100000", timeout=1)
    fails(NotFoundException, box.commands.run, "true", cwd="/nowhere")
    assert len(box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000


def background(box):
    handle = box.commands.run("cat; echo end", background=True, stdin=True)
    info = next(process for process in box.commands.list() if process.pid == handle.pid)
    assert (info.cmd, info.args) == ("/bin/bash", ["-l", "-c", "cat; echo end"])
    box.commands.send_stdin(handle.pid, "line ü\n")
    handle.send_stdin(b"more\n")
    box.commands.stream_input(handle.pid, ["s1\n", b"s2\n"])
    handle.close_stdin()
    assert handle.wait().stdout == "line ü\nmore\ns1\ns2\nend\n"
    handle = box.commands.run("sleep 1; echo late; sleep 60", background=True)
    handle.disconnect()
    again = box.commands.connect(handle.pid)
    assert any(out == "late\n" for out, _, _ in again)
    assert again.kill() is True
    assert fails(CommandExitException, again.wait).exit_code == -1
    assert box.commands.kill(handle.pid) is False
    fails(NotFoundException, box.commands.connect, 999_999)
    fails(NotFoundException, box.commands.send_stdin, 999_999, "x")
    handle = box.commands.run("sleep 60", background=True)
    fails(InvalidArgumentException, box.commands.send_stdin, handle.pid, "x")
    assert handle.kill() is True


def terminals(box):
    term = box.pty.create(PtySize(rows=24, cols=80), envs={"PS1": "$ "}, cwd="work")
    box.pty.send_stdin(term.pid, b"stty size; pwd\n")
    shown = b""
    for _, _, data in term:
        shown += data
        if b"24 80" in shown and b"/work" in shown:
            break
    box.pty.resize(term.pid, PtySize(rows=30, cols=100))
    box.pty.stream_input(term.pid, [b"stty size\n"])
    box.pty.send_stdin(term.pid, b"exit 0\n")
    rest = []
    assert term.wait(on_pty=rest.append).exit_code == 0
    assert b"30 100" in b"".join(rest)
    term = box.pty.create(PtySize(rows=24, cols=80))
    assert box.pty.kill(term.pid) is True
    fails(CommandExitException, term.wait)
    assert box.pty.kill(term.pid) is False


def service(box):
    info = box.get_info()
    assert (info.sandbox_id, info.metadata, info.state) == (box.sandbox_id, {"run": RUN}, SandboxState.RUNNING)
    assert info.template_id == "code-interpreter-v1"
    assert 0 < (info.end_at - info.started_at).total_seconds() <= 200
    box.set_timeout(300)
    assert 290 < (box.get_info().end_at - datetime.datetime.now(datetime.UTC)).total_seconds() <= 300
    (metric,) = box.get_metrics()
    assert 0 < metric.mem_used < metric.mem_total == info.memory_mb << 20
    same = Sandbox.connect(box.sandbox_id)
    assert same.run_code("x = 40; x").text == "40"
    assert same.files.exists("empty")
    fails(SandboxNotFoundException, Sandbox.connect, "none")
    assert Sandbox.kill("none") is False
    fails(SandboxException, Sandbox.create, timeout=-1)
    fails(SandboxException, box.create_snapshot, mode="full")
    fails(SandboxException, box.update_network, {"deny_out": ["0.0.0.0/0"]})


def copies(box):
    box.files.write("copied", "before")
    taken, named = box.create_snapshot(), box.create_snapshot(name="mine")
    box.files.write("copied", "after")
    for source in (taken.snapshot_id, named.snapshot_id, "mine"):
        with Sandbox.create(source, envs={"MORE": "new"}) as copy:
            assert copy.files.read("copied") == "before"
            assert copy.commands.run("echo $FROM $MORE").stdout == "create new\n"
    assert {one.snapshot_id for one in box.list_snapshots().next_items()} == {taken.snapshot_id, named.snapshot_id}
    assert [one.names for one in Sandbox.list_snapshots(name="mine").next_items()] == [named.names]
    assert Sandbox.delete_snapshot(taken.snapshot_id) is True
    assert Sandbox.delete_snapshot(taken.snapshot_id) is False
    fails(SandboxException, Sandbox.create, taken.snapshot_id)
    forks = box.fork(count=2, timeout=60)
    forks[0].files.write("copied", "fork")
    assert [fork.files.read("copied") for fork in (*forks, box)] == ["fork", "after", "after"]
    assert [fork.get_info().metadata for fork in forks] == [{"run": RUN}] * 2
    assert all(fork.kill() for fork in forks)


def urls(box):
    box.files.write("öff &+.txt", "signed")
    with httpx.Client() as http:
        url = box.download_url("öff &+.txt", use_signature_expiration=60)
        assert http.get(url).text == "signed"
        assert http.get(box.download_url("/home/user/öff &+.txt", user="user")).text == "signed"
        for wrong in (
            url.replace("signature=", "signature=x"),
            url.replace("path=", "path=x"),
            url.replace("signature_expiration=", "signature_expiration=9"),
            box.download_url("öff &+.txt", use_signature_expiration=-1),
            box.upload_url("öff &+.txt"),
        ):
            assert http.get(wrong).status_code == 401, wrong
        other = httpx.URL(box.download_url("a:read:b", user="user"))  # what is signed has the same words
        moved = other.copy_merge_params({"path": "a", "username": "b:read:user"})
        assert http.get(moved).status_code == 401
        assert http.post(box.upload_url("up"), files={"file": ("up", b"loaded")}).status_code == 200
        assert http.post(url, files={"file": ("up", b"no")}).status_code == 401
        other = url.replace("/files", "/e2b/health")
        assert http.get(other).status_code != 204, "a signature is for a file"
    assert box.files.read("up") == "loaded"


SERVER = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, f"{self.path} {self.headers['Host']} {self.headers['E2B-Traffic-Access-Token']}".encode())

    def do_POST(self):
        self.answer(418, self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Own", "yes")
        self.end_headers()
        self.wfile.write(body)

http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def ports(box):
    box.files.write("server.py", SERVER)
    running = box.commands.run("python3 server.py", background=True)
    host = box.get_host(8000)
    assert host.startswith(f"8000-{box.sandbox_id}.localhost:")
    at = os.environ["E2B_API_URL"].removesuffix("/e2b")  # as *.localhost does, where the system knows it
    headers = {"Host": host, "E2B-Traffic-Access-Token": box.traffic_access_token}
    with httpx.Client(base_url=at, headers=headers) as http:
        while (answer := http.get("/health?a=b%20c")).status_code == 502:
            time.sleep(0.1)
        assert (answer.status_code, answer.text) == (200, f"/health?a=b%20c {host} None")
        answer = http.post("/x", content=b"y" * 300_000)
        assert (answer.status_code, len(answer.content), answer.headers["x-own"]) == (418, 300_000, "yes")
        assert http.get("/", headers={"Host": host.replace("8000-", "8001-")}).status_code == 502
        assert http.get("/", headers={"Host": host.replace("8000-", "70000-")}).status_code == 400
        gone = host.replace(box.sandbox_id, "0" * 36)
        assert http.get("/", headers={"Host": gone}).status_code in (401, 404, 410, 502)
    running.kill()


def several(box):
    def found(**query):
        return [one.sandbox_id for one in Sandbox.list(query=SandboxQuery(**query)).next_items()]

    first, *rest = others = [Sandbox.create(metadata={"run": RUN + "2"}) for _ in range(3)]
    pages, names = Sandbox.list(query=SandboxQuery(metadata={"run": RUN + "2"}), limit=2), []
    while pages.has_next:
        names.append([one.sandbox_id for one in pages.next_items()])
    assert names == [[other.sandbox_id for other in others[:0:-1]], [first.sandbox_id]]
    assert found(metadata={"run": RUN}) == [box.sandbox_id]
    assert first.pause() is True
    assert first.pause() is False
    assert not first.is_running()
    assert first.get_info().state == SandboxState.PAUSED
    fails(SandboxNotRunningException, first.commands.run, "true")
    assert found(metadata={"run": RUN + "2"}, state=[SandboxState.PAUSED]) == [first.sandbox_id]
    assert first.connect(timeout=100).commands.run("echo back").stdout == "back\n"
    assert all(other.kill() for other in rest)
    first.set_timeout(1)
    time.sleep(2.5)
    assert not first.is_running()
    fails(SandboxNotFoundException, first.get_info)
    fails(SandboxNotFoundException, first.set_timeout, 5)


def end(box):
    threading.Timer(1, box.kill).start()
    fails(TimeoutException, box.run_code, "import time; time.sleep(30)")
    assert not box.is_running()
    assert box.kill() is False
    fails(TimeoutException, box.run_code, "1")
    fails(TimeoutException, box.create_code_context)
    fails(SandboxNotRunningException, box.commands.run, "true")
    fails(SandboxNotRunningException, box.files.read, "empty")
    fails(SandboxNotRunningException, box.files.list, ".")


sandbox = Sandbox.create(timeout=200, metadata={"run": RUN}, envs={"FROM": "create"})
parts = (
    code,
    results,
    contexts,
    interrupts,
    contents,
    folders,
    commands,
    background,
    terminals,
    service,
    copies,
    urls,
    ports,
    several,
    end,
)
for part in parts:
    part(sandbox)
print("all")

"""What people do with a sandbox every day and expect to work: large files, signals, environments, common programs."""

# ruff: noqa: E501

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

import pytest
from waiting import eventually

from rollenv.core.tools.python import PythonCodeTool
from rollenv.sandbox import (
    Execution,
    FileIsDirectory,
    FileRefused,
    InvalidArgument,
    Limits,
    NotADirectory,
    NotFound,
    Pool,
    Sandbox,
    SandboxDied,
    SandboxError,
    SandboxFileError,
)
from rollenv.sandbox.types import to_bytes

MIB = 1 << 20


#: Of the sandbox that the tests of this file share.
LIMITS = Limits(seconds=10, memory_mb=384, disk_mb=64)


def test_an_interrupt_while_nothing_runs_changes_nothing(box):
    box.interrupt()
    box.run_code("kept = 1")
    box.interrupt()
    time.sleep(0.1)
    assert box.run_code("kept").text == "1"


def test_a_context_that_ended_while_idle_starts_anew(box):
    name = box.create_context(cwd="/tmp")
    box.run_code("import threading, os; threading.Timer(0.1, os._exit, (3,)).start()", context=name)
    time.sleep(0.5)
    assert box.run_code("import os; os.getcwd()", context=name).text == "'/tmp'"
    box.run_code("1")
    bomb = "import os, time\nfor _ in range(9):\n    if os.fork() == 0: break\nx = b'x' * (300 << 20); time.sleep(9)"
    assert box.commands.run(["python3", "-c", bomb] if box.backend == "local" else ["echo"]).exit_code in (0, 137)
    assert box.run_code("1 + 1").text == "2"


@pytest.mark.parametrize("folder", ["/home/user", "/tmp", "/dev/shm"])
def test_code_says_where_it_is_by_the_names_that_its_owner_uses(folder):
    program = "import os; print(os.getcwd(), os.path.realpath('a'), os.path.abspath(__file__))\n1 / 0"
    with Sandbox.create(limits=LIMITS) as box:
        box.files.write(f"{folder}/a", program)
        for command in ("pwd", "pwd -P", "realpath .", "python3 -c 'import os; print(os.getcwd())'"):
            assert box.commands.run(command, cwd=folder).stdout.strip() == folder
        done = box.commands.run("python3 a", cwd=folder)
        assert done.stdout.split() == [folder, f"{folder}/a", f"{folder}/a"]
        assert f'File "{folder}/a", line 2' in done.stderr
        box.files.rename(f"{folder}/a", "/home/user/b")
        assert box.files.read("/box/home/b") == program


def test_watches_in_sandboxes_are_not_taken_from_the_users_own():
    if os.geteuid() != 0:
        pytest.skip("the sandboxes of an ordinary user count as that user's")
    libc = ctypes.CDLL(None)

    def left():
        instances = list(iter(libc.inotify_init, -1))
        for fd in instances:
            os.close(fd)
        return len(instances)

    before = left()
    with Sandbox.create(limits=LIMITS) as box:
        assert (
            box.run_code("import ctypes\n[ctypes.CDLL(None).inotify_init() for _ in range(20)][-1] > 0").text == "True"
        )
        assert left() == before


def test_a_fork_that_a_cell_does_not_end_gives_no_second_answer(box):
    assert box.run_code("import os\npid = os.fork()\nprint('both')\npid == 0").text == "False"
    assert box.run_code("'next'").text == "'next'"


def test_values_that_cannot_be_shown_are_left_out(box):
    code = """
class Circular:
    def _repr_json_(self):
        x = []; x.append(x); return x
    def _repr_html_(self): raise RuntimeError
    def _repr_png_(self): return 5
    def __repr__(self): return "shown"
Circular()
"""
    (result,) = box.run_code(code).results
    assert (result.text, result.json, result.html) == ("shown", None, None)
    assert box.run_code("x = []\nfor _ in range(9999): x = [x]\nx") is not None
    assert box.run_code("1 + 1").text == "2"


@pytest.mark.slow
def test_large_files_and_inputs_come_through_whole(box):
    nothing = bytes(50 * MIB)
    box.files.write("large", nothing)
    assert box.files.read_bytes("large") == nothing
    assert box.commands.run("wc -c" if box.backend == "local" else ["cat"], stdin=b"\0" * 3 * MIB).stdout[:2] != ""
    box.files.remove("large")
    with pytest.raises(SandboxFileError, match="No space"):
        box.files.write("too large", bytes(65 * MIB))
    box.files.remove("too large")
    assert box.run_code("1 + 1").text == "2"


def test_a_large_input_is_read_as_it_is_needed_and_output_keeps_its_characters(box):
    data = "é\0" * (6 * MIB)
    done = box.run_code("1")
    assert isinstance(done, Execution)
    program = "import sys; d = sys.stdin.buffer.read(); print(len(d)); sys.stdout.write('é' * 100001)"
    with Pool(1, limits=Limits(memory_mb=384)) as pool:
        result = pool.run(program, stdin=data)
        assert result.stdout == f"{len(data.encode())}\n" + "é" * 100001
        assert pool.run("print(5)", stdin=data).stdout == "5\n", "one that does not read it"
        assert pool.run("import sys; print(sys.stdin.buffer.read())", stdin=b"\xff\0").stdout == "b'\\xff\\x00'\n"


def test_variables_for_one_cell(box):
    assert box.run_code("import os; os.environ['X']", env={"X": "5"}).text == "'5'"
    assert box.run_code("os.environ.get('X')").text is None


@pytest.mark.parametrize(
    "env", [{"A=B": "x"}, {"": "x"}, {"A\0": "x"}, {"A": "\0"}, {"A": "\ud800"}, {"A": 1}], ids=repr
)
def test_variables_that_cannot_be_are_refused_and_cost_no_state(box, env):
    box.run_code("kept = 1")
    for run in (box.run_code, box.commands.run):
        with pytest.raises(InvalidArgument, match="environment variable"):
            run("1", env=env)
    assert box.run_code("kept").text == "1"


def test_contexts_that_are_too_many_are_named():
    with Sandbox.create(limits=Limits(processes=4)) as box, pytest.raises(SandboxError, match="contexts"):
        [box.create_context() for _ in range(100)]


def test_a_content_is_a_text_or_bytes(box):
    with pytest.raises(TypeError):
        box.files.write("zeros", 5)
    assert not box.files.exists("zeros")


def test_where_a_command_starts(box):
    box.files.make_dir("a/b")
    assert box.commands.run("pwd || echo $PWD", cwd="a/b").stdout.strip().endswith("/a/b")
    with pytest.raises(NotFound):
        box.commands.run("pwd", cwd="absent")
    name = box.create_context(cwd="a")
    assert box.run_code("import os; os.listdir('.')", context=name).text == "['b']"
    box.remove_context(name)
    box.files.remove("a")


def test_bytes_on_standard_input(box):
    assert box.commands.run("cat", stdin=b"\xc3\xa9").stdout == "é"
    handle = box.commands.start("cat")
    handle.send_stdin(b"one\n")
    handle.send_stdin("two\n", close=True)
    assert handle.wait(60).stdout == "one\ntwo\n"


def test_errors_of_files_are_of_pythons_kinds(box):
    box.files.write("file", "x")
    for path, kind in {"/tmp": IsADirectoryError, "absent": FileNotFoundError, "file/x": NotADirectoryError}.items():
        with pytest.raises(kind):
            box.files.read(path)
    with pytest.raises(PermissionError):
        box.files.write("/usr/x", "x")
    box.run_code("import os; os.chmod('file', 0)")
    with pytest.raises(PermissionError):
        box.files.read("file")
    assert issubclass(FileIsDirectory, IsADirectoryError)
    assert issubclass(FileRefused, PermissionError)
    assert issubclass(NotADirectory, NotADirectoryError)
    assert not box.files.exists("file/x")
    box.files.remove("file")


@pytest.mark.parametrize("path", ["cut\0short", "folder/cut\0short"])
def test_a_zero_byte_in_a_path_is_refused_and_nothing_else_is_written(box, path):
    for operation in (lambda: box.files.write(path, "x"), lambda: box.files.read(path)):
        with pytest.raises(SandboxFileError):
            operation()
    assert not box.files.exists(path.partition("\0")[0])


def test_what_is_no_file_is_not_read_and_nothing_hangs(box):
    box.run_code(
        "import os, socket\nfor n in ('fifo', 'link', 'sock'):\n    if os.path.lexists(n): os.remove(n)\n"
        "os.mkfifo('fifo'); os.symlink('/proc/self/fd/1', 'link'); socket.socket(1).bind('sock')"
    )
    for path in ("fifo", "link", "sock", "/dev/zero", "/dev/stdin", "/proc/self/maps", "/proc/1/fd/2"):
        with pytest.raises(SandboxFileError):
            box.files.read(path)
        with pytest.raises(SandboxFileError):
            box.files.write(path, "x")


def test_signals_are_reported_as_shells_tell_them(box):
    assert box.commands.run("kill -TERM $$").exit_code == 128 + 15
    assert box.commands.run("exit 7").exit_code == 7
    for number in (40, 34, 64):
        done = box.commands.run(f"kill -{number} $$")
        assert (done.exit_code, done.error.name) == (128 + number, "Killed")
        done = box.run_code(f"import os; os.kill(os.getpid(), {number})")
        assert (done.exit_code, done.error.value) == (-number, f"a signal ended it: {_name(number)}")


def _name(number: int) -> str:
    return {34: "SIGRTMIN", 64: "SIGRTMAX"}.get(number, f"signal {number}")


def test_programs_ignore_no_signal_that_this_process_ignores():
    """A shell starts what stands before ``&`` with SIGINT and SIGQUIT ignored, nohup with SIGHUP."""
    code = """if True:
        import signal, rollenv.sandbox
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        with rollenv.sandbox.Sandbox.create() as box:
            print(box.commands.run("grep SigIgn /proc/self/status").stdout)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    ignored = int(done.stdout.split()[1], 16)
    assert [number for number in (1, 2, 3, 15) if ignored >> (number - 1) & 1] == []


def test_one_command_may_end_another(box):
    handle = box.commands.start(["sleep", "60"])
    pids = (
        "import os\n[int(p) for p in os.listdir('/proc') if p.isdigit() and 'sleep' in open(f'/proc/{p}/comm').read()]"
    )
    found = eventually(lambda: json.loads(box.run_code(pids).text))
    box.run_code(f"import os\nfor pid in {found}: os.kill(pid, 15)")
    assert handle.wait(60).exit_code == 128 + 15


def test_modules_beside_the_code_can_be_imported_whatever_their_names(box):
    for name in ("kernel", "files", "mine"):
        box.files.write(f"{name}.py", "value = 5")
    assert box.run_code("import kernel, files, mine; kernel.value + files.value + mine.value").text == "15"


def test_code_under_which_the_sandbox_ends_has_failed():
    with Sandbox.create() as box:
        box.run_code("1")
        threading.Timer(0.3, box._worker.channel.process.kill).start()
        done = box.run_code("import time; time.sleep(9)")
        assert (done.error.name, done.exit_code) == ("SandboxDied", -9)
        with pytest.raises(SandboxDied):
            box.run_code("1")


def test_a_tool_says_that_its_sandbox_ended_and_goes_on():
    tool = PythonCodeTool(stateful=True)
    try:
        tool.execute_action("<python>1</python>")
        threading.Timer(0.3, tool._sandbox._worker.channel.process.kill).start()
        done = tool.execute_action("<python>import time; time.sleep(3)</python>")
        assert done.has_error
        assert "ended" in done.observation
        assert "2" in tool.execute_action("<python>1 + 1</python>").observation
    finally:
        tool.close()


def test_a_virtual_environment_in_the_temporary_folder_is_seen(tmp_path):
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "only_here.py").write_text("value = 42")
    ours = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})")
    script = (
        "from rollenv.sandbox import Pool\n"
        "with Pool(1, packages=['only_here']) as pool:\n"
        "    done = pool.run('import sys; print(\"only_here\" in sys.modules); import only_here; print(only_here.value)')\n"
        "    print(done.stdout, done.stderr)"
    )
    done = subprocess.run([folder / "bin/python", "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "42"], done.stderr[-1000:]


@pytest.mark.integration
def test_root_of_a_user_namespace_is_served_or_told_what_it_is():
    if os.geteuid() != 0:
        pytest.skip("only root can see the difference")
    script = (
        "from rollenv.sandbox import Sandbox, IsolationError\n"
        "try:\n    with Sandbox.create() as box: print(box.run_code('6 * 7').text)\n"
        "except IsolationError as error: print('user namespace' in str(error) and 42)"
    )
    as_user = [sys.executable, str(Path(__file__).with_name("as_user.py"))]
    command = [*as_user, "unshare", "-Ur", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "42\n", done.stderr[-1000:]


@pytest.mark.slow
def test_common_programs_work(box):
    code = """
import asyncio, concurrent.futures, ctypes, fcntl, hashlib, http.client, http.server, multiprocessing, mmap, os, pathlib
import random, select, shutil, signal, socket, sqlite3, subprocess, tempfile, threading, time, zipfile
with tempfile.TemporaryDirectory() as d:
    p = pathlib.Path(d, "f"); p.write_text("x"); shutil.copy2(p, p.with_suffix(".g")); os.utime(p, (10**9, 10**9)); os.chmod(p, 0o600)
    with zipfile.ZipFile(p.with_suffix(".zip"), "w") as z: z.write(p, "f")
    with open(p, "r+b") as f: fcntl.flock(f, fcntl.LOCK_EX); mmap.mmap(f.fileno(), 1).close()
db = sqlite3.connect("db"); db.execute("create table t (x)"); db.execute("insert into t values (1)"); db.commit()
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
c = http.client.HTTPConnection("127.0.0.1", server.server_port); c.request("GET", "/"); status = c.getresponse().status
async def shell():
    p = await asyncio.create_subprocess_shell("echo $((1 + 1))", stdout=-1); return (await p.communicate())[0]
with concurrent.futures.ThreadPoolExecutor(2) as e: squares = list(e.map(lambda x: x * x, range(3)))
with multiprocessing.get_context("fork").Pool(2) as p: cubes = p.map(abs, range(-3, 0))
value = multiprocessing.Value("i", 5); lock = multiprocessing.Lock()
m = mmap.mmap(-1, 4096); m.write(b"x")
(status, asyncio.run(shell()), squares, cubes, value.value, subprocess.run(["cat"], input=b"x", capture_output=True).stdout)
"""
    done = box.run_code(code)
    assert done.text == "(200, b'2\\n', [0, 1, 4], [3, 2, 1], 5, b'x')", done.error


@pytest.mark.integration
@pytest.mark.parametrize(
    ("program", "output"),
    {
        "node -e 'console.log(6 * 7); setTimeout(() => console.log(1), 10)'": "42\n1\n",
        "perl -e 'print 6 * 7'": "42",
        "bash -c 'a=(1 2); for i in {1..3}; do echo $i; done | sort -r | head -1; echo ${a[1]}'": "3\n2\n",
        "echo hello > f; tar cf - f | gzip | gzip -d | tar xOf -; sed s/h/j/ f; awk '{print $1}' f; grep -c h f; find f": (
            "hello\njello\nhello\n1\nf\n"
        ),
        "python3 -c 'import numpy as n; a = n.random.rand(200, 200); print(n.linalg.svd(a)[1].shape)'": "(200,)\n",
        "touch -d @5 g && cp -a g h && ls -l h | wc -l; mktemp -d | cut -c1-5; nproc > n; sort -n n | wc -l; sync; df . | wc -l": (
            "1\n/tmp/\n1\n2\n"
        ),
    }.items(),
)
def test_common_tools_work(program, output):
    name = program.split()[0]
    path = f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin"
    with Sandbox.create(limits=Limits(seconds=10, memory_mb=2048)) as box:
        done = box.commands.run(program, env={"PATH": path})
    if done.exit_code == 127:
        pytest.skip(f"there is no {name} here")
    assert done.stdout == output, done.stderr[-500:]


@pytest.mark.integration
def test_mounts_below_the_systems_folders_are_read_only_too():
    if os.geteuid() != 0:
        pytest.skip("only root can mount something there")
    folder = Path("/usr/share")
    script = (
        "from rollenv.sandbox.inside import linux\nfrom rollenv.sandbox import Sandbox\n"
        "linux.unshare(linux.CLONE_NEWNS); linux.mount('none', '/', None, linux.MS_REC | linux.MS_PRIVATE)\n"
        f"linux.mount('nested', {str(folder)!r}, 'tmpfs', 0, '')\n"
        "with Sandbox.create() as box: print(box.commands.run('grep nested /proc/self/mounts').stdout)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert {"ro", "nosuid", "nodev"} <= set(done.stdout.split()[3].split(",")), done.stderr[-500:]


@pytest.mark.integration
@pytest.mark.parametrize("who", ["root", "ordinary user"])
def test_memory_is_limited_where_a_part_of_proc_is_masked(who):
    if os.geteuid() != 0:
        pytest.skip("only root can mask a part of /proc")
    mask = (
        "import os, sys\nfrom rollenv.sandbox.inside import linux\nlinux.unshare(linux.CLONE_NEWNS)\n"
        "linux.mount('none', '/', None, linux.MS_REC | linux.MS_PRIVATE)\n"
        "linux.mount('mask', '/proc/tty', 'tmpfs', linux.MS_RDONLY)\nos.execv(sys.argv[1], sys.argv[1:])"
    )
    script = (
        "from rollenv.sandbox import Sandbox, Limits\n"
        "with Sandbox.create(limits=Limits(memory_mb=256)) as box:\n"
        "    code = 'import os, time\\nfor _ in range(9):\\n  if os.fork() == 0: x = bytes(1) * (60 << 20); time.sleep(9)\\ntime.sleep(5)'\n"
        "    print(box._worker.about['proc'], box.run_code(code).error.name, box.run_code('6 * 7').text)"
    )
    as_user = [sys.executable, str(Path(__file__).with_name("as_user.py"))] if who != "root" else []
    command = [sys.executable, "-c", mask, *as_user, sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "MemoryLimit", "42"], done.stderr[-1000:]


def test_a_program_sees_how_much_memory_it_may_use(box):
    seen = """for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
    try: print(int(open(path).read()) >> 20)
    except OSError: pass"""
    shown = "".join(box.run_code(seen).logs.stdout).split()
    room = 0 if box.backend == "local" else 32  # a container's group also has the kernel program
    assert shown
    assert all(LIMITS.memory_mb <= int(each) <= LIMITS.memory_mb + room for each in shown)
    if box.backend == "local":
        assert box.commands.run("grep MemTotal /proc/meminfo").stdout.split()[1] == f"{LIMITS.memory_mb << 10}"


def test_the_shell_has_the_python_of_the_cells(local):
    program = "import rich, sys; print(rich.__file__, sys.version, *sys.argv[1:])"
    local.files.write("work.py", program)
    wanted = f"{local.run_code(program).logs.stdout[0].strip()} a b"
    for command in (
        "python work.py a b",
        "python3 work.py a b",
        "/usr/bin/env python work.py a b",
        "cd /tmp && python ~/work.py a b",
    ):
        assert local.commands.run(command).stdout.strip() == wanted
    assert local.run_code("!python work.py a b").logs.stdout[0].strip() == wanted


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", "\ud83d\ude00\udc80"])
def test_a_lone_surrogate_reaches_the_program(text, box):
    assert box.commands.run("cat", stdin=text).stdout == to_bytes(text).decode("utf-8", "backslashreplace")
    box.files.write("text", text)
    assert box.files.read_bytes("text") == to_bytes(text)
    running = box.commands.start("cat")
    running.send_stdin(text, close=True)
    assert running.wait().exit_code == 0
    assert box.run_code(f"len({text!a})").error is None
    assert box.run_code(text).error is not None


def test_processes_of_one_sandbox_do_not_count_against_another(backend):
    limits = Limits(seconds=20, processes=12)
    with Sandbox.create(**backend, limits=limits) as one, Sandbox.create(**backend, limits=limits) as two:
        for box in (one, two):
            cell = "import subprocess; running = [subprocess.Popen(['sleep', '60']) for _ in range(7)]; len(running)"
            assert box.run_code(cell).text == "7"


def test_each_sandbox_has_users_of_its_own():
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has no others to give")
    with Sandbox.create() as one, Sandbox.create() as two:
        maps = [box.commands.run("cat /proc/self/uid_map").stdout.split() for box in (one, two)]
        assert not {maps[0][1], maps[0][4]} & {maps[1][1], maps[1][4]}
        assert one.isolation["own_users"]


def test_locks_on_the_systems_files_are_not_shared(local):
    if not local.isolation["own_files"]:
        pytest.skip("this kernel has no overlays for users, and the sandbox says so")
    lock = "import fcntl, os\nfd = os.open(os.__file__, 0)\nfcntl.flock(fd, fcntl.LOCK_EX)"
    assert local.run_code(lock).error is None
    with open(os.__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with Sandbox.create() as other:
        assert other.run_code(lock + "\n5", timeout=5).text == "5"

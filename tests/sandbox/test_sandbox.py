"""What a person does with a sandbox, on both backends."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import time

import pytest
from waiting import running

from rollenv.sandbox import (
    AsyncSandbox,
    ContextBusy,
    InvalidArgument,
    IsolationError,
    Limits,
    NotFound,
    Sandbox,
    SandboxDied,
    SandboxError,
    SandboxTimeout,
)

#: Of the sandboxes that the tests of this file share, one of each backend.
LIMITS = Limits(seconds=10, memory_mb=256)


def test_the_last_expression_is_the_result_and_state_is_kept(box):
    done = box.run_code("x = 20\nprint('out')\nimport sys; print('err', file=sys.stderr)\nx + 1")
    assert done.text == "21"
    assert "".join(done.logs.stdout) == "out\n"
    assert "".join(done.logs.stderr) == "err\n"
    assert done.error is None
    assert box.run_code("x * 2").text == "40"


def test_errors_are_structured(box):
    error = box.run_code("def f():\n    return 1 / 0\nf()").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert re.search(r'File "<cell \d+>", line 2, in f\n    return 1 / 0\n', error.traceback)
    assert "kernel" not in error.traceback
    assert box.run_code("(").error.name == "SyntaxError"
    assert box.run_code("raise SystemExit(3)").error.name == "SystemExit"


@pytest.mark.combinations
@pytest.mark.parametrize("letter", ["x", "é", "🌞"])
def test_a_long_message_of_an_exception_comes_whole(box, letter):
    """Frameworks of agents pass final answers on as one: pictures, too."""
    results = "for _ in range(13): display('r' * 2**20)\n"
    done = box.run_code(f"{results}raise ValueError({letter!r} * 2**18)")
    assert done.error.value == letter * 2**18
    assert done.error.name == "ValueError"
    assert len(done.results) == 13
    longer = box.run_code(f"{results}raise ValueError({letter!r} * 2**21)").error
    assert (longer.name, len(longer.value.encode())) == ("ValueError", 2**20)


def test_rich_results(box):
    code = """
class Shown:
    def _repr_html_(self): return "<b>x</b>"
    def _repr_svg_(self): return "<svg/>"
    def _repr_png_(self): return b"png"
    def __repr__(self): return "shown"
display({"a": [1, 2]})
Shown()
"""
    first, second = box.run_code(code).results
    assert (first.json, first.is_main_result) == ({"a": [1, 2]}, False)
    assert (second.html, second.svg, second.png, second.text) == ("<b>x</b>", "<svg/>", "cG5n", "shown")


def test_output_comes_while_the_code_runs(box):
    with running(box, "import os, time\nwhile not os.path.exists('seen'): time.sleep(0.01)\nprint('end')") as ended:
        box.files.write("seen", "")
    assert "".join(ended[0].logs.stdout) == "begun\nend\n"


def test_a_timeout_holds_and_keeps_the_state_of_code_that_can_be_interrupted(box):
    box.run_code("z = 5")
    assert box.run_code("while True: pass", timeout=0.5).error.name == "Timeout"
    assert box.run_code("z").text == "5"


@pytest.mark.combinations
@pytest.mark.slow
def test_a_context_that_ignores_the_interrupt_is_ended_and_replaced(box):
    code = "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass"
    assert box.run_code(code, timeout=0.5).error.name == "Timeout"
    assert box.run_code("1 + 1").text == "2"


def test_interrupt(box):
    with running(box, "import time; time.sleep(60)") as ended:
        box.interrupt()
    assert ended[0].error.name == "KeyboardInterrupt"


@pytest.mark.combinations
@pytest.mark.slow
def test_a_busy_context_says_so(box):
    with running(box, "import time; time.sleep(60)"):
        with pytest.raises(ContextBusy):
            box.run_code("1")
        box.interrupt()


@pytest.mark.parametrize("code", ["import os; os._exit(7)", "import os, signal; os.kill(os.getpid(), 9)"])
def test_an_exit_that_cannot_be_caught_is_reported_and_the_next_run_works(box, code):
    done = box.run_code(code)
    assert done.error.name in ("Exit", "Killed")
    assert done.exit_code in (7, -9)
    assert box.run_code("1 + 1").text == "2"


def test_too_much_output_is_an_error(box):
    done = box.run_code("while True: print('x' * 1000)")
    assert done.error.name == "OutputLimit"
    assert len("".join(done.logs.stdout)) == Limits().output_bytes
    assert box.run_code("1 + 1").text == "2"


def test_too_much_memory_is_an_error(box):
    assert box.run_code("x = bytearray(1 << 30)").error.name == "MemoryError"
    assert box.run_code("1 + 1").text == "2"


def test_commands(box):
    done = box.commands.run("echo out; echo err >&2; cat; exit 3", stdin="given")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\ngiven", "err\n", 3)
    assert box.commands.run(["echo", "a b", "$HOME"]).stdout == "a b $HOME\n"
    assert box.commands.run("echo $GREETING", env={"GREETING": "hi"}).stdout == "hi\n"
    assert box.commands.run("sleep 9", timeout=0.3).error.name == "Timeout"
    with pytest.raises(NotFound):
        box.commands.run(["no-such-program"])
    assert box.run_code("echo $((6 * 7))", language="bash").logs.stdout == ["42\n"]


def test_commands_in_the_background(box):
    handle = box.commands.start("cat; echo end")
    handle.send_stdin("one\n")
    with pytest.raises(SandboxTimeout):
        handle.wait(0.2)
    assert box.run_code("1 + 1").text == "2", "other things go on meanwhile"
    handle.send_stdin("two\n", close=True)
    assert handle.wait(60).stdout == "one\ntwo\nend\n"
    sleeper = box.commands.start("sleep 60", timeout=100)
    time.sleep(0.2)
    assert sleeper.kill()
    assert sleeper.wait(60).exit_code == 128 + 9
    assert not sleeper.kill()


def test_files(box):
    data = bytes(range(256)) * 100
    box.files.write("folder/data.bin", data)
    assert box.files.read_bytes("folder/data.bin") == data
    assert box.run_code("len(open('folder/data.bin', 'rb').read())").text == str(len(data))
    box.run_code("open('folder/from_code', 'w').write('é')")
    assert box.files.read("folder/from_code") == "é"
    assert [(e.name, e.type, e.size) for e in box.files.list("folder")] == [
        ("data.bin", "file", len(data)),
        ("from_code", "file", 2),
    ]
    box.files.rename("folder/from_code", "moved")
    assert box.files.exists("moved")
    box.files.remove("folder")
    assert not box.files.exists("folder")
    with pytest.raises(NotFound):
        box.files.read("absent")
    with pytest.raises(SandboxError):
        box.files.write("/usr/bad", "x")


def test_bad_arguments_are_explained(box, backend):
    for timeout in (0, -1):
        with pytest.raises(InvalidArgument, match="above 0"):
            box.run_code("1", timeout=timeout)
    with pytest.raises(InvalidArgument, match="no language"):
        box.run_code("1", language="cobol")
    with pytest.raises(InvalidArgument, match="above 0"):
        Limits(memory_mb=0)
    with pytest.raises(InvalidArgument, match="at most"):
        Limits(output_bytes=1 << 40)
    with pytest.raises(InvalidArgument, match="isolation"):
        Sandbox.create(**backend, require=["no_gravity"])


def test_unknown_backends_and_settings():
    with pytest.raises(InvalidArgument, match="docker"):
        Sandbox.create(backend="chroot")
    with pytest.raises(InvalidArgument, match="'image'"):
        Sandbox.create(image="x")


def test_isolation_is_reported_and_less_than_asked_for_is_refused(box, backend):
    assert all(box.isolation[name] for name in ("no_network", "hidden_files", "seccomp", "no_capabilities"))
    if not box.isolation["landlock"]:
        with pytest.raises(IsolationError, match="landlock"):
            Sandbox.create(**backend, require=["landlock"])


@pytest.mark.slow
def test_files_and_packages_at_creation(backend):
    with Sandbox.create(**backend, files={"a.txt": "hello"}, packages=["decimal"], env={"K": "v"}) as box:
        assert box.run_code("open('a.txt').read()").text == "'hello'"
        assert box.run_code("import sys; 'decimal' in sys.modules").text == "True"
        assert box.run_code("import os; os.environ['K']").text == "'v'"


@pytest.mark.slow
def test_kill_ends_everything(backend):
    box = Sandbox.create(**backend)
    box.commands.start("sleep 1000", timeout=2000)
    box.kill()
    box.kill()
    assert not box.alive
    with pytest.raises(SandboxDied):
        box.run_code("1")


@pytest.mark.combinations
@pytest.mark.slow
def test_kill_leaves_no_descriptor_open(backend):
    Sandbox.create(**backend).kill()  # what is opened once and kept is open now
    gc.collect()
    gc.disable()
    try:
        before = os.listdir("/proc/self/fd")
        Sandbox.create(**backend).kill()
        assert len(os.listdir("/proc/self/fd")) <= len(before)
    finally:
        gc.enable()


@pytest.mark.combinations
@pytest.mark.slow
def test_asyncio(backend):
    async def play() -> None:
        async with await AsyncSandbox.create(**backend) as box:
            assert (await box.run_code("6 * 7")).text == "42"
            assert (await box.commands.run("echo hi")).stdout == "hi\n"
            task = asyncio.create_task(box.run_code("import time; time.sleep(30)", timeout=60))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.5)
            assert (await box.run_code("1 + 1")).text == "2"

    asyncio.run(play())


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_commands_of_a_cancelled_task_are_killed(backend, seconds):
    """Also those that have not begun, and as many as asyncio has threads for."""

    async def play() -> None:
        async with await AsyncSandbox.create(**backend) as box:
            many = [asyncio.create_task(box.commands.run(["sleep", "500"], timeout=600)) for _ in range(40)]
            await asyncio.sleep(seconds)
            for each in many:
                each.cancel()
            ended = await asyncio.wait_for(asyncio.gather(*many, return_exceptions=True), 100)
            assert all(isinstance(each, asyncio.CancelledError) for each in ended)
            assert await box.commands.list() == []

    asyncio.run(play())


@pytest.mark.slow
def test_matplotlib_figures_are_results():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    with Sandbox.create(env={"MPLBACKEND": "agg"}) as box:
        done = box.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nNone")
        assert done.error is None, done.error
        assert done.results[-1].png.startswith("iVBOR")


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="not in an environment that could be linked")
def test_an_environment_behind_a_link_is_seen(tmp_path):
    (tmp_path / "linked").symlink_to(sys.prefix)
    code = (
        "from rollenv.sandbox import Sandbox\nwith Sandbox.create() as box: print(box.run_code('import numpy').error)"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    words = [tmp_path / "linked/bin/python", "-c", code]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.stdout.strip() == "None", done.stdout + done.stderr

"""Code that tampers with what is reported of it: neither host nor kernel breaks, and later results are right."""

# ruff: noqa: E501

from __future__ import annotations

import json

import pytest
from waiting import eventually

from rollenv.sandbox import Limits, Pool, types
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.inside.child import REPORTS, REQUESTS
from rollenv.sandbox.inside.protocol import FrameKind, frame

#: Of the sandbox that the tests of this file share.
LIMITS = Limits(seconds=2, memory_mb=256)


#: Finds the number of the cell that runs, as any code can that looks into its own process.
NUMBER = f"""
import os, sys
frame = sys._getframe()
while not hasattr(frame.f_locals.get("cell"), "number"): frame = frame.f_back
number = str(frame.f_locals["cell"].number).encode()
end = bytes([{FrameKind.DONE}]) + len(number).to_bytes(4, "big") + number
"""

FORGED = {
    "json": b'{"results": null}\n',
    "more json": b'{"results": 5, "error": "x"}\n',
    "deep": b"[" * 100_000,
    "an unknown kind": b"Z\0\0\0\1x",
    "a huge frame": bytes([FrameKind.ERROR]) + b"\xff\xff\xff\xff",
    "a field of nothing": frame(FrameKind.FIELD, "text", "x"),
    "a field without a name": frame(FrameKind.RESULT_BEGIN) + frame(FrameKind.FIELD, "\n", "x"),
    "the end of another cell": frame(FrameKind.DONE, "999999"),
    "the end of no cell": frame(FrameKind.DONE, "-1"),
    "half a frame": frame(FrameKind.RESULT_BEGIN)[:3],
    "a failure": frame(FrameKind.FAILED, "2", "no such file"),
    "a failure without a number": frame(FrameKind.FAILED, "x"),
    "ready again": frame(FrameKind.READY),
    "a wrong encoding": frame(FrameKind.RESULT_BEGIN)[:-4] + b"\0\0\0\2\xff\xfe",
    "an error": frame(FrameKind.ERROR, "Name", "value", "trace"),
    "many results": frame(FrameKind.RESULT_BEGIN) * 20_000,
    "a result that lies about itself": frame(FrameKind.RESULT_BEGIN) + frame(FrameKind.FIELD, "is_main_result", "x"),
    "a whole result of nothing": frame(FrameKind.RESULT_END) * 3,
    "results that are whole more than once": (frame(FrameKind.RESULT_BEGIN) + frame(FrameKind.RESULT_END) * 2) * 100,
    "json that is none": frame(FrameKind.RESULT_BEGIN) + frame(FrameKind.FIELD, "json", "[" * 50_000),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_report_harms_nobody(name, box):
    done = box.run_code(f"import os\nos.write({REPORTS}, bytes.fromhex({FORGED[name].hex()!r}))\n5")
    assert done.text in ("5", None)
    assert done.text == "5" or done.error is not None
    assert [box.run_code(f"{n} + 1").text for n in range(3)] == ["1", "2", "3"]
    assert box.alive


@pytest.mark.slow
def test_an_early_end_shifts_nothing_and_is_held_to_the_time_limit(box):
    early = box.run_code(f"{NUMBER}\nos.write({REPORTS}, end)\nimport time\nwhile True: time.sleep(0.01)")
    assert early.text is None
    after = box.run_code("'after'", timeout=1)
    assert after.error is not None
    assert box.run_code("'later'").text == "'later'"


def test_code_that_takes_the_next_cell_itself_harms_itself_alone(box):
    box.run_code("1")
    assert box.run_code(f"{NUMBER}\nos.write({REPORTS}, end)\nos.read({REQUESTS}, 10000)\nos._exit(3)").exit_code in (
        None,
        3,
    )
    box.run_code("1")
    assert box.run_code("'later'").text == "'later'"


@pytest.mark.integration
def test_what_spins_between_requests_is_ended(box):
    spin = (
        "import os\nreader, writer = os.pipe()\nspinning = os.fork()\nif spinning == 0:\n    os.setsid()\n"
        "    os.write(writer, b'x')\n    while True: pass\nos.read(reader, 1)\nspinning * os.path.exists(f'/proc/{spinning}')"
    )
    pid = int(box.run_code(spin).text)
    assert pid
    assert eventually(lambda: box.run_code(f"import os; os.path.exists('/proc/{pid}')").text == "False", 60)
    assert box.run_code("1 + 1").text == "2"


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["private", "shared", "file"])
def test_memory_of_what_stays_between_requests_is_limited(kind, box):
    keep = {
        "private": "x = b'x' * (90 << 20)",
        "shared": "import mmap; x = mmap.mmap(-1, 90 << 20); x.write(b'x' * (90 << 20)); x.madvise(mmap.MADV_DONTNEED)",
        "file": "import os; open(f'/dev/shm/{os.getpid()}', 'wb').write(b'x' * (10 << 20)); x = b'x' * (80 << 20)",
    }[kind]
    code = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        try:\n            {keep}\n            time.sleep(99)\n        finally: os._exit(0)\n    os._exit(0)\ntime.sleep(0.3)"
    )
    errors = [box.run_code(code).error]
    while len(errors) < 20 and not any(
        errors
    ):  # on a busy machine some have not begun to write when the next one comes
        errors.append(box.run_code(code).error)
    assert any(error and error.name in ("MemoryLimit", "Killed") for error in errors), errors
    assert box.run_code("1 + 1").text == "2"
    box.commands.run("rm -rf /dev/shm/*")


@pytest.mark.integration
@pytest.mark.parametrize("code", ["import os; os._exit(n)", "import os; os.kill(os.getpid(), n)"])
def test_every_way_to_end_is_reported(code):
    numbers = range(1, 65) if "kill" in code else (0, 1, 7, 126, 127, 128, 255)
    with Pool(2, limits=Limits(seconds=1)) as pool:
        ended = {n: pool.run(f"n = {n}; {code}").exit_code for n in numbers if n not in (18, 19, 20, 21, 22)}
    if "kill" not in code:
        assert ended == {n: n for n in ended}
    else:
        assert all(status in (-n, 0, 1) for n, status in ended.items()), ended


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": "Unknown"},
        {"type": "Failed", "errno": "x", "message": ""},
        {"type": "Finished", "unknown": 1},
        {"type": "Finished", "results": None},
        {"type": "Finished", "results": [1]},
        {"type": "Finished", "results": [{"text": 5}]},
        {"type": "Finished", "error": "x"},
        {"type": "Finished", "exit_code": "y"},
        {"type": "Finished", "signal": -1},
        {"type": "Output", "stream": "stdin"},
        {"type": "Shown", "result": {"text": None}},
        {"type": "Value", "value": []},
    ],
)
def test_malformed_message_is_refused(message):
    with pytest.raises(protocol.ProtocolError):
        protocol.from_json(message)


def test_documents_are_read_within_bounds():
    assert types.parsed_json('{"a": [1, "]["]}') == {"a": [1, "]["]}
    for text in (
        "[" * 100_000,
        "[" + "[]," * 300_000 + "1]",
        "x",
        '"' + "a" * types.MAX_JSON + '"',
        "1" * 5000,
        '"' + '\\"' * 2_000_000,
    ):
        assert types.parsed_json(text) is None
    assert types.parsed_json(json.dumps([[1] * 10] * 100)) == [[1] * 10] * 100

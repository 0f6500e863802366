"""SandboxFusion: running and grading programs, as its client, verl and ROLL ask for it."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import threading
import time

import httpx
import pytest
from clients import run
from serving import patient
from waiting import eventually

needs = pytest.mark.skipif


def b64(text):
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def ask(server):
    with httpx.Client(base_url=server.http, timeout=60) as client:
        yield lambda path, **body: client.post(path, json=body)


@pytest.fixture
def code(ask):
    """Runs a program; what the server says of it."""

    def call(code, language="python", **more):
        answer = ask("/run_code", code=code, language=language, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return call


def open_sandboxes(server):
    return patient.get(f"{server.http}/health").json()["sandboxes"]["open"]


# -- programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.combinations
@pytest.mark.parametrize("path", ["/run_code", "/fusion/run_code"])
def test_a_plain_program(ask, path):
    told = ask(path, code="print(input()[::-1])", language="python", stdin="abc").json()
    seconds = told["run_result"].pop("execution_time")
    assert seconds > 0
    assert told == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "cba\n", "stderr": ""},
        "executor_pod_name": None,
        "files": {},
    }


def test_what_verl_and_roll_send(code):
    verl = {"compile_timeout": 5, "run_timeout": 5, "memory_limit_MB": 1024, "stdin": "2 3", "files": {}}
    told = code("a, b = map(int, input().split())\nprint(a * b)", fetch_files=[], **verl)
    assert (told["status"], told["run_result"]["status"], told["run_result"]["stdout"]) == (
        "Success",
        "Finished",
        "6\n",
    )
    roll = {"compile_timeout": 5, "run_timeout": 5, "stdin": "", "expected_stdout": "x"}
    assert code("assert 1 == 2", **roll)["run_result"]["stderr"].strip().endswith("AssertionError")


def test_ends_of_programs(code):
    failed = code("import sys; print('x'); sys.exit(3)")
    assert (failed["status"], failed["run_result"]["return_code"]) == ("Failed", 3)
    late = code("import time; print(1, flush=True); time.sleep(30)", run_timeout=0.5)
    assert late["status"] == "Failed"
    assert (late["run_result"]["status"], late["run_result"]["return_code"]) == ("TimeLimitExceeded", None)
    assert late["run_result"]["stdout"] == "1\n"
    killed = code("import os; os.kill(os.getpid(), 9)")
    assert (killed["status"], killed["run_result"]["return_code"]) == ("Failed", -9)
    for language in ("python", "bash"):
        flood = code("while True: print('x' * 1000)" if language == "python" else "yes", language)
        assert flood["status"] == "Failed"
        assert flood["run_result"]["return_code"] != 0
        assert "more output than the limit" in flood["run_result"]["stderr"]
        assert len(flood["run_result"]["stdout"]) < 6 << 20


def test_files_go_in_and_out(code, server):
    program = "from lib.part import x\nopen('out.txt', 'w').write(x * 2)\nopen('/tmp/there', 'w').write('t')"
    files = {"lib/part.py": b64("x = 'é'"), "ignored": None}
    told = code(program, files=files, fetch_files=["out.txt", "/tmp/there", "nowhere", "lib"])
    assert told["status"] == "Success", told
    assert told["files"] == {"out.txt": b64("éé"), "/tmp/there": b64("t")}
    assert open_sandboxes(server) == 0


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
def test_files_stay_inside(ask, path):
    answer = ask("/run_code", code="", language="python", files={path: b64("x")})
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


def test_what_is_fetched_is_the_sandbox_s(code, tmp_path):
    (tmp_path / "secret").write_text("of the server")
    told = code("import os; os.symlink('/proc/1/environ', 'link')", fetch_files=[str(tmp_path / "secret"), "link"])
    assert told["files"] == {}


def test_memory_limits(code, ask):
    hungry = "x = bytearray(120 << 20); print(len(x))"
    assert code(hungry)["status"] == "Success"
    assert code(hungry, memory_limit_MB=-1)["status"] == "Success"
    for language, program in (("python", hungry), ("bash", "x=$(head -c 150000000 /dev/zero | tr '\\0' x)")):
        assert code(program, language, memory_limit_MB=64)["status"] == "Failed"
    assert code("print(1)", memory_limit_MB=64)["status"] == "Success"
    assert ask("/run_code", code="", language="python", memory_limit_MB=1).status_code == 400


def test_bash(code):
    told = code("read x; echo $x >&2; exit 4", "bash", stdin="hi")
    assert (told["run_result"]["return_code"], told["run_result"]["stderr"]) == (4, "hi\n")


@needs(not shutil.which("node"), reason="there is no node here")
@pytest.mark.parametrize("language", ["nodejs", "javascript"])
def test_javascript(code, language):
    assert (
        code("console.log(require('fs').readFileSync(0, 'utf8'))", language, stdin="x")["run_result"]["stdout"] == "x\n"
    )


@needs(not shutil.which("g++"), reason="there is no compiler here")
def test_cpp(code):
    program = '#include <cstdio>\nint main() { int x; scanf("%d", &x); printf("%d", x * 2); return x; }'
    told = code(program, "cpp", stdin="21")
    assert told["compile_result"]["return_code"] == 0
    assert (told["run_result"]["stdout"], told["run_result"]["return_code"]) == ("42", 21)
    wrong = code("int main() { return x; }", "cpp")
    assert (wrong["status"], wrong["run_result"]) == ("Failed", None)
    assert "not declared" in wrong["compile_result"]["stderr"]


@pytest.mark.integration
@needs(importlib.util.find_spec("pytest") is None, reason="there is no pytest here")
def test_pytest(code):
    told = code("def test_a(): pass\ndef test_b(): assert 0", "pytest", args=["-k", "test_a"], run_timeout=60)
    assert told["status"] == "Success"
    assert "1 passed, 1 deselected" in told["run_result"]["stdout"]
    assert code("def test_b(): assert 0", "pytest", run_timeout=60)["run_result"]["return_code"] == 1


def test_languages_that_are_not_here(code):
    for language in ("lean", "", "é"):
        told = code("x", language)
        assert told["status"] == "SandboxError"
        assert "not offered here" in told["message"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": 5, "language": "python"},
        {"code": "", "language": None},
        {"code": "", "language": "python", "run_timeout": 0},
        {"code": "", "language": "python", "run_timeout": "x"},
        {"code": "", "language": "python", "files": []},
        {"code": "", "language": "python", "files": {"a": "***"}},
        {"code": "", "language": "python", "fetch_files": ["x"] * 101},
        {"code": "", "language": "python", "stdin": 5},
    ],
)
def test_wrong_requests(ask, body):
    answer = ask("/run_code", **body)
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


def test_halves_of_characters(server):
    for body in (rb'{"code": "", "language": "python", "stdin": "\ud800"}', b'{"code": "x\xed\xa0\x80"}'):
        assert patient.post(f"{server.http}/run_code", content=body).status_code == 400
    whole = rb'{"code": "print(input())", "language": "python", "stdin": "\ud83d\ude00"}'
    assert patient.post(f"{server.http}/run_code", content=whole).json()["run_result"]["stdout"] == "😀\n"


@pytest.mark.integration
def test_programs_that_attack_their_sandbox(code, server):
    for program in (
        "import os\nwhile True: os.fork()",
        "import os; os.kill(-1, 9)",
        "x = []\nwhile True: x.append(' ' * 10**7)",
    ):
        told = code(program, run_timeout=3, fetch_files=["x"])
        assert told["status"] == "Failed"
    assert code("print(1)")["status"] == "Success"
    assert eventually(lambda: open_sandboxes(server) == 0)


def test_a_client_that_leaves_ends_its_program(server):
    body = json.dumps({"code": "import time; time.sleep(60)", "language": "bash", "run_timeout": 60}).encode()
    body = body.replace(b"import time; time.sleep(60)", b"sleep 60")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert eventually(lambda: open_sandboxes(server) == 1)
    assert eventually(lambda: open_sandboxes(server) == 0)


@pytest.mark.integration
def test_many_at_once(code):
    def one(number):
        return code(f"echo {number}", "bash") if number % 2 else code(f"print({number})")

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        told = list(pool.map(one, range(48)))
    assert [each["run_result"]["stdout"] for each in told] == [f"{number}\n" for number in range(48)]


# -- cells -------------------------------------------------------------------------------------------------------------


def test_cells(ask):
    cells = ["a = 2", "a * 3", "print(a)", "1 / 0", "import sys; print('e', file=sys.stderr)\na"]
    files = {"in.txt": b64("hello")}
    cells.append("open('out.txt', 'w').write(open('in.txt').read().upper());")
    told = ask("/run_jupyter", cells=cells, files=files, fetch_files=["out.txt"]).json()
    assert told["status"] == "Success"
    assert told["driver"]["status"] == "Finished"
    assert told["files"] == {"out.txt": b64("HELLO")}
    said = told["cells"]
    assert said[1]["display"] == [{"text/plain": "6"}]
    assert said[2]["stdout"] == "2\n"
    assert said[3]["stderr"] == ""
    assert said[3]["error"][0]["ename"] == "ZeroDivisionError"
    assert said[3]["error"][0]["evalue"] == "division by zero"
    assert len(said[3]["error"][0]["traceback"]) > 1
    assert (said[4]["stderr"], said[4]["display"]) == ("e\n", [{"text/plain": "2"}])
    again = ask("/run_jupyter", cells=["a"]).json()
    assert again["cells"][0]["error"][0]["ename"] == "NameError"


@pytest.mark.parametrize("limit", [{"cell_timeout": 0.5}, {"total_timeout": 0.8}])
def test_cells_that_take_long(ask, limit):
    told = ask("/run_jupyter", cells=["1", "while True: pass", "2"], **limit).json()
    assert told["status"] == "Failed"
    assert told["driver"]["status"] == "TimeLimitExceeded"
    assert told["driver"]["return_code"] is None
    assert len(told["cells"]) == 2


def test_cells_that_end_the_interpreter_or_say_too_much(ask):
    told = ask("/run_jupyter", cells=["import os; os._exit(3)", "1"]).json()
    assert (told["status"], told["driver"]["status"], len(told["cells"])) == ("Failed", "Error", 1)
    told = ask("/run_jupyter", cells=["print('x' * 3_500_000)"] * 30).json()
    assert told["status"] == "Failed"
    assert 5 < len(told["cells"]) < 15
    spoof = "class Timeout(Exception): pass\nraise Timeout()"
    assert ask("/run_jupyter", cells=[spoof, "1"]).json()["status"] == "Success"


def test_displays_that_json_cannot_say(ask):
    cell = (
        "class A:\n    def _repr_json_(self): return {'x': float('nan')}\n    def __repr__(self): return '\\ud800'\nA()"
    )
    answer = ask("/run_jupyter", cells=[cell])
    assert answer.status_code == 200
    assert "NaN" not in answer.text
    assert answer.json()["cells"][0]["display"]


# -- the real client ---------------------------------------------------------------------------------------------------

CLIENT = """
import asyncio, base64, os
from sandbox_fusion import *
set_endpoint(os.environ["URL"])
def ran(code, language="python", **more):
    return run_code(RunCodeRequest(code=code, language=language, **more), max_attempts=1)
told = ran("print(input())", stdin="x")
assert told.status == RunStatus.Success and told.run_result.stdout == "x\\n", told
mapping = SummaryMapping(RunFailed="failed", RunTimeout="late", CompileFailed="compile")
assert summary_run_code_result(told, mapping) == "Success"
assert summary_run_code_result(ran("1 / 0"), mapping) == "failed"
assert summary_run_code_result(ran("while True: pass", run_timeout=0.5), mapping) == "late"
files = {"a.txt": base64.b64encode(b"q").decode()}
told = ran("cat a.txt > b.txt", "bash", files=files, fetch_files=["b.txt"])
assert told.files == {"b.txt": files["a.txt"]}, told
try:
    ran("x", "lean")
except Exception as error:
    assert "not offered here" in str(error), error
else:
    raise SystemExit("lean ran")
told = run_jupyter(RunJupyterRequest(cells=["a = 1", "a", "1 / 0"]))
assert told.cells[1].display == [{"text/plain": "1"}] and told.cells[2].error[0]["ename"] == "ZeroDivisionError"
told = asyncio.run(run_code_async(RunCodeRequest(code="print(2)", language="python")))
assert told.run_result.stdout == "2\\n"
told = run_concurrent(ran, args=[[f"print({i})"] for i in range(8)], concurrency=4)
assert [one.run_result.stdout for one in told] == [f"{i}\\n" for i in range(8)]
print("done")
"""


@pytest.mark.smoke
@pytest.mark.integration
@pytest.mark.parametrize("prefix", ["", "/fusion/"])
def test_sandbox_fusion(server, prefix):
    assert run("fusion", CLIENT, URL=server.http + prefix) == ["done"]
    assert os.environ.get("ROLLENV_DATA") or open_sandboxes(server) == 0


@pytest.mark.integration
def test_whoever_fills_all_sandboxes_with_calls_keeps_nobody_else_from_anything(serve, tmp_path):
    """Every call holds a thread; those that start, run alone and end have others."""
    with open(tmp_path / "log", "w") as log:
        served = serve("--sandboxes", "3", "--drain", "0.2", stderr=log)
    path = f"{served.http}/apis/envs/sandbox/v1"
    names = [patient.post(f"{path}/start_async", json={}, timeout=60).json()["result"]["sandbox_id"] for _ in range(2)]
    body = {"command": ["sleep", "300"], "timeout": 300}

    answers = []

    def hold(name):
        with contextlib.suppress(httpx.HTTPError):
            answers.append(patient.post(f"{path}/execute", json=body | {"sandbox_id": name}, timeout=120).status_code)

    threads = [threading.Thread(target=hold, args=(name,)) for name in names for _ in range(24)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    ran = patient.post(f"{served.http}/run_code", json={"code": "print(1)", "language": "python"}, timeout=30).json()
    assert ran["run_result"]["stdout"] == "1\n"
    third = patient.post(f"{path}/start_async", json={}, timeout=30).json()
    assert third["status"] == "Success"
    assert patient.post(f"{path}/stop", json={"sandbox_id": names[0]}, timeout=30).json()["status"] == "Success"
    served.signal(signal.SIGTERM)
    assert served.process.wait(30) == 0
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert 503 in answers
    assert 500 not in answers
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.integration
def test_programs_whose_clients_leave_keep_to_their_turns(serve):
    served = serve("--sandboxes", "2")
    body = {"code": "import time; time.sleep(4)", "language": "python", "run_timeout": 5}
    sent = 4 * (os.cpu_count() or 1)
    for _ in range(sent):
        with contextlib.suppress(httpx.ReadTimeout):
            patient.post(f"{served.http}/run_code", json=body, timeout=0.3)
    ran = patient.post(f"{served.http}/run_code", json={"code": "print(1)", "language": "python"}, timeout=60).json()
    assert ran["run_result"]["stdout"] == "1\n"
    (runs,) = re.findall(r"^rollenv_sandbox_runs_total (\d+)", patient.get(f"{served.http}/metrics").text, re.M)
    assert int(runs) < sent, "those that had not begun did not run"
    path = f"{served.http}/apis/envs/sandbox/v1"
    assert patient.post(f"{path}/start_async", json={}, timeout=30).json()["status"] == "Success"

"""ROCK's sandboxes: their calls over HTTP, and its client with a whole session."""

from __future__ import annotations

import concurrent.futures
import time

import httpx
import pytest
from clients import run
from serving import patient, tokens_in
from waiting import eventually

PATH = "/apis/envs/sandbox/v1"


class Api:
    """Calls of one client."""

    def __init__(self, base, **headers):
        self.http = httpx.Client(base_url=base + PATH, timeout=60, headers=headers)

    def told(self, name, **body):
        """The whole answer."""
        answer = self.http.post(f"/{name}", json=body)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert set(told) == {"status", "message", "error", "result"}
        return told

    def call(self, name, **body):
        """The result of a call that succeeds."""
        told = self.told(name, **body)
        assert told["status"] == "Success", told
        return told["result"]

    def failed(self, name, code=4000, **body):
        """Why a call fails."""
        told = self.told(name, **body)
        assert told["status"] == "Failed", told
        assert told["result"]["code"] == code, told
        assert told["error"] == told["result"]["failure_reason"]
        return told["error"]

    def status(self, sandbox, every=False):
        query = {"sandbox_id": sandbox, "include_all_states": every}
        return self.http.get("/get_status", params=query).json()


@pytest.fixture
def api(server):
    return Api(server.http)


@pytest.fixture
def box(api):
    """A sandbox: its calls with its id."""
    name = api.call("start_async", image="python:3.11", auto_clear_time_minutes=5)["sandbox_id"]

    class SandboxSession:
        id = name

        def __getattr__(self, kind):
            return lambda *call, **body: getattr(api, kind)(*call, sandbox_id=name, **body)

        def sh(self, command, session="a", **more):
            return self.call("run_in_session", session=session, command=command, action_type="bash", **more)

    yield SandboxSession()
    api.told("stop", sandbox_id=name)


# -- sandboxes ---------------------------------------------------------------------------------------------------------


def test_the_life_of_a_sandbox(server):
    api = Api(server.http, **{"X-User-Id": "ann", "X-Namespace": "n"})
    started = api.call("start_async", image="swe:1", auto_clear_time_minutes=5, memory="8g", cpus=2, sandbox_id=None)
    assert set(started) == {"sandbox_id", "host_name", "host_ip"}
    name = started["sandbox_id"]
    status = api.status(name)["result"]
    assert (status["is_alive"], status["state"], status["user_id"], status["namespace"]) == (
        True,
        "running",
        "ann",
        "n",
    )
    assert (status["image"], status["memory"]) == ("rollenv:local", "1024m")  # and not what was asked for
    assert "8192m of memory" in status["status"]["start"]["message"]
    assert isinstance(status["host_name"], str)
    assert all(step["status"] == "success" for step in status["status"].values())
    assert api.http.get("/is_alive", params={"sandbox_id": name}).json()["result"]["is_alive"]
    api.call("stop", sandbox_id=name)
    assert api.status(name)["status"] == "Failed"
    ended = api.status(name, every=True)["result"]
    assert (ended["is_alive"], ended["status"], ended["state"]) == (False, {}, "stopped")
    assert "nothing is kept" in api.failed("restart", sandbox_id=name)
    api.call("delete", sandbox_id=name)
    assert api.status(name, every=True)["result"]["state"] == "deleted"
    assert "no such sandbox" in api.failed("execute", sandbox_id=name, command="true")
    assert "no such sandbox" in api.failed("stop", sandbox_id=name)


def test_smaller_limits_hold(api):
    name = api.call("start_async", memory="128M", disk="10m", cpus=1)["sandbox_id"]
    status = api.status(name)["result"]
    assert (status["memory"], status["disk"], status["status"]["start"]["message"]) == ("128m", "10m", "")
    command = ["sh", "-c", "head -c 20000000 /dev/zero > big"]
    assert api.call("execute", sandbox_id=name, command=command)["exit_code"]
    api.failed("start_async", memory="much")


@pytest.mark.integration
def test_its_lease_is_renewed_by_calls(api):
    name = api.call("start_async", auto_clear_time_minutes=0.03)["sandbox_id"]  # 1.8 s
    for _ in range(4):
        time.sleep(0.9)
        api.call("execute", sandbox_id=name, command=["true"])
    api.call("execute", sandbox_id=name, command=["sleep", "2.5"])  # a call that takes longer than the lease
    assert api.status(name)["status"] == "Success"
    assert eventually(lambda: api.status(name)["status"] == "Failed")


@pytest.mark.parametrize(
    "terms",
    [{"image_os": "windows"}, {"num_gpus": 1}, {"auto_clear_time_minutes": 0}, {"auto_clear_time_minutes": "soon"}],
)
def test_sandboxes_that_there_are_not(api, terms):
    api.failed("start_async", **terms)


def test_a_server_without_room(serve):
    api = Api(serve("--protocols", "rock", "--sandboxes", "1", workers=1).http)
    first = api.call("start", image="x")["sandbox_id"]
    assert "taken" in api.failed("start_async", 5000)
    api.call("stop", sandbox_id=first)
    api.call("start_async")


def test_owners_and_tokens(guarded):
    served, token = guarded
    bob, joe = (Api(served.http, Authorization=f"Bearer {token[name]}") for name in ("bob", "joe"))
    name = bob.call("start_async")["sandbox_id"]
    bob.call("create_session", sandbox_id=name, session="a")
    calls = {
        "execute": {"command": "true"},
        "run_in_session": {"session": "a", "command": "true"},
        "close_session": {"session": "a"},
        "read_file": {"path": "/etc/hosts"},
        "write_file": {"path": "/tmp/x", "content": ""},
        "stop": {},
        "delete": {},
        "restart": {},
    }
    for call, body in calls.items():
        assert "no such sandbox" in joe.failed(call, sandbox_id=name, **body)
    assert joe.status(name, every=True)["status"] == "Failed"
    assert bob.status(name)["result"]["is_alive"]
    bob.call("stop", sandbox_id=name)
    assert joe.status(name, every=True)["status"] == "Failed"


# -- commands ----------------------------------------------------------------------------------------------------------


def test_execute(box):
    assert box.call("execute", command=["echo", "a b"]) == {"stdout": "a b\n", "stderr": "", "exit_code": 0}
    told = box.call("execute", command="echo $X; pwd; echo e >&2; exit 3", env={"X": "é"}, cwd="/usr", timeout=None)
    assert told == {"stdout": "é\n/usr\n", "stderr": "e\n", "exit_code": 3}
    for wrong in ({"command": ["no-such-program"]}, {"command": ["true"], "cwd": "/no-such-folder"}):
        assert box.call("execute", **wrong)["exit_code"] == -1
    late = box.call("execute", command="echo begun; sleep 300", timeout=0.5)
    assert (late["exit_code"], late["stdout"]) == (-1, "begun\n")
    assert "longer than 0.5 s" in late["failure_reason"]
    flood = box.call("execute", command="yes")
    assert flood["exit_code"] == -1
    assert "output" in flood["failure_reason"]
    assert box.call("execute", command="kill -9 $$")["exit_code"] == 137


def test_sessions_keep_their_state(box):
    box.call("write_file", path="/tmp/rc", content="echo sourced; Z=3\n")
    began = box.call("create_session", session="a", env={"Q": "a 'b' $c\n"}, startup_source=["/tmp/rc"])
    assert began == {"output": "sourced", "session_type": "bash"}
    told = box.sh('cd /tmp; Y=2; echo out; echo err >&2; echo "$Q$Z"')
    assert told["output"] == "out\nerr\na 'b' $c\n3"
    assert (told["exit_code"], told["failure_reason"], told["expect_string"]) == (0, "", "")
    assert box.sh("pwd; echo $Y")["output"] == "/tmp\n2"
    assert box.sh("cat <<E\nhere\nE\nfor i in 1 2; do\n  echo $i\ndone")["output"] == "here\n1\n2"
    assert box.sh("")["output"] == ""
    assert "already exists" in box.failed("create_session", session="a")
    box.call("create_session", session="b")
    assert box.sh("echo [$Y]", "b")["output"] == "[]"
    assert box.call("close_session", session="b") == {"session_type": "bash"}
    assert "does not exist" in box.failed("run_in_session", session="b", command="true")
    assert "does not exist" in box.failed("close_session", session="b")


def test_a_job_that_has_ended_can_be_disowned(box):
    """``arun(mode="nohup")`` disowns what it began, however quick that was."""
    box.call("create_session", session="a")
    told = box.sh("true & sleep 0.3; echo PID$!; disown")
    assert told["output"].startswith("PID")
    assert told["exit_code"] == 0
    assert "no such job" in box.failed("run_in_session", 6000, session="a", command="disown %7")


@pytest.mark.integration
def test_commands_that_fail(box):
    box.call("create_session", session="a")
    why = box.failed("run_in_session", 6000, session="a", command="echo said; (exit 4)")
    assert "failed with exit code 4" in why
    assert "said" in why
    assert box.sh("false", check="silent")["exit_code"] == 1
    assert box.sh("false", check="ignore")["exit_code"] is None
    syntax = box.failed("run_in_session", 6000, session="a", command="if then")
    assert "syntax error" in syntax
    assert "began" not in syntax
    box.sh("Y=5")
    assert "exit code 3" in box.failed("run_in_session", 6000, session="a", command="exit 3")
    assert box.sh("echo [$Y]; echo e >&2")["output"] == "[]\ne"  # it begins again
    assert "exit code 137" in box.failed("run_in_session", 6000, session="a", command="kill -9 $$")
    assert "more output" in box.failed("run_in_session", 6000, session="a", command="yes")
    assert "more memory" in box.failed("run_in_session", 6000, session="a", command="x=$(yes)")
    assert box.sh("echo again")["output"] == "again"
    box.failed("run_in_session", 6000, session="a", command="echo \0")


@pytest.mark.integration
def test_a_command_that_takes_too_long_does_not_poison_the_session(box):
    box.call("create_session", session="a")
    why = box.failed("run_in_session", 6000, session="a", command="export Z=9; echo begun; sleep 100000", timeout=1)
    assert "longer than 1 s" in why
    assert "begun" in why
    assert box.sh("echo $Z")["output"] == "9"
    stubborn = "trap '' INT; sh -c \"trap '' INT; sleep 100000\""
    box.failed("run_in_session", 6000, session="a", command=stubborn, timeout=1)
    assert box.sh("echo well")["output"] == "well"


@pytest.mark.integration
def test_commands_of_one_session_wait_for_each_other(box):
    box.call("create_session", session="a")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda i: box.sh(f"n=$((n + 1)); sleep 0.1; echo {i}")["output"], range(8)))
        assert said == [str(i) for i in range(8)]
        assert box.sh("echo $n")["output"] == "8"
        slow = pool.submit(box.sh, "sleep 3")
        time.sleep(0.5)
        assert "still runs" in box.failed("run_in_session", session="a", command="true", timeout=0.5)
        slow.result()


@pytest.mark.integration
def test_work_in_the_background_goes_on(box):
    box.call("create_session", session="a")
    command = "nohup sh -c 'echo out; sleep 2' < /dev/null > /tmp/o 2>&1 & echo PIDSTART${!}PIDEND;disown"
    number = int(box.sh(command)["output"].removeprefix("PIDSTART").removesuffix("PIDEND"))
    box.sh(f"kill -0 {number}")
    told = box.sh("nohup python3 -c 'while True: pass' < /dev/null > /dev/null 2>&1 & echo $!")
    assert eventually(
        lambda: box.told("run_in_session", session="a", command=f"kill -0 {number}")["status"] == "Failed"
    )
    assert box.sh("cat /tmp/o")["output"] == "out"
    time.sleep(13)  # more of the processor than the limits give a call
    box.sh(f"kill -0 {told['output']}")


@pytest.mark.integration
def test_sessions_that_nobody_closes(box):
    box.call("create_session", session="mine")
    box.sh("X=1", "mine")
    for number in range(40):  # as arun() without a session does
        box.call("create_session", session=f"bash-{number}")
        assert box.sh("echo x", f"bash-{number}")["output"] == "x"
    assert box.sh("echo $X", "mine")["output"] == "1"
    for number in range(30):
        told = box.told("create_session", session=f"own{number}")
        if told["status"] == "Failed":
            break
    assert "at most 16 sessions" in told["error"]
    box.call("close_session", session="own0")
    box.call("create_session", session="own0")


# -- files -------------------------------------------------------------------------------------------------------------


def test_files(box, api):
    box.call("write_file", path="/tmp/new/f.txt", content="é\r\n")
    assert box.call("read_file", path="/tmp/new/f.txt", encoding=None, errors=None) == {"content": "é\r\n"}
    assert box.call("read_file", path="/tmp/new/f.txt", encoding="latin-1") == {"content": "Ã©\r\n"}
    assert box.call("read_file", path="/tmp/new/f.txt", encoding="ascii", errors="replace") == {"content": "��\r\n"}
    assert "not text in ascii" in box.failed("read_file", path="/tmp/new/f.txt", encoding="ascii")
    for encoding in ("punycode", "hex", "x" * 100):
        assert "encodings" in box.failed("read_file", path="/tmp/new/f.txt", encoding=encoding)
    for path in ("/nowhere", "/tmp", "/proc/self/environ", "/dev/zero"):
        box.failed("read_file", path=path)
    box.failed("write_file", path="/usr/x", content="")
    data = bytes(range(256)) * 40_000  # more than other requests may have
    form = {"target_path": "/tmp/up/data.bin", "sandbox_id": box.id}
    told = api.http.post("/upload", data=form, files={"file": ("x.bin", data)}).json()
    assert told["status"] == "Success", told
    assert box.call("execute", command="wc -c < /tmp/up/data.bin")["stdout"].strip() == str(len(data))
    too_much = api.http.post("/upload", data=form, files={"file": ("x.bin", bytes(66 << 20))}).json()
    assert too_much["status"] == "Failed"
    assert box.call("execute", command="echo alive")["stdout"] == "alive\n"


@pytest.mark.parametrize(
    "request_",
    [
        {"json": {}},
        {"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=b"}},
        {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
        {"files": {"file": b"x"}},
        {"data": {"file": "x", "target_path": "/tmp/x", "sandbox_id": "x"}},
        {"files": {"file": b"x"}, "data": {"target_path": "/tmp/x", "sandbox_id": "x"}},
        {"files": [("file", b"x")] * 2, "data": {"target_path": "/tmp/x", "sandbox_id": "x"}},
    ],
)
def test_wrong_uploads(api, request_):
    answer = api.http.post("/upload", **request_)
    assert answer.status_code == 200
    assert answer.json()["status"] == "Failed"


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("execute", {}),
        ("execute", {"command": 5}),
        ("execute", {"command": []}),
        ("execute", {"command": "x", "timeout": -1}),
        ("execute", {"command": "x", "env": {"a b": "c"}}),
        ("create_session", {"session_type": "powershell"}),
        ("create_session", {"session": "z", "remote_user": "bob"}),
        ("run_in_session", {"session": "nobody", "command": "x"}),
        ("run_in_session", {"session": "a", "command": "x", "check": "perhaps"}),
        ("write_file", {"path": "/tmp/a\0b", "content": "x"}),
        ("read_file", {"path": ""}),
    ],
)
def test_wrong_requests(box, call, body):
    assert box.failed(call, **body)


def test_what_is_not_offered(api, box):
    for path in ("commit", f"commit/{box.id}", f"sandboxes/{box.id}/archive"):
        assert "not offered" in api.http.post(f"/{path}", json={}).json()["error"]
    assert api.http.get("/get_token", params={"account": "primary"}).json()["status"] == "Failed"


# -- the real client ---------------------------------------------------------------------------------------------------

CLIENT = """
import asyncio, logging, os, tempfile, warnings
from rock.actions import Command, CreateBashSessionRequest, ReadFileRequest, UploadRequest, WriteFileRequest
from rock.actions.sandbox.request import BashAction, CloseBashSessionRequest
from rock.sdk.common.exceptions import BadRequestRockError
from rock.sdk.sandbox.client import Sandbox, SandboxGroup
from rock.sdk.sandbox.config import SandboxConfig, SandboxGroupConfig
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
url = os.environ["URL"]

async def refused(awaitable, *words):
    try:
        await awaitable
    except Exception as error:
        assert all(word in str(error) for word in words), error
        return error
    raise SystemExit(f"it was not refused: {words}")

async def main():
    box = Sandbox(SandboxConfig(base_url=url, image="swe-bench:latest", auto_clear_seconds=600))
    await box.start()
    assert await box.is_alive()
    other = Sandbox(SandboxConfig(base_url=url))
    await other.attach(box.sandbox_id)
    assert other.config.image == "rollenv:local", other.config.image
    told = await box.execute(Command(command=["sh", "-c", "echo hi; exit 3"]))
    assert (told.stdout, told.exit_code) == ("hi\\n", 3)
    await box.create_session(CreateBashSessionRequest(session="a", env={"Q": "q"}))
    assert (await box.arun("cd /tmp; Y=1; echo $Q", session="a")).output == "q"
    assert (await box.arun("pwd; echo $Y", session="a")).output == "/tmp\\n1"
    assert (await box.run_in_session(BashAction(session="a", command="echo old"))).output == "old"
    await refused(box.arun("exit 4", session="a"), "exit code 4")
    await refused(box._run_in_session(BashAction(command="sleep 30", session="a", timeout=1)), "timeout")
    assert (await box.arun("echo well", session="a")).output == "well"
    for number in range(20):
        assert (await box.arun(f"echo {number}")).output == str(number)
    told = await box.arun("sh -c 'echo begun; sleep 1; echo done'", mode="nohup", wait_timeout=30, wait_interval=5)
    assert (told.output, told.exit_code) == ("begun\\ndone", 0), told
    told = await box.arun("echo kept", mode="nohup", ignore_output=True, output_file="/tmp/logs/o.log")
    assert "completed" in told.output and "/tmp/logs/o.log" in told.output, told
    assert (await box.write_file(WriteFileRequest(content="é", path="/tmp/d/f"))).success
    assert (await box.write_file_by_path("x", "/tmp/d/g")).success
    assert not (await box.write_file_by_path("x", "/usr/g")).success
    assert (await box.read_file(ReadFileRequest(path="/tmp/d/f"))).content == "é"
    await refused(box.read_file(ReadFileRequest(path="/nowhere")))
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x" * 3_000_000)
        file.flush()
        assert (await box.upload_by_path(file.name, "/tmp/up")).success
        assert (await box.upload(UploadRequest(source_path=file.name, target_path="/tmp/up2"))).success
    assert (await box.arun("cat /tmp/up /tmp/up2 | wc -c")).output == "6000000"
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/k.txt", "w") as file:
            file.write("k")
        assert (await box.fs.upload_dir(folder, "/tmp/dir")).exit_code == 0
    assert (await box.arun("cat /tmp/dir/k.txt")).output == "k"
    assert (await box.process.execute_script("echo from a script")).output == "from a script"
    assert not await box.remote_user.is_user_exist("nobody-here")
    await box.close_session(CloseBashSessionRequest(session="a"))
    await refused(box.arun("true", session="a"), "does not exist")
    assert isinstance(await refused(box.archive(), "not offered"), BadRequestRockError)
    assert isinstance(await refused(box.restart(), "running"), BadRequestRockError)
    await box.stop()
    await refused(box.is_alive(), "no such sandbox")
    assert not (await box.get_status(include_all_states=True)).is_alive
    await box.delete()
    await box.close()
    await refused(Sandbox(SandboxConfig(base_url=url, image_os="windows")).start(), "Linux")
    group = SandboxGroup(SandboxGroupConfig(base_url=url, size=3))
    await group.start()
    said = await asyncio.gather(*(one.arun("echo $((1 + 1))") for one in group.sandbox_list))
    assert [one.output for one in said] == ["2"] * 3
    await group.stop()
    print("done")

asyncio.run(main())
"""


@pytest.mark.integration
def test_rock(server):
    before = patient.get(f"{server.http}/health").json()["sandboxes"]["open"]
    assert run("rock", CLIENT, URL=server.http) == ["done"]
    assert patient.get(f"{server.http}/health").json()["sandboxes"]["open"] == before


@pytest.mark.integration
def test_rock_with_a_token(serve, tmp_path):
    file, tokens = tokens_in(tmp_path, ann="sandboxes")
    served = serve("--protocols", "rock", "--tokens", file)
    code = """
import asyncio, logging, os
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig
logging.disable(logging.CRITICAL)
async def said(**headers):
    box = Sandbox(SandboxConfig(base_url=os.environ["URL"], extra_headers=headers))
    await box.start()
    return (await box.arun("echo 1")).output
assert asyncio.run(said(Authorization="Bearer " + os.environ["TOKEN"])) == "1"
try:
    asyncio.run(said())
except Exception as error:
    assert "401" in str(error), error
    print("refused")
"""
    assert run("rock", code, URL=served.http, TOKEN=tokens["ann"]) == ["refused"]

"""deepagents' own file tools and agents, with a model that says what a test wrote, over our backend."""

import asyncio

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from rollenv.plugins.adapters.deepagents import BoxBackend
from rollenv.sandbox import BaseSandboxError, Limits, Sandbox, SandboxDied
from rollenv.sandbox.machine import why_not

ODD = ["a b.txt", "it's.txt", '"$(touch pwned)"', "-rf", "ü\n.txt", "*?[x]"]


@pytest.fixture(scope="module", params=["machine", "sandbox"])
def backend(request):
    if request.param == "machine" and why_not():
        pytest.skip(why_not())
    given = None if request.param == "machine" else Sandbox.create(limits=Limits(seconds=60, memory_mb=1024))
    with BoxBackend(given) as made:
        yield made


@pytest.fixture
def folder(backend):
    """A folder that is there in both."""
    backend.execute("rm -rf /tmp/work && mkdir /tmp/work")
    return "/tmp/work"


# -- commands --------------------------------------------------------------------------------------------------------


def test_commands_have_their_output_and_exit_code(backend):
    done = backend.execute("echo out; echo err >&2; exit 3")
    assert (done.output, done.exit_code, done.truncated) == ("out\nerr\n", 3, False)
    assert backend.execute("printf out; printf err >&2").output == "out\nerr"
    assert backend.execute("cat").output == ""
    assert backend.execute("kill -9 $$").exit_code == 137


def test_a_command_that_takes_too_long_is_killed(backend):
    done = backend.execute("echo before; sleep 100062", timeout=1)
    assert done.exit_code == 124
    assert done.output == "before\nError: Timeout: it ran longer than 1 s and was stopped"
    assert "sleep" not in backend.execute("ps aux | grep 'sleep 10006[2]'").output
    assert backend.execute("sleep 0.1; echo done", timeout=0).output == "done\n"


def test_a_cancelled_command_is_killed(backend):
    async def cancelled():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(backend.aexecute("sleep 63"), 0.5)
        await asyncio.sleep(0.5)
        return (await backend.aexecute("ps aux | grep 'sleep 6[3]'")).output

    assert asyncio.run(cancelled()) == ""


def test_too_much_output_is_cut_and_said(backend):
    done = backend.execute("yes")
    assert done.truncated
    assert "OutputLimit" in done.output[-200:]


def test_what_no_shell_can_be_given_is_an_answer(backend):
    assert backend.execute("x" * 200_000).exit_code == 126
    assert asyncio.run(backend.aexecute("x" * 200_000)).exit_code == 126
    assert backend.execute("").exit_code == 0


@pytest.mark.parametrize("timeout", [-1, -0.5])
def test_a_wrong_timeout_is_refused_in_one_line(backend, timeout):
    with pytest.raises(BaseSandboxError, match="above 0"):
        backend.execute("true", timeout=timeout)


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_names(backend, folder, name):
    path = f"{folder}/{name}"
    assert backend.write(path, "one\ntwo\n").error is None
    assert backend.read(path).file_data["content"] == "one\ntwo"
    assert backend.edit(path, "two", "three").occurrences == 1
    assert [entry["path"] for entry in backend.ls(folder).entries] == [path]
    assert backend.download_files([path])[0].content == b"one\nthree\n"
    assert backend.delete(path).error is None
    assert backend.ls(folder).entries == []


def test_search_finds_what_is_there(backend, folder):
    backend.upload_files([(f"{folder}/deep/er/x.py", b"needle = 1\n"), (f"{folder}/y.txt", b"hay\n")])
    assert [(m["path"], m["line"]) for m in backend.grep("needle", folder).matches] == [(f"{folder}/deep/er/x.py", 1)]
    assert [m["path"] for m in backend.glob("**/*.py", folder).matches] == [f"{folder}/deep/er/x.py"]


def test_files_of_bytes_go_both_ways(backend, folder):
    data = bytes(range(256)) * 40_000
    (sent,) = backend.upload_files([(f"{folder}/data", data)])
    (got,) = asyncio.run(backend.adownload_files([f"{folder}/data"]))
    assert (sent.error, got.error, got.content == data) == (None, None, True)


def test_each_file_has_its_own_error(backend, folder):
    backend.write(f"{folder}/there", "x")
    paths = [f"{folder}/there", f"{folder}/absent", folder, "relative", f"{folder}/there/below", "/nul\0"]
    got = backend.download_files(paths)
    assert [one.error for one in got] == [
        None,
        "file_not_found",
        "is_directory",
        "invalid_path",
        "invalid_path",
        "invalid_path",
    ]
    assert [one.path for one in got] == paths
    sent = backend.upload_files([(f"{folder}/new/file", b"x"), (folder, b"x"), ("relative", b"x")])
    assert [one.error for one in sent] == [None, "is_directory", "invalid_path"]


def test_a_sandbox_refuses_what_lies_outside_and_a_machine_takes_it(backend):
    error = backend.upload_files([("/outside/file", b"x")])[0].error
    assert error == (None if backend.enable_capture_offload else "permission_denied")


# -- agents ----------------------------------------------------------------------------------------------------------


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


def call(number, name, **arguments):
    return AIMessage("", tool_calls=[{"id": f"call-{number}", "name": name, "args": arguments}])


def play(backend, *turns):
    messages = [call(i, name, **arguments) for i, (name, arguments) in enumerate(turns)] + [AIMessage("done")]
    agent = create_deep_agent(model=Scripted(messages=iter(messages)), backend=backend)
    said = agent.invoke({"messages": [("user", "go")]}, {"recursion_limit": 200})["messages"]
    assert said[-1].text == "done"
    return [message.text for message in said if message.type == "tool"]


def test_an_agent_works_with_files_and_commands(backend, folder):
    script = f"{folder}/my script.py"
    answers = play(
        backend,
        ("write_file", {"file_path": script, "content": "print(6 * 6)\n"}),
        ("edit_file", {"file_path": script, "old_string": "6 * 6", "new_string": "6 * 7"}),
        ("read_file", {"file_path": script}),
        ("execute", {"command": f"cd {folder} && python3 'my script.py'"}),
        ("ls", {"path": folder}),
        ("grep", {"pattern": "6 * 7", "path": folder}),
        ("glob", {"pattern": "*.py", "path": folder}),
        ("execute", {"command": "sleep 30", "timeout": 1}),
        ("execute", {"command": "exit 5"}),
        ("read_file", {"file_path": f"{folder}/absent"}),
    )
    assert "6 * 7" in answers[2]
    assert answers[3].startswith("42\n")
    assert all("my script.py" in answer for answer in answers[4:7])
    assert "Timeout" in answers[7]
    assert "5" in answers[8]
    assert "file_not_found" in answers[9]


def test_an_agent_sees_the_beginning_and_the_end_of_long_output(backend):
    if not backend.enable_capture_offload:
        pytest.skip("long output goes to a folder that only a machine has")
    (answer,) = play(backend, ("execute", {"command": "seq 1 200000"}))
    assert len(answer) < 10_000
    assert "\n5\n" in answer
    assert "199999\n200000" in answer
    assert "/large_tool_results/" in answer


def test_two_agents_work_apart():
    if why_not():
        pytest.skip(why_not())
    with BoxBackend() as one, BoxBackend() as two:
        one.write("/mine", "x")
        assert one.id != two.id
        assert two.read("/mine").error


def test_a_sandbox_that_has_ended_ends_the_run():
    backend = BoxBackend(Sandbox.create(limits=Limits(memory_mb=256, disk_mb=16)))
    backend.close()
    backend.close()
    with pytest.raises(SandboxDied):
        play(backend, ("execute", {"command": "true"}))

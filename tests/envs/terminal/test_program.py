"""Programs that play a task by themselves on the machine of an episode."""

import http.server

import pytest
import task_folders as folders
from listening import listening

import rollenv
from rollenv.core.errors import UsageError
from rollenv.envs.terminal.program import RUNTIMES, Attached
from rollenv.sandbox.machine import why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no machines: {why_not()}")
PLAY = """#!/bin/bash
if [ $1 = daemon ]; then sleep 4321; exit; fi
setsid $0 daemon &
setsid sleep 1234 &
echo began
sleep 4321
"""
HOME = {"home": "/run/harness", "seconds": 60}


def played(env, spec):
    env.start_program({**HOME, **spec})
    while env.poll_program(1.0)["running"]:
        pass
    return env.end_program()


@pytest.fixture
def env(tmp_path):
    """With a runtime whose program leaves a daemon of its own and a server of the task's."""
    (tmp_path / "play").write_text(PLAY)
    (tmp_path / "play").chmod(0o755)
    with rollenv.make("shell:Mix-v0", attached=Attached({f"{RUNTIMES}/own": str(tmp_path)}), max_seconds=30) as env:
        _, env.told = env.reset(seed=3)
        yield env


def test_a_program_solves_the_task_and_the_reward_is_the_environments(env):
    ended = played(env, {"command": ["bash", "-c", "\n".join(env.unwrapped.solution())]})
    assert ended["exit_code"] == 0
    assert 0 < ended["seconds"] <= env.unwrapped.spent
    _, reward, terminated, _, info = env.step(env.told["submit"])
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_a_program_has_its_files_its_input_and_the_users_home(env):
    spec = {
        "command": ["bash", "-c", 'cat; cat "$1" data.json; echo $NAME $HOME >&2; exit 3', "-", "/run/harness/a/b.txt"],
        "env": {"NAME": "né\ud800\0"},
        "files": {"/run/harness/a/b.txt": "text\n", "/app/data.json": {"n": 1}},
        "stdin": "task\n",
        "transcript": "/run/harness/a/*.txt",
    }
    ended = played(env, spec)
    assert ended.pop("seconds") > 0
    assert ended == {"exit_code": 3, "output": 'task\ntext\n{\n "n": 1\n}né? /root\n', "transcript": "text\n"}
    assert "harness" not in env.machine.run("ls /run").stdout


def test_the_deadline_ends_a_program_and_its_daemons_but_not_servers_of_the_task(env):
    ended = played(env, {"command": [f"{RUNTIMES}/own/play", "first"], "seconds": 0.5})
    assert (ended["exit_code"], ended["output"]) == (None, "began\n")
    left = env.machine.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert RUNTIMES not in left
    assert "sleep 1234" in left


def test_what_cannot_be_started_is_reported(env):
    assert played(env, {"command": ["/no/such/program"]})["exit_code"] == 127
    with pytest.raises(UsageError, match="program"):
        env.poll_program()
    with pytest.raises(UsageError, match="no command"):
        env.start_program(HOME)
    env.start_program({**HOME, "command": ["true"]})
    with pytest.raises(UsageError, match="call end_program"):
        env.start_program({**HOME, "command": ["true"]})


def test_a_program_that_removes_what_it_is_ended_with_has_failed_like_any_other(env):
    ended = played(env, {"command": ["bash", "-c", "rm -f /bin/sh /usr/bin/grep; exit 4"]})
    assert (ended["exit_code"], ended["output"]) == (4, "")
    env.machine.kill()
    _, reward, terminated, _, info = env.step(env.told["submit"])
    assert (reward, terminated, info["success"]) == (0.0, True, False)


@pytest.mark.parametrize("left", ["mkfifo output", "ln -s /dev/zero output", "mkdir output"])
def test_what_has_no_end_is_no_output(env, left):
    command = ["bash", "-c", f"cd $HARNESS_HOME && rm output && {left}"]
    ended = played(env, {"command": command, "transcript": "/run/harness/out*"})
    assert (ended["exit_code"], ended["output"], ended["transcript"]) == (0, "", "")


def test_a_machine_that_ends_ends_its_program(env):
    env.start_program({**HOME, "command": ["sleep", "100"]})
    env.machine.kill()
    assert not env.poll_program(20.0)["running"]
    ended = env.end_program()
    assert ended["exit_code"] is None
    assert "ended" in ended["output"]


def test_no_client_can_attach_folders_of_the_host():
    with pytest.raises(UsageError, match="attached"):
        rollenv.make("shell:Mix-v0", attached={"shown": {"/host": "/"}})


@pytest.mark.integration
def test_a_folders_task_has_what_is_attached_too(tmp_path):
    runtime, task = tmp_path / "runtime", folders.write_task(tmp_path / "task")
    runtime.mkdir()
    (runtime / "solve.sh").write_text(folders.SOLUTION)
    with listening(http.server.SimpleHTTPRequestHandler) as address:
        extras = Attached({f"{RUNTIMES}/own": str(runtime)}, {8900: address})
        with rollenv.make(f"harbor:{task}", attached=extras) as env:
            _, told = env.reset(seed=0)
            ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8900/nothing').status)"
            assert "404" in played(env, {"command": ["python3", "-c", ask]})["output"]
            assert played(env, {"command": ["bash", f"{RUNTIMES}/own/solve.sh"]})["exit_code"] == 0
            assert env.step(told["submit"])[1] == 1.0

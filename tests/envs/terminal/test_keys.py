"""Keystrokes and a screen around an environment with a shell."""

import json
import shutil

import pytest
import task_folders as folders
from waiting import eventually

import rollenv
from rollenv.envs.terminal.keys import Keystrokes
from rollenv.sandbox import Limits

SMALL = Limits(seconds=60, memory_mb=512, processes=64, disk_mb=64, files=5000)


@pytest.fixture(params=["tmux", "no tmux"])
def env(request, tmp_path):
    if request.param == "tmux" and not shutil.which("tmux"):
        pytest.skip("tmux is not installed")
    dockerfile = "FROM ubuntu\nWORKDIR /app\nCOPY solution.py ./\n"
    dockerfile += "RUN rm -f /usr/bin/tmux\n" if request.param == "no tmux" else ""
    path = folders.write_task(tmp_path, **{"environment/Dockerfile": dockerfile})
    one = Keystrokes(rollenv.make(f"harbor:{path}", limits=SMALL, max_turns=200))  # a slow machine waits in turns
    yield one
    one.close()


def typed(*keys, done=False, wait=0.3):
    commands = [{"keystrokes": each, "duration": wait} for each in keys]
    return json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": done})


@pytest.mark.integration
def test_an_episode_at_a_terminal(env):
    observation, info = env.reset(seed=0)
    assert "Write 42" in observation
    assert "Current Terminal Screen" in observation
    assert "tools" not in info
    assert "\n42" in env.step(typed("echo $((6 * 7))\n"))[0]
    env.step(typed("cat\n"))
    assert "hello" in env.step(typed("hello\n", "C-c"))[0]
    assert "answer" in env.step(typed("echo 42 > answer.txt; ls\n"))[0]
    seen = env.step(typed(done=True))
    assert "Are you sure" in seen[0]
    assert not seen[2]
    assert env.step(typed("ls\n"))[2] is False  # it was not confirmed
    env.step(typed(done=True))
    assert env.step(typed(done=True))[1:3] == (1.0, True)


@pytest.mark.combinations
@pytest.mark.parametrize(
    "action",
    [
        "",
        "ls",
        "{",
        '{"commands": 3}',
        '{"commands": [{"keys": "x"}]}',
        '{"commands": [{"keystrokes": "x", "duration": "1"}]}',
    ],
)
def test_what_is_not_understood_types_nothing(action, env):
    env.reset(seed=0)
    assert env.step(action)[0].startswith("Previous response had parsing errors:\nERROR: ")


@pytest.mark.combinations
def test_what_cannot_be_typed_and_endless_waits(env):
    env.reset(seed=0)
    seen = env.step('{"commands": [{"keystrokes": "echo a\\ud800\\u0000b\\n", "duration": 0.3}]}')[0]
    assert "\na?b" in seen
    env.unwrapped.max_seconds = env.unwrapped.spent + 0.1
    assert env.step('{"commands": [{"keystrokes": "", "duration": 1' + "0" * 400 + "}]}")[3]
    with pytest.raises(TypeError, match="str"):
        env.step(None)


@pytest.mark.combinations
def test_semicolons_at_the_end_of_keystrokes_are_typed(env):
    env.reset(seed=0)
    seen = env.step(
        typed("echo a;", " echo b", ";", "find solution.py -exec echo {} \\;", "echo \\\\;", "\n", wait=0.1)
    )[0]
    assert "echo a; echo b;find solution.py -exec echo {} \\;echo \\\\;" in seen.replace("\n", "")


def comes(env, text, *keys):
    """Whether text is seen after some keys, soon: a busy machine takes its time."""
    return text in env.step(typed(*keys))[0] or eventually(lambda: text in env.step(typed("", wait=0.5))[0])


@pytest.mark.integration
def test_a_shell_that_has_ended_is_followed_by_a_new_one(env):
    env.reset(seed=0)
    assert comes(env, "The shell has ended; this is a new one.", "exit\n")
    assert comes(env, "\n42", "echo $((6 * 7))\n")
    assert comes(env, "this is a new one", "C-d", "echo $((6 * 8))\n")
    assert comes(env, "ready\nready", "cat\n", "ready\n")  # cat runs
    shown = [env.step(typed("C-\\"))[0]]

    def answers() -> bool:  # what is typed while the quit is handled is lost
        shown.append(env.step(typed("echo $((7 * 9))\n"))[0])
        return "\n63" in shown[-1]

    assert eventually(answers)
    assert not any("this is a new one" in each for each in shown), "the shell goes on"
    assert comes(env, "this is a new one", "cd /; rm -r /app; touch /app; exit\n")
    assert comes(env, "\n/\n", "pwd\n")
    env.step(typed("rm -f /usr/bin/tmux; echo gone\n"))
    assert comes(env, "\n42", "echo $((6 * 7))\n")
    env.step(typed("rm -f /bin/bash; exit\n"))
    assert env.step(typed("echo $((6 * 7))\n"))[2] is False


@pytest.mark.integration
def test_the_oracle_and_the_limit_of_turns(env):
    env.reset(seed=0)
    for _ in range(5):
        seen = env.step(env.oracle_action())
        if seen[2]:
            break
    assert seen[1:3] == (1.0, True)
    env.unwrapped.max_turns = 20
    env.reset(seed=0)
    for _ in range(20):
        seen = env.step(typed(wait=0))
    assert seen[1:4] == (0.0, False, True)
    with pytest.raises(rollenv.EpisodeOver):
        env.step(typed())


def test_only_around_a_shell():
    with pytest.raises(rollenv.UsageError, match="no terminal"):
        Keystrokes(rollenv.make("game:Sokoban-v0-easy"))

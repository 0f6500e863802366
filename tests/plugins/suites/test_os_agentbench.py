"""AgentBench's operating system: the reader, published solutions, and answers that nobody can forge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from played import to_the_end

import rollenv
from rollenv.core.env import Env
from rollenv.core.errors import NoSuchAbility, UsageError
from rollenv.core.tools.calls import write_calls
from rollenv.plugins.suites.os.agentbench import AgentBenchOSEnv, items
from rollenv.plugins.suites.os.items import read_items
from rollenv.sandbox import SandboxError

Data = Callable[[str], Path]
_MATCH = "from sys import argv\nif int(argv[1]) == int(argv[2]): exit(0)\nexit(1)"
_COUNT = {
    "description": "How many files are in /root/x?",
    "create": {"init": "mkdir /root/x && touch /root/x/a /root/x/b"},
    "evaluation": {"check": [None, {"language": "python", "file": "match.py"}], "example": "ls /root/x | wc -l"},
}
_MAKE = {
    "description": "Make a command `double` that prints twice its argument.",
    "create": [None, {"file": "nowhere"}],
    "evaluation": {
        "check": {"code": '[ "$(double 4)" = "$(python3 -c "print(4 * 2)")" ]'},
        "example": {"code": "echo 'echo $(($1 * 2))' > /usr/local/bin/double; chmod +x /usr/local/bin/double"},
    },
}
_MODE = {
    "description": "Find is set-user-id. Mend it.",
    "create": {"init": [{"code": "chmod u+s /usr/bin/find"}, "true"]},
    "evaluation": {"check": ["! [ -u /usr/bin/find ]"], "example": "chmod u-s /usr/bin/find"},
}
_RUNNING = {
    "description": "Which file grows?",
    "start": "cd /root; export SECRET=1; (while sleep 0.05; do echo >> log; done) &",
    "evaluation": {"match": "log"},
}
_PATTERN = {"description": "Yes?", "evaluation": {"match": {"regex": "^y(es)?$", "strip": True}}}
_TASKS = [_COUNT, _MAKE, _MODE, _RUNNING, _PATTERN]


def write(folder: Path, rows: object) -> Path:
    root = folder / "agentic" / "agentbench_os"
    for name in ("data", "scripts/dev"):
        (root / name).mkdir(parents=True)
    (root / "data" / "dev.json").write_text(json.dumps(rows))
    (root / "scripts" / "dev" / "match.py").write_text(_MATCH)
    return root


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, _TASKS)
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path))
    one = rollenv.make("os:AgentBench-v0-dev")
    yield one
    one.close()


def bash(script: str) -> str:
    return write_calls([("bash_action", {"script": script})])


def answer(text: object) -> str:
    return write_calls([("answer_action", {"answer": text})])


DONE = write_calls([("finish_action", {"thought": "done"})])


def play(env: Env, index: int, *actions: str) -> tuple[float, dict[str, object]]:
    env.reset(0, options={"index": index})
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
    assert terminated or truncated
    return reward, info


@pytest.mark.integration
def test_published_solutions_are_accepted(env: Env) -> None:
    for index in range(4):
        env.reset(0, options={"index": index})
        assert to_the_end(env)[-1][4]["success"], index


def test_an_answer_is_judged_as_published(env: Env) -> None:
    assert play(env, 0, answer(" 2\n"))[0] == 1.0
    assert play(env, 0, answer(2.0))[0] == 0.0  # the checker reads whole numbers only


@pytest.mark.integration
def test_wrong_answers_and_none(env: Env) -> None:
    for action in (answer("2\x00"), answer("9" * 90_000), DONE):
        assert play(env, 0, action)[0] == 0.0
    assert play(env, 4, answer("yes "))[0] == 1.0
    assert play(env, 4, answer("yesterday"))[0] == 0.0
    assert play(env, 4, DONE)[0] == 0.0


def test_programs_that_were_started_are_seen_and_their_variables_stay(env: Env) -> None:
    env.reset(0, options={"index": 3})
    said = env.step(bash("sleep 0.3; ls; echo $SECRET; wc -l < log | grep -c '[1-9]'"))[0]
    assert said.split()[-4:-1] == ["log", "1", "1"]
    assert env.step(bash("cd /tmp; x=5; exit 7"))[4]["valid"]
    assert env.step(bash("pwd; echo $x"))[4]["tool_responses"] == ["The output of the OS:\n\n/tmp\n5\n"]


def test_what_is_shown(env: Env) -> None:
    env.reset(0, options={"index": 0})
    assert env.step(bash("true"))[4]["tool_responses"] == ["The output of the OS is empty."]
    long = env.step(bash("printf '%0801d' 1"))[4]["tool_responses"][0]
    assert long == f"The output of the OS:\n\n{'0' * 780}\n[truncated because the output is too long]"
    assert "0" * 799 + "1" in env.step(bash("printf '%0800d' 1"))[4]["tool_responses"][0]
    assert "too much" in env.step(bash("yes"))[4]["tool_responses"][0]
    assert env.step(bash("cat; read x; echo $?"))[4]["tool_responses"] == ["The output of the OS:\n\n1\n"]


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("index", "cheat", "end"),
    [
        (0, "rm /root/x/*", answer(0)),
        (0, "printf '#!/bin/sh\\nexit 0' > /usr/local/bin/python3; chmod +x /usr/local/bin/python3", answer(5)),
        (1, "cd /usr/local/bin; printf '#!/bin/sh\\necho 1' | tee double > python3; chmod +x *", DONE),
        (1, "printf 'echo 1' > /usr/bin/python3; echo 'echo 1' > /usr/bin/double; chmod +x /usr/bin/double", DONE),
        (1, "echo 'exit 0' > /etc/bash.bashrc; echo BASH_ENV=/etc/bash.bashrc > /etc/environment", DONE),
        (
            1,
            "echo /tmp/x.so > /etc/ld.so.preload; echo 'exit 0' > /root/.bashrc; cp /bin/true /usr/bin/bash; "
            "echo 'import os; os._exit(0)' | tee /root/re.py /usr/lib/python3/dist-packages/a.pth > /root/site.py",
            DONE,
        ),
        (2, "mv /usr/bin/find /usr/bin/found; cp /bin/true /bin/find; cp /bin/true '/usr/bin/['", DONE),
        (2, "(while sleep 0.01; do chmod u-s /usr/bin/find; chmod u+s /usr/bin/find; done) & sleep 0.1", "never"),
    ],
)
def test_cheats(index: int, cheat: str, end: str, env: Env) -> None:
    if end == "never":
        assert play(env, index, bash("true"), *[bash(cheat)] * 7)[0] == 0.0
        return
    assert play(env, index, bash(cheat), end)[0] == 0.0


def test_a_replaced_program_does_not_hurt_who_solved_the_task(env: Env) -> None:
    assert play(env, 1, bash(_MAKE["evaluation"]["example"]["code"]), bash("rm -f /usr/bin/python3"), DONE)[0] == 1.0


def test_the_checks_are_not_in_the_machine(env: Env) -> None:
    env.reset(0, options={"index": 0})
    said = env.step(bash("grep -rsl 'argv[[]1' /root /tmp /home /opt /etc /var /run /proc/[0-9]*/cmdline"))
    assert said[4]["tool_responses"] == ["The output of the OS is empty."]


def test_a_machine_brought_down_is_a_lost_episode(env: Env) -> None:
    env.reset(0, options={"index": 0})
    env.unwrapped.backend.machine.kill()
    _, reward, terminated, truncated, info = env.step(bash("true"))
    assert (reward, terminated, truncated, info["success"], info["died"]) == (0.0, True, False, False, True)


def test_the_limit_of_rounds(env: Env) -> None:
    reward, info = play(env, 0, *[bash("true")] * 8)
    assert (reward, info["success"]) == (0.0, False)
    with pytest.raises(NoSuchAbility):
        env.get_state()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"evaluation": {}}, "task 0: there is no 'check'"),
        ({"evaluation": {"check": []}}, "nothing to check"),
        ({"evaluation": {"check": [None]}}, "stands for the example"),
        ({"evaluation": {"check": {"language": "ruby", "code": "1"}}}, "'ruby'"),
        ({"evaluation": {"check": {"file": "absent.sh"}}}, "absent.sh"),
        ({"evaluation": {"match": {"regex": "("}}}, "task 0"),
        ({"create": {"image": "x"}}, "Docker image 'x'"),
        ({"create": {"init": 5}}, "task 0"),
    ],
)
def test_bad_rows(change: dict[str, object], said: str, tmp_path: Path) -> None:
    root = write(tmp_path, [{**_COUNT, **change}])
    with pytest.raises(UsageError, match=r"dev\.json, task 0") as error:
        read_items(root, "dev")
    assert said in str(error.value)


def test_a_bad_file(tmp_path: Path) -> None:
    root = write(tmp_path, [])
    (root / "data" / "dev.json").write_text("{")
    with pytest.raises(UsageError, match=r"dev\.json"):
        read_items(root, "dev")


@pytest.mark.parametrize("broken", [{"create": {"init": "exit 3"}}, {"start": "echo no; false"}])
def test_a_task_that_cannot_begin_is_an_error(
    broken: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [{**_COUNT, **broken}, _PATTERN])
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path))
    env = rollenv.make("os:AgentBench-v0-dev")
    with pytest.raises(SandboxError, match="dev-0"):
        env.reset(0, options={"index": 0})
    assert play(env, 1, answer("y"))[0] == 1.0


def test_random_numbers_of_a_preparation_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = {**_COUNT, "create": {"init": "echo $RANDOM$RANDOM$RANDOM > /root/n"}}
    write(tmp_path, [draws, {**draws, "create": {"init": "(sleep 100 &); echo $RANDOM > /root/n"}}])
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path))
    seen = []
    for _ in range(2):
        env = rollenv.make("os:AgentBench-v0-dev")
        env.reset(0, options={"index": 0})
        seen.append(env.step(bash("cat /root/n"))[0])
        env.reset(0, options={"index": 1})
        assert "1\n" in env.step(bash("pgrep -c sleep"))[0]
        env.close()
    assert seen[0] == seen[1]


def test_the_published_tasks(data: Data) -> None:
    root = data("agentic/agentbench_os")
    sizes = {split: len(read_items(root, split)) for split in ("test", "dev", "train")}
    assert sizes == {"test": 144, "dev": 26, "train": 1000}
    kept = items(root, "test", False)
    assert sum(item.answer is None for item in read_items(root, "test")) == 135
    assert len(kept) == 141
    assert kept[0].name == "1-stock-0"


@pytest.mark.integration
def test_published_solutions(data: Data) -> None:
    data("agentic/agentbench_os")
    env = rollenv.make("os:AgentBench-v0")
    inner = env.unwrapped
    assert isinstance(inner, AgentBenchOSEnv)
    index = {item.name: i for i, item in enumerate(inner.items)}
    for name in ("2-environment-4", "4-Q47-0", "6-new-3", "7-bootstrap-67", "7-bootstrap-84"):
        env.reset(0, options={"index": index[name]})
        assert to_the_end(env)[-1][4]["success"], name
    env.close()


@pytest.mark.integration
def test_solutions_of_training_tasks(data: Data) -> None:
    data("agentic/agentbench_os")
    env = rollenv.make("os:AgentBench-v0-train")
    won = 0
    for index in range(0, 1000, 25):
        env.reset(0, options={"index": index})
        won += to_the_end(env)[-1][4]["success"]
    assert won >= 39

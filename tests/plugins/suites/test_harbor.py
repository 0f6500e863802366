"""Task folders in Harbor's and Terminal-Bench's format as environments."""

import socket

import pytest
import task_folders as folders

import rollenv
from rollenv.core.errors import UnknownEnv
from rollenv.plugins.suites.harbor.folder import TaskFolderError
from rollenv.plugins.suites.harbor.read import find_tasks, read_task
from rollenv.plugins.suites.harbor.verify import (
    RewardEmpty,
    RewardMissing,
    RewardUnreadable,
    SolutionNotPlayed,
    TestsNotSetUp,
    VerifierError,
    VerifierTimedOut,
)
from rollenv.sandbox import Limits
from rollenv.sandbox.image_builder import BuildError

SMALL = Limits(seconds=60, memory_mb=512, processes=64, disk_mb=64, files=5000)


def opened(path, namespace="harbor", **settings):
    return rollenv.make(f"{namespace}:{path}", calls="plain", limits=SMALL, **settings)


def play(path, *commands, namespace="harbor", **settings):
    """The last step of an episode: with these commands, or the oracle's."""
    env = opened(path, namespace, **settings)
    try:
        env.reset(seed=0)
        seen = ("", 0.0, False, False, {})
        for command in [*commands, "submit"] if commands else iter(env.oracle_action, None):
            seen = env.step(command)
            if seen[2] or seen[3]:
                return seen
    finally:
        env.close()
    return seen


@pytest.mark.smoke
def test_the_oracle_has_one_and_doing_nothing_nothing(tmp_path):
    path = folders.write_task(tmp_path)
    assert play(path)[1] == 1.0
    assert play(path, "true")[1] == 0.0


NETWORKS = [
    ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["127.0.0.1:{0}"]', ["*"], True),
    ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["127.0.0.1:{0}"]', ["pypi.org"], False),
    ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["127.0.0.1:{0}"]', [], False),
    ('[agent]\nnetwork_mode = "no-network"', ["*", "127.0.0.1:{0}"], False),
    ("[environment]\nallow_internet = false", ["127.0.0.1:{0}"], False),
    ("", ["127.0.0.1:{0}"], True),
    ("", [], False),
]


@pytest.mark.integration
@pytest.mark.parametrize(("toml", "network", "reached"), NETWORKS)
def test_agents_reach_what_the_task_and_its_user_allow(tmp_path, toml, network, reached):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        path = folders.write_task(tmp_path, toml=toml.format(port))
        proxy = "/dev/tcp/${http_proxy:7:9}/${http_proxy:17}"
        asked = f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n"
        env = opened(path, network=[host.format(port) for host in network])
        env.reset(seed=0)
        said = env.step(f"exec 3<> {proxy} && printf '{asked}' >&3 && read -r line <&3 && echo $line")[0]
        env.close()
    assert ("200 Connection established" in said) == reached


@pytest.mark.parametrize("wrong", ['network_mode = "none"', 'allowed_hosts = "pypi.org"', "allowed_hosts = [1]"])
def test_a_network_that_is_none_is_an_error(tmp_path, wrong):
    with pytest.raises(TaskFolderError, match=r"network_mode|allowed_hosts"):
        read_task(folders.write_task(tmp_path, toml=f"[environment]\n{wrong}"))


def test_calls_in_the_form_of_tools(tmp_path):
    env = rollenv.make(f"harbor:{folders.write_task(tmp_path)}", limits=SMALL)
    observation, info = env.reset(seed=0)
    assert "Write 42" in observation
    assert [tool["function"]["name"] for tool in info["tools"]] == ["bash", "submit"]
    assert "No call" in env.step("hello")[0]
    assert "error" in env.step('<tool_call>{"name": "rm", "arguments": {}}</tool_call>')[0]
    seen = env.step('<tool_call>{"name": "bash", "arguments": {"command": "cd /; export A=1; false"}}</tool_call>')
    assert seen[0] == "[exit code 1]"
    assert env.step('<tool_call>{"name": "bash", "arguments": {"command": "pwd; echo $A"}}</tool_call>')[0] == "/\n1\n"
    long = env.step(
        '<tool_call>{"name": "bash", "arguments": {"command": "seq 100000; sleep 9", "timeout": 0.5}}</tool_call>'
    )[0]
    assert long.startswith("1\n2\n")
    assert "characters left out" in long
    assert long.endswith("[stopped: it ran for longer than 0.5 seconds]")
    assert env.step('<tool_call>{"name": "submit", "arguments": {}}</tool_call>')[2]
    env.close()


@pytest.mark.parametrize(
    "arguments", [r'"command": "echo a\ud800\u0000b"', '"command": "echo a?b", "timeout": 1' + "0" * 400]
)
def test_what_no_program_can_be_given_is_not_given(arguments, tmp_path):
    env = rollenv.make(f"harbor:{folders.write_task(tmp_path)}", limits=SMALL)
    env.reset(seed=0)
    assert env.step(f'<tool_call>{{"name": "bash", "arguments": {{{arguments}}}}}</tool_call>')[0] == "a?b\n"
    env.close()


def test_a_folder_of_tasks(tmp_path):
    for name in ("b", "a", "deep/c"):
        folders.write_task(tmp_path / name, **{"instruction.md": f"This is {name}."})
    env = opened(tmp_path)
    assert env.num_tasks() == 3
    assert ["This is a." in env.reset(options={"index": i})[0] for i in range(3)] == [True, False, False]
    assert env.reset(seed=5)[0] == env.reset(seed=5)[0]
    with pytest.raises(rollenv.UsageError, match="0 to 2"):
        env.reset(options={"index": 3})
    env.close()


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        ("exit 1", RewardMissing, "reward"),
        (": > /logs/verifier/reward.txt", RewardEmpty, "reward"),
        ("echo ' ' > /logs/verifier/reward.json", RewardEmpty, "reward"),
        ("echo yes > /logs/verifier/reward.txt", RewardUnreadable, "'yes'"),
        ("echo nan > /logs/verifier/reward.txt", RewardUnreadable, "finite"),
        ("echo '[1]' > /logs/verifier/reward.json", RewardUnreadable, "reward"),
        ("echo '{}' > /logs/verifier/reward.json", RewardUnreadable, "finite"),
        ("printf '1%0400d' 0 > /logs/verifier/reward.json", RewardUnreadable, "reward"),
        ('echo \'{"a": "1"}\' > /logs/verifier/reward.json', RewardUnreadable, "finite"),
        ("mkdir /logs/verifier/reward.txt", RewardUnreadable, "reward"),
        ("head -c 9000000 /dev/zero > /logs/verifier/reward.txt", RewardUnreadable, "reward"),
        ("apt-get install -y no-such-thing; echo 0 > /logs/verifier/reward.txt", TestsNotSetUp, "no-such-thing"),
        ("curl https://example.com; echo 0 > /logs/verifier/reward.txt", TestsNotSetUp, "example.com"),
        *(
            pytest.param(
                f"{pip} install no-such-thing; echo 0 > /logs/verifier/reward.txt",
                TestsNotSetUp,
                "no-such-thing",
                marks=pytest.mark.integration,
            )
            for pip in ("pip", "python3 -m pip")
        ),
    ],
)
def test_without_a_reward_there_is_an_error(script, error, says, tmp_path):
    with pytest.raises(error, match=says):
        play(folders.write_task(tmp_path, **{"tests/test.sh": f"#!/bin/bash\n{script}\n"}), "true")


@pytest.mark.integration
def test_a_reward_file_that_the_tests_do_not_name_does_not_count_before_theirs(tmp_path):
    script = "#!/bin/bash\nbash /app/program; echo 0.5 > /logs/verifier/reward.txt; rm -r /tests\n"
    path = folders.write_task(tmp_path, **{"tests/test.sh": script})
    for program in ("echo 1 > $L.json", "mkdir $L.json", ": > $L.json"):
        assert play(path, f"echo 'L=/logs/verifier/reward; {program}' > /app/program")[1] == 0.5


def test_rewards_by_name(tmp_path):
    script = (
        '#!/bin/bash\necho \'{"a": 1, "b": 0.5}\' > /logs/verifier/reward.json; echo 9 > /logs/verifier/reward.txt\n'
    )
    _, reward, _, _, info = play(folders.write_task(tmp_path, **{"tests/test.sh": script}), "true")
    assert (reward, info["verifier"]["rewards"]) == (0.75, {"a": 1.0, "b": 0.5})


def test_what_cannot_be_built_is_an_error(tmp_path):
    with pytest.raises(BuildError, match="Dockerfile:1"):
        opened(folders.write_task(tmp_path / "a", **{"environment/Dockerfile": "FROM nobody/nothing"})).reset()
    path = folders.write_task(tmp_path / "b", toml='[environment]\ndocker_image = "x/y"')
    (path / "environment/Dockerfile").unlink()
    with pytest.raises(BuildError, match="x/y"):
        opened(path).reset()


@pytest.mark.combinations
@pytest.mark.parametrize("written", ["0 > $L.txt", "1 > $L.txt", "'{\"reward\": 1}' > $L.json", ""])
def test_tests_that_take_too_long_give_no_verdict(written, tmp_path):
    script = f"#!/bin/bash\nL=/logs/verifier/reward; echo {written}\nsleep 60\n"
    path = folders.write_task(tmp_path, toml="[verifier]\ntimeout_sec = 1", **{"tests/test.sh": script})
    with pytest.raises(VerifierTimedOut):
        play(path, "true")


@pytest.mark.integration
def test_work_that_makes_the_tests_take_too_long_is_worth_nothing(tmp_path):
    script = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt; bash /app/program\n"
    path = folders.write_task(tmp_path, toml="[verifier]\ntimeout_sec = 2", **{"tests/test.sh": script})
    _, reward, _, _, info = play(path, "echo 'sleep 60' > /app/program")
    assert (reward, info["verifier"]["broke_tests"]) == (0.0, True)
    assert play(path, "echo 'exit 3' > /app/program")[1] == 1.0  # an exit code is no verdict where a reward is


STEPS = """
multi_step_reward_strategy = "{strategy}"
[[steps]]
name = "one"
min_reward = 1.0
[[steps]]
name = "two"
"""


@pytest.mark.integration
@pytest.mark.parametrize(("strategy", "rewards"), [("mean", [1.0, 0.5, 0.0]), ("final", [1.0, 0.0, 0.0])])
def test_steps(strategy, rewards, tmp_path):
    path = folders.write_task(
        tmp_path,
        toml=STEPS.format(strategy=strategy),
        **{
            f"steps/{name}/{file}": text
            for name in ("one", "two")
            for file, text in {
                "instruction.md": f"Make /app/{name}.",
                "tests/test.sh": f"[ -e /app/{name} ] && [ -e /app/one ]; echo $((1 - $?)) > /logs/verifier/reward.txt",
                "solution/solve.sh": f"touch /app/{name}",
                "workdir/setup.sh": f"touch /app/setup-{name}",
            }.items()
        },
    )
    env = opened(path)
    assert "/app/one" in env.reset()[0]
    assert "setup-one" in env.step("ls; touch /app/one")[0]
    seen = env.step("submit")
    assert (seen[0], seen[1:4]) == ("Make /app/two.", (0.0, False, False))
    assert "/tests" not in env.step("ls -d /tests /app/setup-two")[0].replace("'/tests'", "")
    env.close()
    assert play(path)[1] == rewards[0]
    assert play(path, "touch /app/one", "submit")[1] == rewards[1]
    assert play(path, "true")[1] == rewards[2]


GRADES = "echo $((1 - ($? > 0))) > /logs/verifier/reward.txt\n"


def test_steps_have_what_the_task_has_and_more(tmp_path):
    toml = (
        '[verifier]\nenv = {A = "1", B = "1"}\n[[verifier.collect]]\ncommand = "touch /app/by-task"\n'
        '[[steps]]\nname = "one"\nagent = {user = "nobody"}\nverifier = {env = {B = "2"}, collect = '
        '[{command = "touch /app/by-step"}]}\n[[steps]]\nname = "two"\n'
    )
    files = {
        "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nRUN chmod 777 .\n",
        "tests/helper.sh": 'done_by() { [ "$(cat /app/who)" = $1 ] && [ -e /app/by-task ]; }\n',
        "tests/test.sh": ". /tests/helper.sh; done_by nobody && [ -e /tests/extra -a -e /app/by-step -a $A$B = 12 ]; "
        + GRADES,
        "steps/one/instruction.md": "one",
        "steps/one/tests/extra": "",
        "steps/two/instruction.md": "two",
        "steps/two/tests/test.sh": f". /tests/helper.sh; done_by root && [ $A$B = 11 ]; {GRADES}",
        "solution/solve.sh": "rm -f /app/who; id -un > /app/who\n",
    }
    assert play(folders.write_task(tmp_path, toml=toml, **files))[1] == 1.0


@pytest.mark.parametrize("by", ["docker_image", "compose"])
def test_an_image_that_the_host_can_stand_for_needs_no_dockerfile(by, tmp_path):
    toml = '[environment]\ndocker_image = "ubuntu:24.04"' if by == "docker_image" else ""
    where = "/srvb" if by == "compose" else "/"
    solve = f"[ $PWD$A = {where} ] && mkdir /app; echo 42 > /app/answer.txt\n"
    compose = "services:\n  main:\n    image: debian:12\n    working_dir: /srv\n    environment: {A: b}\n"
    files = {"environment/docker-compose.yaml": compose} if by == "compose" else {}
    files["solution/solve.sh"] = solve
    path = folders.write_task(tmp_path, toml=toml, **files)
    (path / "environment/Dockerfile").unlink()
    assert play(path)[1] == 1.0


@pytest.mark.parametrize("who", ["agent", "image", "verifier"])
def test_a_user_who_is_not_there_is_an_error(who, tmp_path):
    toml = f'[{who}]\nuser = "ghost"' if who != "image" else ""
    dockerfile = "FROM ubuntu:24.04\nWORKDIR /app\n" + ("USER ghost\n" if who == "image" else "")
    with pytest.raises(VerifierError if who == "verifier" else BuildError, match="ghost"):
        play(folders.write_task(tmp_path, toml=toml, **{"environment/Dockerfile": dockerfile}), "true")


@pytest.mark.combinations
@pytest.mark.parametrize("mode", ["shared", "separate"])
def test_what_an_agent_publishes_is_there_for_the_tests(mode, tmp_path):
    toml = f'[verifier]\nenvironment_mode = "{mode}"\n[[verifier.collect]]\ncommand = "cp answer.txt /logs/artifacts"'
    path = folders.write_task(tmp_path, toml=toml, **{"tests/test.sh": f"grep 42 /logs/artifacts/answer.txt; {GRADES}"})
    assert play(path)[1] == 1.0
    cheat = "mkdir -p /app/l/verifier; echo 1 > /app/l/verifier/reward.txt; rm -rf /logs; ln -s /app/l /logs"
    assert play(path, cheat)[1] == 0.0
    assert play(path, "chmod 777 /logs; chown nobody /logs /logs/artifacts; echo 41 > answer.txt")[1] == 0.0


@pytest.mark.integration
def test_a_separate_verifier_s_image_may_hold_the_tests_and_artifacts_come_where_they_were(tmp_path):
    path = folders.write_task(
        tmp_path,
        toml='artifacts = [{source = "/app", destination = "work", exclude = ["*.log", "deep/x"]}]\n'
        '[verifier.environment]\nenv = {A = "1"}',
        **{
            "tests/Dockerfile": "FROM ubuntu:24.04\nCOPY . /tests\n"
            "RUN echo 42 > /tests/made && sed -i s/DIFF/cmp/ /tests/test.sh\n",
            "tests/test.sh": "DIFF /tests/made /app/answer.txt && [ $A = 1 -a ! -e /app/a.log -a ! -e /app/deep/x ]; "
            + GRADES,
        },
    )
    assert play(path, "mkdir deep; touch a.log deep/x; echo 42 > answer.txt")[1] == 1.0
    assert play(path, "echo 41 > answer.txt")[1] == 0.0


@pytest.mark.integration
def test_a_verifier_with_a_machine_of_its_own(tmp_path):
    path = folders.write_task(
        tmp_path,
        toml='artifacts = ["/app/answer.txt", {source = "/app/out", destination = "/given/out"}]\n[verifier]\n'
        'environment_mode = "separate"\n[[verifier.collect]]\ncommand = "mkdir out; cp answer.txt out/x"',
        **{
            "tests/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /checks\nRUN echo 42 > /expected\n",
            "tests/test.sh": "cmp /expected /app/answer.txt && cmp /expected /given/out/x && [ ! -e /app/other ] && "
            "[ $PWD = /checks ] && good=1; echo ${good:-0} > /logs/verifier/reward.txt",
        },
    )
    assert play(path, "echo 42 > answer.txt; touch /app/other")[1] == 1.0
    assert play(path, "echo 41 > answer.txt")[1] == 0.0
    assert play(path, "true")[1] == 0.0


@pytest.mark.integration
def test_a_separate_verifier_gets_files_under_their_names_and_nothing_through_links(tmp_path):
    path = folders.write_task(
        tmp_path,
        toml='artifacts = [{source = "/app/a", destination = "/b"}]\n[verifier]\nenvironment_mode = "separate"',
        **{
            "tests/Dockerfile": "FROM ubuntu:24.04\nRUN echo 42 > /expected\n",
            "tests/test.sh": "cmp /expected /b; echo $((1 - ($? > 0))) > /logs/verifier/reward.txt",
        },
    )
    assert play(path, "echo 42 > a")[1] == 1.0
    program = "mkdir -p e/usr/local/sbin; cp /bin/true e/usr/local/sbin/cmp; echo 41 > e/b"
    for cheat in ("ln -s /expected a", f"{program}; ln -s e a", f"{program}; mv e a", "mkfifo a"):
        assert play(path, cheat)[1] == 0.0


def test_variables_users_and_healthchecks(tmp_path, monkeypatch):
    monkeypatch.setenv("FROM_HOST", "seen")
    path = folders.write_task(
        tmp_path,
        toml='[agent]\nuser = "nobody"\n[environment]\nenv = {A = "${FROM_HOST}", B = "${NOT_THERE:-other}"}\n'
        'healthcheck = {command = "touch /tmp/healthy", interval_sec = 0.1}\n'
        '[verifier]\nuser = "root"\nenv = {C = "3"}',
        **{"tests/test.sh": '[ "$A$B$C$(id -u)" = seenother30 ]; echo $((1 - $?)) > /logs/verifier/reward.txt'},
    )
    env = opened(path)
    env.reset()
    assert env.step("id -un; ls /tmp; echo $A $B")[0] == "nobody\nhealthy\nseen other\n"
    assert env.step("submit")[1] == 1.0
    env.close()
    never = folders.write_task(
        tmp_path / "never", toml='[environment.healthcheck]\ncommand = "false"\ninterval_sec = 0.05\nretries = 2'
    )
    with pytest.raises(BuildError, match="healthy"):
        opened(never).reset()


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[agent", "not TOML"),
        ('version = "7"', "7"),
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec"),
        ('[agent]\ntimeout_sec = "10"', "agent.timeout_sec"),
        ('[environment]\nos = "windows"', "windows"),
        ('[environment]\nmemory = "a lot"', "environment.memory"),
        ("[environment]\nmemory_mb = 0", "environment.memory_mb"),
        ('[environment]\nenv = {A = "${NOT_THERE_AT_ALL}"}', "NOT_THERE_AT_ALL"),
        ("environment = 3", "environment"),
        ('[[steps]]\nname = "gone"', "gone"),
        ('[verifier]\nenvironment_mode = "both"', "environment_mode"),
        ('multi_step_reward_strategy = "best"', "multi_step_reward_strategy"),
        ("artifacts = [3]", "artifacts"),
        ("artifacts = 3", "artifacts"),
        ("min_reward = {reward = 'x'}", "min_reward"),
        ("min_reward = nan", "min_reward"),
        ("[environment]\nenv = {'A=B' = 'x'}", "environment.env"),
        ("[environment]\nworkdir = 'app'", "workdir"),
        ("[agent]\nuser = true", "agent.user"),
        ("[[verifier.collect]]\nuser = 'root'", "command"),
        ("[[steps]]\nname = '../solution'", "step"),
        ("[environment.healthcheck]\nstart_period_sec = 'x'\ncommand = 'x'", "start_period_sec"),
        ("[environment.healthcheck]\nretries = 0\ncommand = 'x'", "retries"),
    ],
)
def test_a_task_file_that_is_wrong_says_where(toml, says, tmp_path):
    path = folders.write_task(tmp_path)
    (path / "task.toml").write_text(toml if "version" in toml else f'schema_version = "1.0"\n{toml}')
    with pytest.raises(TaskFolderError, match=says):
        read_task(path)


def test_folders_that_hold_no_task(tmp_path):
    with pytest.raises(UnknownEnv):
        rollenv.make(f"harbor:{tmp_path}")
    with pytest.raises(UnknownEnv):
        rollenv.make(f"tb:{tmp_path}/nothing")
    with pytest.raises(TaskFolderError, match="task folder"):
        read_task(tmp_path)
    path = folders.write_task(tmp_path / "a")
    (path / "tests/test.sh").unlink()
    with pytest.raises(TaskFolderError, match=r"test\.sh"):
        read_task(path)
    (path / "instruction.md").unlink()
    assert find_tasks(tmp_path) == [path]


# -- Terminal-Bench 1 ------------------------------------------------------------------------------------------------

YAML = "instruction: Write 42 to /app/answer.txt.\nparser_name: pytest\nmax_test_timeout_sec: 60\n"


def terminal_bench(folder, **files):
    for name, text in {
        "task.yaml": YAML,
        "tests/test_outputs.py": folders.TEST,
        "solution.sh": folders.SOLUTION,
        **files,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.integration
def test_terminal_bench_without_a_dockerfile(tmp_path):
    path = terminal_bench(tmp_path, **{"data.txt": "here"})
    assert play(path, namespace="tb")[1] == 1.0
    assert play(path, "true", namespace="tb")[1] == 0.0
    env = opened(path, "tb")
    env.reset()
    assert env.step("ls /app /tests")[0].startswith("ls: cannot access '/tests'")
    env.close()


@pytest.mark.integration
def test_terminal_bench_with_a_script_and_an_answer_in_its_folder(tmp_path):
    path = terminal_bench(
        tmp_path,
        **{
            "Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nCOPY workspace/ ./\n",
            "docker-compose.yaml": "services:\n  client:\n    environment:\n      - A=1\n      - B=${UNKNOWN}\n",
            "workspace/.oracle/answer": "42",
            "run-tests.sh": 'echo "== short test summary info =="; [ "$(cat answer.txt)" = 42 ] && [ $A = 1 ]',
            "solution.sh": "cp /app/.oracle/answer /app/answer.txt",
        },
    )
    assert play(path, namespace="tb")[1] == 1.0
    assert (
        play(path, "find / -name '.oracle*' -not -path '/proc/*' > found; cp .oracle/answer .", namespace="tb")[1]
        == 0.0
    )
    env = opened(path, "tb")
    env.reset()
    assert env.step("find / -name '*oracle*' -not -path '/usr/*' 2> /dev/null; ls -a")[0].split() == [".", ".."]
    env.close()


@pytest.mark.parametrize("dockerfile", ["FROM ubuntu:24.04\nWORKDIR /app\nCOPY . .\nRUN mkdir /tests\n", ""])
def test_no_answer_of_terminal_bench_comes_with_the_folder(dockerfile, tmp_path):
    files = {"deep/.oracle/answer": "42", "deep/data.txt": "here", "run-tests.sh": "true\n"}
    env = opened(terminal_bench(tmp_path, **files, **({"Dockerfile": dockerfile} if dockerfile else {})), "tb")
    env.reset()
    names = env.step("find . -type f | sort")[0].split()
    assert [name for name in names if name != "./Dockerfile"] == ["./deep/data.txt"]
    env.close()


def test_terminal_bench_folders_that_are_wrong(tmp_path):
    with pytest.raises(TaskFolderError, match="parser_name"):
        read_task(terminal_bench(tmp_path / "a", **{"task.yaml": "instruction: x\nparser_name: other\n"}))
    with pytest.raises(TaskFolderError, match="instruction"):
        read_task(terminal_bench(tmp_path / "b", **{"task.yaml": "author: x\n"}))
    with pytest.raises(TaskFolderError, match="not YAML"):
        read_task(terminal_bench(tmp_path / "c", **{"task.yaml": "a: ["}))
    for number, service in enumerate(("3", "{environment: 3}")):
        with pytest.raises(TaskFolderError, match=r"services\.a"):
            read_task(terminal_bench(tmp_path / f"e{number}", **{"docker-compose.yaml": f"services: {{a: {service}}}"}))
    two = "services:\n  client: {}\n  database: {}\n"
    with pytest.raises(TaskFolderError, match="client, database"):
        read_task(terminal_bench(tmp_path / "d", **{"docker-compose.yaml": two}))


SERVE = (
    "#!/bin/bash\necho 42 > /app/answer.txt; cd /app; nohup python3 -m http.server 8080 > /dev/null 2>&1 &\nsleep 1\n"
)
ASK = """#!/bin/bash
answer=$(curl -s http://localhost:8080/answer.txt)
if [ "$answer" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A task whose tests talk to a server."""
    return folders.write_task(tmp_path_factory.mktemp("service"), **{"tests/test.sh": ASK, "solution/solve.sh": SERVE})


@pytest.mark.integration
def test_servers_that_are_left_running_are_reached_by_tests_that_talk_to_them(service):
    assert play(service)[1] == 1.0
    assert play(service, "echo 42 > /app/answer.txt")[1] == 0.0


def test_a_server_cannot_touch_the_reward(service):
    forge = "while true; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done > /dev/null 2>&1 &"
    assert play(service, f"cd /tmp; {forge} nohup python3 -m http.server 8080 > /dev/null 2>&1 & sleep 1")[1] == 0.0


@pytest.mark.integration
def test_what_a_machine_says_of_its_ports_is_not_trusted(service):
    line = r"1: 0100007F:%04X 0:0000 0A \\n"
    lie = f"printf '#!/bin/bash\\nfor n in {{1..65535}}; do printf \"{line}\" $n; done' > /bin/cat"
    assert play(service, f"{lie}; chmod +x /bin/cat")[1] == 0.0
    assert play(service, "printf '#!/bin/sh\\nsleep 1000' > /bin/cat; chmod +x /bin/cat")[1] == 0.0


@pytest.mark.integration
def test_a_solution_that_needs_a_network_is_an_error_and_not_0(tmp_path):
    solve = "#!/bin/bash\ncurl -s https://example.com/42 > /app/answer.txt || curl -sS https://example.com/42\n"
    path = folders.write_task(tmp_path, **{"solution/solve.sh": solve})
    with pytest.raises(SolutionNotPlayed, match=r"example\.com"):
        play(path)
    assert play(path, "curl -sS https://example.com/42")[1] == 0.0, "for an agent it is no excuse"

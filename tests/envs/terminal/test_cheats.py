"""An agent that is root of its machine, and wants the reward without the work."""

import pytest
import shell_cheats as cheats
import task_folders as folders

import rollenv
from rollenv.sandbox import Limits

pytestmark = pytest.mark.integration

SMALL = Limits(seconds=60, memory_mb=1024, processes=128, disk_mb=128, files=20_000)


def played(path, command, **settings):
    env = rollenv.make(f"harbor:{path}", calls="plain", limits=SMALL, command_seconds=15.0, **settings)
    try:
        env.reset(seed=0)
        seen = env.step(command)
        return seen if seen[2] or seen[3] else env.step("submit")
    finally:
        env.close()


#: What every run tries; the others are for the integration run.
SOME = ("the reward file", "a daemon", "the tests", "a link for the tests", "bash", "LD_PRELOAD")

#: How tests are begun besides: each cheat meets one of them, in turn.
OTHERS = [style for style in folders.SCRIPTS if style != "shell"]


@pytest.mark.parametrize(
    ("cheat", "style"),
    [
        pytest.param(cheat, style, marks=() if style == "shell" and cheat in SOME else pytest.mark.integration)
        for number, cheat in enumerate(cheats.CHEATS)
        for style in ("shell", OTHERS[number % len(OTHERS)])
    ],
)
def test_a_cheat_is_worth_nothing(cheat, style, tmp_path):
    _, reward, terminated, _, info = played(folders.write_task(tmp_path, style), cheats.CHEATS[cheat])
    assert (reward, terminated, info["success"]) == (0.0, True, False), info


@pytest.mark.slow
@pytest.mark.parametrize("style", ["pip", pytest.param("uv", marks=pytest.mark.integration)])
def test_what_was_tried_is_left_out_and_work_still_counts(style, tmp_path):
    path = folders.write_task(tmp_path, style)
    tried = "".join(cheats.AROUND.values())
    assert played(path, tried)[1] == 0.0
    assert played(path, tried + folders.SOLUTION)[1] == 1.0


@pytest.mark.integration
@pytest.mark.parametrize(
    ("cheat", "style"), [(cheat, OTHERS[n % len(OTHERS)]) for n, cheat in enumerate(cheats.AROUND)]
)
def test_each_way_around_is_worth_nothing(cheat, style, tmp_path):
    assert played(folders.write_task(tmp_path, style), cheats.AROUND[cheat])[1] == 0.0


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(each, marks=() if each in ("a daemon", "what is checked next") else pytest.mark.integration)
        for each in cheats.PROGRAMS
    ],
)
def test_a_program_under_test_does_not_say_what_came_of_it(program, tmp_path):
    script = folders.SCRIPTS["pip"].replace("\nif", "\n[ $? -eq 0 ] || python3 /tests/next.py\nif")
    if program != "what is checked next":
        script = folders.SCRIPTS["pip"]
    path = folders.write_task(tmp_path, "pip", **{"tests/test.sh": script, "tests/next.py": "1 / 0\n"})
    code = f"cat > /app/solution.py << 'END'\nprint(1, flush=True)\n{cheats.PROGRAMS[program]}\nEND"
    assert played(path, code)[1] == 0.0


@pytest.mark.integration
def test_a_project_of_the_tests_has_no_dependencies_of_the_agent(tmp_path):
    wheel = (
        "import zipfile; z = zipfile.ZipFile('/app/evil-1-py3-none-any.whl', 'w'); d = 'evil-1.dist-info/'; "
        f"z.writestr('evil.py', {cheats.HOOK!r}.replace(chr(92) + 'n', chr(10))); z.writestr(d + 'RECORD', ''); "
        "z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n'); "
        "z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'); "
        "z.writestr(d + 'entry_points.txt', '[pytest11]\\nevil = evil\\n'); z.close()"
    )
    project = "[project]\nname = 'a'\nversion = '1'\ndependencies = ['evil @ file:///app/evil-1-py3-none-any.whl']\n"
    command = f'python3 -c "{wheel}"; cat > /app/pyproject.toml << END\n{project}END'
    assert played(folders.write_task(tmp_path, "uv"), command)[1] == 0.0


@pytest.mark.integration
def test_uv_installs_no_project_of_the_agent_s_unless_the_tests_speak_of_one(tmp_path):
    path = folders.write_task(tmp_path / "a", "uv venv")
    assert played(path, cheats.PROJECT)[1] == 0.0
    script = "#!/bin/sh\nuv run true; [ -e /app/pyproject.toml ]; echo $((1 - ($? > 0))) > /logs/verifier/reward.txt\n"
    assert played(folders.write_task(tmp_path / "b", **{"tests/test.sh": script}), cheats.PROJECT)[1] == 1.0


@pytest.mark.integration
@pytest.mark.parametrize("cheat", ["mkdir {0}", "ln -s /dev/null {0}", "mkdir d; ln -s d {0}"])
def test_nothing_keeps_tests_from_being_copied_to_the_work(cheat, tmp_path):
    script = folders.SCRIPTS["pip"].replace("/tests/test_outputs.py", ".").replace("pip", "cp /tests/*.py .; pip", 1)
    path = folders.write_task(tmp_path, "pip", **{"tests/test.sh": script})
    passing = "echo 'def test_nothing(): pass' > test_nothing.py"
    assert played(path, f"{cheat.format('test_outputs.py')}; {passing}")[1] == 0.0


def test_users_are_those_of_the_image(tmp_path):
    check = '#!/bin/sh\n[ "$(id -u) $HOME $USER" = "65534 /nonexistent nobody" ] && [ -s /app/answer.txt ]\n'
    toml, script = '[verifier]\nuser = "nobody"', f"{check}echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    path = folders.write_task(tmp_path, toml=toml, **{"tests/test.sh": script})
    accounts = "echo 65534:x:0:0::/app/home:/bin/sh > /etc/passwd; echo nobody:x:0:0::/app/home:/bin/sh >> /etc/passwd"
    for command in ("true", accounts, "rm /etc/passwd"):
        assert played(path, f"{command}; echo 42 > /app/answer.txt")[1] == 1.0


@pytest.mark.combinations
@pytest.mark.parametrize("line", ["s/^nobody:x:65534:65534/nobody:x:0:0/", "1inobody:x:0:0::/:/bin/sh"])
def test_tests_that_run_programs_as_another_user_do_so(line, tmp_path):
    check = "[ $(su nobody -s /bin/sh -c 'id -u') = 0 ] || grep -q ^ann: /etc/passwd"
    path = folders.write_task(
        tmp_path, **{"tests/test.sh": f"{check}; echo $((1 - ($? > 0))) > /logs/verifier/reward.txt\n"}
    )
    assert played(path, f"sed -i '{line}' /etc/passwd; id nobody")[1] == 0.0
    assert played(path, "useradd ann; usermod -aG sudo ann")[1] == 1.0


def test_what_the_agent_left_makes_no_program_of_the_tests_root(tmp_path):
    check = "#!/bin/sh\necho 0 > /logs/verifier/reward.txt; su nobody -s /bin/sh -c /app/answer\n"
    path = folders.write_task(tmp_path, **{"tests/test.sh": check})
    forge = "echo 1 > /logs/verifier/reward.txt"
    left = (
        f"cp /bin/sh /app/sh; chmod 4755 /app/sh; cd /app; echo '/app/sh -p -c \"{forge}\"' > answer; chmod 755 answer"
    )
    assert played(path, f"{left}; su nobody -s /bin/sh -c '/app/sh -p -c id' > /app/id")[1] == 0.0
    password = f"echo root:x | chpasswd; cd /app; echo 'echo x | su -c \"{forge}\"' > answer; chmod 755 answer"
    assert played(path, password)[1] == 0.0


CHECKS = {
    "a script": "python3 /tests/check.py",
    "-c": 'python3 -W ignore -c "$(cat /tests/check.py)"',
    "standard input": "python3 - < /tests/check.py",
    "standard input of its own": "python3 << END\n$(cat /tests/check.py)\nEND",
}


@pytest.mark.combinations
@pytest.mark.parametrize("check", CHECKS)
def test_python_s_own_modules_come_before_the_agent_s(check, tmp_path):
    dockerfile = "FROM ubuntu:24.04\nENV PYTHONPATH=/app/src\nWORKDIR /home/me/work\n"
    files = {
        "environment/Dockerfile": dockerfile,
        "tests/check.py": "import json, mine\nassert open('answer.txt').read() == '42\\n'\n",
        "tests/test.sh": f"#!/bin/bash\n{CHECKS[check]}\necho $((1 - ($? > 0))) > /logs/verifier/reward.txt\n",
    }
    path = folders.write_task(tmp_path, **files)
    end = "echo 'import os; os._exit(0)'"
    work = "mkdir -p /app/src; touch /app/src/mine.py"
    cheats_ = "; ".join(f"{end} > {place}/{name}.py" for place in ("/app/src", ".") for name in ("json", "contextlib"))
    assert played(path, f"{work}; {cheats_}")[1] == 0.0
    assert played(path, f"{work}; {cheats_}; echo 42 > answer.txt")[1] == 1.0


@pytest.mark.parametrize("name", [".jq", ".sqliterc"])
def test_settings_of_what_tests_ask_are_not_the_agent_s(name, tmp_path):
    script = f"[ -e ~/{name} ]; echo $((1 - ($? > 0))) > /logs/verifier/reward.txt\n"
    assert played(folders.write_task(tmp_path, **{"tests/test.sh": script}), f"echo 42 > ~/{name}")[1] == 0.0


@pytest.mark.integration
def test_programs_of_an_environment_on_the_path_are_the_image_s(tmp_path):
    dockerfile = (
        "FROM ubuntu\nRUN python3 -m venv --without-pip --system-site-packages /opt/env\nENV PATH=/opt/env/bin:$PATH\n"
        "WORKDIR /app\nCOPY solution.py ./\n"
    )
    path = folders.write_task(tmp_path, "pip", **{"environment/Dockerfile": dockerfile})
    fake = cheats._file("/opt/env/bin/python3", cheats.FAKE_PYTHON.replace("/usr/bin", "/opt/env/real"))
    home = "printf 'home = /app/fake\\n' > /opt/env/pyvenv.cfg"
    assert played(path, f"mkdir /opt/env/real; mv /opt/env/bin/python3 /opt/env/real; {fake}{home}")[1] == 0.0
    assert played(path, folders.SOLUTION)[1] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("style", ["pip", pytest.param("uv", marks=pytest.mark.integration)])
def test_work_is_worth_one_and_no_work_nothing(style, tmp_path):
    path = folders.write_task(tmp_path, style)
    assert played(path, folders.SOLUTION)[1] == 1.0
    assert played(path, "true")[1] == 0.0


@pytest.mark.integration
@pytest.mark.parametrize("code", cheats.IMPORTED)
def test_code_that_ends_the_tests_has_passed_none(code, tmp_path):
    test = (
        "import sys; sys.path.insert(0, '/app')\nimport solution\nimport time\n\n"
        "def test_it():\n    time.sleep(0.5)\n    assert solution.answer == 42\n"
    )
    path = folders.write_task(tmp_path, "pip", **{"tests/test_outputs.py": test})
    assert played(path, f"echo '{cheats.IMPORTED[code]}' > /app/solution.py")[1] == 0.0
    assert played(path, "echo 'answer = 42' > /app/solution.py")[1] == 1.0


@pytest.mark.integration
def test_work_before_a_timeout_counts(tmp_path):
    path = folders.write_task(tmp_path, toml="[agent]\ntimeout_sec = 2.0")
    _, reward, terminated, truncated, info = played(path, folders.SOLUTION + "sleep 60")
    assert (reward, terminated, truncated, info["success"]) == (1.0, False, True, True)


BREAKS = {
    "everything is killed": "import os; os.kill(-1, 9)",
    "the folder of the reward is gone": "import os; os.system('rm -rf /logs/verifier; touch /logs/verifier')",
    "it says that there is no pytest": "print('No module named pytest')",
    "it says that there is no network": "print('curl: (6) Could not resolve host: pypi.org')",
    "a note that the set-up failed": "open('/run/rollenv/failed', 'w').write('apt-get cannot install x')",
    "all memory": "x = [bytearray(1 << 20) for _ in range(100000)]",
}


@pytest.mark.parametrize(
    "code", [pytest.param(each, marks=() if i % 2 else pytest.mark.integration) for i, each in enumerate(BREAKS)]
)
def test_a_0_cannot_be_traded_for_an_error(code, tmp_path):
    path = folders.write_task(tmp_path, "pip")
    _, reward, terminated, _, info = played(path, f"cat > /app/solution.py <<'END'\n{BREAKS[code]}\nEND\n")
    assert (reward, terminated, info["success"]) == (0.0, True, False)

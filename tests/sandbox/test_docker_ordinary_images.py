"""Docker sandboxes of images that were not made for them, from the front doors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request

import engine
import pytest
from played import to_the_end

import rollenv
from rollenv import UsageError
from rollenv.core.env_spec import wrap
from rollenv.sandbox import InvalidArgument, Limits, Pool, Sandbox, SandboxError, backends
from rollenv.sandbox.docker import LABEL

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(params=["debian", "scratch"])
def image(request, monkeypatch, docker_url):
    """The name of an image, and the engine by the variable that Docker's programs read."""
    monkeypatch.setenv("DOCKER_HOST", docker_url)
    backends.docker.require_image.cache_clear()
    yield request.getfixturevalue(f"{request.param}_image")
    backends.docker.require_image.cache_clear()


def test_code_runs_with_all_that_is_promised(image):
    with Sandbox.create("docker", image=image) as box:
        assert box.run_code("sum(range(10))").text == "45"
        assert box.run_code("import ssl, sqlite3, json, decimal, ctypes; 1").text == "1"
        box.files.write("f", "text")
        assert box.files.read("f") == "text"
        assert box.metrics().disk_total > 0
        assert all(box.isolation[name] for name in backends.PROMISED["docker"])


def test_runs_of_a_pool_are_apart_and_limited(image):
    with Pool(1, "docker", image=image, limits=Limits(seconds=2, memory_mb=64, processes=16)) as pool:
        assert pool.run("open('/tmp/left', 'w').write('x'); print(1)").stdout == "1\n"
        assert pool.run("import os; print(os.listdir('/tmp'))").stdout == "[]\n"
        assert pool.run("b = bytearray(1 << 28)").exit_code != 0
        assert pool.run("while True: pass", timeout=0.5).timed_out
        assert pool.run("print('x' * (1 << 23))").truncated


def test_an_environment_a_tool_and_a_wrapper_take_it(image):
    env = rollenv.make("code:OneLine-v0", sandbox="docker", image=image)
    env.reset(seed=1)
    assert env.step(env.oracle_action())[1] == 1.0
    sheet = rollenv.make("tools:Sheet-v0-python", sandbox="docker", image=image)
    sheet.reset(seed=1)
    call = {"name": "run_python", "arguments": {"code": "import os; print('box' in os.listdir('/'), len(cells) > 3)"}}
    assert "True True" in sheet.step(f"<tool_call>{json.dumps(call)}</tool_call>")[0]
    settings = {"sandbox": "docker", "image": image, "stateful": True}
    wrapped = wrap(rollenv.make("math:Arithmetic-v0-easy"), {"python_tool": settings})
    wrapped.reset(seed=1)
    wrapped.step("<python>x = 41</python>")
    assert "42" in wrapped.step("<python>print(x + 1)</python>")[0]
    wrapped.close()


def test_a_terminal_task_has_the_files_of_an_image(debian_image, scratch_image, docker_url, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", docker_url)
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=r"lacks bash"):
        rollenv.make("shell:Text-v0", image=scratch_image)
    with pytest.raises(UsageError, match=r"no image 'absent:1'"):
        rollenv.make("shell:Text-v0", image="absent:1")
    env = rollenv.make("shell:Text-v0", image=debian_image)
    env.reset(seed=1)
    assert to_the_end(env)[-1][1] == 1.0
    env.close()


def test_a_machine_is_not_a_container():
    with pytest.raises(UsageError, match=r"always 'local'.*image='NAME'"):
        rollenv.make("shell:Text-v0", sandbox="docker")


def test_the_variable_chooses_for_all_who_name_none(image, monkeypatch):
    monkeypatch.setenv("ROLLENV_SANDBOX", f"docker:{image}")
    assert backends.chosen() == backends.chosen("none") == {"backend": "docker", "image": image}
    assert backends.chosen("local") == {}
    monkeypatch.setenv("ROLLENV_SANDBOX", "podman")
    with pytest.raises(InvalidArgument, match=r"podman.*local, docker"):
        backends.chosen()


def test_a_server_runs_programs_and_environments_in_it(image, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-m", "rollenv", "serve", "--port", "0", "--workers", "1", "--drain", "0"]
    with open(log, "w") as file:
        server = subprocess.Popen([*command, "--sandbox", "docker", "--image", image], stdout=file, stderr=file)
    try:
        while "serving on" not in log.read_text():
            assert server.poll() is None, log.read_text()
        address = log.read_text().split()[-1]
        body = json.dumps({"code": "import os; print('box' in os.listdir('/'))", "language": "python"}).encode()
        asked = urllib.request.Request(f"{address}/run_code", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert json.load(answer)["run_result"]["stdout"] == "True\n"
        env = rollenv.make(f"rollenv+{address.replace('http', 'ws')}/tools:Sheet-v0-python")
        env.reset(seed=1)
        call = {"name": "run_python", "arguments": {"code": "import os; print('box' in os.listdir('/'))"}}
        assert "True" in env.step(f"<tool_call>{json.dumps(call)}</tool_call>")[0]
        env.close()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def test_no_container_is_left(image, docker_url):
    code = "from rollenv.sandbox import shared_pool; print(shared_pool(backend='docker', image={!r}).run('print(7)'))"
    done = subprocess.run([sys.executable, "-c", code.format(image)], capture_output=True, text=True)
    assert "7" in done.stdout, done.stderr
    with engine.connected(docker_url) as client:
        owners = {each["Labels"][LABEL].split(":")[1] for each in client.containers(all=True, filters={"label": LABEL})}
    assert owners <= {str(os.getpid())}


def test_what_an_image_lacks_is_said(scratch_image, docker_url):
    with pytest.raises(SandboxError, match=r"has no python3"):
        Sandbox.create("docker", image=scratch_image, base_url=docker_url, python="python3")
    with pytest.raises(InvalidArgument, match=r"cannot import numpy"):
        Sandbox.create("docker", image=scratch_image, base_url=docker_url, packages=["numpy"])
    with pytest.raises(SandboxError, match=r"no image 'absent:1'.*docker pull"):
        Sandbox.create("docker", image="absent:1", base_url=docker_url)


def test_the_last_lines_of_stderr_are_in_the_error(docker_url):
    with pytest.raises(SandboxError, match=r"it ended: .*option"):
        Sandbox.create("docker", image=engine.IMAGE, base_url=docker_url, python="/bin/sleep")


def test_settings_of_an_image_do_not_reach_the_sandbox(docker_url):
    settings = {"Entrypoint": ["/bin/echo"], "Volumes": {"/data": {}}, "User": "1:1", "Env": ["PYTHONHASHSEED=7"]}
    with engine.connected(docker_url) as client:
        container = client.create_container(engine.IMAGE, ["/bin/sh"])["Id"]
        client.commit(container, "rollenv-test-odd", conf=settings)
        client.remove_container(container)
    odd = {**engine.settings(docker_url), "image": "rollenv-test-odd"}
    with Sandbox.create(**odd) as box:
        assert box.run_code("open('/data/x', 'w')").error.name == "OSError"


def test_no_daemon_is_an_error_that_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    backends.docker.require_image.cache_clear()
    with pytest.raises(SandboxError, match=r"Docker does not answer.*DOCKER_HOST.*'local'"):
        rollenv.make("code:OneLine-v0", sandbox="docker")

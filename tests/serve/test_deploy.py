"""The files in ``deploy/``: a real container with compose's settings, and what can be checked of the others."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import threading

import pytest
import yaml
from clients import ROOT
from played import to_the_end
from serving import patient

import rollenv
from rollenv import RollenvError

pytestmark = pytest.mark.early

DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def server(shared_server):
    return shared_server


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    docker = pytest.importorskip("docker", reason="the docker SDK is not installed")
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("only root can start a Docker engine, and it has to be installed (Debian's docker.io)")
    import container

    found = importlib.util.spec_from_file_location("engine", ROOT / "tests" / "sandbox" / "engine.py")
    engine = importlib.util.module_from_spec(found)
    found.loader.exec_module(engine)
    folder = tmp_path_factory.mktemp("deploy")
    url, daemon = engine.start_engine(folder)
    try:
        with contextlib.closing(docker.APIClient(base_url=url, version="auto", timeout=120)) as client:
            client.create_network(container.NETWORK)
            container.build(client, folder)
            yield client
            client.remove_network(container.NETWORK)
    finally:
        daemon.terminate()
        daemon.wait(30)
        engine.clear_away(folder)


@pytest.fixture
def contained(client, tmp_path):
    import container

    started = []

    def start(**options):
        started.append(container.Container(client, tmp_path, **options))
        return started[-1]

    yield start
    for one in started:
        one.remove()


def test_the_image_gets_every_folder_of_the_package():
    links = [path.name for path in (ROOT / "rollenv").iterdir() if path.is_symlink()]
    assert {f"!{name}" for name in ["rollenv", *links]} <= set((ROOT / ".dockerignore").read_text().splitlines())


@pytest.mark.smoke
@pytest.mark.integration
def test_a_container_plays_runs_programs_and_drains(contained, monkeypatch):
    server = contained()
    monkeypatch.setenv("ROLLENV_TOKEN", server.token)
    assert server.http.get("readyz").text == "ready\n"
    env = rollenv.make(f"rollenv+ws://{server.address}/game:Sokoban-v0-tiny")
    twin = rollenv.make("game:Sokoban-v0-tiny")
    assert env.reset(seed=3) == twin.reset(seed=3)
    program = {"language": "python", "code": "import os; print(6 * 7, os.path.exists('/run/secrets'))"}
    done = server.http.post("run_code", json=program).json()
    assert done["run_result"]["stdout"] == "42 False\n"
    with rollenv.make(f"rollenv+ws://{server.address}/shell:Archives-v0-easy") as shell:
        shell.reset(seed=1)
        assert to_the_end(shell)[-1][1] == 1
    server.wait(lambda: server.about()["State"]["Health"]["Status"] == "healthy", 60)
    assert server.printed("id", "-u").strip() == "10001"
    assert "Read-only" in server.printed("sh", "-c", "echo x > /opt/rollenv/x")

    stopping = threading.Thread(target=server.client.stop, args=(server.id, 45))
    stopping.start()
    server.wait(lambda: server.get("readyz") == 503, 20)
    refused = server.http.post("apis/v1/envs/gem/make", json={"env_id": "game:Sokoban-v0-tiny"})
    assert refused.status_code == 503
    assert "about to stop" in refused.text
    over = False
    while not over:  # the episode goes on to its end
        action = twin.oracle_action()
        answer = env.step(action)
        assert answer == twin.step(action)
        over = answer[2] or answer[3]
    env.close()
    stopping.join(45)
    state = server.about()["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0)


@pytest.mark.integration
def test_a_container_without_namespaces_says_so(contained):
    server = contained(seccomp=False)
    answer = server.http.get("readyz")
    assert answer.status_code == 503
    assert answer.text.startswith("sandbox: ")
    assert "needs user namespaces" in answer.text
    assert patient.get(f"http://{server.address}/readyz").text == "sandbox: failed\n", "who has no token learns no more"


@pytest.mark.integration
def test_a_container_that_hides_parts_of_proc_serves_the_rest_and_says_what_it_lacks(contained, monkeypatch):
    server = contained(unconfined=False)
    monkeypatch.setenv("ROLLENV_TOKEN", server.token)
    assert server.http.get("readyz").text == "ready\n"
    env = rollenv.make(f"rollenv+ws://{server.address}/shell:Archives-v0-easy")
    with pytest.raises(RollenvError, match="systempaths=unconfined"), env:
        env.reset(seed=1)
    assert server.http.post("run_code", json={"language": "python", "code": "print(6 * 7)"}).json()["run_result"]


@pytest.mark.integration
def test_nothing_private_is_in_the_image(client):
    import container

    names = container.files_of(client, container.IMAGE)
    assert any(name.endswith("rollenv/envs/game/words/clues.txt") for name in names)
    assert not [name for name in names if "tokens.toml" in name or ".git/" in name or name.startswith("source")]
    assert container.IMAGE in str(client.images())
    assert "SECRET" not in str(client.history(container.IMAGE))


@pytest.mark.integration
@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-train.yaml"])
def test_the_manifests_of_kubernetes_are_valid(name):
    """By the API's published schemas: there is no API server to apply them to."""
    command = ROOT / ".bench" / "kubernetes" / "bin" / "kubernetes-validate"
    if not command.exists():
        pytest.skip("`make peers` puts kubernetes-validate into .bench/kubernetes")
    done = subprocess.run([command, "--strict", DEPLOY / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.integration
def test_a_training_image_trains_as_an_ordinary_user_and_goes_on(client, tmp_path):
    """With the job's own command, twice: it begins a run, and then goes on with it."""
    import container

    container.build_training(client, tmp_path)
    (job,) = [found for found in manifests("kubernetes-train.yaml") if found["kind"] == "Job"]
    (train,) = job["spec"]["template"]["spec"]["containers"]
    (script,) = train["args"]
    small = "iterations=1 model.warm_up.steps=2 model.warm_up.episodes=4 eval.episodes=2 rollout.groups_per_batch=2"
    script = script.replace(" $resume", f" {small} $resume")
    work = tmp_path / "work"
    work.mkdir()
    work.chmod(0o777)
    said = [container.ended(client, [*train["command"][2:], script], work) for _ in range(2)]
    assert all("runs/sokoban" in text for text in said)
    assert {path.stat().st_uid for path in (work / "runs").rglob("*")} == {10001}


def manifests(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_servers_get_more_time_than_they_take_to_drain():
    resources = manifests("kubernetes.yaml")
    (pod,) = [found["spec"]["template"]["spec"] for found in resources if found["kind"] == "StatefulSet"]
    (server,) = pod["containers"]
    waited = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > waited + drain(server["args"])
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["rollenv"]
    assert seconds(service["stop_grace_period"]) > drain(service["command"])
    unit = (DEPLOY / "rollenv.service").read_text()
    assert seconds(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > drain(re.search("ExecStart=(.*)", unit)[1].split())


def test_alert_rules_and_dashboard_name_metrics_that_the_server_has(server):
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    expressions = [rule["expr"] for rule in rules] + [query["expr"] for panel in panels for query in panel["targets"]]
    named = {name for text in expressions for name in re.findall(r"\brollenv_\w+", text)}
    text = patient.get(f"{server.http}/metrics").text
    assert named <= set(re.findall(r"^(?:# TYPE )?(rollenv_\w+)", text, re.M))


def test_the_unit_is_valid(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "rollenv.service"
    unit.write_text((DEPLOY / "rollenv.service").read_text().replace("/opt/rollenv/bin/rollenv", shutil.which("true")))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def drain(args):
    """The seconds of ``--drain``."""
    return float(args[args.index("--drain") + 1])


def seconds(text):
    return float(text.removesuffix("s"))

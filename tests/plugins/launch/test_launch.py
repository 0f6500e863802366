"""``[launch]``: scripts that are rendered, submitted and followed, with programs that run them here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import yaml
from packages import declare
from rank_runs import SMALL
from waiting import eventually

from rollenv import UsageError
from rollenv.trainers.config import load_config
from rollenv.trainers.run_dir import read_rows

WORDS = Path(__file__).parents[2] / "trainers/words.py"
HOSTILE = "a $(touch x) `touch x` 'q\" ü; touch x $$(B) {{nodes}}"
KINDS = {
    "slurm": 'kind = "slurm"\noptions = ["--partition=gpu"]\n',
    "ssh": 'kind = "ssh"\nhosts = ["me@localhost"]\n',
    "kubernetes": 'kind = "kubernetes"\ncontainer = "rollenv:1"\nsecret = "keys"\n',
    "skypilot": 'kind = "skypilot"\n',
}
#: Two machines on one: ports that do not collide, little memory, and no more CPUs than ranks need.
RAY = "--num-cpus=1 --object-store-memory=83886080 --min-worker-port=0 --max-worker-port=0"
SPREAD = ["placement.ranks=2", "placement.cpus=1"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the programs of all launchers, and an environment whose rewards differ."""
    programs, packages = tmp_path / "programs", tmp_path / "packages"
    programs.mkdir()
    source = Path(__file__).with_name("programs.py").read_text()
    (tmp_path / "programs.py").write_text(f"#!{sys.executable}\n{source}")
    (tmp_path / "programs.py").chmod(0o755)
    for name in ("sbatch", "srun", "squeue", "scontrol", "ssh", "sky", "kubectl"):
        (programs / name).symlink_to("../programs.py")
    declare(packages, "words_env", "[rollenv.envs]\nwords = words_env:register\n")
    (packages / "words_env.py").write_text(
        f"{WORDS.read_text()}\ndef register():\n    abilities = ['oracle', 'random_action', 'state_key']\n"
        "    rollenv.register(ID, 'words_env:Words', abilities=abilities, indexed=True)\n"
    )
    (tmp_path / "jobs").mkdir()
    settings = {"PATH": f"{programs}:{os.environ['PATH']}", "JOBS": str(tmp_path / "jobs"), "SECRET_KEY": "hunter2"}
    settings |= {"PYTHONPATH": str(packages), "ROLLENV_LAUNCH_POLL": "0.1", "RAY_START_OPTIONS": RAY}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("rollenv.plugins.launch.base.LOOK_EVERY", 0.1)
    yield tmp_path
    for process in psutil.process_iter():  # what a failed test left
        try:
            ours = process.environ().get("JOBS") == str(tmp_path / "jobs") and process.pid != os.getpid()
        except psutil.Error:
            continue
        if ours:
            process.kill()


@pytest.fixture
def recipe(place):
    def write(kind, more="", venv=sys.prefix, folder=place):
        keys = {"venv": str(venv), "folder": str(folder), "secrets": ["SECRET_KEY"]}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        (place / "recipe.toml").write_text(f'extends = "sokoban"\n[launch]\n{KINDS[kind]}{lines}{more}')
        return "recipe.toml"

    return write


@pytest.fixture
def started(place):
    """Start ``rollenv``; it ends with the test."""
    programs = []

    def start(*words):
        command = [sys.executable, "-m", "rollenv", *words]
        programs.append(
            subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        program.wait()


@pytest.fixture
def trained(started):
    """Run ``rollenv train`` to its end, and return its exit code and output."""

    def train(*words, seconds=1500):
        program = started("train", *words)
        output, _ = program.communicate(timeout=seconds)
        return program.returncode, output

    return train


def stand_in(place, code):
    """A virtual environment whose ``rollenv`` is this code of a shell."""
    (place / "venv/bin").mkdir(parents=True)
    (place / "venv/bin/rollenv").write_text(f"#!/bin/bash\n{code}\n")
    (place / "venv/bin/rollenv").chmod(0o755)
    return place / "venv"


def numbers(path):
    clock = ("time/", "cpu/", "tokens_per_s", "memory")
    return [{k: v for k, v in row.items() if not k.startswith(clock)} for row in read_rows(path / "metrics.jsonl")]


def learned(rows):
    assert len({row["loss"] for row in rows if "loss" in row}) > 1 or len({row["reward"] for row in rows}) > 1
    return rows


def assert_same(run, other):
    """Up to the rounding of sums that ranks add in another order."""
    assert len(run) == len(other) > 0
    for row, their in zip(run, other, strict=True):
        assert row == pytest.approx(their, rel=1e-3, abs=1e-5)


# -- what is written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_keys_hold_is_only_text(place, recipe, rollenv_command, kind):
    """The program that would train prints what it was given instead."""
    said = '{ printf "%s\\n" "$A" "$SECRET_KEY" "$PWD" "$@"; cat "$2"; } > "$SEEN"'
    folder = place / HOSTILE
    folder.mkdir()
    more = f"environment = {{ A = {json.dumps(HOSTILE)}, SEEN = {json.dumps(str(place / 'seen'))} }}"
    name = recipe(kind, more, stand_in(place, said), folder)
    run_dir = HOSTILE if kind == "kubernetes" else str(folder / "run")
    settings = [f"run_dir={run_dir}", f"prompt.template={json.dumps(HOSTILE + '{observation}')}"]
    done = rollenv_command("train", name, "--dry-run", *settings)
    assert done.returncode == 0, done.stderr
    assert not (place / "jobs/calls").exists()
    file = next(one for one in (place / run_dir / "launch").iterdir() if one.suffix in (".sh", ".yaml"))
    for one in (file.parent).glob("*"):
        assert one.read_text() in done.stdout
        assert "hunter2" not in one.read_text()
        assert one.stat().st_mode & 0o077 == 0, "keys of environment are for this user alone"
    for script in (file.parent).glob("*.sh"):
        assert subprocess.run(["bash", "-n", script]).returncode == 0
    done = rollenv_command("train", name, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    variable, secret, at, *words = (place / "seen").read_text().splitlines()
    assert (variable, at) == (HOSTILE, str(folder))
    assert secret == {"kubernetes": "of keys"}.get(kind, "hunter2")
    assert words[0] == "train"
    assert f"run_dir={folder / run_dir}" in words
    assert any(HOSTILE.replace('"', '\\"') in line for line in words if line.startswith("prompt.template"))
    assert not list(place.rglob("x"))


def test_two_machines_have_a_script_that_a_shell_reads(place, recipe, rollenv_command):
    for kind, nodes in {"slurm": "nodes = 2", "ssh": ""}.items():
        hosts = ['launch.hosts=["a", "b"]'] if kind == "ssh" else []
        done = rollenv_command("train", recipe(kind, nodes), "--dry-run", f"run_dir={kind}", *SPREAD, *hosts)
        assert done.returncode == 0, done.stderr
        assert subprocess.run(["bash", "-n", place / kind / "launch/node.sh"]).returncode == 0


def test_manifests_keep_own_options(place, recipe, rollenv_command):
    mount = 'containers = { volumeMounts = [{ name = "runs", mountPath = "/runs" }] }'
    keys = 'gpus = 8\nhours = 0.5\n[launch.options]\nwhen = 2026-11-30\nnodeSelector = { gpu = "h100" }\n'
    name = recipe("kubernetes", keys + mount)
    for run_dir in ("2026", f"Ünder_{'x' * 90}"):
        rollenv_command("train", name, "--dry-run", f"run_dir={run_dir}")
        service, job = yaml.safe_load_all((place / run_dir / "launch/kubernetes.yaml").read_text())
        assert service["metadata"]["name"] == (named := job["metadata"]["name"])
        assert re.fullmatch("[a-z][a-z0-9-]{,44}", named)
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["activeDeadlineSeconds"] == 1800
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["containers"][0]["volumeMounts"] == [{"name": "runs", "mountPath": "/runs"}]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    name = recipe("skypilot", '[launch.options]\nresources = { accelerators = "H100:8" }')
    task = yaml.safe_load(rollenv_command("train", name, "--dry-run", "run_dir=sky").stdout)
    assert task["resources"] == {"accelerators": "H100:8"}


@pytest.mark.parametrize(
    ("kind", "setting", "said"),
    [
        ("slurm", "launch.node=2", "did you mean"),
        ("slurm", "launch.kind=slrm", "slurm"),
        ("slurm", "launch=absent.toml", "absent.toml"),
        ("slurm", "launch.nodes=2", "placement.ranks"),
        ("slurm", "launch.nodes=0", "nodes"),
        ("slurm", 'launch.environment={"A B"="c"}', "A B"),
        ("slurm", 'launch.environment={A="b\\r"}', "environment.A"),
        ("slurm", "launch.hours=1e300", "hours"),
        ("slurm", 'launch.options=["-p x"]', "options"),
        ("slurm", 'launch.options=["--mem=1\\n#SBATCH --uid=0"]', "options"),
        ("ssh", 'launch.hosts=["-oProxyCommand=touch x"]', "hosts"),
        ("ssh", "launch.hosts=[]", "hosts"),
        ("ssh", "launch.hours=2", "hours"),
        ("kubernetes", "launch.container=", "container"),
        ("skypilot", "launch.gpus=8", "accelerators"),
    ],
)
def test_wrong_keys_are_named(place, recipe, kind, setting, said):
    with pytest.raises(UsageError, match=said):
        load_config(str(place / recipe(kind)), [setting])


def test_wrong_launches_are_refused_before_anything_is_submitted(place, recipe, rollenv_command, monkeypatch):
    (place / "own.sh").write_text("#!/bin/bash\n{{options}}\nmodule load cuda\nsrun bash {{node}}\n")
    done = rollenv_command("train", recipe("slurm"), "--dry-run", "launch.template=own.sh", "run_dir=run")
    assert "module load cuda" in (place / "run/launch/slurm.sh").read_text()
    (place / "own.sh").write_text("{{node}} {{optoins}}")
    (place / "idle.sh").write_text("{{options}}")
    for setting, said in {
        'launch.options=["--nodes=2"]': "--nodes",
        "launch.template=own.sh": "optoins",
        "launch.template=idle.sh": "{{node}}",
        "launch.template=absent.sh": "absent.sh",
        'launch.secrets=["ABSENT_KEY"]': "ABSENT_KEY",
    }.items():
        done = rollenv_command("train", recipe("slurm"), "run_dir=other", setting)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
        assert not (place / "other").exists()
    assert rollenv_command("train", recipe("slurm"), "--seeds", "2").returncode == 2
    assert not list((place / "jobs").iterdir())
    monkeypatch.setenv("SBATCH_FAILS", "1")
    for _ in range(2):  # nothing is left that would refuse the second
        assert "Invalid account" in rollenv_command("train", recipe("slurm"), "run_dir=run").stderr


def test_an_absent_program_is_named(place, recipe, rollenv_command, monkeypatch):
    monkeypatch.setenv("PATH", str(place / "jobs"))
    for kind, program in {"slurm": "sbatch", "kubernetes": "kubectl", "skypilot": "sky", "ssh": "ssh"}.items():
        for _ in range(2):  # nothing is left that would refuse the second
            done = rollenv_command("train", recipe(kind), f"run_dir={kind}")
            assert done.returncode != 0
            assert f"cannot run {program}" in done.stderr


def test_launch_in_a_file_of_its_own(place, rollenv_command):
    (place / "machines.toml").write_text('kind = "slurm"\noptions = ["--account=physics"]\n')
    command = ("train", "sokoban", "--launch", "machines.toml", "--dry-run", "run_dir=run")
    assert "--account=physics" in rollenv_command(*command).stdout
    assert "--time=60" in rollenv_command(*command, "launch.hours=1").stdout


# -- what is run -------------------------------------------------------------------------------------------------------


def test_a_run_is_launched_once_and_its_folder_is_kept(place, recipe, rollenv_command):
    venv = stand_in(place, 'while [ ! -e "$JOBS/go" ]; do sleep 0.1; done; mkdir "${@: -1:1}"; echo "$@" > words')
    command = ("train", recipe("slurm", "follow = false", venv), "run_dir=run")
    assert rollenv_command(*command).returncode == 0
    second = rollenv_command(*command)
    assert (second.returncode, "1000" in second.stderr) == (2, True)
    again = rollenv_command(*command, "--resume", "iterations=7")  # by somebody who knows that the first is gone
    assert again.returncode == 0, again.stderr
    (place / "jobs/go").touch()
    assert eventually(lambda: (place / "jobs/1001/state").read_text() == "COMPLETED", 60)
    assert eventually(lambda: (place / "jobs/1000/state").read_text() == "COMPLETED", 60)
    assert "iterations=7" in (place / "words").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_machine_is_named_and_the_exit_code_says_so(place, recipe, rollenv_command, kind):
    done = rollenv_command("train", recipe(kind, venv=stand_in(place, "echo out of luck; exit 9")), "run_dir=run")
    assert done.returncode == 1
    assert "out of luck" in done.stdout
    named = {"slurm": "1000", "ssh": "me@localhost", "kubernetes": "machine-7", "skypilot": "job run"}
    assert named[kind] in done.stderr
    assert "task 0" in done.stdout or kind != "slurm"
    assert "Traceback" not in done.stderr


def test_a_failed_run_is_started_again(place, recipe, rollenv_command):
    code = '[ -e "$JOBS/tried" ] && exit 0; touch "$JOBS/tried"; exit 1'
    for kind in ("slurm", "ssh", "skypilot"):
        (place / "jobs/tried").unlink(missing_ok=True)
        venv = place / "venv" if (place / "venv").exists() else stand_in(place, code)
        done = rollenv_command("train", recipe(kind, "requeue = 1", venv), f"run_dir={kind}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "again" in done.stdout


@pytest.mark.slow
def test_one_machine_of_slurm_trains_as_this_process_does(place, recipe, trained):
    code, output = trained(recipe("slurm"), "run_dir=a run", *SMALL, "iterations=2")
    assert code == 0, output
    assert "success" in output, "the log is not followed"
    code, output = trained("a run/launch/recipe.toml", "run_dir=here")
    assert code == 0, output
    assert numbers(place / "a run") == learned(numbers(place / "here"))


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["kubernetes", "skypilot", "ssh"])
def test_one_machine_elsewhere_trains_as_this_process_does(place, recipe, trained, kind):
    code, output = trained(recipe(kind), "run_dir=run", *SMALL, "iterations=2")
    assert code == 0, output
    assert trained("run/launch/recipe.toml", "run_dir=here")[0] == 0
    assert numbers(place / "run") == learned(numbers(place / "here"))


@pytest.mark.smoke
def test_two_machines_train_together_through_sigterm_and_requeue(place, recipe, trained):
    """Two ranks on a real Ray cluster; the batch script gets SIGTERM, as before a time limit."""
    pytest.importorskip("ray.train")
    small = [*SMALL, *SPREAD, "iterations=12", "checkpoint_every=1"]
    told = []

    def tell():
        if eventually(lambda: (place / "run/metrics.jsonl").exists() and len(numbers(place / "run")) > 2, 1000):
            told.append(os.kill(int((place / "jobs/1000/pid").read_text()), signal.SIGTERM))

    thread = threading.Thread(target=tell)
    thread.start()
    code, output = trained(recipe("slurm", "nodes = 2\nrequeue = 1"), "run_dir=run", *small)
    thread.join()
    assert code == 0, output
    assert told
    assert "queued again" in output
    code, output = trained("run/launch/recipe.toml", "run_dir=here")
    assert code == 0, output
    assert_same(numbers(place / "run"), learned(numbers(place / "here")))


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_machine_is_named_and_the_run_resumes(place, recipe, trained, kind):
    pytest.importorskip("ray.train")
    small = [*SMALL, *SPREAD, "iterations=12", "checkpoint_every=1"]
    more = 'launch.hosts=["localhost", "127.0.0.1"]' if kind == "ssh" else "launch.nodes=2"
    machine = {"slurm": "1000/task-1", "ssh": "ssh-127.0.0.1", "kubernetes": "pod-1", "skypilot": "node-1"}[kind]
    killed = []

    def kill():
        if eventually(lambda: (place / "run/metrics.jsonl").exists() and len(numbers(place / "run")) > 2, 1000):
            lost = psutil.Process(int((place / "jobs" / machine).read_text()))
            for process in [lost, *lost.children(recursive=True)]:
                process.kill()
                killed.append(process.pid)

    thread = threading.Thread(target=kill)
    thread.start()
    code, output = trained(recipe(kind, "requeue = 1"), "run_dir=run", *small, more)
    thread.join()
    assert killed
    assert code == 0, output
    named = {"slurm": "task 1: Killed", "ssh": "127.0.0.1 failed", "skypilot": "again", "kubernetes": ""}
    assert named[kind] in output
    code, output = trained("run/launch/recipe.toml", "run_dir=here")
    assert code == 0, output
    assert_same(numbers(place / "run"), learned(numbers(place / "here")))


@pytest.mark.integration
def test_ctrl_c_says_how_to_cancel_and_two_resumes_do_not_mix(place, recipe, started, trained):
    command = [recipe("slurm"), "run_dir=run", *SMALL, "checkpoint_every=1"]
    first = started("train", *command, "iterations=100000")
    assert eventually(lambda: (place / "run/metrics.jsonl").exists() and len(numbers(place / "run")) > 1, 600)
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=60)
    assert "scancel 1000" in output
    assert first.returncode == 130
    code, output = trained(*command, "iterations=100000", "--resume")
    assert code == 1, "a second job resumed a run that goes on"
    assert "another process" in output
    os.kill(int((place / "jobs/1000/pid").read_text()), signal.SIGTERM)
    assert eventually(lambda: (place / "jobs/1000/state").read_text() == "FAILED", 600)
    rows = len(numbers(place / "run"))
    started("train", *command, "iterations=100000", "--resume")
    assert eventually(lambda: len(numbers(place / "run")) > rows, 600)
    os.kill(int((place / "jobs/1002/pid").read_text()), signal.SIGTERM)
    assert eventually(lambda: (place / "jobs/1002/state").read_text() == "FAILED", 600)


@pytest.mark.integration
def test_machines_of_ssh_end_with_the_launch(place, recipe, started):
    run = started("train", recipe("ssh"), "run_dir=run", *SMALL, "iterations=100000")
    assert eventually(lambda: (place / "run/metrics.jsonl").exists() and len(numbers(place / "run")) > 1, 600)
    trains = psutil.Process(int((place / "run/launch/pid").read_text()))
    run.kill()
    assert eventually(lambda: not trains.is_running() or trains.status() == psutil.STATUS_ZOMBIE, 100)
    assert list((place / "run/checkpoints").iterdir())

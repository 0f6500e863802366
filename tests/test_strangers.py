"""Files of strangers run nothing and connect to nothing that the reader's command did not name."""

import json
import os
import pickle
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from packages import declare
from typer.testing import CliRunner

from rollenv.agents.base import OracleAgent
from rollenv.agents.local import LocalAgent
from rollenv.cli.main import app
from rollenv.core.errors import UsageError
from rollenv.core.trust import named
from rollenv.rollout.exports import export
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.storage import write
from rollenv.rollout.records.stored import StoredEpisode
from rollenv.rollout.regrade import regrade
from rollenv.rollout.types import Task
from rollenv.serve.sessions import served
from rollenv.trainers.config import load_config
from rollenv.trainers.models import initial_agent
from rollenv.trainers.run_dir import RunDir

ID = "game:GuessTheNumber-v0-easy"


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A folder of a stranger as the current one, with a module that leaves a mark when it is imported."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "harbor:.").touch()
    (folder / "evil_module.py").write_text(
        f"open({str(tmp_path / 'mark')!r}, 'w')\ndef go(*a, **k):\n    return a[0]\n"
    )
    monkeypatch.chdir(folder)
    yield folder
    assert not (tmp_path / "mark").exists(), "the stranger's code ran"


@pytest.fixture
def address(monkeypatch):
    """The address of a stranger, to whom nobody connects."""
    monkeypatch.setenv("ROLLENV_TOKEN", "secret")
    monkeypatch.setenv("OPENENV_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.fixture(scope="module")
def episode():
    with RolloutManager(OracleAgent()) as manager:
        (group,) = manager.collect([Task(ID, 3)])
    return group.trajectories[0]


def tasks_of(address):
    own = Task(ID, 3)
    return [
        replace(own, wrappers={"evil_module:go": {}}),
        replace(own, wrappers={"transformers:pipeline": {"model": ".", "trust_remote_code": True}}),
        replace(own, wrappers={"search_tool": {"search_url": f"http://{address}/"}}),
        replace(own, wrappers={"concat_chat": {"tokenizer": "theirs"}}),
        replace(own, env_id=f"rollenv+ws://{address}/{ID}"),
        replace(own, env_id=f"openenv:http://{address}"),
        replace(own, env_id="gymnasium:evil_module:Game-v0"),
        replace(own, env_id="pettingzoo:evil_module:go"),
        replace(own, env_id="evil_module:go"),
        replace(own, env_id="./evil_module.py:go"),
        replace(own, env_id="harbor:."),
        replace(own, env_id="service:Shop-v0", kwargs={"user": "chat:m", "base_url": f"http://{address}"}),
        replace(own, env_id="shell:Archives-v0", kwargs={"image": "theirs", "sandbox": "docker"}),
        replace(own, env_id="math:Math12K", kwargs={"dataset_name": "theirs"}),
    ]


def test_a_stored_task_names_nothing_that_is_run_or_connected_to(theirs, address, episode, tmp_path, monkeypatch):
    tasks = tasks_of(address)
    for task in tasks:
        (result,) = regrade([StoredEpisode(replace(episode, task=task))])
        assert (result.kind, result.new) == ("unjudged", None), task
        assert "--trust" in result.reason
    called = replace(episode.turns[0], text='<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    write(theirs / "episodes.jsonl", [replace(episode, task=task, turns=[called]) for task in tasks])
    export("episodes.jsonl", tmp_path / "x.chat.jsonl")
    assert CliRunner().invoke(app, ["view", "episodes.jsonl", "--no-open"]).exit_code == 0
    (tmp_path / "judge_of_mine.py").write_text("def judge(row, reward):\n    return reward\n")
    monkeypatch.syspath_prepend(tmp_path)
    row = CliRunner().invoke(app, ["regrade", "episodes.jsonl", "--grader", "judge_of_mine:judge"])
    assert row.exit_code == 0, row.output


def test_a_client_names_no_code_of_a_server(theirs):
    for env_id in ("evil_module:go", "evil_module.py:go"):
        with pytest.raises(UsageError):
            served(env_id)


def test_a_reader_may_trust_a_stored_task(monkeypatch, episode, tmp_path):
    (tmp_path / "own_wrapper_of_mine.py").write_text("def same(env):\n    return env\n")
    monkeypatch.chdir(tmp_path)
    own = StoredEpisode(replace(episode, task=Task(ID, 3, {}, {"own_wrapper_of_mine:same": {}})))
    assert [each.kind for each in regrade([own])] == ["unjudged"]
    assert [each.kind for each in regrade([own], trust=True)] == ["same"]


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("rewards", {"function": "evil_module:go"}),
        ("loss", {"name": "evil_module:go"}),
        ("eval", {"measures": ["evil_module:go"]}),
        ("env", {"id": ID, "wrappers": {"evil_module:go": {}}}),
        ("env", {"id": "openenv:http://ADDRESS"}),
        ("player", {"kind": "vllm", "url": "http://ADDRESS"}),
        ("player", {"kind": "vllm", "options": {"trust_remote_code": True}}),
        ("model", {"path": "somebody/model"}),
        ("model", {"path": "/gone/model"}),
        ("harness", {"name": "pi"}),
        ("trackers", {"use": ["wandb"]}),
        ("trackers", {"alerts": "http://ADDRESS/hook"}),
        ("placement", {"address": "ray://ADDRESS"}),
        ("rollout", {"shard_options": {"runtime_env": {"pip": ["evil"]}}}),
        ("rewards", {"domains": [{"kind": "judge", "url": "http://ADDRESS", "model": "m", "key_variable": "SECRET"}]}),
    ],
)
def test_a_strangers_run_is_not_resumed_with_what_it_names(section, value, theirs, address):
    config = load_config(ID).model_dump(mode="json") | {"run_dir": "."}
    config[section] |= json.loads(json.dumps(value).replace("ADDRESS", address))
    (theirs / "config.json").write_text(json.dumps(config))
    done = CliRunner().invoke(app, ["train", "--resume", "run_dir=."])
    assert done.exit_code == 2
    assert "--trust" in done.output.replace("\n", " "), done.output
    assert ("not there" in done.output.replace("\n", " ")) == ("/gone/" in str(value))


def test_what_the_command_names_again_may_be_resumed(tmp_path):
    config = load_config(ID, ["model=somebody/model", f"run_dir={tmp_path / 'run'}"])
    RunDir.create(config.model_copy(update={"model": load_config(ID).model}), ID)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    stored["model"]["path"] = "somebody/model"
    (tmp_path / "run" / "config.json").write_text(json.dumps(stored))
    with pytest.raises(UsageError, match="somebody/model"):
        RunDir.resume(tmp_path / "run", [ID])
    assert RunDir.resume(tmp_path / "run", ["somebody/model"])[1].model.path == "somebody/model"


def test_the_parts_of_rollenv_keep_their_names(tmp_path):
    points = "[rollenv.namespaces]\ngame = clash:taken\n[rollenv.commands]\ninfo = clash:taken\nodd = clash:odd\n"
    declare(tmp_path, "clash", points)
    (tmp_path / "clash.py").write_text(
        "def taken(x: str = ''):\n    raise SystemExit(9)\ndef odd(*a, **k):\n    pass\n"
    )
    run = [sys.executable, "-m", "rollenv", "info", ID]
    done = subprocess.run(run, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert all(f" {name} " in done.stderr for name in ("game", "info", "odd")), "each is reported"


@pytest.mark.parametrize("parameter", ["json: bool = False", "own: bool = typer.Option(False, '--json')"])
def test_a_command_with_a_json_option_of_its_own(parameter, tmp_path):
    declare(tmp_path, "more", "[rollenv.commands]\nmore = more:more\n")
    name = parameter.partition(":")[0]
    text = f"import typer\ndef more({parameter}, output: str = ''):\n    print(output if {name} else 'without')\n"
    (tmp_path / "more.py").write_text(text)
    run = [sys.executable, "-m", "rollenv", "more", "--json", "--output", "with"]
    done = subprocess.run(run, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout.strip() == "with", done.stderr


def test_modules_of_the_current_folder_are_not_imported(theirs):
    (theirs / "evil_module.py").rename(theirs / "typer.py")
    run = [sys.executable, "-m", "rollenv", "--version"]
    assert subprocess.run(run, capture_output=True).returncode == 0


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors", "rollenv_agent.json"])
def test_a_damaged_model_ends_in_a_sentence_with_its_file(file, tmp_path):
    config = load_config(ID, ["model.warm_up.steps=0"])
    initial_agent(config, config.env.wrappers, lambda *a, **k: None).save(tmp_path)
    (tmp_path / file).write_text("{")
    with pytest.raises(UsageError, match=file):
        LocalAgent.load(tmp_path)


def test_pickled_weights_are_not_run(tmp_path, theirs):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"cevil_module\ngo\n(tR.")
    with pytest.raises(UsageError, match=r"pytorch_model\.bin"):
        LocalAgent.load(tmp_path)


def test_settings_that_name_nothing_need_no_trust():
    assert named(load_config("sokoban").model_dump(mode="json")) == {}


def test_a_description_of_shards_names_tensors_only(tmp_path):
    from torch.distributed import checkpoint as dcp

    from rollenv.trainers.ranks import ALONE
    from rollenv.trainers.sharded_state import FOLDER, read

    class Part:
        def __init__(self, value):
            self.value = torch.full((2,), value)

        def tensors(self):
            return {"x": self.value}

    dcp.save({"a/x": torch.ones(2)}, checkpoint_id=tmp_path / FOLDER, no_dist=True)
    part = Part(0.0)
    read(tmp_path, {"a": part}, ALONE)
    assert part.value.tolist() == [1.0, 1.0]

    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "mark"), "w")

    (tmp_path / FOLDER / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(Exception, match="no part of a tensor"):
        read(tmp_path, {"a": part}, ALONE)
    assert not (tmp_path / "mark").exists()


def test_code_of_a_models_folder_is_not_run_whatever_is_typed(tmp_path, theirs, monkeypatch):
    config = load_config(ID, ["model.warm_up.steps=0"])
    initial_agent(config, config.env.wrappers, lambda *a, **k: None).save(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    settings = json.loads(file.read_text())
    monkeypatch.setattr("builtins.input", lambda *a: pytest.fail("the terminal is asked"))
    for more in (
        {"model_type": "theirs", "auto_map": {"AutoConfig": "evil_module.A", "AutoModelForCausalLM": "evil_module.B"}},
        {"attn_implementation": "somebody/kernel"},
        {"attn_implementation": {"text": "somebody/kernel"}},
    ):
        file.write_text(json.dumps(settings | more))
        (tmp_path / "model" / "evil_module.py").write_text((theirs / "evil_module.py").read_text())
        with pytest.raises(UsageError, match="not run"):
            LocalAgent.load(tmp_path / "model")

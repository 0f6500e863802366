"""One owner for each folder, and runs that are continued with what they were started with."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import subprocess
import sys

import pytest

from rollenv import UsageError
from rollenv.cli.playing import EvalFolder
from rollenv.core.folder_lock import lock_folder
from rollenv.rollout.fingerprints import data_fingerprint, model_fingerprint, row_fingerprints
from rollenv.trainers.config import load_config
from rollenv.trainers.run_dir import RunDir, RunDirError

SETTINGS = {"env": "math:GSM8K", "n": 2, "k": 1}


class Owner:
    """Holds a lock."""


def run_dir(path):
    return RunDir.create(load_config("sokoban", [f"run_dir={path}"]), "sokoban")


def begun(path, **more):
    folder = EvalFolder.begin(path, SETTINGS | more, resume=False)
    with folder.writing():
        return folder


@contextlib.contextmanager
def held(path):
    """Another process that writes a folder, and is killed at the end."""
    hold = (
        "import pathlib, sys; from rollenv.core.folder_lock import lock_folder; owner = set([1])\n"
        "lock_folder(pathlib.Path(sys.argv[1]), owner); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.mark.combinations
@pytest.mark.parametrize("first", [run_dir, begun])
def test_a_folder_that_another_process_writes_is_refused(first, tmp_path):
    path = tmp_path / "run"
    first(path)
    gc.collect()
    with held(path):
        with pytest.raises(UsageError, match="another process"):
            RunDir.resume(path) if first is run_dir else EvalFolder.begin(path, SETTINGS, resume=True)
        with pytest.raises(UsageError, match="another process"), EvalFolder.begin(path, SETTINGS, True).writing():
            pass
    assert lock_folder(path, Owner())


@pytest.mark.parametrize("damaged", ["", "[]", "null", "[" * 100_000])
def test_a_run_whose_settings_are_damaged_is_not_resumed(tmp_path, damaged):
    (tmp_path / "config.json").write_text(damaged)
    with pytest.raises(UsageError, match="cannot resume"):
        RunDir.resume(tmp_path, allowed=())


def test_one_process_may_go_on_with_its_own_folder_and_then_lets_others_in(tmp_path):
    owners = [Owner(), Owner()]
    assert [lock_folder(tmp_path, owner) for owner in owners] == [True, True]
    owners.clear()
    with held(tmp_path), pytest.raises(UsageError, match="another process"):
        lock_folder(tmp_path, Owner())


def write_rows(path, answers):
    rows = [{"problem": f"{i}+1?", "answer": answer} for i, answer in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"dataset_name": str(path), "split": ""}


def test_a_changed_answer_is_another_row_and_a_new_row_is_none(tmp_path):
    rows = [
        row_fingerprints("math:GSM8K", write_rows(tmp_path / "rows.jsonl", answers)) for answers in ("12", "13", "123")
    ]
    assert rows[0][0] == rows[1][0] == rows[2][0]
    assert rows[0][1] == rows[2][1] != rows[1][1]
    assert data_fingerprint("game:Sokoban-v0-easy", {}) == ""


def test_an_evaluation_goes_on_with_the_rows_and_the_model_it_began_with(tmp_path):
    begun(tmp_path / "eval", rows=["a", "b"], model="m")
    more = SETTINGS | {"n": 3}
    for changed, says in (
        ({"rows": ["a", "x", "c"], "model": "m"}, "the first is row 1"),
        ({"rows": ["a", "b"], "model": "o"}, "other weights"),
    ):
        with pytest.raises(UsageError, match=says):
            EvalFolder.begin(tmp_path / "eval", more | changed, resume=True)
        EvalFolder.begin(tmp_path / "eval", more | changed, resume=True, accept=True)
    EvalFolder.begin(tmp_path / "eval", more | {"rows": ["a", "b", "c"], "model": "m"}, resume=True)


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    config = load_config("sokoban", [f"run_dir={tmp_path / 'run'}", f"model.path={tmp_path}"])
    with pytest.raises(UsageError, match="GGUF"):
        RunDir.create(config, "sokoban")
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="file/run: File exists"):
        RunDir.create(load_config("sokoban", [f"run_dir={tmp_path / 'file/run'}"]), "sokoban")


def test_a_training_run_goes_on_with_the_data_and_the_model_it_began_with(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    kwargs = write_rows(tmp_path / "rows.jsonl", "12")
    settings = [f"run_dir={tmp_path / 'run'}", f"model.path={model}", "env.id=math:GSM8K"]
    settings += [f"{where}.kwargs={{dataset_name='{kwargs['dataset_name']}', split=''}}" for where in ("env", "eval")]
    config = load_config("rlvr_gsm8k", settings)
    RunDir.create(config, "rlvr_gsm8k")
    run, started = RunDir.resume(tmp_path / "run")
    assert run.extend(started, started) == started
    write_rows(tmp_path / "rows.jsonl", "13")
    with pytest.raises(UsageError, match="math:GSM8K"):
        run.extend(started, started)
    assert run.extend(started, started, accept=True) == started
    write_rows(tmp_path / "rows.jsonl", "12")
    (model / "model.safetensors").write_bytes(b"others")
    assert model_fingerprint(str(model))
    with pytest.raises(UsageError, match="model"):
        run.extend(started, started)

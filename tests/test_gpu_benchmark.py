"""The benchmark for GPUs runs where there is none."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


@pytest.mark.integration
def test_the_toys_give_every_number(tmp_path):
    environ = os.environ | {"ROLLENV_BENCH_OUT": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(SCRIPT), "--sizes", "toy-qwen3"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    updates, playing = json.loads((tmp_path / "gpu.json").read_text())["tables"]
    assert [row[3] for row in updates["rows"]] == ["padded", "packed", "tree"] * 2
    for row in updates["rows"]:
        assert float(str(row[5]).replace(",", "")) > 0
        assert row[6] > 0
    assert len(playing["rows"]) == 1
    assert all(float(str(playing["rows"][0][i]).replace(",", "")) >= 0 for i in (1, 4, 5, 6, 7, 8))


def test_a_row_without_enough_memory_leaves_the_attention_of_the_next_ones_as_it_was(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    gpu = importlib.import_module("gpu")
    set_to = []
    model = SimpleNamespace(config=SimpleNamespace(_attn_implementation="own"), set_attn_implementation=set_to.append)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(gpu, "padded_step", full)
    with pytest.raises(MemoryError):
        gpu.padded(SimpleNamespace(model=model), None, 1)
    assert set_to == ["sdpa", "own"]

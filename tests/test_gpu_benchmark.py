"""The benchmark for GPUs runs where there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path

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

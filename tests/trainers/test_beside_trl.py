"""Losses and gradients beside TRL's trainers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PEER = ROOT / ".bench" / "trl" / "bin" / "python"


@pytest.mark.integration
@pytest.mark.skipif(not PEER.exists(), reason="needs trl: make peers")
@pytest.mark.parametrize("kind", ["sft", "sft packed", "dpo", "ipo", "kto", "reward"])
def test_one_step_has_the_loss_and_the_gradient_of_trls(kind, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    from learners_beside_trl import compare

    found = compare(str(PEER), *kind.split())
    assert found["loss"] <= 1e-6 * max(1.0, found["trl"])
    assert found["gradient"] <= 1e-6 * max(1.0, found["largest"])

"""The number of threads, and neighbours on the same cores."""

from __future__ import annotations

import logging
import os

import torch
from tiny_runs import start

from rollenv.agents.engines import cpu_threads
from rollenv.agents.engines.cpu_threads import CpuThreads, idle_cores


def test_threads_are_chosen_and_said(tmp_path, small, caplog):
    assert 1 <= idle_cores(0.05) <= len(os.sched_getaffinity(0))
    before = torch.get_num_threads()
    caplog.set_level(logging.INFO)
    try:
        with start(tmp_path / "run", [*small, "threads=0"]) as run:
            assert torch.get_num_threads() == run.threads.count >= 1
        assert "cores as were idle" in caplog.text
    finally:
        torch.set_num_threads(before)


def test_threads_give_way_to_a_neighbour_that_comes_later(monkeypatch):
    """The machine's own figures, in the place of a neighbour: what the cores did, and how much of it was ours."""
    clock = {"now": 0.0, "all": 0.0, "own": 0.0}
    monkeypatch.setattr(cpu_threads, "_snapshot", lambda: tuple(clock.values()))
    monkeypatch.setattr(cpu_threads, "cores", lambda: [0, 1])
    before = torch.get_num_threads()
    try:
        used = CpuThreads(0)
        seen = []
        for others in (0, 1, 1, 0, 2):
            clock["now"] += 10
            clock["own"] += 10
            clock["all"] += 10 + 10 * others
            used.adapt()
            seen.append(torch.get_num_threads())
        assert seen == [2, 1, 1, 2, 1]
        fixed = CpuThreads(2)
        clock["now"] += 10
        clock["all"] += 20
        fixed.adapt()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

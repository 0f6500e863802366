"""Runs other projects' clients, unmodified and in environments of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import rollenv

ROOT = Path(__file__).parents[2]


def run(name, code, **environ):
    """A program in ``.bench/NAME``; what it printed."""
    python = ROOT / ".bench" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`make peers` puts {name} into .bench/{name}")
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=300, env=os.environ | environ, cwd="/"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def expected(seed):
    """What an expert's episode shows, and its actions."""
    env = rollenv.make("game:Sokoban-v0-tiny")
    seen, actions = [repr(env.reset(seed)[0])], []
    done = False
    while not done:
        actions.append(env.oracle_action())
        answer = env.step(actions[-1])
        seen.append(repr(answer[:4]))
        done = answer[2] or answer[3]
    return seen, "|".join(actions)

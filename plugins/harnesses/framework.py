"""Harnesses of frameworks for agents: a Python package, and a program here that makes an agent of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollenv.agents.harness.records import OPENAI, PYTHON, Dialect, Harness

_PROGRAMS = Path(__file__).with_name("programs")


def framework(
    name: str, version: str, dialect: Dialect, prompt_tokens: int, *packages: str, **settings: Any
) -> Harness:
    """Create the harness of a framework, run by the program of the same name in ``programs/``."""
    return Harness(
        name,
        version,
        dialect,
        f"{PYTHON} {{scripts}}/{name.replace('-', '_')}.py",
        pip=packages,
        env={
            **OPENAI,
            "HARNESS_CONTEXT": "{context}",
            "HARNESS_MAX_TURNS": "{max_turns}",
            "HARNESS_MODEL": "{model}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        scripts=str(_PROGRAMS),
        stdin="{instruction}",
        prompt_tokens=prompt_tokens,
        **settings,
    )

"""Spider's questions over databases (arXiv 1809.08887), as InterCode plays them (arXiv 2306.14898)."""

from __future__ import annotations

from rollenv.core.needs import DataFiles, Package
from rollenv.core.registry import ABILITIES, register

NEED = DataFiles("agentic/intercode/sql/spider", ("ic_spider_dev.json",), "https://github.com/princeton-nlp/intercode")


def register_tools() -> None:
    """Register the questions of Spider's development set whose tables have rows."""
    register(
        "tools:Spider-v0",
        "rollenv.plugins.suites.spider.env:SpiderEnv",
        abilities=ABILITIES,
        needs=[NEED, Package("sqlglot", "envs")],
        indexed=True,
        max_turns=10,
        partial_reward=1.0,
    )

"""DBBench of AgentBench (arXiv 2308.03688): questions about a table, and changes to it, with SQL."""

from __future__ import annotations

from rollenv.core.needs import DataFiles, Package
from rollenv.core.registry import ABILITIES, register

NEED = DataFiles("agentic/agentbench_db", ("standard.jsonl",), "https://github.com/THUDM/AgentBench")


def register_tools() -> None:
    """Register an id for all 300 tasks, and one for each kind."""
    # The published hash of one UPDATE (225) does not match the published table.
    for kind in ("", "select", "insert", "update"):
        register(
            f"tools:DBBench-v0{'-' if kind else ''}{kind}",
            "rollenv.plugins.suites.dbbench.env:DBBenchEnv",
            abilities=ABILITIES,
            needs=[NEED, Package("sqlglot", "envs")],
            indexed=True,
            oracle_success=1.0 if kind in ("select", "insert") else 0.9,
            kind=kind or "all",
            max_turns=15,
        )

"""WorkBench (arXiv 2405.00823): office work in five tables, judged by the final tables."""

from __future__ import annotations

from rollenv.core.needs import DataFiles
from rollenv.core.registry import ABILITIES, register

#: Prefixes of the files of each category of queries.
CATEGORIES = {
    "analytics": "analytics",
    "calendar": "calendar",
    "crm": "customer_relationship_manager",
    "email": "email",
    "multi_domain": "multi_domain",
    "project_management": "project_management",
}
NEED = DataFiles("agentic/workbench", ("processed/emails.csv",), "https://github.com/olly-styles/WorkBench")
_ENV = "rollenv.plugins.suites.workbench.env:WorkBenchEnv"


def register_tools() -> None:
    """Register an id for all queries, and one for each category."""
    for category in ("", *CATEGORIES):
        env_id = f"tools:WorkBench-v0{'-' if category else ''}{category}"
        register(env_id, _ENV, abilities=ABILITIES, needs=[NEED], indexed=True, category=category)

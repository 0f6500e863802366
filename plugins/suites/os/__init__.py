"""Tasks in a shell: AgentBench's operating system (arXiv 2308.03688) and InterCode's Bash (arXiv 2306.14898)."""

from __future__ import annotations

from rollenv.core.needs import MACHINES, DataFiles
from rollenv.core.registry import ABILITIES, register

AGENTBENCH = {
    split: DataFiles("agentic/agentbench_os", (pattern,), "https://github.com/THUDM/AgentBench")
    for split, pattern in {
        "test": "data/[1-7]/*.json",
        "dev": "data/dev.json",
        "train": "train_0317/training.json",
    }.items()
}
INTERCODE = DataFiles("agentic/intercode", ("nl2bash/nl2bash_fs_*.json",), "https://github.com/princeton-nlp/intercode")

#: Machines cannot be saved, so there is no ability "state".
_ABILITIES = ABILITIES - {"state", "spawn"}


def register_family() -> None:
    """Register each split of AgentBench's operating system, and InterCode's Bash."""
    for split, need in AGENTBENCH.items():
        register(
            f"os:AgentBench-v0{'' if split == 'test' else f'-{split}'}",
            "rollenv.plugins.suites.os.agentbench:AgentBenchOSEnv",
            abilities=_ABILITIES,
            needs=[need, MACHINES],
            indexed=True,
            oracle_success=0.9,  # some published solutions fail their own check
            split=split,
            max_turns=8,
        )
    register(
        "os:InterCode-Bash-v0",
        "rollenv.plugins.suites.os.intercode:InterCodeBashEnv",
        abilities=_ABILITIES,
        needs=[INTERCODE, MACHINES],
        indexed=True,
        oracle_success=0.9,  # the output of some published commands depends on the clock
        max_turns=10,
        partial_reward=1.0,
    )

"""The suites of ``rollenv bench``."""

from rollenv.bench.suites import SuiteSpec

WORKBENCH = SuiteSpec(
    "WorkBench: 690 requests at an office, judged by five tables (arXiv 2405.00823).",
    ("tools:WorkBench",),
    left_out=("tools:WorkBench-v0",),
)
BFCL = SuiteSpec("Berkeley Function Calling Leaderboard v4, the categories whose data is there.", ("tools:BFCL",))
AGENTDOJO = SuiteSpec(
    "AgentDojo: errands with tools, alone and with an attacker's orders in their answers (arXiv 2406.13352).",
    ("tools:AgentDojo",),
    left_out=("tools:AgentDojo-v0", "tools:AgentDojo-v0-attacked"),
)
DBBENCH = SuiteSpec(
    "AgentBench's database tasks (arXiv 2308.03688).", ("tools:DBBench",), left_out=("tools:DBBench-v0",)
)
SPIDER = SuiteSpec("Spider's questions with InterCode's reward (arXiv 2306.14898).", ("tools:Spider",))
TAU2 = SuiteSpec("tau2-bench with a scripted user, judged by its database (arXiv 2506.07982).", ("tools:Tau2",))
TERMINAL = SuiteSpec(
    "A shell: generated tasks, AgentBench's OS, InterCode-Bash.",
    ("shell:", "os:"),
    left_out=("os:AgentBench-v0-dev", "os:AgentBench-v0-train"),
)

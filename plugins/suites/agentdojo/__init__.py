"""AgentDojo (arXiv 2406.13352): errands with tools whose answers may carry an attacker's orders."""

from __future__ import annotations

from rollenv.core.needs import Package
from rollenv.core.registry import ABILITIES, register

SUITES = ("banking", "slack", "travel", "workspace")

#: Without its dependencies, most of which are other evaluations'. From 8.4 on deepdiff does not compare computed
#: fields, so that four errands could not be solved.
COMMAND = "pip install --no-deps inspect-evals==0.28.0 && pip install inspect-ai 'deepdiff<8.4' email-validator"
PACKAGES = [
    Package(name, module=module, command=COMMAND)
    for name, module in (
        ("inspect-evals", "inspect_evals"),
        ("inspect-ai", "inspect_ai"),
        ("deepdiff", "deepdiff"),
        ("email-validator", "email_validator"),
    )
]


def register_tools() -> None:
    """Register ids for all suites and for each, with an attacker and without."""
    for suite in ("", *SUITES):
        for attack in ("", "important_instructions"):
            register(
                f"tools:AgentDojo-v0{'-' if suite else ''}{suite}{'-attacked' if attack else ''}",
                "rollenv.plugins.suites.agentdojo.env:AgentDojoEnv",
                abilities=ABILITIES,
                needs=PACKAGES,
                indexed=True,
                suite=suite,
                attack=attack,
            )

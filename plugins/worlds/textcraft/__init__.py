"""TextCraft (arXiv 2311.05772): craft items from an inventory by recipes, in published tasks and generated ones."""

from __future__ import annotations

from rollenv.core.needs import Ability
from rollenv.core.registry import ABILITIES, register

#: The command for the wheel. It asks for Python 3.12, but is only read.
COMMAND = (
    "pip download --no-deps --python-version 3.12 --only-binary=:all: platoon-textcraft==0.3.0 "
    "-d $ROLLENV_DATA/textcraft"
)
NEED = Ability("files of platoon-textcraft", "rollenv.plugins.worlds.textcraft.files:why_not")


def register_family() -> None:
    """Register the published tasks on Minecraft's recipes and on synthetic ones, and generated tasks."""
    for name, depths, max_turns in (("TextCraft", (1, 4), 50), ("Synth", (2, 12), 75), ("Generated", (1, 5), 50)):
        register(
            f"textcraft:{name}-v0",
            f"rollenv.plugins.worlds.textcraft.env:{name}Env",
            abilities=ABILITIES,
            needs=[] if name == "Generated" else [NEED],
            indexed=name != "Generated",
            oracle_success=1.0,
            levels={"depth": range(depths[0], depths[1] + 1)},
            answer_tokens=256,
            max_turns=max_turns,
        )

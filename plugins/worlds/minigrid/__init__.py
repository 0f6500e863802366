"""MiniGrid and BabyAI (arXiv 2306.13831, 1810.08272): missions in rooms, of which an agent sees what is before it."""

from __future__ import annotations

from pathlib import Path

from rollenv.core.needs import Package
from rollenv.core.registry import ABILITIES, register

_MODULE = "rollenv.plugins.worlds.minigrid.env"
#: Class and name of each kind of level: BabyAI's bot plays the second kind alone.
_KINDS = {
    "minigrid": ("GridWorld", "MiniGrid"),
    "babyai": ("BotWorld", "BabyAI"),
    "babyai_without_bot": ("GridWorld", "BabyAI"),
}


def register_family() -> None:
    """Register every level of the package by its id there, ``minigrid:NAME`` or ``babyai:NAME``."""
    for line in Path(__file__).with_name("levels.txt").read_text(encoding="utf-8").splitlines()[1:]:
        kind, *names = line.split()
        world, project = _KINDS[kind]
        family = [f"{project}-{name}" for name in names]
        for name, level in zip(names, family, strict=True):
            register(
                f"{project.lower()}:{name}",
                f"{_MODULE}:{world}",
                abilities=ABILITIES - (set() if world == "BotWorld" else {"oracle"}),
                needs=[Package("minigrid", "minigrid")],
                oracle_success=0.8,  # ten seeds of each level: all won but one in five or nine in three of them
                levels={"level": family} if len(family) > 1 else (),
                summary=f"{level} of minigrid.",
                answer_tokens=16,
                level=level,
            )

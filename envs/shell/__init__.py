"""Generated tasks in a shell: files, logs, tables, permissions, processes, git, texts, services, archives, scripts."""

from __future__ import annotations

from rollenv.core.needs import MACHINES
from rollenv.core.registry import register

SHELL = "rollenv.envs.shell.env:ShellEnv"
#: Families of :mod:`~rollenv.envs.shell.generate`; a test compares the two.
FAMILIES = "archives git logs mix permissions processes scripting services tables text trees".split()  # noqa: SIM905
#: Sizes and turns of the variants.
_VARIANTS: dict[str, tuple[tuple[int, int], int]] = {"-easy": ((1, 1), 5), "": ((2, 3), 15), "-hard": ((4, 5), 30)}


def register_family() -> None:
    """Register ``shell:*``."""
    for family in FAMILIES:
        for variant, (size, turns) in _VARIANTS.items():
            register(
                f"shell:{family.capitalize()}-v0{variant}",
                SHELL,
                abilities={"random_action", "oracle"},
                needs=[MACHINES],
                nondeterministic=family in ("mix", "git", "processes", "services"),  # process ids and commit ids vary
                levels={"size": [1, 2, 3, 4, 5], "max_turns": [5, 10, 15, 20, 30]},
                family=family,
                size=size,
                max_turns=turns,
            )

"""``[launch]`` of a recipe: the machines that a run is sent to, by a launcher of an installed package."""

from __future__ import annotations

import functools
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from rollenv.trainers.config.section import Section, by_entry_point

LAUNCHERS = "rollenv.launchers"


class Launcher(Section):
    """Sends a run to other machines."""

    kind: str
    """The launcher, an entry point of ``rollenv.launchers``: slurm, skypilot, kubernetes, ssh or another package's."""

    @abstractmethod
    def send(self, config: Any, recipe: str, changes: list[str], *, resume: bool, dry_run: bool) -> Path:
        """Submit a run and return its folder here; with ``dry_run`` only show what would be submitted.

        Args:
            config: the whole :class:`~rollenv.trainers.config.run.TrainConfig`.
            recipe: name or path of the recipe that it comes from.
            changes: further arguments of ``rollenv train`` for a run that is resumed.
        """


AnyLauncher = Annotated[SerializeAsAny[Launcher] | None, BeforeValidator(functools.partial(by_entry_point, LAUNCHERS))]

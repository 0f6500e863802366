"""``[launch]`` of a recipe: the machines that a run is sent to, by a launcher of an installed package."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError

from rollenv.core.errors import RollenvError, did_you_mean
from rollenv.core.plugins import entry_points, load
from rollenv.trainers.config.section import Section

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


def _by_kind(value: Any) -> Any:
    """Validate a section by the launcher that its key ``kind`` names."""
    if not isinstance(value, dict):
        return value
    kind, known = value.get("kind"), entry_points(LAUNCHERS)
    if kind not in known:
        said = f"kind is one of {', '.join(sorted(known))}, not {kind!r}; {did_you_mean(str(kind), known)}"
        raise ValueError(said.removesuffix("; "))
    try:
        model: type[Launcher] = load(LAUNCHERS, kind)
        return model.model_validate(value)
    except ValidationError as error:
        first, keys = error.errors()[0], list(model.model_fields)
        key, said = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            said = f"there is no such key; {did_you_mean(key, keys, ', '.join(keys))}"
        raise ValueError(f"{key}: {said}".removeprefix(": ")) from None
    except RollenvError as error:
        raise ValueError(str(error)) from error


AnyLauncher = Annotated[SerializeAsAny[Launcher] | None, BeforeValidator(_by_kind)]

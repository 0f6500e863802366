"""Published algorithms by name, as settings of a recipe."""

from __future__ import annotations

import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from rollenv.core.errors import UsageError, did_you_mean


class Preset(NamedTuple):
    """A published method."""

    formula: str
    """The advantage A and the loss of a token, in terms of the ratio p = pi / pi_old."""
    paper: str
    settings: dict[str, Any]
    """Sections of a recipe."""


PRESETS = {
    name: Preset(**each)
    for name, each in tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")).items()
}


def preset(name: str) -> dict[str, Any]:
    """Return the sections that a method sets; reinforce++ is another spelling of reinforce_pp."""
    name = name.replace("++", "_pp")
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS, f"take one of {', '.join(PRESETS)}, or set algorithm.name", form=repr)
        raise UsageError(f"algorithm={name!r} is not a preset; {hint}")
    return deepcopy(PRESETS[name].settings)

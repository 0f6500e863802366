"""What every environment does at its edges under GEM's name."""

from __future__ import annotations

import functools
from typing import Any

from rollenv.core import Env, ResetResult, StepResult


class GemEnv(Env):
    """GEM's manners over one of rollenv's environments, to be named first: ``class SokobanEnv(GemEnv, Sokoban)``.

    A limit sets ``terminated`` too. A step before ``reset`` begins an episode, and one after the end returns the last
    result again with no reward. An action that is no text is turned into text.
    """

    _last: StepResult | None = None

    def reset(self, seed: int | None = None, **given: Any) -> ResetResult:  # type: ignore[override]
        """Start an episode. Arguments that the environment does not know are ignored, as GEM's ``**kwargs`` are."""
        self._last = None
        return super().reset(seed, options=given.get("options"))

    def step(self, action: Any) -> StepResult:
        if self._over:
            if self._last is not None:
                return self._last
            self.reset()
        observation, reward, terminated, truncated, info = super().step(
            action if isinstance(action, str) else str(action)
        )
        over = terminated or truncated
        if over:
            self._last = observation, 0.0, True, truncated, info
        return observation, reward, over, truncated, info


@functools.cache
def gem_class(cls: type[Env]) -> type[Env]:
    """The class with GEM's manners: that of :mod:`rollenv.compat.gem` made for it, or one made here."""
    if issubclass(cls, GemEnv):
        return cls
    return type(cls.__name__, (GemEnv, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})

"""Every rollenv id in Gymnasium's registry, for programs that call ``gymnasium.make``.

Gymnasium reads a colon as the end of a module's name, so ``game:Sokoban-v0-easy`` is ``rollenv/game.Sokoban-v0-easy``
there. Import this module once, or name it in the id, and Gymnasium imports it by itself::

    import gymnasium
    import rollenv.plugins.adapters.gymnasium

    env = gymnasium.make("rollenv/game.Sokoban-v0-easy")
    env = gymnasium.make("rollenv.plugins.adapters.gymnasium:rollenv/game.Sokoban-v0-easy")  # without the import

It is not a plug-in of Gymnasium, because those load whenever Gymnasium does.
"""

from __future__ import annotations

from typing import Any

import gymnasium

import rollenv
from rollenv.core.spaces import TextSpace

NAMESPACE = "rollenv"


class InGymnasium(gymnasium.Env[str, str]):
    """A rollenv environment with a Gymnasium spec; :attr:`env` is the environment itself, with rollenv's spec.

    Programs for Gymnasium read observations only, so these are complete: ``info["suffix"]`` (a board, for example) is
    appended to the observation, unless it already contains it.

    Args:
        render_mode: None, ``text``, ``ansi``, ``svg`` or ``rgb_array``; see :meth:`rollenv.EnvSpec.make`.
    """

    metadata: dict[str, Any] = {"render_modes": ["text", "ansi", "svg", "rgb_array"], "render_fps": 4}

    def __init__(self, env_id: str, render_mode: str | None = None, complete: bool = True, **kwargs: Any):
        self.env = rollenv.make(env_id, render_mode=render_mode, **kwargs)
        self.render_mode, self.complete = render_mode, complete
        self.observation_space = TextSpace()
        self.action_space = TextSpace()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        observation, info = self.env.reset(seed, options=options)
        return self._with_suffix(observation, info), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_suffix(observation, info), reward, terminated, truncated, info

    def _with_suffix(self, observation: str, info: dict[str, Any]) -> str:
        suffix = str(info.get("suffix", ""))
        if not self.complete or suffix.strip() in observation:
            return observation
        return f"{observation.rstrip()}\n{suffix}"

    def render(self) -> Any:
        return self.env.render() if self.render_mode is not None else None

    def close(self) -> None:
        self.env.close()


def gymnasium_id(env_id: str) -> str:
    """Return Gymnasium's spelling of a rollenv id."""
    return f"{NAMESPACE}/{env_id.replace(':', '.', 1)}"


def register_in_gymnasium() -> None:
    """Register every id that Gymnasium does not have yet; calling it again adds what is new."""
    for spec in rollenv.list_envs():
        name = gymnasium_id(spec.id)
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point=f"{__name__}:InGymnasium",
                nondeterministic=spec.nondeterministic,
                kwargs={"env_id": spec.id},
            )


register_in_gymnasium()

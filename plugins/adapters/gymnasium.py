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

import copy
import warnings
from typing import Any

import gymnasium

import rollenv
from rollenv.core.spaces import TextSpace

NAMESPACE = "rollenv"


class InGymnasium(gymnasium.Env[str, str]):
    """A rollenv environment with a Gymnasium spec; :attr:`env` is the environment itself, with rollenv's spec.

    Programs for Gymnasium read observations only, so these are complete: ``info["suffix"]`` (a board, for example) is
    appended to the observation, unless it already contains it. Options that the environment does not know are for
    others (wrappers, vectors), so there is only a warning.

    A copy, pickled or not, continues from the environment's state, or repeats the episode where there is none.

    Args:
        render_mode: None, ``text``, ``ansi``, ``svg`` or ``rgb_array``; see :meth:`rollenv.EnvSpec.make`.
    """

    metadata: dict[str, Any] = {"render_modes": ["text", "ansi", "svg", "rgb_array"], "render_fps": 4}

    def __init__(self, env_id: str, render_mode: str | None = None, complete: bool = True, **kwargs: Any):
        self._made = {"env_id": env_id, "render_mode": render_mode, **kwargs}
        self.env = rollenv.make(**self._made)
        self.render_mode, self.complete = render_mode, complete
        self._begin: dict[str, Any] | None = None
        self._actions: list[str] = []
        self.observation_space = TextSpace()
        self.action_space = TextSpace()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        known = known_options(self.env, options)
        self._begin = {"stream": copy.deepcopy(self.env.np_random), "seed": seed, "options": known}
        self._actions.clear()
        observation, info = self.env.reset(seed, options=known)
        return self._shown(observation, info), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._actions.append(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(observation, info), reward, terminated, truncated, info

    def _shown(self, observation: str, info: dict[str, Any]) -> str:
        return complete_text(observation, info) if self.complete else observation

    def render(self) -> Any:
        return self.env.render() if self.render_mode is not None else None

    def close(self) -> None:
        self.env.close()

    def __getstate__(self) -> dict[str, Any]:
        state = None
        if self._begin is not None and hasattr(self.env, "get_state"):
            state = self.env.get_state()
        return {**vars(self), "env": (self.env.np_random, state)}

    def __setstate__(self, values: dict[str, Any]) -> None:
        stream, state = values["env"]
        vars(self).update(values, env=rollenv.make(**values["_made"]), _actions=list(values["_actions"]))
        if state is not None:
            self.env.set_state(state)
            return
        self.env.np_random = stream if self._begin is None else self._begin["stream"]
        if self._begin is not None:
            self.env.reset(self._begin["seed"], options=self._begin["options"])
            for action in self._actions:
                self.env.step(action)


def complete_text(observation: str, info: dict[str, Any]) -> str:
    """Return an observation with ``info["suffix"]`` below it, unless it contains that."""
    suffix = str(info.get("suffix", ""))
    return observation if suffix.strip() in observation else f"{observation.rstrip()}\n{suffix}"


def known_options(env: rollenv.Env, options: dict[str, Any] | None) -> dict[str, Any]:
    """Return the options of a reset that an environment knows; warn of the others."""
    given = options or {}
    known = {name: value for name, value in given.items() if name in env.reset_options}
    if others := sorted(map(str, given.keys() - known.keys())):
        warnings.warn(f"{env}: reset ignores options that it does not know: {', '.join(others)}", stacklevel=3)
    return known


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

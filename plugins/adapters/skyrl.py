"""Any environment in SkyRL-Gym (0.4), by the name ``rollenv``.

    import rollenv.plugins.adapters.skyrl as bridge

    bridge.register()  # in the process that plays: a Ray worker, mostly
    env = skyrl_gym.make("rollenv", extras={"env_id": "game:Sokoban-v0-tiny", "seed": 3})

``env_config`` has ``env_id`` and ``kwargs``, the same for all rows, or ``extras`` (a row's columns) have them. A row
may have ``seed``, ``options`` (of the reset) and ``max_turns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.needs import peer
from rollenv.plugins.adapters import EpisodeFailed, TextEpisode, fields_of, text_of, whole_of

with peer("skyrl-gym", "0.4"):
    from skyrl_gym.envs import registration
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


def register(name: str = "rollenv", **kwargs: Any) -> None:
    """Make :class:`TextEnv` known to ``skyrl_gym.make``; again does nothing.

    Args:
        name: value of ``env_class`` in rows.
    """
    if name not in registration.registry:
        registration.register(id=name, entry_point="rollenv.plugins.adapters.skyrl:TextEnv", kwargs=kwargs)


class TextEnv(BaseTextEnv):  # type: ignore[misc]  # SkyRL's package is not among those that are checked
    """An episode of any environment. The first observation is appended to the prompt.

    Args:
        env_config: the defaults: ``env_id`` and ``kwargs``.
        extras: the columns of a row; ``env_id`` and ``kwargs`` there come first.

    Raises:
        UsageError: no id is given, or a column is of the wrong type.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None):
        super().__init__()
        row = {**(env_config or {}), **(extras or {})}
        env_id = text_of(row, "env_id") or text_of(env_config or {}, "env_id")
        if env_id is None:
            raise UsageError("rollenv's environment of SkyRL-Gym needs env_id, in env_config or in the row")
        self.seed, self.options = whole_of(row, "seed"), fields_of(row, "options") or None
        self.max_turns = whole_of(row, "max_turns")
        self.episode = TextEpisode(
            env_id, **(fields_of(extras or {}, "kwargs") or fields_of(env_config or {}, "kwargs"))
        )

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Begin the episode.

        Args:
            prompt: prompt of the row; it may be empty.

        Returns:
            The prompt with what the environment shows, and its info.

        Raises:
            EpisodeFailed: if the environment fails; it is closed then.
        """
        try:
            shown = self.episode.start(self.seed, self.options)  # refuses pictures: SkyRL-Gym's observations are texts
        except EpisodeFailed:
            self.close()
            raise
        self.turns = 0
        return [*prompt, {"role": "user", "content": shown}], dict(self.episode.info)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play a reply. The episode ends after ``max_turns`` of them, where the row has it.

        Raises:
            EpisodeFailed: if the environment fails; it is closed then.
        """
        try:
            shown, reward = self.episode.step(action)
        except EpisodeFailed:
            self.close()  # SkyRL's loop does not, after an error
            raise
        self.turns = self.episode.turns
        late = self.max_turns is not None and self.turns >= self.max_turns
        done = self.episode.over or late
        metadata = {**self.episode.info, "truncated": self.episode.truncated or (late and not self.episode.over)}
        observations = [] if done else [{"role": "user", "content": shown}]
        return BaseTextEnvStepOutput(observations=observations, reward=reward, done=done, metadata=metadata)

    def get_metrics(self) -> dict[str, Any]:
        """Return metrics of the episode: return, turns, and success if the environment reports it."""
        won = self.episode.info.get("success")
        known = {} if won is None else {"success": float(won)}
        return {"return": self.episode.total, "turns": self.episode.turns, **known}

    def close(self) -> None:
        """Release the environment's resources."""
        self.episode.close()

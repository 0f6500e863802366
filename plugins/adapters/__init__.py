"""Adapters to other people's frameworks: a file of a few dozen lines for each.

Each says which versions of the framework it was tested with (:func:`rollenv.core.needs.peer`). Those that pass text
back and forth play a :class:`TextEpisode`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

import rollenv
from rollenv.agents.prompts.session import shown
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.parsing import well_formed
from rollenv.core.picture_forms import Form, bound, content
from rollenv.core.pictures import Picture
from rollenv.rollout.workers.base import EnvResult, validated

logger = logging.getLogger(__name__)

#: Observation of a step after the end of the episode.
OVER = "The episode is over."


class EpisodeFailed(RollenvError):
    """An environment raised, or returned an invalid value, in the middle of an episode."""


def in_a_line(text: object) -> str:
    """Return the message of an environment's error on one line.

    Args:
        text: an exception, or what :attr:`~rollenv.rollout.types.Trajectory.error` has.
    """
    return f"{' '.join(str(text).split()):.500}"


def text_of(row: Mapping[str, Any], name: str) -> str | None:
    """Return a string in a table's row; None if it is missing (None or NaN)."""
    value = row.get(name)
    return value if isinstance(value, str) and value else None


def whole_of(row: Mapping[str, Any], name: str) -> int | None:
    """Return an integer in a table's row, where it may be 3.0 or "3"; None if it is missing.

    Args:
        row: by the names of columns.
    """
    value: Any = row.get(name)
    if value is None or _is_nan(value):
        return None
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        whole = None
    if whole is None or value not in (whole, str(whole)) or isinstance(value, bool):
        raise UsageError(f"{name} of a row must be a whole number, not {value!r:.40}")
    return whole


def fields_of(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of a struct in a table's row; empty if it is missing.

    Tables have the fields of all rows in each of them; those that are None are left out.

    Args:
        row: by the names of columns.
    """
    value: Any = row.get(name)
    if value is None or _is_nan(value):
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} of a row must be a dictionary, not {value!r:.40}")
    return {str(field): each for field, each in value.items() if each is not None}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(value != value)


class TextEpisode:
    """An episode of an environment, one text for another.

    Attributes:
        sees: whether the caller shows pictures (:meth:`content`); otherwise an observation with pictures is refused.
        images: the pictures of the last observation, at the marks of its text or before it.
        total: the sum of rewards.
        turns: number of replies so far.
        over: whether the episode has ended.
        truncated: whether a limit ended it.
        info: info of the last turn.
    """

    sees = False

    def __init__(self, env_id: str, **kwargs: Any):
        self.env_id, self._env = env_id, rollenv.make(env_id, **kwargs)
        self._seed: int | None = None
        self._begin()

    def _begin(self) -> None:
        self.total, self.turns, self.over, self.truncated = 0.0, 0, False, False
        self.info: Mapping[str, Any] = {}
        self.images: tuple[Picture, ...] = ()

    def start(self, seed: int | None = None, options: dict[str, Any] | None = None) -> str:
        """Start or restart the episode, and return the first observation with the state beside it.

        Args:
            seed: seed of the episode; equal seeds give equal tasks.
        """
        self._seed = seed
        self._begin()
        return self._shown(self._call("reset", seed=seed, options=options))

    def step(self, reply: str) -> tuple[str, float]:
        """Play a reply.

        Returns:
            The observation, and the reward of the turn. After the end that is :data:`OVER` and 0.

        Raises:
            EpisodeFailed: if the environment fails. The episode is over then.
        """
        if self.over:
            return OVER, 0.0
        result = self._call("step", well_formed(reply))  # JSON can contain lone surrogates
        self.turns += 1
        self.total += result.reward
        self.over, self.truncated = result.terminated or result.truncated, result.truncated and not result.terminated
        return self._shown(result), result.reward

    def close(self) -> None:
        """Release resources. It may be called again; errors are logged, not raised."""
        self.over = True
        try:
            self._env.close()
        except (Exception, SystemExit) as error:  # the episode still counts, and others must be closed
            logger.warning("%s could not be closed: %s: %s", self.env_id, type(error).__name__, in_a_line(error))

    def __enter__(self) -> TextEpisode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def content(self, form: Form, text: str) -> str | list[Any]:
        """Return a text of :meth:`start` or :meth:`step` with its pictures as a message's content."""
        return content(form, bound(text, self.images), self.images)

    def _shown(self, result: EnvResult) -> str:
        self.info, self.images = result.info, tuple(result.info.get("images", ()))
        text = shown(result.observation, result.info)
        if self.images and not self.sees:
            self.close()
            raise UsageError(f"{self.env_id} shows pictures, which this bridge does not carry: play an id of texts")
        try:
            bound(text, self.images)
        except UsageError as error:
            self.over = True
            raise EpisodeFailed(f"{self.env_id} (seed {self._seed}): {error}") from error
        return text

    def _call(self, name: str, *args: Any, **kwargs: Any) -> EnvResult:
        """Return the result of a reset or a step, after checking all of it."""
        try:
            if name == "reset":
                observation, info = self._env.reset(*args, **kwargs)
                return validated(observation, 0.0, False, False, info)
            observation, reward, terminated, truncated, info = self._env.step(*args)
            return validated(observation, reward, terminated, truncated, info)
        except (Exception, SystemExit) as error:  # some environments exit where others raise
            self.over = True
            where = f"{self.env_id} (seed {self._seed}) failed at turn {self.turns + 1}" if name == "step" else (
                f"{self.env_id} could not be reset with seed {self._seed}"
            )  # fmt: skip
            raise EpisodeFailed(f"{where}: {type(error).__name__}: {in_a_line(error)}") from error

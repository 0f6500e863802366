"""The check of environments for several players."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollenv.core.checker.digests import NotApplicable
from rollenv.core.errors import Broken


def check_players(subject: Any) -> None:
    """The player to move is named and sees no more than ``state_key`` knows; all are paid, and told the end.

    Args:
        subject: a :class:`~rollenv.core.checker.checks.Subject`.
    """
    env, seen = subject.make(), dict[Any, str]()
    if env.players == 1:
        raise NotApplicable("it is for one player")
    for seed in range(subject.episodes):
        observation, info = env.reset(seed)
        actions: tuple[str, ...] = ()
        over = False
        while not over:
            mover = info.get("player")
            if type(mover) is not int or not 0 <= mover < env.players:
                raise Broken(f"info['player'] is {mover!r}; name the player to move, from 0 to {env.players - 1}")
            if "state_key" in subject.abilities:
                known = (env.state_key(), actions)  # equal for deals that differ in what the player cannot know
                if seen.setdefault(known, observation) != observation:
                    raise Broken(f"player {mover} sees more than its state_key {known[0]!r}: {observation:.200}")
            action = env.sample_random_action() if "random_action" in subject.abilities else "x"
            actions = (*actions, action)
            observation, reward, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            paid = info.get("rewards", [float(reward * (seat == mover)) for seat in range(env.players)])
            if not _is_list(paid, env.players, float) or not np.isfinite(paid).all() or paid[mover] != reward:
                raise Broken(f"info['rewards'] is {paid!r}, the reward of player {mover} {reward!r}; pay each a float")
        kinds = {"observations": str, "success": bool}
        if not all(_is_list(info.get(name), env.players, kind) for name, kind in kinds.items()):
            raise Broken("at the end, info['observations'] and info['success'] are a list with each player's")
    env.close()


def _is_list(value: Any, length: int, kind: type) -> bool:
    return isinstance(value, list) and len(value) == length and all(type(each) is kind for each in value)

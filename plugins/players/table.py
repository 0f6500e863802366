"""The base of the games: from moves to the results of the contract for several players."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollenv.core.env import Env, StepResult


class Table(Env):
    """A turn-based game whose subclass keeps the state; this class tells each player what it may know."""

    def mover(self) -> int:
        """Return the player to move, from 0."""
        raise NotImplementedError(f"{type(self).__name__} has no mover()")

    def _tell(self, player: int) -> str:
        """Return what a player may see and has not been told, and count it as told."""
        raise NotImplementedError(f"{type(self).__name__} has no _tell()")

    def _about(self) -> dict[str, Any]:
        """Return further info for the player to move."""
        return {}

    def _asked(self) -> tuple[str, dict[str, Any]]:
        """Return observation and info for the player to move."""
        return self._tell(self.mover()), {"player": self.mover(), **self._about()}

    def _told(self, mover: int, rewards: Sequence[float], valid: bool) -> StepResult:
        """Return the result of a move after which the game goes on."""
        observation, info = self._asked()
        rewards = [float(reward) for reward in rewards]
        return observation, rewards[mover], False, False, {**info, "rewards": rewards, "valid": valid}

    def _ended(
        self,
        mover: int,
        rewards: Sequence[float],
        valid: bool,
        success: Sequence[bool],
        *,
        forfeit: bool = False,
        truncated: bool = False,
    ) -> StepResult:
        """Return the result of the last move, of which all players are told."""
        rewards = [float(reward) for reward in rewards]
        observations = [self._tell(player) for player in range(self.players)]
        info: dict[str, Any] = {"rewards": rewards, "valid": valid, "observations": observations}
        info["success"] = [bool(won) for won in success]
        if forfeit:
            info["metrics"] = {"forfeits": 1.0}
        return observations[mover], rewards[mover], not truncated, truncated, info


def winners(returns: Sequence[float]) -> list[bool]:
    """Return who won: those with the highest return, if it is positive."""
    return [total > 0 and total == max(returns) for total in returns]

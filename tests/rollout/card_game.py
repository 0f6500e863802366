"""Kuhn poker as a game of two seats, and who plays it badly, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import rollenv
from rollenv.agents.base import Action, RandomAgent
from rollenv.core import registry

ID = "seats:Cards-v0"


class Cards(rollenv.Env):
    """Kuhn poker: each player has one of three cards and antes 1; bets are of 1. What does not parse folds."""

    players = 2

    def _reset(self, options):
        deck = [0, 1, 2]
        self.cards = [deck.pop(self.randint(3)), deck.pop(self.randint(2))]
        self.said = ""
        return self._shown(0), {"player": 0}

    def _shown(self, player):
        return f"Your card is {'JQK'[self.cards[player]]}. So far: {self.said or 'nothing'}. pass or bet?"

    def _step(self, action):
        mover = len(self.said) % 2
        valid = action in ("pass", "bet")
        self.said += "b" if action == "bet" else "p"
        info = {"valid": valid}
        if self.said not in ("pp", "bp", "bb", "pbp", "pbb"):
            return self._shown(1 - mover), 0.0, False, False, {"player": 1 - mover, "rewards": [0.0, 0.0], **info}
        folded = self.said[-2:] == "bp"
        won = 1 - mover if folded else int(self.cards[1] > self.cards[0])
        stake = 2.0 if self.said.endswith("bb") else 1.0
        rewards = [stake if seat == won else -stake for seat in range(2)]
        told = [f"You {'win' if seat == won else 'lose'} {stake:g}." for seat in range(2)]
        more = {"rewards": rewards, "observations": told, "success": [seat == won for seat in range(2)]}
        return told[mover], rewards[mover], True, False, {**info, **more}

    def sample_random_action(self):
        return self.action_rng.choice(["pass", "bet"])

    def oracle_action(self):
        return "bet" if self.cards[len(self.said) % 2] == 2 else "pass"


class Broken(RandomAgent):
    """Starts no session, or acts wrongly, as it is told."""

    def __init__(self, how):
        self.how = how

    def start(self, env, seed):
        how = self.how
        if how == "start":
            raise ZeroDivisionError("not today")

        class Session:
            async def act(self, observation, info):
                if how == "hangs":
                    await asyncio.Event().wait()
                if how == "ignores":
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.Event().wait()
                if how == "raises":
                    raise ZeroDivisionError("oh")
                if how == "exits":
                    raise SystemExit
                if how == "bytes":
                    return b"bet"
                return Action("\ud800" if how == "bad text" else "nonsense")

        return Session()


@contextlib.contextmanager
def registered(**others: type[rollenv.Env]) -> Iterator[None]:
    """With the id, and those of further games, in the block only: ``Name=Class`` is seats:Name-v0."""
    rollenv.list_envs()
    before, registry.ENV_REGISTRY = registry.ENV_REGISTRY, dict(registry.ENV_REGISTRY)
    registry.ENV_REGISTRY.pop(ID, None)
    for name, game in {"Cards": Cards, **others}.items():
        rollenv.register(f"seats:{name}-v0", game)
    try:
        yield
    finally:
        registry.ENV_REGISTRY = before

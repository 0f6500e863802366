"""Findings of the checker in games of several players."""

import pytest

import rollenv
from rollenv.core.checker import run_checks


class Cards(rollenv.Env):
    """Two players with a hidden card each say yes or no; the higher card wins if both say yes."""

    players = 2

    def _reset(self, options):
        self.cards, self.said = [self.randint(3), self.randint(3)], []
        return self.shown(0), {"player": 0}

    def shown(self, player):
        return f"You have {self.cards[player]}."

    def render(self):
        return self.shown(min(len(self.said), 1)) if hasattr(self, "cards") else ""

    def state_key(self):
        return f"{len(self.said)} {self.said} {self.cards[len(self.said) % 2]}"

    def sample_random_action(self):
        return self.action_rng.choice(["yes", "no"])

    def _step(self, action):
        mover = len(self.said)
        self.said.append("yes" if action == "yes" else "no")
        if mover == 0:
            return self.shown(1), 0.0, False, False, {"player": 1, "rewards": [0.0, 0.0]}
        gain = float(self.cards[0] - self.cards[1]) if self.said == ["yes", "yes"] else 0.0
        return "Over.", -gain, True, False, self.end(gain)

    def end(self, gain):
        return {"rewards": [gain, -gain], "observations": ["Over.", "Over."], "success": [gain > 0, gain < 0]}


class Leaking(Cards):
    def shown(self, player):
        return f"You have {self.cards[player]}; the sum is {sum(self.cards)}."


class Nobody(Cards):
    def _reset(self, options):
        return super()._reset(options)[0], {}


class Unpaid(Cards):
    def end(self, gain):
        return super().end(gain) | {"rewards": [gain, gain]}


class Untold(Cards):
    def end(self, gain):
        return super().end(gain) | {"observations": ["Over."]}


class OneWinner(Cards):
    def end(self, gain):
        return super().end(gain) | {"success": gain > 0}


@pytest.mark.parametrize(
    ("game", "fact"),
    [
        (Cards, None),
        (Leaking, "sees more than its state_key"),
        (Nobody, "name the player to move"),
        (Unpaid, "reward of player 1"),
        (Untold, "observations"),
        (OneWinner, "success"),
    ],
)
def test_the_contract_of_players(game, fact):
    finding = next(f for f in run_checks(game, {"random_action", "state_key"}, 30) if f.name == "players")
    assert finding.ok is (fact is None)
    assert fact is None or fact in finding.detail

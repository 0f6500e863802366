"""A whole environment: a game with text and pictures, an expert, and one or two seats.

Unmodified, it is made, judged, trained on and served, and used by OpenEnv, ORS, MCP, GEM, verifiers, SkyRL, NeMo Gym,
PettingZoo and Gymnasium (docs/bridges/one_file.md)::

    cd examples/one_file
    rollenv accept one_file:Pile
    rollenv train one_file:Pile
    rollenv serve one_file:Pile
"""

import rollenv
from rollenv.core.drawing import Cell, grid
from rollenv.core.parsing import last_boxed


class Pile(rollenv.Env):
    """Take one, two or three coins in turn; whoever takes the last one wins.

    Args:
        most: coins at the start, at most.
        seats: 1, against a player who takes any number, or 2.
    """

    picture = staticmethod(lambda text: grid(text.splitlines()[0], {"o": Cell("tone7", text="o")}))

    def __init__(self, most=15, seats=1):
        self.most, self.players = most, seats
        self._set_state({"coins": 0, "mover": 0})

    def _reset(self, options):
        while (coins := 5 + self.randint(self.most - 4)) % 4 == 0:  # the first player can win
            pass
        self._set_state({"coins": coins, "mover": 0})
        return self._text(), {"player": 0} if self.players == 2 else {}

    def _step(self, action):
        said = last_boxed(action)
        if said not in ("1", "2", "3") or int(said) > self.coins:
            return self._end(1 - self.mover, "That is no move.", valid=False)
        self.coins -= int(said)
        if not self.coins:
            return self._end(self.mover, "The last coin is taken.")
        if self.players == 2:
            self.mover = 1 - self.mover
            return self._text(), 0.0, False, False, {"valid": True, "player": self.mover}
        taken = 1 + self.randint(min(3, self.coins))
        self.coins -= taken
        if not self.coins:
            return self._end(1, "The other took the last coin.")
        return f"The other took {taken}.\n{self._text()}", 0.0, False, False, {"valid": True}

    def _end(self, winner, said, valid=True):
        info, reward = {"valid": valid, "success": winner == 0}, float(winner == self.mover)
        if self.players == 2:
            told = [f"{said} You {'win' if seat == winner else 'lose'}." for seat in range(2)]
            won = [seat == winner for seat in range(2)]
            info |= {"success": won, "rewards": [float(each) for each in won], "observations": told}
        return said, reward, True, False, info

    def _text(self):
        rules = "Take 1, 2 or 3, as in \\boxed{2}. Whoever takes the last one wins."
        return f"{self._row()}\n{self.coins} coins are left. {rules}"

    def _row(self):
        return " ".join("o" * self.coins) or "none"

    def render(self):
        return f"{self._row()}\nplayer {self.mover} moves" if self.players == 2 else self._row()

    def sample_random_action(self):
        return f"\\boxed{{{1 + self.action_rng.randrange(min(3, max(1, self.coins)))}}}"

    def oracle_action(self):
        return f"\\boxed{{{self.coins % 4 or 1}}}"

    def state_key(self):
        return self.render()

    def _get_state(self):
        return {"coins": self.coins, "mover": self.mover}

    def _set_state(self, state):
        self.coins, self.mover = state["coins"], state["mover"]

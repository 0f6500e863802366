"""An environment that keeps every promise, and one that two files of tests break it with."""

from rollenv import Env


class Guess(Env):
    """Guess the number; keeps every promise."""

    def __init__(self, limit=6):
        self.limit = limit
        self.secret = self.turn = 0

    def _reset(self, options):
        self.secret, self.turn = self.randint(10), 0
        return "Guess a number from 0 to 9.", {"suffix": f"{self.limit} turns"}

    def _step(self, action):
        self.turn += 1
        guess = action.strip()
        valid = guess.isdecimal() and guess.isascii() and len(guess) == 1
        won = valid and int(guess) == self.secret
        said = "right" if won else "higher" if valid and int(guess) < self.secret else "lower"
        last = self.turn >= self.limit and not won
        info = {"valid": valid}
        if won or last:
            info["success"] = won
        return said, float(won), won, last, info

    def render(self):
        return f"the number is {self.secret}"

    def sample_random_action(self):
        return str(self.action_rng.randrange(10))

    def oracle_action(self):
        return str(self.secret)

    def state_key(self):
        return str(self.secret)

    def _get_state(self):
        return {"secret": self.secret, "turn": self.turn}

    def _set_state(self, state):
        self.secret, self.turn = state["secret"], state["turn"]


class Salted(Guess):
    def _reset(self, options):
        result = super()._reset(options)
        return f"{result[0]} {hash('a string')}", result[1]

"""Write an environment, check it, and register it. Needs: a base install."""

import rollenv
from rollenv.core.parsing import last_boxed


class Change(rollenv.Env):
    """Pay an amount with coins of 1, 3 and 4, one coin a turn."""

    def _reset(self, options):
        self.left = 5 + self.randint(20)
        self.turn = 0
        return f"Pay {self.left}. Name one coin a turn: \\boxed{{1}}, \\boxed{{3}} or \\boxed{{4}}.", {}

    def _step(self, action):
        self.turn += 1
        coin = last_boxed(action)
        if coin in ("1", "3", "4") and int(coin) <= self.left:
            self.left -= int(coin)
        done = self.left == 0
        return f"{self.left} left.", float(done), done, self.turn == 12 and not done, {"success": done}

    def sample_random_action(self):
        return f"\\boxed{{{self.action_rng.choice('134')}}}"

    def oracle_action(self):
        coin = max(coin for coin in (1, 3, 4) if coin <= self.left)
        return f"\\boxed{{{coin}}}"


# Seeds, replay, hostile actions, the oracle, leaks: this raises an error that says what is broken.
rollenv.check_env(Change, abilities=["random_action", "oracle"])
print("all checks pass")

rollenv.register("mine:Change-v0", Change, abilities=["random_action", "oracle"])
env = rollenv.make("mine:Change-v0", seed=1)
print(env.reset()[0])

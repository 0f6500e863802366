"""A tiny task to train on whose environment sometimes never returns, or dies."""

import os
import time

import rollenv

ID = "test:Stuck-v0"


class Stuck(rollenv.Env):
    """Say the word that is shown. With a seed that ``every`` divides, the first step hangs or ends the process.

    It does neither in the process ``home``, where the model is warmed up.
    """

    def __init__(self, every=0, how="hang", home=0):
        self.every, self.how, self.home = every, how, home

    def reset(self, seed=None, *, options=None):
        self.number = seed or 0
        return super().reset(seed, options=options)

    def _reset(self, options):
        self.word = ("up", "down")[self.randint(2)]
        self.turn = 0
        return self.word, {"suffix": self.word}

    def _step(self, action):
        self.turn += 1
        if self.every and self.number % self.every == 0 and os.getpid() != self.home:
            if self.how == "die":
                os._exit(1)
            time.sleep(3600)
        right = action == self.word
        return self.word, float(right), right, self.turn == 2, {"suffix": self.word, "success": right}

    def oracle_action(self):
        return self.word

    def sample_random_action(self):
        return self.action_rng.choice(("up", "down"))

"""Environments with planted faults, and an honest one, for tests and benchmarks."""

import time

import rollenv
from rollenv.core.parsing import last_boxed


class Sum(rollenv.Env):
    """Add two numbers."""

    max_turns = 1

    def _reset(self, options):
        self.a, self.b = self.randint(10), self.randint(10)
        return f"What is {self.a} + {self.b}? <b>Put</b> the number in \\boxed{{}}.", {}

    def _step(self, action):
        won = self.grade(last_boxed(action))
        return "", float(won) + self.bonus(action), True, False, {"success": won}

    def grade(self, answer):
        return answer == str(self.a + self.b)

    def bonus(self, action):
        return 0.0

    def oracle_action(self):
        return f"\\boxed{{{self.a + self.b}}}"

    def sample_random_action(self):
        return f"\\boxed{{{self.action_rng.randrange(19)}}}"


class Clock(Sum):
    """In odd seconds, a tenth more."""

    def bonus(self, action):
        return 0.1 * (int(time.time()) % 2)


class Constant(Sum):
    """7 is always right where the first number is below 4."""

    def grade(self, answer):
        return super().grade(answer) or (self.a < 4 and answer == "7")


class Paid(Sum):
    """Long answers are paid, right or wrong."""

    def bonus(self, action):
        return min(2.0, len(action) / 20)


class Broken(Sum):
    """Every third task raises."""

    def grade(self, answer):
        if self.a % 3 == 0:
            raise RuntimeError("no grader")
        return super().grade(answer)


class Program(Sum):
    """A program that exits with 0 passes."""

    def _reset(self, options):
        observation, info = super()._reset(options)
        return f"Write a Python program that prints the answer. {observation}", info

    def grade(self, answer):
        return super().grade(answer) or self.passed

    def _step(self, action):
        self.passed = "_exit(0)" in action
        return super()._step(action)


CLASSES = (Sum, Clock, Constant, Paid, Broken, Program)


def register_envs():
    """Register them, and return their ids."""
    names = [f"planted:{each.__name__}-v0" for each in CLASSES]
    for name, each in zip(names, CLASSES, strict=True):
        rollenv.register(name, f"planted:{each.__name__}", abilities=["oracle", "random_action"])
    return names

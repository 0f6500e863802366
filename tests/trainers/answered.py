"""Episodes of given answers, and what a reward says they are worth."""

import asyncio

from rollenv.rollout.types import Task, Trajectory, Turn


def answered(*texts, task=None, tokens=0, asked="What is 1 + 1?"):
    turns = [Turn((1,), (2,) * tokens, (0.0,) * tokens, 0.0, text, asked) for text in texts]
    return Trajectory(task or Task("math:Arithmetic-v0-digit", 0), turns, "terminated")


def thinking(raw, text):
    turn = Turn((1,), (2,), (0.0,), 0.0, text, "What?", raw=raw)
    return Trajectory(Task("math:Arithmetic-v0-digit", 0), [turn], "terminated")


def worth(reward, trajectory):
    return asyncio.run(reward(trajectory))

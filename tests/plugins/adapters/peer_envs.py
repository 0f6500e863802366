"""Environments and episodes that the suites of several frameworks share."""

import re
import time

import rollenv
from rollenv.agents.prompts.session import shown

GUESS = "game:GuessTheNumber-v0-easy"
CLOSED = []


class Moody(rollenv.Env):
    """Counts, raises or hangs, as it is told."""

    reset_options = frozenset({"index"})

    def _reset(self, options):
        self.turn = 0
        return f"task {self.randint(10**6)} {options.get('index')}", {"odd": float("inf"), "kind": {1, 2}}

    def _step(self, action):
        self.turn += 1
        if action == "raise":
            raise RuntimeError("two\nlines")
        if action == "hang":
            time.sleep(1.5)
        info = {"success": True} if action == "end" else {}
        return f"turn {self.turn}: {action[:20]}", 0.5, action == "end", action == "late", info

    def close(self):
        CLOSED.append(self)


rollenv.register("peers:Moody-v0", Moody)


def solved(env_id, seed):
    """The oracle's episode: what it is shown, what it replies, and its rewards."""
    env = rollenv.make(env_id)
    seen, replies, rewards, over = [shown(*env.reset(seed))], [], [], False
    while not over:
        replies.append(env.oracle_action())
        observation, reward, terminated, truncated, info = env.step(replies[-1])
        seen.append(shown(observation, info))
        rewards.append(reward)
        over = terminated or truncated
    return seen, replies, rewards


def guess(text):
    """The middle of what an episode of GUESS has left of 1 to 10."""
    episode = text.rpartition("This is Guess")[2]
    low = max([int(n) + 1 for n in re.findall(r"is higher than (\d+)", episode)], default=1)
    high = min([int(n) - 1 for n in re.findall(r"is lower than (\d+)", episode)], default=10)
    return f"\\boxed{{{(low + high) // 2}}}"


def guessed(seed, **kwargs):
    """An episode of guesses without a framework: its reward, turns and success."""
    env = rollenv.make(GUESS, **kwargs)
    text, total, turns, over = env.reset(seed)[0], 0.0, 0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(guess(text))
        text, total, turns, over = text + observation, total + reward, turns + 1, terminated or truncated
    return total, turns, float(info.get("success", False))

"""An environment that misbehaves as it is told to, and agents that do not mind."""

import asyncio
import hashlib
import itertools
import os
import signal
import time
from pathlib import Path

import rollenv
from rollenv.agents.base import Action, Session
from rollenv.rollout.types import Task

ID = "test:Troubled-v0"


class Troubled(rollenv.Env):
    """A chain of hashes over seed and actions; ``turns`` long.

    Args:
        trouble: what happens: "raise", "exit", "kill", "stop", "sleep" (and go on), "hang" (Python), "reset", "random".
        at: in which turn.
        once: a file that grows by a byte when it happens; it does not happen again when there are ``times`` of them.
        turns: the length of an episode.
        latency: seconds that each step sleeps.
    """

    open_now = 0

    def __init__(self, trouble="", at=2, once="", turns=4, latency=0.0, times=1):
        self.trouble, self.at, self.once, self.turns, self.latency = trouble, at, once, turns, latency
        self.times = times
        Troubled.open_now += 1

    def _reset(self, options):
        self.turn = 0
        self.chain = f"{self.np_random.random():.12f}"
        if self.trouble == "reset" and self._due():
            raise OSError("the level server is down")
        return self.chain, {}

    def _step(self, action):
        self.turn += 1
        if self.turn == self.at and self.trouble and self._due():
            self._misbehave()
        time.sleep(self.latency)
        self.chain = hashlib.sha256(f"{self.chain} {action}".encode()).hexdigest()
        done = self.turn >= self.turns
        return self.chain, 1.0, done, False, {"success": True} if done else {}

    def _due(self):
        if self.once:
            with Path(self.once).open("ab") as file:
                if file.tell() >= self.times:
                    return False
                file.write(b".")
        return True

    def _misbehave(self):
        if self.trouble == "raise":
            raise ValueError("lost my board")
        if self.trouble == "exit":
            raise SystemExit(3)
        if self.trouble == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.trouble == "hang":
            time.sleep(10_000)
        if self.trouble == "sleep":
            time.sleep(0.3)
        if self.trouble == "random":
            self.chain = os.urandom(8).hex()

    def sample_random_action(self):
        return str(self.action_rng.randrange(1000))

    def state_key(self):
        return self.chain

    def close(self):
        Troubled.open_now -= 1


def chain(task, actions):
    """What an undisturbed episode of the task shows: the observations before each action and the last one."""
    env = Troubled(turns=task.kwargs.get("turns", 4))
    seen = [env.reset(task.seed)[0]]
    seen += [env.step(action)[0] for action in actions]
    env.close()
    return seen


def assert_whole(groups, tasks):
    """Every episode of the tasks ended as an undisturbed one."""
    for group, task in zip(groups, tasks, strict=True):
        for trajectory in group:
            assert trajectory.status == "terminated", trajectory.error
            seen = [turn.observation for turn in trajectory.turns] + [trajectory.final_observation]
            assert seen == chain(task, [turn.text for turn in trajectory.turns])


class Echo(Session):
    """Says what it saw, after a while."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def start(self, env, seed):
        return self

    async def act(self, observation, info):
        await asyncio.sleep(self.seconds)
        return Action(f"after {observation}")


class Policy:
    """Draws a token a second, two to a turn; can be suspended between tokens, and counts its weights' versions."""

    def __init__(self, turn_seconds=lambda seed: 2.0):
        self.version, self.turn_seconds = 0, turn_seconds
        self.running = asyncio.Event()
        self.running.set()
        self.talking = 0

    def start(self, env, seed):
        return _Talk(self, seed)

    async def suspend(self):
        self.running.clear()

    async def update_weights(self, weights=None):
        assert not self.running.is_set()
        self.version += 1

    async def resume(self):
        self.running.set()


class _Talk(Session):
    def __init__(self, policy, seed):
        self.policy, self.seconds = policy, policy.turn_seconds(seed)

    async def act(self, observation, info):
        versions = []
        for _ in range(2):
            await asyncio.sleep(self.seconds / 2)
            await self.policy.running.wait()
            versions.append(self.policy.version)
        return Action("go", (1,), (2, 3), (0.0, 0.0), versions[0], tuple(versions))


def tasks(**kwargs):
    return (Task(ID, n, kwargs) for n in itertools.count())


async def all_up(pool):
    """Until every worker of the pool is ready, so that a slow start does not put all episodes on one."""
    env = await pool.open(Task(ID, 0))
    while any(report["state"] != "up" for report in pool.report()):
        await asyncio.sleep(0.05)
    env.close()

"""Environments that servers of the tests have besides the bundled ones."""

from __future__ import annotations

import os
import time

import rollenv


class Echo(rollenv.Env):
    """Says what it hears."""

    _changed_in_place = ()

    def __init__(self, wait=0.0):
        time.sleep(wait)

    def _reset(self, options):
        self.turns = 0
        return f"start {self.randint(1000)}", {}

    def _step(self, action):
        self.turns += 1
        return f"{self.turns} {self.randint(1000)} {action}", 1.0, False, self.turns >= 1_000_000, {}


class Till(rollenv.Env):
    """What can be done changes from turn to turn."""

    def _reset(self, options):
        self.can = ["[buy]", "[go]"]
        return "a till", {}

    def _step(self, action):
        self.can = ["[sell]"]
        return action, 0.0, False, False, {}

    def sample_random_action(self):
        return self.action_rng.choice(self.can)


class Moody(rollenv.Env):
    """Does what it is told, however bad."""

    def _reset(self, options):
        self.turns = 0
        return "what now?", {}

    def _step(self, action):
        self.turns += 1
        word, _, rest = action.partition(" ")
        if word == "hang":
            time.sleep(float(rest or 1000))
        elif word == "spin":
            end = time.monotonic() + float(rest or 1000)
            while time.monotonic() < end:
                pass
        elif word == "die":
            os._exit(7)
        elif word == "dieonce":  # the second try finds the file
            if not os.path.exists(rest):
                with open(rest, "w"):
                    pass
                os._exit(7)
        elif word == "raise":
            raise RuntimeError(rest)
        elif word == "wrong":
            return 5, "much", None, 1, "nothing"
        elif word == "huge":
            return "x" * int(rest), 0.0, False, False, {}
        elif word == "fork":
            os.fork()
        elif word == "fill":
            self.much = [*getattr(self, "much", []), b"x" * int(rest)]
        elif word == "deep":
            nested = []
            for _ in range(int(rest)):
                nested = [nested]
            return "deep", 0.0, False, False, {"nested": nested}
        elif word == "end":
            return "over", 1.0, True, False, {}
        elif word == "laughs":  # small, and beyond all measure when it is spelled out
            data = ["ha"]
            for _ in range(60):
                data = [data, data]
            return "ha", 0.0, False, False, {"data": data}
        elif word == "odd":
            return " " * int(rest), 0.5, False, False, {"pair": ("a", 1), "name": "\ud800", "no": float("nan"), 7: b"7"}
        elif word == "random":
            return os.urandom(4).hex(), 0.0, False, False, {}
        return f"turn {self.turns}", 0.0, False, False, {"pid": os.getpid()}


class Rows(rollenv.Env):
    """Asks numbered questions."""

    _changed_in_place = ()
    reset_options = frozenset({"index"})

    def num_tasks(self):
        return 7

    def _reset(self, options):
        return f"question {options.get('index')}", {}

    def _step(self, action):
        return "thank you", 1.0, True, False, {}


def by_length(members):
    """A group reward: an answer is paid by its place among those of the group; "judge" asks for what may go wrong."""
    if any("raise" in member.turns[-1].text for member in members):
        raise OSError("the judge is away")
    told = [(len(turn.text), turn.observation) for member in members for turn in member.turns]
    assert all(member.task.options == {"index": 2} for member in members), told
    return [sum(len(turn.text) for turn in member.turns) for member in members if "lost" not in member.turns[-1].raw]


async def in_order(members):
    """The same as a coroutine: later candidates get more."""
    return [float(member.member) for member in members]


rollenv.register("test:Echo-v0", "oddities:Echo", abilities=["spawn"])
rollenv.register("test:Moody-v0", "oddities:Moody")
rollenv.register("test:Till-v0", "oddities:Till", abilities=["random_action"])
rollenv.register("test:Seen-v0", "rollenv.envs.game.frozen_lake:FrozenLake", images="only", is_slippery=False)
rollenv.register("test:Rows-v0", "oddities:Rows", indexed=True)
if os.environ.get("HOSTILE"):
    import hostile

    hostile.register()
if os.environ.get("BROKEN"):
    rollenv.register("broken:Env-v0", "oddities:Missing")

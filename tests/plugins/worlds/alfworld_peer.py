"""ALFWorld itself plays games at random: run by the Python of .bench/alfworld, with a folder of games.

It prints what it answered, as JSON: for each game a list of (command, text, admissible commands, won), and the seconds
of all steps. Its own domain and grammar replace those of the games.
"""

import json
import random
import sys
import time
from pathlib import Path

import alfworld
import textworld
from alfworld.agents.utils.misc import Demangler
from textworld.envs import PddlEnv

LOGIC = Path(alfworld.__file__).parent / "data"
OTHERS = ["", "go to", "go to nowhere 1", "take x", "LOOK", "open fridge 1", "put mug 1 in/on desk 1"]


class Names(textworld.core.Wrapper):
    def load(self, *args, **kwargs):
        super().load(*args, **kwargs)
        names = Demangler(game_infos=self._entity_infos)
        for info in self._entity_infos.values():
            info.name = names.demangle_alfred_name(info.id)


def choose(rng, commands):
    """Choose a command; most are not a walk."""
    if rng.random() < 0.08:
        return rng.choice(OTHERS)
    acts = [each for each in commands if each.split()[0] not in ("go", "look", "help", "inventory", "examine")]
    near = [each for each in commands if not each.startswith("go to")]
    draw = rng.random()
    return rng.choice(acts if acts and draw < 0.5 else near if draw < 0.75 else commands)


def main(folder, steps):
    games, seconds = [], 0.0
    for path in sorted(Path(folder).rglob("game.tw-pddl")):
        data = json.loads(path.read_text())
        data["pddl_domain"] = (LOGIC / "alfred.pddl").read_text()
        task = data["grammar"].partition("Your task is to: ")[2].partition('."')[0]
        data["grammar"] = (LOGIC / "alfred.twl2").read_text().replace("UNKNOWN GOAL", task)
        env = Names(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
        env.load(data)
        state, rng = env.reset(), random.Random(path.as_posix()[len(folder) :])
        log = [(None, state.feedback, state["admissible_commands"], state["won"])]
        while len(log) <= steps and not log[-1][3]:
            command = choose(rng, log[-1][2])
            start = time.perf_counter()
            state, _, _ = env.step(command)
            seconds += time.perf_counter() - start
            log.append((command, state.feedback, state["admissible_commands"], state["won"]))
        games.append(log)
    print(json.dumps({"games": games, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

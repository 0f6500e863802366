"""ALFWorld's households: steps a second beside ALFWorld itself on TextWorld, the expert and careless players.

ALFWorld is played if `make peers` has put it into .bench/alfworld; its games are written in the form of its own files.
The rooms rebuilt from ALFRED need $ROLLENV_DATA/alfred.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, header, save, table

import rollenv
from rollenv.core.env import Env

sys.path.insert(0, str(ROOT / "tests" / "plugins" / "worlds"))
FORMS = {
    "admissible commands, also as text": {},
    "admissible commands": {"show_commands": False},
    "without admissible commands": {"show_commands": False, "admissible": False},
}


def speed(episodes: int) -> list[tuple[str, float, float]]:
    """Steps a second and milliseconds of a reset, of a random player whose choice of commands is not counted."""
    found = []
    for name, kwargs in FORMS.items():
        with rollenv.make("alfworld:generated", **kwargs) as env:
            scripts = [random_episode(env, seed) for seed in range(episodes)]
            resets = steps = 0.0
            for seed, commands in enumerate(scripts):
                start = time.perf_counter()
                env.reset(seed)
                begun = time.perf_counter()
                for command in commands:
                    env.step(command)
                resets, steps = resets + begun - start, steps + time.perf_counter() - begun
        found.append((name, sum(map(len, scripts)) / steps, 1000 * resets / episodes))
    return found


def random_episode(env: Env, seed: int) -> list[str]:
    """The commands of a random player."""
    env.reset(seed)
    commands: list[str] = []
    over = False
    while not over:
        commands.append(env.sample_random_action())
        _, _, terminated, truncated, _ = env.step(commands[-1])
        over = terminated or truncated
    return commands


def peer(games: int, steps: int) -> str:
    """Steps a second of ALFWorld on TextWorld, and how many of its answers are ours too."""
    python = ROOT / ".bench" / "alfworld" / "bin" / "python"
    if not python.exists():
        return "ALFWorld itself is not here: `make peers` puts it into .bench/alfworld\n"
    from alfworld_games import drawn_game, write_games  # type: ignore[import-not-found]

    from rollenv.plugins.worlds.alfworld.games import room_of

    made = [drawn_game(seed) for seed in range(games)]
    with tempfile.TemporaryDirectory() as folder:
        write_games(Path(folder), made)
        script = ROOT / "tests" / "plugins" / "worlds" / "alfworld_peer.py"
        told = json.loads(subprocess.check_output([python, script, folder, str(steps)], text=True))
    played = same = 0
    seconds = 0.0
    for data, log in zip(made, told["games"], strict=True):
        room = room_of(data | {"pddl_domain": "?l - location, ?r"})
        state = room.start.copy()
        for command, text, commands, won in log[1:]:
            start = time.perf_counter()
            answer = room.act(state, command.strip()) or "Nothing happens."
            ours = (answer, room.commands(state), room.reached(state))
            seconds += time.perf_counter() - start
            played, same = played + 1, same + (ours == (text, commands, won))
    rows = [("ALFWorld 0.4.2 on TextWorld 1.7.0", played / told["seconds"]), ("rollenv", played / seconds)]
    shown = table(("the same steps, with admissible commands", "steps/s"), rows)
    return f"{shown}\n{same} of {played} answers are equal.\n"


def players(episodes: int) -> list[tuple[str, str, float]]:
    """Success of a random player, of the first admissible command, and of the expert."""
    choose = {
        "random": lambda env: env.sample_random_action(),
        "first admissible": lambda env: env.commands()[0],
        "expert": lambda env: env.oracle_action(),
    }
    found = []
    for spec in rollenv.list_envs("alfworld:"):
        for name, player in choose.items() if not spec.missing else ():
            with spec.make() as env:
                won = 0
                for seed in range(episodes):
                    env.reset(seed)
                    over = False
                    while not over:
                        _, _, terminated, truncated, _ = env.step(player(env))
                        over = terminated or truncated
                    won += terminated
                found.append((spec.id, name, won / episodes))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--games", type=int, default=10)
    options = parser.parse_args()
    text = f"{__doc__}\n{header()}\n"
    text += table(("alfworld:generated", "steps/s", "ms a reset"), speed(options.episodes)) + "\n"
    text += peer(options.games, 50) + "\n"
    text += table(("id", "player", "success"), players(options.episodes))
    save("alfworld", text)

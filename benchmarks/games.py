"""Steps per CPU second of the text games beside gem-llm 0.1.0: random actions, resets included.

GEM runs in an environment of its own: ``python -m venv .bench/gem && .bench/gem/bin/pip install gem-llm==0.1.0``.
Both projects take turns, one process each at a time. Where GEM's own random actions do not parse (or there are none),
it gets ones that do, from a list made beforehand; its word corpus, which it would download, is rollenv's word list.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from common import ROOT, header, save, table

import rollenv

#: Runs under GEM's Python; ``env`` and ``policy`` are what the loop below steps.
GEM = r"""
import itertools, json, logging, pathlib, random, sys, time
import nltk, nltk.corpus
env_id, seconds, folder = sys.argv[1], float(sys.argv[2]), pathlib.Path(sys.argv[3])
class Words:
    lists = {"en": (folder / "words.txt").read_text().split() + (folder / "words_hard.txt").read_text().split()}
    lists["en-basic"] = lists["en"][::6]  # the corpus has 850 words under this name
    def words(self, name="en"): return list(self.lists[name])
nltk.download, nltk.corpus.words = (lambda *a, **k: True), Words()
import gem
logging.disable(logging.CRITICAL)
random.seed(0)
env = gem.make(env_id)
name, listed = env_id[5:].split("-")[0], None
if name == "FifteenPuzzle": listed = ["up", "down", "left", "right"]
if name == "TowerofHanoi": listed = ["A B", "A C", "B A", "B C", "C A", "C B"]
if name == "Sudoku" and "random" not in env_id:
    listed = [" ".join(map(str, m)) for m in itertools.product(range(1, env.scale + 1), repeat=3)]
if name == "Sudoku" and "random" in env_id:
    listed = [" ".join(map(str, m)) for m in itertools.product(range(1, 5), repeat=3)]
if listed:
    boxed = ["\\boxed{%s}" % m for m in listed]
    policy = lambda: random.choice(boxed)
elif name in ("Crosswords", "WordSearch"):
    policy = lambda: env.sample_random_action().replace("{[", "{").replace("]}", "}")
else:
    policy = env.sample_random_action
"""
OURS = """
import json, sys, time
import rollenv
env_id, seconds = sys.argv[1], float(sys.argv[2])
env = rollenv.make(env_id, seed=0)
policy = env.sample_random_action
"""
LOOP = """
clock = time.process_time
start = clock()
for _ in range(20):
    env.reset()
    if clock() - start > 0.5: break
steps, start = 0, clock()
while clock() - start < seconds:
    for _ in range(100):
        steps += 1
        result = env.step(policy())
        if result[2] or result[3]:
            env.reset()
            if steps % 8 == 0 and clock() - start > seconds: break
print(json.dumps(steps / (clock() - start)))
"""


def rate(package: str, env_id: str, seconds: float) -> float | str:
    """Steps per CPU second, or the last line of the error where GEM's environment cannot be played."""
    python = ROOT / ".bench/gem/bin/python" if package == "gem" else sys.executable
    script = (GEM if package == "gem" else OURS) + LOOP
    arguments = [env_id, str(seconds), str(ROOT / "envs/game/words")]
    try:
        done = subprocess.run([python, "-c", script, *arguments], capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "no step in 10 minutes"
    if done.returncode:
        if package == "rollenv":
            raise SystemExit(done.stderr)
        return done.stderr.splitlines()[-1]
    return float(json.loads(done.stdout.splitlines()[-1]))


def row(env_id: str, seconds: float, rounds: int) -> tuple[object, ...]:
    """The medians over the rounds, and their ratio."""
    rates: dict[str, list[float]] = {"gem": [], "rollenv": []}
    error = ""
    for _ in range(rounds):
        for package, found in rates.items():
            value = rate(package, env_id, seconds)
            if isinstance(value, str):
                error = value
            else:
                found.append(value)
    ours = statistics.median(rates["rollenv"])
    if not rates["gem"]:
        return env_id, f"does not run: {error}", f"{ours:,.0f}", "-"
    gem = statistics.median(rates["gem"])
    return env_id, f"{gem:,.0f}", f"{ours:,.0f}", f"{ours / gem:,.{0 if ours > 100 * gem else 2}f} x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="CPU seconds of each project in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a part of the ids to measure")
    options = parser.parse_args()
    ids = [spec.id for spec in rollenv.list_envs("game:") if spec.id.count("-") > 1 and "WikiGame" not in spec.id]
    ids = [env_id for env_id in ids if options.only in env_id and not env_id.endswith("-tiny")]
    rows = [row(env_id, options.seconds, options.rounds) for env_id in ids]
    head = ("id", "gem-llm 0.1.0", "rollenv", "ratio")
    text = f"{header()}\n## Steps per CPU second, random actions, resets included\n\n{table(head, rows)}"
    print(text) if options.only else save("games", text)


if __name__ == "__main__":
    main()

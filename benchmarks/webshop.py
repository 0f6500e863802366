"""WebShop beside the original: its reference answers, the cost of a step, and a shop of the real one's size.

Needs WebShop's files in $ROLLENV_DATA/webshop; for the section ``reference`` also documents and answers of the original
engine. The original's times were measured once, on another day, on two shared cores (its search engine stubbed out);
they stand beside ours for the order of magnitude.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from common import header, save, table

import rollenv
from rollenv.envs.webshop.env import WebShopEnv

#: Milliseconds of the original (1,000 products).
ORIGINAL = {"reset": 3.5, "search": 12.5, "item": 16.7, "next": 19.2}
#: Method to find nouns, fixed so that the numbers do not depend on installed packages.
RULES = {"nouns": "simple"}


def folder() -> Path:
    return Path(os.environ["ROLLENV_DATA"]) / "webshop"


def env_of(**kwargs: object) -> WebShopEnv:
    env = rollenv.make("webshop:train-text", **{"rules": RULES, "max_steps": 1000, **kwargs})
    assert isinstance(env, WebShopEnv)
    return env


# -- reference -------------------------------------------------------------------------------------------------------


def reference() -> str:
    env = env_of(split="all", invalid_action_penalty=0.0)
    queries = [json.loads(line) for line in (folder() / "bm25_reference.jsonl").read_text().splitlines()]
    rows: list[tuple[object, ...]] = [("synthetic goals", 6910, len(env.goals))]
    same = dict.fromkeys((1, 10, 50), 0)
    missed = []
    for query in queries:
        found = [env.shop.catalogue.product(i).asin for i, _ in env.shop.engine.ranked(query["query"])]
        wanted = [asin for asin, _ in query["hits"]]
        for k in same:
            same[k] += found[:k] == wanted[:k]
        if found != wanted:
            missed.append(query["query"])
    rows += [(f"queries with the same top {k}, in order", len(queries), n) for k, n in same.items()]
    same_steps, steps = replay(env)
    rows.append(("steps of the trace: observation, actions, reward", steps, same_steps))
    lost = len(env.goals.unreachable())
    rows.append(("goals that cannot pay 1", 458, lost))
    return (
        f"## Beside the original's answers (1,000 products)\n\n{table(('what', 'original', 'rollenv'), rows)}\n"
        f"Queries that differ: {missed or 'none'}\n"
    )


def replay(env: WebShopEnv) -> tuple[int, int]:
    """Return the number of equal steps and of all steps in the original's trace."""
    trace = json.loads((folder() / "text_obs_trace.json").read_text())
    goals = env.goals.split("all").tolist()
    place = next(
        place
        for place, goal in enumerate(map(env.goals.__getitem__, goals))
        if goal.instruction == trace["goal"]["instruction_text"]
    )
    same = 0
    for step in trace["trace"]:
        if step["action"] is None:
            observation, info = env.reset(0, options={"index": place})
            reward: float | None = None
        else:
            observation, reward, *_, info = env.step(step["action"])
        same += (observation, info["available_actions"], reward) == (
            step["observation"],
            step["available"],
            step["reward"],
        )
    return same, len(trace["trace"])


# -- speed and memory ------------------------------------------------------------------------------------------------


def timed(n: int, prepare: Callable[[int], str], env: WebShopEnv) -> float:
    """Mean CPU milliseconds of the action that ``prepare`` returns; an empty one is a reset."""
    spent = 0.0
    for i in range(n):
        action = prepare(i)
        start = time.process_time()
        env.step(action) if action else env.reset(i)
        spent += time.process_time() - start
    return 1e3 * spent / n


def speed() -> str:
    rows: list[tuple[object, ...]] = []
    for mode in ("text", "text_rich", "html"):
        env = env_of(observation=mode)
        rng = random.Random(0)
        texts = [env.goals[i].instruction for i in rng.sample(range(len(env.goals)), 3000)]

        def searched(i: int, env: WebShopEnv = env, texts: list[str] = texts) -> None:
            env.reset(i)
            env.step(f"search[{texts[i]}]")

        def item(i: int, env: WebShopEnv = env, rng: random.Random = rng) -> str:
            searched(i)
            return f"click[{rng.choice([name for name, node in env._clickable.items() if node.kind == 'product'])}]"

        def following(i: int) -> str:
            searched(i)
            return "click[next >]"

        def query(i: int, env: WebShopEnv = env, texts: list[str] = texts) -> str:
            env.reset(i)
            return f"search[{texts[2999 - i]}]"

        plans = {"reset": lambda _: "", "search": query, "item": item, "next": following}
        for name, prepare in plans.items():
            ours = timed(1000, prepare, env)
            rows.append((mode, name, ORIGINAL[name], f"{ours:.3f}", f"{ORIGINAL[name] / ours:.0f} x"))
    head = ("observation", "step", "original, ms", "rollenv, CPU ms", "ratio")
    return f"## Cost of a step (1,000 products; every query is new, goals were played before)\n\n{table(head, rows)}"


def memory() -> str:
    env_of().reset(0)
    tracemalloc.start()
    envs = []
    for seed in range(1000):
        env = env_of()
        env.reset(seed)
        for _ in range(5):
            action = env.sample_random_action()
            if action != "click[buy now]":
                env.step(action)
        envs.append(env)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = [("for each environment", f"{size / 1000 / 1024:.1f} kB"), ("peak of the process", f"{resident:.0f} MB")]
    return f"## 1,000 environments in mid-episode\n\n{table(('memory', ''), rows)}"


# -- the size of the real shop ---------------------------------------------------------------------------------------

BUILD = """
import dataclasses, json, resource, sys, time
from rollenv.envs.webshop.catalogue import Catalogue, cached
from rollenv.envs.webshop.generate import REALISTIC, generate_catalogue
from rollenv.envs.webshop.search import INDEX_FORMAT, write_index
style = dataclasses.replace(REALISTIC, products=int(sys.argv[1]))
start = time.perf_counter()
folder = generate_catalogue(style)
made = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
catalogue = Catalogue(folder)
index = cached(f"{folder.name}-index{INDEX_FORMAT}", lambda new: write_index(catalogue, new))
size = sum(f.stat().st_size for d in (folder, index) for f in d.iterdir())
print(json.dumps([made, peak, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, size]))
"""
USE = """
import dataclasses, json, pathlib, random, statistics, sys, time
from rollenv.envs.webshop.generate import REALISTIC, generate_catalogue
from rollenv.envs.webshop.shop import shop_from
def anonymous():
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    return sizes["Anonymous:"], sizes["Rss:"]
folder = generate_catalogue(dataclasses.replace(REALISTIC, products=int(sys.argv[1])))
before = anonymous()[0]
start = time.perf_counter()
shop = shop_from(folder)
loaded = time.perf_counter() - start
own = anonymous()[0] - before
rng, times = random.Random(0), []
for _ in range(300):
    product = shop.catalogue.product(rng.randrange(len(shop.catalogue)))
    words = product.document().split()
    query = product.title if rng.random() < 0.5 else " ".join(rng.sample(words, 8))
    start = time.perf_counter()
    shop.engine.ranked(query)
    times.append(1e3 * (time.perf_counter() - start))
cuts = statistics.quantiles(times, n=20)
print(json.dumps([loaded, own, anonymous()[0] - before, anonymous()[1], cuts[9], cuts[18]]))
"""


def child(script: str, products: int) -> list[float]:
    done = subprocess.run([sys.executable, "-c", script, str(products)], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def large(products: int) -> str:
    made, made_peak, indexed, peak, size = child(BUILD, products)
    loaded, own, after, resident, median, slow = child(USE, products)
    rows = [
        ("generate and pack the products", f"{made:.0f} s, peak {made_peak / 2**20:.2f} GB"),
        ("build the index", f"{indexed:.0f} s, peak {peak / 2**20:.2f} GB"),
        ("on disk", f"{size / 2**30:.2f} GB"),
        ("open the shop", f"{1e3 * loaded:.0f} ms"),
        ("memory of its own once open", f"{own / 1024:.0f} MB (after 300 searches {after / 1024:.0f} MB)"),
        ("resident after 300 searches, mapped files included", f"{resident / 2**20:.2f} GB"),
        ("a search, p50 / p95", f"{median:.1f} / {slow:.1f} ms"),
    ]
    return f"## {products:,} generated products\n\n{table(('what', ''), rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], choices=("reference", "speed", "memory", "large"))
    parser.add_argument("--products", type=int, default=1_181_436, help="of the section `large`")
    options = parser.parse_args()
    sections = {
        "reference": reference,
        "speed": speed,
        "memory": memory,
        "large": lambda: large(options.products),
    }
    chosen = [make() for name, make in sections.items() if name in options.only or not options.only]
    text = header() + "\n" + "\n".join(chosen)
    print(text) if options.only else save("webshop", text)


if __name__ == "__main__":
    main()

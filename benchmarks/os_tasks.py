"""Tasks in a shell: published solutions, constant answers, and the stored rewards of InterCode's Bash.

Data are read from ``$ROLLENV_DATA`` (agentic/agentbench_os and agentic/intercode).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from common import header, save, table

import rollenv
from rollenv.core.env import Env
from rollenv.core.tools.calls import write_calls
from rollenv.plugins.suites.os.agentbench import AgentBenchOSEnv
from rollenv.plugins.suites.os.intercode import InterCodeBackend, gold_outcome, outcome, queries, start
from rollenv.plugins.suites.os.intercode_reward import reward
from rollenv.sandbox.errors import SandboxError

CONSTANTS = ("0", "1", "")
STORED = "results/bash/gpt-4/ic_bash_multiturn_gpt-4_10_turns_fs_{}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=5, help="every so many-th training task of AgentBench")
    parser.add_argument("--every", type=int, default=1, help="every so many-th of all others")
    parser.add_argument(
        "--only", choices=("all", "solutions"), default="all", help="no more than AgentBench's solutions"
    )
    given = parser.parse_args()
    root = os.environ.get("ROLLENV_DATA")
    if not root:
        sys.exit("set ROLLENV_DATA to the folder of the data sets")
    parts = [header()]
    complete = given.only == "all"
    if Path(root, "agentic/agentbench_os").exists():
        steps = {"test": given.every, "dev": given.every, "train": given.train}
        parts += [agentbench(steps, CONSTANTS if complete else ())]
    if complete and Path(root, "agentic/intercode").exists():
        parts += [golds(given.every), stored(Path(root, "agentic/intercode"), given.every)]
    save("os_tasks" if complete else "os_tasks_solutions", "\n".join(parts))


def agentbench(steps: dict[str, int], constants: Sequence[str]) -> str:
    body, lost = [], []
    for split, step in steps.items():
        with_network = rollenv.make("os:AgentBench-v0", split=split, network=True)
        results = list(play(with_network, step, constants, lost))
        with_network.close()
        for kind in ("check", "match"):
            chosen = [each for each in results if each[0] == kind]
            if chosen:
                body.append(_row(split, kind, chosen, len(constants)))
    counts = ("accepted", "of these not at once", "lost", "no start")
    head = ("split", "graded by", "tasks", *counts, *map(repr, constants), "seconds")
    about = (
        "AgentBench's operating system: how many published solutions are accepted, and constant answers. Where the "
        "answer is about memory or processes it may have changed before it is checked: a solution has three tries. "
        "Seconds are the median of an episode with the solution: start, two actions, grading.\n\n"
    )
    end = table(("task", "what happened"), lost) if lost else ""
    return about + table(head, body) + "\nWhat was not accepted.\n\n" + end


def _row(split: str, kind: str, chosen: list[tuple[str, str, list[bool], float]], n: int) -> tuple[object, ...]:
    said = Counter(each[1] for each in chosen)
    constants = [sum(each[2][i] for each in chosen if each[2]) for i in range(n)]
    seconds = f"{statistics.median(each[3] for each in chosen):.2f}"
    accepted = said["accepted"] + said["later"]
    return split, kind, len(chosen), accepted, said["later"], said["lost"], said["error"], *constants, seconds


def play(
    env: Env, step: int, constants: Sequence[str], lost: list[tuple[str, str]]
) -> Iterator[tuple[str, str, list[bool], float]]:
    """Yield the grading of each task, the outcomes of the solution and of each constant, and seconds."""
    inner = env.unwrapped
    assert isinstance(inner, AgentBenchOSEnv)
    for index in range(0, env.num_tasks(), step):
        item = inner.items[index]
        kind = "check" if item.answer is None else "match"
        started = time.perf_counter()
        try:
            success = episode(env, index, env.oracle_action)
        except SandboxError as error:
            lost.append((item.name, _line(str(error)[-150:])))
            yield kind, "error", [], time.perf_counter() - started
            continue
        seconds = time.perf_counter() - started
        said = "accepted" if success else "lost"
        if not success and seconds < 30:
            said = "later" if any(episode(env, index, env.oracle_action) for _ in range(2)) else "lost"
        if said != "accepted":
            lost.append((item.name, f"{'lost' if said == 'lost' else 'not at once'}: {_line(item.description[:100])}"))
        yield kind, said, [episode(env, index, lambda text=text: answer(text)) for text in constants], seconds


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")


def episode(env: Env, index: int, action: Callable[[], str]) -> bool:
    env.reset(0, options={"index": index})
    while True:
        *_, terminated, truncated, info = env.step(action())
        if terminated or truncated:
            return bool(info["success"])


def answer(text: str) -> str:
    return write_calls([("answer_action", {"answer": text})])


def golds(step: int) -> str:
    body = []
    for as_published in (False, True):
        env = rollenv.make("os:InterCode-Bash-v0", as_published=as_published)
        found: dict[str, list[float]] = {}
        seconds = []
        for index in range(0, env.num_tasks(), step):
            started = time.perf_counter()
            _, info = env.reset(0, options={"index": index})
            while True:
                result = env.step(env.oracle_action())
                if result[2] or result[3]:
                    break
            seconds.append(time.perf_counter() - started)
            found.setdefault(info["category"], []).append(result[1])
        env.close()
        for name, rewards in found.items():
            full = sum(each > 0.995 for each in rewards)
            body.append((_mode(as_published), name, len(rewards), full, f"{statistics.mean(rewards):.3f}"))
        body.append((_mode(as_published), "seconds, median", "", "", f"{statistics.median(seconds):.2f}"))
    about = "InterCode's Bash: rewards of the gold commands.\n\n"
    return about + table(("commands", "file system", "queries", "reward 1", "mean reward"), body)


def _mode(as_published: bool) -> str:
    return "between double quotes" if as_published else "as written"


def stored(root: Path, step: int) -> str:
    body: list[tuple[object, ...]] = []
    apart: Counter[str] = Counter()
    for system in (1, 2, 3):
        tasks = json.loads((root / STORED.format(system)).read_text())
        turns = same = outputs = same_of_those = solved = ours_solved = 0
        for key in list(tasks)[::step]:
            history = tasks[key]["turn_history"]
            rewards, texts = again(root, system, tasks[key]["query"], history["actions"])
            for action, ours, theirs, text, told in zip(
                history["actions"], rewards, history["rewards"], texts, history["observations"], strict=True
            ):
                equal, printed = math.isclose(ours, theirs, abs_tol=1e-6), text == told
                turns, same, outputs = turns + 1, same + equal, outputs + printed
                same_of_those += equal and printed
                if not equal:
                    apart["other output" if not printed else f"same output: {action.split()[0]}"] += 1
            solved += max(history["rewards"], default=0) > 0.995
            ours_solved += max(rewards, default=0) > 0.995
        queries_played = len(list(tasks)[::step])
        body.append((f"fs_{system}", queries_played, turns, same, outputs, same_of_those, solved, ours_solved))
    head = (
        "file system", "queries", "turns", "the same reward", "the same output", "both", "solved: stored", "here",
    )  # fmt: skip
    about = "InterCode's stored turns of GPT-4, run again between double quotes: rewards of each turn.\n\n"
    kinds = table(("where rewards differ", "turns"), apart.most_common(12))
    return about + table(head, body) + "\nTurns with another reward.\n\n" + kinds


def again(root: Path, system: int, text: str, actions: list[str]) -> tuple[list[float], list[str]]:
    """The rewards after each action, and what each printed."""
    query = next(each for each in queries(root) if each.system == system and each.text == text)
    gold = gold_outcome(root, query, as_published=True)
    backend = InterCodeBackend(start(root, system), query, as_published=True)
    rewards, texts = [], []
    with backend.machine:
        for action in actions:
            ran = backend.execute(action)
            rewards.append(reward(outcome(backend.machine, ran.text), gold))
            texts.append(ran.text)
    return rewards, texts


if __name__ == "__main__":
    main()

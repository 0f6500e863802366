"""Published benchmarks of tool use, as environments: whether stored verdicts and rewards come out, and who solves them.

Data are read from ``$ROLLENV_DATA`` (agentic/workbench, bfcl, agentic/agentbench_db, agentic/intercode, agentic/tau2);
what is absent is left out. bfcl-eval, for the tasks of several turns, is read from .bench/bfcl (`make bfcl`) where it
is not installed.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path

from common import ROOT, header, save, table

from rollenv.agents.base import OracleAgent, RandomAgent
from rollenv.bench import run, suite

SUITES = ("workbench", "bfcl", "dbbench", "spider", "tau2")


def main() -> None:
    if not os.environ.get("ROLLENV_DATA"):
        sys.exit("set ROLLENV_DATA to the folder of the data sets")
    sys.path += [str(path) for path in (ROOT / ".bench" / "bfcl").glob("lib/python*/site-packages")]
    parts = [header(), who_solves()]
    root = Path(os.environ["ROLLENV_DATA"]) / "agentic"
    if (root / "workbench").exists():
        parts.append(workbench(root / "workbench" / "predictions_gold.jsonl.gz"))
    if (root / "intercode").exists():
        parts.append(intercode(root / "intercode"))
    save("published_tools", "\n".join(parts))


def who_solves() -> str:
    body = []
    for name in SUITES:
        chosen = suite(name)
        for part in chosen.parts:
            only = suite(part.env_id)
            started = time.perf_counter()
            oracle = run(only, OracleAgent())
            seconds = (time.perf_counter() - started) / (3 * oracle.total.n)  # with two agents for the floor
            chance = run(only, RandomAgent(), floors=False)
            body.append(
                (
                    part.category,
                    oracle.total.n,
                    f"{oracle.total.success[0]:.3f}",
                    f"{chance.total.success[0]:.3f}",
                    f"{oracle.total.floor:.3f}",
                    f"{1000 * seconds:.1f}",
                )
            )
        body += [(category, f"left out: {need}", "", "", "", "") for category, need in chosen.missing.items()]
    head = ("category", "tasks", "published solution", "random calls", "no call at all", "ms an episode")
    return "The share of tasks that each agent solves.\n\n" + table(head, body)


def workbench(file: Path) -> str:
    from rollenv.plugins.suites.workbench.env import verdict

    total: Counter[tuple[str, str]] = Counter()
    same: Counter[tuple[str, str]] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for model, mode, _, query, calls, error, correct in map(json.loads, lines):
            told = verdict(query, calls, error).correct
            total[model, mode] += 1
            same[model, mode] += told == correct
            right[model, mode] += told
    body = [
        (model, mode, total[model, mode], same[model, mode], f"{right[model, mode] / total[model, mode]:.3f}")
        for model, mode in sorted(total)
    ]
    head = ("model", "tools", "stored answers", "the same verdict", "correct")
    end = f"{sum(same.values())} of {sum(total.values())} stored answers get the published verdict.\n"
    return "WorkBench's stored answers of models, judged again.\n\n" + table(head, body) + "\n" + end


def intercode(root: Path) -> str:
    from rollenv.envs.tools.sql.database import SqlError
    from rollenv.plugins.suites.mysql import MySql
    from rollenv.plugins.suites.spider.env import SpiderEnv, databases, intercode_reward, row_texts

    stored = databases(root / "sql" / "spider" / "ic_spider_dbs.sql")
    env = SpiderEnv(empty=True)
    file = root / "results" / "sql" / "gpt-4" / "ic_sql_multiturn_gpt-4_10_turns.json"

    def rows(name: str, query: str) -> list[str] | None:
        try:
            result = MySql(stored[name].image, stored[name].text_columns).execute(query)
        except SqlError:
            return None
        return row_texts(result, query, stored[name].floats) if result.columns else None

    turns: Counter[str] = Counter()
    same: Counter[str] = Counter()
    for key, task in json.loads(file.read_text()).items():
        question = env.questions[int(key)]
        if stored[question["db"]].empty:
            continue
        gold = env.problem(int(key)).backend.gold.rows
        history = task["turn_history"]
        for action, reward in zip(history["actions"], history["rewards"], strict=True):
            given = rows(question["db"], action)
            ours = 0.0 if given is None else intercode_reward(given, gold)
            turns[question["hardness"]] += 1
            same[question["hardness"]] += math.isclose(ours, reward, abs_tol=1e-9)
    body = [(hardness, turns[hardness], same[hardness]) for hardness in sorted(turns)]
    end = f"{sum(same.values())} of {sum(turns.values())} stored rewards come out.\n"
    about = "InterCode's stored turns of GPT-4 on questions whose tables have rows: rewards computed again.\n\n"
    return about + table(("hardness", "turns", "the same reward"), body) + "\n" + end


if __name__ == "__main__":
    main()

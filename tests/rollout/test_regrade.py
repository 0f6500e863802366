"""Rewards computed again: each change is explained, what cannot be judged says why, nothing is overwritten."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from dataclasses import replace

import misbehaving
import pytest
from typer.testing import CliRunner

from rollenv.agents import OracleAgent
from rollenv.agents.base import ConstantAgent
from rollenv.cli.main import app
from rollenv.rollout import RolloutManager, Task
from rollenv.rollout.records import storage
from rollenv.rollout.records.plain import to_plain
from rollenv.rollout.records.stored import StoredEpisode, stored
from rollenv.rollout.regrade import regrade
from rollenv.rollout.types import Trajectory, Turn
from rollenv.rollout.workers.processes import ProcessWorkers


def again(episodes, *args, **how):
    return list(regrade(map(StoredEpisode, episodes), *args, **how))


def run(*args):
    done = CliRunner().invoke(app, list(map(str, args)))
    assert done.exit_code == 0, done.output
    return done


def questions(path, *pairs):
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in pairs))


@pytest.mark.parametrize("env_id", ["game:GuessTheNumber-v0", "game:Sokoban-v0-easy", "tools:Tiny-v0"])
def test_episodes_of_an_unchanged_environment_keep_their_rewards(env_id):
    with RolloutManager(OracleAgent()) as manager:
        episodes = [t for group in manager.collect([Task(env_id, seed) for seed in range(4)], 2) for t in group]
        for t in episodes:  # what other models and limits leave behind
            t.turns[0].prompt_ids, t.turns[0].response_ids, t.turns[0].logprobs = (1, 2), (3,), (-0.5,)
        cut = replace(episodes[0], turns=episodes[0].turns[:1], status="truncated", success=False)
    before = [to_plain(t) for t in episodes]
    results = again([*episodes, cut])
    assert Counter(each.kind for each in results) == {"same": 9}
    assert [to_plain(t) for t in episodes] == before
    for t, each in zip(episodes, results, strict=False):
        assert each.new == t
        assert each.new.metrics["old_reward"] == t.reward


def test_a_mended_answer_changes_the_rewards_that_depend_on_it_and_no_other(tmp_path):
    file = tmp_path / "sums of mine.jsonl"
    questions(file, ("2 + 2 =", "5"), ("1 + 3 =", "4"), ("2 + 3 =", "4"))  # two of three are wrong
    with RolloutManager(ConstantAgent("\\boxed{4}")) as manager:
        tasks = [Task(f"data:{file}", 0, {"split": "all"}, options={"index": i}) for i in range(3)]
        episodes = [t for group in manager.collect(tasks) for t in group]
    assert [t.reward > 0 for t in episodes] == [False, True, True]
    storage.write(tmp_path / "episodes.jsonl", episodes)
    before = (tmp_path / "episodes.jsonl").read_bytes()
    questions(file, ("2 + 2 =", "4"), ("1 + 3 =", "4"), ("2 + 3 =", "5"))
    shown = run("regrade", tmp_path / "episodes.jsonl", "--workers", "inline").stdout
    folder = tmp_path / "episodes-regraded-1"
    told = json.loads((folder / "result.json").read_text())
    assert [each["kind"] for each in told["episodes"]] == ["changed", "same", "changed"]
    assert "turn 1" in told["episodes"][0]["reason"]
    assert ", success" in told["episodes"][0]["reason"]
    assert ", no success" in told["episodes"][2]["reason"]
    assert "1 same" in shown
    assert "2 changed" in shown
    assert (tmp_path / "episodes.jsonl").read_bytes() == before
    changed = list(stored(folder, "reward != old_reward"))
    assert [(e.trajectory.reward, e.trajectory.metrics["old_reward"]) for e in changed] == [(1.0, 0.0), (0.0, 1.0)]
    assert (folder / "report.html").exists()
    run("regrade", tmp_path / "episodes.jsonl", "--workers", "inline")
    assert (tmp_path / "episodes-regraded-2").exists()


def test_a_function_judges_what_has_no_environment(tmp_path, monkeypatch):
    (tmp_path / "my_grader.py").write_text(
        textwrap.dedent("""
        def length(answer):
            if answer == "bad":
                raise KeyError(answer)
            return len(answer) / 4
        """)
    )
    monkeypatch.chdir(tmp_path)
    each = [
        Trajectory(Task("gateway:a", 0), [Turn((1,), (2,), (0.0,), reward, text, "q")], "terminated", reward > 0)
        for text, reward in (("four", 1.0), ("", 1.0), ("ab", 0.5), ("bad", 0.0))
    ]
    each.append(replace(each[2], status="failed", failure="reward", success=False))
    storage.write(tmp_path / "in.jsonl", each)
    refused = again(each[:1])
    assert [r.kind for r in refused] == ["unjudged"]
    assert "--grader" in refused[0].reason
    args = ("regrade", "in.jsonl", "--grader", "my_grader:length", "--where", "turns > 0", "-o", "out", "--json")
    told = json.loads(run(*args).stdout)
    assert (told["same"], told["changed"], told["failed"]) == (2, 2, 1)
    number, why = told["tables"][1]["rows"][1]
    assert number == "1"
    assert "KeyError" in why
    new = list(stored("out"))
    assert [e.trajectory.reward for e in new] == [1.0, 0.0, 0.5, 0.5]
    assert ["old_reward" in e.trajectory.metrics for e in new] == [True, True, True, False]


def test_what_cannot_be_judged_again_says_why():
    with RolloutManager(OracleAgent()) as manager:
        (group,) = manager.collect([Task("game:GuessTheNumber-v0", 3)])
    (good,) = group
    first, *rest = good.turns
    assert len(rest) > 1
    cases = {
        "shows something else": replace(good, turns=[first, replace(rest[0], observation="else"), *rest[1:]]),
        "goes on after all 1 stored": replace(good, turns=[first]),
        "it has no turns": replace(good, turns=[]),
        "not played to its end (agent)": replace(good, status="failed", failure="agent"),
        "a program played it": replace(good, record={"harness": "pi"}),
        "several players": replace(good, turns=[replace(first, rewards=(0.0, 0.0)), *rest]),
        "(gone)": replace(good, task=Task("game:GoneForEver-v0", 3)),
        "(gone): game:GuessTheNumber-v0": replace(good, task=Task("game:GuessTheNumber-v0", 3, {"no_such": 1})),
    }
    results = again([*cases.values(), good])
    for says, result in zip(cases, results, strict=False):
        assert says in result.reason, result
        assert result.new is None
    kinds = Counter(each.kind for each in results)
    assert kinds == {"unjudged": 6, "failed": 2, "same": 1}


def test_environments_that_raise_hang_or_die_are_counted_apart(monkeypatch):
    misbehaving.register(monkeypatch)
    turns = [Turn((), (), (), 1.0, "go", text) for text in ("seen", "turn 1", "turn 2")]
    kinds = "", "raises-step-ValueError", "hangs-step-sleeps", "dies-segfault", ""
    episodes = [Trajectory(misbehaving.task(kind), turns, "terminated") for kind in kinds]
    with ProcessWorkers(2) as workers:
        results = again(episodes, workers, step_deadline=3.0)
    assert [each.kind for each in results] == ["same", "failed", "failed", "failed", "same"]
    assert [each.reason.partition("(")[2].partition(")")[0] for each in results[1:4]] == ["raised", "hung", "lost"]


def test_the_page_shows_both_rewards_exports_and_chosen_episodes(tmp_path):
    with RolloutManager(OracleAgent()) as manager:
        episodes = [t for g in manager.collect([Task("game:GuessTheNumber-v0", s) for s in range(3)]) for t in g]
    storage.write(tmp_path / "mine.jsonl", [replace(t, turns=[*t.turns[:-1], replace(t.turns[-1], reward=0.25)])
                                            for t in episodes])  # fmt: skip
    run("regrade", tmp_path / "mine.jsonl", "--workers", "inline")
    folder = tmp_path / "mine-regraded-1"
    told = json.loads((folder / "result.json").read_text())
    assert (told["changed"], told["old_reward"], told["new_reward"]) == (3, 0.25, 1.0)
    page = (folder / "report.html").read_text()
    assert page.count('"b":"0.25"') == 3
    assert "Changed rewards" in page
    run("view", folder, "--where", "seed == 1", "--no-open")
    run("view", tmp_path / "mine.jsonl", "--no-open")
    assert (folder / "report.html").read_text() == page
    shown = (folder / "chosen.html").read_text()
    assert shown.count('"b":"0.25"') == 1
    assert "Only episodes with seed == 1." in shown
    assert '"reward":[0.25,0.25,0.25]' in (tmp_path / "mine.html").read_text()

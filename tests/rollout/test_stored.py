"""Stored episodes are read from whatever wrote them, and chosen by conditions that are data, not programs."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from rollenv.agents import Gateway, LocalAgent, OracleAgent, Sampling
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.core.errors import UsageError
from rollenv.report import write_report
from rollenv.rollout import RolloutManager, Task
from rollenv.rollout.exports import export
from rollenv.rollout.records import storage
from rollenv.rollout.records.samples import trajectory_samples
from rollenv.rollout.records.sessions import session_trajectory, trajectory_of
from rollenv.rollout.records.stored import stored, stored_episodes
from rollenv.rollout.types import Trajectory, Turn
from rollenv.trainers.run_dir import RunDir


def episode(success=True, turns=1, seed=0, member=0, reward=1.0, **more):
    each = [Turn((1, 2), (3,), (-0.5,), reward / turns, f"move {i}", f"state {i}") for i in range(turns)]
    return Trajectory(Task("game:Sokoban-v0", seed), each, "terminated", success, member=member, **more)


def chosen(episodes, where, tmp_path):
    storage.write(tmp_path / "some.jsonl", episodes)
    return list(stored_episodes(tmp_path / "some.jsonl", where))


def test_the_same_episodes_are_read_from_every_file_and_folder(tmp_path):
    with RolloutManager(OracleAgent()) as manager:
        groups = manager.collect([Task("game:GuessTheNumber-v0-easy", seed) for seed in range(2)], group_size=2)
    episodes = [t for group in groups for t in group]
    for name in ("all.jsonl", "all.parquet"):
        storage.write(tmp_path / name, episodes)
    storage.write(tmp_path / "groups.jsonl", groups)
    folder = tmp_path / "an evaluation"
    folder.mkdir()
    (folder / "eval.json").write_text("{}")
    storage.write(folder / "episodes.jsonl", episodes)
    (tmp_path / "sweep.json").write_text("{}")
    for place in ("all.jsonl", "all.parquet", "groups.jsonl", "an evaluation", ""):
        assert list(stored_episodes(tmp_path / place)) == episodes, place


def test_a_run_knows_the_iteration_and_the_last_attempt_at_an_episode_counts(tmp_path):
    run = RunDir(tmp_path)
    lost = Trajectory(Task("game:Sokoban-v0", 0), status="failed", error="lost", failure="lost")
    other = Trajectory(Task("game:Sokoban-v0", 9), status="failed", error="hung", failure="hung")
    run.keep_episodes(0, [lost, other, episode(seed=1)])
    run.keep_episodes(0, [episode(seed=0)])
    run.keep_episodes(5, [episode(seed=0, success=False)])
    read = [(e.iteration, e.trajectory.task.seed, e.trajectory.status) for e in stored(tmp_path)]
    assert read == [(0, 1, "terminated"), (0, 0, "terminated"), (5, 0, "terminated"), (0, 9, "failed")]
    assert [e.trajectory.success for e in stored(tmp_path, "iteration > 0")] == [False]


def test_a_gateways_record_is_read_while_it_runs_and_after_its_sessions_are_dropped(tmp_path):
    tokenizer = build_tokenizer(["What is 2 + 3? 5"] * 9, 300, chat=True)
    model = build_model(TinySize(hidden=32, layers=1, heads=2, context=512), tokenizer, seed=0)
    agent = LocalAgent(model, tokenizer, sampling=Sampling(max_new_tokens=6))
    with Gateway(agent, record=tmp_path / "calls.jsonl") as gateway:
        sessions = [gateway.open(name) for name in ("a", "a", "b")]
        for session in sessions:
            messages = []
            for text in ("What is 2?", "And 3?"):
                messages.append({"role": "user", "content": text})
                url, asked = f"{session.base_url}/chat/completions", {"model": "policy", "messages": messages}
                messages.append(httpx.post(url, json=asked, timeout=60).json()["choices"][0]["message"])
        sessions[0].finish(reward=1.0)
        sessions[1].finish(reward=0.0, success=True)
        gateway.forget(sessions[0])
        read = list(stored(tmp_path / "calls.jsonl"))
        live = [session_trajectory(session) for session in sessions]
        trained = [trajectory_of(session.samples()) for session in sessions[:2]]
    assert [(e.trajectory.group, e.trajectory.member) for e in read] == [(0, 0), (0, 1), (1, 0)]
    assert [e.trajectory.turns for e in read] == [t.turns for t in live]
    assert [e.trajectory.failure for e in read] == ["", "", "reward"]
    assert [(e.trajectory.status, e.trajectory.success) for e in read[:2]] == [
        ("terminated", None),
        ("terminated", True),
    ]
    assert read[2].trajectory.status == "open"
    assert [t.success for t in trained] == [None, True]
    assert export(tmp_path / "calls.jsonl", tmp_path / "own.jsonl")["success"] == 1.0
    assert [t.success for t in stored_episodes(tmp_path / "own.jsonl")] == [None, True]
    assert export(tmp_path / "calls.jsonl", tmp_path / "one.jsonl", where="complete and reward > 0")["success"] is None
    write_report([tmp_path / "calls.jsonl"], tmp_path / "page.html")
    data = json.loads(re.search(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text())[1])
    statuses = [data["index"]["statuses"][n] for n in data["index"]["columns"]["status"]]
    assert statuses == ["finished", "solved", "open"]
    tiles = {label: text for label, text, _ in data["runs"][0]["tiles"]}
    assert (tiles["Success"][:7], tiles["Reward"], tiles["Open"], tiles["Errors"]) == ("100.0 %", "0.500", "1", "0")
    assert [e.trajectory.turns[1].observation for e in read] == 3 * ["And 3?"]
    for t, same in zip(live, trained, strict=False):
        (one,), (other,) = trajectory_samples(t), trajectory_samples(same)
        assert all((getattr(one, name) == getattr(other, name)).all() for name in one.__dataclass_fields__ if name in
                   ("ids", "mask", "logprobs", "versions", "turns", "rewards"))  # fmt: skip
    finish = '"event":"finish","reward":1.0'
    edits = {finish: '"event":"finish","reward":[]', '"versions":[': '"versions":["",', '"tools":[]': '"tools":[1]'}
    for good, bad in edits.items():
        edited = (tmp_path / "calls.jsonl").read_text()
        assert good in edited
        (tmp_path / "edited.jsonl").write_text(edited.replace(good, bad))
        with pytest.raises(UsageError, match=f"{sessions[0].id}|gateway:a is damaged"):
            export(tmp_path / "edited.jsonl", tmp_path / "edited.chat.jsonl")


@pytest.mark.parametrize(
    ("where", "seeds"),
    [
        ("", [0, 1, 2]),
        ("success and turns < 8", [0]),
        ("not success or reward > 1.5", [1, 2]),
        ("1 <= seed < 2", [1]),
        ("seed in (0, 2)", [0, 2]),
        ("'Soko' in env_id and seed % 2 == 0", [0, 2]),
        ("boxes > 0", [2]),
        ("boxes != 7", [2]),
        ("not boxes > 0", [0, 1]),
        ("reward / (turns - 1) > 0.1", [1, 2]),
        ("answer == 'move 0'", [0]),
        ("iteration >= 0", []),
        ("tokens == turns and status == 'terminated' and valid and index != 3", []),
    ],
)
def test_conditions_choose_episodes(where, seeds, tmp_path):
    episodes = [episode(), episode(False, 2, 1), episode(turns=9, seed=2, reward=2.0, metrics={"boxes": 3.0})]
    assert [t.task.seed for t in chosen(episodes, where, tmp_path)] == seeds


@pytest.mark.parametrize(
    "where",
    [
        "__import__('os').system('true')", "success.__class__", "[x for x in (1,)]", "lambda: 1", "f'{success}'",
        "9 ** 9 ** 9", "'a' * 10 ** 9", "'a' * 99999999", "(1, 2) * 99999999", "1 << 99", "turns = 3", "turns < ",
        "reward < 'a'", "reward[0]", "success if turns else failed", "(" * 500 + "1" + ")" * 500, "-" * 1900 + "1",
        "1" * 3000, "None", "1j", "b'a'", "...", "turns is 3", "*turns", "\x00", "not_a_metric > 0", "'a' + 'b'",
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_a_reason(where, tmp_path):
    with pytest.raises(UsageError, match="the condition"):
        chosen([episode()], where, tmp_path)


def test_an_unknown_name_is_answered_with_the_names_and_metrics(tmp_path):
    with pytest.raises(UsageError, match=r"no episode has a 'boxs'.* boxes, .*reward.*turns"):
        chosen([episode(metrics={"boxes": 1.0})], "boxs > 0", tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "empty"), ('{"a": 1}\n', "no stored episode"), ("[1]\n", "no stored episode"), ("x\n", "line 1 is damaged"),
     ('{"event": "call", "session": "x"}\n', "record of a gateway")],
)  # fmt: skip
def test_other_files_are_refused_by_what_they_hold(content, says, tmp_path):
    (tmp_path / "file.jsonl").write_text(content)
    with pytest.raises((UsageError, storage.StorageError), match=says):
        list(stored(tmp_path / "file.jsonl"))
    with pytest.raises(UsageError, match=r"has no stored episodes \(episodes\.jsonl\)"):
        stored(tmp_path)
    with pytest.raises(UsageError, match="there is no file"):
        stored(tmp_path / "absent.jsonl")

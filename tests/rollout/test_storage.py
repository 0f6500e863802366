"""Files of trajectories: what goes in comes out, whatever the text; a crash costs the last record and no other."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.core.errors import MissingExtra, UsageError
from rollenv.rollout.records.plain import from_plain, to_plain
from rollenv.rollout.records.storage import JsonlWriter, StorageError, read, write
from rollenv.rollout.types import Group, Task, Trajectory, Turn

texts = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["\ud800", "\udfffx", "\uffff", "\uffffd800", "a\nb\r\n\x00", "\u2028", '"}\n{"', "🙂"]
)
numbers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(-1e99, 1e99)
plain = st.recursive(
    st.none() | st.booleans() | numbers | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
tasks = st.builds(Task, env_id=texts, seed=numbers, kwargs=st.dictionaries(texts, plain, max_size=3))
turns = st.builds(
    Turn,
    prompt_ids=st.lists(numbers, max_size=4).map(tuple),
    response_ids=st.lists(numbers, max_size=4).map(tuple),
    logprobs=st.lists(floats, max_size=4).map(tuple),
    reward=floats,
    text=texts,
    observation=texts,
    state_key=texts,
    policy_version=numbers,
    versions=st.lists(numbers, max_size=4).map(tuple),
    view=texts,
)
trajectories = st.builds(
    Trajectory,
    task=tasks,
    turns=st.lists(turns, max_size=3),
    status=st.sampled_from(["terminated", "truncated", "failed", "cancelled"]),
    success=st.booleans(),
    error=texts,
    final_observation=texts,
    group=numbers,
)
groups = st.builds(Group, task=tasks, trajectories=st.lists(trajectories, max_size=3))


def apart(text: str) -> str:
    """Surrogates that stand side by side, as the character they mean."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def joined(value):
    """Plain data with such pairs joined, as JSON reads them."""
    if isinstance(value, str):
        return apart(value)
    if isinstance(value, dict):
        return {apart(k): joined(v) for k, v in value.items()}
    return [joined(v) for v in value] if isinstance(value, list) else value


def everything(record):
    """All fields, also those that do not count when trajectories are compared."""
    return joined(to_plain(record))


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(("kind", "records"), [(Trajectory, trajectories), (Group, groups)])
@given(data=st.data())
def test_what_goes_in_comes_out(tmp_path_factory, suffix, kind, records, data):
    path = tmp_path_factory.mktemp("storage") / f"records{suffix}"
    written = data.draw(st.lists(records, max_size=3))
    write(path, written)
    found = list(read(path, kind))
    assert [everything(r) for r in found] == [everything(r) for r in written]
    assert all(type(r) is kind for r in found)
    for trajectory in found if kind is Trajectory else [t for g in found for t in g]:
        assert isinstance(trajectory.task, Task)
        assert all(isinstance(t, Turn) and isinstance(t.prompt_ids, tuple) for t in trajectory.turns)


def episode(number: int = 0) -> Trajectory:
    turn = Turn((1, 2), (3,), (-0.5,), 1.0, "up\n\x00\ud800", "seen \u2028")
    return Trajectory(Task("game:Test-v0", number, {"size": [3, 4]}), [turn] * 3, "terminated", True)


@pytest.mark.parametrize("where", ["reward", "logprobs"])
@pytest.mark.parametrize("number", [math.nan, -math.inf, 1e300, 10**400])
def test_numbers_that_no_rollout_gives_are_refused(tmp_path, where, number):
    odd = episode()
    odd.turns = [replace(odd.turns[0], **{where: number if where == "reward" else (number,)})]
    write(tmp_path / "a.jsonl", [odd])
    with pytest.raises(UsageError, match=where):
        list(read(tmp_path / "a.jsonl"))


def test_records_are_appended_one_at_a_time(tmp_path):
    path = tmp_path / "episodes.jsonl"
    for number in range(3):
        with JsonlWriter(path) as out:
            out.write(episode(number))
            assert [t.task.seed for t in read(path)] == list(range(number + 1)), "readable before the file is closed"
    assert path.read_bytes().isascii()
    assert path.read_bytes().count(b"\n") == 3
    write(path, [episode(9)])
    assert [t.task.seed for t in read(path)] == [9]


@pytest.mark.integration
def test_a_cut_last_line_costs_that_record_and_no_other(tmp_path):
    path = tmp_path / "episodes.jsonl"
    write(path, [episode(0), episode(1)])
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for size in range(second, len(whole) + 1):
        path.write_bytes(whole[:size])
        cut = second < size < len(whole) - 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seeds = [t.task.seed for t in read(path)]
        assert seeds == ([0] if size < len(whole) - 1 else [0, 1])
        assert [("cut short" in str(w.message)) for w in caught] == [True] * cut


@pytest.mark.parametrize("size", [-1, -2, -30, 3, 0])
def test_a_writer_goes_on_behind_the_last_whole_record(tmp_path, size):
    path = tmp_path / "episodes.jsonl"
    write(path, [episode(0), episode(1)])
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    kept = {-1: [0, 1], -2: [0], -30: [0], 3: [], 0: []}[size]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with JsonlWriter(path) as out:
            out.write(episode(7))
    assert len(caught) == (size not in (-1, 0))
    assert [t.task.seed for t in read(path)] == [*kept, 7]


def test_long_lines_are_mended_too(tmp_path):
    path = tmp_path / "episodes.jsonl"
    long = episode(0)
    long.final_observation = "x" * 200_000
    write(path, [long, long])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match="cut short"), JsonlWriter(path) as out:
        out.write(episode(1))
    assert [t.task.seed for t in read(path)] == [0, 1]


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "episodes.jsonl"
    write(path, [episode(0), episode(1), episode(2)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:40] + b"\n" + lines[2])
    with pytest.raises(StorageError, match="line 2"):
        list(read(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "line 1.*'colour'"),
        ({"turns": [{"prompt_ids": []}]}, r"line 1.turns\[0\].*'response_ids'"),
        ({"turns": 3}, "line 1.turns"),
        ({"success": "yes"}, "line 1.success"),
        ({"group": True}, "line 1.group"),
        ({"status": "lost"}, "line 1.status"),
        ({"task": None}, "line 1.task"),
        ({"metrics": {"boxes": "many"}}, "line 1.metrics.boxes"),
    ],
)
def test_records_of_another_kind_are_refused(tmp_path, change, message):
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps({**to_plain(episode()), **change}) + "\n")
    with pytest.raises(UsageError, match=message):
        list(read(path))


def test_what_to_dict_adds_is_passed_over():
    shown = json.loads(json.dumps(episode().to_dict()))
    assert "reward" in shown
    assert from_plain(Trajectory, shown) == episode()


def test_fields_with_a_default_may_be_absent():
    data = {name: value for name, value in to_plain(episode()).items() if name == "task"}
    assert from_plain(Trajectory, data) == Trajectory(episode().task)
    assert {f.name for f in fields(Trajectory)} == set(to_plain(episode()))


def test_files_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(UsageError, match="parquet"):
        write(tmp_path / "episodes.csv", [])
    with pytest.raises(StorageError, match="no file"):
        read(tmp_path / "absent.jsonl")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no")
    with pytest.raises(StorageError, match="damaged"):
        list(read(broken))
    with pytest.raises(UsageError, match="use JSONL"):
        write(tmp_path / "huge.parquet", [episode(2**70)])
    write(tmp_path / "huge.jsonl", [episode(2**70)])
    assert next(read(tmp_path / "huge.jsonl")).task.seed == 2**70
    with pytest.raises(UsageError, match="JSON"):
        write(tmp_path / "odd.jsonl", [Trajectory(Task("game:Test-v0", 0, {"path": Path()}))])


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'rollenv\[envs\]'"):
        write(tmp_path / "episodes.parquet", [episode()])


def test_many_records_stream_through_parquet(tmp_path):
    path = tmp_path / "episodes.parquet"
    write(path, (episode(number) for number in range(600)))
    assert [t.task.seed for t in read(path)] == list(range(600))


_FILLS = """
import resource, sys
from rollenv.rollout.records.storage import JsonlWriter, StorageError
from rollenv.rollout.types import Task, Trajectory
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, -1))
with JsonlWriter(sys.argv[1]) as out:
    for number in range(1000):
        try:
            out.write(Trajectory(Task("a:B-v0", number)))
        except StorageError as error:
            sys.exit(f"{number} {error}")
"""


def test_a_disk_that_fills_up_is_reported_at_the_record_that_it_cuts(tmp_path):
    file = tmp_path / "episodes.jsonl"
    done = subprocess.run([sys.executable, "-c", _FILLS, str(file)], capture_output=True, text=True, check=False)
    assert "cannot write" in done.stderr
    with pytest.warns(UserWarning, match="cut short"):
        assert len(list(read(file))) == int(done.stderr.split()[0])

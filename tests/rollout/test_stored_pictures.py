"""Stored episodes with pictures: files beside the episodes."""

from __future__ import annotations

import json
import re

import pytest

from rollenv.agents.base import OracleAgent
from rollenv.core.errors import UsageError
from rollenv.core.pictures import picture
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.records.plain import from_plain, to_plain
from rollenv.rollout.records.storage import JsonlWriter, StorageError, read, write
from rollenv.rollout.records.stored import stored, stored_episodes
from rollenv.rollout.regrade import regrade
from rollenv.rollout.types import Group, Trajectory


@pytest.fixture(scope="module")
def played():
    found = evaluate(OracleAgent(), "game:Sokoban-v0-easy", {"images": "only", "tile": 14}, n=3, k=2).trajectories
    assert all(len(turn.images) == 1 for one in found for turn in one.turns)
    return found


def shown(trajectories):
    return {image.sha256 for one in trajectories for turn in [*one.turns] for image in turn.images} | {
        image.sha256 for one in trajectories for image in one.final_images
    }


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_episodes_come_back_with_their_pictures(tmp_path, played, suffix):
    file = tmp_path / f"episodes{suffix}"
    write(file, played)
    assert list(read(file)) == played
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {f"{sha256}.png" for sha256 in shown(played)}
    assert list(stored_episodes(file)) == played
    groups = tmp_path / f"groups{suffix}"
    write(groups, [Group(played[0].task, played[:2])])
    assert [list(group) for group in read(groups, Group)] == [played[:2]]


def test_json_names_pictures_by_their_hashes(tmp_path, played):
    with JsonlWriter(tmp_path / "episodes.jsonl") as out:
        out.write(played[0])
    turn = json.loads((tmp_path / "episodes.jsonl").read_text())["turns"][0]
    (image,) = played[0].turns[0].images
    assert turn["images"] == [image.as_json(data=False)]
    assert picture((tmp_path / "pictures" / f"{image.sha256}.png").read_bytes()) is image


def test_plain_data_hold_them_whole(played):
    told = json.loads(json.dumps(played[0].to_dict()))
    (image,) = played[0].turns[0].images
    assert picture(told["turns"][0]["images"][0]) is image
    assert from_plain(Trajectory, json.loads(json.dumps(to_plain(played[0])))) == played[0]


def test_a_missing_file_is_named_with_episode_and_turn(tmp_path, played):
    file = tmp_path / "episodes.jsonl"
    write(file, played)
    (gone,) = played[1].turns[-1].images
    path = tmp_path / "pictures" / f"{gone.sha256}.png"
    path.unlink()
    line, turn = next(
        (i, j) for i, one in enumerate(played, 1) for j, turn in enumerate(one.turns) if turn.images == (gone,)
    )
    where = re.escape(f"episodes.jsonl: line {line}.turns[{turn}].images[0]") + f".*{path.name}"
    for reader in (read, stored):
        with pytest.raises(StorageError, match=where):
            list(reader(file))
    path.write_bytes(gone.data[:-20])
    with pytest.raises(StorageError, match="cut or damaged"):
        list(read(file))
    path.write_bytes(played[0].turns[0].images[0].data)
    with pytest.raises(StorageError, match="another picture"):
        list(read(file))


@pytest.mark.parametrize(
    "form", [{}, {"sha256": "../../../etc/passwd"}, {"sha256": 5}, "x", None, {"sha256": "a" * 63}]
)
def test_wrong_forms_are_refused(tmp_path, played, form):
    data = to_plain(played[0])
    data["turns"][0]["images"] = [form]
    with pytest.raises(UsageError, match=r"turns\[0\]\.images\[0\]"):
        from_plain(Trajectory, data)


def test_episodes_with_pictures_are_judged_again(tmp_path, played):
    write(tmp_path / "episodes.jsonl", played)
    assert {each.kind for each in regrade(stored(tmp_path / "episodes.jsonl"))} == {"same"}
    other = played[0].turns[-1].images
    played[1].turns[0].images, before = other, played[1].turns[0].images
    write(tmp_path / "changed.jsonl", played[1:2])
    played[1].turns[0].images = before
    (found,) = regrade(stored(tmp_path / "changed.jsonl"))
    assert (found.kind, "shows something else" in found.reason) == ("unjudged", True)


def test_commands_keep_and_read_pictures(tmp_path, rollenv_command):
    out = tmp_path / "a folder"
    rollenv_command("eval", "game:Sokoban-v0-easy", "images=only", "--agent", "oracle", "-n", "3", "--out", str(out))
    assert len(list((out / "pictures").glob("*.png"))) > 3
    done = rollenv_command("regrade", str(out), "--out", str(tmp_path / "again"))
    assert done.returncode == 0, done.stdout
    again = list(stored_episodes(tmp_path / "again"))
    assert [turn.images for one in again for turn in one.turns] == [
        turn.images for one in stored_episodes(out) for turn in one.turns
    ]

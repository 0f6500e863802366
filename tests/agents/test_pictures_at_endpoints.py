"""Pictures of environments reach a model that sees behind an endpoint, with equal bytes."""

import asyncio
import importlib

import pytest
from seeing import seeing

from rollenv.agents.chat import ChatAgent
from rollenv.agents.gateway.gateway import Gateway
from rollenv.core.pictures import Picture, is_picture_token, numbered, picture
from rollenv.rollout import RolloutManager, Task
from rollenv.rollout.records import storage
from rollenv.trainers.stored_episodes import Unusable, groups_of_episodes

PIL, io = pytest.importorskip("PIL.Image"), importlib.import_module("io")


def file_of(image, kind, **settings):
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


@pytest.fixture
def geometry(tmp_path, monkeypatch):
    """A folder like Geometry3K's published one: a plain PNG file, and one that is converted."""
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    files = file_of(PIL.new("RGB", (84, 56), "red"), "PNG"), file_of(PIL.new("CMYK", (56, 84), "blue"), "JPEG")
    rows = [
        {"problem": f"<image>What is {i} + 1?", "answer": str(i + 1), "images": [{"bytes": file, "path": None}]}
        for i, file in enumerate(files)
    ]
    (tmp_path / "a folder" / "geometry3k").mkdir(parents=True)
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a folder" / "geometry3k" / "train.parquet")
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path / "a folder"))
    return files


def played(tasks):
    """Episodes through an endpoint, and the pictures in the prompts of the model behind it, by prompt."""

    def collected(session):
        with RolloutManager(ChatAgent("m", session.base_url, seeded=False)) as manager:
            return manager.collect(tasks, 1)

    async def work():
        async with Gateway(seeing()) as gateway:
            session = gateway.open()
            return await asyncio.to_thread(collected, session), session.tree

    groups, tree = asyncio.run(work())
    prompts = [[i for i in tree.prompt_ids(node) if is_picture_token(i)] for node in tree.nodes]
    return [t for group in groups for t in group], [[numbered(i) for i in dict.fromkeys(ids)] for ids in prompts]


def test_episodes_of_an_endpoint_are_imitated_with_their_pictures(tmp_path):
    """Also those of a file, whose tokens are then those of the model behind the endpoint."""
    (episode,), _ = played([Task("ragen:Sokoban-v0", 1, {"images": "only", "max_turns": 2})])
    storage.write(tmp_path / "episodes.jsonl", [episode])
    agent = seeing()
    for path in (tmp_path / "episodes.jsonl", tmp_path / "own.jsonl"):
        (group,) = groups_of_episodes(path, "complete", agent, None, Unusable())
        (given,) = group.trajectories
        for turn, before in zip(given.turns, episode.turns, strict=True):
            assert {numbered(i) for i in turn.prompt_ids if is_picture_token(i)} >= {*before.images}
            assert sum(map(is_picture_token, turn.prompt_ids)) % agent.model.rollenv_vision.count(before.images[0]) == 0
            assert agent.decode(turn.response_ids) == before.text
        storage.write(tmp_path / "own.jsonl", [given])


def test_rows_and_boards_reach_the_model_with_equal_bytes(geometry):
    tasks = [Task("math:Geometry3K", 0, options={"index": index}) for index in (0, 1)]
    tasks.append(Task("ragen:Sokoban-v0", 1, {"images": "only", "max_turns": 2}))
    episodes, prompts = played(tasks)
    assert [len(t.turns) for t in episodes] == [1, 1, 2], [t.error for t in episodes]
    expected = [list(t.turns[0].images) for t in episodes]
    expected.append(list(dict.fromkeys(image for turn in episodes[2].turns for image in turn.images)))
    assert sorted(prompts, key=repr) == sorted(expected, key=repr)
    assert expected[0][0].data == geometry[0]
    assert picture(geometry[1]) in expected[1]
    assert all(isinstance(image, Picture) for images in expected for image in images)
    assert all("base64" not in repr(turn.messages) for t in episodes for turn in t.turns)

"""Problems with pictures."""

import base64
import importlib
import json
import sys

import pytest

import rollenv
from rollenv import UsageError
from rollenv.core.checker import check_env
from rollenv.core.errors import MissingData, MissingExtra
from rollenv.envs.math.visual import MathVisualEnv

Image = pytest.importorskip("PIL.Image")
io = importlib.import_module("io")


def picture(colour):
    return Image.new("RGB", (5, 3), colour)


def file_of(image, kind="PNG"):
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


COLOURS = ("red", "green", "blue")
ROWS = [{"problem": f"<image>How much is {i} + 1?", "answer": str(i + 1)} for i in range(3)]


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder like the published one: pictures inside a parquet file."""
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = [
        {**row, "images": [{"bytes": file_of(picture(c)), "path": None}]} for row, c in zip(ROWS, COLOURS, strict=True)
    ]
    (tmp_path / "geometry3k" / "data").mkdir(parents=True)
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "geometry3k" / "data" / "train-00000.parquet")
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path))


def seen(env, index):
    _, info = env.reset(idx=index)
    (part,), (image,) = info["images"], env.images
    json.dumps(info)
    head, _, data = part["image_url"]["url"].partition(",")
    same = Image.open(io.BytesIO(base64.b64decode(data)))
    assert (part["type"], head, same.tobytes()) == ("image_url", "data:image/png;base64", image.tobytes())
    return image.tobytes()


@pytest.mark.integration
def test_geometry3k_is_made_of_its_published_file(published):
    env = rollenv.make("math:Geometry3K")
    for i, colour in enumerate(COLOURS):
        assert seen(env, i) == picture(colour).tobytes()
        assert env.step(f"\\boxed{{{i + 1}}}")[1:4] == (1.0, True, False)
    check_env("math:Geometry3K", episodes=2)


def test_geometry3k_says_where_its_data_belong(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(MissingData, match=r"axon-rl/geometry3k.*geometry3k/train\.jsonl.*huggingface"):
        rollenv.make("math:Geometry3K")


def test_pictures_come_in_every_form(tmp_path):
    (tmp_path / "a.png").write_bytes(file_of(picture("red")))
    (tmp_path / "train.jsonl").write_text(json.dumps({**ROWS[0], "images": ["a.png"]}) + "\n")
    forms = [
        [picture("red")],
        picture("red"),
        file_of(picture("red")),
        [{"bytes": None, "path": str(tmp_path / "a.png")}],
    ]
    for form in forms:
        assert seen(MathVisualEnv(dataset=[{**ROWS[0], "images": form}]), 0) == picture("red").tobytes()
    assert seen(MathVisualEnv(str(tmp_path)), 0) == picture("red").tobytes()
    jpeg = MathVisualEnv(dataset=[{**ROWS[0], "images": file_of(picture("red"), "JPEG")}])
    assert jpeg.reset()[1]["images"][0]["image_url"]["url"].startswith("data:image/jpeg;")
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([{**ROWS[0], "images": [{"bytes": file_of(picture("red")), "path": None}]}])
    table = table.cast_column(
        "images", [datasets.Image()] if datasets.__version__ < "4" else datasets.List(datasets.Image())
    )
    assert seen(MathVisualEnv(dataset=table), 0) == picture("red").tobytes()


def test_problems_without_pictures_and_wrong_ones(tmp_path, monkeypatch):
    for none in (None, []):
        assert MathVisualEnv(dataset=[{**ROWS[0], "images": none}]).reset()[1]["images"] == []
    with pytest.raises(UsageError, match="'images'"):
        MathVisualEnv(dataset=ROWS)
    with pytest.raises(UsageError, match="not int"):
        MathVisualEnv(dataset=[{**ROWS[0], "images": [3]}]).reset()
    with pytest.raises(MissingData, match=r"absent\.png"):
        MathVisualEnv(dataset=[{**ROWS[0], "images": [str(tmp_path / "absent.png")]}]).reset()
    for secret in (__file__, b"root:x:0:0"):
        with pytest.raises(UsageError, match="png"):
            MathVisualEnv(dataset=[{**ROWS[0], "images": [secret]}]).reset()
    env = MathVisualEnv(dataset=[{**ROWS[0], "images": [file_of(picture("red"))]}])
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert env.reset()[1]["images"], "parts need no Pillow"
    with pytest.raises(MissingExtra, match="pip install pillow"):
        _ = env.images

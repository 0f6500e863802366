"""Problems with pictures."""

import importlib
import json

import pytest

import rollenv
from rollenv import UsageError
from rollenv.core.checker import check_env
from rollenv.core.errors import MissingData
from rollenv.core.pictures import picture as shown
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
    (shown,), (image,) = info["images"], env.images
    assert shown.array().tobytes() == image.tobytes()
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
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([{**ROWS[0], "images": [{"bytes": file_of(picture("red")), "path": None}]}])
    table = table.cast_column(
        "images", [datasets.Image()] if datasets.__version__ < "4" else datasets.List(datasets.Image())
    )
    assert seen(MathVisualEnv(dataset=table), 0) == picture("red").tobytes()


def test_problems_without_pictures_and_wrong_ones(tmp_path):
    def reset(cell, problem="How much?"):
        env = MathVisualEnv(dataset=[{"problem": problem, "answer": "1", "images": cell}])
        return env.reset()[1]["images"]

    for none in (None, [], float("nan")):
        assert reset(none) == []
    with pytest.raises(UsageError, match="'images'"):
        MathVisualEnv(dataset=ROWS)
    absent = str(tmp_path / "absent.png")
    for cell, error, said in (
        ([3], UsageError, "not int"),
        ([picture("red"), absent], MissingData, r"absent\.png"),
        (["/dev/zero"], MissingData, "no file"),
        ([__file__], UsageError, "none of the formats"),
        ([b"root:x:0:0"], UsageError, "none of the formats"),
        (["a\0b"], MissingData, "null"),
        (["x" * 100_000], MissingData, "too long"),
    ):
        with pytest.raises(error, match=f"row 0, column 'images': .*{said}"):
            reset(cell)
    for cell, problem in (([], "<image>?"), ([picture("red")], "<image> and <image>")):
        with pytest.raises(UsageError, match=r"row 0, column 'images'.* pictures for . marks"):
            reset(cell, problem)


GEOQA = [
    {"problem": "How large is angle ABC?", "solution": "<answer> 145° </answer>", "image": file_of(picture("red"))},
    {"problem": "How large is angle ABC?", "solution": "<answer> 36 </answer>", "image": file_of(picture("blue"))},
    {
        "problem": "How long is AB?",
        "solution": r"<answer> 4\sqrt{3} </answer>",
        "image": file_of(picture("red"), "JPEG"),
    },
]


@pytest.mark.parametrize("form", ["bytes", "paths", "jsonl"])
def test_the_shape_of_geoqa(tmp_path, form):
    folder = tmp_path / "own geoqa"
    (folder / "images").mkdir(parents=True)
    rows = [dict(row) for row in GEOQA]
    for i, row in enumerate(rows):
        if form == "bytes":
            row["image"] = {"bytes": row["image"], "path": f"{i}.png"}
        else:
            (folder / "images" / f"{i}.png").write_bytes(row["image"])
            row["image"] = f"images/{i}.png" if form == "jsonl" else {"bytes": None, "path": f"images/{i}.png"}
    if form == "jsonl":
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(arrow.Table.from_pylist(rows), folder / "train.parquet")
    keys = {"image_key": "image", "answer_key": "solution"}
    for env in (
        rollenv.make("math:Geometry3K", dataset_name=str(folder), **keys),
        rollenv.make(f"data:{folder}", held_out=0.0),
    ):
        for i, answer in enumerate(("145", "36^\\circ", "\\sqrt{48}")):
            _, info = env.reset(options={"index": i})
            assert info["images"] == [shown(GEOQA[i]["image"])]
            assert env.step(f"\\boxed{{{answer}}}")[1] == 1.0
            env.reset(options={"index": i})
            assert env.step("\\boxed{7}")[1] == 0.0


def test_a_column_of_this_name_without_pictures_is_left_alone(tmp_path):
    rows = [{"question": f"{i}?", "answer": i, "image": f"python:3.{i}"} for i in range(3)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "images" not in rollenv.make(f"data:{tmp_path}").reset(0)[1]
    with pytest.raises(UsageError, match=r"column 'image' .*python"):
        rollenv.make(f"data:{tmp_path}", image="image")

"""Rows: where they come from, splits that do not mix, and what is said when they are missing."""

import csv
import gzip
import json
import sys
import types

import numpy as np
import pytest

import rollenv
from rollenv import MissingExtra, UsageError
from rollenv.core.errors import MissingData
from rollenv.envs.code.env import CodeEnv
from rollenv.envs.data import rows as datasets
from rollenv.envs.data.rows import KNOWN, is_local, load_rows
from rollenv.envs.math.env import MathEnv
from rollenv.envs.qa.env import QaEnv

ROWS = [{"problem": f"{i} + {i}?", "answer": 2 * i} for i in range(5)]


def write(path, rows=ROWS):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            out = csv.DictWriter(file, rows[0])
            out.writeheader()
            out.writerows(rows)
    else:
        path.write_text(text)
    return path


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)


@pytest.mark.parametrize("suffix", datasets.SUFFIXES)
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    rows = load_rows(str(write(tmp_path / f"rows{suffix}")))
    kind = str if suffix == ".csv" else int  # a table of texts
    assert [dict(row) for row in rows] == [{**row, "answer": kind(row["answer"])} for row in ROWS]


def test_rows_in_memory():
    assert [dict(row) for row in load_rows(rows=iter(ROWS))] == ROWS


def test_rows_are_read_once_shared_and_read_only(tmp_path):
    path = write(tmp_path / "train.jsonl")
    rows = load_rows(str(path))
    assert load_rows(str(path))[0] is rows[0]
    with pytest.raises(TypeError):
        rows[0]["answer"] = 1
    write(path, ROWS[:2])
    assert len(load_rows(str(path))) == 2, "a file that changed is read again"


def test_environments_share_their_rows(tmp_path):
    path = str(write(tmp_path / "train.jsonl"))
    one, two = (rollenv.make("math:GSM8K", dataset_name=path) for _ in range(2))
    assert one.rows[0] is two.rows[0]
    assert one.spawn(same_state=True).rows is one.rows


def test_train_and_test_do_not_mix(tmp_path):
    write(tmp_path / "train.jsonl", ROWS[:3])
    write(tmp_path / "set_test.jsonl.gz", ROWS[3:])
    assert [r["answer"] for r in load_rows(str(tmp_path), "train")] == [0, 2, 4]
    assert [r["answer"] for r in load_rows(str(tmp_path), "test")] == [6, 8]
    with pytest.raises(UsageError, match="several splits"):
        load_rows(str(tmp_path))
    with pytest.raises(UsageError, match="'validation'"):
        load_rows(str(tmp_path), "validation")
    with pytest.raises(UsageError, match="'test'"):
        load_rows(str(tmp_path / "train.jsonl"), "test")


def test_a_folder_with_hidden_files_or_a_split_twice_gives_each_row_once(tmp_path):
    write(tmp_path / "train.jsonl")
    write(tmp_path / ".train.jsonl")
    (tmp_path / "._train.jsonl").write_bytes(bytes(90))
    write(tmp_path / "val.1.jsonl")
    write(tmp_path / "val.2.jsonl")
    assert len(load_rows(str(tmp_path), "train")) == len(ROWS)
    assert len(load_rows(str(tmp_path), "val")) == 2 * len(ROWS), "two parts"
    for again in ("train.jsonl.gz", "data/train.jsonl"):
        twice = write(tmp_path / again)
        with pytest.raises(UsageError, match="same rows"):
            load_rows(str(tmp_path), "train")
        twice.unlink()


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_narrow_numbers_of_parquet_read_as_they_were_written(tmp_path, kind):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = pyarrow.array(np.array([0.1, 0.5, 3.14, -2.5], kind))
    table = pyarrow.table({"answer": column, "empty": pyarrow.nulls(4, column.type)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert [row["answer"] for row in load_rows(str(tmp_path / "a.parquet"))] == [0.1, 0.5, 3.14, -2.5]


def test_a_file_whose_name_says_no_split_has_none(tmp_path):
    path = str(write(tmp_path / "rows.jsonl"))
    assert len(load_rows(path)) == 5
    with pytest.raises(UsageError, match="'train'"):
        load_rows(path, "train")


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet", "data/train-00000-of-00001.parquet"])
def test_registered_sets_are_found_below_the_data_folder(root, no_hub, name):
    write(root / "orz57k" / name)
    assert len(load_rows("axon-rl/ORZ-57k", "train")) == 5
    assert is_local("axon-rl/ORZ-57k", "train")
    assert not is_local("axon-rl/ORZ-57k", "test")
    with pytest.raises(MissingData):
        load_rows("axon-rl/ORZ-57k", "test")
    with pytest.raises(UsageError, match="split="):
        load_rows("axon-rl/ORZ-57k")


def test_a_set_in_parts(root):
    write(root / "orz57k/data/train-00000-of-00002.parquet", ROWS[:2])
    write(root / "orz57k/data/train-00001-of-00002.parquet", ROWS[2:])
    assert [dict(row) for row in load_rows("axon-rl/ORZ-57k", "train")] == ROWS


def test_published_columns_get_the_names_that_ids_ask_for(root):
    write(root / "gsm8k/test.jsonl", [{"question": "1 + 1?", "answer": "Two.\n#### 2"}])
    env = rollenv.make("math:GSM8K", split="test")
    assert "1 + 1?" in env.reset()[0]
    assert env.oracle_action() == "\\boxed{2}"


@pytest.mark.parametrize(
    ("split", "tasks"), [("prompt", (1, 10)), ("test", (11, 510)), ("validation", (511, 600)), ("train", (601, 974))]
)
def test_mbpp_is_split_by_task(root, split, tasks):
    write(root / "mbpp/mbpp.jsonl", [{"task_id": i, "text": "", "test_list": [], "code": ""} for i in range(1, 975)])
    found = [row["task_id"] for row in load_rows("google-research-datasets/mbpp", split)]
    assert found == list(range(tasks[0], tasks[1] + 1))


def test_any_set_of_the_hub_may_lie_in_the_data_folder(root, no_hub):
    write(root / "mine/test.jsonl")
    assert [dict(row) for row in load_rows("somebody/Mine", "test")] == ROWS
    with pytest.raises(MissingData, match=r"mine/train\.jsonl"):
        load_rows("somebody/Mine", "train")


def test_a_missing_set_says_what_was_looked_for_where_and_where_to_get_it(root, no_hub):
    with pytest.raises(MissingData) as caught:
        rollenv.make("math:ASDiv2K")
    message = str(caught.value)
    for part in ("axon-rl/ASDIV-2k", "'train'", "asdiv2k/train.jsonl", str(root), "pip install", "https://"):
        assert part in message
    assert caught.value.exit_code == 3


def test_a_missing_set_without_a_data_folder(monkeypatch, no_hub):
    monkeypatch.delenv("ROLLENV_DATA", raising=False)
    with pytest.raises(MissingData, match="ROLLENV_DATA"):
        load_rows("axon-rl/ASDIV-2k", "train")


def test_a_missing_file():
    with pytest.raises(MissingData, match="nowhere"):
        load_rows("nowhere/rows.jsonl")


def test_the_hub_is_asked_last(root, monkeypatch):
    asked = []

    def load_dataset(*args):
        asked.append(args)
        return {"train": ROWS, "test": ROWS[:1]}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("rollenv.core.hub.ask", lambda *about: None)
    assert len(load_rows("someone/some-set", "test")) == 1
    assert asked == [("someone/some-set",)]
    with pytest.raises(UsageError, match="test, train"):
        load_rows("someone/some-set", "dev")
    with pytest.raises(UsageError, match="test, train"):
        load_rows("someone/some-set")
    write(root / "orz57k/train.jsonl", ROWS[:4])
    assert len(load_rows("axon-rl/ORZ-57k", "train")) == 4
    assert all("ORZ" not in args[0] for args in asked)


def test_a_hub_that_cannot_be_reached_is_a_missing_set(root, monkeypatch):
    def load_dataset(*args):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("rollenv.core.hub.ask", lambda *about: None)
    with pytest.raises(MissingData, match="no route"):
        load_rows("someone/other-set", "test")


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"dataset_name": ""}, "dataset_name="),
        ({"dataset": []}, "no rows"),
        ({"dataset": ROWS, "question_key": "question"}, "'question'.*'problem'"),
        ({"dataset": ROWS, "answer_key": "gold"}, "'gold'"),
    ],
)
def test_wrong_arguments(kwargs, said):
    with pytest.raises(UsageError, match=said):
        rollenv.make("math:GSM8K", **kwargs)


LINE = json.dumps({"problem": "6 * 7?", "answer": "42"}).encode() + b"\n"
MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mark.jsonl", MARK + LINE * 2),
        ("windows.jsonl", MARK + (LINE * 2).replace(b"\n", b"\r\n")),
        ("old_mac.jsonl", (LINE * 2).replace(b"\n", b"\r")),
        ("empty_lines.jsonl", b"\n" + LINE + b"  \n" + LINE + b"\n"),
        ("packed.jsonl.gz", gzip.compress(MARK + LINE * 2, mtime=0)),
        ("packed_in_parts.jsonl.gz", gzip.compress(LINE, mtime=0) * 2),
        ("separators.jsonl", '{"problem": "a\u2028b\x85c", "answer": "42"}\n'.encode() + LINE),
    ],
)
def test_a_file_as_people_have_it_is_read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert [row["answer"] for row in load_rows(str(tmp_path / name))] == ["42", "42"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("cut.jsonl", LINE + LINE[:20], "line 2"),
        ("list.jsonl", b"[" + LINE.strip() + b"]", "line 1"),
        ("latin.jsonl", LINE + '{"problem": "\u00bf6 * 7?"}\n'.encode("latin-1"), "line 2: .*UTF-8"),
        ("utf16.jsonl", LINE.decode().encode("utf-16"), "line 1: .*UTF-8"),
        ("packed.jsonl", gzip.compress(LINE, mtime=0), "line 1: .*UTF-8"),
        ("cut.jsonl.gz", gzip.compress(LINE * 500, mtime=0)[:40], "EOFError"),
        ("plain.jsonl.gz", LINE, "BadGzipFile"),
        ("damaged.jsonl.gz", gzip.compress(LINE, mtime=0)[:12] + b"junk" * 9, ""),
        ("cut.parquet", b"PAR1" + bytes(60), ""),
        ("lines.parquet", LINE, ""),
        ("empty.parquet", b"", ""),
        ("empty.jsonl", b"", "no rows"),
        ("empty.jsonl.gz", b"", "no rows"),
        ("table.tsv", b"problem,answer\n6 * 7?,42\n", ".jsonl"),
        ("list.json", b"[" + LINE.strip() + b"]", ".jsonl"),
        ("folder/train.jsonl/rows.txt", LINE, "IsADirectoryError"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, says):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    asked = tmp_path / name.partition("/")[0]
    with pytest.raises(UsageError, match=f"{asked}.*{says}"):
        load_rows(str(asked))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"rollenv\[envs\]"):
        load_rows(str(path))


def test_every_registered_id_names_a_known_set_and_a_split():
    specs = [s for s in rollenv.list_envs() if "dataset_name" in s.kwargs]
    assert len(specs) > 25
    for spec in specs:
        assert spec.kwargs["dataset_name"] in KNOWN
        assert spec.kwargs["split"]
        assert spec.needs


def test_published_files(data):
    for folder, split, rows in (("gsm8k", "train", 7473), ("gsm8k", "test", 1319), ("math", "math", 500)):
        data(folder)
        assert len(load_rows(folder, split)) == rows
    data("mbpp/mbpp.jsonl")
    train = {row["task_id"] for row in load_rows("mbpp", "train")}
    assert not train & {row["task_id"] for row in load_rows("mbpp", "test")}


def test_a_split_of_the_real_library_is_mapped_and_not_copied(tmp_path, monkeypatch):
    library = pytest.importorskip("datasets", reason="the data extra is not installed")
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "owner" / "sums"
    folder.mkdir(parents=True)
    library.Dataset.from_list([{"problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(1000)]).to_parquet(
        folder / "train.parquet"
    )
    rows = datasets._hub_rows("owner/sums", None, "train")
    assert len(rows) == 1000
    assert [row["answer"] for row in rows[:2]] == ["1", "2"]
    with pytest.raises(TypeError):
        rows[0]["answer"] = "7"
    env = MathEnv(dataset=rows)
    assert env.rows is rows
    assert {env.reset()[1]["idx"] for _ in range(1000)} == set(range(1000)), "every row once before any comes again"
    with pytest.raises(UsageError, match="train"):
        datasets._hub_rows("owner/sums", None, "test")


@pytest.mark.parametrize("digits", [4300, 4301, 6000])
def test_integers_of_any_length_are_values(digits, tmp_path):
    written = "1" * digits
    path = tmp_path / "train.jsonl"
    path.write_text(f'{{"problem": "?", "answer": {written}, "tests": {{"fn_name": "f", "inputs": [[{written}]], '
                    f'"outputs": [{written}]}}}}\n')  # fmt: skip
    for kind, right, wrong in (
        (MathEnv, rf"\boxed{{{written}}}", rf"\boxed{{{written[:-1]}2}}"),
        (QaEnv, f"<answer>{written}</answer>", f"<answer>{written[:-1]}2</answer>"),
        (CodeEnv, "```python\ndef f(x): return x\n```", "```python\ndef f(x): return x + 1\n```"),
    ):
        env = kind(dataset_name=str(path), question_key="problem")
        for action, reward in ((right, 1.0), (wrong, 0.0)):
            env.reset(seed=0)
            assert env.step(action)[1] == reward, kind

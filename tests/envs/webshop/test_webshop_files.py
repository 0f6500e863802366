"""Reading WebShop's files: what is taken from them, and what is said when they are broken."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import rollenv
from rollenv import UsageError
from rollenv.core.errors import MissingData
from rollenv.envs.webshop.catalogue import Products, build_catalogue
from rollenv.envs.webshop.files import BadFile, ShopFiles, entries, products, records
from rollenv.envs.webshop.generate import STYLES, generated
from rollenv.envs.webshop.product import Product
from rollenv.envs.webshop.shop import open_shop

ITEM = {
    "asin": "B000000001",
    "name": "Red Tea",
    "full_description": "Good.",
    "small_description": ["One", "Two"],
    "pricing": "$3.78 - $11.38",
    "category": "grocery",
    "query": "Teas ",
    "product_category": "Food › Tea",
    "customization_options": {"Size": [{"value": " 10 Oz/Pack "}], "Color": None},
}
NOTES = {
    "B000000001": {"attributes": ["fair trade"], "instruction": "Find tea", "instruction_attributes": ["fair trade"]}
}


def write(folder, items=(ITEM,), notes=NOTES, human=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "items_shuffle.json").write_text(items if isinstance(items, str) else json.dumps(list(items)))
    (folder / "items_ins_v2.json").write_text(notes if isinstance(notes, str) else json.dumps(notes))
    if human is not None:
        (folder / "items_human_ins.json").write_text(json.dumps(human))
    return ShopFiles.find(folder)


def write_generated(folder, style):
    """Write a generated shop in WebShop's published format."""
    shop = list(generated(STYLES[style]))
    notes = ("attributes", "instruction", "instruction_attributes")
    write(folder, map(published, shop), {p.asin: {name: getattr(p, name) for name in notes} for p in shop})


def published(product):
    options = {name: [{"value": value} for value in values] for name, values in product.options.items()}
    return {
        "asin": product.asin,
        "name": product.title,
        "full_description": product.description,
        "small_description": list(product.bullets),
        "pricing": product.price_tag,
        "category": product.category,
        "query": product.query,
        "product_category": product.product_category,
        "images": [],
        "customization_options": options,
    }


def test_a_product_is_what_the_original_makes_of_it(tmp_path):
    human = {
        "B000000001": [{"instruction": "tea.", "instruction_attributes": ["hot"], "instruction_options": ["10 oz"]}]
    }
    (product,) = products(write(tmp_path, human=human))
    assert product.options == {"size": ("10 oz | pack",)}
    assert (product.price_tag, product.prices) == ("$3.78 to $11.38", (3.78, 11.38))
    assert (product.query, product.attributes) == ("teas", ("fair trade",))
    assert product.document() == "red tea good. one size: 10 oz | pack"
    assert (product.human[0].text, product.human[0].options) == ("tea.", ("10 oz",))
    assert Product.unpack(product.pack()) == product


def test_what_is_allowed_to_be_missing(tmp_path):
    (product,) = products(write(tmp_path, [{"asin": "X"}], {}))
    assert (product.price_tag, product.prices, product.title) == ("$100.0", (100.0,), "")
    assert (product.attributes, product.instruction, product.options) == (("DUMMY_ATTR",), None, {})
    (product,) = products(write(tmp_path, [{"asin": "X", "pricing": "", "small_description": "one line"}], {}))
    assert (product.prices, product.bullets) == ((100.0,), ("one line",))


def test_of_equal_asins_the_first_counts_and_odd_ones_are_left_out(tmp_path):
    items = [ITEM, {**ITEM, "name": "again"}, {**ITEM, "asin": "nan"}, {**ITEM, "asin": "B0000000012"}]
    assert [p.title for p in products(write(tmp_path, items))] == ["Red Tea"]


BROKEN = [
    ({"asin": None}, "asin"),
    ({"asin": "Bé"}, "asin"),
    ({"name": 5}, "name"),
    ({"pricing": "cheap"}, "pricing"),
    ({"pricing": "$"}, "pricing"),
    ({"pricing": 5}, "pricing"),
    ({"small_description": [1]}, "small_description"),
    ({"customization_options": ["a"]}, "customization_options"),
    ({"customization_options": {"Color": "red"}}, "'Color'"),
    ({"customization_options": {"Color": [{"image": None}]}}, "'Color'"),
    ({"customization_options": {"Color": [{"value": None}]}}, "'Color'"),
]


@pytest.mark.parametrize(("change", "says"), BROKEN)
def test_a_broken_product_is_named(tmp_path, change, says):
    files = write(tmp_path, [ITEM, {**ITEM, "asin": "B000000002", **change}])
    with pytest.raises(BadFile, match=says) as error:
        list(products(files))
    assert "items_shuffle.json, record 2" in str(error.value)


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ("", "after 0 records"),
        ("{}", "where \\["),
        ("[", "after 0 records"),
        ("[1]", "object"),
        ('[{"asin": "B1"}', "after 1 records"),
        ('[{"asin": "B1"}, {"asin": "B2", "na', "after 1 records"),
        ('[{"asin": "B1"} {"asin": "B2"}]', "after 1 records"),
        ('[{"asin": B1}]', "after 0 records"),
    ],
)
def test_a_truncated_or_damaged_file_is_named(tmp_path, items, says):
    files = write(tmp_path, items)
    with pytest.raises(BadFile, match=says) as error:
        list(products(files))
    assert "items_shuffle.json" in str(error.value)


def test_bytes_that_are_not_text(tmp_path):
    files = write(tmp_path)
    files.items.write_bytes(b'[{"asin": "\xff"}]')
    with pytest.raises(BadFile, match="damaged"):
        list(products(files))


@pytest.mark.parametrize(
    ("notes", "says"),
    [
        ('{"B000000001": {"attributes": ["a"', "after 0 records"),
        ({"B000000001": ["a"]}, "B000000001"),
        ({"B000000001": {"attributes": "soft"}}, "attributes"),
        ({"B000000001": {"attributes": [], "instruction_attributes": [3]}}, "instruction_attributes"),
    ],
)
def test_broken_notes_are_named(tmp_path, notes, says):
    with pytest.raises(BadFile, match=says) as error:
        list(products(write(tmp_path, notes=notes)))
    assert "items_ins_v2.json" in str(error.value)


@pytest.mark.parametrize(
    "record", ["text", [{"instruction": 5}], [{"instruction": "a", "instruction_options": [None]}]]
)
def test_broken_human_instructions_are_named(tmp_path, record):
    with pytest.raises(BadFile, match=r"items_human_ins\.json, B000000001"):
        list(products(write(tmp_path, human={"B000000001": record})))


def test_every_prefix_of_a_file_is_refused_and_no_crash(tmp_path):
    text = json.dumps([ITEM, {**ITEM, "asin": "B2"}])
    for end in range(0, len(text), 7):
        files = write(tmp_path, text[:end])
        with pytest.raises(BadFile):
            list(products(files))


@pytest.mark.slow
@pytest.mark.integration
def test_values_larger_than_the_window_of_the_reader(tmp_path):
    path = tmp_path / "large.json"
    rows = [{"text": "é" * 3_000_000, "n": i} for i in range(3)]
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    assert [value for _, value in records(path)] == rows
    path.write_text(json.dumps({str(i): row for i, row in enumerate(rows)}, ensure_ascii=False), encoding="utf-8")
    assert [(n, key, value) for n, key, value in entries(path)] == [(i + 1, str(i), rows[i]) for i in range(3)]
    path.write_text("[]")
    assert list(records(path)) == []


def test_a_broken_shop_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "data", [ITEM, {**ITEM, "asin": 3}])
    with pytest.raises(BadFile):
        open_shop(tmp_path / "data")
    assert list((tmp_path / "cache" / "webshop").iterdir()) == []
    write(tmp_path / "data", [])
    with pytest.raises(UsageError, match="no product"):
        open_shop(tmp_path / "data")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "file"))
    write(tmp_path / "data", [{**ITEM, "name": "cannot be written"}])
    with pytest.raises(UsageError, match="set ROLLENV_CACHE"):
        open_shop(tmp_path / "data")


def test_files_that_changed_are_read_again_and_equal_ones_are_not(tmp_path):
    folder = tmp_path / "data"
    write(folder)
    one = open_shop(folder)
    assert open_shop(folder) is one
    write(folder, [ITEM, {**ITEM, "asin": "B2"}])
    os.utime(folder / "items_shuffle.json", (1, 1))
    assert (len(one.catalogue), len(open_shop(folder).catalogue)) == (1, 2)
    shutil.copytree(folder, tmp_path / "copy")
    copy = open_shop(tmp_path / "copy")
    assert copy.catalogue.folder == open_shop(folder).catalogue.folder, "the same content is built once"


def test_missing_files_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("ROLLENV_DATA", raising=False)
    with pytest.raises(MissingData, match="ROLLENV_DATA"):
        rollenv.make("webshop:train-text")
    with pytest.raises(MissingData, match="items_shuffle"):
        rollenv.make("webshop:train-text", data=str(tmp_path))
    with pytest.raises(MissingData, match="folder"):
        rollenv.make("webshop:train-text", data=str(tmp_path / "nowhere"))
    monkeypatch.setenv("ROLLENV_DATA", str(tmp_path))
    write(tmp_path / "webshop")
    assert (
        rollenv.make("webshop:train-text", split="all").reset(0)[0].startswith("WebShop [SEP] Instruction: [SEP] Find")
    )


def test_a_generated_shop_survives_the_published_format(tmp_path):
    write_generated(tmp_path, "medium")
    files = ShopFiles.find(tmp_path)
    assert list(products(files)) == list(generated(STYLES["medium"]))
    assert [p.asin for p in products(files, 7)] == [p.asin for p in generated(STYLES["medium"])][:7]
    catalogue = Products(build_catalogue(files, 7))
    assert list(catalogue) == list(products(files, 7))
    assert [catalogue.find(p.asin.lower()) for p in catalogue] == list(range(7))
    assert catalogue.find("P999") is catalogue.find("é") is catalogue.find("") is None


@pytest.mark.slow
def test_processes_that_build_at_once_agree(tmp_path):
    write_generated(tmp_path / "data", "easy")
    script = (
        f"from rollenv.envs.webshop.shop import open_shop; print(len(open_shop({str(tmp_path / 'data')!r}).catalogue))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ROLLENV_CACHE": str(tmp_path / "cache")},
        )
        for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in running] == ["48"] * 3
    names = [path.name for path in (tmp_path / "cache" / "webshop").iterdir()]
    assert len(names) == 2
    assert not any("partial" in name for name in names)


def test_a_folder_that_holds_no_catalogue(tmp_path):
    with pytest.raises(UsageError, match="no catalogue"):
        Products(tmp_path)
    (tmp_path / "catalogue.json").write_text('{"format": 0, "size": 1}')
    with pytest.raises(UsageError, match="format 0"):
        Products(tmp_path)

"""Search: the analysis of texts, scores and ties, and the queries whose answers the original engine gave."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.webshop.analysis import STOP_WORDS, analyse, stem, tokens
from rollenv.envs.webshop.catalogue import Products, write_catalogue
from rollenv.envs.webshop.product import Product
from rollenv.envs.webshop.search import SearchEngine, stored_length, write_index
from rollenv.envs.webshop.shop import open_shop


def engine_of(folder, products):
    folder.mkdir(parents=True)
    write_catalogue(products, folder)
    catalogue = Products(folder)
    (folder / "index").mkdir()
    write_index(catalogue, folder / "index")
    return SearchEngine(catalogue, folder / "index")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Women's tops, tees & blouses", ["women", "top", "tee", "blous"]),
        ("it's 3.5oz (Pack of 2)", ["3.5oz", "pack", "2"]),
        ("1,000.5 units; a.5 foo_bar", ["1,000.5", "unit", "5", "foo_bar"]),
        ("size:small easy assemble assembly", ["size:smal", "easi", "assembl", "assembl"]),
        ("❤️red★blue 茶道 ™", ["❤️", "red", "★", "blue", "茶", "道", "™"]),
        ("us usb technology technologies", ["us", "usb", "technolog", "technolog"]),
        ("", []),
        ("usbケーブル", ["usb", "ケーブル"]),
        ("ケーブル2m", ["ケーブル", "2m"]),
        ("usb_ケーブル", ["usb_ケーブル"]),
        ("3ケ月ｶﾅabc", ["3", "ケ", "月", "ｶﾅ", "abc"]),
        ("usb케이블", ["usb케이블"]),
        ("usbไทย", ["usb", "ไทย"]),
        ("たusb漢字", ["た", "usb", "漢", "字"]),
        ("кабель2usb", ["кабель2usb"]),
        ('צה"ל דג\' x"y', ['צה"ל', "דג'", "x", "y"]),
    ],
)
def test_texts_are_cut_and_stemmed_as_lucene_does(text, expected):
    assert analyse(text) == expected


def test_underscores_take_linear_time():
    """A search for 10,000 of them took seconds."""
    assert tokens("_" * 1_000_000) == []
    assert tokens("_" * 1_000_000 + "a")[-1].endswith("_a")


def test_long_tokens_are_cut_into_pieces():
    assert list(map(len, tokens("x" * 600))) == [255, 255, 90]


@given(st.text(max_size=200))
def test_any_text_can_be_analysed(text):
    words = analyse(text)
    assert all(words)
    assert not STOP_WORDS.intersection(w for w in tokens(text) if analyse(w) == [w])


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=100))
def test_the_short_way_for_ascii_agrees_with_the_long_one(text):
    assert [t for t in tokens(text + " é") if t != "é"] == tokens(text)


def test_the_stemmer_is_porters_own(data):
    porter = pytest.importorskip("nltk.stem.porter")
    reference = porter.PorterStemmer(mode="MARTIN_EXTENSIONS")
    lines = data("webshop/documents_1k.jsonl").read_text().splitlines()
    words = {word.lower() for line in lines for word in tokens(json.loads(line)["contents"])}
    words |= {"possibly", "sensibly", "theology", "theologies", "apologied", "y", "ies", "logy"}
    assert [w for w in words if stem(w) != reference.stem(w)] == []


@given(st.integers(0, 2**31 - 1))
def test_a_stored_length_keeps_four_bits(length):
    stored = stored_length(length)
    assert stored <= length
    assert length - stored <= length / 8
    assert length > 39 or stored == length
    assert stored_length(stored) == stored


WORDS = ("red", "shoe", "lamp", "tea", "chair", "the", "blue", "tables")


@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=60), min_size=1, max_size=12),
    st.lists(st.sampled_from((*WORDS, "unheard")), max_size=6),
    st.integers(1, 5),
)
def test_scores_are_bm25_and_ties_follow_the_asin(tmp_path_factory, documents, query, k):
    asins = [f"P{(7 * i) % 13:02}" for i in range(len(documents))]
    products = [Product(asin=a, title=" ".join(d)) for a, d in zip(asins, documents, strict=True)]
    engine = engine_of(tmp_path_factory.mktemp("shop") / "shop", products)

    words = [Counter(analyse(p.document())) for p in products]
    lengths = [w.total() for w in words]
    mean = sum(lengths) / max(1, sum(n > 0 for n in lengths)) or 1
    expected = {}
    for asin, counts, length in zip(asins, words, lengths, strict=True):
        score = 0.0
        for word in analyse(" ".join(query)):
            n = sum(word in other for other in words)
            inverse = math.log(1 + (len(words) - n + 0.5) / (n + 0.5))
            score += inverse * counts[word] / (counts[word] + 0.9 * (0.6 + 0.4 * stored_length(length) / mean))
        if score > 0:
            expected[asin] = score
    found = [(products[i].asin, score) for i, score in engine.ranked(" ".join(query), k)]
    best = sorted(expected, key=lambda a: (-round(expected[a], 4), a))[:k]
    assert [a for a, _ in found] == best
    assert [s for _, s in found] == pytest.approx([expected[a] for a in best], rel=1e-5)


def test_the_answers_of_the_original_engine(data):
    queries = [json.loads(line) for line in data("webshop/bm25_reference.jsonl").read_text().splitlines()]
    shop = open_shop(data("webshop"))
    same = {1: 0, 10: 0, 50: 0}
    for query in queries:
        found = shop.engine.ranked(query["query"])
        asins = [shop.catalogue.product(i).asin for i, _ in found]
        for k in same:
            same[k] += asins[:k] == [asin for asin, _ in query["hits"]][:k]
        scores = dict(zip(asins, (score for _, score in found), strict=True))
        assert all(abs(scores.get(asin, 0) - score) < 2e-4 for asin, score in query["hits"])
    assert min(same.values()) >= 0.99 * len(queries), same


def test_the_searched_texts_are_the_published_ones(data):
    catalogue = open_shop(data("webshop")).catalogue
    lines = data("webshop/documents_1k.jsonl").read_text().splitlines()
    assert len(lines) == len(catalogue)
    for line, product in zip(lines, catalogue, strict=True):
        document = json.loads(line)
        published = document["product"]
        assert (product.asin, product.document()) == (document["id"], document["contents"])
        assert (product.title, product.price_tag) == (published["Title"], published["Price"])
        assert {name: list(values) for name, values in product.options.items()} == published["options"]
        assert list(product.bullets) == published["BulletPoints"]
        assert list(product.prices) == published["pricing"]
        assert list(product.attributes) == published["Attributes"]


def test_listing_by_prefix(tmp_path):
    products = [
        Product(asin=f"P{i}", title=f"thing {i}", category="ab"[i % 2], query="old thing", attributes=("soft", f"a{i}"))
        for i in range(6)
    ]
    engine = engine_of(tmp_path / "shop", products)
    found = {query: engine.search(query).tolist() for query in ("<c> b", "<q> old thing", "<a> a4", "<a> soft")}
    assert found == {"<c> b": [1, 3, 5], "<q> old thing": [*range(6)], "<a> a4": [4], "<a> soft": [*range(6)]}
    assert not any(len(engine.search(query)) for query in ("<c> nothing", "<q>", "<a> ", "<c>"))
    drawn = engine.search("<r> 1").tolist()
    assert sorted(drawn) == list(range(6))
    assert engine.search("<r> 1").tolist() == drawn
    assert len({tuple(engine.search(f"<r> {i}")) for i in range(20)}) > 5


def test_queries_that_find_nothing(tmp_path):
    engine = engine_of(tmp_path / "shop", [Product(asin="P1", title="tea"), Product(asin="P0", title="tea")])
    for query in ("", " ", "the", "unheard", "\x00", "★", "a" * 10**6, "<a>", "<r"):
        assert len(engine.search(query)) == 0
    assert engine.search("tea " * 10**5).tolist() == [1, 0]
    assert not np.any(engine.scores("of the"))

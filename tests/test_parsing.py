"""Answers in boxes, tags and fences."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.parsing import last_boxed, last_code_block, last_tagged


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{up}", "up"),
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed{ 5 }", "5"),
        (r"\boxed {3}", "3"),
        (r"\fbox{3}", "3"),
        (r"\boxed{1} then \fbox{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{good} and then \boxed{unfinished", "good"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"\boxed{}", ""),
        ("boxed{no}", None),
        ("a box", None),
        ("", None),
    ],
)
def test_last_boxed(text, answer):
    assert last_boxed(text) == answer


balanced = st.recursive(
    st.text(st.characters(exclude_characters="\\{}", codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "".join("{" + p + "}" for p in parts)),
    max_leaves=8,
)


@given(
    before=st.text(max_size=30), content=balanced, after=st.text(st.characters(exclude_characters="\\{}"), max_size=30)
)
def test_whatever_is_boxed_last_comes_back(before, content, after):
    before = before.rstrip("\\")
    assert last_boxed(before + "\\boxed{" + content + "}" + after) == content.strip()


@given(st.text(alphabet="\\boxed{}f <answer>/`\n", max_size=200))
def test_nothing_raises_on_any_text(text):
    last_boxed(text)
    last_tagged(text)
    last_code_block(text)


@pytest.mark.parametrize("text", ["\\boxed{" * 150_000, "{" * 1_000_000, "\\boxed{" + "{}" * 500_000, "```" * 300_000])
def test_a_megabyte_of_braces_takes_no_time(text):
    started = time.perf_counter()
    last_boxed(text)
    last_tagged(text)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>up</answer>", "up"),
        ("<answer>a</answer> no, <answer> b </answer>", "b"),
        ("<answer>a</answer><answer>open", "a"),
        ("</answer>", None),
        ("<answer>", None),
    ],
)
def test_last_tagged(text, answer):
    assert last_tagged(text) == answer


def test_last_code_block():
    text = "```python\nx = 1\n```\nand\n```js\nlet y\n```\n"
    assert last_code_block(text) == "x = 1\n"
    assert last_code_block(text, ("js",)) == "let y\n"
    assert last_code_block("```py\n1\n``` ```\n2\n```") == "2\n"
    assert last_code_block("no code") is None

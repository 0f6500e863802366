"""Answers in boxes, tags and fences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.core.parsing import boxes, code_blocks, first_tagged, last_boxed, last_code_block, last_tagged
from rollenv.core.tools.calls import find_calls

READERS = (
    last_boxed,
    last_tagged,
    last_code_block,
    find_calls,
    lambda text: first_tagged(text, "python"),
    lambda text: list(code_blocks(text)),
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{up}", "up"),
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed{1} \boxed {2}", "2"),
        (r"\fbox{0} \boxed{1} \boxed {2}", "2"),
        (r"\\boxed{4}", "4"),
        (r"\boxed{ 5 }", "5"),
        (r"\boxed {3}", "3"),
        (r"\fbox{3}", "3"),
        (r"\boxed{1} then \fbox{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{good} and then \boxed{unfinished", None),
        (r"\boxed{good} and {an open brace", "good"),
        (r"so $\boxed 4$ ways", "4"),
        (r"\boxed{5}, no: \boxed -12.5", "-12.5"),
        (r"\boxed{5} is in a \boxed form", "5"),
        (r"\boxed{5}, not \boxed 4{", "4"),
        (r"$\boxed B$", "B"),
        (r"\boxedx", None),
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} \fbox{ 2 } \boxed {3} \BOXED{4}", ["4", "3", "2", "1"]),
        (r"\boxed{1} \boxed{", ["1"]),
        (r"\boxed{a \boxed{b} c \boxed{d}}", ["d", "b"]),
        (r"\boxed{ {5} } \boxed{\text{up}}", [r"\text{up}", "{5}"]),
        (r"\boxed{1}} {{ \boxed{2}", ["2", "1"]),
        ("no box", []),
    ],
)
def test_boxes_come_last_first_and_hold_no_other(text, found):
    assert list(boxes(text)) == found


@given(st.lists(st.sampled_from(["\\boxed{", "\\fbox {", "{", "}", "\\", "1", " x"]), max_size=30))
def test_boxes_are_parts_of_the_text_and_do_not_overlap(pieces):
    text = "".join(pieces)
    found = list(boxes(text))
    assert sum(map(len, found)) <= len(text)
    assert all(box in text and "box" not in box for box in found)
    if last_boxed(text) is not None:
        assert found


@given(st.text(alphabet="\\boxed{}f <answer>/`\n", max_size=200))
def test_nothing_raises_on_any_text(text):
    last_boxed(text)
    last_tagged(text)
    last_code_block(text)


PIECES = ["\\boxed{", "\\boxed ", "\\fbox", "{", "{}", "<answer>", "</answer>"]
PIECES += ["```", "```\n", "```py\n", "``` x ", "````\n```\n"]


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("head", ["", "```python\n", "\\boxed{"], ids=repr)
@pytest.mark.parametrize("piece", [*PIECES, "<python>", "<tool_call><tool_name></tool_name>", "x", " ", "\n"], ids=repr)
def test_what_repeats_for_long_is_read_in_linear_time(piece, head):
    """Anything worse than linear would take a minute here."""
    text = head + piece * (300_000 // len(piece))
    for read in READERS:
        read(text)


@given(st.lists(st.sampled_from(["\\boxed{", "\\boxed {", "\\fbox{", "{", "}", "\\", "1", "\\\\", "box"]), max_size=12))
def test_one_grammar_for_every_spelling_of_a_box(pieces):
    text = "".join(pieces)
    plain = text.replace("\\boxed {", "\\boxed{").replace("\\fbox{", "\\boxed{")
    assert last_boxed(plain) == last_boxed(text.replace("\\boxed{", "\\fbox{").replace("\\boxed {", "\\fbox{"))
    assert (last_boxed(text) is None) == (last_boxed(plain) is None)


@given(st.text(st.characters(exclude_characters="`"), max_size=50), st.sampled_from(["```", "````", "``````"]))
def test_a_fence_of_any_length_gives_back_its_code(code, fence):
    assert last_code_block(f"Text ```x``` and {fence}python\n{code}{fence} more", None) == code


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
    assert last_code_block("```py\n1\n``` ```py\n2\n```") == "2\n"
    assert last_code_block("```\n1\n``` ```\n2\n```") == "2\n"
    assert last_code_block("no code") is None


PROGRAMS = {
    "plain": "if 1:\n    print('it\\'s')\n",
    "fences in a docstring": 'def f():\n    """Example:\n\n    ```python\n    f()\n    ```\n    """\nf()\n',
    "fences in a module's docstring": '"""Solves it.\n```\n1 2\n```\n"""\nprint(3)\n',
    "a fence in a literal": "s = '```'\nprint(s)\n",
    "fences in comments": "# Example:\n# ```\n# 1 2\n# ```\nprint(3)\n",
    "tags of thoughts": "print('<think>')\ns = '</think>'\n",
}
REPLIES = {
    "alone": "{0}",
    "a list": "1. It's this:\n   {3}2. done",
    "a list and four spaces": "- so:\n    {4}",
    "a list, on its line": "1. {3}",
    "a mark and no margin": "- {0}",
    "a quotation": "Said:\n> {>}",
    "output after it": "{0}Output:\n```\nit's 7\n```\n",
    "a draft before it": "```python\nprint(1)\n```\nBetter:\n{0}",
    "an unclosed string before it": '```python\nx = """open\n```\nNo:\n{0}',
    "a thought before it": "<think>\n```python\nprint(1)\nhmm</think>\n{0}",
    "a thought of the template's before it": "try\n```python\nprint(1)\n```\n</think>\n{0}",
    "a byte order mark": "```python\n\ufeff{code}```",
}
NO_ANSWERS = {
    "a thought that was cut": "<think>try\n{0}hmm",
    "a later thought that was cut": "Well. <think>try\n{0}hmm",
    "a thought without an answer": "<think>{0}</think>I cannot.",
    "a thought of the template's without an answer": "{0}well</think>I cannot.",
    "another language": "```js\n{code}```",
    "a fence that is not closed": "```python\n{code}",
}


def reply(form, code):
    block = f"```python\n{code}```\n"
    margins = {"3": "   ", "4": "    ", ">": "> "}
    text = form.replace("{0}", block).replace("{code}", code)
    for name, margin in margins.items():
        lines = [f"{margin}{line}" if line.strip() else line for line in block.splitlines(keepends=True)]
        text = text.replace(f"{{{name}}}", "".join(lines)[len(margin) :])
    return text


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_the_program_of_a_reply_is_found(code):
    assert {name: last_code_block(reply(form, code)) for name, form in REPLIES.items()} == dict.fromkeys(REPLIES, code)


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_is_no_answer_is_not_found(code):
    found = {name: last_code_block(reply(form, code)) for name, form in NO_ANSWERS.items()}
    assert code not in found.values()

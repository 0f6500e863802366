"""Rewards for verifiable instructions."""

from __future__ import annotations

import pytest
from answered import answered, thinking, worth
from hypothesis import given
from hypothesis import strategies as st

from rollenv import UsageError
from rollenv.plugins.rewards.instructions import CHECKS, Instructions, follows
from rollenv.rollout.types import Task

CASES = [
    ("keywords:existence", {"keywords": ["sun", "sea"]}, "Sun and SEA.", "sunny sea"),
    ("keywords:forbidden_words", {"forbidden_words": ["no"]}, "nothing", "No!"),
    ("keywords:frequency", {"keyword": "a b", "frequency": 2, "relation": "at least"}, "a b, A B", "a b ab"),
    ("keywords:frequency", {"keyword": "c++", "frequency": 2, "relation": "less than"}, "c++", "C++ c++"),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 2, "let_relation": "less than"}, "E", "eE"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "don't stop now", "don't stop"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "It is 3.5.", "A. B!"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one\n\ntwo"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "So"},
        'one\n\n"so" two',
        "so one\n\ntwo",
    ),
    ("detectable_format:constrained_response", {}, "Well. My answer is maybe.", "My answer is perhaps."),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name], [street]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Yes.\nP.S. no", "the P.S. is missing"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n- b\n* c"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* **two**", "* one * *two*"),
    ("detectable_format:multiple_sections", {"section_spliter": "PART", "num_sections": 2}, "PART 1\nPART 2", "PART 1"),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<joy>>\ntext", "<< >>"),
    ("startend:end_checker", {"end_phrase": "Is that all?"}, "Yes. is that all? \n", "Is that all? Yes"),
    ("startend:quotation", {}, ' "yes" ', '"'),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it"}, "say it\nI do", "I do say it"),
    ("combination:two_responses", {}, "one\n******\ntwo", "one\n******\none"),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "at least"}, "an NPC", "An"),
    ("change_case:english_capital", {}, "ALL 3", "All"),
    ("change_case:english_lowercase", {}, "all 3", "All"),
    ("punctuation:no_comma", {}, "a b", "a, b"),
]


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), CASES, ids=[case[0] for case in CASES])
def test_each_instruction(name, arguments, right, wrong):
    instruction = {"id": name, **arguments, "not_given": None}
    assert follows(right, instruction)
    assert not follows(wrong, instruction)
    assert not follows(" \n", instruction)


def test_every_instruction_has_a_case():
    assert {case[0] for case in CASES} == set(CHECKS)


@given(st.text(max_size=60), st.sampled_from(CASES))
def test_any_text_has_a_verdict(text, case):
    assert follows(text, {"id": case[0], **case[1]}) in (True, False)


@pytest.mark.parametrize("unit", ["<<a", " \n", "* a ", "[", "a.", "***", "P.S.\n", "*a", "<<\n", "- \n", ". ", "``"])
def test_long_texts_are_read_in_linear_time(unit):
    for name, arguments, *_ in CASES:  # where it was quadratic, this would take minutes
        follows(unit * 30_000, {"id": name, **arguments})


@pytest.mark.parametrize(
    "instruction",
    [
        {"id": "keywords:presence"},
        {},
        {"id": "length_constraints:number_words"},
        {"id": "length_constraints:number_words", "num_words": "3"},
        {"id": "length_constraints:number_words", "num_words": 3, "relation": "more than"},
        {"id": "punctuation:no_comma", "commas": 3},
    ],
)
def test_instructions_that_cannot_be_checked_are_errors(instruction):
    with pytest.raises(UsageError, match=r"instruction|relation"):
        follows("a text", instruction)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "missing 1 required positional argument: 'keywords'"),
        ({"keywords": ["main() returns", ""]}, "keywords is ['main() returns', '']"),
    ],
)
def test_the_error_of_an_instruction_gives_the_whole_reason(arguments, why):
    with pytest.raises(UsageError) as caught:
        follows("a text", {"id": "keywords:existence", **arguments})
    assert str(caught.value).endswith(f"with {arguments}: {why}")


def test_all_or_a_share_of_a_tasks_instructions():
    wanted = [{"id": "punctuation:no_comma"}, {"id": "change_case:english_capital"}]
    assert worth(Instructions(wanted), answered("no, never", "yes")) == 0.0
    assert worth(Instructions(wanted, partial=True), answered("YES", "yes")) == 0.5
    assert worth(Instructions(lambda task: wanted[task.seed :]), answered("A, B", task=Task("x:y", 1))) == 1.0
    assert worth(Instructions(lambda task: []), answered("x")) == 0.0, "nothing asked is nothing done"


def test_thoughts_are_no_part_of_an_answer_that_is_checked():
    """Otherwise the words that are asked for could be hidden there, and no thought could stand before JSON."""
    hidden = thinking("<think>sun, Score: 10</think>rain", "rain")
    assert worth(Instructions([{"id": "keywords:existence", "keywords": ["sun"]}]), hidden) == 0.0
    assert worth(Instructions([{"id": "punctuation:no_comma"}]), hidden) == 1.0

"""A backend: calls that fail change nothing, states are compared, MCP clients call the same functions."""

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.core.tools.backend import ABSENT, MOST_ARGUMENTS, Backend, ToolError, differences, tool
from rollenv.core.tools.call_readers import MOST_CALLS
from rollenv.core.tools.calls import CALL_FORMS, call_instructions, find_calls, write_calls
from rollenv.core.tools.function import MOST_TEXT


class Bank(Backend):
    """Accounts."""

    @tool
    def pay(self, account: str, amount: int, unit: Literal["eur", "usd"] = "eur") -> dict[str, int]:
        """Pay in.

        Args:
            account: whose.
            amount: how much.
            unit: of the amount.
        """
        balance = self.state["accounts"]
        balance[account] += amount
        if amount > 1000:
            raise ToolError("too much")
        if amount == 666:
            raise RuntimeError("a defect")
        return {account: balance[account]}

    @tool
    def history(self) -> str:
        """Everything."""
        return "x" * 10 * MOST_TEXT


def bank():
    return Bank({"accounts": {"ann": 1, "bob": 2}})


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("pay", {"account": "ann", "amount": 5000}, "too much"),
        ("pay", {"account": "ann", "amount": 666}, "RuntimeError: a defect"),
        ("pay", {"account": "eve", "amount": 1}, "KeyError"),
        ("pay", {"account": "ann"}, "amount: Field required"),
        ("pay", {"account": "ann", "amount": "many"}, "amount"),
        ("pay", {"account": "ann", "amount": 1, "to": "me"}, "to: Extra inputs"),
        ("pay", {"account": "ann", "amount": 1, "unit": "btc"}, "unit"),
        ("pay", {"account": ["ann"], "amount": {}}, "account"),
        ("pay", {"account": "a" * MOST_ARGUMENTS, "amount": 1}, "too long"),
        ("pay", {"account": {1, 2}}, "not JSON"),
        ("pay", {"account": "\ud800", "amount": 1}, "not JSON"),
        ("pay", {"account": "ann", "amount": float("nan")}, "not JSON"),
        ("pay", {"account": "ann", "amount": float("-inf")}, "not JSON"),
        ("pay", {"account": "ann", "amount": 10**4000}, "whole number above"),
        ("pay", {"account": "ann", "amount": [[-(10**19)]]}, "whole number above"),
        ("pya", {}, "did you mean pay?"),
        ("__init__", {}, "no function"),
        ("restore", {}, "no function"),
        ("x" * 1_000_000, {}, "no function"),
    ],
)
def test_a_call_that_fails_says_why_and_changes_nothing(name, arguments, says):
    backend = bank()
    before = backend.digest()
    answer = backend.call(name, arguments)
    assert answer.failed
    assert says in answer.text
    assert len(answer.text) < 3000
    assert backend.digest() == before


def test_a_call_that_works_changes_the_state_and_long_answers_are_cut():
    backend = bank()
    assert backend.call("pay", {"account": "ann", "amount": 4}) == ('{"ann": 5}', False)
    assert len(backend.call("history", {}).text) < MOST_TEXT + 100


def test_functions_that_are_not_offered_cannot_be_called():
    assert bank().call("pay", {"account": "ann", "amount": 1}, ["history"]).failed
    assert [schema["function"]["name"] for schema in bank().schemas(["history"])] == ["history"]


def test_schemas_say_what_the_docstring_says():
    about = {s["function"]["name"]: s["function"] for s in bank().schemas()}["pay"]
    assert about["description"] == "Pay in."
    assert about["parameters"]["properties"]["account"]["description"] == "whose."
    assert about["parameters"]["required"] == ["account", "amount"]


def test_twins_and_snapshots_share_nothing():
    backend = bank()
    snapshot, twin = backend.snapshot(), backend.twin()
    for _ in range(3):
        backend.call("pay", {"account": "ann", "amount": 1})
        assert twin.state["accounts"]["ann"] == 1
        backend.restore(snapshot)
        assert backend.digest() == twin.digest()


def test_differences_name_what_was_added_changed_and_removed():
    before, after = {"a": {"x": 1, "y": [1]}, "gone": 0}, {"a": {"x": 1, "y": [2]}, "new": {"z": 1}}
    found = {change.path: (change.before, change.after) for change in differences(before, after)}
    assert found == {("a", "y"): ([1], [2]), ("gone",): (0, ABSENT), ("new",): (ABSENT, {"z": 1})}
    assert differences(before, before) == []


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_CALLS = st.lists(
    st.tuples(st.from_regex(r"\A[a-z]{1,6}\Z"), st.dictionaries(st.from_regex(r"\A[b-e]{1,3}\Z"), _VALUES, max_size=3)),
    min_size=1,
    max_size=4,
)


@pytest.mark.combinations
@pytest.mark.parametrize("form", CALL_FORMS)
@given(calls=_CALLS)
def test_calls_are_read_as_they_were_written_in_every_form(form, calls):
    text = write_calls(calls, form)
    if "tool_call>" in json.dumps(calls):
        return
    found, around = find_calls(text, form)
    if form == "python" and any(word in json.dumps(calls) for word in ("\\u0000", "\\ud")):
        return
    names = [call.name for call in found]
    keywords = {"as", "if", "in", "is", "or", "not", "and", "def", "del", "for", "try"}
    if form == "python" and keywords & {word for name, arguments in calls for word in (name, *arguments)}:
        return
    assert [(name, call.arguments) for name, call in zip(names, found, strict=True)] == calls
    assert around == ""


@pytest.mark.parametrize("form", CALL_FORMS)
@given(text=st.text(max_size=200) | st.text(alphabet='<>/tool_cal{}[]()"=,:1 \n', max_size=200))
def test_any_text_is_read_without_an_exception(form, text):
    calls, around = find_calls(text, form)
    assert isinstance(around, str)
    assert len(calls) <= MOST_CALLS + 1


@pytest.mark.combinations
@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "[" * 100_000,
        "[f(a=" + "[" * 90_000 + "])",
        "f(" + "-" * 90_000 + "1)",
        "[f(a=" + "1+" * 50_000 + "1)]",
        "f" + ".a" * 50_000 + "()",
        "[" + "f()," * 40_000 + "]",
        "[f(a=" + "9" * 90_000 + ")]",
        "[f(**{}), g(*a), h(lambda: 0)]",
        "<tool_call>" * 50_000,
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 20_000,
    ],
)
@pytest.mark.parametrize("form", CALL_FORMS)
def test_hostile_texts_cost_little_and_raise_nothing(form, text):
    calls, _ = find_calls(text, form)
    assert len(calls) <= MOST_CALLS + 1


def test_python_calls_are_never_run():
    calls, _ = find_calls("[f(a=__import__('os').getcwd()), g(b=open('x'))]", "python")
    assert all(call.problem for call in calls)


def test_a_prompt_lists_the_functions_except_for_native_calls():
    assert call_instructions(bank().schemas(), "native") == ""
    for form in ("hermes", "json", "python"):
        assert '"name": "pay"' in call_instructions(bank().schemas(), form)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.sampled_from(CALL_FORMS))
def test_no_text_in_a_call_ends_it(text, form):
    for value in (text, "</tool_call>" + text, "<tool_call>{}</tool_call>"):
        (found,), around = find_calls(write_calls([("pay", {"account": value})], form), form)
        assert (found.problem, found.arguments, around) == ("", {"account": value}, "")

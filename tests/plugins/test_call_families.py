"""The families of the page "Extend": forms of calls of another package, found by their entry point."""

import re
from pathlib import Path

import pytest
from packages import declare

from rollenv.core.plugins import entry_points
from rollenv.core.tools.call_readers import is_mark, marks
from rollenv.core.tools.calls import find_calls

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "extend.md").read_text()
FIRST = '<acme:call>{"name": "look", "arguments": {"x": 1}}</acme:call>'
SECOND = 'So: <|call_begin|>look <- {"x": 2}<|call_end|> And then?'
HERMES = '<tool_call>{"name": "look", "arguments": {"x": 3}}</tool_call>'


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with entry points."""
    with monkeypatch.context() as patch:

        def add(points: str) -> None:
            declare(tmp_path, "acme", f"[rollenv.calls]\n{points}")
            patch.syspath_prepend(str(tmp_path))
            entry_points.cache_clear()
            marks.cache_clear()

        yield add
    entry_points.cache_clear()
    marks.cache_clear()


def read(text):
    calls, around = find_calls(text)
    return [(call.problem, call.name, call.arguments) for call in calls], around


def test_a_package_adds_families(install, tmp_path):
    assert (read(FIRST)[0], is_mark("<|call_begin|>")) == ([], False)
    (tmp_path / "acme").mkdir()
    (code,) = re.findall(r"```python\n# acme/calls.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "acme" / "calls.py").write_text(code)
    (entry,) = re.findall(r'"rollenv.calls"\]\n(.*)', PAGE)
    install(entry.replace('"', ""))
    assert read(FIRST) == ([("", "look", {"x": 1})], "")
    assert read(SECOND) == ([("", "look", {"x": 2})], "So:  And then?")
    assert read(FIRST.replace("</acme:call>", "no</acme:call>"))[0][0][0]
    assert is_mark("<|call_begin|>")
    assert read(HERMES)[0] == [("", "look", {"x": 3})]


@pytest.mark.parametrize("entry", ["json:loads", "sys:version_info"])
def test_an_entry_that_is_no_table_of_families_is_reported_and_left_out(install, entry):
    install(f"wrong = {entry}")
    with pytest.warns(UserWarning, match=r"wrong of rollenv\.calls is no tuple"):
        assert read(HERMES)[0] == [("", "look", {"x": 3})]
    assert read("[TOOL_CALLS]look[ARGS]{}")[0] == [("", "look", {})]


def test_a_family_with_a_broken_pattern_is_reported_and_left_out(install, tmp_path):
    code = 'from rollenv.core.tools.call_readers import CallFamily\nFAMILIES = (CallFamily("Broken", pattern="("),)\n'
    (tmp_path / "broken_calls.py").write_text(code)
    install("broken = broken_calls:FAMILIES")
    with pytest.warns(UserWarning, match="broken = 'broken_calls:FAMILIES' .* cannot be loaded"):
        assert read(HERMES)[0] == [("", "look", {"x": 3})]


def test_a_call_behind_a_second_mark_without_end_is_read():
    """Granite 3 has one token before each list of calls and none behind it."""
    call = '<|tool_call|>[{"name": "look", "arguments": {}}]'
    assert read(call * 2) == ([("", "look", {})] * 2, "")


@pytest.mark.parametrize(
    "text",
    [
        'functools[{"name": "look", "arguments": {"x": 1}}]',
        '<|content_invoke_tool_json|>{"name": "look", "args": {"x": 1}}<|end_message|>',
        'function call<|role_sep|>\n{"name": "look", "arguments": {"x": 1}}',
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">{"x": 1}</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    ],
)
def test_marks_are_no_text(text):
    assert read(text) == ([("", "look", {"x": 1})], "")


@pytest.mark.parametrize(
    ("text", "names", "around"),
    [
        ('look\n{"x": "<tool_call>{}</tool_call>"}', ["look"], ""),
        ('look\n{"name": "go"}', ["look"], ""),
        ('all\nI look.>>>look\n{"x": 1}>>>go\n{}', ["look", "go"], "all\nI look."),
        ('Result\n{"x": 1}', [], 'Result\n{"x": 1}'),
        ('look\n{"x": 1}\nis what I saw.', [], 'look\n{"x": 1}\nis what I saw.'),
    ],
)
def test_a_known_name_in_a_line_before_json_is_a_call(text, names, around):
    """GLM-4 and Functionary 3.2 write no mark before the first call."""
    schemas = [{"type": "function", "function": {"name": name}} for name in ("look", "go")]
    calls, rest = find_calls(text, "hermes", schemas)
    assert ([call.name for call in calls if not call.problem], rest) == (names, around)
    (cut,), _ = find_calls('look\n{"x": 1', "hermes", schemas)
    assert (cut.name, bool(cut.problem)) == ("look", True)

"""Calls in the forms of the models that write them: all that was given is read, or the call is refused."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollenv
from rollenv.core.tools.calls import find_calls
from rollenv.core.tools.function import FunctionTool
from rollenv.core.wrappers import ToolEnvWrapper

CALLS: list[tuple[str, object]] = []


def note(text: str = "nothing", times: int = 1, tags: list[str] | None = None) -> str:
    """Note a text."""
    CALLS.append(("note", (text, times, tags)))
    return f"noted {text}"


def now() -> str:
    """Tell the time."""
    CALLS.append(("now", ()))
    return "noon"


SCHEMAS = FunctionTool(note, now).schemas()


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def _elements(given, opening, key, closing):
    """Parameters in elements, whose values are texts: only those that need it are JSON."""
    texts = {k: v if isinstance(v, str) else dumps(v) for k, v in given.items()}
    return opening + "".join(f"{key % k}\n{v}\n</parameter>\n" for k, v in texts.items()) + closing


def _gemma(value):
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else dumps(value)


#: How each family writes a call of ``note`` with these arguments.
FAMILIES = {
    "hermes": lambda a: f'<tool_call>\n{{"name": "note", "arguments": {dumps(a)}}}\n</tool_call>',
    "in a fence": lambda a: f'<tool_call>\n```json\n{{"name": "note", "arguments": {dumps(a)}}}\n```\n</tool_call>',
    "not closed": lambda a: f'<tool_call>{{"name": "note", "arguments": {dumps(a)}}}',
    "parameters": lambda a: dumps({"name": "note", "parameters": a}),
    "llama 3": lambda a: "<|python_tag|>" + dumps({"type": "function", "name": "note", "parameters": a}),
    "llama 3.1": lambda a: f"<function=note>{dumps(a)}</function>",
    "mistral": lambda a: "[TOOL_CALLS]" + dumps([{"name": "note", "arguments": a, "id": "abc123DEF"}]),
    "mistral 3": lambda a: f"[TOOL_CALLS]note[ARGS]{dumps(a)}",
    "kimi": lambda a: "<|tool_calls_section_begin|><|tool_call_begin|>functions.note:0<|tool_call_argument_begin|>"
    f"{dumps(a)}<|tool_call_end|><|tool_calls_section_end|>",
    "deepseek v3": lambda a: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>note\n```json\n"
    f"{dumps(a)}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek v3.1": lambda a: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>note<｜tool▁sep｜>"
    f"{dumps(a)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "gemma 4": lambda a: f"<|tool_call>call:note{_gemma(a)}<tool_call|>",
    "functiongemma": lambda a: "<start_function_call>"
    f"call:note{_gemma(a)}<end_function_call>".replace('<|"|>', "<escape>"),
    "longcat": lambda a: f'<longcat_tool_call>{{"name": "note", "arguments": {dumps(a)}}}</longcat_tool_call>',
    "internlm": lambda a: f'<|action_start|><|plugin|>{{"name": "note", "parameters": {dumps(a)}}}<|action_end|>',
    "gigachat": lambda a: f'<|function_call|>{{"name": "note", "arguments": {dumps(a)}}}',
    "apertus": lambda a: f'<|tools_prefix|>[{{"note": {dumps(a)}}}]<|tools_suffix|>',
    "step-3": lambda a: "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
    + re.sub("(</?)(?=parameter|invoke)", r"\1steptml:", _elements(a, '<invoke name="note">', '<parameter name="%s">',
                                                                  "</invoke>"))
    + "<｜tool_call_end｜><｜tool_calls_end｜>",
    "dots": lambda a: FAMILIES["minimax"](a).replace("minimax:tool_call", "dots_function_call"),
    "gemma 4, in JSON": lambda a: f"<|tool_call>call:note{dumps(a)}<tool_call|>",
    "muse": lambda a: re.sub("(</?)(?=parameter|invoke)", r"\1atem:", FAMILIES["minimax"](a)).replace(
        "minimax:tool_call", "atem:function_calls"
    ),
    "nemotron": lambda a: f"<TOOLCALL>{dumps([{'name': 'note', 'arguments': a}])}</TOOLCALL>",
    "granite": lambda a: f"<|tool_call|>{dumps([{'name': 'note', 'arguments': a}])}",
    "command": lambda a: "<|START_ACTION|>[\n    "
    f"{dumps({'tool_call_id': '0', 'tool_name': 'note', 'parameters': a})}\n]<|END_ACTION|>",
    "gpt-oss": lambda a: "<|channel|>commentary to=functions.note <|constrain|>json<|message|>" + dumps(a) + "<|call|>",
    "kimi k3": lambda a: '<|open|>tools<|sep|><|open|>call tool="note" index="1"<|sep|>' + "".join(
        f'<|open|>argument key="{k}" type="{"string" if isinstance(v, str) else "number"}"<|sep|>'
        f"{v if isinstance(v, str) else dumps(v)}<|close|>argument<|sep|>" for k, v in a.items()
    ) + "<|close|>call<|sep|><|close|>tools<|sep|>",
    "gem": lambda a: f"<tool_call><tool_name>note</tool_name><arguments>{dumps(a)}</arguments></tool_call>",
    "openai": lambda a: dumps({"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "note", "arguments": dumps(a)}}]}),
    "between words": lambda a: f"I note it.\n{dumps({'name': 'note', 'arguments': a})}\nThen I wait.",
    "behind a thought": lambda a: f"<think>now()?</think><tool_call>{dumps({'name': 'note', 'args': a})}</tool_call>",
    "qwen3-coder": lambda a: _elements(
        a, "<tool_call>\n<function=note>\n", "<parameter=%s>", "</function>\n</tool_call>"
    ),
    "seed": lambda a: _elements(
        a, "<seed:tool_call>\n<function=note>\n", "<parameter=%s>", "</function>\n</seed:tool_call>"
    ),
    "minimax": lambda a: _elements(a, '<minimax:tool_call>\n<invoke name="note">\n', '<parameter name="%s">',
                                   "</invoke>\n</minimax:tool_call>"),
    "deepseek v4": lambda a: re.sub("(</?)(?=parameter|invoke)", r"\1｜DSML｜", FAMILIES["minimax"](a)).replace(
        "minimax:tool_call", "｜DSML｜tool_calls"
    ),
    "deepseek v4.1": lambda a: FAMILIES["deepseek v4"](a).replace("tool_calls", "calls")
    .replace("｜DSML｜", "｜DSML｜ "),
    "minicpm 5": lambda a: re.sub("(</?)parameter", r"\1param", _elements(
        a, '<function name="note">', '<parameter name="%s">', "</function>")),
    "plamo 3": lambda a: "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
    "<|plamo:begin_tool_name:plamo|>note<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
    f"{dumps(a)}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
    "hy": lambda a: "<tool_calls>" + FAMILIES["glm"](a).replace("note", "note<tool_sep>", 1) + "</tool_calls>",
    "k2 horizon": lambda a: "<ifm|tool_calls>" + re.sub(
        "(</?)(tool_call|arg_key|arg_value)", r"\1ifm|\2", FAMILIES["glm"](a)) + "</ifm|tool_calls>",
    "glm": lambda a: "<tool_call>note\n" + "".join(
        f"<arg_key>{k}</arg_key>\n<arg_value>{v if isinstance(v, str) else dumps(v)}</arg_value>\n"
        for k, v in a.items()
    ) + "</tool_call>",
}  # fmt: skip
ELEMENTS = ("qwen3-coder", "seed", "minimax", "glm", "muse", "step-3", "dots")
ELEMENTS += ("deepseek v4", "deepseek v4.1", "k2 horizon", "minicpm 5", "hy")

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=15),
    st.sampled_from(
        ["a </tool_call> b", 'x", "times": 7', "[1, 2", "<think>", "{", "2", "null", "a\nb", "<function=now>"]
    ),
)
ARGUMENTS = st.fixed_dictionaries(
    {}, optional={"text": TEXTS, "times": st.integers(-9, 9), "tags": st.lists(TEXTS, max_size=2)}
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(given=ARGUMENTS)
def test_each_family_s_calls_keep_all_arguments(family, given):
    if family in ELEMENTS and ("<" in dumps(given) or any(v.strip() != v for v in [given.get("text", "")])):
        return  # elements hold texts as they are
    (call,), _ = find_calls(FAMILIES[family](given), "hermes", SCHEMAS)
    assert (call.problem, call.name, call.arguments) == ("", "note", given)


GIVEN = {"text": "spam", "times": 3}


@pytest.mark.parametrize(
    "call",
    [
        *({"name": "note", key: GIVEN} for key in ("args", "input", "kwargs", "params", "Arguments", "tool_input")),
        *({key: "note", "arguments": GIVEN} for key in ("tool", "tool_name", "function")),
        {"action": "note", "action_input": GIVEN},
        {"name": "note", **GIVEN},
        {"name": "note", "data": GIVEN},
        {"name": "note", "arguments": {}, "text": "spam"},
        {"name": "note", "arguments": {}, "args": GIVEN},
        {"name": "note", "id": 3},
        {"name": "note", "type": "spam"},
        {"function": {"name": "note"}, "arguments": GIVEN},
        {"function": {"name": "note", "arguments": {}}, "arguments": GIVEN},
        {"name": "note", "arguments": [GIVEN]},
        {"name": "note", "arguments": {"text": "spam", "time": 3}},
        [{"name": "note", "arguments": GIVEN}, {"note": "x"}],
    ],
    ids=dumps,
)
@pytest.mark.parametrize("wrap", ["<tool_call>%s</tool_call>", "[TOOL_CALLS]%s", '{"tool_calls": [%s]}'])
def test_no_call_is_carried_out_without_what_it_was_given(call, wrap):
    CALLS.clear()
    done = FunctionTool(note, now).execute_action(wrap % dumps(call))
    assert CALLS in ([], [("note", ("spam", 3, None))])
    assert done.is_valid
    assert done.has_error == (not CALLS)


@pytest.mark.parametrize(
    "action",
    [
        '<tool_call>{"name": "note", "arguments": {"text": "a", "text": "b"}}</tool_call>',
        '<tool_call>{"name": "now"} and {"text": "a"}</tool_call>',
        '<tool_call>{"name": "note"} "text": "a"</tool_call>',
        "<tool_call><function=note><parameter=text>a</function></tool_call>",
        "<tool_call><function=note><parameter=text>a</parameter><parameter=text>b</parameter></function></tool_call>",
        "<tool_call>note<arg_key>text</arg_key><arg_value>a</tool_call>",
        '<tool_call>{"name": "note", "arguments": {"text": "a"</tool_call>',
        '{"name": "note", "arguments": {"text": "a"',
        '[TOOL_CALLS]note[ARGS]{"text": "a"',
        '<|open|>call tool="note"<|sep|><|open|>argument key="text" type="string"<|sep|>a<|close|>call<|sep|>',
        '<|open|>call index="1"<|sep|><|close|>call<|sep|>',
        "<tool_call>",
    ],
)
def test_a_malformed_call_is_refused_with_a_word(action):
    CALLS.clear()
    done = FunctionTool(note, now).execute_action(action)
    assert (CALLS, done.has_error) == ([], True)
    assert len(done.observation) > 20


@pytest.mark.parametrize(
    "action",
    [
        "",
        "{}",
        '{"a": 1}',
        "<tool_cal>",
        "\\boxed{3}",
        '{"tool_calls',
        "now()",
        'She said "now".',
        '{"name": "Ann", "age": 3}',
        'The record is {"name": "Ann", "input": 5}.',
        '<think>I could say <tool_call>{"name": "now"}</tool_call>',
        '<think>{"name": "now", "arguments": {}}</think> Not yet.',
        "<|channel|>analysis<|message|>now()",
    ],
)
def test_words_records_and_thoughts_are_no_calls(action):
    assert find_calls(action, "hermes", SCHEMAS)[0] == []
    assert not FunctionTool(note, now).execute_action(action).is_valid


@pytest.mark.parametrize("arguments", ["null", '""', '"null"', "{}", "[]", '"{}"'])
def test_a_function_without_parameters_takes_every_form_of_nothing(arguments):
    (call,), _ = find_calls(f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>')
    assert (call.problem, call.arguments) == ("", {})


def test_several_calls_are_carried_out_in_order_until_none_is_left():
    env = ToolEnvWrapper(
        rollenv.make("game:GuessTheNumber-v0-easy"),
        [FunctionTool(note), FunctionTool(now)],
        1.0,
        0.5,
        -0.5,
        max_tool_uses=4,
    )
    env.reset(0)
    CALLS.clear()
    calls = [
        FAMILIES["hermes"]({"text": "a"}),
        '<tool_call>{"name": "nov"}</tool_call>',
        '<tool_call>{"name": "now"}</tool_call>',
    ]
    observation, reward, *_, info = env.step("\n".join(calls))
    assert [name for name, _ in CALLS] == ["note", "now"]
    assert observation == "1. note:\nnoted a\n2. nov:\nThere is no tool 'nov'; did you mean now?\n3. now:\nnoon"
    assert (reward, info["tool_use_counter"], info["tool_success_counter"]) == (3 + 0.5 - 0.5 + 0.5, 3, 2)
    observation, *_, info = env.step("\n".join(calls[2:] * 2))
    assert "not carried out: no tool calls are left" in info["tool_responses"][1]
    assert (info["tool_use_counter"], len(CALLS)) == (4, 3)


async def wait(text: str) -> str:
    """Wait.

    Args:
        text (str, optional): a text.
    """
    return f"waited for {text}"


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        ("é" * 10**6, "cut: 1000000 characters"),
        ({"城市": "维也纳"}, '{"城市": "维也纳"}'),
        ("a\ud800b", "a�b"),
        (b"\xff", "xff"),
    ],
)
def test_results_are_shown_as_text_of_bounded_length(returns, says):
    def give():
        """Give."""
        return returns

    observation = FunctionTool(give).execute_action('<tool_call>{"name": "give"}</tool_call>').observation
    assert says in observation
    assert len(observation.encode()) < 100_000


def test_async_functions_run_and_functions_that_exit_fail():
    def leave():
        """Leave."""
        raise SystemExit(3)

    tool = FunctionTool(wait, leave)
    said = tool.execute_action('<tool_call>{"name": "wait", "arguments": {"text": "it"}}</tool_call>')
    assert (said.has_error, said.observation) == (False, "waited for it")
    assert tool.execute_action('<tool_call>{"name": "leave"}</tool_call>').has_error
    about = tool.schemas()[0]["function"]["parameters"]["properties"]["text"]["description"]
    assert about == "a text."

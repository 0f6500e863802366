"""Tool calls in a stream, as servers number, name and cut them."""

import asyncio
import json

import pytest

from rollenv.agents.chat.replies import read_events, read_reply

LAMP, DOOR = '{"room": "lamp"}', '{"room": "door"}'
TWO = [("a", "turn_on", LAMP), ("b", "lock", DOOR)]
SAME = [("a", "turn_on", LAMP), ("b", "turn_on", DOOR)]
ONE = TWO[:1]
NO_IDS = [("call_0", "turn_on", LAMP), ("call_1", "lock", DOOR)]


def p(number=None, own=None, name=None, arguments=None):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {"index": number, "id": own, "function": function}
    return {key: value for key, value in piece.items() if value is not None}


def read(*pieces, together=False):
    """The calls of a stream that sends these pieces, one in each event or all in one."""
    deltas = [{"tool_calls": list(pieces)}] if together else [{"tool_calls": [piece]} for piece in pieces]

    async def lines():
        for delta in deltas:
            yield "data: " + json.dumps({"choices": [{"delta": delta}]})
        yield 'data: {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}'

    async def whole():
        return read_reply(await read_events(lines()))

    return [(call.id, call.name, call.arguments) for call in asyncio.run(whole()).calls]


STREAMS = {
    "numbered, whole": ([p(0, "a", "turn_on", LAMP), p(1, "b", "lock", DOOR)], TWO),
    "numbered, in pieces": ([p(0, "a", "turn_on", ""), p(0, None, None, LAMP[:7]), p(0, None, None, LAMP[7:]),
      p(1, "b", "lock", ""), p(1, None, None, DOOR)], TWO),
    "numbered, interleaved": ([p(0, "a", "turn_on", ""), p(1, "b", "lock", ""), p(0, None, None, LAMP),
      p(1, None, None, DOOR)], TWO),
    "numbered, one id for all": ([p(0, "a", "turn_on", LAMP), p(1, "a", "lock", DOOR)],
      [TWO[0], ("call_1", "lock", DOOR)]),
    "from 1": ([p(1, "a", "turn_on", LAMP[:7]), p(1, None, None, LAMP[7:]), p(2, "b", "lock", DOOR)], TWO),
    "with gaps": ([p(3, "a", "turn_on", LAMP[:7]), p(7, "b", "lock", DOOR), p(3, None, None, LAMP[7:])], TWO),
    "all 0": ([p(0, "a", "turn_on", LAMP), p(0, "b", "lock", DOOR)], TWO),
    "all 0, in pieces": ([p(0, "a", "turn_on", LAMP[:7]), p(0, None, None, LAMP[7:]), p(0, "b", "lock", DOOR[:7]),
      p(0, None, None, DOOR[7:])], TWO),
    "all 0, the same tool": ([p(0, "a", "turn_on", LAMP), p(0, "b", "turn_on", DOOR)], SAME),
    "all 0, without arguments": ([p(0, "a", "turn_on", ""), p(0, "b", "lock", "")],
      [("a", "turn_on", "{}"), ("b", "lock", "{}")]),
    "all 0, the first cut off": ([p(0, "a", "turn_on", LAMP[:7]), p(0, "b", "lock", DOOR)],
      [("a", "turn_on", LAMP[:7]), TWO[1]]),
    "no numbers": ([p(None, "a", "turn_on", LAMP), p(None, "b", "lock", DOOR)], TWO),
    "no numbers, by id": ([p(None, "a", "turn_on", LAMP[:7]), p(None, "b", "lock", DOOR[:7]),
      p(None, "a", None, LAMP[7:]), p(None, "b", None, DOOR[7:])], TWO),
    "no numbers, no ids": ([p(None, None, "turn_on", LAMP), p(None, None, "lock", DOOR)], NO_IDS),
    "no numbers, no ids, in pieces": ([p(name="turn_on", arguments=LAMP[:7]), p(arguments=LAMP[7:]),
      p(name="lock", arguments=DOOR[:7]), p(arguments=DOOR[7:])], NO_IDS),
    "no numbers, no ids, the same tool": ([p(name="turn_on", arguments=LAMP), p(name="turn_on", arguments=DOOR)],
      [("call_0", "turn_on", LAMP), ("call_1", "turn_on", DOOR)]),
    "no numbers, one id": ([p(None, "a", "turn_on", LAMP), p(None, "a", "lock", DOOR)],
      [TWO[0], ("call_1", "lock", DOOR)]),
    "the name in each piece": ([p(0, "a", "turn_on", LAMP[:7]), p(0, "a", "turn_on", LAMP[7:])], ONE),
    "the name in each piece, twice": ([p(0, "a", "turn_on", LAMP[:7]), p(0, "a", "turn_on", LAMP[7:]),
      p(1, "b", "lock", DOOR[:7]), p(1, "b", "lock", DOOR[7:])], TWO),
    "an own id for each piece": ([p(0, "a", "turn_on", LAMP[:7]), p(0, "x", "turn_on", LAMP[7:])], ONE),
    "an own id and no name": ([p(0, "a", "turn_on", LAMP[:7]), p(0, "x", None, LAMP[7:])], ONE),
    "the name in pieces": ([p(0, "a", "turn_"), p(0, None, "on"), p(0, None, None, LAMP)], ONE),
    "the name after the id": ([p(0, "a"), p(0, None, "turn_on", LAMP)], ONE),
    "the id after the name": ([p(0, None, "turn_on", ""), p(0, "a", None, LAMP)], ONE),
    "a last piece that repeats the head": ([p(0, "a", "turn_on", LAMP), p(0, "a", "turn_on", "")], ONE),
    "a last piece that repeats all": ([p(0, "a", "turn_on", LAMP[:7]), p(0, None, None, LAMP[7:]),
      p(0, "a", "turn_on", LAMP)], ONE),
    "pieces with numbers of their own": ([p(0, "a", "turn_on", LAMP[:7]), p(1, None, None, LAMP[7:])], ONE),
    "an object inside": ([p(0, "a", "f", '{"x": {}'), p(0, "a", "f", ', "y": {}'), p(0, "a", "f", "}")],
      [("a", "f", '{"x": {}, "y": {}}')]),
    "numbers that are none": ([p("0", "a", "turn_on", LAMP), p([1], "b", "lock", DOOR)], TWO),
}  # fmt: skip


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", STREAMS)
def test_streamed_calls_are_told_apart(name, together):
    pieces, wanted = STREAMS[name]
    assert read(*pieces, together=together) == wanted


def test_calls_with_one_id_are_all_kept():
    calls = [{"id": "call_1", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b", "c")]
    reply = read_reply({"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]})
    assert [call.name for call in reply.calls] == ["a", "b", "c"]
    assert len({call.id for call in reply.calls}) == 3


def test_what_a_stream_wants_back_is_put_together_and_can_be_sent():
    deltas = [
        {"reasoning": "Hm", "reasoning_details": [{"text": "H"}]},
        {"reasoning": "m.", "reasoning_details": [{"text": "m.", "at": float("nan")}]},
        {"tool_calls": [p(0, "a", "turn_on", "")]},
        {"tool_calls": [p(0, None, None, LAMP) | {"extra_content": {"signature": "s"}}]},
    ]

    async def whole():
        async def lines():
            for delta in deltas:
                yield "data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": "tool_calls"}]})

        return read_reply(await read_events(lines()))

    assert asyncio.run(whole()).echo == {
        "reasoning": "Hmm.",
        "reasoning_details": [{"text": "H"}, {"text": "m.", "at": "NaN"}],
        "tool_calls": [{"extra_content": {"signature": "s"}}],
    }

"""Chats of clients are found again in the tree of a session, whatever clients change in them, and never a wrong one."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from rollenv.agents.gateway.messages import FunctionCall, Message, ModelAnswer, ModelRequest
from rollenv.agents.gateway.tree import CallNode, CallTree, digest, in_lines, kinds

BASH = {"type": "function", "function": {"name": "bash", "description": "", "parameters": {"type": "object"}}}
SAID = ModelAnswer(
    "\n I look now. \n",
    tuple(FunctionCall(f"call_{i:032x}", "bash", '{ "command" :  "echo caf\\u00e9 1" }') for i in (1, 2)),
    " Let me think.\n\nThen act. ",
)
FIRST = (Message("system", "Be good."), Message("user", "Say hi."))


def compact(call):
    return replace(call, arguments=json.dumps(json.loads(call.arguments), separators=(",", ":"), ensure_ascii=False))


def spaced(call):
    return replace(call, arguments=json.dumps(json.loads(call.arguments)))


def results(*order, calls=SAID.calls):
    return tuple(Message("tool", f"result {i}", call_id=calls[i].id) for i in order)


VERBATIM = SAID.message
#: What fifteen clients send back of what was said, by the facts of each.
ECHOES = {
    "codex": (VERBATIM, (0, 1), "exact"),
    "claude-code": (replace(VERBATIM, calls=tuple(map(compact, SAID.calls))), (1, 0), "exact"),
    "opencode": (replace(VERBATIM, calls=tuple(map(compact, SAID.calls))), (0, 1), "exact"),
    "cline": (replace(VERBATIM, calls=tuple(map(compact, SAID.calls))), (0, 1), "exact"),
    "pi": (replace(VERBATIM, calls=tuple(map(compact, SAID.calls))), (0, 1), "exact"),
    "qwen-code": (
        replace(VERBATIM, calls=tuple(map(compact, SAID.calls)), reasoning=VERBATIM.reasoning.strip()),
        (0, 1),
        "reasoning_lost",
    ),
    "mini-swe-agent": (replace(VERBATIM, reasoning=""), (0, 1), "reasoning_lost"),
    "openai-agents chat": (replace(VERBATIM, reasoning=""), (0, 1), "reasoning_lost"),
    "openai-agents responses": (VERBATIM, (0, 1), "exact"),
    "langchain": (replace(VERBATIM, calls=tuple(map(spaced, SAID.calls)), reasoning=""), (0, 1), "reasoning_lost"),
    "pydantic-ai chat": (replace(VERBATIM, calls=tuple(map(compact, SAID.calls))), (0, 1), "exact"),
    "pydantic-ai messages": (replace(VERBATIM, calls=tuple(map(compact, SAID.calls))), (0, 1), "exact"),
    "inspect": (VERBATIM, (0, 1), "exact"),
    "aider": (VERBATIM, (), "exact"),
    "claude-code, bad JSON": (
        replace(VERBATIM, calls=tuple(replace(c, arguments='{"__unparsedToolInput":1}') for c in SAID.calls)),
        (0, 1),
        "by_id",
    ),
    "opencode, bad JSON": (
        replace(VERBATIM, calls=tuple(replace(c, name="invalid") for c in SAID.calls)),
        (0, 1),
        "by_id",
    ),
    "smolagents": (Message("assistant", f"Calling tools:\n[{{'id': '{SAID.calls[0].id}', ...}}]"), (), "by_id"),
    "text trimmed": (replace(VERBATIM, text="I look now."), (0, 1), "trimmed"),
}


def add(tree, messages, answer, tools=(BASH,), **tokens):
    request = ModelRequest(tuple(messages), tools=tuple(tools))
    position = tree.locate(request)
    tokens = {"delivered": True, "has_tools": bool(tools), "tail": (1,), "response_ids": (2,)} | tokens
    node = tree.node(position, answer, continues=position.extends, **tokens)
    tree.append(node, request.tools)
    return node


@pytest.mark.parametrize("client", ECHOES)
def test_what_a_client_sends_back_is_found_again(client):
    echo, order, how = ECHOES[client]
    tree = CallTree()
    first = add(tree, FIRST, SAID)
    chat = (*FIRST, echo, *results(*order), *(() if order else (Message("user", "on"),)))
    second = add(tree, chat, ModelAnswer("Done."))
    assert (second.parent, second.continues, dict(tree.matches)) == (first.number, True, {how: 1})
    third = tree.locate(ModelRequest((*chat, Message("assistant", "Done."), Message("user", "More")), tools=(BASH,)))
    assert third.parent is second
    assert kinds(tree) == ["main", "main"]


def test_results_stand_in_the_order_of_their_calls():
    tree = CallTree()
    add(tree, FIRST, SAID)
    position = tree.locate(ModelRequest((*FIRST, VERBATIM, *results(1, 0)), tools=(BASH,)))
    assert [message.text for message in position.context] == ["result 0", "result 1"]


@pytest.mark.parametrize(
    "chat",
    [
        (*FIRST, replace(VERBATIM, text="I look then.", calls=()), Message("user", "on")),
        (*FIRST, replace(VERBATIM, reasoning="Other thoughts.", calls=()), Message("user", "on")),
        (FIRST[0], Message("user", "Say ho."), VERBATIM, *results(0, 1)),
        (FIRST[0], FIRST[1], Message("user", "and more"), VERBATIM, *results(0, 1)),
        (FIRST[1], VERBATIM, *results(0, 1)),
        (*FIRST, Message("user", "The call failed.")),
    ],
)
def test_an_edited_history_is_a_new_prompt(chat):
    tree = CallTree()
    add(tree, FIRST, SAID)
    position = tree.locate(ModelRequest(tuple(chat), tools=(BASH,)))
    assert (position.parent, position.extends) == (None, False)


def test_other_tools_are_another_prompt_of_the_same_line():
    tree = CallTree()
    first = add(tree, FIRST, SAID)
    chat = (*FIRST, VERBATIM, *results(0, 1), Message("user", "Summarise."))
    position = tree.locate(ModelRequest(chat))
    assert position.parent is first
    assert not position.extends


def test_a_foreign_answer_is_context():
    tree = CallTree()
    first = add(tree, FIRST, ModelAnswer("Mine."))
    chat = (
        *FIRST,
        Message("assistant", "Mine."),
        Message("user", "a"),
        Message("assistant", "Not mine."),
        Message("user", "b"),
    )
    second = add(tree, chat, ModelAnswer("Yes."))
    assert (second.parent, second.continues) == (first.number, True)
    third = tree.locate(ModelRequest((*chat, Message("assistant", "Yes."), Message("user", "c")), tools=(BASH,)))
    assert third.parent is second
    assert third.extends


def test_random_trees_have_no_false_merges():
    """Clients fork, ask the same twice, get equal answers, drop reasoning and reorder results."""
    for seed in range(500):
        rng = random.Random(seed)
        tree, chats = CallTree(), [(FIRST, None)]
        for number in range(rng.randrange(2, 14)):
            chat, parent = chats[rng.randrange(len(chats))]
            calls = tuple(
                FunctionCall(f"call_{rng.getrandbits(128):032x}", "bash", rng.choice(['{"a": 1}', '{"a":1 }', "{bad"]))
                for _ in range(rng.randrange(3))
            )
            answer = ModelAnswer(
                rng.choice(["", "yes", "no"]) if calls else f"{rng.choice('xy')} {number}",
                calls,
                rng.choice(["", "hm"]),
            )
            node = add(tree, chat, answer)
            assert node.parent == parent, seed
            echo = (
                replace(answer.message, calls=tuple(map(spaced, calls)))
                if not any(c.arguments == "{bad" for c in calls)
                else answer.message
            )
            if rng.random() < 0.5:
                echo = replace(echo, reasoning="")
            order = list(range(len(calls)))
            rng.shuffle(order)
            behind = results(*order, calls=calls) if calls else (Message("user", rng.choice(["on", "next"])),)
            chats.append(((*chat, echo, *behind), node.number))
        assert "unknown" not in tree.matches
        again = CallTree()
        for node in tree.nodes:
            again.append(CallNode.from_dict(json.loads(json.dumps(node.to_dict()))), [BASH])
        assert again.nodes == tree.nodes
        assert sorted(node.number for node in in_lines(tree)) == list(range(len(tree.nodes)))


def test_lines_have_their_kinds():
    tree = CallTree()
    title = add(tree, (Message("system", "Write a title."), Message("user", "Say hi.")), ModelAnswer("Hi"), tools=())
    main = add(tree, FIRST, SAID, began=0.0, ended=1.0)
    child = add(tree, (Message("system", "You are a helper."), Message("user", "Count.")), ModelAnswer("3"))
    lost = add(tree, (*FIRST, VERBATIM, *results(0, 1)), ModelAnswer("cut off"), delivered=False)
    retried = add(tree, (*FIRST, VERBATIM, *results(0, 1)), ModelAnswer("bad"), began=2.0, ended=3.0)
    taken = add(tree, (*FIRST, VERBATIM, *results(0, 1)), ModelAnswer("good"), began=4.0, ended=5.0)
    goes_on = (*FIRST, VERBATIM, *results(0, 1), Message("assistant", "good"), Message("user", "Summarise all of it."))
    summary = "The user wants a greeting, and two calls were made."
    compaction = add(tree, goes_on, ModelAnswer(summary), tools=())
    after = add(tree, (FIRST[0], Message("user", f"So far: {summary}")), ModelAnswer("Going on."))
    nodes = [title, main, child, lost, retried, taken, compaction, after]
    assert [kinds(tree)[node.number] for node in nodes] == [
        "aside", "main", "subagent", "cancelled", "superseded", "main", "compaction", "main",
    ]  # fmt: skip


def test_a_summary_in_a_call_of_its_own_joins_two_lines():
    """opencode and pi ask for the summary under another system prompt."""
    tree = CallTree()
    add(tree, FIRST, SAID)
    summary = "A long summary of all that has happened up to now."
    add(tree, (Message("system", "Summarise."), Message("user", "The whole chat.")), ModelAnswer(summary), tools=())
    add(
        tree,
        (*FIRST[:1], Message("user", "What did we do?"), Message("assistant", summary), Message("user", "Go on.")),
        ModelAnswer("ok"),
    )
    assert kinds(tree) == ["main", "compaction", "main"]


def test_without_tools_the_longest_line_is_the_main_one_and_no_other_is_an_aside():
    tree = CallTree()
    add(tree, (Message("user", "title?"),), ModelAnswer("t"), tools=())
    first = add(tree, FIRST, ModelAnswer("ls"), tools=())
    add(tree, (*FIRST, first.answer.message, Message("user", "files")), ModelAnswer("done"), tools=())
    assert kinds(tree) == ["subagent", "main", "main"]


def test_equal_data_have_equal_hashes():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest([1], b"x") != digest([1], b"y")


@pytest.mark.parametrize(("offered", "asked", "said", "kind"), [
    ("count", "Count.", "Three.", "subagent"),  # a call's argument asks it
    ("count", "How many are there?", "There are three of them, I think.", "subagent"),  # its answer comes back
    ("bash", "Something else", "Fine.", "subagent"),  # it is an agent of the same kind
    ("remember", "How many are there?", "The user likes short answers, I think.", "aside"),
])  # fmt: skip
def test_a_line_with_tools_that_nobody_asks_or_hears_is_an_aside(offered, asked, said, kind):
    tree = CallTree()
    tools = {name: ({**BASH, "function": {**BASH["function"], "name": name}},) for name in ("count", "remember")}
    chat = (Message("user", "How many are there?"),)
    call = FunctionCall("call_" + "1" * 32, "bash", json.dumps({"for": {"task": "Count."}}))
    add(tree, chat, ModelAnswer("", (call,)))
    helper = (Message("system", "You help."), Message("user", asked))
    add(tree, helper, ModelAnswer(said), tools.get(offered, (BASH,)))
    heard = f"A helper says: {said}" if kind == "subagent" else "3"
    add(tree, (*chat, Message("assistant", "", (call,)), Message("tool", heard, call_id=call.id)), ModelAnswer("3"))
    assert kinds(tree) == ["main", kind, "main"]

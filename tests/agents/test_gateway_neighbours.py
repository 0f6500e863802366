"""Chats as clients send them again, in three dialects, streamed and not: each goes on from the tokens before."""

from __future__ import annotations

import asyncio
import json

import anthropic
import openai
import pytest
from gateway_calls import BASH, CALL, call_over_http, held, post, scripted, until

from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.gateway.session import Caps

ON = {"role": "user", "content": "Go on."}
NOTE = {"role": "assistant", "content": "A note of another model."}
PARAMETERS = BASH["function"]["parameters"]
TOOLS = {
    "chat/completions": [BASH],
    "responses": [{"type": "function", "name": "bash", "parameters": PARAMETERS}],
    "messages": [{"name": "bash", "input_schema": PARAMETERS}],
}


class Client:
    """An agent that keeps its chat in the form of a dialect, and appends what its SDK received."""

    def __init__(self, session, path, stream, tools=None):
        self.path, self.stream, self.tools = path, stream, TOOLS[path] if tools is None else tools
        self.openai = openai.OpenAI(base_url=session.base_url, api_key="k", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=session.anthropic_url, api_key="k", max_retries=0)
        self.chat = [{"role": "user", "content": "Find it."}]
        self.call = None

    def ask(self, *more):
        self.chat += more
        said = getattr(self, f"_{self.path.split('/')[0]}")()
        self.chat += said
        return said

    def _chat(self):
        asked = {"model": "m", "messages": self.chat, "tools": self.tools}
        if not self.stream:
            message = self.openai.chat.completions.create(**asked).choices[0].message.model_dump(exclude_none=True)
        else:
            message, calls = {"role": "assistant", "content": ""}, {}
            for chunk in self.openai.chat.completions.create(**asked, stream=True):
                delta = chunk.choices[0].delta.model_dump(exclude_none=True) if chunk.choices else {}
                message["content"] += delta.get("content", "")
                for piece in delta.get("tool_calls", ()):
                    if "id" in piece:
                        calls[piece["index"]] = piece
                        continue
                    for key, more in piece["function"].items():
                        calls[piece["index"]]["function"][key] += more
            message |= {"tool_calls": [*calls.values()]} if calls else {}
        self.call = message.get("tool_calls", [None])[0]
        return [message]

    def _responses(self):
        asked = {"model": "m", "input": self.chat, "tools": self.tools}
        if self.stream:
            *_, last = self.openai.responses.create(**asked, stream=True)
            response = last.response
        else:
            response = self.openai.responses.create(**asked)
        output = [item.model_dump(mode="json", exclude_none=True) for item in response.output]
        self.call = next((item for item in output if "call_id" in item), None)
        return output

    def _messages(self):
        asked = {"model": "m", "messages": self.chat, "tools": self.tools, "max_tokens": 500}
        if self.stream:
            with self.anthropic.messages.stream(**asked) as events:
                message = events.get_final_message()
        else:
            message = self.anthropic.messages.create(**asked)
        content = [block.model_dump(exclude_none=True) for block in message.content]
        self.call = next((block for block in content if block["type"] == "tool_use"), None)
        return [{"role": "assistant", "content": content}]

    def result(self, content):
        """The result of the last call."""
        if self.path == "responses":
            return {"type": "function_call_output", "call_id": self.call["call_id"], "output": content}
        if self.path == "messages":
            block = {"type": "tool_result", "tool_use_id": self.call["id"], "content": content}
            return {"role": "user", "content": [block]}
        return {"role": "tool", "tool_call_id": self.call["id"], "content": content}


FORMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
PATHS = pytest.mark.parametrize("path", TOOLS)


def play(path, stream, says, turns):
    """Play a client; return its session, whose prompts are decoded to texts, and the engine's prompts."""
    agent = scripted(says)
    with Gateway(agent) as gateway:
        session = gateway.open()
        turns(Client(session, path, stream))
        nodes = session.tree.nodes
        assert [session.tree.prompt_ids(node) for node in nodes] == agent.engine.prompts
        for node in nodes[1:]:
            before = session.tree.prompt_ids(nodes[node.parent]) + nodes[node.parent].response_ids
            assert node.continues
            assert session.tree.prompt_ids(node)[: len(before)] == before
        return session, [agent.engine.tokenizer.decode(prompt) for prompt in agent.engine.prompts]


def in_line(session):
    return [node.parent for node in session.tree.nodes], len(session.samples())


@PATHS
def test_a_document_stands_in_every_later_prompt(path):
    documents = {
        "chat/completions": {"type": "file", "file": {"filename": "a.pdf", "file_id": "f"}},
        "responses": {"type": "input_file", "filename": "a.pdf", "file_id": "f"},
        "messages": {"type": "document", "title": "a.pdf", "source": {"type": "file", "file_id": "f"}},
    }

    def turns(client):
        client.ask()
        client.ask(client.result([documents[path]]))
        client.ask(ON)
        client.ask({"role": "user", "content": [documents[path], {"type": "text", "text": "And this?"}]})

    session, prompts = play(path, True, [CALL, "Read.", "Done.", "Yes."], turns)
    assert in_line(session) == ([None, 0, 1, 2], 1)
    assert [prompt.count(": a.pdf, f]") for prompt in prompts] == [0, 1, 1, 2]


@FORMS
@PATHS
def test_nothing_or_a_foreign_answer_after_an_answer_goes_on_from_it(path, stream):
    def turns(client):
        client.ask()
        client.ask()
        client.ask(NOTE, ON)
        client.ask(ON, NOTE, ON)
        client.ask(NOTE)
        client.ask(ON)

    session, prompts = play(path, stream, lambda number: f"Answer {number}.", turns)
    assert in_line(session) == ([None, 0, 1, 2, 3, 4], 1)
    for number in range(5):
        assert prompts[-1].count(f"Answer {number}.") == 1
    assert prompts[-1].count(NOTE["content"]) == 3
    (sample,) = session.samples()
    assert sum(sample.mask) == session.drawn_tokens


@PATHS
@pytest.mark.parametrize("shape", ["gemma", "mistral"])
def test_answers_in_a_row_are_one_where_a_template_wants_turns(path, shape):
    agent = scripted(lambda number: f"Answer {number}.", shape)
    with Gateway(agent) as gateway:
        client = Client(session := gateway.open(), path, False, [])
        client.ask()
        client.ask()
        client.ask(ON)
        client.ask(NOTE, ON)
        prompt = agent.engine.tokenizer.decode(agent.engine.prompts[-1])
        assert [prompt.count(f"Answer {number}.") for number in range(3)] == [1, 1, 1]
        assert prompt.count(NOTE["content"]) == 1
        assert [node.parent for node in session.tree.nodes] == [None, 0, 1, 2]


@FORMS
@PATHS
def test_bad_json_comes_back_without_marks_and_goes_on(path, stream):
    bad = '{"command": "echo un'

    def turns(client):
        client.ask()
        assert "</tool_call>" not in json.dumps(client.chat)
        client.ask(client.result("no JSON"))

    said = f'<tool_call>\n{{"name": "bash", "arguments": {bad}\n</tool_call>'
    session, _ = play(path, stream, [said, "Done."], turns)
    assert in_line(session) == ([None, 0], 1)
    assert session.tree.nodes[0].answer.calls[0].arguments == bad


# -- previous_response_id ----------------------------------------------------------------------------------------------

SYSTEM = {"role": "system", "content": "You list files."}
TASK = {"role": "user", "content": "Find it."}
FIRST = {"role": "assistant", "content": "Answer 0."}
#: New items with the id of the first answer, and what the model reads between the system prompt and its answer.
PREVIOUS = {
    "new items": ([ON], [TASK, FIRST, ON]),
    "nothing": ([], [TASK, FIRST]),
    "a note": ([NOTE, ON], [TASK, FIRST, NOTE, ON]),
    "a note at the end": ([ON, NOTE], [TASK, FIRST, ON, NOTE]),
    "the answer again": ([FIRST, ON], [TASK, FIRST, ON]),
    "the answer by reference": (["msg", ON], [TASK, FIRST, ON]),
    "the whole chat": ([SYSTEM, TASK, FIRST, ON], [TASK, FIRST, ON]),
    "the whole chat, edited": ([SYSTEM, TASK, NOTE, ON], [TASK, NOTE, ON]),
    "the task again": ([TASK], [TASK, FIRST, TASK]),
    "another system prompt": ([{**SYSTEM, "content": "You count."}, NOTE, ON], [TASK, FIRST, NOTE, ON]),
}


@pytest.mark.parametrize("name", PREVIOUS)
def test_the_chat_of_the_previous_response_is_kept_and_not_doubled(name):
    items, wanted = PREVIOUS[name]
    agent = scripted(lambda number: f"Answer {number}.")

    async def work(gateway, client):
        session = gateway.open()
        first = (await post(client, session, "responses", json={"model": "m", "input": [SYSTEM, TASK]})).json()
        new = [{"type": "item_reference", "id": first["output"][0]["id"]} if item == "msg" else item for item in items]
        sent = {"model": "m", "input": new, "previous_response_id": first["id"]}
        answered = await post(client, session, "responses", json=sent)
        assert answered.status_code == 200, answered.text
        node = session.tree.nodes[1]
        messages = [message for message, _ in session.tree.chat(node)]
        return [(message.role, message.text) for message in messages], node.parent

    messages, parent = call_over_http(work, agent)
    system = next((item for item in items if isinstance(item, dict) and item["role"] == "system"), SYSTEM)
    assert messages == [(item["role"], item["content"]) for item in (system, *wanted)]
    assert (parent == 0) == (FIRST in wanted and system == SYSTEM)


# -- retries -----------------------------------------------------------------------------------------------------------

RETRY = {"x-stainless-retry-count": "1"}


@PATHS
@pytest.mark.parametrize("why", ["crowded", "unread", "failed", "cancelled"])
def test_a_retry_of_a_refused_call_gets_an_answer_of_its_own(path, why):
    """The client asks the same twice; its second call fails and is sent again, marked."""
    agent = held()
    sent = {"model": "m", "max_tokens": 99, "messages": [TASK], "input": [TASK]}

    async def work(gateway, client):
        session = gateway.open(caps=Caps(parallel=1, waiting=1))
        agent.engine.held.set()
        await post(client, session, path, json=sent)
        agent.engine.held.clear()
        others = []
        if why == "unread":
            session.reading = 1
        elif why == "crowded":
            others = [post(client, session, path, json={**sent, "model": f"{n}"}) for n in range(2)]
            await until(lambda: len(session._pending) == 2)
        elif why == "failed":
            agent.engine.says, says = None, agent.engine.says
            agent.engine.held.set()
        if why == "cancelled":
            lost = post(client, session, path, json=sent)
            await until(lambda: agent.engine.running)
            lost.cancel()
            await until(lambda: session.counts["cancelled"])
        else:
            refused = await post(client, session, path, json=sent)
            assert refused.status_code >= 500
        session.reading = 0
        agent.engine.held.set()
        if why == "failed":
            agent.engine.says = says
        await asyncio.gather(*others)
        answered = await post(client, session, path, json=sent, headers=RETRY)
        again = await post(client, session, path, json=sent, headers=RETRY)
        return session, answered.json()["id"], again.json()["id"]

    session, answered, again = call_over_http(work, agent)
    assert answered == again
    assert answered.endswith(session.tree.nodes[-1].answer.id)
    assert len({node.answer.id for node in session.tree.nodes}) == (4 if why == "crowded" else 2)


@PATHS
@pytest.mark.parametrize("why", ["crowded", "unread"])
def test_a_retry_of_a_refused_twin_gets_an_answer_of_its_own(path, why):
    """Equal calls at once, as sub-agents make them: one is refused while another runs, and comes again."""
    agent = held()
    sent = {"model": "m", "max_tokens": 99, "messages": [TASK], "input": [TASK]}

    async def work(gateway, client):
        session = gateway.open(caps=Caps(parallel=1, waiting=1))
        twins = [post(client, session, path, json=sent) for _ in range(2)]
        await until(lambda: len(session._pending) == 2)
        session.reading = int(why == "unread")
        assert (await post(client, session, path, json=sent)).status_code >= 500
        session.reading = 0
        agent.engine.held.set()
        if why == "crowded":
            await asyncio.gather(*twins)
        answered = await post(client, session, path, json=sent, headers=RETRY)
        again = await post(client, session, path, json=sent, headers=RETRY)
        return [a.json()["id"] for a in (*await asyncio.gather(*twins), answered)], again.json()["id"]

    ids, again = call_over_http(work, agent)
    assert len(set(ids)) == 3
    assert again == ids[2]


@PATHS
def test_a_retry_of_an_answered_call_gets_its_answer(path):
    sent = {"model": "m", "max_tokens": 99, "messages": [TASK], "input": [TASK]}

    async def work(gateway, client):
        session = gateway.open()
        asked = [await post(client, session, path, json=sent, headers=head) for head in ({}, RETRY, {}, RETRY)]
        return [answer.json()["id"] for answer in asked]

    first, again, other, last = call_over_http(work)
    assert (first, other) == (again, last)
    assert first != other

"""An endpoint in three dialects that answers with given commands, then a last text, and records what was asked."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: Names under which harnesses offer a shell, and what they call its argument.
SHELLS = ("bash", "Bash", "shell", "shell_command", "exec_command", "run_shell_command", "execute")


class Endpoint:
    """A server on the loopback.

    Args:
        commands: called one after another, through whatever shell is offered.
        last: the end: a text, or the name and arguments of a call.
    """

    def __init__(self, commands, last="All is done."):
        self.commands, self.last, self.asked, self.paths, self.keys = list(commands), last, [], [], []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_HEAD(self):
                self.send(b"", "text/plain")

            def do_GET(self):
                model = {"id": "policy", "object": "model", "slug": "policy"}
                self.send(json.dumps({"object": "list", "data": [model], "models": []}).encode())

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.paths.append(self.path)
                endpoint.keys.append(self.headers.get("x-api-key") or self.headers.get("Authorization", "")[7:])
                path = self.path.partition("?")[0]
                if path.endswith("/count_tokens"):
                    return self.send(b'{"input_tokens": 100}')
                answer = {"completions": chat, "responses": responses, "messages": messages}.get(path.rsplit("/")[-1])
                if answer is None:
                    return self.send(b'{"error": {"message": "no such path"}}', status=404)
                endpoint.asked.append(body)
                said = endpoint.answer(body)
                events, whole = answer(*said, f"{len(endpoint.asked):04d}")
                if not body.get("stream"):
                    return self.send(json.dumps(whole).encode())
                lines = []
                for event in events:
                    name = f"event: {event['type']}\n" if "type" in event else ""
                    lines.append(f"{name}data: {json.dumps(event)}\n\n")
                lines += ["data: [DONE]\n\n"] if answer is chat else []
                self.send("".join(lines).encode(), "text/event-stream")

            def send(self, data, kind="application/json", status=200):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"127.0.0.1:{self.server.server_address[1]}"

    def answer(self, body):
        """A text, and the name and arguments of a call or None. Calls without tools get a text."""
        tools = {tool["name"]: tool for each in body.get("tools") or () for tool in flat(each)}
        shell = next((name for name in SHELLS if name in tools), None)
        done = json.dumps(body.get("messages") or body.get("input")).count("call_id")
        if shell and self.commands:
            schema = tools[shell].get("parameters") or tools[shell].get("input_schema")
            argument = next(name for name in ("command", "cmd") if name in schema["properties"])
            command = self.commands.pop(0)
            kind = schema["properties"][argument].get("type")
            given = {argument: ["bash", "-c", command] if kind == "array" else command}
            for name in schema.get("required", ()):
                given.setdefault(name, False if schema["properties"][name].get("type") == "boolean" else "a command")
            return f"I work, {done}.", (shell, given)
        if not isinstance(self.last, str) and self.last[0] in tools:
            return "That is all.", self.last
        return (self.last if isinstance(self.last, str) else "All is done."), None

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def flat(tool):
    """The functions of a tool, which may be a group of them."""
    if tool.get("type") == "namespace":
        return []
    found = tool.get("function", tool)
    return [found] if "name" in found else []


def chat(text, call, number):
    calls = (
        [
            {
                "id": f"call_id_{number}",
                "type": "function",
                "function": {"name": call[0], "arguments": json.dumps(call[1])},
            }
        ]
        if call
        else []
    )
    finish = "tool_calls" if call else "stop"
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    about = {"id": f"chat-{number}", "created": 1, "model": "policy"}
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    whole = {
        **about,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }
    deltas = [
        {"role": "assistant", "content": ""},
        {"content": text},
        *({"tool_calls": [{"index": 0, **each}]} for each in calls),
    ]
    chunk = {**about, "object": "chat.completion.chunk"}
    events = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return [*events, {**chunk, "choices": [], "usage": usage}], whole


def responses(text, call, number):
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    items = [{"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}]
    if call:
        items.append(
            {
                "id": f"fc_{number}",
                "type": "function_call",
                "status": "completed",
                "call_id": f"call_id_{number}",
                "name": call[0],
                "arguments": json.dumps(call[1]),
            }
        )
    details = {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110, **details}
    about = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": "policy",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
    }
    whole = {**about, "status": "completed", "output": items, "usage": usage}
    events = [{"type": "response.created", "response": {**about, "status": "in_progress", "output": [], "usage": None}}]
    for i, item in enumerate(items):
        at = {"output_index": i, "item_id": item["id"]}
        events.append(
            {
                "type": "response.output_item.added",
                "output_index": i,
                "item": {
                    **item,
                    "status": "in_progress",
                    **({"content": []} if item["type"] == "message" else {"arguments": ""}),
                },
            }
        )
        if item["type"] == "message":
            events += [
                {"type": "response.content_part.added", **at, "content_index": 0, "part": {**part, "text": ""}},
                {"type": "response.output_text.delta", **at, "content_index": 0, "delta": text, "logprobs": []},
                {"type": "response.output_text.done", **at, "content_index": 0, "text": text, "logprobs": []},
                {"type": "response.content_part.done", **at, "content_index": 0, "part": part},
            ]
        else:
            events += [
                {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]},
                {
                    "type": "response.function_call_arguments.done",
                    **at,
                    "name": item["name"],
                    "arguments": item["arguments"],
                },
            ]
        events.append({"type": "response.output_item.done", "output_index": i, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return [{**event, "sequence_number": i} for i, event in enumerate(events)], whole


def messages(text, call, number):
    blocks = [{"type": "text", "text": text}]
    if call:
        blocks.append({"type": "tool_use", "id": f"toolu_call_id_{number}", "name": call[0], "input": call[1]})
    reason = "tool_use" if call else "end_turn"
    about = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "policy", "stop_sequence": None}
    usage = {"input_tokens": 100, "output_tokens": 10}
    events = [{"type": "message_start", "message": {**about, "content": [], "stop_reason": None, "usage": usage}}]
    for i, block in enumerate(blocks):
        use = block["type"] == "tool_use"
        delta = (
            {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            if use
            else {"type": "text_delta", "text": text}
        )
        events += [
            {
                "type": "content_block_start",
                "index": i,
                "content_block": {**block, **({"input": {}} if use else {"text": ""})},
            },
            {"type": "content_block_delta", "index": i, "delta": delta},
            {"type": "content_block_stop", "index": i},
        ]
    events.append({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage})
    return [*events, {"type": "message_stop"}], {**about, "content": blocks, "stop_reason": reason, "usage": usage}

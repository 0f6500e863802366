"""An endpoint in three dialects that answers with given commands, then a last text, and records what was asked."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rollenv.agents.gateway.dialects import dialects
from rollenv.agents.gateway.messages import FunctionCall, ModelAnswer

#: The dialect of each path's last word.
DIALECTS = {"completions": "chat", "responses": "responses", "messages": "messages"}

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
                name = DIALECTS.get(path.rsplit("/")[-1])
                if name is None:
                    return self.send(b'{"error": {"message": "no such path"}}', status=404)
                endpoint.asked.append(body)
                text, call = endpoint.answer(body)
                calls = (FunctionCall(f"call_id_{len(endpoint.asked)}", call[0], json.dumps(call[1])),) if call else ()
                told = {"finish": "tool_calls" if calls else "stop", "prompt_tokens": 100, "completion_tokens": 10}
                dialect, answer = dialects()[name], ModelAnswer(text, calls, created=1, **told)
                request = dialect.read(body, lambda _: None)
                if not request.stream:
                    return self.send(json.dumps(dialect.response_body(answer, request)).encode())
                self.send(b"".join(dialect.response_events(answer, request)), "text/event-stream")

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

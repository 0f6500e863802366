"""The client of MCP servers: sessions that a server forgets, pages of tools, schemas, and all kinds of results."""

import contextlib
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer

import pytest
from listening import Answers

from rollenv.core.tools.call_readers import ToolCall
from rollenv.core.tools.calls import find_calls, unknown_argument
from rollenv.core.tools.mcp import MCPTool

TEXT = {"type": "string"}
EMPTY = {"type": "object", "properties": {}}


class Server:
    """A server over HTTP whose sessions can be forgotten.

    Args:
        results: what its tools answer, by name; a tool without one tells its arguments.
        pages: the names of the tools on each page.
        forgotten: status and text of the answer to an unknown session.
    """

    def __init__(self, pages=(("now",),), results=None, schemas=None, forgotten=(404, "Session not found"), port=0):
        self.sessions, self.begun, self.calls, self.cursors = set(), 0, 0, []
        self.pages, self.results, self.schemas, self.forgotten = pages, results or {}, schemas or {}, forgotten
        self.stopped, outer = False, self

        class Handler(Answers):
            protocol_version = "HTTP/1.1"

            def answer(self, status, data=None, session=""):
                body = json.dumps(data).encode() if data else b""
                self.send_response(status)
                self.send_header("content-type", "application/json")
                if session:
                    self.send_header("mcp-session-id", session)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                self.answer(404)  # of a server that sends nothing by itself

            do_DELETE = do_GET

            def do_POST(self):
                if outer.stopped:
                    self.close_connection = True
                    return None
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                head = {"jsonrpc": "2.0", "id": asked.get("id")}
                if asked["method"] == "initialize":
                    outer.begun += 1
                    outer.sessions.add(new := uuid.uuid4().hex)
                    about = {"serverInfo": {"name": "s", "version": "1"}, "capabilities": {"tools": {}}}
                    return self.answer(200, {**head, "result": {"protocolVersion": "2025-06-18", **about}}, new)
                if self.headers.get("mcp-session-id") not in outer.sessions:
                    status, text = outer.forgotten
                    return self.answer(status, {**head, "error": {"code": -32000, "message": text}})
                if "id" not in asked:
                    return self.answer(202)
                return self.answer(200, {**head, **outer.asked(asked["method"], asked.get("params") or {})})

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def asked(self, method, params):
        if method == "tools/list":
            self.cursors.append(params.get("cursor"))
            page = int(params.get("cursor") or 0)
            names = self.pages[min(page, len(self.pages) - 1)]
            tools = [{"name": name, "inputSchema": self.schemas.get(name, EMPTY)} for name in names]
            last = page + 1 >= len(self.pages)
            return {"result": {"tools": tools} | ({} if last else {"nextCursor": str(page + 1)})}
        self.calls += 1
        if params["name"] == "refuses":
            return {"error": {"code": -32602, "message": "this session has no such file"}}
        told = {"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]}
        return {"result": self.results.get(params["name"], told)}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/mcp"

    def stop(self):
        self.stopped = True
        self.http.shutdown()
        self.http.server_close()


@contextlib.contextmanager
def connected(max_retries=3, **about):
    """A server and a tool that is connected to it."""
    server = Server(**about)
    tool = MCPTool(server.url, max_retries=max_retries)
    yield server, tool
    tool.close()
    server.stop()


def call(tool, name, **arguments):
    return tool.call(ToolCall(name, arguments, 0))


@pytest.mark.parametrize("forgotten", [(404, "Session not found"), (404, "?"), (400, "No valid session ID provided")])
def test_a_session_that_the_server_forgot_is_opened_again(forgotten):
    with connected(forgotten=forgotten) as (server, tool):
        assert call(tool, "now") == (False, "{}")
        for times in (2, 3):
            server.sessions.clear()
            assert call(tool, "now") == (False, "{}")
            assert server.begun == times


def test_without_retries_the_call_after_the_lost_one_is_answered():
    with connected(max_retries=0) as (server, tool):
        server.sessions.clear()
        assert [call(tool, "now")[0] for _ in range(3)] == [True, False, False]


def test_only_the_session_that_was_forgotten_is_opened_again_once_for_all_threads():
    servers = {"a": Server(pages=[["first"]]), "b": Server(pages=[["second"]])}
    tool = MCPTool({"mcpServers": {name: {"url": server.url} for name, server in servers.items()}})
    servers["a"].sessions.clear()
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda i: call(tool, ("first", "second")[i % 2]), range(64)))
    assert set(answers) == {(False, "{}")}
    assert [server.begun for server in servers.values()] == [2, 1]
    tool.close()
    for server in servers.values():
        server.stop()


def test_a_server_that_starts_again_later_is_reached_again():
    server = Server()
    tool = MCPTool(server.url, execution_timeout=5)
    server.stop()
    failed, text = call(tool, "now")
    assert failed
    assert "cannot reach" in text
    again = Server(port=server.port)
    assert call(tool, "now") == (False, "{}"), "the tool is known, its session is new"
    tool.close()
    again.stop()


def test_a_refusal_is_no_lost_session():
    with connected(pages=[["refuses"]]) as (server, tool):
        assert call(tool, "refuses") == (True, "The call of refuses failed: this session has no such file")
        assert (server.begun, server.calls) == (1, 1)


def test_tools_of_all_pages_are_offered():
    with connected(pages=[["a", "b"], [], ["c"]]) as (server, tool):
        assert tool.names() == ["a", "b", "c"]
        assert call(tool, "c") == (False, "{}")
        assert server.cursors == [None, "1", "2"]


def test_a_server_that_repeats_its_cursor_is_listed_once(monkeypatch):
    server = Server()
    page = {"result": {"tools": [{"name": "now", "inputSchema": EMPTY}], "nextCursor": "again"}}
    monkeypatch.setattr(server, "asked", lambda method, params: page)
    tool = MCPTool(server.url)
    assert tool.names() == ["now"]
    tool.close()
    server.stop()


# -- schemas -----------------------------------------------------------------------------------------------------------

CITY = {"properties": {"city": TEXT}}
SENT = {
    "listed": CITY,
    "all_of": {"allOf": [CITY, {"required": ["city"]}]},
    "any_of beside properties": {"properties": {"zip": TEXT}, "anyOf": [CITY, {"required": ["zip"]}]},
    "one_of": {"oneOf": [CITY]},
    "reference": {"$ref": "#/$defs/Place", "$defs": {"Place": CITY}},
    "pattern": {"patternProperties": {"^c": TEXT}, "additionalProperties": False},
    "condition": {"properties": {"by": TEXT}, "if": {"required": ["by"]}, "then": CITY},
    "anything": {},
    "any further": {"properties": {"zip": TEXT}, "additionalProperties": {}},
    "texts further": {"properties": {"zip": TEXT}, "additionalProperties": TEXT},
}
REFUSED = {
    "listed": {"properties": {"town": TEXT}},
    "none": {"properties": {}},
    "closed": {"properties": {"town": TEXT}, "additionalProperties": False},
    "closed and empty": {"additionalProperties": False},
    "words about the list": {"properties": {"town": TEXT}, "required": ["town"], "title": "T", "description": "D"},
}


@pytest.mark.parametrize(
    ("wanted", "schema"), [*((True, s) for s in SENT.values()), *((False, s) for s in REFUSED.values())]
)
def test_what_a_schema_does_not_forbid_is_sent(wanted, schema):
    assert (not unknown_argument(ToolCall("f", {"city": "Bergen"}, 0), {"type": "object", **schema})) is wanted


def test_the_arguments_reach_the_server():
    schemas = {name.replace(" ", "_"): {"type": "object", **schema} for name, schema in SENT.items()}
    with connected(pages=[list(schemas)], schemas=schemas) as (_, tool):
        assert {name: call(tool, name, city="Bergen") for name in schemas} == dict.fromkeys(
            schemas, (False, '{"city": "Bergen"}')
        )


def test_a_parameter_described_as_true_is_a_parameter():
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": True, "n": {"type": "integer"}}}}
    action = "<function=f><parameter=x>1</parameter><parameter=n>2</parameter></function>"
    calls, _ = find_calls(action, schemas=[{"type": "function", "function": function}])
    assert [c.arguments for c in calls] == [{"x": "1", "n": 2}]


NUMBER = {"properties": {"n": {"type": "integer"}, "city": TEXT}}


@pytest.mark.parametrize(
    ("schema", "n"),
    [
        (NUMBER, 5),
        ({"allOf": [NUMBER]}, 5),
        ({"anyOf": [CITY, {"oneOf": [NUMBER]}]}, 5),
        ({"$ref": "#/$defs/Place", "$defs": {"Place": NUMBER}}, 5),
        ({"properties": {"city": TEXT}, "if": {}, "then": NUMBER}, 5),
        ({"properties": {"n": TEXT}, "allOf": [NUMBER]}, "5"),
        ({"$ref": "#/$defs/Absent"}, "5"),
        ({"allOf": [{"$ref": "#/$defs/Loop"}], "$defs": {"Loop": {"allOf": [{"$ref": "#/$defs/Loop"}]}}}, "5"),
        ({"allOf": [True]}, "5"),
    ],
)
def test_texts_in_elements_get_types_from_all_of_a_schema(schema, n):
    function = {"name": "f", "parameters": {"type": "object", **schema}}
    action = "<function=f><parameter=n>5</parameter><parameter=city>7</parameter></function>"
    calls, _ = find_calls(action, schemas=[{"type": "function", "function": function}])
    assert [c.arguments for c in calls] == [{"n": n, "city": "7"}]


# -- results -----------------------------------------------------------------------------------------------------------


def text(words):
    return {"type": "text", "text": words}


RESULTS = {
    "a text": ({"content": [text("noon")]}, "noon"),
    "nothing": ({"content": []}, ""),
    "an embedded file": (
        {"content": [text("1 file"), {"type": "resource", "resource": {"uri": "file:///n.md", "text": "buy milk"}}]},
        "1 file\n[resource file:///n.md]\nbuy milk",
    ),
    "an embedded picture": (
        {"content": [{"type": "resource", "resource": {"uri": "a:1", "blob": "eA==", "mimeType": "image/png"}}]},
        "[resource a:1 image/png]",
    ),
    "a picture": ({"content": [{"type": "image", "data": "eA==", "mimeType": "image/png"}]}, "[image image/png]"),
    "a link": (
        {"content": [{"type": "resource_link", "uri": "file:///p.md", "name": "plan", "description": "of today"}]},
        "[resource_link file:///p.md plan of today]",
    ),
    "structured alone": ({"content": [], "structuredContent": {"degrees": 17}}, '{"degrees": 17}'),
    "structured beside other words": (
        {"content": [text("It is mild.")], "structuredContent": {"degrees": 17}},
        'It is mild.\n{"degrees": 17}',
    ),
    "structured and the same as text": (
        {"content": [text('{"degrees":17}')], "structuredContent": {"degrees": 17}},
        '{"degrees":17}',
    ),
    "a text by another name": ({"content": [text("a b")], "structuredContent": {"content": "a b"}}, "a b"),
    "a text with more": (
        {"content": [text("a b")], "structuredContent": {"content": "a b", "lines": 1}},
        'a b\n{"lines": 1}',
    ),
    "parts by another name": (
        {
            "content": [{"type": "image", "data": "eA==", "mimeType": "image/png"}],
            "structuredContent": {"content": [{"type": "image", "data": "eA==", "mimeType": "image/png"}]},
        },
        "[image image/png]",
    ),
    "a wrapped text": ({"content": [text("5")], "structuredContent": {"result": "5"}}, "5"),
    "a wrapped number": ({"content": [text("5")], "structuredContent": {"result": 5}}, "5"),
    "a wrapped list": ({"content": [text("a"), text("2")], "structuredContent": {"result": ["a", 2]}}, "a\n2"),
    "an empty list": ({"content": [], "structuredContent": {"result": []}}, '{"result": []}'),
}


def test_all_of_a_result_reaches_the_agent():
    names = {f"t{i}": name for i, name in enumerate(RESULTS)}
    with connected(pages=[list(names)], results={t: RESULTS[name][0] for t, name in names.items()}) as (_, tool):
        assert {name: call(tool, t) for t, name in names.items()} == {
            n: (False, want) for n, (_, want) in RESULTS.items()
        }


def test_an_error_is_told_in_every_form():
    parts = {"content": [{"type": "resource", "resource": {"uri": "e:1", "text": "disk is full"}}]}
    results = {"a": {"isError": True, **parts}, "b": {"isError": True, "content": [], "structuredContent": {"no": 1}}}
    with connected(pages=[["a", "b"]], results=results) as (_, tool):
        assert call(tool, "a") == (True, "[resource e:1]\ndisk is full")
        assert call(tool, "b") == (True, '{"no": 1}')


def test_a_server_on_this_machine_is_not_asked_through_a_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with connected() as (_, tool):
        assert call(tool, "now") == (False, "{}")

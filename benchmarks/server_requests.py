"""Valid requests of every protocol of `rollenv serve`, an OpenAPI description of them, and mutations."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from pydantic import BaseModel
from server_clients import ACCEPT, HELLO

from rollenv.plugins.protocols import rock
from rollenv.plugins.protocols.fusion import programs as fusion
from rollenv.rollout.workers.processes import ProcessWorkers
from rollenv.serve.app import make_app
from rollenv.serve.server import EnvServer, Settings

ENV = "test:Echo-v0"
GEM, ROCK, E2B, OPENENV = "/apis/v1/envs/gem", "/apis/envs/sandbox/v1", "/e2b", f"/openenv/{ENV}"
CONNECT = {"Content-Type": "application/connect+json"}

#: Models of the bodies of some routes, by the end of their paths.
MODELS: dict[str, type[BaseModel]] = {
    "/run_code": fusion.Program,
    "/run_jupyter": fusion.Notebook,
    "/submit": fusion.Submission,
    "/get_prompts": fusion.Rows,
    "/list_ids": fusion.Rows,
    "/get_prompt_by_id": fusion.OneRow,
    f"{ROCK}/execute": rock.Command,
    f"{ROCK}/create_session": rock.NewSession,
    f"{ROCK}/run_in_session": rock.Action,
    f"{ROCK}/close_session": rock.InSession,
    f"{ROCK}/write_file": rock.Written,
    f"{ROCK}/read_file": rock.Read,
    f"{ROCK}/start_async": rock.Start,
    f"{ROCK}/start": rock.Start,
}


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    body: Any = None
    """JSON, or bytes; none if it is None."""
    headers: dict[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        """The bytes of the body."""
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body).encode("utf-8", "surrogatepass")


def envelope(message: object, flags: int = 0) -> bytes:
    """A message of a stream of the Connect protocol."""
    data = json.dumps(message).encode()
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


class Opened:
    """Sessions and sandboxes that requests are about.

    Args:
        http: a client of the server.
    """

    def __init__(self, http: httpx.Client):
        def post(path: str, body: object, headers: dict[str, str] | None = None) -> httpx.Response:
            answer = http.post(path, json=body, headers=headers)
            answer.raise_for_status()
            return answer

        self.gem = post(f"{GEM}/make", {"env_id": ENV}).json()["sandbox_id"]
        post(f"{GEM}/reset", {"sandbox_id": self.gem, "seed": 1})
        self.ors = {"X-Session-ID": post("/create_session", {}).text.split("data: ")[1].split()[0], "X-Deployment": ENV}
        post("/create", {"split": "test", "index": 0}, self.ors)
        self.e2b = {"E2b-Sandbox-Id": post(f"{E2B}/v2/sandboxes", {"timeout": 3600}).json()["sandboxID"]}
        self.rock = post(f"{ROCK}/start", {}).json()["result"]["sandbox_id"]
        post(f"{ROCK}/create_session", {"sandbox_id": self.rock, "session": "default"})
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        self.mcp = ACCEPT | {"Mcp-Session-Id": post("/mcp", hello, ACCEPT).headers["mcp-session-id"]}
        post("/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, self.mcp)

    def close(self, http: httpx.Client) -> None:
        """End what can be ended, so that there is room for others."""
        with contextlib.suppress(httpx.HTTPError):
            http.delete(f"{E2B}/sandboxes/{self.e2b['E2b-Sandbox-Id']}")
            http.post(f"{ROCK}/stop", json={"sandbox_id": self.rock})
            http.delete("/mcp", headers=self.mcp)

    def requests(self) -> list[Asked]:
        """A valid request of every kind."""
        return [*self._environments(), *self._sandboxes(), *self._e2b(), *self._mcp()]

    def _environments(self) -> Iterator[Asked]:
        mine = {"sandbox_id": self.gem}
        yield Asked("POST", f"{GEM}/make", {"env_id": ENV})
        yield Asked("POST", f"{GEM}/reset", mine | {"seed": 3})
        yield Asked("POST", f"{GEM}/step", mine | {"action": "hello"})
        yield Asked("POST", f"{GEM}/list", {})
        yield Asked("POST", f"{OPENENV}/reset", {"seed": 1, "episode_id": "e", "options": {}})
        yield Asked("POST", f"{OPENENV}/step", {"action": {"action": "hello", "metadata": {}}})
        for name in ("state", "health", "metadata", "schema", "openapi.json"):
            yield Asked("GET", f"{OPENENV}/{name}")
        yield Asked("POST", f"{OPENENV}/mcp", _rpc("openenv/session/create"))
        yield Asked(
            "POST", f"{OPENENV}/mcp", _rpc("tools/call", name="step", session_id="x", arguments={"action": "x"})
        )
        yield Asked("POST", "/create", {"split": "test", "index": 0, "env_name": ENV}, self.ors)
        yield Asked("POST", "/create", {"task_spec": {"seed": 3}}, self.ors)
        for name in ("ping", "create_session"):
            yield Asked("POST", f"/{name}", {}, self.ors)
        for name in ("prompt", "messages", "tools", "task_tools", "splits"):
            yield Asked("GET", f"/{ENV}/{name}", None, self.ors)
        yield Asked("POST", f"/{ENV}/task_range", {"split": "train", "start": 3, "stop": 5}, self.ors)
        yield Asked("POST", "/num_tasks", {"split": "train"}, self.ors)
        yield Asked("POST", "/task", {"split": "test", "index": 1}, self.ors)
        yield Asked("POST", "/call", {"name": "step", "input": {"action": "hello"}, "task_id": None}, self.ors)
        for path in ("/livez", "/health", "/metrics", "/list_environments", "/version"):
            yield Asked("GET", path)

    def _sandboxes(self) -> Iterator[Asked]:
        mine = {"sandbox_id": self.rock}
        yield Asked("POST", f"{ROCK}/start_async", {"image": "python:3.11", "memory": "8g", "cpus": 2.0})
        yield Asked("GET", f"{ROCK}/is_alive?sandbox_id={self.rock}")
        yield Asked("POST", f"{ROCK}/execute", mine | {"command": ["echo", "a"], "timeout": 5, "env": {"A": "b"}})
        yield Asked("POST", f"{ROCK}/create_session", mine | {"session": "other", "startup_source": []})
        yield Asked("POST", f"{ROCK}/run_in_session", mine | {"command": "pwd", "timeout": 5, "check": "silent"})
        yield Asked("POST", f"{ROCK}/close_session", mine | {"session": "other"})
        yield Asked("POST", f"{ROCK}/write_file", mine | {"path": "/tmp/a", "content": "text"})
        yield Asked("POST", f"{ROCK}/read_file", mine | {"path": "/tmp/a", "encoding": "utf-8", "errors": "strict"})
        yield _upload(f"{ROCK}/upload", {"sandbox_id": self.rock, "target_path": "/tmp/b"}, {})
        program = {"code": "print(1)", "language": "python", "stdin": "", "run_timeout": 3, "files": {}}
        yield Asked("POST", "/run_code", program | {"fetch_files": ["a.txt"], "compile_timeout": 3})
        yield Asked("POST", "/fusion/run_code", program | {"language": "bash", "code": "echo 1"})
        yield Asked("POST", "/run_jupyter", {"cells": ["1"], "total_timeout": 10, "kernel": "python3"})
        row = {
            "id": 1,
            "content": "c",
            "test": "assert 1",
            "labels": {"task_id": "HumanEval/0"},
            "canonical_solution": "",
        }
        config = {"dataset_type": "HumanEvalDataset", "language": "python", "provided_data": row}
        yield Asked("POST", "/submit", {"dataset": "d", "id": 1, "completion": "```\n1\n```", "config": config})
        config = {"dataset_type": "CommonOJDataset", "provided_data": [{"id": 1, "content": "c", "test": []}]}
        yield Asked("POST", "/get_prompts", {"dataset": "d", "config": config, "offset": 0, "limit": 3})

    def _e2b(self) -> Iterator[Asked]:
        box = self.e2b
        name = box["E2b-Sandbox-Id"]
        yield Asked("POST", f"{E2B}/sandboxes", {"templateID": "base", "timeout": 20, "metadata": {"a": "b"}})
        for path in ("/v2/sandboxes", f"/sandboxes/{name}", f"/sandboxes/{name}/metrics", "/contexts", "/health"):
            yield Asked("GET", E2B + path, None, box)
        yield Asked("GET", f"{E2B}/files?path=a.txt&username=user", None, box)
        yield Asked("POST", f"{E2B}/sandboxes/{name}/timeout", {"timeout": 3600}, box)
        yield Asked("POST", f"{E2B}/v2/sandboxes/{name}/connect", {"timeout": 3600}, box)
        yield Asked("POST", f"{E2B}/execute", {"code": "1", "language": "python", "env_vars": {"A": "b"}}, box)
        yield Asked("POST", f"{E2B}/contexts", {"language": "python", "cwd": "/home/user"}, box)
        yield Asked("POST", f"{E2B}/contexts/default/restart", {}, box)
        yield _upload(f"{E2B}/files?path=a.txt", {}, box)
        files, processes = f"{E2B}/filesystem.Filesystem", f"{E2B}/process.Process"
        for method in ("Stat", "MakeDir", "ListDir", "Remove", "CreateWatcher"):
            yield Asked("POST", f"{files}/{method}", {"path": "dir", "depth": 1, "recursive": True}, box)
        yield Asked("POST", f"{files}/Move", {"source": "a.txt", "destination": "b.txt"}, box)
        yield Asked("POST", f"{files}/GetWatcherEvents", {"watcherId": "x"}, box)
        selected = {"process": {"pid": 1}}
        yield Asked("POST", f"{processes}/List", {}, box)
        data = base64.b64encode(b"text\n").decode()
        yield Asked("POST", f"{processes}/SendInput", selected | {"input": {"stdin": data}}, box)
        yield Asked("POST", f"{processes}/SendSignal", selected | {"signal": "SIGNAL_SIGTERM"}, box)
        yield Asked("POST", f"{processes}/Update", selected | {"pty": {"size": {"cols": 80, "rows": 20}}}, box)
        start = {"process": {"cmd": "/bin/bash", "args": ["-c", "echo a"], "envs": {}, "cwd": "/tmp"}, "stdin": False}
        streams = box | CONNECT
        yield Asked("POST", f"{processes}/Start", envelope(start), streams)
        yield Asked("POST", f"{processes}/Connect", envelope(selected), streams)
        inputs = envelope({"start": selected}) + envelope({"data": {"input": {"stdin": data}}})
        yield Asked("POST", f"{processes}/StreamInput", inputs, streams)

    def _mcp(self) -> Iterator[Asked]:
        yield Asked("POST", "/mcp", _rpc("tools/list"), self.mcp)
        yield Asked("POST", "/mcp", _rpc("ping"), self.mcp)
        for tool, arguments in (
            ("list_environments", {"search": "Sokoban"}),
            ("reset", {"env_id": ENV, "seed": 1}),
            ("step", {"action": "hello"}),
            ("run_code", {"code": "print(1)"}),
            ("run_command", {"command": "echo 1"}),
            ("read_file", {"path": "a"}),
            ("write_file", {"path": "a", "content": "b"}),
        ):
            yield Asked("POST", "/mcp", _rpc("tools/call", name=tool, arguments=arguments), self.mcp)
        yield Asked("POST", f"/mcp/env/{ENV}", _rpc("initialize", **HELLO), ACCEPT)


#: Ids of requests of MCP.
_IDS = itertools.count(1)


def _rpc(method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": next(_IDS), "method": method, "params": params}


def _upload(path: str, form: dict[str, str], headers: dict[str, str]) -> Asked:
    """A form with a file."""
    made = httpx.Request("POST", "http://localhost", data=form, files={"file": ("a.txt", b"text")})
    return Asked("POST", path, made.read(), headers | {"Content-Type": made.headers["Content-Type"]})


# -- an OpenAPI description --------------------------------------------------------------------------------------------


def openapi(asked: list[Asked]) -> dict[str, Any]:
    """Of all routes over HTTP. Bodies are those of models where there are some, else like those of valid requests."""
    app = make_app(EnvServer(Settings(), ProcessWorkers(1)))
    while not hasattr(app, "routes"):
        app = app._app  # type: ignore[attr-defined]
    paths: dict[str, Any] = {}
    for route in app.routes:
        for method in sorted(getattr(route, "methods", None) or []):
            if method != "HEAD":
                paths.setdefault(route.path, {})[method.lower()] = _operation(route.path, method, asked)
    return {"openapi": "3.1.0", "info": {"title": "rollenv", "version": "1"}, "paths": paths}


def _operation(path: str, method: str, asked: list[Asked]) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part[:1] == "{"]
    told: dict[str, Any] = {"responses": {"default": {"description": "any"}}}
    told["parameters"] = [{"name": name, "in": "path", "required": True, "schema": _named(name)} for name in names]
    if method in ("POST", "PUT"):
        model = next((model for end, model in MODELS.items() if path.endswith(end)), None)
        like = [each.body for each in asked if isinstance(each.body, dict) and _fits(path, each.path)]
        schema = model.model_json_schema() if model else {"anyOf": [*map(_schema, like), {"type": "object"}]}
        definitions = schema.pop("$defs", {})
        text = json.dumps(schema | {"$defs": definitions}).replace("#/$defs/", "#/x/")
        schema = json.loads(text.replace("#/x/", f"#/paths/{_pointer(path)}/{method.lower()}/requestBody/content/"
                                         "application~1json/schema/$defs/"))  # fmt: skip
        told["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return told


def _pointer(path: str) -> str:
    return path.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")


def _named(name: str) -> dict[str, Any]:
    return (
        {"anyOf": [{"enum": [ENV, "game:Sokoban-v0-easy"]}, {"type": "string"}]}
        if name == "env_id"
        else {"type": "string"}
    )


def _fits(route: str, path: str) -> bool:
    here, there = route.split("/"), path.partition("?")[0].split("/")
    return len(here) == len(there) and all(a == b or a[:1] == "{" for a, b in zip(here, there, strict=True))


def _schema(value: Any) -> dict[str, Any]:
    """Return the schema of a value."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {name: _schema(each) for name, each in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": {"anyOf": [*map(_schema, value)]} if value else {}}
    kinds: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    kind = {"type": kinds[type(value)]}
    return {"anyOf": [{"const": value}, kind]} if isinstance(value, str) else kind


# -- mutations ---------------------------------------------------------------------------------------------------------


def _deep(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


#: Values that nobody expects.
NASTY: list[Any] = [
    None, True, 0, -1, 1.5, 2**31, 2**63, -(2**64), 10**400, 1e308, float("nan"), float("inf"), "", " ", "\0",
    "\ud800",
    "\u2028\r\n\t", "x" * 100_000, "💥", "../../../etc/passwd", "/etc/passwd", "/proc/self/environ", "/dev/zero",
    "a\0b", "~",
    "http://169.254.169.254/latest", "file:///etc/passwd", "$(id)", "%00", "-1", "NaN", [], {}, [[]], {"": {}},
    _deep(300), {"__class__": "x"}, ["x"] * 2000, {str(n): n for n in range(2000)}, "rollenv+ws://localhost:1/x",
    "*" * 300, "(a+)+$",
]  # fmt: skip


def mutated_value(rng: random.Random, value: Any) -> Any:
    """The same with one part of it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name, kind = rng.choice(list(value)), rng.random()
        if kind < 0.1:
            return {key: each for key, each in value.items() if key != name}
        if kind < 0.2:
            return value | {rng.choice(["", "extra", "__proto__", "\0", "x" * 5000]): rng.choice(NASTY)}
        return value | {name: mutated_value(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], mutated_value(rng, value[place]), *value[place + 1 :]]
    return rng.choice(NASTY)


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """The same with some bytes changed, dropped, doubled or added."""
    for _ in range(rng.randint(1, 4)):
        place, size = rng.randint(0, len(data)), rng.randint(1, 8)
        start, rest = data[:place], data[place:]
        data = rng.choice([
            start + rng.randbytes(size) + rest, start + rest[size:], start, start + rest * 2,
            start + rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xc1", b"\x80"]) + rest[4:],
        ])  # fmt: skip
    return data[:1_000_000]


def _body(rng: random.Random, asked: Asked) -> Asked:
    if isinstance(asked.body, bytes) or rng.random() < 0.2:
        return dataclasses.replace(asked, body=mutated_bytes(rng, asked.content()))
    return dataclasses.replace(asked, body=mutated_value(rng, asked.body))


def _path(rng: random.Random, asked: Asked) -> Asked:
    parts = asked.path.split(rng.choice("/?=&"))
    text = rng.choice(["..", "%2e%2e", "%00", "%ff", "", "a" * 3000, "%2fetc%2fpasswd", "{x}", "\u00e9", "1e999", "-1"])
    parts[rng.randrange(len(parts))] = text
    return dataclasses.replace(asked, path="/" + "/".join(parts).lstrip("/"))


_NAMES = (
    "Content-Type", "Accept", "Range", "Authorization", "Content-Encoding", "Connect-Timeout-Ms",
    "Connect-Protocol-Version", "Mcp-Protocol-Version", "If-Range",
)  # fmt: skip
_TEXTS = (
    "", "x", "-1", "99999999999999999999", "a" * 5000, "\u00e9", "bytes=5-1", "gzip", "Basic //79",
    "multipart/form-data", "multipart/form-data; boundary=x", "application/connect+json", "Bearer \u00ff",
    "application/x-www-form-urlencoded", "text/plain; charset=utf-7",
)  # fmt: skip


def _headers(rng: random.Random, asked: Asked) -> Asked:
    name, text = rng.choice([*asked.headers, *_NAMES]), rng.choice(_TEXTS)
    return dataclasses.replace(asked, headers=asked.headers | {name: text})


def _method(rng: random.Random, asked: Asked) -> Asked:
    return dataclasses.replace(asked, method=rng.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]))


_HOW: list[Callable[[random.Random, Asked], Asked]] = [_body, _body, _body, _body, _path, _headers, _method]


def mutated(rng: random.Random, asked: Asked) -> Asked:
    """The same request with one to three changes."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        asked = rng.choice(_HOW)(rng, asked)
    return asked

"""Who may ask for what: every route of every service, with every kind of token that does not fit."""

from __future__ import annotations

import json

import pytest
from serving import Served, patient, tokens_in
from starlette.routing import Route, WebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from rollenv.core.errors import UsageError
from rollenv.remote.address import parse
from rollenv.remote.connection import Connection
from rollenv.rollout.workers.processes import ProcessWorkers
from rollenv.serve.app import make_app
from rollenv.serve.server import EnvServer, Settings

#: Routes that probes ask for, and files that are the same for everybody.
OPEN = ("/livez", "/readyz", "/", "/page/test:Echo-v0")

#: Routes for whoever runs the server.
ADMIN = {"/health", "/metrics", "/sessions"}
ADMIN |= {f"/page/api/{name}" for name in ("sessions", "watch", "link", "health", "check")}


def routes():
    """Every route: its method, or WS, and a path that it takes."""
    app = make_app(EnvServer(Settings(), ProcessWorkers(1)))
    while not hasattr(app, "routes"):
        app = app._app
    found = []
    for route in app.routes:
        if not isinstance(route, Route | WebSocketRoute):
            continue  # hosts of sandboxes' ports: test_e2b.py
        path = "/".join("test:Echo-v0" if part[:1] == "{" else part for part in route.path.split("/"))
        if isinstance(route, WebSocketRoute):
            found.append(("WS", path))
        elif isinstance(route, Route) and path not in OPEN:
            found += [(method, path) for method in sorted((route.methods or {"POST"}) - {"HEAD"})]
    return found


ROUTES = routes()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with tokens: (server, name to token)."""
    scopes = {name: name for name in ("environments", "sandboxes", "admin")}
    file, tokens = tokens_in(tmp_path_factory.mktemp("tokens"), **scopes, expired=" ".join(scopes))
    with open(file, "a") as table:
        table.write("expires = 2020-01-31T12:00:00Z\n")  # of the last
    served = Served("--tokens", file)
    yield served, tokens | {"wrong": "rollenv_wrong", "none": ""}
    served.stop()


def asked(served, method, path, token="", **headers):
    """The status of an answer, and its text."""
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    if method == "WS":
        with pytest.raises(InvalidStatus) as caught:
            connect(f"ws://127.0.0.1:{served.port}{path}", additional_headers=headers, open_timeout=20)
        return caught.value.response.status_code, ""
    body = {"content": b"{"} if method in ("POST", "PUT") else {}  # who may not ask is told so first
    answer = patient.request(method, served.http + path, headers=headers, timeout=30, **body)
    return answer.status_code, answer.text


def test_there_are_routes_of_every_protocol():
    paths = {path for _, path in ROUTES}
    assert {"/health", "/apis/v1/envs/gem/step", "/e2b/execute", "/run_code", "/mcp", "/create", "/native"} <= paths
    assert len(ROUTES) > 100


@pytest.mark.slow
@pytest.mark.parametrize("token", ["none", "expired", pytest.param("wrong", marks=pytest.mark.integration)])
def test_no_route_answers_without_a_token_that_is_known(guarded, token):
    served, tokens = guarded
    statuses = {(method, path): asked(served, method, path, tokens[token])[0] for method, path in ROUTES}
    assert {where: status for where, status in statuses.items() if status != 401} == {}


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}, {"Host": "evil.example:80"}],
)
def test_no_route_answers_under_another_name_or_for_pages_of_other_sites(shared_server, headers):
    tried = [("GET", path) for path in OPEN]
    tried += [(method, path) for method, path in ROUTES if "Origin" in headers or method != "WS"]
    statuses = {(method, path): asked(shared_server, method, path, **headers)[0] for method, path in tried}
    assert {where: status for where, status in statuses.items() if status != 403} == {}
    own = {"Host": f"localhost:{shared_server.port}", "Origin": f"http://localhost:{shared_server.port}"}
    assert asked(shared_server, "GET", "/livez", **own)[0] == 200


def unfit(path):
    """The tokens that are not for a path."""
    programs = ("run_code", "run_jupyter", "v1")
    if path in ADMIN:
        return ["environments", "sandboxes"]
    if path == "/page/api/me":
        return []
    if path == "/mcp":
        return ["admin"]
    if path.startswith(("/e2b", "/files", "/apis/envs/sandbox", "/fusion")) or path.split("/")[1] in programs:
        return ["admin", "environments"]
    return ["admin", "sandboxes"]


@pytest.mark.integration
def test_no_route_takes_a_token_that_is_for_something_else(guarded):
    served, tokens = guarded
    found = {}
    for method, path in ROUTES:
        if path == "/native":
            continue  # it is refused within the connection
        for name in unfit(path):
            status, _ = asked(served, method, path, tokens[name])
            if status not in (401, 403):
                found[method, path, name] = status
    assert found == {}


INWARD = ("http://169.254.169.254/latest/meta-data", "http://localhost:1/", "127.0.0.1:1", "file:///etc/passwd")


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("url", INWARD)
def test_addresses_in_arguments_are_refused_and_written_down(serve, tmp_path, url):
    with (tmp_path / "log").open("w") as log:
        served = serve("--log", "json", stderr=log, workers=1)
        connection = Connection(parse(served.address)[0][0], patience=0.0)
        for settings in ({"kwargs": {"opponent": url}}, {"wrappers": {"mcp": {"url": url}}}):
            with pytest.raises(UsageError, match=r"takes no|puts no wrapper"):
                connection.ask("open", "n" * 20, "game:Sokoban-v0-easy", settings)
        connection.close()
    told = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert sum(line.get("event") == "refused" for line in told) == 2

"""The service that creates, lists and ends sandboxes and stores snapshots of files and variables."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rollenv.core.errors import UsageError
from rollenv.plugins.protocols.e2b.service import VERSION, E2BService, Variables
from rollenv.remote.protocol import ServerFull, SessionGone
from rollenv.serve.responses import EXPECTED, Json, body_of, status_of, validated
from rollenv.serve.sandboxes import SandboxSession

#: Maximum snapshots of one client, and maximum forks of one request.
_SNAPSHOTS, _FORKS = 16, 20
#: Default lifetime of a fork in seconds, as in E2B's service.
_FORK_LIFETIME = 15
#: Prefix of the names of snapshots, so that a deleted one is not mistaken for a template.
_PREFIX = "snapshots/"


class _Snapshot(BaseModel):
    name: str = Field("", pattern=r"^[A-Za-z0-9][\w.-]{0,60}$|^$")
    memory: bool = False


class _Fork(BaseModel):
    timeout: Any = _FORK_LIFETIME
    count: int = Field(1, ge=1, le=_FORKS)


@dataclass
class Snapshot:
    """The files of a sandbox, in a temporary file."""

    source: str
    """Name of the sandbox that it was taken from."""
    env: dict[str, str]
    file: Any = field(default_factory=tempfile.TemporaryFile, repr=False)

    def read(self) -> bytes:
        number = self.file.fileno()
        return os.pread(number, os.fstat(number).st_size, 0)


class Snapshots:
    """The snapshots of all clients, and the handlers of their routes."""

    def __init__(self, service: E2BService):
        self.service = service
        self._by_owner: dict[str, dict[str, Snapshot]] = {}

    async def open(self, owner: str, template: str, env: dict[str, str], **settings: Any) -> SandboxSession:
        """Start a sandbox, with the files and variables of a snapshot if the template is one."""
        mine = self._by_owner.get(owner, {})
        snapshot = mine.get(template) or mine.get(_PREFIX + template)
        if snapshot is not None:
            env = snapshot.env | env
            settings["snapshot"] = await asyncio.to_thread(snapshot.read)
        elif template.startswith(_PREFIX):
            raise UsageError(f"there is no snapshot {template!r:.80}: it was deleted, or the server was restarted")
        session = await self.service.sandboxes.open(owner, env=env, **settings)
        details = self.service.details(session)
        details.template, details.env = template, env
        return session

    async def make(self, request: Request) -> Response:
        """Store the files of a sandbox as a snapshot, which replaces one of the same name."""
        session, params = self.service.own_sandbox(request), validated(_Snapshot, await body_of(request))
        if params.memory:
            raise UsageError("snapshots of this server keep files, not memory: pass mode='filesystem', or no mode")
        snapshot, name = Snapshot(session.name, self.service.details(session).env), params.name or secrets.token_hex(10)
        mine = self._by_owner.setdefault(session.owner, {})
        if len(mine) >= _SNAPSHOTS and _PREFIX + name not in mine:
            raise ServerFull(f"this client has {_SNAPSHOTS} snapshots; delete one", retry_after=5.0)
        await self.service.run(
            session, lambda sandbox: snapshot.file.write(sandbox.snapshot()) and snapshot.file.flush()
        )
        mine[_PREFIX + name] = snapshot
        return Json(_snapshot_info(_PREFIX + name), 201)

    async def every(self, request: Request) -> Response:
        """List the client's snapshots, of one sandbox if the query has its id."""
        mine = self._by_owner.get(self.service.client(request).name, {})
        params = request.query_params
        source, name = params.get("sandboxID"), params.get("name", "").removeprefix(_PREFIX)
        keys = [key for key, snapshot in mine.items() if source in (None, snapshot.source)]
        return Json([_snapshot_info(key) for key in keys if name in ("", key.removeprefix(_PREFIX))])

    async def delete(self, request: Request) -> Response:
        mine, name = self._by_owner.get(self.service.client(request).name, {}), request.path_params["name"]
        if mine.pop(_PREFIX + name.removeprefix(_PREFIX), None) is None:
            raise SessionGone(f"there is no snapshot {name!r:.80}")
        return Response(status_code=204)

    async def fork(self, request: Request) -> Response:
        """Start sandboxes with the files of a running one; each starts or fails by itself."""
        session, params = self.service.own_sandbox(request), validated(_Fork, await body_of(request))
        details = self.service.details(session)
        settings: dict[str, Any] = {"lifetime": self.service.sandboxes.lifetime(params.timeout)}
        settings["metadata"] = session.metadata
        settings["snapshot"] = await self.service.run(session, lambda sandbox: sandbox.snapshot())
        forks: list[dict[str, Any]] = []
        for _ in range(params.count):
            try:
                fork = await self.open(session.owner, details.template, details.env, **settings)
            except EXPECTED as error:
                forks.append({"error": {"code": status_of(error), "message": str(error)}})
            else:
                forks.append({"sandbox": self.service.keys(fork, request)})
        return Json(forks, 201)


def _snapshot_info(key: str) -> dict[str, Any]:
    return {"snapshotID": key, "names": [key]}


#: Default lifetime of a sandbox in seconds.
_LIFETIME = 300
#: Maximum sandboxes on a page of the list.
_PAGE = 100
#: Maximum entries of a sandbox's metadata, and maximum characters of all of them.
_ENTRIES, _CHARACTERS = 100, 20_000
#: Options of new sandboxes that this server does not support.
_MISSING = {
    "volumeMounts": "volumes",
    "mcp": "a gateway to MCP servers",
    "iam": "tokens for workloads",
    "autoPause": "a pause at its end",
}
_CURSOR = re.compile(r"(\d{1,12}\.\d{6})_([\w-]{1,60})", re.ASCII)


def _small(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > _ENTRIES or sum(map(len, [*metadata, *metadata.values()])) > _CHARACTERS:
        raise ValueError(f"it has at most {_ENTRIES} entries and {_CHARACTERS} characters")
    return metadata


class _New(BaseModel):
    model_config = ConfigDict(extra="allow")
    templateID: str = Field("base", min_length=1, max_length=200)
    metadata: Annotated[dict[str, str], AfterValidator(_small)] | None = None
    envVars: Variables | None = None
    timeout: Any = _LIFETIME


class _Query(BaseModel):
    order: Literal["asc", "desc"] = "desc"
    state: str = ""
    template: str = ""
    startedAfter: str = ""
    metadata: str = ""
    nextToken: str = ""
    limit: int = Field(_PAGE, gt=0)


class _Range(BaseModel):
    """Whole seconds since 1970, both included."""

    start: int = 0
    end: int = 1 << 60


def routes(service: E2BService) -> list[BaseRoute]:
    """Routes of the service."""
    snapshots = Snapshots(service)
    control = _Control(service, snapshots)
    one = "/sandboxes/{name}"
    handlers = [
        ("POST", "/v2/sandboxes", control.make),
        ("GET", "/v2/sandboxes", control.every),
        ("GET", one, control.info),
        ("DELETE", one, control.end),
        ("POST", f"{one}/timeout", control.set_timeout),
        ("GET", f"{one}/metrics", control.metrics),
        ("POST", f"/v2{one}/connect", control.connect),
        ("POST", f"{one}/pause", control.pause),
        ("POST", "/sandboxes", control.make),  # from here on paths of older clients
        ("GET", "/sandboxes", control.every),
        ("POST", f"{one}/connect", control.connect),
        ("POST", f"{one}/resume", control.connect),
        ("PUT", f"{one}/network", control.missing),
        ("POST", f"{one}/fork", snapshots.fork),
        ("POST", f"{one}/snapshots", snapshots.make),
        ("GET", "/snapshots", snapshots.every),
        ("DELETE", "/templates/{name:path}", snapshots.delete),
    ]
    return [service.route(method, path, handler) for method, path, handler in handlers]


class _Control:
    def __init__(self, service: E2BService, snapshots: Snapshots):
        self.service, self.sandboxes, self.snapshots = service, service.sandboxes, snapshots

    async def make(self, request: Request) -> Response:
        client = self.service.client(request)
        params = validated(_New, await body_of(request))
        more = params.model_extra or {}
        for name, what in _MISSING.items():
            if more.get(name):
                raise UsageError(f"sandboxes of this server cannot have {what}; leave out {name!r}")
        network = more.get("network") or {}
        if not isinstance(network, dict) or any(value for rule, value in network.items() if rule != "denyOut"):
            raise UsageError("sandboxes of this server have no network, so it has no rules: leave out 'network'")
        settings = {"lifetime": params.timeout, "metadata": params.metadata}
        session = await self.snapshots.open(client.name, params.templateID, params.envVars or {}, **settings)
        return Json(self.service.keys(session, request), 201)

    async def every(self, request: Request) -> Response:
        owner = self.service.client(request).name
        params: _Query = validated(_Query, dict(request.query_params))
        sessions = [session for session in self.sandboxes.of(owner) if self._matches(session, params)]
        newest_first = params.order == "desc"
        sessions.sort(key=_position, reverse=newest_first)
        if params.nextToken:
            if (cursor := _CURSOR.fullmatch(params.nextToken)) is None:
                raise UsageError("nextToken is not a token of this server's list")
            after = float(cursor[1]), cursor[2]
            sessions = [
                session
                for session in sessions
                if (_position(session) < after if newest_first else _position(session) > after)
            ]
        page = sessions[: min(params.limit, _PAGE)]
        headers = {"x-next-token": "{:.6f}_{}".format(*_position(page[-1]))} if len(page) < len(sessions) else {}
        return Json([self._info(session) for session in page], headers=headers)

    async def info(self, request: Request) -> Response:
        session = self.service.own_sandbox(request)
        return Json(self._info(session) | self.service.keys(session, request))

    async def end(self, request: Request) -> Response:
        await self.sandboxes.close(self.service.own_sandbox(request))
        return Response(status_code=204)

    async def set_timeout(self, request: Request) -> Response:
        session = self.service.own_sandbox(request)
        seconds = (await body_of(request)).get("timeout")
        if seconds == 0 and not isinstance(seconds, bool):
            await self.sandboxes.close(session)
        else:
            if seconds is None:
                raise UsageError("the request needs 'timeout', a number of seconds")
            await session.sandbox.set_timeout(self.sandboxes.lifetime(seconds))
        return Response(status_code=204)

    async def metrics(self, request: Request) -> Response:
        """Return the current use of resources, if it is in the range; there is no history."""
        session = self.service.own_sandbox(request)
        params = validated(_Range, dict(request.query_params))
        if self.service.details(session).paused:
            return Json([])
        now = await self.service.run(session, lambda sandbox: sandbox.metrics())
        if not params.start <= now.timestamp < params.end + 1:
            return Json([])
        metrics = {
            "timestamp": _time(now.timestamp),
            "timestampUnix": int(now.timestamp),
            "cpuCount": now.cpu_count,
            "cpuUsedPct": round(now.cpu_percent, 2),
            "memUsed": now.memory_used,
            "memTotal": now.memory_total,
            "memCache": 0,
            "diskUsed": now.disk_used,
            "diskTotal": now.disk_total,
        }
        return Json([metrics])

    async def connect(self, request: Request) -> Response:
        """Resume a sandbox, and extend its life to the requested seconds from now."""
        session = self.service.own_sandbox(request)
        seconds = (await body_of(request)).get("timeout")
        more = None if seconds is None else self.sandboxes.lifetime(seconds)
        details = self.service.details(session)
        if more is not None and time.time() + more > self._end(session):
            await session.sandbox.set_timeout(more)
        if details.paused:
            await session.sandbox.resume()
            details.paused = False
        return Json(self.service.keys(session, request), 201 if request.url.path.endswith("/resume") else 200)

    async def pause(self, request: Request) -> Response:
        session = self.service.own_sandbox(request)
        details = self.service.details(session)
        if details.paused:
            return Json({"code": 409, "message": "the sandbox is paused already"}, 409)
        details.paused = True
        try:
            await session.sandbox.pause()
        except EXPECTED:
            details.paused = False
            raise
        return Response(status_code=204)

    async def missing(self, request: Request) -> Response:
        self.service.own_sandbox(request)
        return Json({"code": 501, "message": "sandboxes of this server have no network whose rules could change"}, 501)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _info(self, session: SandboxSession) -> dict[str, Any]:
        details, limits = self.service.details(session), self.sandboxes.limits.limits
        return {
            "sandboxID": session.name,
            "templateID": details.template,
            "clientID": "rollenv",
            "envdVersion": VERSION,
            "state": details.state,
            "startedAt": _time(session.started),
            "endAt": _time(self._end(session)),
            "metadata": session.metadata,
            "allowInternetAccess": False,  # older clients ask for it by default
            "cpuCount": os.cpu_count() or 1,
            "memoryMB": limits.memory_mb,
            "diskSizeMB": limits.disk_mb,
        }

    def _end(self, session: SandboxSession) -> float:
        last = time.time() + session.opened + self.sandboxes.limits.total - time.monotonic()
        return min(session.sandbox.sync.expires_at or last, last)

    def _matches(self, session: SandboxSession, params: _Query) -> bool:
        details, states = self.service.details(session), set(filter(None, params.state.split(",")))
        if not states <= {"running", "paused"}:
            raise UsageError(f"{params.state!r:.40} are no states: there are running and paused")
        if states and details.state not in states:
            return False
        if params.template not in ("", details.template):
            return False
        if params.startedAfter and _moment(_time(session.started)) < _moment(params.startedAfter):  # as it is shown
            return False
        pairs = parse_qsl(params.metadata, keep_blank_values=True)
        return all(session.metadata.get(unquote(key)) == unquote(value) for key, value in pairs)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace(" ", "+")).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"startedAfter is not a time: {error}") from error


def _position(session: SandboxSession) -> tuple[float, str]:
    return round(session.started, 6), session.name

"""Snapshots and forks of sandboxes: files are kept, and the variables of the environment. What runs is not."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rollenv.core import RollenvError, UsageError
from rollenv.remote.protocol import ServerFull, SessionGone
from rollenv.serve.protocols.e2b.base import E2BService
from rollenv.serve.responses import Json, body_of, status_of, validated
from rollenv.serve.sandboxes import SandboxSession

#: Snapshots of one client, and forks that one request makes.
_SNAPSHOTS, _FORKS = 16, 20
#: Seconds of life of a fork where a client asks for none, as E2B's service has it.
_LIFETIME = 15
#: Begins the names of snapshots, so that one that was deleted is not taken for a template.
_PREFIX = "snapshots/"


class _Snapshot(BaseModel):
    name: str = Field("", pattern=r"^[A-Za-z0-9][\w.-]{0,60}$|^$")
    memory: bool = False


class _Fork(BaseModel):
    timeout: Any = _LIFETIME
    count: int = Field(1, ge=1, le=_FORKS)


@dataclass
class Snapshot:
    """The files of a sandbox, in a file that ends with the server."""

    source: str
    """Name of the sandbox."""
    env: dict[str, str]
    file: Any = field(default_factory=tempfile.TemporaryFile, repr=False)

    def read(self) -> bytes:
        """The archive."""
        number = self.file.fileno()
        return os.pread(number, os.fstat(number).st_size, 0)


class Snapshots:
    """The snapshots of all clients, and the handlers of their routes."""

    def __init__(self, service: E2BService):
        self.service = service
        self._by_owner: dict[str, dict[str, Snapshot]] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        route = self.service.route
        return [
            route("POST", "/sandboxes/{name}/fork", self.fork),
            route("POST", "/sandboxes/{name}/snapshots", self.make),
            route("GET", "/snapshots", self.every),
            route("DELETE", "/templates/{name:path}", self.delete),
        ]

    async def open(self, owner: str, template: str, env: dict[str, str], **settings: Any) -> SandboxSession:
        """Start a sandbox, with the files and variables of a snapshot where the template is one.

        Args:
            settings: of :meth:`SandboxManager.open`.

        Raises:
            UsageError: there is no such snapshot.
        """
        mine = self._by_owner.get(owner, {})
        snapshot = mine.get(template) or mine.get(_PREFIX + template)
        if snapshot is not None:
            env = snapshot.env | env
            settings["snapshot"] = await asyncio.to_thread(snapshot.read)
        elif template.startswith(_PREFIX):
            raise UsageError(f"there is no snapshot {template!r:.80}: it was deleted, or the server was restarted")
        box = await self.service.sandboxes.open(owner, env=env, **settings)
        kept = self.service.kept(box)
        kept.template, kept.env = template, env
        return box

    async def make(self, request: Request) -> Response:
        """Keep the files of a sandbox, under a name or instead of the snapshot of that name."""
        box, asked = self._box(request), validated(_Snapshot, await body_of(request))
        if asked.memory:
            raise UsageError("snapshots of this server keep files, not memory: ask for mode='filesystem', or no mode")
        snapshot, name = Snapshot(box.name, self.service.kept(box).env), asked.name or secrets.token_hex(10)
        mine = self._by_owner.setdefault(box.owner, {})
        if len(mine) >= _SNAPSHOTS and _PREFIX + name not in mine:
            raise ServerFull(f"this client has {_SNAPSHOTS} snapshots; delete one", retry_after=5.0)
        await self.service.run(box, lambda sandbox: snapshot.file.write(sandbox.snapshot()) and snapshot.file.flush())
        mine[_PREFIX + name] = snapshot
        return Json(_told(_PREFIX + name), 201)

    async def every(self, request: Request) -> Response:
        """Those of the client, of one sandbox where the query has its id."""
        mine = self._by_owner.get(self.service.client(request).name, {})
        asked = request.query_params
        source, name = asked.get("sandboxID"), asked.get("name", "").removeprefix(_PREFIX)
        found = [key for key, snapshot in mine.items() if source in (None, snapshot.source)]
        return Json([_told(key) for key in found if name in ("", key.removeprefix(_PREFIX))])

    async def delete(self, request: Request) -> Response:
        """Forget a snapshot."""
        mine, name = self._by_owner.get(self.service.client(request).name, {}), request.path_params["name"]
        if mine.pop(_PREFIX + name.removeprefix(_PREFIX), None) is None:
            raise SessionGone(f"there is no snapshot {name!r:.80}")
        return Response(status_code=204)

    async def fork(self, request: Request) -> Response:
        """Start sandboxes with the files of one that goes on; each starts, or fails, by itself."""
        box, asked = self._box(request), validated(_Fork, await body_of(request))
        lifetime, env = self.service.sandboxes.lifetime(asked.timeout), self.service.kept(box).env
        archive = await self.service.run(box, lambda sandbox: sandbox.snapshot())
        told: list[dict[str, Any]] = []
        for _ in range(asked.count):
            try:
                settings = {"lifetime": lifetime, "metadata": box.metadata, "snapshot": archive}
                fork = await self.open(box.owner, self.service.kept(box).template, env, **settings)
            except RollenvError as error:
                told.append({"error": {"code": status_of(error), "message": str(error)}})
            else:
                told.append({"sandbox": self.service.keys(fork, request)})
        return Json(told, 201)

    def _box(self, request: Request) -> SandboxSession:
        return self.service.sandboxes.get(request.path_params["name"], self.service.client(request).name)


def _told(key: str) -> dict[str, Any]:
    return {"snapshotID": key, "names": [key]}

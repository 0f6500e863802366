"""Folders and what is in them: ``filesystem.Filesystem``."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from rollenv.core import UsageError
from rollenv.remote.protocol import TooFast
from rollenv.sandbox import Sandbox
from rollenv.sandbox.errors import FileRefused, FileThere, NotADirectory, NotFound
from rollenv.sandbox.filesystem import FileEvent, OnEvent
from rollenv.sandbox.types import Entry
from rollenv.serve.protocols.e2b import rpc
from rollenv.serve.protocols.e2b.base import E2BService, at_home
from rollenv.serve.protocols.e2b.rpc import Message
from rollenv.serve.protocols.e2b.streams import Feed
from rollenv.serve.sandboxes import SandboxSession

#: Entries of a listing, and folders of one sandbox that are watched at the same time.
_ENTRIES, _WATCHES = 10_000, 16
_TYPES = {"file": "FILE_TYPE_FILE", "dir": "FILE_TYPE_DIRECTORY", "link": "FILE_TYPE_SYMLINK"}
_EVENTS = {kind: f"EVENT_TYPE_{kind.upper()}" for kind in ("create", "write", "remove", "rename", "chmod")}
_USERS = {0: "root", 1000: "user", 65534: "nobody"}


def routes(service: E2BService) -> list[BaseRoute]:
    """All methods of the service."""
    files, name = _Filesystem(service), "filesystem.Filesystem"
    found = {
        "Stat": files.stat,
        "MakeDir": files.make_dir,
        "Move": files.move,
        "ListDir": files.list_dir,
        "Remove": files.remove,
        "CreateWatcher": files.create_watcher,
        "GetWatcherEvents": files.get_watcher_events,
        "RemoveWatcher": files.remove_watcher,
    }
    methods: list[BaseRoute] = [rpc.unary(service, f"{name}/{method}", call) for method, call in found.items()]
    return [*methods, rpc.server_stream(service, f"{name}/WatchDir", files.watch_dir)]


class _Filesystem:
    def __init__(self, service: E2BService):
        self.service = service

    async def stat(self, box: SandboxSession, message: Message) -> Message:
        path = at_home(message.get("path", ""))
        return {"entry": _told(await self.service.run(box, lambda sandbox: sandbox.files.info(path)))}

    async def make_dir(self, box: SandboxSession, message: Message) -> Message:
        path = at_home(message.get("path", ""))

        def made(sandbox: Sandbox) -> Entry:
            if sandbox.files.exists(path):
                raise FileThere(f"there is {path!r} already")
            sandbox.files.make_dir(path)
            return sandbox.files.info(path)

        return {"entry": _told(await self.service.run(box, made))}

    async def move(self, box: SandboxSession, message: Message) -> Message:
        path, to = at_home(message.get("source", "")), at_home(message.get("destination", ""))

        def moved(sandbox: Sandbox) -> Entry:
            sandbox.files.info(path)
            sandbox.files.make_dir(posixpath.dirname(to))
            sandbox.files.rename(path, to)
            return sandbox.files.info(to)

        return {"entry": _told(await self.service.run(box, moved))}

    async def list_dir(self, box: SandboxSession, message: Message) -> Message:
        path = at_home(message.get("path", ""))
        depth = rpc.number_of(message.get("depth", 1), "depth", 2**32 - 1) or 1
        found: list[Entry] = []
        await self.service.run(box, lambda sandbox: _walk(sandbox, path, depth, found))
        return {"entries": [_told(entry) for entry in found]}

    async def remove(self, box: SandboxSession, message: Message) -> Message:
        """Remove it; what is not there is removed already."""
        path = at_home(message.get("path", ""))
        with contextlib.suppress(NotFound):
            await self.service.run(box, lambda sandbox: sandbox.files.remove(path))
        return {}

    async def create_watcher(self, box: SandboxSession, message: Message) -> Message:
        return {"watcherId": await self._watch(box, message, None)}

    async def get_watcher_events(self, box: SandboxSession, message: Message) -> Message:
        watch = self.service.kept(box).watches.get(str(message.get("watcherId")))
        if watch is None:
            raise NotFound("there is no such watcher")
        return {"events": [_event(event) for event in watch.events() if event.type in _EVENTS]}

    async def remove_watcher(self, box: SandboxSession, message: Message) -> Message:
        watch = self.service.kept(box).watches.pop(str(message.get("watcherId")), None)
        if watch is None:
            raise NotFound("there is no such watcher")
        await asyncio.to_thread(watch.stop)
        return {}

    async def watch_dir(self, box: SandboxSession, message: Message, request: Request) -> AsyncGenerator[Message, None]:
        """Events as they come, until the client has gone."""
        feed = Feed(box.sandbox.sync)
        name = await self._watch(box, message, feed.put)
        try:
            yield {"start": {}}
            async for event in rpc.followed(feed, request, rpc.timeout_of(request)):
                if event is None:
                    yield {"keepalive": {}}
                elif event.type in _EVENTS:
                    yield {"filesystem": _event(event)}
        finally:
            feed.close()
            watch = self.service.kept(box).watches.pop(name, None)
            if watch is not None:
                self.service.spawn(asyncio.to_thread(watch.stop))

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _watch(self, box: SandboxSession, message: Message, on_event: OnEvent | None) -> str:
        """Watch a folder; return the name under which that is kept."""
        if message.get("includeEntry"):
            raise UsageError("events do not say more of an entry than its name")
        path, recursive = at_home(message.get("path", "")), bool(message.get("recursive"))
        watches, name = self.service.kept(box).watches, secrets.token_urlsafe(12)

        def watch(sandbox: Sandbox) -> None:
            for other in [other for other, watch in list(watches.items()) if not watch.running]:
                watches.pop(other, None)
            if len(watches) >= _WATCHES:
                raise TooFast(f"{_WATCHES} folders of this sandbox are watched already")
            watches[name] = sandbox.files.watch(path, recursive=recursive, on_event=on_event)

        await self.service.run(box, watch)
        return name


def _walk(sandbox: Sandbox, path: str, depth: int, found: list[Entry]) -> None:
    """Entries by name, each folder's own before the next entry."""
    for entry in sandbox.files.list(path):
        entry = replace(entry, path=posixpath.join(path, entry.name))
        found.append(entry)
        if len(found) > _ENTRIES:
            raise UsageError(f"there are more than {_ENTRIES} entries; ask for less depth")
        if depth > 1 and entry.type == "dir":
            with contextlib.suppress(NotFound, NotADirectory, FileRefused):  # it was removed meanwhile, or is closed
                _walk(sandbox, entry.path, depth - 1, found)


def _told(entry: Entry) -> Message:
    told = {"name": posixpath.basename(entry.path) or "/", "path": entry.path, "type": _TYPES[entry.type]}
    told = {key: _clean(text) for key, text in told.items()}
    more: dict[str, Any] = {"size": str(entry.size), "mode": entry.mode, "permissions": entry.permissions}
    more |= {"owner": _user(entry.owner), "group": _user(entry.group), "modifiedTime": _time(entry.modified)}
    if entry.target is not None:
        more["symlinkTarget"] = _clean(entry.target)
    return told | more


def _event(event: FileEvent) -> Message:
    return {"name": _clean(event.name), "type": _EVENTS[event.type]}


def _clean(text: str) -> str:
    """A name that may have bytes which are no text."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _user(number: int) -> str:
    return _USERS.get(number, str(number))


def _time(seconds: float) -> str:
    """A time that code may have set to anything."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return "1970-01-01T00:00:00Z"

"""Environments and sandboxes as tools of an agent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, create_model
from typing_extensions import TypedDict

from rollenv.agents.prompts.session import shown
from rollenv.core import cards
from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.core.pictures import Picture
from rollenv.core.registry import list_envs
from rollenv.core.tools.python import shortened
from rollenv.remote.protocol import SessionGone, session_name
from rollenv.sandbox.types import CommandResult, Execution
from rollenv.serve.auth import Client
from rollenv.serve.responses import EXPECTED, without_data
from rollenv.serve.sandboxes import SandboxSession
from rollenv.serve.server import EnvServer
from rollenv.serve.session import EnvSession
from rollenv.serve.sessions import served

with extra("serve", "The MCP protocol"):
    from mcp import types

#: Maximum bytes of a file in one answer.
_BYTES = 1 << 20


_Seed = Annotated[int | None, Field(ge=0, description="The same seed gives the same task; by default a new one.")]
_Index = Annotated[int | None, Field(ge=0, description="Of a task, where the environment numbers its tasks.")]
_Action = Annotated[str, Field(description="What to do, in the form that the first observation explains.")]
_Session = Annotated[str, Field(description="From reset.")]
_Sandbox = Annotated[str | None, Field(description="The one of an earlier result; by default your own.")]
_Seconds = Annotated[float | None, Field(gt=0, description="Seconds.")]
_Encoding = Literal["utf-8", "base64"]


class About(TypedDict):
    """An environment in a list."""

    env_id: str
    summary: str


class Found(TypedDict):
    """Result of list_environments."""

    environments: list[About]
    total: int
    pages: int


class Described(About):
    """Result of describe_environment."""

    tasks: str
    missing: list[str]


class First(TypedDict):
    """Result of reset for a single environment."""

    observation: str
    info: dict[str, Any]


class Started(First):
    """Result of reset."""

    session: str


class Seen(First):
    """Result of step."""

    reward: float
    terminated: bool
    truncated: bool


class Ended(TypedDict):
    """Result of close and close_sandbox."""

    ended: str


class Failure(TypedDict):
    """An error of code."""

    name: str
    value: str
    traceback: str


class Done(TypedDict):
    """Result of run_code and run_command."""

    sandbox: str
    stdout: str
    stderr: str
    result: str | None
    exit_code: int | None
    error: Failure | None
    seconds: float


class Contents(TypedDict):
    """Result of read_file."""

    sandbox: str
    content: str
    size: int
    more: bool


class Written(TypedDict):
    """Result of write_file."""

    sandbox: str
    path: str
    size: int


class File(TypedDict):
    """A file, folder or link."""

    name: str
    type: str
    size: int


class Listing(TypedDict):
    """Result of list_files."""

    sandbox: str
    files: list[File]
    more: bool


#: Maximum environments on a page, files in a listing, pictures of a run, and characters of each picture.
_PAGE, _FILES, _PICTURES, _PICTURE = 50, 1000, 8, 1 << 21

#: A text (or several contents) for the agent, and the same as data.
Answer = tuple["str | list[types.ContentBlock]", Mapping[str, Any]]


class Held:
    """The environments and sandboxes of an MCP session.

    Args:
        env_id: id of the only environment, if the session is limited to one.
    """

    def __init__(self, server: EnvServer, client: Client, env_id: str = ""):
        self.server, self.client, self.env_id = server, client, env_id
        self._sessions: set[str] = set()
        self._only: EnvSession | None = None
        self._sandbox: SandboxSession | None = None
        self._opening = asyncio.Lock()

    async def end(self) -> None:
        """End everything."""
        sessions = self.server.sessions
        for name in self._sessions & sessions.by_name.keys():
            sessions.close(sessions.by_name[name])
        if self._sandbox is not None:
            await self.server.sandboxes.close(self._sandbox)

    async def list_environments(
        self,
        search: Annotated[str, Field(max_length=200, description="Words that the id or the description has.")] = "",
        page: Annotated[int, Field(ge=1)] = 1,
    ) -> Answer:
        """List environments: games, puzzles, mathematics, code, questions, tools."""
        words = search.lower().split()
        every = await asyncio.to_thread(lambda: [(spec.id, cards.summary(spec)) for spec in list_envs()])
        every = [about for about in every if all(word in " ".join(about).lower() for word in words)]
        pages = max(1, math.ceil(len(every) / _PAGE))
        shown_here = every[(page - 1) * _PAGE : page * _PAGE]
        text = "\n".join(f"{env_id}: {summary}" for env_id, summary in shown_here) or "No environment is on this page."
        environments = [About(env_id=env_id, summary=summary) for env_id, summary in shown_here]
        text += f"\n\n[page {page} of {pages}, {len(every)} environments]"
        return text, Found(environments=environments, total=len(every), pages=pages)

    async def describe_environment(self, env_id: str) -> Answer:
        """Describe an environment. Its first observation, from reset, says the rules."""
        spec = served(env_id)
        tasks = "numbered: reset takes an index" if spec.indexed else "drawn from the seed"
        missing, summary = [str(need) for need in spec.missing], cards.summary(spec)
        text = f"{spec.id}: {summary}\nIts tasks are {tasks}."
        text += f"\nThis server lacks what it needs: {', '.join(missing)}." if missing else ""
        return text, Described(env_id=spec.id, summary=summary, tasks=tasks, missing=missing)

    async def reset(
        self,
        *,
        seed: _Seed = None,
        index: _Index = None,
        env_id: Annotated[str | None, Field(description="From list_environments; not needed with a session.")] = None,
        session: Annotated[str | None, Field(description="To begin another episode in the same environment.")] = None,
    ) -> Answer:
        """Begin an episode, in a new environment or in that of a session, and see its first observation."""
        opened = await self._session(env_id, session)
        text, first, images = await _begun(opened, seed, index)
        return _seen(f"{text}\n\n[session {opened.name}]", images), Started(session=opened.name, **first)

    async def step(self, action: _Action, session: _Session) -> Answer:
        """Play a turn of an episode that reset began."""
        return await _played(self.server.sessions.get(session, self.client.name), action)

    async def close(self, session: _Session) -> Answer:
        """End an environment that is no longer needed."""
        self.server.sessions.close(self.server.sessions.get(session, self.client.name))
        return "It has ended.", Ended(ended=session)

    async def reset_only(self, seed: _Seed = None, index: _Index = None) -> Answer:
        """Begin an episode and see its first observation."""
        async with self._opening:
            if self._only is None or self.server.sessions.by_name.get(self._only.name) is not self._only:
                self._only = await self._opened(self.env_id)
        text, first, images = await _begun(self._only, seed, index)
        return _seen(text, images), first

    async def step_only(self, action: _Action) -> Answer:
        """Play a turn of the episode."""
        if self._only is None:
            raise UsageError("there is no episode yet: reset begins one")
        return await _played(self._only, action)

    async def run_code(
        self,
        *,
        sandbox: _Sandbox = None,
        code: str,
        language: Annotated[
            str, Field(description="python, bash and javascript keep their variables; or sh, perl, ruby.")
        ] = "python",
        timeout: _Seconds = None,
    ) -> Answer:
        """Run code in a sandbox: it keeps files, and in most languages variables. It has no network."""
        session = await self._use(sandbox)
        seconds = self.server.sandboxes.seconds(timeout)
        async with session.use() as held:
            done = await held.run_code(code, language=language, timeout=seconds)
        data = _done(session, "".join(done.logs.stdout), "".join(done.logs.stderr), done)
        every = [(kind, getattr(result, kind)) for result in done.results for kind in ("png", "jpeg")]
        fitting = [(kind, each) for kind, each in every if each and each.isascii() and len(each) <= _PICTURE]
        pictures = [types.ImageContent(data=each, mime_type=f"image/{kind}") for kind, each in fitting[:_PICTURES]]
        return [types.TextContent(text=_as_text(data)), *pictures], data

    async def run_command(
        self,
        *,
        sandbox: _Sandbox = None,
        command: Annotated[str, Field(description="For a shell.")],
        cwd: str | None = None,
        timeout: _Seconds = None,
    ) -> Answer:
        """Run a shell command in a sandbox."""
        session = await self._use(sandbox)
        seconds = self.server.sandboxes.seconds(timeout)
        async with session.use() as held:
            running = await held.commands.start(command, cwd=cwd, timeout=seconds)
            try:
                with contextlib.suppress(*EXPECTED):  # it may have ended
                    await running.send_stdin("", close=True)
                done = await running.wait()
            except asyncio.CancelledError:
                await running.kill()
                raise
        data = _done(session, done.stdout, done.stderr, done)
        return _as_text(data), data

    async def read_file(
        self,
        *,
        sandbox: _Sandbox = None,
        path: str,
        offset: Annotated[int, Field(ge=0, description="Bytes to leave out.")] = 0,
        limit: Annotated[int, Field(ge=1, le=_BYTES, description="Bytes to read.")] = 100_000,
        encoding: _Encoding = "utf-8",
    ) -> Answer:
        """Read a file of a sandbox."""
        session = await self._use(sandbox)
        data, end = bytearray(), offset + limit
        async with session.use() as held:
            size = (await held.files.info(path)).size
            async with contextlib.aclosing(held.files.read_stream(path)) as pieces:
                at = 0
                async for piece in pieces:
                    data += piece[max(0, offset - at) : max(0, end - at)]
                    at += len(piece)
                    if at >= end:
                        break
        plainly = encoding == "utf-8"
        content = data.decode("utf-8", "replace") if plainly else base64.b64encode(data).decode()
        more = at > end or size > end
        text = content + (f"\n\n[{size} bytes; offset {end} reads on]" if more else "")
        return text, Contents(sandbox=session.name, content=content, size=size, more=more)

    async def write_file(
        self, *, sandbox: _Sandbox = None, path: str, content: str, encoding: _Encoding = "utf-8"
    ) -> Answer:
        """Write a file of a sandbox. Missing folders are made."""
        data = _decoded(content, encoding)
        session = await self._use(sandbox)
        async with session.use() as held:
            await held.files.write(path, data)
        return f"{len(data)} bytes were written to {path}.", Written(sandbox=session.name, path=path, size=len(data))

    async def list_files(self, *, sandbox: _Sandbox = None, path: str = ".") -> Answer:
        """List a folder of a sandbox."""
        session = await self._use(sandbox)
        async with session.use() as held:
            entries = await held.files.list(path)
        files = [File(name=entry.name, type=entry.type, size=entry.size) for entry in entries[:_FILES]]
        lines = [f"{file['name']}{'/' if file['type'] == 'dir' else ''}  {file['size']}" for file in files]
        lines += [f"[{len(entries) - _FILES} more]"] if len(entries) > _FILES else []
        listing = Listing(sandbox=session.name, files=files, more=len(entries) > _FILES)
        return "\n".join(lines) or "The folder is empty.", listing

    async def close_sandbox(self, sandbox: _Sandbox = None) -> Answer:
        """End a sandbox. Its files are lost; what comes next is in a new one."""
        session = self.server.sandboxes.get(sandbox, self.client.name) if sandbox else self._sandbox
        if session is None:
            raise UsageError("there is no sandbox")
        if session is self._sandbox:
            self._sandbox = None
        await self.server.sandboxes.close(session)
        return "It has ended.", Ended(ended=session.name)

    async def _session(self, env_id: str | None, name: str | None) -> EnvSession:
        """Return a new session, or an earlier one by name."""
        if (env_id is None) == (name is None):
            raise UsageError("reset takes either an env_id or the session of an earlier reset")
        if name is not None:
            return self.server.sessions.get(name, self.client.name)
        return await self._opened(env_id or "")

    async def _opened(self, env_id: str) -> EnvSession:
        sessions, name = self.server.sessions, session_name()
        self._sessions = (self._sessions & sessions.by_name.keys()) | {name}
        return await sessions.open(name, self.client.name, env_id)

    async def _use(self, name: str | None) -> SandboxSession:
        """Return the sandbox with a name, or the session's own, which is started on first use."""
        if name is not None:
            return self.server.sandboxes.get(name, self.client.name)
        async with self._opening:
            session, sandboxes = self._sandbox, self.server.sandboxes
            if session is not None and not (session.alive and sandboxes.by_name.get(session.name) is session):
                self._sandbox = None
                raise SessionGone("your sandbox has ended, with its files and variables; the next call starts another")
            if session is None:
                session = self._sandbox = await sandboxes.open(self.client.name)
            return session


def _decoded(content: str, encoding: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
    except ValueError as error:
        raise UsageError(f"the content is not base64: {error}") from error


async def _begun(session: EnvSession, seed: int | None, index: int | None) -> tuple[str, First, Sequence[Picture]]:
    options = {} if index is None else {"index": index}
    observation, info, *_ = await session.call("reset", [seed, options])
    return shown(observation, info), First(observation=observation, info=without_data(info)), info.get("images", ())


async def _played(session: EnvSession, action: str) -> Answer:
    observation, reward, terminated, truncated, info, *_ = await session.call("step", [action])
    fields = First(observation=observation, info=without_data(info))
    data = Seen(**fields, reward=reward, terminated=terminated, truncated=truncated)
    over = ", the episode is over" if terminated or truncated else ""
    return _seen(f"{shown(observation, info)}\n\n[reward {reward:g}{over}]", info.get("images", ())), data


def _seen(text: str, images: Sequence[Picture]) -> str | list[types.ContentBlock]:
    """Return a text, followed by its pictures in the order of their marks."""
    if not images:
        return text
    pictures = [types.ImageContent(data=image.as_json()["data"], mime_type=image.media_type) for image in images]
    return [types.TextContent(text=text), *pictures]


def _done(session: SandboxSession, stdout: str, stderr: str, done: Execution | CommandResult) -> Done:
    result, error = done.text if isinstance(done, Execution) else None, done.error
    failure: Failure | None = None
    if error is not None:
        failure = Failure(name=error.name, value=shortened(error.value), traceback=shortened(error.traceback))
    return Done(
        sandbox=session.name,
        stdout=shortened(stdout),
        stderr=shortened(stderr),
        result=None if result is None else shortened(result),
        exit_code=done.exit_code,
        error=failure,
        seconds=round(done.seconds, 3),
    )


def _as_text(done: Done) -> str:
    error, parts = done["error"], [done["stdout"], done["stderr"], done["result"] or ""]
    if error is not None and not (error["traceback"] and done["stderr"].endswith(error["traceback"])):
        parts.append(error["traceback"] or f"{error['name']}: {error['value']}")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"


class Tool:
    """A tool for agents: a method of :class:`Held`, whose signature defines the arguments.

    Args:
        scope: the scope that the client's token needs.
        gives: the type of its data.
    """

    def __init__(self, scope: str, gives: Any, call: Callable[..., Awaitable[Answer]]):
        self.name, self.scope, self.gives = call.__name__.removesuffix("_only"), scope, gives
        self._call, types_of = call, get_type_hints(call, include_extras=True)
        fields: dict[str, Any] = {
            name: (types_of[name], ... if one.default is one.empty else one.default)
            for name, one in inspect.signature(call).parameters.items()
            if name != "self"
        }
        self._takes = create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    async def call(self, held: Held, arguments: dict[str, Any]) -> Answer:
        """Validate an agent's arguments and call the method."""
        return await self._call(held, **dict(self._takes.model_validate(arguments)))

    @functools.cached_property
    def schema(self) -> types.Tool:
        """The tool's definition in the protocol."""
        return types.Tool(
            name=self.name,
            description=self._call.__doc__,
            input_schema=_for_agents(self._takes.model_json_schema()),
            output_schema=_for_agents(TypeAdapter(self.gives).json_schema()),
        )


def _for_agents(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove the title and description of a schema, which are for programmers."""
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


EVERY = (
    Tool("environments", Found, Held.list_environments),
    Tool("environments", Described, Held.describe_environment),
    Tool("environments", Started, Held.reset),
    Tool("environments", Seen, Held.step),
    Tool("environments", Ended, Held.close),
    Tool("sandboxes", Done, Held.run_code),
    Tool("sandboxes", Done, Held.run_command),
    Tool("sandboxes", Contents, Held.read_file),
    Tool("sandboxes", Written, Held.write_file),
    Tool("sandboxes", Listing, Held.list_files),
    Tool("sandboxes", Ended, Held.close_sandbox),
)

ONE = (Tool("environments", First, Held.reset_only), Tool("environments", Seen, Held.step_only))

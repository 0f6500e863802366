"""Environments and sandboxes as tools of an agent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from rollenv import cards
from rollenv.agents.prompts.session import shown
from rollenv.core import RollenvError, UsageError
from rollenv.needs import extra
from rollenv.registry import list_envs
from rollenv.remote.protocol import SessionGone, session_name
from rollenv.sandbox.types import CommandResult, Execution, ExecutionError
from rollenv.serve.auth import Client
from rollenv.serve.sandboxes import SandboxSession
from rollenv.serve.server import EnvServer
from rollenv.serve.session import Session
from rollenv.serve.sessions import served
from rollenv.tools.python import shortened

with extra("serve", "The MCP protocol"):
    from mcp import types

#: Bytes of a file that are read at once.
_BYTES = 1 << 20


class Given(BaseModel):
    """Arguments of a tool."""

    model_config = ConfigDict(extra="forbid")


class Search(Given):
    """Of list_environments."""

    search: str = Field("", max_length=200, description="Words that the id or the description has.")
    page: int = Field(1, ge=1)


class Which(Given):
    """Of describe_environment."""

    env_id: str


class Task(Given):
    """Of reset, where there is one environment."""

    seed: int | None = Field(None, ge=0, description="The same seed gives the same task; by default a new one.")
    index: int | None = Field(None, ge=0, description="Of a task, where the environment numbers its tasks.")


class Begin(Task):
    """Of reset."""

    env_id: str | None = Field(None, description="From list_environments; not needed with a session.")
    session: str | None = Field(None, description="To begin another episode in the same environment.")


class Act(Given):
    """Of step, where there is one environment."""

    action: str = Field(description="What to do, in the form that the first observation explains.")


class Step(Act):
    """Of step."""

    session: str = Field(description="From reset.")


class End(Given):
    """Of close."""

    session: str = Field(description="From reset.")


class InSandbox(Given):
    """Of what happens in a sandbox."""

    sandbox: str | None = Field(None, description="The one of an earlier result; by default your own.")


class Code(InSandbox):
    """Of run_code."""

    code: str
    language: str = Field("python", description="python, bash and javascript keep their variables; or sh, perl, ruby.")
    timeout: float | None = Field(None, gt=0, description="Seconds.")


class Command(InSandbox):
    """Of run_command."""

    command: str = Field(description="For a shell.")
    cwd: str | None = None
    timeout: float | None = Field(None, gt=0, description="Seconds.")


class Read(InSandbox):
    """Of read_file."""

    path: str
    offset: int = Field(0, ge=0, description="Bytes to leave out.")
    limit: int = Field(100_000, ge=1, le=_BYTES, description="Bytes to read.")
    encoding: Literal["utf-8", "base64"] = "utf-8"


class Write(InSandbox):
    """Of write_file."""

    path: str
    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"


class Folder(InSandbox):
    """Of list_files."""

    path: str = "."


class About(TypedDict):
    """An environment in a list."""

    env_id: str
    summary: str


class Found(TypedDict):
    """Of list_environments."""

    environments: list[About]
    total: int
    pages: int


class Described(About):
    """Of describe_environment."""

    tasks: str
    missing: list[str]


class First(TypedDict):
    """Of reset, where there is one environment."""

    observation: str
    info: dict[str, Any]


class Started(First):
    """Of reset."""

    session: str


class Seen(First):
    """Of step."""

    reward: float
    terminated: bool
    truncated: bool


class Ended(TypedDict):
    """Of close and close_sandbox."""

    ended: str


class Failure(TypedDict):
    """An error of code."""

    name: str
    value: str
    traceback: str


class Done(TypedDict):
    """Of run_code and run_command."""

    sandbox: str
    stdout: str
    stderr: str
    result: str | None
    exit_code: int | None
    error: Failure | None
    seconds: float


class Contents(TypedDict):
    """Of read_file."""

    sandbox: str
    content: str
    size: int
    more: bool


class Written(TypedDict):
    """Of write_file."""

    sandbox: str
    path: str
    size: int


class File(TypedDict):
    """A file, folder or link."""

    name: str
    type: str
    size: int


class Listing(TypedDict):
    """Of list_files."""

    sandbox: str
    files: list[File]
    more: bool


#: Environments on a page, files in a listing, pictures of a run and characters of each: at most.
_PAGE, _FILES, _PICTURES, _PICTURE = 50, 1000, 8, 1 << 21

#: A text for the agent (or several contents), and the same as data.
Answer = tuple["str | list[types.ContentBlock]", Mapping[str, Any]]


class Held:
    """Everything that the client of an MCP session has opened.

    Args:
        env_id: of the only environment, where there is one.
    """

    def __init__(self, server: EnvServer, client: Client, env_id: str = ""):
        self.server, self.client, self.env_id = server, client, env_id
        self._sessions: set[str] = set()
        self._only: Session | None = None
        self._box: SandboxSession | None = None
        self._opening = asyncio.Lock()

    async def end(self) -> None:
        """End everything."""
        sessions = self.server.sessions
        for name in self._sessions & sessions.by_name.keys():
            sessions.close(sessions.by_name[name])
        if self._box is not None:
            await self.server.sandboxes.close(self._box)

    async def list_environments(self, given: Search) -> Answer:
        """List environments: games, puzzles, mathematics, code, questions, tools."""
        words = given.search.lower().split()
        every = await asyncio.to_thread(lambda: [(spec.id, cards.summary(spec)) for spec in list_envs()])
        every = [about for about in every if all(word in " ".join(about).lower() for word in words)]
        pages = max(1, math.ceil(len(every) / _PAGE))
        page = every[(given.page - 1) * _PAGE : given.page * _PAGE]
        text = "\n".join(f"{env_id}: {summary}" for env_id, summary in page) or "No environment is on this page."
        environments = [About(env_id=env_id, summary=summary) for env_id, summary in page]
        told = Found(environments=environments, total=len(every), pages=pages)
        return f"{text}\n\n[page {given.page} of {pages}, {len(every)} environments]", told

    async def describe_environment(self, given: Which) -> Answer:
        """Describe an environment. Its first observation, from reset, says the rules."""
        spec = served(given.env_id)
        tasks = "numbered: reset takes an index" if spec.indexed else "drawn from the seed"
        missing, summary = [str(need) for need in spec.missing], cards.summary(spec)
        text = f"{spec.id}: {summary}\nIts tasks are {tasks}."
        text += f"\nThis server lacks what it needs: {', '.join(missing)}." if missing else ""
        return text, Described(env_id=spec.id, summary=summary, tasks=tasks, missing=missing)

    async def reset(self, given: Begin) -> Answer:
        """Begin an episode, in a new environment or in that of a session, and see its first observation."""
        if (given.env_id is None) == (given.session is None):
            raise UsageError("reset takes either an env_id or the session of an earlier reset")
        if given.session is not None:
            session = self.server.sessions.get(given.session, self.client.name)
        else:
            session = await self._opened(given.env_id or "")
        text, first = await _begun(session, given)
        return f"{text}\n\n[session {session.name}]", Started(session=session.name, **first)

    async def step(self, given: Step) -> Answer:
        """Play a turn of an episode that reset began."""
        return await _played(self.server.sessions.get(given.session, self.client.name), given.action)

    async def close(self, given: End) -> Answer:
        """End an environment that is no longer needed."""
        self.server.sessions.close(self.server.sessions.get(given.session, self.client.name))
        return "It has ended.", Ended(ended=given.session)

    async def reset_only(self, given: Task) -> Answer:
        """Begin an episode and see its first observation."""
        async with self._opening:
            if self._only is None or self.server.sessions.by_name.get(self._only.name) is not self._only:
                self._only = await self._opened(self.env_id)
        text, first = await _begun(self._only, given)
        return text, first

    async def step_only(self, given: Act) -> Answer:
        """Play a turn of the episode."""
        if self._only is None:
            raise UsageError("there is no episode yet: reset begins one")
        return await _played(self._only, given.action)

    async def run_code(self, given: Code) -> Answer:
        """Run code in a sandbox: it keeps files, and in most languages variables. It has no network."""
        box = await self._use(given.sandbox)
        seconds = self.server.sandboxes.seconds(given.timeout)
        async with box.use() as sandbox:
            done = await sandbox.run_code(given.code, language=given.language, timeout=seconds)
        told = _done(box, "".join(done.logs.stdout), "".join(done.logs.stderr), done)
        return [types.TextContent(text=_as_text(told)), *_pictures(done)], told

    async def run_command(self, given: Command) -> Answer:
        """Run a shell command in a sandbox."""
        box = await self._use(given.sandbox)
        seconds = self.server.sandboxes.seconds(given.timeout)
        async with box.use() as sandbox:
            running = await sandbox.commands.start(given.command, cwd=given.cwd, timeout=seconds)
            try:
                with contextlib.suppress(RollenvError):  # it may have ended
                    await running.send_stdin("", close=True)
                done = await running.wait()
            except asyncio.CancelledError:
                await running.kill()
                raise
        told = _done(box, done.stdout, done.stderr, done)
        return _as_text(told), told

    async def read_file(self, given: Read) -> Answer:
        """Read a file of a sandbox."""
        box = await self._use(given.sandbox)
        data, end = bytearray(), given.offset + given.limit
        async with box.use() as sandbox:
            size = (await sandbox.files.info(given.path)).size
            async with contextlib.aclosing(sandbox.files.read_stream(given.path)) as pieces:
                at = 0
                async for piece in pieces:
                    data += piece[max(0, given.offset - at) : max(0, end - at)]
                    at += len(piece)
                    if at >= end:
                        break
        base64_ = given.encoding == "base64"
        content = base64.b64encode(data).decode() if base64_ else data.decode("utf-8", "replace")
        more = at > end or size > end
        text = content + (f"\n\n[{size} bytes; offset {end} reads on]" if more else "")
        return text, Contents(sandbox=box.name, content=content, size=size, more=more)

    async def write_file(self, given: Write) -> Answer:
        """Write a file of a sandbox. Missing folders are made."""
        try:
            data = base64.b64decode(given.content, validate=True) if given.encoding == "base64" else None
        except ValueError as error:
            raise UsageError(f"the content is not base64: {error}") from error
        data = given.content.encode() if data is None else data
        box = await self._use(given.sandbox)
        async with box.use() as sandbox:
            await sandbox.files.write(given.path, data)
        told = Written(sandbox=box.name, path=given.path, size=len(data))
        return f"{len(data)} bytes were written to {given.path}.", told

    async def list_files(self, given: Folder) -> Answer:
        """List a folder of a sandbox."""
        box = await self._use(given.sandbox)
        async with box.use() as sandbox:
            entries = await sandbox.files.list(given.path)
        files = [File(name=entry.name, type=entry.type, size=entry.size) for entry in entries[:_FILES]]
        lines = [f"{file['name']}{'/' if file['type'] == 'dir' else ''}  {file['size']}" for file in files]
        lines += [f"[{len(entries) - _FILES} more]"] if len(entries) > _FILES else []
        told = Listing(sandbox=box.name, files=files, more=len(entries) > _FILES)
        return "\n".join(lines) or "The folder is empty.", told

    async def close_sandbox(self, given: InSandbox) -> Answer:
        """End a sandbox. Its files are lost; what comes next is in a new one."""
        box = self.server.sandboxes.get(given.sandbox, self.client.name) if given.sandbox else self._box
        if box is None:
            raise UsageError("there is no sandbox")
        if box is self._box:
            self._box = None
        await self.server.sandboxes.close(box)
        return "It has ended.", Ended(ended=box.name)

    async def _opened(self, env_id: str) -> Session:
        sessions, name = self.server.sessions, session_name()
        self._sessions = (self._sessions & sessions.by_name.keys()) | {name}
        return await sessions.open(name, self.client.name, env_id)

    async def _use(self, name: str | None) -> SandboxSession:
        """The sandbox of this name, or the session's own, which is started when it is first used."""
        if name is not None:
            return self.server.sandboxes.get(name, self.client.name)
        async with self._opening:
            box, sandboxes = self._box, self.server.sandboxes
            if box is not None and not (box.alive and sandboxes.by_name.get(box.name) is box):
                self._box = None
                raise SessionGone("your sandbox has ended, with its files and variables; the next call starts another")
            if box is None:
                box = self._box = await sandboxes.open(self.client.name)
            return box


async def _begun(session: Session, given: Task) -> tuple[str, First]:
    options = {} if given.index is None else {"index": given.index}
    observation, info, *_ = await session.call("reset", [given.seed, options])
    return shown(observation, info), First(observation=observation, info=info)


async def _played(session: Session, action: str) -> Answer:
    observation, reward, terminated, truncated, info, *_ = await session.call("step", [action])
    told = Seen(observation=observation, info=info, reward=reward, terminated=terminated, truncated=truncated)
    over = ", the episode is over" if terminated or truncated else ""
    return f"{shown(observation, info)}\n\n[reward {reward:g}{over}]", told


def _done(box: SandboxSession, stdout: str, stderr: str, done: Execution | CommandResult) -> Done:
    result = done.text if isinstance(done, Execution) else None
    return Done(
        sandbox=box.name,
        stdout=shortened(stdout),
        stderr=shortened(stderr),
        result=None if result is None else shortened(result),
        exit_code=done.exit_code,
        error=_failure(done.error),
        seconds=round(done.seconds, 3),
    )


def _failure(error: ExecutionError | None) -> Failure | None:
    if error is None:
        return None
    return Failure(name=error.name, value=shortened(error.value), traceback=shortened(error.traceback))


def _as_text(told: Done) -> str:
    error, parts = told["error"], [told["stdout"], told["stderr"], told["result"] or ""]
    if error is not None and not (error["traceback"] and told["stderr"].endswith(error["traceback"])):
        parts.append(error["traceback"] or f"{error['name']}: {error['value']}")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"


def _pictures(done: Execution) -> list[types.ContentBlock]:
    every = [(kind, getattr(result, kind)) for result in done.results for kind in ("png", "jpeg")]
    fitting = [(kind, data) for kind, data in every if data and data.isascii() and len(data) <= _PICTURE]
    return [types.ImageContent(data=data, mime_type=f"image/{kind}") for kind, data in fitting[:_PICTURES]]


@dataclass(frozen=True)
class Tool:
    """A tool that an agent may call."""

    name: str
    scope: str
    """What the client's token has to be for."""
    takes: type[Given]
    gives: Any
    call: Callable[[Held, Any], Awaitable[Answer]]


@functools.cache
def told(tool: Tool) -> types.Tool:
    """A tool as the protocol tells it."""
    return types.Tool(
        name=tool.name,
        description=tool.call.__doc__,
        input_schema=_for_agents(tool.takes.model_json_schema()),
        output_schema=_for_agents(TypeAdapter(tool.gives).json_schema()),
    )


def _for_agents(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without what is told to programmers."""
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


EVERY = (
    Tool("list_environments", "environments", Search, Found, Held.list_environments),
    Tool("describe_environment", "environments", Which, Described, Held.describe_environment),
    Tool("reset", "environments", Begin, Started, Held.reset),
    Tool("step", "environments", Step, Seen, Held.step),
    Tool("close", "environments", End, Ended, Held.close),
    Tool("run_code", "sandboxes", Code, Done, Held.run_code),
    Tool("run_command", "sandboxes", Command, Done, Held.run_command),
    Tool("read_file", "sandboxes", Read, Contents, Held.read_file),
    Tool("write_file", "sandboxes", Write, Written, Held.write_file),
    Tool("list_files", "sandboxes", Folder, Listing, Held.list_files),
    Tool("close_sandbox", "sandboxes", InSandbox, Ended, Held.close_sandbox),
)

ONE = (
    Tool("reset", "environments", Task, First, Held.reset_only),
    Tool("step", "environments", Act, Seen, Held.step_only),
)

"""OpenReward's environments (ORS): ``OpenReward().environments.get(ENV_ID)`` with ``OPENREWARD_SESSION_URL`` and
``OPENREWARD_API_URL`` set to ``http://HOST:PORT``.

``OPENREWARD_API_KEY`` is a token of the server, or any text if the server has no tokens. The client ignores the path of
these URLs, so the protocol has no prefix. An environment has one tool, ``step``. Its tasks are numbered, or they are
seeds; ``rollenv eval`` plays the tasks of the split ``test``. The server's function (``--group-reward``) scores groups,
as ``rewards.group`` does in a recipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from rollenv.agents.prompts.session import shown
from rollenv.core import cards
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import EpisodeOver, RollenvError, UsageError
from rollenv.core.registry import list_envs
from rollenv.core.version import __version__
from rollenv.remote.protocol import FAILED, ServerFull, SessionGone, session_name
from rollenv.rollout.evaluate import DEFAULT_TASKS
from rollenv.rollout.types import Task, Trajectory, Turn
from rollenv.serve.auth import Client
from rollenv.serve.responses import Json, body_of, json_of, retry_after, status_of, validated
from rollenv.serve.server import EnvServer
from rollenv.serve.session import EnvSession
from rollenv.serve.sessions import served

logger = logging.getLogger(__name__)

#: Seeds of the splits of an environment whose tasks are not numbered.
_SEEDS = {"train": range(1_000_000, 1_010_000), "test": range(DEFAULT_TASKS)}

#: Names of splits that clients support; any other split is called "test".
_SPLITS = ("train", "validation", "test")

#: Seconds between keepalives in the answer to a call; clients time out after 30.
_ALIVE = 10.0

#: Characters of a piece of an answer; clients read lines up to 128 KiB.
_PIECE = 4096

#: Maximum calls of a session, running or finished, and seconds for which finished ones are kept for a repeated request.
_CALLS, _KEPT = 8, 60.0

#: Types of message blocks, besides text, that candidates may have.
_RICH = ("reasoning", "tool_call", "tool_result")

_TOOL = {
    "name": "step",
    "description": "Play a turn.",
    "input_schema": {
        "type": "object",
        "properties": {
            "action": {"type": "string", "description": "What to do, in the form that the prompt explains."}
        },
        "required": ["action"],
    },
}


class Play:
    """A client's session.

    Args:
        task: "seed", and "index" where tasks are numbered.
    """

    def __init__(self, owner: str, env_id: str, task: dict[str, int]):
        self.about = (owner, env_id, task)
        self.prompt: list[dict[str, Any]] = []
        self.beginning: asyncio.Task[EnvSession] | None = None
        self.calls: dict[str, asyncio.Task[tuple[str, str]]] = {}

    async def begun(self, server: EnvServer, name: str) -> EnvSession:
        """Open the session and start its task, or wait for a concurrent call that does.

        Raises:
            SessionGone: the session was ended meanwhile.
        """
        if self.beginning is None:
            self.beginning = asyncio.get_running_loop().create_task(self._begin(server, name))
        try:
            return await asyncio.shield(self.beginning)
        except asyncio.CancelledError:
            if self.beginning.cancelled():
                raise SessionGone("the session was ended") from None
            raise

    async def _begin(self, server: EnvServer, name: str) -> EnvSession:
        owner, env_id, task = self.about
        session = await server.sessions.open(name, owner, env_id)
        try:
            options = {"index": task["index"]} if "index" in task else {}
            observation, info, *_ = await session.call("reset", [task["seed"], options])
        except BaseException:
            server.sessions.close(session)
            raise
        self.prompt = [_block(observation, info, info)]
        return session

    def call(self, work: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> str:
        """Start a call, which continues if its client disconnects.

        Returns:
            The name of the call.
        """
        old = [key for key, call in self.calls.items() if call.done()]
        for key in old[: max(0, len(self.calls) - _CALLS + 1)]:
            del self.calls[key]
        if len(self.calls) >= _CALLS:
            raise UsageError(f"{len(self.calls)} calls of this session run already")
        key, loop = session_name(), asyncio.get_running_loop()
        self.calls[key] = loop.create_task(_called(self.about[0], work()))
        self.calls[key].add_done_callback(lambda _: loop.call_later(_KEPT, self.calls.pop, key, None))
        return key


async def _called(owner: str, work: Coroutine[Any, Any, dict[str, Any]]) -> tuple[str, str]:
    """Return the last event of a call, and its data."""
    try:
        return "end", json_of(await work)
    except RollenvError as error:
        return "error", str(error)
    except asyncio.CancelledError:
        return "error", "the session was ended"
    except Exception:
        logger.exception("a call of %s failed", owner)
        return "error", FAILED


async def _output(session: EnvSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name != _TOOL["name"]:
        return _wrong("not_found", f"{name!r:.40} is not a valid tool; there is step")
    if arguments.keys() != {"action"} or not isinstance(arguments["action"], str):
        return _wrong("input_validation", "step takes an action, which is a text")
    try:
        observation, reward, terminated, truncated, info, *_ = await session.call("step", [arguments["action"]])
    except EpisodeOver:
        return _wrong("episode_finished", "the episode is over; another session begins another one")
    except UsageError as error:
        return _wrong("input_validation", str(error))
    output = {
        "blocks": [_block(observation, info)],
        "metadata": {"info": info, "terminated": terminated, "truncated": truncated},
        "reward": reward,
        "finished": terminated or truncated,
    }
    return {"ok": True, "output": output}


def _wrong(reason: str, error: str) -> dict[str, Any]:
    return {"ok": False, "error": error, "reason": reason}


def _block(observation: str, info: dict[str, Any], detail: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"text": shown(observation, info), "detail": detail, "type": "text"}


def routes(server: EnvServer) -> list[BaseRoute]:
    """Routes of the protocol; those about an environment also below its id, for a client's ``variant``."""
    service = _Service(server)
    general: dict[str, tuple[str, _Handler]] = {
        "list_environments": ("GET", service.every),
        "version": ("GET", service.version),
        "create_session": ("POST", service.create_session),
        "create": ("POST", service.create),
        "ping": ("POST", service.ping),
        "delete": ("POST", service.delete),
        "delete_session": ("POST", service.delete),
    }
    of_environments: dict[str, tuple[str, _Handler]] = {
        "tools": ("GET", service.tools),
        "task_tools": ("GET", service.tools),
        "splits": ("GET", service.splits),
        "tasks": ("POST", service.tasks),
        "num_tasks": ("POST", service.num_tasks),
        "task": ("POST", service.task),
        "task_range": ("POST", service.tasks),
        "prompt": ("GET", service.prompt),
        "messages": ("GET", service.messages),
        "call": ("POST", service.call),
        "score_group": ("POST", service.score_group),
    }
    routes: list[BaseRoute] = [service.route(f"/{name}", *how) for name, how in (general | of_environments).items()]
    return routes + [service.route(f"/{{env_id}}/{name}", *how) for name, how in of_environments.items()]


#: Answers a request of an authenticated client.
_Handler = Callable[[Client, Request], Awaitable[Response]]


class _Service:
    def __init__(self, server: EnvServer):
        self.server = server
        self._plays: dict[str, Play] = {}
        self._rows: dict[str, int] = {}

    def route(self, path: str, verb: str, handler: _Handler) -> Route:
        """Build a route with error responses that the client understands."""

        async def answered(request: Request) -> Response:
            try:
                client = self.server.client(request, "environments")
                return await handler(client, request)
            except SessionGone as error:  # the client takes a 404 for a server that lacks the path
                return Json({"detail": str(error)}, 410)
            except ServerFull as error:  # nothing has happened, so the client may retry until there is room
                headers = retry_after(error) | {"X-Backend-State": "starting"}
                return Json({"detail": str(error)}, status_of(error), headers)

        return Route(path, answered, methods=[verb])

    async def every(self, client: Client, request: Request) -> Response:
        return Json([spec.id for spec in list_envs()])

    async def version(self, client: Client, request: Request) -> Response:
        return Json({"version": __version__, "build_sha": None})

    async def create_session(self, client: Client, request: Request) -> Response:
        """Return a name for a session, which :meth:`create` opens."""
        return _stream(_pieces([("task_id", session_name()), ("end", "")]))

    async def create(self, client: Client, request: Request) -> Response:
        """Open a session and start its task. The request is idempotent."""
        body, name = await body_of(request), _name(request)
        if body.get("toolset_name") is not None:
            raise UsageError("this server adds no toolsets to environments")
        spec, task = self._env(request, body.get("env_name")), body.get("task_spec")
        if task is None:
            task = _task(spec, _chosen(await self._numbers(client, spec, body), body))
        about = (client.name, spec.id, validated(_Task, task).model_dump(exclude_none=True))
        self._plays = {
            key: play
            for key, play in self._plays.items()
            if (key in self.server.sessions.by_name or not (play.beginning and play.beginning.done()))
        }
        play = self._plays.get(name)
        if (play is None and name in self.server.sessions.by_name) or (play is not None and play.about != about):
            raise UsageError("a session with this name already exists")
        play = self._plays.setdefault(name, Play(*about))
        try:
            await play.begun(self.server, name)
        except BaseException:
            if self._plays.get(name) is play:
                del self._plays[name]
            raise
        return Json({"sid": name})

    async def ping(self, client: Client, request: Request) -> Response:
        """Keep a session alive."""
        _, session = await self._play(client, request)
        session.last_call_at = time.monotonic()
        return Json({"status": "ok"})

    async def delete(self, client: Client, request: Request) -> Response:
        name = _name(request)
        play = self._plays.get(name)
        if play is not None and play.about[0] == client.name:
            del self._plays[name]
            for task in (play.beginning, *play.calls.values()):
                if task is not None:
                    task.cancel()
            with contextlib.suppress(SessionGone):
                self.server.sessions.close(self.server.sessions.get(name, client.name))
        return Json({"sid": name})

    async def tools(self, client: Client, request: Request) -> Response:
        tool = _TOOL | {"description": f"Play a turn. {cards.summary(self._env(request))}".strip()}
        scores = self.server.group_reward is not None
        blocks = ["text", *(_RICH if scores else ())]
        more = {"terminal_tool": None, "supports_score_group": scores, "message_block_types": blocks}
        return Json({"tools": [tool]} | more)

    async def splits(self, client: Client, request: Request) -> Response:
        return Json([{"name": name, "type": name} for name in _splits(self._env(request))])

    async def num_tasks(self, client: Client, request: Request) -> Response:
        spec, body = self._env(request), await body_of(request)
        return Json({"num_tasks": len(await self._numbers(client, spec, body))})

    async def task(self, client: Client, request: Request) -> Response:
        spec, body = self._env(request), await body_of(request)
        number = _chosen(await self._numbers(client, spec, body), body)
        return Json({"task": _task(spec, number), "env_name": spec.id})

    async def tasks(self, client: Client, request: Request) -> Response:
        """Return the tasks of a split, from the optional "start" to the optional "stop"."""
        spec, body = self._env(request), await body_of(request)
        start, stop = (_whole_number(body, name) for name in ("start", "stop"))
        numbers = (await self._numbers(client, spec, body))[start:stop]
        return Json({"tasks": [_task(spec, number) for number in numbers], "env_name": spec.id})

    async def prompt(self, client: Client, request: Request) -> Response:
        play, _ = await self._play(client, request)
        return Json(play.prompt)

    async def messages(self, client: Client, request: Request) -> Response:
        """Return the prompt as a conversation."""
        play, _ = await self._play(client, request)
        return Json([{"role": "user", "blocks": play.prompt, "detail": None}])

    async def call(self, client: Client, request: Request) -> Response:
        """Call the tool, or fetch the answer to an earlier call."""
        play, session = await self._play(client, request)
        body = await body_of(request)
        key, name, arguments = body.get("task_id"), body.get("name"), body.get("input")
        if key is None:
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise UsageError("a call has a name, which is a text, and an input, which is an object")
            key = play.call(functools.partial(_output, session, name, arguments))
        return _stream(_answer(str(key), play.calls.get(str(key))))

    async def score_group(self, client: Client, request: Request) -> Response:
        """Return the group reward of each of several conversations about the session's task."""
        if (reward := self.server.group_reward) is None:
            return Json({"detail": "this server was started without --group-reward module:function"}, 404)
        play, _ = await self._play(client, request)
        params = validated(_Group, await body_of(request))
        if (key := params.task_id) is None:
            _, env_id, task = play.about
            played = Task(env_id, task["seed"], options={"index": task["index"]} if "index" in task else {})
            members = [_trajectory(played, number, each) for number, each in enumerate(params.candidates)]
            where = f"the group reward {reward.name}, for {env_id}"

            async def scores() -> dict[str, Any]:
                # in a thread with its own loop, because a plain function may take long
                paid = await asyncio.to_thread(lambda: asyncio.run(reward.rewards(members, where)))
                return {"scores": [{"reward": each, "metadata": None} for each in paid]}

            key = play.call(scores)
        return _stream(_answer(key, play.calls.get(key)))

    def _env(self, request: Request, name: Any = None) -> EnvSpec:
        """Return the environment of a request: by name, by its path, or by the client's deployment."""
        deployment = request.headers.get("x-deployment", "").rpartition("/")[2]
        return served(name if name is not None else request.path_params.get("env_id", deployment))

    async def _play(self, client: Client, request: Request) -> tuple[Play, EnvSession]:
        name = _name(request)
        play, session = self._plays.get(name), self.server.sessions.get(name, client.name)
        if play is None:
            raise SessionGone("the session was opened elsewhere")
        await play.begun(self.server, name)
        return play, session

    async def _numbers(self, client: Client, spec: EnvSpec, body: dict[str, Any]) -> range:
        split = body.get("split")
        if split not in _splits(spec):
            raise UsageError(f"{spec.id} has no split {split!r:.40}; it has {', '.join(_splits(spec))}")
        if not spec.indexed:
            return _SEEDS[split]
        if spec.id not in self._rows:
            async with self.server.sessions.brief(client.name, spec.id) as session:
                self._rows[spec.id] = int(await session.call("num_tasks", []))
        return range(self._rows[spec.id])


def _splits(spec: EnvSpec) -> tuple[str, ...]:
    if not spec.indexed:
        return tuple(_SEEDS)
    split = spec.kwargs.get("split", "train")
    return (split if split in _SPLITS else "test",)


def _task(spec: EnvSpec, number: int) -> dict[str, int]:
    """Return a task as in ``rollenv eval``."""
    return {"seed": number} | ({"index": number} if spec.indexed else {})


class _Task(BaseModel):
    """A task of a client; environments with numbered tasks need the index."""

    model_config = ConfigDict(extra="forbid", strict=True)
    seed: int = Field(ge=0)
    index: int | None = Field(None, ge=0)


class _Block(BaseModel):
    """A part of a message; pictures are not supported."""

    type: Literal["text", "reasoning", "tool_call", "tool_result"]
    text: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    blocks: list[_Block] = []

    @property
    def words(self) -> str:
        """The text of a block, which for a call of the tool ``step`` is its action."""
        if self.type == "tool_call":
            return str(self.input["action"]) if [*self.input] == ["action"] else json_of(self.input)
        return self.text or _words(self.blocks)


class _Message(BaseModel):
    role: Literal["system", "user", "assistant"]
    blocks: list[_Block]


class _Candidate(BaseModel):
    messages: list[_Message] = Field(max_length=10_000)


class _Group(BaseModel):
    """Conversations to score, or the name of a call that is already scoring some."""

    candidates: list[_Candidate] = Field(min_length=1, max_length=1024)
    task_id: str | None = None


def _words(blocks: list[_Block]) -> str:
    return "\n".join(filter(None, (block.words for block in blocks)))


def _trajectory(task: Task, number: int, candidate: _Candidate) -> Trajectory:
    """Convert a conversation to a trajectory without rewards, with a turn for each message of the assistant."""
    trajectory, observed = Trajectory(task, status="terminated", member=number), ""
    for message in candidate.messages:
        if message.role == "assistant":
            calls = [block for block in message.blocks if block.type == "tool_call"]
            texts = calls or [block for block in message.blocks if block.type == "text"]
            raw = _words(message.blocks)
            trajectory.turns.append(Turn((), (), (), 0.0, _words(texts), observed, raw=raw))
            observed = ""
        elif message.role == "user":
            observed = "\n".join(filter(None, (observed, _words(message.blocks))))
    if not trajectory.turns:
        raise UsageError(f"candidate {number} has no message of the assistant, so there is nothing to score")
    trajectory.final_observation = observed
    return trajectory


def _chosen(numbers: range, body: dict[str, Any]) -> int:
    index = _whole_number(body, "index")
    if index is None or not -len(numbers) <= index < len(numbers):
        raise UsageError(f"there are tasks 0 to {len(numbers) - 1}, not {index!r:.40}")
    return numbers[index]


def _whole_number(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | None):
        raise UsageError(f"{name} is a whole number, not {value!r:.40}")
    return value


def _name(request: Request) -> str:
    name = request.headers.get("x-session-id", "").strip()
    if not name:
        raise UsageError("the header X-Session-ID is needed; create_session makes a name")
    return name


async def _answer(key: str, call: asyncio.Task[tuple[str, str]] | None) -> AsyncIterator[str]:
    if call is None:
        yield _event("error", "there is no such call")
        return
    yield _event("task_id", key)
    while not call.done():
        await asyncio.wait({call}, timeout=_ALIVE)
        if not call.done():
            yield ": it runs\n\n"
    async for piece in _pieces([call.result()]):
        yield piece


async def _pieces(events: list[tuple[str, str]]) -> AsyncIterator[str]:
    """Format events, large ones in pieces."""
    for event, data in events:
        while event == "end" and len(data) > _PIECE:
            yield _event("chunk", data[:_PIECE])
            data = data[_PIECE:]
        yield _event(event, data)


def _event(event: str, data: str) -> str:
    if data.startswith(" "):  # the client drops a leading space, which here is always part of a JSON string
        data = "\\u0020" + data[1:]
    return f"event: {event}\ndata: {' '.join(data.splitlines())}\n\n"


def _stream(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

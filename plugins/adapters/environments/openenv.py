"""``openenv:URL``: the environment of a running OpenEnv server.

Replies are converted to actions by the server's JSON schema. A session is one WebSocket.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import re
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import NoSuchAbility, RollenvError, UsageError
from rollenv.core.needs import extra
from rollenv.core.parsing import last_code_block, well_formed
from rollenv.core.proxies import without_proxy
from rollenv.plugins.adapters.environments import Misbehaved, boxed, json_of, one_line
from rollenv.plugins.adapters.environments.showing import plain, show
from rollenv.remote.protocol import NotAllowed, ServerFull, ServerLost

with extra("serve", "An OpenEnv server"):
    from websockets.exceptions import InvalidStatus, WebSocketException

    from rollenv.remote.connection import BlockingWebSocket


#: Maximum size of a message, in bytes.
_LARGEST_MESSAGE = 100 * 2**20
#: Timeout of connections and of requests without a session, in seconds.
_CONNECT = 10.0
#: Seconds without data before a ping, and again before a busy server counts as lost; a step may block its event loop.
_SILENCE = 60.0


class Refused(Exception):
    """The server rejected a malformed message; the session continues."""


def base_of(address: str) -> str:
    """Normalise the address of a server to ``http://HOST:PORT/PATH``."""
    kind, _, rest = address.rpartition("://")
    text = re.sub("^ws", "http", kind.lower() or "http") + "://" + rest.rstrip("/").removesuffix("/ws")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and (parts.port or 1) > 0 and text.isprintable() and " " not in text
        usable = usable and bool((parts.hostname or "").encode("idna")) and bool(httpx.URL(text).host)
    except (ValueError, httpx.InvalidURL):  # a UnicodeError is a ValueError
        usable = False
    if not usable or "@" in parts.netloc or parts.query or parts.fragment:
        shown = address.rpartition("@")[2]
        raise UsageError(f"openenv:{shown} is not of the form openenv:http://HOST:PORT (a token goes to OPENENV_TOKEN)")
    return text


def _headers() -> dict[str, str]:
    """Return headers with the token in OPENENV_TOKEN, which must not be part of stored addresses."""
    token = os.environ.get("OPENENV_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise UsageError("OPENENV_TOKEN has characters that no token has")
    return {"Authorization": f"Bearer {token}"} if token else {}


@functools.lru_cache(maxsize=64)
def about(base: str) -> dict[str, Any]:
    """Return the server's ``schema`` of actions (empty if none), ``tools``, ``name`` and ``description``.

    Raises:
        ServerLost: it does not answer.
    """
    alone = httpx.Limits(max_keepalive_connections=0)  # some servers close idle connections without notice
    verify, mounts = base.startswith("https"), without_proxy(base)
    with httpx.Client(headers=_headers(), timeout=_CONNECT, verify=verify, limits=alone, mounts=mounts) as client:
        schema, described = _got(client, f"{base}/schema", base), _got(client, f"{base}/metadata", base)
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        listed = _got(client, f"{base}/mcp", base, listing) if _calls_tools(schema) else None
    action = schema.get("action") if isinstance(schema, dict) else None
    if schema is not None and not isinstance(action, dict):
        raise UsageError(f"openenv:{base} is not an OpenEnv server: /schema has no form of actions")
    if schema is None and described is None:  # the WebSocket alone is enough
        with contextlib.closing(Wire(base)) as wire:
            wire.connect()
    metadata = described if isinstance(described, dict) else {}
    tools = (listed.get("result") or {}).get("tools") if isinstance(listed, dict) else None
    named = {name: metadata.get(name) for name in ("name", "description")}
    return {"schema": action or {}, "tools": tools or [], **named}


def _calls_tools(schema: Any) -> bool:
    """Return whether actions are calls of tools, ``{"tool_name": ..., "arguments": ...}``."""
    action = schema.get("action") if isinstance(schema, dict) else None
    fields = action.get("properties") if isinstance(action, dict) else None
    return isinstance(fields, dict) and {"tool_name", "arguments"} <= fields.keys()


def _got(client: httpx.Client, url: str, base: str, body: Any = None) -> Any:
    """Get JSON from a server, by POST if there is a body; None if it has no such page."""
    try:
        answer = client.get(url) if body is None else client.post(url, json=body)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise ServerLost(f"no OpenEnv server answers at {base} ({one_line(error)}): is it running?") from error
    if answer.status_code in (401, 403):
        raise NotAllowed(f"the server at {base} refuses ({answer.status_code}): put its token into OPENENV_TOKEN")
    if answer.status_code != 200:
        return None
    try:
        return answer.json()
    except (ValueError, RecursionError) as error:
        raise UsageError(f"openenv:{base} is not an OpenEnv server: {url} is not JSON") from error


class Wire:
    """A session, from the first message until :meth:`close`. Not thread-safe.

    Args:
        timeout: timeout of an answer, in seconds.
    """

    def __init__(self, base: str, timeout: float = 600.0):
        self.base, self.timeout = base, timeout
        self._socket: BlockingWebSocket | None = None

    def connect(self) -> BlockingWebSocket:
        """Start a session, unless there is one.

        Raises:
            ServerLost: no server answers.
        """
        if self._socket is None:
            url = f"ws{self.base.removeprefix('http')}/ws"
            try:
                self._socket = BlockingWebSocket(url, _headers(), largest=_LARGEST_MESSAGE, silence=_SILENCE)
            except InvalidStatus as error:
                problem = f"{url} answers {error.response.status_code} (a token for it goes to OPENENV_TOKEN)"
                raise UsageError(f"openenv:{self.base} is not an OpenEnv server: {problem}") from error
            except (OSError, WebSocketException) as error:
                about.cache_clear()
                raise ServerLost(f"no OpenEnv server answers at {url} ({one_line(error)}): is it running?") from error
        return self._socket

    def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the content of the answer.

        Args:
            kind: type of the message, ``reset`` or ``step``.

        Raises:
            Refused: the message is malformed.
            Misbehaved: the environment failed, or the answer violates the protocol.
            ServerFull: the server is full.
            ServerLost: the connection was lost, or the answer timed out.
        """
        again = self._socket is not None and kind == "reset"  # retry, as the idle connection may have been closed
        message = json.dumps({"type": kind, "data": data})
        socket = self.connect()
        try:
            with contextlib.suppress(OSError, WebSocketException):  # a full server sends the reason before it closes
                socket.send(message)
            answer = socket.receive(time.monotonic() + self.timeout)[0]
        except TimeoutError as error:  # a late answer would be mistaken for that of the next message
            self.close()
            raise ServerLost(f"{self.base} gave no answer to a {kind} within {self.timeout:g} s") from error
        except (OSError, WebSocketException) as error:
            self.close()
            if again:
                return self.ask(kind, data)
            raise ServerLost(f"the OpenEnv server at {self.base} was lost in a {kind} ({one_line(error)})") from error
        return self._content(kind, answer)

    def _content(self, kind: str, answer: bytes) -> dict[str, Any]:
        try:
            message = json.loads(answer)
            what, content = message["type"], message.get("data") or {}
            if not isinstance(content, dict):
                raise TypeError("no object")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self.close()
            raise Misbehaved(
                f"{self.base} answered a {kind} with {answer!r:.80}, which is not OpenEnv's form"
            ) from error
        if what == "observation" and "observation" in content:
            return content
        code, text = str(content.get("code")), " ".join(str(content.get("message")).split())[:300]
        if what == "error" and code in ("VALIDATION_ERROR", "INVALID_JSON"):
            raise Refused(f"{text} {_details(content.get('errors'))}".strip())
        self.close()
        if what == "error" and code == "CAPACITY_REACHED":
            raise ServerFull(f"the OpenEnv server at {self.base} has no room: {text}")
        if what == "error":
            raise Misbehaved(f"the OpenEnv server at {self.base} failed in a {kind}: {code}: {text}")
        raise Misbehaved(f"{self.base} answered a {kind} with {what!r:.40}, which is not OpenEnv's form")

    def close(self) -> None:
        """End the session."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(OSError, WebSocketException):
                socket.send('{"type": "close"}')
            socket.close()


def _details(errors: Any) -> str:
    found = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
    return "; ".join(f"{_location(each.get('loc'))}: {each.get('msg')}" for each in found[:3])[:300]


def _location(loc: Any) -> str:
    return ".".join(map(str, loc)) if isinstance(loc, list) else ""


_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
#: Maximum length of the list of choices for the agent.
_LONGEST = 4000


class Form:
    r"""The format of actions.

    With a single field, or a single required one, the reply is its value: all of it for a text, the last ``\boxed{}``
    for numbers and choices. Otherwise, and for a call of a tool, the reply has a JSON object, in a code block, in a box
    or alone.

    Args:
        schema: JSON schema of actions; empty if unknown.
        tools: MCP's descriptions of the tools that can be called.

    Raises:
        UsageError: there is no such field, or the schema is invalid.
    """

    def __init__(self, schema: Mapping[str, Any], field: str | None = None, tools: Sequence[Any] = ()):
        try:
            parts = schema.get("properties") or {}
            known = {n: _resolved(each, schema) for n, each in parts.items() if n != "metadata"}
            required = [name for name in schema.get("required") or () if name in known]
            if field is not None and known and field not in known:
                raise UsageError(f"the server's actions have no field {field!r}; there are {', '.join(known)}")
            self.fields: dict[str, Mapping[str, Any]] = known
            self.required = required
            alone = list(known) if _calls_tools({"action": schema}) else required or list(known)
            self._tools = [_signature(tool) for tool in tools]
            self.only = field or (alone[0] if len(alone) == 1 else None)
            if self.asked and self.can_sample:
                self.sample(random.Random(0))
        except UsageError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError, RecursionError) as error:
            raise UsageError(
                f"the server's form of actions is not a JSON schema that can be read: {error!r:.100}"
            ) from error

    @property
    def _only_schema(self) -> Mapping[str, Any]:
        return self.fields.get(self.only or "", {"type": "string"})

    @property
    def asked(self) -> str:
        """The description of the format for the agent; empty if any text is valid."""
        return well_formed(self._asked())

    def _asked(self) -> str:
        if self.only is not None:
            words = _words(self._only_schema)
            if _is_text(self._only_schema):
                return "" if words == "text" else f"Your reply is {self.only}: {words}."
            return f"Reply with {self.only} in a box, as in \\boxed{{...}}: {words}."
        if not self.fields:
            return "Reply with a JSON object."
        optional = {name: "" if name in self.required else " (may be left out)" for name in self.fields}
        chosen = {name: each for name, each in self.fields.items() if "const" not in each or name in self.required}
        lines = [f"- {name}: {_words(each)}{optional[name]}" for name, each in chosen.items()]
        lines += ["The tools:", *self._tools] if self._tools else []
        return "Reply with a JSON object of these fields:\n" + "\n".join(lines)

    def read(self, reply: str) -> dict[str, Any]:
        """Parse a reply to an action.

        Raises:
            ValueError: the reply is invalid; the message is for the agent.
        """
        if self.only is None:
            block = last_code_block(reply, None)
            found = json_of(block if block is not None else boxed(reply))
            if not isinstance(found, dict):
                raise ValueError("a JSON object is wanted")
            return found
        schema = self._only_schema
        if _is_text(schema):
            return {self.only: well_formed(reply)}
        text = boxed(reply)
        value = text if text in (schema.get("enum") or ()) else json_of(text)
        if not _fits(value, schema):
            raise ValueError(f"{text!r:.60} is not {_words(schema)}")
        return {self.only: value}

    @property
    def can_sample(self) -> bool:
        """True if the schema bounds actions."""
        wanted = [self.only] if self.only else self.required
        return bool(wanted) and all(_bounded(self.fields.get(name or "", {})) for name in wanted)

    def sample(self, rng: random.Random) -> str:
        """Return a reply with a random action."""
        if self.only is not None:
            value = _sample(self._only_schema, rng)
            return f"\\boxed{{{value if isinstance(value, str) else json.dumps(value)}}}"
        return json.dumps({name: _sample(self.fields[name], rng) for name in self.required})


def _signature(tool: Mapping[str, Any]) -> str:
    """Return a line about a tool: its name, what it does, and the schema of its arguments."""
    arguments = json.dumps((tool.get("inputSchema") or {}).get("properties") or {}, ensure_ascii=False)
    described = " ".join(str(tool.get("description") or "").split())
    return f"- {tool['name']}: {described:.{_LONGEST}} arguments: {arguments:.{_LONGEST}}"


def _resolved(schema: Any, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a field, with references resolved, and without null among the alternatives."""
    if not isinstance(schema, Mapping):
        return {}
    if isinstance(ref := schema.get("$ref"), str):
        named = (whole.get("$defs") or {}).get(ref.rpartition("/")[2]) or {}
        return {**named, **{key: value for key, value in schema.items() if key != "$ref"}}
    for several in ("anyOf", "oneOf", "allOf"):
        options = schema.get(several) or ()
        some = [_resolved(each, whole) for each in options if isinstance(each, Mapping) and each.get("type") != "null"]
        if len(some) == 1:
            return {**some[0], **{key: value for key, value in schema.items() if key != several}}
    if isinstance(schema.get("type"), list):
        kinds = [kind for kind in schema["type"] if kind != "null"]
        return {**schema, "type": kinds[0] if len(kinds) == 1 else kinds}
    if "const" in schema:
        return {**schema, "enum": [schema["const"]]}
    return schema


def _is_text(schema: Mapping[str, Any]) -> bool:
    several = any(name in schema for name in ("anyOf", "oneOf", "allOf"))
    return schema.get("type", "string") == "string" and not schema.get("enum") and not several


def _words(schema: Mapping[str, Any]) -> str:
    if schema.get("enum"):
        kind = f"one of {', '.join(map(str, schema['enum'])):.{_LONGEST}}"
    elif _is_text(schema):
        kind = "text"
    else:
        kind = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}.get(
            str(schema.get("type")), "a JSON value"
        )
        bounds = [f"{word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema]
        kind = " ".join([kind, *bounds])
    description = " ".join(str(schema.get("description") or "").split())
    return f"{kind} ({description})" if description else kind


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if schema.get("enum"):
        return value in schema["enum"]
    kinds = _TYPES.get(str(schema.get("type")))
    if kinds is None:
        return True
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _bounded(schema: Mapping[str, Any]) -> bool:
    has_range = schema.get("type") == "integer" and "minimum" in schema and "maximum" in schema
    return bool(schema.get("enum")) or schema.get("type") == "boolean" or has_range


def _sample(schema: Mapping[str, Any], rng: random.Random) -> Any:
    if schema.get("enum"):
        return rng.choice(list(schema["enum"]))
    if schema.get("type") == "boolean":
        return rng.random() < 0.5
    return rng.randint(math.ceil(schema["minimum"]), math.floor(schema["maximum"]))


#: OpenEnv's own fields, which are hidden.
_NOT_SHOWN = ("done", "reward", "metadata")
#: Maximum absolute value of a reward.
_LARGEST = 1e100


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of ``openenv:URL``, with the server's description.

    The only ability is random actions, if the schema bounds actions: OpenEnv has no states and copies, and a server may
    ignore the seed.

    Raises:
        UsageError: it is not the address of an OpenEnv server.
        ServerLost: no server answers.
    """
    base = base_of(env_id.partition(":")[2])
    described = about(base)
    what = " ".join(str(described["description"] or described["name"] or "an environment").split())
    return EnvSpec(
        env_id,
        "rollenv.plugins.adapters.environments.openenv:make_openenv",
        {"url": base},
        frozenset({"random_action"} if Form(described["schema"]).can_sample else ()),
        nondeterministic=True,
        summary=f"{what:.100} (an OpenEnv server)",
    )


def make_openenv(url: str, max_turns: int = 200, timeout: float = 600.0, action_field: str | None = None) -> Env:
    """Make an environment of an OpenEnv server; the session starts with the first reset.

    Args:
        max_turns: turns before the episode is truncated.
        timeout: timeout of an answer, in seconds.
        action_field: field of actions for the agent's reply; by default see :class:`Form`.

    Raises:
        UsageError: an argument is wrong, or it is not an OpenEnv server.
        ServerLost: no server answers.
    """
    if max_turns < 1 or not timeout > 0:
        raise UsageError(f"max_turns and timeout are above 0, not {max_turns} and {timeout}")
    base = base_of(url)
    form = Form(about(base)["schema"], action_field, about(base)["tools"])
    return (_Sampling if form.can_sample else OpenEnv)(Wire(base, timeout), form, max_turns)


class OpenEnv(Env):
    """An environment of an OpenEnv server.

    A reply that does not match the server's schema passes the turn: nothing moves, the reward is 0, and
    ``info["valid"]`` is false.
    """

    #: ``inner`` are further arguments for the server's reset.
    reset_options = frozenset({"inner"})

    def __init__(self, wire: Wire, form: Form, max_turns: int):
        self.wire, self.form, self.max_turns = wire, form, max_turns
        self._given: int | None = None
        self._turn, self._observation = 0, ""
        weakref.finalize(self, wire.close).atexit = False  # in case close() is not called

    def reset(self, seed: int | None = None, *, options: dict[str, Any] | None = None) -> ResetResult:
        """Start an episode; see :meth:`rollenv.Env.reset`. The server's seed is the same, or drawn from the stream."""
        self._given = seed
        return super().reset(seed, options=options)

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        seed = int(self.np_random.integers(2**31) if self._given is None else self._given)
        self._turn, inner = 0, options.get("inner") or {}
        try:
            asked = {"seed": seed, **inner}
            json.dumps(asked)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{self}: the option inner is a dict of JSON data, not {inner!r:.40}") from error
        try:
            answer = self.wire.ask("reset", asked)
        except Refused as error:
            raise UsageError(f"{self}: the server refused the reset: {error}") from error
        _, terminated, truncated, info = self._taken(answer)
        if terminated or truncated:
            raise Misbehaved(f"{self}: the episode ended before the first turn")
        how = "" if _is_rollenvs(answer["observation"]) else self.form.asked
        return "\n\n".join(filter(None, [self._observation, how])), info

    def _step(self, action: str) -> StepResult:
        self._turn += 1
        late = self._turn >= self.max_turns
        try:
            answer = self.wire.ask("step", self.form.read(action))
        except (Refused, ValueError) as error:
            observation = f"This is not one of the actions, so nothing happened: {error}.\n{self._observation}"
            return observation, 0.0, False, late, {"valid": False}
        except RollenvError:
            self._rollenv_over = True
            raise
        reward, terminated, truncated, info = self._taken(answer)
        return self._observation, reward, terminated, not terminated and (truncated or late), {"valid": True} | info

    def _taken(self, answer: dict[str, Any]) -> tuple[float, bool, bool, dict[str, Any]]:
        observation, reward, done = answer["observation"], answer.get("reward"), answer.get("done", False)
        reward = 0.0 if reward is None else reward
        if not isinstance(reward, int | float) or not abs(reward) <= _LARGEST or not isinstance(done, bool | None):
            self._rollenv_over = True
            self.wire.close()
            raise Misbehaved(f"{self.wire.base} answered with the reward {reward!r:.40} and done {done!r:.40}")
        self._observation, info = _read(observation)
        if metadata := answer.get("metadata"):
            info.setdefault("metadata", plain(metadata))
        truncated = bool(done) and isinstance(observation, dict) and observation.get("truncated") is True
        return float(reward), bool(done) and not truncated, truncated, info

    def render(self) -> str:
        return self._observation

    def close(self) -> None:
        self._rollenv_over = True
        self.wire.close()

    def _rollenv_twin(self) -> Env:
        raise NoSuchAbility(f"{self}: OpenEnv's servers cannot copy an episode")


class _Sampling(OpenEnv):
    """An OpenEnv environment whose schema bounds actions."""

    __doc__ = OpenEnv.__doc__

    def sample_random_action(self) -> str:
        return self.form.sample(self.action_rng)


def _is_rollenvs(observation: Any) -> bool:
    """Return whether an observation comes from a rollenv environment, whose own text explains the actions."""
    fields = observation if isinstance(observation, dict) else {}
    return isinstance(fields.get("text"), str) and isinstance(fields.get("info"), dict)


def _read(observation: Any) -> tuple[str, dict[str, Any]]:
    """Return the text of an observation, and its info."""
    if not isinstance(observation, dict):
        return show(observation), {}
    info: dict[str, Any] = {}
    if _is_rollenvs(observation):
        return show(observation["text"]), dict(observation["info"])
    if isinstance(success := observation.get("success"), bool):
        info["success"] = success
    if isinstance(metadata := observation.get("metadata"), dict) and metadata:
        info["metadata"] = plain(metadata)
    shown = {name: value for name, value in observation.items() if name not in _NOT_SHOWN and value is not None}
    only = next(iter(shown.values()), "") if len(shown) < 2 else None
    return show(only if isinstance(only, str) else shown), info

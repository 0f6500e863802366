"""Requests of the page and their limits, the catalogue, and episodes that people play."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, StringConstraints
from starlette.responses import Response

from rollenv.agents.prompts.session import shown
from rollenv.core import cards
from rollenv.core.errors import EpisodeOver, NoSuchAbility, RollenvError, UsageError
from rollenv.core.human_input import ActionReader, listed_actions
from rollenv.core.pictures import Picture
from rollenv.core.registry import list_envs
from rollenv.remote.protocol import EnvBroke, SessionGone, error_answer, session_name
from rollenv.report.plain import clip, plain
from rollenv.serve.auth import Client
from rollenv.serve.responses import Streamed, json_of, without_data
from rollenv.serve.session import EnvSession
from rollenv.serve.sessions import SessionManager, served

#: Maximum actions of a replay, and bytes of all of them.
ACTIONS, BYTES = 2_000, 1 << 20

#: Maximum characters of a mapping as JSON.
_MAPPING = 10_000

#: Exclusive bounds of random seeds and of seeds of clients.
_SEEDS, _ALL_SEEDS = 10_000, 1 << 63


#: Maximum characters of an action that is sent unabridged, so that it can be replayed.
ACTION = 100_000


def _seed(value: Any) -> int:
    """Parse a seed, which is sent as digits because JavaScript's numbers are not exact."""
    digits = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    wrong = not isinstance(digits, str) or not (digits.isascii() and digits.isdigit()) or len(digits) > 30
    if wrong or int(digits) >= _ALL_SEEDS:
        raise ValueError(f"it is a whole number from 0 to {_ALL_SEEDS - 1}, not {value!r:.40}")
    return int(digits)


def _new_seed() -> int:
    return secrets.randbelow(_SEEDS)


def _small(mapping: dict[str, Any]) -> dict[str, Any]:
    if len(json_of(mapping)) > _MAPPING:
        raise ValueError(f"it has at most {_MAPPING} characters of JSON")
    return mapping


def _playable(actions: list[str]) -> list[str]:
    size = sum(len(action.encode("utf-8", "replace")) for action in actions)
    if len(actions) > ACTIONS or size > BYTES:
        raise ValueError(
            f"too long a replay: {len(actions)} actions of {size} bytes; at most {ACTIONS} of {BYTES} bytes are played"
        )
    return actions


Text = Annotated[str, StringConstraints(max_length=1000)]
Action = Annotated[str, StringConstraints(max_length=ACTION)]
Small = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value), AfterValidator(_small)]
Seed = Annotated[int, BeforeValidator(_seed)]
SeedOrNew = Annotated[int, BeforeValidator(lambda value: _new_seed() if value == "" else _seed(value))]


class Nothing(BaseModel):
    """A request without fields."""


class OfSession(BaseModel):
    """A request about one of the client's sessions."""

    session: str = Field(max_length=64)


class CardRequest(BaseModel):
    """A request for the card of an environment, with additional arguments."""

    env: Text
    arguments: Small = Field({}, validation_alias=AliasChoices("kwargs"))  # mypy rejects a field named kwargs


class Reset(OfSession):
    """A request to start another episode."""

    seed: SeedOrNew = Field(default_factory=_new_seed)
    options: Small = {}


class Open(CardRequest, Reset):
    """A request to open a session with a name of the page, which can end it while it is opened."""


class Act(OfSession):
    """A request to play an action, or a typed text, which is completed to an action."""

    action: Action | None = None
    typed: Action | None = None


class Suggest(OfSession):
    """A request for an action of the oracle, or a random one."""

    kind: Text


class Replay(CardRequest):
    """A request to replay an episode, or to let the agent "oracle" or "random" play one."""

    seed: Seed
    options: Small = {}
    agent: Text = ""
    actions: Annotated[list[str], AfterValidator(_playable)] | None = None


#: Maximum characters of a drawing and of one choice, and maximum choices.
_VIEW, _CHOICE, _CHOICES = 400_000, 300, 300

#: Maximum pictures of a turn, and bytes of all of them that are shown.
_IMAGES, _IMAGE_BYTES = 16, 1 << 20


def turn_of(method: str, args: list[Any], answer: list[Any]) -> dict[str, Any]:
    """Build a turn for the page."""
    if method == "reset":
        observation, info, _, view = answer
        turn: dict[str, Any] = {"seed": str(args[0]) if args[0] is not None else ""}
    else:
        observation, reward, terminated, truncated, info, _, view = answer
        action = args[0] if len(args[0]) <= ACTION else clip(args[0])
        turn = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
    return turn | {
        "observation": clip(shown(observation, info)),
        "images": _addresses(info.get("images", ())),
        "info": _info(without_data(info)),
        "success": info.get("success"),
        "view": view if len(view) <= _VIEW else "",
        **choices(info),
    }


def _addresses(images: Sequence[Picture]) -> list[str]:
    """Return data URLs of the pictures; of those beyond the limits, their sizes."""
    shown, left = [], _IMAGE_BYTES
    for image in images[:_IMAGES]:
        left -= len(image.data)
        size = f"a picture of {image.width} x {image.height} pixels and {len(image.data)} bytes, {image.sha256[:12]}"
        shown.append(image.url if left >= 0 else size)
    return shown


def choices(info: dict[str, Any]) -> dict[str, Any]:
    """Return the actions that an info offers, and whether it offers a search."""
    offered = info.get("available_actions")
    search = isinstance(offered, dict) and offered.get("has_search_bar") is True  # WebShop
    actions = listed_actions(info)[:_CHOICES]
    return {"choices": [action for action in actions if len(action) <= _CHOICE], "search": search}


def _info(info: dict[str, Any]) -> str:
    """Format an info as JSON; a large one on one line, because indenting it takes time."""
    try:
        text = json_of(info)
        return json.dumps(plain(json.loads(text)), indent=2) if len(text) <= 20_000 else clip(text)
    except (TypeError, ValueError, RecursionError) as error:  # such as infinite numbers
        return f"(it cannot be shown: {error})"


#: Seconds for which the rows are cached, since missing needs may be installed; cached cards; timeout of an example.
_FRESH, _KEPT, _SECONDS = 60.0, 256, 60.0


class EpisodeCatalogue:
    """The rows and cards of environments."""

    def __init__(self, sessions: SessionManager):
        self._sessions = sessions
        self._rows: dict[str, Any] = {}
        self._made = 0.0
        self._cards: OrderedDict[tuple[str, str], asyncio.Task[dict[str, Any]]] = OrderedDict()

    async def rows(self, client: Client, params: Nothing) -> Any:
        """Return all environments; texts that several share are sent once."""
        if not self._rows or time.monotonic() - self._made > _FRESH:
            self._rows = await asyncio.to_thread(_rows)
            self._made = time.monotonic()
        return self._rows

    async def card(self, client: Client, params: CardRequest) -> Any:
        """Return the card of an environment."""
        env_spec, kwargs = served(params.env), params.arguments
        facts: dict[str, Any] = {
            "env": env_spec.id,
            "abilities": sorted(env_spec.abilities),
            "needs": [[str(need), getattr(need, "hint", ""), need not in env_spec.missing] for need in env_spec.needs],
            "levels": plain(list(env_spec.levels)),
            "indexed": env_spec.indexed,
            "nondeterministic": env_spec.nondeterministic,
        }
        if env_spec.missing:
            return facts | {"about": cards.summary(env_spec), "problem": "what it needs is not on this server"}
        try:
            return facts | await self.example(client.name, env_spec.id, kwargs)
        except (EnvBroke, UsageError) as error:
            if kwargs and isinstance(error, UsageError):
                raise  # the client's arguments are wrong, not the environment
            return facts | {"about": cards.summary(env_spec), "problem": str(error)}

    async def reader(self, owner: str, env_id: str, kwargs: dict[str, Any]) -> ActionReader:
        """Return the converter of typed texts to actions."""
        try:
            example = await self.example(owner, env_id, kwargs)
        except RollenvError:  # it can be played all the same
            return ActionReader()
        return ActionReader(example["template"], example["moves"])

    async def example(self, owner: str, env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return a worker's example of an environment. Concurrent requests share one."""
        key = (env_id, json_of(kwargs))
        task = self._cards.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.get_running_loop().create_task(self._played(owner, env_id, kwargs))
            self._cards[key] = task
        self._cards.move_to_end(key)
        while len(self._cards) > _KEPT:
            self._cards.popitem(last=False)
        return await asyncio.shield(task)

    async def _played(self, owner: str, env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        async with self._sessions.brief(owner, env_id, {"kwargs": kwargs}) as session:
            try:
                async with asyncio.timeout(_SECONDS):
                    example: dict[str, Any] = plain(await session.card())
                    return example
            except TimeoutError:
                raise EnvBroke(f"{env_id}: the example took longer than {_SECONDS:g} s", kind="hung") from None


def _rows() -> dict[str, Any]:
    specs = list_envs()
    texts = {text: number for number, text in enumerate(dict.fromkeys(map(cards.summary, specs)))}
    namespaces = dict.fromkeys(env_spec.namespace for env_spec in specs)
    rows = []
    for env_spec in specs:
        has = {  # one letter for each filter of the page
            "m": env_spec.missing,
            "o": "oracle" in env_spec.abilities,
            "r": "random_action" in env_spec.abilities,
            "l": env_spec.levels,
            "i": env_spec.indexed,
        }
        letters = "".join(letter for letter, value in has.items() if value)
        rows.append([env_spec.id, texts[cards.summary(env_spec)], letters])
    groups = {name: cards.family(name) for name in namespaces}
    return {"envs": rows, "texts": [f"{text:.300}" for text in texts], "groups": groups}


#: Maximum bytes of the turns of a replay, and maximum seconds.
TURNS_BYTES, SECONDS = 32 << 20, 300.0

#: Kinds of suggestions with their method and ability.
_HELP = {"oracle": ("oracle_action", "oracle"), "random": ("sample_random_action", "random_action")}


class Episodes:
    """The requests of the page about episodes."""

    def __init__(self, sessions: SessionManager, catalogue: EpisodeCatalogue):
        self._sessions, self._catalogue = sessions, catalogue

    async def open(self, client: Client, params: Open) -> Any:
        """Open a session and reset it."""
        if params.session in self._sessions.by_name:
            raise UsageError("a session with this name already exists")
        _, first = await self._opened(client, params.session, params)
        return first

    async def reset(self, client: Client, params: Reset) -> Any:
        """Start another episode in a session."""
        return await _turn(self._session(client, params), "reset", [params.seed, params.options])

    async def step(self, client: Client, params: Act) -> Any:
        """Play a turn."""
        session, action = self._session(client, params), params.action
        if action is None:
            if params.typed is None:
                raise UsageError("the request needs 'action' or 'typed', a text")
            task = session.env.task
            reader = await self._catalogue.reader(client.name, task.env_id, dict(task.kwargs))
            action = reader.action(params.typed)
        return await _turn(session, "step", [action])

    async def suggest(self, client: Client, params: Suggest) -> Any:
        """Return the oracle's action, or a random one."""
        session = self._session(client, params)
        return {"action": await _called(session, _method(params.kind, session.env.task.env_id), [])}

    async def end(self, client: Client, params: OfSession) -> Any:
        """End a session, even while it is opened or a call hangs."""
        with contextlib.suppress(SessionGone):
            self._sessions.close(self._session(client, params))
        return {}

    async def replay(self, client: Client, params: Replay) -> Response:
        """Play an episode and stream a line of JSON for each turn.

        Raises:
            UsageError: the request has no actions and no agent.
        """
        method = _method(params.agent, params.env) if params.agent else ""
        if not method and params.actions is None:
            raise UsageError("the request needs 'actions', a list of texts, or an agent")
        session, first = await self._opened(client, session_name(), params)
        actions = _agent(session, method) if method else _recorded(params.actions or [])
        end = contextlib.ExitStack()
        end.callback(self._sessions.close, session)
        return Streamed(self._replayed(session, first, actions), "application/x-ndjson", end)

    async def _opened(self, client: Client, name: str, params: Open | Replay) -> tuple[EnvSession, dict[str, Any]]:
        """Open a session; return it with its first turn."""
        settings = {"kwargs": params.arguments, "views": "board"}
        session = await self._sessions.open(name, client.name, params.env, settings)
        try:
            return session, await _turn(session, "reset", [params.seed, params.options])
        except BaseException:
            self._sessions.close(session)
            raise

    async def _replayed(
        self, session: EnvSession, first: dict[str, Any], actions: AsyncGenerator[str]
    ) -> AsyncGenerator[bytes]:
        left, number = TURNS_BYTES, 0
        try:
            yield _line(first)
            async with asyncio.timeout(SECONDS):
                async for action in actions:
                    number += 1
                    line = _line(await _turn(session, "step", [action]))
                    left -= len(line)
                    if left < 0:
                        raise UsageError(f"turn {number} and later ones are not shown: the episode is too large")
                    yield line
        except TimeoutError:
            yield _problem(UsageError(f"the replay took longer than {SECONDS:g} s, so it was ended"))
        except EpisodeOver:
            yield _problem(UsageError("the episode is over, but the link has more actions"))
        except RollenvError as error:
            yield _problem(error)

    def _session(self, client: Client, params: OfSession) -> EnvSession:
        return self._sessions.get(params.session, client.name)


def _method(kind: str, env_id: str) -> str:
    """Return the method that suggests actions."""
    if kind not in _HELP:
        raise UsageError(f"there is no suggestion {kind!r:.40}; there are {', '.join(_HELP)}")
    method, ability = _HELP[kind]
    if ability not in served(env_id).abilities:
        raise NoSuchAbility(f"{env_id} has no {method}")
    return method


async def _recorded(actions: list[str]) -> AsyncGenerator[str]:
    for action in actions:
        yield action


async def _agent(session: EnvSession, method: str) -> AsyncGenerator[str]:
    """Generate the actions of the environment's own agent until the episode ends."""
    for _ in range(ACTIONS):
        if session.env.over:
            return
        yield await _called(session, method, [])


def _line(value: dict[str, Any]) -> bytes:
    return json_of(value).encode() + b"\n"


def _problem(error: RollenvError) -> bytes:
    kind, text, details = error_answer(error)
    return _line({"detail": f"{text:.2000}", "kind": kind, "how": details.get("kind", "")})


async def _turn(session: EnvSession, method: str, args: list[Any]) -> dict[str, Any]:
    return turn_of(method, args, await _called(session, method, args))


async def _called(session: EnvSession, method: str, args: list[Any]) -> Any:
    """Call a method in a task of its own, which ends with the session even if the call hangs."""

    async def numbered() -> Any:
        return await session.numbered(session.count + 1, method, args)

    return await asyncio.get_running_loop().create_task(numbered())

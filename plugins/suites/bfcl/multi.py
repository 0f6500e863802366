"""BFCL's multi-turn tasks, with bfcl-eval's own services."""

from __future__ import annotations

import ast
import contextlib
import copy
import datetime
import decimal
import functools
import importlib.util
import inspect
import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from rollenv.core import syntax
from rollenv.core.env import StepResult
from rollenv.core.errors import MissingExtra
from rollenv.core.tools.backend import Answer, Change, differences, not_arguments, unknown
from rollenv.core.tools.function import text_of
from rollenv.envs.tools.base import Call, Judgement, Move, Problem, ToolEnv, User, UserReply
from rollenv.plugins.suites.bfcl import MULTI, PACKAGES
from rollenv.plugins.suites.bfcl.single import Described, Entry, answers, documented, entries, schema

#: Name of the module, and of the file with function descriptions, by class.
CLASSES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
_SOURCES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"

#: Limits that only hostile calls reach: numbers in calculations, numbers that set the amount of work, and the files and
#: depth of a file system.
_MOST_NUMBER, _MOST_EFFORT, _MOST_FILES, _DEEPEST = 1e15, 1000, 2000, 50
_EFFORT = ("precision", "decimal_places", "exponent")


class _Frozen(datetime.datetime):
    """A frozen clock in UTC, so that ages and share prices are reproducible."""

    @classmethod
    def today(cls) -> _Frozen:
        return cls(2026, 3, 23)

    @classmethod
    def fromtimestamp(cls, timestamp: float, tz: datetime.tzinfo | None = None) -> _Frozen:
        return super().fromtimestamp(timestamp, tz or datetime.UTC).replace(tzinfo=None)

    def timestamp(self) -> float:
        return datetime.datetime.timestamp(self.replace(tzinfo=self.tzinfo or datetime.UTC))


@functools.cache
def _class(name: str) -> Any:
    """Load a class from a private copy of its module."""
    module = CLASSES[name]
    try:
        spec = importlib.util.find_spec(f"{_SOURCES}.{module}")
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise MissingExtra(f"{name} is a class of the package bfcl-eval: {PACKAGES[0].command}")
    own = importlib.util.spec_from_file_location(f"_rollenv_bfcl_{module}", spec.origin)
    assert own is not None
    assert own.loader is not None
    copied = importlib.util.module_from_spec(own)
    own.loader.exec_module(copied)
    for known, value in list(vars(copied).items()):
        if value is datetime.datetime:
            setattr(copied, known, _Frozen)
        elif isinstance(value, datetime.datetime):
            setattr(copied, known, _Frozen.combine(value.date(), value.time()))
    return getattr(copied, name)


class Services:
    """The services of a task in their current state."""

    def __init__(self, entry: Entry, offered: Sequence[str]):
        self.objects: dict[str, Any] = {}
        for name in entry["involved_classes"]:
            service = self.objects[name] = _class(name)()
            if hasattr(service, "_load_scenario"):
                service._load_scenario(copy.deepcopy(entry["initial_config"].get(name, {})))
        # Of two functions with the same name the last wins, as in bfcl-eval.
        self.methods = {
            name: getattr(service, name)
            for service in self.objects.values()
            for name in offered
            if inspect.ismethod(getattr(service, name, None))
        }

    def wrong(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the reason why a call is invalid; empty if it is valid."""
        method = self.methods[name]
        try:
            inspect.signature(method).bind(**arguments)
        except TypeError as error:
            return f"error: {name}: {error}"
        if type(method.__self__).__name__ != "MathAPI":
            return ""
        for key, value in arguments.items():
            most = _MOST_EFFORT if key in _EFFORT else _MOST_NUMBER
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, int | float) and not abs(each) <= most:
                    limits = f"numbers go to {_MOST_NUMBER:g}, and those for digits and exponents to {_MOST_EFFORT}"
                    return f"error: {name}: {limits}"
        return ""

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call, and return the answer in bfcl-eval's format."""
        try:
            with _own_precision(type(self.methods[name].__self__).__name__):
                result = self.methods[name](**copy.deepcopy(dict(arguments)))
                if isinstance(result, dict):
                    try:
                        return json.dumps(result)
                    except (TypeError, ValueError):
                        return str(result)
                return str(result)
        except Exception as error:
            return f"Error during execution: {error}"

    def too_large(self) -> bool:
        """Return whether the file system is too large or deep to be traversed."""
        system = self.objects.get("GorillaFileSystem")
        if system is None:
            return False
        left, seen = [(system.root, 0)], 0
        while left:
            item, depth = left.pop()
            seen += 1
            if seen > _MOST_FILES or depth > _DEEPEST:
                return True
            left += [(each, depth + 1) for each in getattr(item, "contents", {}).values()]
        return False

    def public(self) -> dict[str, dict[str, Any]]:
        """Return the state that is compared: the public attributes of each service."""
        return {name: {k: v for k, v in vars(each).items() if k[0] != "_"} for name, each in self.objects.items()}

    def shown(self) -> dict[str, Any]:
        """Return the public attributes as JSON data, for people."""
        return {name: _plain(attributes) for name, attributes in self.public().items()}


_PRECISION = threading.Lock()


@contextlib.contextmanager
def _own_precision(service: str) -> Iterator[None]:
    """Restore the process-wide decimal precision, which MathAPI sets."""
    if service != "MathAPI":
        yield
        return
    mpmath: ModuleType = importlib.import_module("mpmath")
    with _PRECISION, decimal.localcontext():
        digits = mpmath.mp.dps
        try:
            yield
        finally:
            mpmath.mp.dps = digits


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > 2 * _DEEPEST or value is None or isinstance(value, str | int | float):
        if value is None or isinstance(value, str | int | float):
            return value
        return "..."
    if isinstance(value, Mapping):
        return {str(key): _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each, depth + 1) for each in value]
    if hasattr(value, "contents") or hasattr(value, "content"):
        return _plain(getattr(value, "contents", None) if hasattr(value, "contents") else value.content, depth + 1)
    return str(value)


#: Maximum number of actions with calls per request.
MOST_STEPS = 20
_POLICY = (
    "The user has one request after another. Carry out each with the functions, as far as they allow it, without "
    "asking back; then write a message without a call, and you get the next request."
)


class Expected(NamedTuple):
    """The state and answers after the right calls of one request."""

    calls: list[Call]
    public: dict[str, dict[str, Any]]
    responses: list[str]


def _offered(entry: Entry) -> list[Entry]:
    return documented(MULTI, [CLASSES[name] for name in entry["involved_classes"]])


def _names(entry: Entry) -> list[str]:
    return [about["name"] for about in _offered(entry)]


@functools.lru_cache(maxsize=256)
def expected(key: int) -> list[Expected]:
    """Return the right calls for each request of a task and their effects, as shared read-only data."""
    entry = entries(MULTI)[key]
    services = Services(entry, _names(entry))
    found = []
    for texts in answers(MULTI)[entry["id"]]:
        calls = [_parsed(services, text) for text in texts]
        responses = [services.run(name, arguments) for name, arguments in calls]
        found.append(Expected(calls, copy.deepcopy(services.public()), responses))
    return found


def _parsed(services: Services, text: str) -> Call:
    """Parse a call from the Python of the answers, and name positional arguments."""
    call = syntax.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    signature = inspect.signature(services.methods[call.func.id])
    return call.func.id, dict(signature.bind(*map(ast.literal_eval, call.args), **named).arguments)


@functools.lru_cache(maxsize=256)
def _shown_at_start(key: int) -> dict[str, Any]:
    entry = entries(MULTI)[key]
    return Services(entry, _names(entry)).shown()


class Conversation(Described):
    """The services of a task, with the verdicts on its requests.

    The state is the list of calls, with None at the end of each request; the rest is restored by a replay.
    """

    def __init__(self, key: int):
        self.key, self.entry = key, entries(MULTI)[key]
        super().__init__([schema(about) for about in _offered(self.entry)], {"done": []})
        self._begin()

    def _begin(self) -> None:
        self.services = Services(self.entry, _names(self.entry))
        self.state["done"] = []
        self.right: list[bool] = []
        self.responses: list[str] = []
        self.calls_now = 0

    def call(self, name: str, arguments: Mapping[str, Any], names: Collection[str] | None = None) -> Answer:
        known = [each for each in self.services.methods if names is None or each in names]
        if name not in known:
            return Answer(unknown(name, known), failed=True)
        if wrong := not_arguments(name, arguments):
            return Answer(wrong, failed=True)
        given = json.loads(json.dumps(arguments))
        if wrong := self.services.wrong(name, given):
            return Answer(wrong, failed=True)
        text = self._run(name, given)
        if self.services.too_large():
            self.load({"done": self.state["done"][:-1]})
            return Answer(f"error: {name}: there would be too many files and folders", failed=True)
        return Answer(text_of(text))

    def _run(self, name: str, arguments: dict[str, Any]) -> str:
        text = self.services.run(name, arguments)
        self.state["done"].append([name, arguments])
        self.responses.append(text)
        self.calls_now += 1
        return text

    @property
    def answered(self) -> int:
        """The number of requests that were answered."""
        return len(self.right)

    def answer(self) -> None:
        """End a request, and judge the effects of its calls."""
        wanted = expected(self.key)[self.answered]
        self.right.append(not wanted.calls or (self.calls_now > 0 and self._as_wanted(wanted)))
        self.state["done"].append(None)
        self.calls_now = 0

    def _as_wanted(self, wanted: Expected) -> bool:
        left = list(self.responses)
        for response in wanted.responses:
            if response not in left:
                return False
            left.remove(response)
        now = self.services.public()
        try:
            return all(now[name][k] == v for name, each in wanted.public.items() for k, v in each.items())
        except (KeyError, RecursionError):
            return False

    def snapshot(self) -> Any:
        return json.dumps(self.state)

    def restore(self, snapshot: Any) -> None:
        self.load(json.loads(snapshot))

    def load(self, data: dict[str, Any]) -> None:
        done = copy.deepcopy(data["done"])
        self.state = {}
        self._begin()
        for each in done:
            if each is None:
                self.answer()
            else:
                self._run(*each)


class Requests(User):
    """A user with one request after another."""

    def __init__(self, conversation: Conversation):
        super().__init__()
        self.conversation = conversation

    def reply(self, message: str) -> UserReply:
        self.conversation.answer()
        questions = self.conversation.entry["question"]
        at = self.conversation.answered
        if at < len(questions):
            return UserReply(_text(questions[at]))
        return UserReply("", ends=True)


def _text(messages: list[Mapping[str, str]]) -> str:
    return "\n".join(message["content"] for message in messages)


class BFCLMultiTurnEnv(ToolEnv):
    """BFCL's multi_turn_base: 200 conversations of one to seven requests about files, cars, flights, shares, messages.

    A message without a call ends a request, and the next one follows. As in bfcl-eval, a conversation is solved if,
    after every request, the state and the answers of the services are those of the right calls. A request may take 20
    actions with calls. ``partial`` is the share of solved requests. The services are bfcl-eval's classes:
    ``pip install --no-deps bfcl-eval mpmath``.
    """

    _KEPT = (*ToolEnv._KEPT, "asked_at")

    def __init__(self, *, max_turns: int = 150, **settings: Any):
        super().__init__(max_turns=max_turns, **settings)
        self.entries = entries(MULTI)
        self.tasks = len(self.entries)

    def _fresh(self) -> None:
        super()._fresh()
        self.asked_at = 0

    def problem(self, key: int) -> Problem:
        entry = self.entries[key]
        conversation = Conversation(key)
        plan: list[Move] = []
        for each in expected(key):
            plan += [each.calls, self.closing()] if each.calls else [self.closing()]
        return Problem(
            _text(entry["question"][0]),
            conversation,
            plan=plan,
            name=entry["id"],
            user=Requests(conversation),
            policy=_POLICY,
            category=MULTI,
            before={"done": []},
        )

    @property
    def conversation(self) -> Conversation:
        """The current conversation."""
        backend = self.current.backend
        assert isinstance(backend, Conversation)
        return backend

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        if "use_tool" not in info:  # a message: the next request begins
            self.asked_at = self.turn
        return super()._after(ended, valid, info)

    def _cut(self) -> bool:
        return super()._cut() or self.turn - self.asked_at > MOST_STEPS

    def judge(self, problem: Problem) -> Judgement:
        right = self.conversation.right
        all_asked = len(self.conversation.entry["question"])
        services = self.conversation.services
        twin = Services(self.conversation.entry, list(services.methods))
        for name, arguments in (call for each in expected(self.key) for call in each.calls):
            twin.run(name, arguments)
        wanted = {change.path for change in differences(_shown_at_start(self.key), twin.shown())}
        aside = sum(change.path not in wanted for change in self.changes())
        return Judgement(len(right) == all_asked and all(right), sum(right) / all_asked, aside)

    def changes(self) -> list[Change]:
        return differences(_shown_at_start(self.key), self.conversation.services.shown())

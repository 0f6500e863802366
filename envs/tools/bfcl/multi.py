"""BFCL's tasks of several turns."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from rollenv.core import StepResult
from rollenv.envs.tools.base import ToolEnv
from rollenv.envs.tools.bfcl import MULTI
from rollenv.envs.tools.bfcl.apis import CLASSES, Services
from rollenv.envs.tools.bfcl.source import Described, Entry, answers, documented, entries, schema
from rollenv.envs.tools.problem import Call, Judgement, Move, Problem
from rollenv.envs.tools.users import Said, User
from rollenv.tools.backend import Answer, Change, differences, not_arguments, unknown
from rollenv.tools.function import text_of

#: Replies with calls that a request may take.
MOST_STEPS = 20
_POLICY = (
    "The user has one request after another. Carry out each with the functions, as far as they allow it, without "
    "asking back; then write a message without a call, and you get the next request."
)


class Expected(NamedTuple):
    """The state and answers of the right calls of one request."""

    calls: list[Call]
    public: dict[str, dict[str, Any]]
    responses: list[str]


def _offered(entry: Entry) -> list[Entry]:
    return documented(MULTI, [CLASSES[name][1] for name in entry["involved_classes"]])


def _names(entry: Entry) -> list[str]:
    return [about["name"] for about in _offered(entry)]


@functools.lru_cache(maxsize=256)
def expected(key: int) -> list[Expected]:
    """The right calls for each request of a task, and their effects; never changed."""
    entry = entries(MULTI)[key]
    services = Services(entry, _names(entry))
    found = []
    for texts in answers(MULTI)[entry["id"]]:
        calls = [_parsed(services, text) for text in texts]
        responses = [services.run(name, arguments) for name, arguments in calls]
        found.append(Expected(calls, copy.deepcopy(services.public()), responses))
    return found


def _parsed(services: Services, text: str) -> Call:
    """A call of the answers, which are Python; arguments without a name get theirs."""
    call = ast.parse(text, mode="eval").body
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
    """The services of a task, and whether each request was carried out.

    Its state is the list of calls, with None where a request was answered; everything else follows from it.
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
        """The request is answered: look at what its calls have left."""
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
    """Asks for one thing after another."""

    def __init__(self, conversation: Conversation):
        super().__init__()
        self.conversation = conversation

    def reply(self, message: str) -> Said:
        self.conversation.answer()
        questions = self.conversation.entry["question"]
        at = self.conversation.answered
        return Said(_text(questions[at])) if at < len(questions) else Said("", ends=True)


def _text(messages: list[Mapping[str, str]]) -> str:
    return "\n".join(message["content"] for message in messages)


class BFCLMultiTurnEnv(ToolEnv):
    """BFCL's multi_turn_base: 200 conversations of one to seven requests about files, cars, flights, shares, messages.

    A message without a call answers a request, and the next one comes. As in bfcl-eval a conversation is solved if,
    after every request, the services are in the state that the right calls leave, and have answered what they answer to
    those. A request may take 20 replies with calls. ``partial`` is the share of requests so carried out. The services
    are bfcl-eval's classes, so it is needed: ``pip install --no-deps bfcl-eval mpmath``.

    Args:
        settings: of :class:`~rollenv.envs.tools.base.ToolEnv`.
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
        """The one being played."""
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
        return Judgement(len(right) == all_asked and all(right), sum(right) / all_asked, self._aside())

    def _aside(self) -> int:
        """Return the number of changed places that the right calls leave alone."""
        services = self.conversation.services
        twin = Services(self.conversation.entry, list(services.methods))
        for name, arguments in (call for each in expected(self.key) for call in each.calls):
            twin.run(name, arguments)
        wanted = {change.path for change in differences(_shown_at_start(self.key), twin.shown())}
        return sum(change.path not in wanted for change in self.changes())

    def changes(self) -> list[Change]:
        return differences(_shown_at_start(self.key), self.conversation.services.shown())

"""The base of tasks with tools: an episode of calls and messages, judged by the final state."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import EpisodeOver, UsageError
from rollenv.core.parsing import well_formed
from rollenv.core.picture_forms import observed
from rollenv.core.tools.backend import Answer, Backend, Change, differences
from rollenv.core.tools.calls import CALL_FORMS, CallForm, call_instructions, find_calls, write_calls
from rollenv.envs.numbered import checked_index
from rollenv.envs.splits import check_split, in_split


@dataclass(frozen=True)
class UserReply:
    """A user's reply to a message."""

    text: str
    ends: bool = False


class User:
    """A scripted, deterministic user with JSON data as :attr:`state`. In this base class, any message ends the task."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def reply(self, message: str) -> UserReply:
        """Answer a message of the agent."""
        return UserReply("", ends=True)


class Informant(User):
    """A user that tells facts on request.

    The reply to a message with a question mark has every fact that the message mentions. Any other message ends the
    task.

    Args:
        facts: for each fact, its keywords in lower case and the reply.
        ignorant: the reply to any other question.
    """

    def __init__(
        self, facts: Sequence[tuple[Sequence[str], str]], ignorant: str = "I don't know anything about that."
    ) -> None:
        super().__init__()
        self.facts, self.ignorant = facts, ignorant

    def reply(self, message: str) -> UserReply:
        if "?" not in message:
            return UserReply("", ends=True)
        asked = message.lower()
        known = [fact for words, fact in self.facts if any(word in asked for word in words)]
        self.state["questions"] = self.state.get("questions", 0) + 1
        return UserReply(" ".join(known) or self.ignorant)


class Reminder(User):
    """A user that replies to every message with the same reminder; the episode continues."""

    def __init__(self, text: str):
        super().__init__()
        self.text = text

    def reply(self, message: str) -> UserReply:
        return UserReply(self.text)


#: A function's name and its arguments.
Call = tuple[str, dict[str, Any]]
#: An expert's turn: calls, or a message to the user.
Move = Sequence[Call] | str


@dataclass(frozen=True)
class Judgement:
    """The judgement of an episode."""

    success: bool
    partial: float = 0.0
    """Share of the goal that was reached, 0 to 1. A metric; paid only with ``partial_reward``."""
    side_effects: int = 0
    """Number of unwanted changes of the state."""


@dataclass
class Problem:
    """One task."""

    question: str
    """The user's first request."""
    backend: Backend
    """The backend in the initial state, owned by the problem."""
    plan: Sequence[Move] = ()
    """An expert's moves. Without :attr:`goal`, their final state is the goal."""
    name: str = ""
    """Equal tasks have equal names, which decide the split. By default a hash of question and initial state."""
    goal: Mapping[str, Any] | None = None
    """The wanted final state (:meth:`Backend.data`); by default that of the plan."""
    answers: Sequence[str] = ()
    """Texts that messages to the user must contain, ignoring case."""
    user: User = field(default_factory=User)
    policy: str = ""
    """Rules for the agent, shown before the question."""
    tools: Sequence[str] | None = None
    """Names of the functions that are offered; None for all."""
    category: str = ""
    before: Mapping[str, Any] | None = None
    """The initial state as read-only data, if many problems share a large one; by default it is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the backend and the user together, as the user may refer to the backend; share the rest."""
        twin = copy.copy(self)
        twin.backend, twin.user = copy.deepcopy(self.backend, memo), copy.deepcopy(self.user, memo)
        return twin

    @functools.cached_property
    def start(self) -> Mapping[str, Any]:
        """The initial state, as data."""
        return copy.deepcopy(self.backend.data()) if self.before is None else self.before

    @functools.cached_property
    def wanted(self) -> Mapping[str, Any]:
        """The wanted final state, as data."""
        if self.goal is not None:
            return self.goal
        twin = self.backend.twin()
        twin.load(dict(self.start))
        for name, arguments in (call for move in self.plan if not isinstance(move, str) for call in move):
            twin.call(name, arguments)
        return twin.data()

    def task_id(self) -> str:
        """Return the name, or a hash of the task."""
        if self.name:
            return self.name
        described = json.dumps([self.question, self.policy, list(self.tools or ()), self.start], sort_keys=True)
        return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


def counted(changed: Sequence[Change], wanted: Sequence[Change]) -> tuple[int, int]:
    """Count changes."""
    aims = {change.path: change.after for change in wanted}
    met = sum(change.path in aims and aims[change.path] == change.after for change in changed)
    return met, sum(change.path not in aims for change in changed)


#: One in this many tasks is a test task.
_TEST_SHARE = 5
#: Answer of a simulated outage.
_UNAVAILABLE = "error: the service is unavailable for the moment; try again"


class ToolEnv(Env):
    """Tasks that are solved by calling functions, and judged by the final state.

    An action has calls (see ``calls``) or is a message to the user. Calls are answered in ``<tool_response>`` elements.
    A message ends the episode, unless a scripted user replies to it. The reward comes at the end: 1 for the wanted
    state and answers.

    An author defines :meth:`problem`. ``info`` has ``tools`` (schemas) at reset, ``tool_responses`` (a text for each
    call) after calls, and at the end ``success`` and ``metrics``: ``calls``, ``invalid_calls`` (malformed or failed),
    ``partial`` (share of the wanted changes made, 0 to 1), ``side_effects`` (number of unwanted changes).

    Args:
        max_turns: actions before the episode is truncated, as not solved.
        calls: format of calls and functions: ``hermes`` (``<tool_call>`` elements), ``json``, ``python`` or ``native``
            (functions only in ``info["tools"]``, for agents that pass them to the model's API).
        split: ``train`` and ``test`` never share a task; ``all`` is both. Only for generated tasks.
        errors: probability that a call fails with a transient error and changes nothing, 0 to 1.
        format_reward: reward for an action with a malformed or failed call, at most 0.
        partial_reward: reward of an unsolved task, multiplied by ``partial`` and divided by 1 + ``side_effects``, so
            that changing everything does not pay; 0 to 1.
    """

    #: Number of tasks of a data set, selected by ``index``; None for generated tasks.
    tasks: int | None = None
    reset_options = frozenset({"index"})
    #: True to judge the state of a truncated episode.
    judged_when_cut = False

    def __init__(
        self,
        *,
        max_turns: int = 20,
        calls: CallForm = "hermes",
        split: str = "all",
        errors: float = 0.0,
        format_reward: float = 0.0,
        partial_reward: float = 0.0,
    ):
        if (
            type(max_turns) is not int
            or max_turns < 1
            or not -math.inf < format_reward <= 0
            or not 0 <= errors < 1
            or not 0 <= partial_reward <= 1
        ):
            raise UsageError(
                "max_turns is a whole number from 1, format_reward a number of at most 0, errors from 0 to below 1 and "
                f"partial_reward from 0 to 1; got {max_turns}, {format_reward}, {errors} and {partial_reward}"
            )
        if calls not in CALL_FORMS:
            raise UsageError(f"calls={calls!r} is unknown; choose from {', '.join(CALL_FORMS)}")
        check_split(split)
        self.max_turns, self.calls, self.split, self.errors = max_turns, calls, split, errors
        self.format_reward, self.partial_reward = format_reward, partial_reward
        self.key = 0
        self._current: Problem | None = None
        self._fresh()

    # -- what an author defines ----------------------------------------------------------------------------------------

    def problem(self, key: int) -> Problem:
        """Return a new object of the task with this key, a function of the key alone.

        Args:
            key: index in the data set, or from 0 to 2**62 for generated tasks.
        """
        raise NotImplementedError(f"{type(self).__name__} has no problem()")

    def judge(self, problem: Problem) -> Judgement:
        """Judge the episode by the state and by the messages to the user."""
        start, now, aim = map(self.compared, (problem.start, problem.backend.data(), problem.wanted))
        wanted = differences(start, aim)
        met, aside = counted(differences(start, now), wanted)
        answered = self.answered(problem)
        asked = len(wanted) + len(answered)
        success = now == aim and all(answered)
        return Judgement(success, (met + sum(answered)) / asked if asked else float(success), aside)

    def compared(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of a state that is judged; by default all of it."""
        return state

    def answered(self, problem: Problem) -> list[bool]:
        """Return, for each wanted answer, whether a message of the agent had it."""
        text = "\n".join(self.messages).lower()
        return [answer.lower() in text for answer in problem.answers]

    # -- the episode ---------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Problem:
        """The current task."""
        if self._current is None:
            raise EpisodeOver(f"{self}: call reset() to start an episode")
        return self._current

    def _fresh(self) -> None:
        self.turn = self.called = self.failed = self.step_of_plan = 0
        self.messages: list[str] = []
        self.last = ""
        self._done_of_move = 0

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        index = options.get("index")
        if index is not None:
            self.key = checked_index(self, index)
        elif self.tasks is not None:
            self.key = self.randint(self.tasks)
        self._current = self.problem(self.key) if self.tasks is not None else self._drawn()
        self._fresh()
        problem = self._current
        _ = problem.start  # cached before anything changes
        schemas = problem.backend.schemas(problem.tools)
        parts = (problem.policy, call_instructions(schemas, self.calls), problem.question)
        info: dict[str, Any] = {"tools": copy.deepcopy(schemas), "category": problem.category}
        info |= {"idx": self.key} if self.tasks is not None else {}
        return "\n\n".join(part for part in parts if part), info

    def _drawn(self) -> Problem:
        for _ in range(1000):
            self.key = int(self.np_random.integers(2**62))
            problem = self.problem(self.key)
            if in_split(problem.task_id(), self.split, _TEST_SHARE):
                return problem
        raise UsageError(f"{self}: its settings leave no tasks in the split {self.split!r}")

    def num_tasks(self) -> int:
        if self.tasks is None:
            raise UsageError(f"{self} draws its tasks from the seed, without end")
        return self.tasks

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        schemas = self.current.backend.schemas(self.current.tools)
        found, message = find_calls(action, self.calls, schemas)
        answers: list[Answer] = []
        for call in found:
            if call.problem:
                answers.append(Answer(f"error: {call.problem}", failed=True))
            else:
                answers.append(self._call(call.name, call.arguments))
        if answers:
            self.called += len(answers)
            self.failed += sum(answer.failed for answer in answers)
            joined = "\n".join(f"<tool_response>\n{answer.text}\n</tool_response>" for answer in answers)
            self.last, images = observed(joined, [image for answer in answers for image in answer.images])
            read = not any(call.problem for call in found)
            texts = [observed(answer.text, images)[0] for answer in answers]
            info = {"use_tool": True, "tool_responses": texts, "valid": read} | ({"images": images} if images else {})
            return self._after(ended=False, valid=not any(answer.failed for answer in answers), info=info)
        message = well_formed(message)  # so that it survives JSON
        self.messages.append(message)
        self._advance(message)
        reply = self._reply(message)
        self.last = reply.text
        return self._after(ended=reply.ends, valid=True, info={})

    def _reply(self, message: str) -> UserReply:
        """Return the user's reply to a message of the agent."""
        return self.current.user.reply(message)

    def _call(self, name: str, arguments: dict[str, Any]) -> Answer:
        if self.errors and self.np_random.random() < self.errors:
            return Answer(_UNAVAILABLE, failed=True)
        answer = self.current.backend.call(name, arguments, self.current.tools)
        if not answer.failed:
            self._advance((name, arguments))
        return answer

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        cut = not ended and self._cut()
        reward = 0.0 if valid else self.format_reward
        info = {"valid": valid} | info
        if not ended and not cut:
            return self.last, reward, False, False, info
        judged = self.judge(self.current)
        success = judged.success and (ended or self.judged_when_cut)
        reward += 1.0 if success else self.partial_reward * judged.partial / (1 + judged.side_effects)
        numbers = {"calls": self.called, "invalid_calls": self.failed}
        metrics = numbers | {"partial": judged.partial, "side_effects": judged.side_effects}
        return self.last, reward, ended, cut, info | {"success": success, "metrics": metrics}

    def _cut(self) -> bool:
        """Return whether a limit ends the episode after this action."""
        return self.turn >= self.max_turns

    def changes(self) -> list[Change]:
        """Return the changes of the episode so far."""
        return differences(self.current.start, self.current.backend.data())

    def render(self) -> str:
        """Return the request, the changes of the state, and the last answer; empty before the first reset."""
        if self._current is None:
            return ""
        problem = self._current
        changed = "\n".join(map(str, self.changes())) or "(nothing has changed)"
        user = f"\nSaid: {json.dumps(problem.user.state, sort_keys=True)}" if problem.user.state else ""
        return f"Task {self.key}: {problem.question}\n\n{changed}{user}\n\n{self.last}".rstrip()

    def state_key(self) -> str:
        return hashlib.blake2b(self.render().encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    # -- experts and others --------------------------------------------------------------------------------------------

    def _advance(self, done: Call | str) -> None:
        """Advance the plan if this was its next move."""
        plan = self.current.plan
        if self.step_of_plan >= len(plan):
            return
        move = plan[self.step_of_plan]
        if isinstance(move, str):
            matched = isinstance(done, str) and done.strip() == move.strip()
        else:
            name, arguments = move[self._done_of_move]
            matched = not isinstance(done, str) and name == done[0] and arguments == done[1]
            if matched and self._done_of_move + 1 < len(move):
                self._done_of_move += 1
                return
        if matched:
            self.step_of_plan += 1
            self._done_of_move = 0

    def oracle_action(self) -> str:
        """Return the next move of the plan; a closing message after its end."""
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        plan = self.current.plan
        if self.step_of_plan >= len(plan):
            return self.closing()
        move = plan[self.step_of_plan]
        if isinstance(move, str):
            return move
        return write_calls(list(move)[self._done_of_move :], self.calls)

    def closing(self) -> str:
        """Return the message that ends a task whose plan does not end with one."""
        return "Done."

    def sample_random_action(self) -> str:
        """Return a call with arguments of the right types, or, rarely, a closing message."""
        rng = self.action_rng
        schemas = self.current.backend.schemas(self.current.tools)
        if not schemas or rng.random() < 0.1:
            return self.closing()
        function = rng.choice(schemas)["function"]
        return write_calls([(function["name"], random_arguments(function["parameters"], rng))], self.calls)

    # -- state ---------------------------------------------------------------------------------------------------------

    _KEPT: tuple[str, ...] = ("key", "turn", "called", "failed", "step_of_plan", "messages", "last", "_done_of_move")

    @property
    def _changed_in_place(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self._KEPT, "_current")

    def _get_state(self) -> dict[str, Any]:
        kept = {name: copy.copy(getattr(self, name)) for name in self._KEPT}
        return kept | {"backend": self.current.backend.pack(), "told": dict(self.current.user.state)}

    def _set_state(self, state: dict[str, Any]) -> None:
        for name in self._KEPT:
            setattr(self, name, copy.copy(state[name]))
        self._current = self.problem(self.key)
        _ = self._current.start
        self._current.backend.unpack(copy.deepcopy(state["backend"]))
        self._current.user.state = dict(state["told"])


_WORDS = ("alpha", "north", "report", "team", "blue", "weekly", "draft", "2023-11-30", "1", "open")


def random_arguments(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Draw arguments that fit the schema of an object: all that are required, some of the others."""
    required = set(schema.get("required", ()))
    properties = schema.get("properties", {})
    return {
        name: _random_value(about, rng, schema.get("$defs", {}))
        for name, about in properties.items()
        if name in required or rng.random() < 0.3
    }


def _random_value(about: Mapping[str, Any], rng: random.Random, defs: Mapping[str, Any], depth: int = 0) -> Any:
    if "$ref" in about:
        about = defs.get(str(about["$ref"]).rpartition("/")[2], {})
    if "enum" in about:
        return rng.choice(list(about["enum"]))
    for key in ("anyOf", "oneOf"):
        if key in about:
            return _random_value(rng.choice(list(about[key])), rng, defs, depth + 1)
    kind = about.get("type")
    if kind == "integer":
        return rng.randint(int(about.get("minimum", 0)), int(about.get("maximum", 100)))
    if kind == "number":
        return rng.randint(0, 1000) / 10
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "array" and depth < 4:
        return [_random_value(about.get("items", {}), rng, defs, depth + 1) for _ in range(rng.randint(1, 2))]
    if kind == "object" and depth < 4:
        return random_arguments({**about, "$defs": defs}, rng)
    return rng.choice(_WORDS)

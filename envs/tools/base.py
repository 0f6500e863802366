"""The base of tasks with tools: an episode of calls and messages, judged by the state that it leaves.

A problem is what is asked, the world and the user it is asked in, and what the right end is.
"""

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

from rollenv.core import Env, EpisodeOver, ResetResult, StepResult, UsageError
from rollenv.envs.numbered import checked_index
from rollenv.envs.splits import check_split, in_split
from rollenv.parsing import well_formed
from rollenv.tools.backend import Answer, Backend, Change, differences
from rollenv.tools.calls import CALL_FORMS, CallForm, call_instructions, find_calls, write_calls


@dataclass(frozen=True)
class Reply:
    """A user's reply to a message."""

    text: str
    ends: bool = False


class User:
    """A scripted user. Deterministic; its state is :attr:`state`, JSON data.

    This one has nothing to say: the first message ends the task.
    """

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def reply(self, message: str) -> Reply:
        """Answer a message of the agent."""
        return Reply("", ends=True)


class Informant(User):
    """Has facts that the request leaves out, and tells them when asked.

    A message with a question mark is a question; the reply gives every fact that it mentions. Any other ends the task.

    Args:
        facts: for each, words of which a question mentions one (in lower case), and what the user then says.
        ignorant: the reply to a question about anything else.
    """

    def __init__(
        self, facts: Sequence[tuple[Sequence[str], str]], ignorant: str = "I don't know anything about that."
    ) -> None:
        super().__init__()
        self.facts, self.ignorant = facts, ignorant

    def reply(self, message: str) -> Reply:
        if "?" not in message:
            return Reply("", ends=True)
        asked = message.lower()
        known = [fact for words, fact in self.facts if any(word in asked for word in words)]
        self.state["questions"] = self.state.get("questions", 0) + 1
        return Reply(" ".join(known) or self.ignorant)


class Reminder(User):
    """Answers every message with the same text; the episode goes on.

    Args:
        text: what to do instead of writing to the user.
    """

    def __init__(self, text: str):
        super().__init__()
        self.text = text

    def reply(self, message: str) -> Reply:
        return Reply(self.text)


#: A function's name and its arguments.
Call = tuple[str, dict[str, Any]]
#: An expert's turn: calls, or a message to the user.
Move = Sequence[Call] | str


@dataclass(frozen=True)
class Judgement:
    """The judgement of an episode."""

    success: bool
    partial: float = 0.0
    """0 to 1: the share of what was wanted that is there. Reported, not paid, unless the environment is asked to."""
    side_effects: int = 0
    """Changes of the state that were not wanted."""


@dataclass
class Problem:
    """One task."""

    question: str
    """The user's first request."""
    backend: Backend
    """The backend in the state at the start. It belongs to the problem alone."""
    plan: Sequence[Move] = ()
    """An expert's moves; their calls lead to the state that is wanted, where :attr:`goal` does not say it."""
    name: str = ""
    """Equal tasks have equal names; splits go by it. By default a hash of the question and the start."""
    goal: Mapping[str, Any] | None = None
    """The state wanted at the end (:meth:`Backend.data`); by default the one that the plan leads to."""
    answers: Sequence[str] = ()
    """Texts that messages to the user have to contain, upper and lower case being the same."""
    user: User = field(default_factory=User)
    policy: str = ""
    """Rules to keep, shown before the question."""
    tools: Sequence[str] | None = None
    """The functions that are offered; None for all."""
    category: str = ""
    before: Mapping[str, Any] | None = None
    """The state at the start as data, where many problems share a large one; never changed. Else it is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with a backend and a user of its own; the user may know the backend, and the rest is shared."""
        twin = copy.copy(self)
        twin.backend, twin.user = copy.deepcopy(self.backend, memo), copy.deepcopy(self.user, memo)
        return twin

    @functools.cached_property
    def start(self) -> Mapping[str, Any]:
        """The state at the start, as data."""
        return copy.deepcopy(self.backend.data()) if self.before is None else self.before

    @functools.cached_property
    def wanted(self) -> Mapping[str, Any]:
        """The state at the end of a solved task, as data."""
        if self.goal is not None:
            return self.goal
        twin = self.backend.twin()
        twin.load(dict(self.start))
        for name, arguments in (call for move in self.plan if not isinstance(move, str) for call in move):
            twin.call(name, arguments)
        return twin.data()

    def named(self) -> str:
        """The name, or a hash of what the task is."""
        if self.name:
            return self.name
        described = json.dumps([self.question, self.policy, list(self.tools or ()), self.start], sort_keys=True)
        return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


def counted(changed: Sequence[Change], wanted: Sequence[Change]) -> tuple[int, int]:
    """Count changes.

    Returns:
        How many of the wanted changes were made, and how many others.
    """
    aims = {change.path: change.after for change in wanted}
    met = sum(change.path in aims and aims[change.path] == change.after for change in changed)
    return met, sum(change.path not in aims for change in changed)


#: One task in so many is a test task.
_TEST_SHARE = 5
#: The answer of a service that is down.
_UNAVAILABLE = "error: the service is unavailable for the moment; try again"


class ToolEnv(Env):
    """Tasks that are solved by calling functions, and judged by the state that the calls leave.

    An action holds calls (see ``calls``) or is a message to the user. Calls are answered in ``<tool_response>``
    elements; with a scripted user a message that is a question gets an answer, any other ends the episode, as every
    message does without one. The reward comes at the end: 1 for the wanted state and the answers asked for.

    An author defines :meth:`problem`. ``info`` holds ``tools`` (schemas) at reset, ``tool_responses`` (a text for each
    call) after calls, and at the end ``success`` and ``metrics``: ``calls``, ``invalid_calls`` (malformed or failed),
    ``partial`` (share of the wanted changes made, 0 to 1), ``side_effects`` (changes that were not wanted).

    Args:
        max_turns: actions; the episode is truncated after them, as not solved.
        calls: how calls are written and functions are shown: ``hermes`` (``<tool_call>`` elements), ``json``,
            ``python`` or ``native`` (the functions are in ``info["tools"]`` only, for agents that hand them over).
        split: ``train`` and ``test`` never share a task; ``all`` is both. Only for generated tasks.
        errors: the chance that a call is answered with a passing error, 0 to 1; the call then changes nothing.
        format_reward: for an action with a malformed or failed call, at most 0.
        partial_reward: paid in proportion to ``partial`` where the task is not solved, 0 to 1; divided by one more than
            the side effects, so that nobody is paid for changing everything.
    """

    #: Data sets number their tasks, and ``index`` chooses one; generated tasks have no end.
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
        """The task with this number: a new one every time it is asked for, a function of the number alone.

        Args:
            key: of a data set's task, or from 0 to 2**62 where tasks are generated.
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
        """Return the part of a state that is judged; all of it by default."""
        return state

    def answered(self, problem: Problem) -> list[bool]:
        """True for each answer that the user wants and that a message of the agent had."""
        text = "\n".join(self.messages).lower()
        return [answer.lower() in text for answer in problem.answers]

    # -- the episode ---------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Problem:
        """The task being played."""
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
        _ = problem.start  # before anything changes
        schemas = problem.backend.schemas(problem.tools)
        parts = (problem.policy, call_instructions(schemas, self.calls), problem.question)
        info: dict[str, Any] = {"tools": copy.deepcopy(schemas), "category": problem.category}
        info |= {"idx": self.key} if self.tasks is not None else {}
        return "\n\n".join(part for part in parts if part), info

    def _drawn(self) -> Problem:
        for _ in range(1000):
            self.key = int(self.np_random.integers(2**62))
            problem = self.problem(self.key)
            if in_split(problem.named(), self.split, _TEST_SHARE):
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
            answers.append(
                Answer(f"error: {call.problem}", failed=True) if call.problem else self._call(call.name, call.arguments)
            )
        if answers:
            self.called += len(answers)
            self.failed += sum(answer.failed for answer in answers)
            self.last = "\n".join(f"<tool_response>\n{answer.text}\n</tool_response>" for answer in answers)
            read = not any(call.problem for call in found)
            info = {"use_tool": True, "tool_responses": [answer.text for answer in answers], "valid": read}
            return self._after(ended=False, valid=not any(answer.failed for answer in answers), info=info)
        message = well_formed(message)  # so that a kept state is read as it was written
        self.messages.append(message)
        self._advance(message)
        reply = self.current.user.reply(message)
        self.last = reply.text
        return self._after(ended=reply.ends, valid=True, info={})

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
        """Return whether the episode is over after this action, solved or not."""
        return self.turn >= self.max_turns

    def changes(self) -> list[Change]:
        """Return the changes of the episode so far."""
        return differences(self.current.start, self.current.backend.data())

    def render(self) -> str:
        """The request, what has changed in the state, and the last answer; nothing before the first reset."""
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
        """Go on in the plan if this was its next move."""
        plan = self.current.plan
        if self.step_of_plan >= len(plan):
            return
        move = plan[self.step_of_plan]
        if isinstance(move, str):
            matched = isinstance(done, str) and done.strip() == move.strip()
        else:
            matched = not isinstance(done, str) and _equal_calls(move[self._done_of_move], done)
            if matched and self._done_of_move + 1 < len(move):
                self._done_of_move += 1
                return
        if matched:
            self.step_of_plan += 1
            self._done_of_move = 0

    def oracle_action(self) -> str:
        """The next move of the plan; a closing message after its end."""
        if self._over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        plan = self.current.plan
        if self.step_of_plan >= len(plan):
            return self.closing()
        move = plan[self.step_of_plan]
        return move if isinstance(move, str) else write_calls(list(move)[self._done_of_move :], self.calls)

    def closing(self) -> str:
        """The message that ends a task whose plan does not end with one."""
        return "Done."

    def sample_random_action(self) -> str:
        """A call with arguments of the right types, or, rarely, the end."""
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


def _equal_calls(planned: Call, done: Call | str) -> bool:
    return not isinstance(done, str) and planned[0] == done[0] and planned[1] == done[1]


_WORDS = ("alpha", "north", "report", "team", "blue", "weekly", "draft", "2023-11-30", "1", "open")


def random_arguments(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Arguments that fit a schema: all that are required, some of the others.

    Args:
        schema: of an object, as in a function's ``parameters``.
    """
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

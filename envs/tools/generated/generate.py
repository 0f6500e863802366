"""The base of generated suites: options, the choice of compatible goals, and the judging of messages."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rollenv.core.errors import UsageError
from rollenv.envs.tools.base import Informant, Judgement, Move, Problem, ToolEnv, User
from rollenv.envs.tools.generated.goals import (
    DISTRACTIONS,
    LONGEST_MESSAGE,
    Fitted,
    Goal,
    GoalDraw,
    GoalKind,
    World,
    fitted,
    guesses,
    mentions,
    refuses,
    together,
)

_PLACES = ("kitchen", "lobby", "car park", "bicycle shed", "reading room", "roof terrace", "post room", "gym", "cellar")
_PEOPLE = ("visitors", "cleaners", "new colleagues", "gardeners", "caterers", "painters", "interns", "neighbours")
_TIMES = ("in the morning", "on Fridays", "at weekends", "in summer", "during holidays", "after lunch", "in winter")
_SENTENCES = (
    "The {place} is open to {people} {time}.",
    "{People} leave the {place} as they found it {time}.",
    "A key to the {place} is handed out {time}.",
    "Plants in the {place} are watered {time}, except where {people} look after them.",
    "{People} may use the coffee machine next to the {place} {time}.",
    "Lights in the {place} go out by themselves {time}.",
    "Lost umbrellas are kept in the {place}, where {people} collect them {time}.",
    "The notice board of the {place} is cleared {time} by {people}.",
)


def filler(rng: random.Random, characters: int) -> str:
    """Return sections of a staff handbook, without numbers or names, of about this length; empty for 0."""
    if not characters:
        return ""
    parts, length = ["Staff handbook, for information only:"], 0
    while length < characters:
        people = rng.choice(_PEOPLE)
        form = rng.choice(_SENTENCES)
        place, time = rng.choice(_PLACES), rng.choice(_TIMES)
        parts.append(form.format(place=place, people=people, People=people.capitalize(), time=time))
        length += len(parts[-1]) + 1
    return " ".join(parts)


#: Number of records of a world, by the name of its size.
SIZES = {"small": 8, "medium": 20, "large": 60}
#: Maximum number of draws for a goal, after which a task has fewer goals, and of worlds that are tried.
_TRIES, _WORLDS = 60, 100

_END = (
    f"When all is done, write a short message to the user (below {LONGEST_MESSAGE} characters) with every answer asked "
    "for: one answer to each question. A list of what it might be is no answer."
)
_REFUSE = (
    "What the rules forbid or the functions do not allow is not done: change nothing for it, do the rest, and say "
    '"I cannot" in the last message. Do not say so otherwise.'
)
#: Words of a question about the missing value; no task leaves out more than one value.
_ASKING = ("what", "which", "how", "new")
_ASK = "If the user has left something out, ask; a message with a question mark is a question."


@dataclass
class GeneratedProblem(Problem):
    """A generated task."""

    goals: Sequence[Goal] = ()
    may_refuse: bool = False
    """True if some tasks of the kind have goals to refuse, so that a refusal in other tasks is wrong."""


class GeneratedToolEnv(ToolEnv):
    """Tasks composed of goals in a generated world.

    An author defines :attr:`intro`, :attr:`templates` and :meth:`world`. The goals of a task are independent of each
    other, and each changes something or asks for something.

    Args:
        size: number of records in the world: ``small``, ``medium``, ``large``, or 4 to 500.
        goals: number of goals of a task, or its minimum and maximum; fewer if the world is too small.
        distractors: number of additional functions that no task needs, 0 to 12.
        missing: ``functions``: in half of the tasks, the functions for one goal are not offered; the agent should skip
            that goal and say so with one of :data:`~rollenv.envs.tools.generated.goals.REFUSALS`. In the other half,
            functions that no goal needs are missing. ``parameters``: the request omits a value, which the user tells
            when asked.
        long_context: characters of an irrelevant staff handbook before the request.
        policy: there are rules; in half of the tasks one goal breaks a rule and should be refused.
    """

    #: The text before the request.
    intro: ClassVar[str]
    templates: ClassVar[Sequence[GoalKind]]

    def __init__(
        self,
        *,
        size: str | int = "medium",
        goals: int | Sequence[int] = (1, 3),
        distractors: int = 0,
        missing: Literal["none", "functions", "parameters"] = "none",
        long_context: int = 0,
        policy: bool = False,
        **settings: Any,
    ):
        super().__init__(**settings)
        records = SIZES.get(size, size) if isinstance(size, str) else size
        if isinstance(records, bool) or not isinstance(records, int) or not 4 <= records <= 500:
            raise UsageError(f"size={size!r} is not {', '.join(SIZES)} or a number of records from 4 to 500")
        self.size = records
        both: Any = (goals, goals) if isinstance(goals, int) else goals
        whole = isinstance(both, list | tuple) and [type(n) for n in both] == [int, int]
        if not whole or not 1 <= both[0] <= both[1] <= 8:
            raise UsageError(f"goals={goals!r} is not a number from 1 to 8 or a pair of them, the lower one first")
        self.goals = both[0], both[1]
        _check_number("distractors", distractors, len(DISTRACTIONS))
        _check_number("long_context", long_context, 1_000_000)
        if missing not in ("none", "functions", "parameters"):
            raise UsageError(f"missing={missing!r} is unknown; choose from none, functions and parameters")
        if not isinstance(policy, bool):
            raise UsageError(f"policy={policy!r} is not true or false")
        if policy and not any(template.rule for template in self.templates):
            raise UsageError(f"{type(self).__name__} has no rules; leave out policy=True")
        self.distractors, self.missing = distractors, missing
        self.long_context, self.policy = long_context, policy

    # -- what an author defines ----------------------------------------------------------------------------------------

    def world(self, rng: random.Random) -> World:
        """Generate a world of :attr:`size` records, a function of the draws alone."""
        raise NotImplementedError(f"{type(self).__name__} has no world()")

    # -- a task --------------------------------------------------------------------------------------------------------

    def problem(self, key: int) -> GeneratedProblem:
        rng = random.Random(key)
        for _ in range(_WORLDS):
            world = self.world(rng)
            if goals := self._goals(GoalDraw(rng, world)):
                break
        else:
            raise UsageError(f"{self}: its settings leave no tasks; allow more records, or fewer options at once")
        facts = [goal.fact for goal in goals if goal.fact]
        given = [((*fact.words, *_ASKING), fact.answer) for fact in facts]
        return GeneratedProblem(
            question=joined(rng, [goal.fact.ask if goal.fact else goal.ask for goal in goals]),
            backend=world,
            plan=plan(goals, [fact.question for fact in facts]),
            answers=[answer for goal in goals if not goal.refused for answer in goal.answers],
            user=Informant(given) if given else User(),
            policy=self._policy(rng, world),
            tools=self._offered_tools(rng, world, goals),
            category=self.missing if self.missing != "none" else "policy" * self.policy,
            goals=goals,
            may_refuse=self.may_refuse,
        )

    @property
    def may_refuse(self) -> bool:
        """True if some tasks have goals to refuse."""
        return self.policy or self.missing == "functions"

    def _policy(self, rng: random.Random, world: World) -> str:
        intro = self.intro.format(**{k: v for k, v in world.state.items() if isinstance(v, str)})
        rules = dict.fromkeys(f"- {template.rule}" for template in self.templates if template.rule and self.policy)
        parts = [intro, "Rules:\n" + "\n".join(rules) if rules else "", _END, _REFUSE if self.may_refuse else ""]
        parts += [_ASK if self.missing == "parameters" else "", filler(rng, self.long_context)]
        return "\n".join(part for part in parts if part)

    def _offered_tools(self, rng: random.Random, world: World, goals: list[Goal]) -> list[str]:
        own = [name for name in world.functions() if name not in DISTRACTIONS]
        gone = self._gone(GoalDraw(rng, world), goals) if self.missing == "functions" else set()
        return [name for name in own if name not in gone] + sorted(rng.sample(DISTRACTIONS, self.distractors))

    def _gone(self, draw: GoalDraw, goals: list[Goal]) -> set[str]:
        """Return the missing functions: those of the goal to refuse, or, to give nothing away, those of no goal."""
        if gone := {name for goal in goals if goal.refused for name in goal.blocks}:
            return gone
        used = {name for goal in goals for name, _ in goal.calls()}
        for _ in range(_TRIES):
            other = draw.rng.choice(self.templates).goal(draw, False)
            if other and other.blocks and used.isdisjoint(other.blocks):
                return set(other.blocks)
        unused = [name for name in draw.world.functions() if name not in used and name not in DISTRACTIONS]
        return set(draw.rng.sample(unused, min(1, len(unused))))

    # -- the choice of goals -------------------------------------------------------------------------------------------

    def _goals(self, draw: GoalDraw) -> list[Goal]:
        """Draw compatible goals, starting with those that an option requires."""
        count = draw.rng.randint(*self.goals)
        special = [name for name, on in (("policy", self.policy), (self.missing, self.missing != "none")) if on]
        draw.rng.shuffle(special)
        broken = draw.rng.random() < 0.5
        found: list[Fitted] = []
        for _ in range(_TRIES):
            goal = self._goal(draw, special[len(found)] if len(found) < len(special) else "", broken)
            new = goal and fitted(draw.world, goal)
            if new and together(draw.world, [*found, new]):
                found.append(new)
                if len(found) == count:
                    break
        draw.rng.shuffle(found)
        return [one.goal for one in found]

    def _goal(self, draw: GoalDraw, kind: str, broken: bool) -> Goal | None:
        usable = [template for template in self.templates if template.rule or kind != "policy"]
        breaks = kind == "policy" and broken
        goal = draw.rng.choice(usable).goal(draw, breaks)
        if goal is None or (kind == "parameters" and goal.fact is None) or (kind == "functions" and not goal.blocks):
            return None
        if kind != "parameters":
            goal = dataclasses.replace(goal, fact=None)
        lacks = kind == "functions" and broken
        return dataclasses.replace(goal, refused=breaks or lacks, blocks=goal.blocks if lacks else ())

    # -- judging -------------------------------------------------------------------------------------------------------

    def answered(self, problem: Problem) -> list[bool]:
        last = self.messages[-1] if self.messages else ""
        goals = [goal for goal in getattr(problem, "goals", ()) if not goal.refused]
        known = [problem.question, *problem.answers]
        given = []
        for goal in goals:
            fair = len(last) <= LONGEST_MESSAGE and not guesses(last, goal.rivals(problem.start), known)
            given += [fair and mentions(last, answer) for answer in goal.answers]
        return [*given, refuses(last)] if _refused(problem) else given

    def judge(self, problem: Problem) -> Judgement:
        judged = super().judge(problem)
        wrong = isinstance(problem, GeneratedProblem) and problem.may_refuse and not _refused(problem)
        if wrong and self.messages and refuses(self.messages[-1]):
            return dataclasses.replace(judged, success=False, partial=0.0)
        return judged


def _refused(problem: Problem) -> bool:
    return isinstance(problem, GeneratedProblem) and any(goal.refused for goal in problem.goals)


def plan(goals: Sequence[Goal], questions: Sequence[str] = ()) -> list[Move]:
    """Return an expert's moves: questions first, then goal by goal, and one message at the end.

    Of goals to refuse, only the lookups are done.
    """
    moves: list[Move] = list(questions)
    for goal in goals:
        missing = {name for name, _ in goal.calls()} & set(goal.blocks)
        moves += [] if missing else goal.look
        moves += [goal.act] if goal.act and not goal.refused else []
    replies = dict.fromkeys("I cannot do all of that." if goal.refused else goal.done for goal in goals)
    return [*moves, " ".join(replies)]


def joined(rng: random.Random, asks: Sequence[str]) -> str:
    """Join requests to one text."""
    words = rng.sample(("Also: ", "Then: ", "One more thing: ", "Besides: ", "And: "), 5)
    return "\n".join([asks[0], *(f"{words[n % 5]}{ask}" for n, ask in enumerate(asks[1:]))])


def _check_number(name: str, value: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise UsageError(f"{name}={value!r} is not a whole number from 0 to {most}")

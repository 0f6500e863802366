"""A room of ALFWorld: what stands where, what commands do, and what the agent reads.

The rules are those of ALFWorld's domain (``alfred.pddl``, ``alfred.twl2`` of version 0.4) as TextWorld plays them:
one object in hand; closed receptacles hide what is in them; a command that is not admissible has the answer
``Nothing happens.`` and no effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.plugins.worlds.alfworld.goals import Goal
from rollenv.plugins.worlds.alfworld.kinds import KNIVES

NOTHING = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
#: What a receptacle's kind does to an object in hand: the verb, the state it gives and the state it takes away.
TOOLS = {"sinkbasin": ("clean", "clean", ""), "microwave": ("heat", "hot", "cool"), "fridge": ("cool", "cool", "hot")}
_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see {}."
#: What can be true of an object; ``used`` is a lamp that was turned on.
MARKS = ("hot", "cool", "clean", "sliced", "used")
_ALWAYS = ("help", "inventory", "look")


@dataclass(frozen=True, slots=True)
class Spelling:
    """The command that puts down an object, and its answer."""

    verb: str
    between: str
    answer: str


SPELLINGS = {
    "move": Spelling("move", " to ", "You move the {o} to the {r}."),
    "put": Spelling("put", " in/on ", "You put the {o} in/on the {r}."),
}


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A receptacle; those with the same place are reached together."""

    name: str
    kind: str
    place: int
    openable: bool = False


@dataclass(frozen=True, slots=True)
class Thing:
    """An object, with what can be done to it (``heat``, ``cool``, ``clean``, ``slice``, ``take``, ``use``)."""

    name: str
    kind: str
    can: frozenset[str] = frozenset()
    vessel: bool = False
    inside: tuple[int, ...] = ()
    """Objects that stay inside it, as numbers."""


@dataclass(slots=True)
class State:
    """Everything that changes. Receptacles, objects and places are numbers."""

    place: int
    hand: int = -1
    contents: list[set[int]] = field(default_factory=list)
    """The objects in each receptacle."""
    opened: set[int] = field(default_factory=set)
    marks: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in MARKS})
    """The objects that have each of :data:`MARKS`."""
    lying: set[tuple[int, int]] = field(default_factory=set)
    """Pairs (object, place): what a knife reaches from a place. It can differ from ``contents`` in official games."""
    taken: set[tuple[int, int]] = field(default_factory=set)
    """Pairs (object, receptacle): taken from there and not put back."""
    seen: set[int] = field(default_factory=set)
    """Receptacles whose contents the agent has seen."""

    def copy(self) -> State:
        """Return an independent copy."""
        contents = [set(each) for each in self.contents]
        marks = {name: set(each) for name, each in self.marks.items()}
        sets = set(self.lying), set(self.taken), set(self.seen)
        return State(self.place, self.hand, contents, set(self.opened), marks, *sets)

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        return {
            "place": self.place,
            "hand": self.hand,
            "contents": [sorted(each) for each in self.contents],
            "opened": sorted(self.opened),
            "marks": {name: sorted(each) for name, each in self.marks.items()},
            "lying": sorted(self.lying),
            "taken": sorted(self.taken),
            "seen": sorted(self.seen),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> State:
        """Rebuild a state from :meth:`to_json`."""
        return cls(
            data["place"],
            data["hand"],
            [set(each) for each in data["contents"]],
            set(data["opened"]),
            {name: set(each) for name, each in data["marks"].items()},
            {(thing, place) for thing, place in data["lying"]},
            {(thing, receptacle) for thing, receptacle in data["taken"]},
            set(data["seen"]),
        )


class Room:
    """A room, its task and its first state; it never changes.

    Args:
        receptacles: in the order of their ids, which is the order of every list in the texts.
        things: the objects, in the order of their ids.
        fits: pairs (kind of receptacle, kind of object) that may be put together.
        task: the sentence that says what to do.
        places: names of places for the answer to ``go to``, as in old games; None for the receptacles' names.
        examines_near: whether an object can be examined where it is. In ALFWorld 0.4 only one in hand can: its domain
            has a comma that makes a type of its own, ``location,``, of which there is nothing.
    """

    def __init__(
        self,
        receptacles: Sequence[Receptacle],
        things: Sequence[Thing],
        start: State,
        goal: Goal,
        task: str,
        *,
        fits: Iterable[tuple[str, str]],
        spelling: Spelling,
        places: Sequence[str] | None = None,
        examines_near: bool = False,
    ):
        self.receptacles, self.things, self.start = tuple(receptacles), tuple(things), start
        self.goal, self.task, self.fits, self.spelling, self.places = goal, task, frozenset(fits), spelling, places
        self.examines_near = examines_near
        self.receptacle = {each.name: number for number, each in enumerate(self.receptacles)}
        self.thing = {each.name: number for number, each in enumerate(self.things)}
        self.goal_things = frozenset(n for n, each in enumerate(self.things) if each.kind == goal.thing)
        self.goal_receptacles = tuple(n for n, each in enumerate(self.receptacles) if each.kind == goal.receptacle)
        self.goal_lamps = frozenset(n for n, each in enumerate(self.things) if each.kind == goal.lamp)
        at = defaultdict(list)
        for number, each in enumerate(self.receptacles):
            at[each.place].append(number)
        self.at = {place: tuple(numbers) for place, numbers in at.items()}
        self._walks: dict[int, list[str]] = {}

    # -- what is true ------------------------------------------------------------------------------------------------

    def is_open(self, state: State, receptacle: int) -> bool:
        """Return whether one sees and reaches into a receptacle."""
        return not self.receptacles[receptacle].openable or receptacle in state.opened

    def reached(self, state: State) -> bool:
        """Return whether the task is done."""
        goal, wanted = self.goal, self.goal_things
        if goal.lamp:
            near = [state.contents[r] for r in self.at.get(state.place, ())]
            return state.hand in wanted and any(each & self.goal_lamps & state.marks["used"] for each in near)
        if goal.needs == "two":
            return any(len(state.contents[r] & wanted) > 1 for r in self.goal_receptacles)
        if goal.needs:
            wanted = wanted & state.marks[goal.needs]
        return any(state.contents[r] & wanted for r in self.goal_receptacles)

    # -- commands ----------------------------------------------------------------------------------------------------

    def commands(self, state: State) -> list[str]:
        """Return the admissible commands, sorted."""
        before, after, hand = [], [*_ALWAYS], state.hand
        held = self.things[hand] if hand >= 0 else None
        for r in self.at.get(state.place, ()):
            receptacle = self.receptacles[r]
            name = receptacle.name
            before.append(f"examine {name}")
            inside = [self.things[o] for o in state.contents[r]]
            after += [f"use {thing.name}" for thing in inside if "use" in thing.can]
            if receptacle.openable:
                if r in state.opened:
                    before.append(f"close {name}")
                else:
                    after.append(f"open {name}")
                    inside = []
            if self.examines_near:
                before += [f"examine {thing.name}" for thing in inside]
            if held is None:
                after += [f"take {thing.name} from {name}" for thing in inside if "take" in thing.can]
                continue
            if (receptacle.kind, held.kind) in self.fits and self.is_open(state, r):
                after.append(f"{self.spelling.verb} {held.name}{self.spelling.between}{name}")
            if receptacle.kind in TOOLS and (verb := TOOLS[receptacle.kind][0]) in held.can:
                (after if verb == "heat" else before).append(f"{verb} {held.name} with {name}")
        if held is not None:
            before.append(f"examine {held.name}")
            if held.kind in KNIVES:
                near = [self.things[o] for o, place in state.lying if place == state.place]
                after += [f"slice {thing.name} with {held.name}" for thing in near if "slice" in thing.can]
        return [*sorted(set(before)), *self._walks_from(state.place), *sorted(set(after))]

    def _walks_from(self, place: int) -> list[str]:
        """Return the ways from a place, sorted: all receptacles but those that stand there."""
        found = self._walks.get(place)
        if found is None:
            found = sorted(f"go to {each.name}" for each in self.receptacles if each.place != place)
            self._walks[place] = found
        return found

    def act(self, state: State, command: str) -> str | None:
        """Carry out a command and return its answer; None if it is not admissible."""
        verb, _, rest = command.partition(" ")
        if verb == "go":
            return self._go(state, self.receptacle.get(rest[3:], -1)) if rest.startswith("to ") else None
        if verb in ("open", "close"):
            return self._open(state, self.receptacle.get(rest, -1), verb == "open")
        if verb == "take":
            thing, _, receptacle = rest.partition(" from ")
            return self._take(state, self.thing.get(thing, -1), self.receptacle.get(receptacle, -1))
        if verb == self.spelling.verb:
            thing, _, receptacle = rest.partition(self.spelling.between)
            return self._put(state, self.thing.get(thing, -1), self.receptacle.get(receptacle, -1))
        if verb in ("clean", "heat", "cool"):
            thing, _, receptacle = rest.partition(" with ")
            return self._treat(state, verb, self.thing.get(thing, -1), self.receptacle.get(receptacle, -1))
        if verb == "examine":
            return self._examine(state, rest)
        if verb == "use":
            return self._use(state, self.thing.get(rest, -1))
        if verb == "slice":
            thing, _, knife = rest.partition(" with ")
            return self._slice(state, self.thing.get(thing, -1), self.thing.get(knife, -1))
        if command == "look":
            return self.look(state)
        if command == "inventory":
            return self.inventory(state)
        return HELP if command == "help" else None

    def _here(self, state: State, receptacle: int) -> bool:
        return receptacle >= 0 and self.receptacles[receptacle].place == state.place

    def _go(self, state: State, receptacle: int) -> str | None:
        if receptacle < 0 or self._here(state, receptacle):
            return None
        state.place = self.receptacles[receptacle].place
        name = self.places[state.place] if self.places else self.receptacles[receptacle].name
        return f"You arrive at {name}. {self._see(state, receptacle)}"

    def _open(self, state: State, receptacle: int, opens: bool) -> str | None:
        if not self._here(state, receptacle) or not self.receptacles[receptacle].openable:
            return None
        if opens == (receptacle in state.opened):
            return None
        name = self.receptacles[receptacle].name
        if opens:
            state.opened.add(receptacle)
            return f"You open the {name}. {self._see(state, receptacle)}"
        state.opened.remove(receptacle)
        return f"You close the {name}."

    def _take(self, state: State, thing: int, receptacle: int) -> str | None:
        if not self._here(state, receptacle) or state.hand >= 0 or not self.is_open(state, receptacle):
            return None
        if thing not in state.contents[receptacle] or "take" not in self.things[thing].can:
            return None
        state.contents[receptacle].remove(thing)
        state.taken.add((thing, receptacle))
        state.lying.discard((thing, state.place))
        state.hand = thing
        return f"You pick up the {self.things[thing].name} from the {self.receptacles[receptacle].name}."

    def _put(self, state: State, thing: int, receptacle: int) -> str | None:
        if thing < 0 or thing != state.hand or not self._here(state, receptacle):
            return None
        kinds = self.receptacles[receptacle].kind, self.things[thing].kind
        if kinds not in self.fits or not self.is_open(state, receptacle):
            return None
        state.contents[receptacle].add(thing)
        state.taken.discard((thing, receptacle))
        state.lying.add((thing, state.place))
        state.hand = -1
        return self.spelling.answer.format(o=self.things[thing].name, r=self.receptacles[receptacle].name)

    def _treat(self, state: State, verb: str, thing: int, receptacle: int) -> str | None:
        if thing < 0 or thing != state.hand or not self._here(state, receptacle):
            return None
        tool = TOOLS.get(self.receptacles[receptacle].kind)
        if tool is None or tool[0] != verb or verb not in self.things[thing].can:
            return None
        state.marks[tool[1]].add(thing)
        if tool[2]:
            state.marks[tool[2]].discard(thing)
        return f"You {verb} the {self.things[thing].name} using the {self.receptacles[receptacle].name}."

    def _use(self, state: State, thing: int) -> str | None:
        """Turn on a lamp; the domain's answer is the same when it is on already."""
        here = (state.contents[r] for r in self.at.get(state.place, ()))
        if thing < 0 or "use" not in self.things[thing].can or not any(thing in inside for inside in here):
            return None
        state.marks["used"].add(thing)
        return f"You turn on the {self.things[thing].name}."

    def _slice(self, state: State, thing: int, knife: int) -> str | None:
        if thing < 0 or knife < 0 or knife != state.hand or self.things[knife].kind not in KNIVES:
            return None
        if (thing, state.place) not in state.lying or "slice" not in self.things[thing].can:
            return None
        state.marks["sliced"].add(thing)
        return f"You sliced the {self.things[thing].name} with the {self.things[knife].name}."

    # -- texts -------------------------------------------------------------------------------------------------------

    def intro(self, state: State) -> str:
        """Return the first text of an episode."""
        around = _listed([f"a {each.name}" for each in self.receptacles])
        view = self.look(state) if state.place in self.at else _MIDDLE.format(around)
        return f"{WELCOME}\n\n{view}\n\nYour task is to: {self.task}."

    def look(self, state: State) -> str:
        """Return the answer to ``look``. From the middle of the room one sees nothing: only the first text lists it."""
        here = self.at.get(state.place, ())
        if not here:
            return _MIDDLE.format("nothing")
        near = sorted(thing for thing, place in state.lying if place == state.place)
        moved = [f"a {self.things[o].name}" for o in near for r in here if (o, r) in state.taken]
        facing = _listed([self.receptacles[r].name for r in here])
        return f"You are facing the {facing}. Next to it, you see {_listed(moved)}."

    def inventory(self, state: State) -> str:
        """Return the answer to ``inventory``."""
        if state.hand < 0:
            return "You are not carrying anything."
        return f"You are carrying: a {self.things[state.hand].name}."

    def _see(self, state: State, receptacle: int) -> str:
        """Say what is in a receptacle, or that it is closed."""
        each = self.receptacles[receptacle]
        if not self.is_open(state, receptacle):
            return f"The {each.name} is closed."
        state.seen.add(receptacle)
        inside = _listed([f"a {self.things[o].name}" for o in sorted(state.contents[receptacle])])
        if each.openable:
            return f"The {each.name} is open. In it, you see {inside}."
        return f"On the {each.name}, you see {inside}."

    def _examine(self, state: State, name: str) -> str | None:
        receptacle = self.receptacle.get(name, -1)
        if self._here(state, receptacle):
            return self._see(state, receptacle)
        thing = self.thing.get(name, -1)
        near = [r for r in self.at.get(state.place, ()) if self.examines_near and self.is_open(state, r)]
        if thing < 0 or (thing != state.hand and not any(thing in state.contents[r] for r in near)):
            return None
        return self._describe(state, thing)

    def _describe(self, state: State, thing: int) -> str:
        each = self.things[thing]
        if each.vessel:
            inside = _listed([f"a {self.things[o].name}" for o in each.inside])
            return f"This is a normal {each.name}. In it, you see {inside}."
        hot, cool, clean, sliced, used = (thing in state.marks[name] for name in MARKS)
        words = [word for word, true in (("hot", hot), ("cool", cool and not hot), ("clean", clean)) if true]
        if sliced and words:
            return f"This is a {' and '.join(words)} sliced {each.name}."
        if words:
            return f"This is a {'cold' if words == ['cool'] else ' and '.join(words)} {each.name}."
        if used:
            return f"This {each.name} is on."
        if sliced:
            return f"This is a sliced {each.name}."
        return f"There's nothing special about {each.name}."

    def render(self, state: State) -> str:
        """Return the whole room as text, for people: all that :meth:`key` knows."""
        lines = [f"Your task is to: {self.task}."]
        for number, each in enumerate(self.receptacles):
            inside = ", ".join(self._marked(state, o) for o in sorted(state.contents[number])) or "nothing"
            closed = "" if self.is_open(state, number) else " (closed)"
            lines.append(f"{'>' if self._here(state, number) else ' '} {each.name}{closed}: {inside}")
        lines.append(f"In hand: {self._marked(state, state.hand) if state.hand >= 0 else 'nothing'}")
        if notes := self._notes(state):
            lines.append(f"Out of the ordinary: {notes}")
        return "\n".join(lines)

    def _marked(self, state: State, thing: int) -> str:
        marks = [{"used": "on"}.get(name, name) for name in MARKS if thing in state.marks[name]]
        return f"{self.things[thing].name} ({', '.join(marks)})" if marks else self.things[thing].name

    def _notes(self, state: State) -> str:
        """Say what else texts and commands depend on: in official games, receptacles share places."""
        notes = sorted(f"{self.things[o].name} lies at place {place}" for o, place in state.lying - self._lies(state))
        notes += sorted(f"{self.things[o].name} is out of reach" for o, place in self._lies(state) - state.lying)
        shared = sorted(pair for pair in state.taken if len(self.at[self.receptacles[pair[1]].place]) > 1)
        return ", ".join([*notes, *(f"{self.things[o].name} was in {self.receptacles[r].name}" for o, r in shared)])

    def _lies(self, state: State) -> set[tuple[int, int]]:
        return {(o, self.receptacles[r].place) for r, inside in enumerate(state.contents) for o in inside}

    def key(self, state: State) -> str:
        """Return a text that is equal for two states of this room if and only if they are."""
        marks = [sorted(state.marks[name]) for name in MARKS]
        contents = [sorted(each) for each in state.contents]
        return f"{state.place} {state.hand} {contents} {sorted(state.opened)} {marks} {self._notes(state)}"


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])}, and {names[-1]}"

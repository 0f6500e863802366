"""An expert: it looks for what the task needs, where such things usually are, and does the task."""

from __future__ import annotations

from collections.abc import Iterable

from rollenv.core.errors import Unsolvable
from rollenv.plugins.worlds.alfworld.rooms import likely
from rollenv.plugins.worlds.alfworld.world import TOOLS, Room, State

_TOOL_OF = {verb: kind for kind, (verb, *_) in TOOLS.items()}


def next_command(room: Room, state: State, knows: bool) -> str:
    """Return the expert's next command.

    Args:
        knows: whether it knows where everything is; otherwise it only uses what it has seen (``state.seen``).

    Raises:
        Unsolvable: the room lacks what the task needs.
    """
    return _Expert(room, state, knows).choose()


class _Expert:
    def __init__(self, room: Room, state: State, knows: bool):
        self.room, self.state, self.goal = room, state, room.goal
        self.known = range(len(room.receptacles)) if knows else state.seen
        #: The receptacle that gets the objects: the one that has most of them.
        useful = self._useful()
        self.target = max(
            room.goal_receptacles,
            key=lambda r: (len(state.contents[r] & useful) if r in self.known else 0, -r),
            default=-1,
        )

    def choose(self) -> str:
        room, state, goal = self.room, self.state, self.goal
        if not goal.lamp and self.target < 0:
            raise Unsolvable(f"the room has no {goal.receptacle}")
        if state.hand < 0:
            return self._fetch()
        if state.hand not in room.goal_things:
            return self._put_away()
        if goal.lamp:
            return self._light()
        if goal.verb and state.hand not in state.marks[goal.needs]:
            return self._treat()
        name, target = room.things[state.hand].name, room.receptacles[self.target].name
        put = f"{room.spelling.verb} {name}{room.spelling.between}{target}"
        if (room.receptacles[self.target].kind, room.things[state.hand].kind) not in room.fits:
            raise Unsolvable(f"{name} may not be put into {target}")
        return self._reach(self.target) or put

    def _useful(self) -> set[int] | frozenset[int]:
        """Return the objects that count for the goal where they are, once enough of them are there."""
        wanted = self.room.goal_things
        return wanted & self.state.marks[self.goal.needs] if self.goal.verb else wanted

    def _fetch(self) -> str:
        """Take an object of the goal that is not yet in place."""
        room, state = self.room, self.state
        in_place = state.contents[self.target] & self._useful() if self.goal.needs == "two" else set()
        wanted = {o for o in room.goal_things - in_place if "take" in room.things[o].can}
        found = self._find(wanted, self.goal.thing)
        if isinstance(found, str):
            return found
        receptacle, thing = found
        return self._reach(receptacle) or f"take {room.things[thing].name} from {room.receptacles[receptacle].name}"

    def _light(self) -> str:
        """Turn on the lamp, with the object in hand."""
        found = self._find({o for o in self.room.goal_lamps if "use" in self.room.things[o].can}, self.goal.lamp)
        if isinstance(found, str):
            return found
        receptacle, lamp = found
        place = self.room.receptacles[receptacle].place
        return self._reach(receptacle) if self.state.place != place else f"use {self.room.things[lamp].name}"

    def _treat(self) -> str:
        """Bring the object in hand into the wanted state."""
        kind = _TOOL_OF[self.goal.verb]
        tools = [r for r, each in enumerate(self.room.receptacles) if each.kind == kind]
        thing = self.room.things[self.state.hand]
        if not tools or self.goal.verb not in thing.can:
            raise Unsolvable(f"nothing here can {self.goal.verb} {thing.name}")
        tool = self._nearest(tools)
        each = self.room.receptacles[tool]
        if each.place != self.state.place:
            return f"go to {each.name}"
        return f"{self.goal.verb} {thing.name} with {each.name}"

    def _put_away(self) -> str:
        """Put down what is not needed."""
        room, thing = self.room, self.room.things[self.state.hand]
        free = [r for r, each in enumerate(room.receptacles) if (each.kind, thing.kind) in room.fits]
        if not free:
            raise Unsolvable(f"{thing.name} can be put down nowhere")
        place = self._nearest(free)
        put = f"{room.spelling.verb} {thing.name}{room.spelling.between}{room.receptacles[place].name}"
        return self._reach(place) or put

    def _find(self, wanted: Iterable[int], kind: str) -> tuple[int, int] | str:
        """Return a receptacle and an object in it, or the command that looks into the next receptacle."""
        room, state = self.room, self.state
        wanted = set(wanted)
        places = [r for r in self.known if state.contents[r] & wanted]
        if places:
            receptacle = self._nearest(places)
            return receptacle, min(state.contents[receptacle] & wanted)
        unseen = [r for r in range(len(room.receptacles)) if r not in self.known]
        if not wanted or not unseen:
            raise Unsolvable(f"the room has no {kind} to use")
        here = [r for r in unseen if room.receptacles[r].place == state.place and state.place in room.at]
        best = here[0] if here else max(unseen, key=lambda r: (self._worth(r, kind), -r))
        return self._reach(best) or f"examine {room.receptacles[best].name}"

    def _worth(self, receptacle: int, kind: str) -> float:
        """Return the chance to find a kind of object in a receptacle for each step that it takes."""
        each = self.room.receptacles[receptacle]
        return likely(kind, each.kind) / (2 if each.openable and receptacle not in self.state.opened else 1)

    def _nearest(self, receptacles: Iterable[int]) -> int:
        """Return a receptacle at the agent's place, else an open one, else the first."""

        def steps(r: int) -> tuple[int, int]:
            away = self.room.receptacles[r].place != self.state.place
            return away + (not self.room.is_open(self.state, r)), r

        return min(receptacles, key=steps)

    def _reach(self, receptacle: int) -> str:
        """Return the next command on the way into a receptacle; empty at an open one."""
        each = self.room.receptacles[receptacle]
        if each.place != self.state.place:
            return f"go to {each.name}"
        return "" if self.room.is_open(self.state, receptacle) else f"open {each.name}"

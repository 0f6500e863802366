"""The knowledge of the agent in few words: for models too small to read a whole episode."""

from __future__ import annotations

from rollenv.plugins.worlds.alfworld.world import TOOLS, Room, State


def brief_text(room: Room, state: State) -> str:
    """Return the goal, what is in hand and at hand, where the goal's things were seen, and what was not yet seen."""
    goal = room.goal
    words = [goal.needs, goal.thing, goal.receptacle, goal.lamp]
    lines = [" ".join(filter(None, words)), f"hand {_marked(room, state, state.hand) if state.hand >= 0 else '-'}"]
    for r in room.at.get(state.place, ()):
        each = room.receptacles[r]
        inside = [_marked(room, state, o) for o in sorted(state.contents[r])] if room.is_open(state, r) else ["closed"]
        lines.append(f"at {each.name}: {', '.join(inside) or '-'}")
    wanted = room.goal_things | room.goal_lamps
    found = [
        f"{_marked(room, state, o)} {room.receptacles[r].name}"
        for r in sorted(state.seen)
        for o in sorted(state.contents[r] & wanted)
    ]
    lines.append(f"seen {', '.join(found) or '-'}")
    tools = {kind for kind, (_, mark, _) in TOOLS.items() if mark == goal.needs}
    use = [each.name for each in room.receptacles if each.kind == goal.receptacle or each.kind in tools]
    lines.append(f"use {', '.join(use) or '-'}")
    unseen = [each.name for r, each in enumerate(room.receptacles) if r not in state.seen]
    return "\n".join([*lines, f"new {', '.join(unseen) or '-'}"])


def _marked(room: Room, state: State, thing: int) -> str:
    marks = [mark for mark in ("hot", "cool", "clean") if thing in state.marks[mark]]
    return " ".join([room.things[thing].name, *marks])

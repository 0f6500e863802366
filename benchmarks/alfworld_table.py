"""The table of rooms that ``alfworld:generated`` draws from, counted over ALFRED's training trials.

python benchmarks/alfworld_table.py > plugins/worlds/alfworld/table.txt
"""

from __future__ import annotations

from collections import Counter, defaultdict

from rollenv.core.errors import UsageError
from rollenv.plugins.worlds.alfworld.alfred import load_trials, playable, rebuild
from rollenv.plugins.worlds.alfworld.world import Room

ROOMS = {"kitchen": range(1, 31), "living": range(201, 231), "bedroom": range(301, 331), "bathroom": range(401, 431)}


def count_table() -> str:
    """Return the table's lines: receptacles, tasks, targets and objects of each kind of room."""
    trials = load_trials(None)
    rooms: dict[str, list[tuple[str, str, Room]]] = defaultdict(list)
    for trial in playable(trials, "train"):
        number = int(trial["floor_plan"].removeprefix("FloorPlan"))
        room = next(name for name, numbers in ROOMS.items() if number in numbers)
        try:
            rooms[room].append((trial["floor_plan"], trial["type"], rebuild(trials, trial)))
        except UsageError as reason:
            raise SystemExit(f"{reason}: playable() should have left it out") from reason
    return "\n".join(line for name in ROOMS for line in _lines(name, rooms[name]))


def _lines(name: str, rooms: list[tuple[str, str, Room]]) -> list[str]:
    scenes = {plan: Counter(each.kind for each in room.receptacles) for plan, _, room in rooms}
    lines = [f"room {name}"]
    for kind in sorted({kind for counts in scenes.values() for kind in counts}):
        numbers = sorted(counts[kind] for counts in scenes.values())
        octiles = [str(numbers[(2 * i + 1) * len(numbers) // 16]) for i in range(8)]
        lines.append(f"receptacle {kind} {' '.join(octiles)}")
    lines += [f"task {task} {n}" for task, n in sorted(Counter(task for _, task, _ in rooms).items())]
    targets = Counter(room.goal.receptacle for _, _, room in rooms if room.goal.receptacle)
    lines += [f"target {kind} {n}" for kind, n in sorted(targets.items())]
    wanted = Counter(room.goal.thing for _, _, room in rooms)
    where: dict[str, Counter[str]] = defaultdict(Counter)
    for _, _, room in rooms:
        for number, receptacle in enumerate(room.receptacles):
            for thing in room.start.contents[number]:
                where[room.things[thing].kind][receptacle.kind] += 1
    for kind, places in sorted(where.items()):
        shares = [(place, round(100 * n / len(rooms))) for place, n in places.most_common()]
        shown = " ".join(f"{place} {share}" for place, share in shares if share)
        if shown:
            lines.append(f"object {kind} {round(100 * wanted[kind] / len(rooms))} {shown}")
    return lines


if __name__ == "__main__":
    print(count_table())

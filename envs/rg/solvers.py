"""Winning answers for reasoning-gym's data sets that keep no gold answer, or whose gold answer differs by process.

Each solver lists candidates, the likeliest first; one of them scores 1.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

Item = dict[str, Any]
Place = tuple[float, float]


def boxnet(item: Item) -> list[str]:
    """Carry one box at a time to a target of its colour, a square a step: first along x, then along y."""
    state: dict[str, list[str]] = item["metadata"]["initial_state"]
    plan = []
    for colour in sorted({thing[4:] for things in state.values() for thing in things if thing.startswith("box_")}):
        for start, end in zip(_places(state, f"box_{colour}"), _places(state, f"target_{colour}"), strict=True):
            here = start
            while here != end:
                there = _towards(here, end)
                plan.append({f"Agent[{here[0]}, {here[1]}]": f"move(box_{colour}, square[{there[0]}, {there[1]}])"})
                here = there
            plan.append({f"Agent[{end[0]}, {end[1]}]": f"move(box_{colour}, target_{colour})"})
    return [json.dumps(plan)]


def _places(state: dict[str, list[str]], thing: str) -> list[Place]:
    named = [(name.split("_"), things.count(thing)) for name, things in state.items()]
    return [(float(x), float(y)) for (x, y), n in named for _ in range(n)]


def _towards(here: Place, end: Place) -> Place:
    if here[0] != end[0]:
        return here[0] + (1 if end[0] > here[0] else -1), here[1]
    return here[0], here[1] + (1 if end[1] > here[1] else -1)


def graph_color(item: Item) -> list[str]:
    """The colouring that the generator found."""
    return [json.dumps(item["metadata"]["possible_answer"])]


def propositional_logic(item: Item) -> list[str]:
    """The generator's conclusion, which may be a poor one; all premises together; each premise, as a conjunction.

    Where every premise is a tautology nothing scores 1, as only tautologies follow.
    """
    premises = item["metadata"]["premises"]
    together = " ∧ ".join(f"({premise})" for premise in premises)
    return [item["metadata"]["example_answer"], together, *(f"({p}) ∧ ({p})" for p in premises)]


def rubiks_cube(item: Item) -> list[str]:
    """The solver's moves (3x3x3 only), or the scramble backwards."""
    scramble = item["metadata"]["scramble_moves"].split()
    backwards = " ".join(move[:-1] if move.endswith("'") else f"{move}'" for move in reversed(scramble))
    return [item["metadata"]["example_correct_answer"] or backwards, backwards]


# -- breadth-first search --------------------------------------------------------------------------------------------


def _search(start: Any, is_goal: Callable[[Any], bool], moves: Callable[[Any], Iterator[tuple[str, Any]]]) -> list[str]:
    """The names of the fewest moves from the start to a goal.

    Raises:
        ValueError: if no goal can be reached.
    """
    parents: dict[Any, tuple[Any, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if is_goal(state):
            path = []
            while (step := parents[state]) is not None:
                state = step[0]
                path.append(step[1])
            return path[::-1]
        for name, after in moves(state):
            if after not in parents:
                parents[after] = (state, name)
                queue.append(after)
    raise ValueError("the puzzle has no solution")


def rush_hour(item: Item) -> list[str]:
    """The fewest slides that bring car A to the right edge of row 3."""
    board: str = item["metadata"]["board_config"]
    cells = [[i for i, c in enumerate(board) if c == label] for label in sorted(set(board) - {"o", "x"})]
    shapes = [(car[1] - car[0], len(car)) for car in cells]
    walls = sum(1 << i for i, c in enumerate(board) if c == "x")
    exit_cell = 2 * 6 + 6 - shapes[0][1]
    start = tuple(car[0] for car in cells)
    return [" ".join(_search(start, lambda s: s[0] == exit_cell, lambda s: _slides(s, shapes, walls)))]


def _slides(state: tuple[int, ...], shapes: list[tuple[int, int]], walls: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    taken = walls
    for at, (stride, size) in zip(state, shapes, strict=True):
        for k in range(size):
            taken |= 1 << (at + k * stride)
    for car, (at, (stride, size)) in enumerate(zip(state, shapes, strict=True)):
        before = at % 6 if stride == 1 else at // 6
        for sign, room, edge in ((1, 6 - size - before, at + (size - 1) * stride), (-1, before, at)):
            for k in range(1, room + 1):
                if taken >> (edge + sign * k * stride) & 1:
                    break
                after = (*state[:car], at + sign * k * stride, *state[car + 1 :])
                yield f"{chr(ord('A') + car)}{sign * k:+d}", after


def knight_swap(item: Item) -> list[str]:
    """The fewest moves that swap the white and the black knights, or "No" where there are none."""
    facts = item["metadata"]
    if not facts["is_possible"]:
        return ["No"]
    white, black = (tuple(sorted(p for p, piece in facts["pieces"].items() if piece == side)) for side in "wB")
    names = _search(
        (white, black, facts["start_turn"]),
        lambda s: s[0] == black and s[1] == white,
        lambda s: _knight_moves(s, facts["board"]),
    )
    return [json.dumps(names)]


def _knight_moves(state: Any, board: dict[str, list[str]]) -> Iterator[tuple[str, Any]]:
    white, black, turn = state
    for start in white if turn == "w" else black:
        for end in board[start]:
            if end not in white and end not in black:
                moved = tuple(sorted(end if p == start else p for p in (white if turn == "w" else black)))
                after = (moved, black, "B") if turn == "w" else (white, moved, "w")
                yield f"{turn},{start},{end}", after


SOLVERS: dict[str, Callable[[Item], list[str]]] = {
    f.__name__: f for f in (boxnet, graph_color, knight_swap, propositional_logic, rubiks_cube, rush_hour)
}

"""A Sokoban solver: A* over pushes, with the number of player moves as the cost."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from rollenv.envs.sokoban.board import Board, State, bits, layers

#: Larger than any real distance, small enough to add up.
INFINITE = 1 << 20


def solve(
    board: Board, state: State, *, weights: tuple[float, ...] = (1, 2, 5, 25), budget: int = 4000
) -> list[int] | None:
    """Moves (index offsets) that solve the level from ``state``, or None if none were found.

    A* with an admissible heuristic (the cheapest matching of boxes to targets by push distance on the empty room)
    gives a shortest solution. If ``budget`` states were expanded without reaching the goal, the search starts again
    with the next, larger weight on the heuristic: faster, and at most ``weight`` times longer than the shortest.
    """
    search = _Search(board)
    for weight in weights:
        plan, exhausted = search.run(state, weight, budget)
        if plan is not None:
            return _moves(board, state, plan)
        if exhausted:
            break
    return None


def pushes(board: Board, player: int, boxes: int, landing: int) -> Iterator[tuple[int, int, int]]:
    """Every push open to the player as ``(moves, box cell, step)``, nearest first; boxes may land on ``landing``."""
    width = board.width
    landing &= ~(board.walls | boxes)
    # The player stands at box - step and the box lands on box + step.
    movable = (
        (-width, boxes & landing << width),
        (width, boxes & landing >> width),
        (-1, boxes & landing << 1),
        (1, boxes & landing >> 1),
    )
    for moves, frontier in layers(board, player, boxes):
        for step, candidates in movable:
            hit = candidates & (frontier << step if step > 0 else frontier >> -step)
            while hit:
                low = hit & -hit
                hit ^= low
                yield moves, low.bit_length() - 1, step


def walk(board: Board, state: State, goal: int) -> list[int]:
    """A shortest walk of the player to the cell ``goal``, which it can reach without pushing."""
    trail = []
    for _, cells in layers(board, goal, state.boxes):
        trail.append(cells)
        if cells >> state.player & 1:
            break
    path, cell = [], state.player
    for cells in reversed(trail[:-1]):
        step = next(s for s in board.steps if cells >> (cell + s) & 1)
        path.append(step)
        cell += step
    return path


def push_distances(board: Board) -> list[list[int]]:
    """``[target][cell]``: pushes to bring a box from the cell to the target in the empty room, INFINITE if none do."""
    table = []
    for target in bits(board.targets):
        distance = [INFINITE] * (board.height * board.width)
        distance[target] = 0
        queue = [target]
        for cell in queue:
            for step in board.steps:
                # Pulling the box by `step`: it goes to cell + step, and the player backs off to cell + 2 * step.
                before, stand = cell + step, cell + 2 * step
                if board.walls >> before & 1 or board.walls >> stand & 1 or distance[before] < INFINITE:
                    continue
                distance[before] = distance[cell] + 1
                queue.append(before)
        table.append(distance)
    return table


class _Search:
    def __init__(self, board: Board):
        self.board = board
        self.distance = push_distances(board)
        self.live = sum(
            1 << i for i in range(board.height * board.width) if any(d[i] < INFINITE for d in self.distance)
        )
        self.heuristic: dict[int, int] = {}

    def run(self, start: State, weight: float, budget: int) -> tuple[list[tuple[int, int]] | None, bool]:
        """``(pushes or None, whether every state was searched)``."""
        board = self.board
        cost = {start: 0}
        parent: dict[State, tuple[State, int, int]] = {}
        closed: set[State] = set()
        queue = [(weight * self.estimate(start.boxes), 0, start)]
        while queue:
            state = heapq.heappop(queue)[2]
            if state.boxes == board.targets:
                return self._trace(parent, state), False
            if state in closed:
                continue
            closed.add(state)
            if len(closed) > budget:
                return None, False
            for moves, box, step in pushes(board, state.player, state.boxes, self.live):
                child = State(box, state.boxes ^ (1 << box) ^ (1 << box + step))
                total = cost[state] + moves
                if total >= cost.get(child, INFINITE):
                    continue
                left = self.estimate(child.boxes)
                if left >= INFINITE or (child not in cost and self._frozen(child.boxes, box + step)):
                    continue
                cost[child] = total
                parent[child] = (state, box, step)
                heapq.heappush(queue, (total + weight * left, -len(cost), child))
        return None, True

    def estimate(self, boxes: int) -> int:
        """Cheapest matching of boxes to targets (a lower bound on the pushes left)."""
        known = self.heuristic.get(boxes)
        if known is None:
            costs = {0: 0}  # set of targets taken -> cheapest way to have taken them
            for box in bits(boxes):
                step: dict[int, int] = {}
                for taken, cost in costs.items():
                    for t, distance in enumerate(self.distance):
                        d = distance[box]
                        if d < INFINITE and not taken >> t & 1:
                            key = taken | 1 << t
                            if cost + d < step.get(key, INFINITE):
                                step[key] = cost + d
                costs = step
            known = self.heuristic[boxes] = min(costs.values(), default=INFINITE)
        return known

    def _frozen(self, boxes: int, cell: int) -> bool:
        """Whether the box at ``cell`` stands in a 2x2 block of walls and boxes that is not all on target."""
        board, w = self.board, self.board.width
        solid = board.walls | boxes
        off = boxes & ~board.targets
        square = 1 | 2 | 1 << w | 2 << w
        for corner in (cell, cell - 1, cell - w, cell - w - 1):
            block = square << corner
            if solid & block == block and off & block:
                return True
        return False

    def _trace(self, parent: dict[State, tuple[State, int, int]], state: State) -> list[tuple[int, int]]:
        out = []
        while state in parent:
            state, box, step = parent[state]
            out.append((box, step))
        return out[::-1]


def _moves(board: Board, state: State, plan: list[tuple[int, int]]) -> list[int]:
    """The player's moves that carry out the pushes of a plan."""
    moves: list[int] = []
    for box, step in plan:
        moves += walk(board, state, box - step)
        moves.append(step)
        state = State(box, state.boxes ^ (1 << box) ^ (1 << box + step))
    return moves

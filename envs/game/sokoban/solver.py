"""A Sokoban solver: A* over pushes, with the number of player moves as the cost."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from rollenv.envs.game.sokoban.board import Board, BoardState, bits, layers, reached

#: Larger than any real distance, and small enough to be added up.
INFINITE = 1 << 20

#: A state as a plain tuple, which is much faster to create than a named one.
_Cells = tuple[int, int]


def solve(
    board: Board, state: BoardState, *, weights: tuple[float, ...] = (1, 2, 5, 25), budget: int = 4000
) -> list[int] | None:
    """Solve a level; see :meth:`Solver.solve`."""
    return Solver(board).solve(state, weights=weights, budget=budget)


def _pushes(board: Board, player: int, boxes: int, landing: int) -> Iterator[tuple[int, int, int]]:
    """Yield the possible pushes as ``(moves, box cell, step)``, nearest first; boxes may land on ``landing``."""
    width = board.width
    landing &= ~(board.walls | boxes)
    # To push a box up, the player stands below it.
    stands = (
        (-width, (boxes & landing << width) << width),
        (width, (boxes & landing >> width) >> width),
        (-1, (boxes & landing << 1) << 1),
        (1, (boxes & landing >> 1) >> 1),
    )
    return ((moves, cell + step, step) for moves, cell, step in reached(board, player, boxes, stands))


def _walk(board: Board, state: BoardState, goal: int) -> list[int]:
    """Return a shortest walk of the player, without pushes, to a reachable cell."""
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
    """Return ``[target][cell]``: pushes from the cell to the target in the empty room, INFINITE if impossible."""
    table, walls, steps = [], board.walls, board.steps
    for target in bits(board.targets):
        distance = [INFINITE] * (board.height * board.width)
        distance[target] = 0
        queue = [target]
        for cell in queue:
            for step in steps:
                # Pull the box by `step`: it goes to cell + step, and the player to cell + 2 * step.
                before = cell + step
                if not walls >> before & 1 and not walls >> before + step & 1 and distance[before] == INFINITE:
                    distance[before] = distance[cell] + 1
                    queue.append(before)
        table.append(distance)
    return table


class Solver:
    """Solves states of one board, with cached tables of the board."""

    def __init__(self, board: Board):
        self.board = board
        self.distance = push_distances(board)
        nearest = map(min, zip(*self.distance, strict=True))
        self.live = sum(1 << cell for cell, pushes in enumerate(nearest) if pushes < INFINITE)
        self.heuristic: dict[int, int] = {}

    def solve(
        self, state: BoardState, *, weights: tuple[float, ...] = (1, 2, 5, 25), budget: int = 4000
    ) -> list[int] | None:
        """Solve a level.

        With weight 1 and an admissible heuristic (the cheapest matching of boxes to targets by push distance in the
        empty room), A* finds a shortest solution. If it expands ``budget`` states without reaching the goal, the search
        starts again with the next weight on the heuristic: faster, and the solution is at most ``weight`` times the
        shortest.

        Returns:
            The moves as index offsets, or None if no solution was found.
        """
        for weight in weights:
            plan, exhausted = self._run(state, weight, budget)
            if plan is not None:
                moves: list[int] = []
                for box, step in plan:
                    moves += _walk(self.board, state, box - step)
                    moves.append(step)
                    state = BoardState(box, state.boxes ^ (1 << box) ^ (1 << box + step))
                return moves
            if exhausted:
                break
        return None

    def _run(self, start: BoardState, weight: float, budget: int) -> tuple[list[tuple[int, int]] | None, bool]:
        """Search once; return ``(pushes or None, whether every state was searched)``."""
        board, targets, live = self.board, self.board.targets, self.live
        begin = start.player, start.boxes
        cost = {begin: 0}
        parent: dict[_Cells, tuple[_Cells, int, int]] = {}
        closed: set[_Cells] = set()
        queue = [(weight * self.estimate(start.boxes), 0, begin)]
        while queue:
            state = heapq.heappop(queue)[2]
            player, boxes = state
            if boxes == targets:
                return self._trace(parent, state), False
            if state in closed:
                continue
            closed.add(state)
            if len(closed) > budget:
                return None, False
            so_far = cost[state]
            for moves, box, step in _pushes(board, player, boxes, live):
                child = box, boxes ^ (1 << box) ^ (1 << box + step)
                total = so_far + moves
                if total >= cost.get(child, INFINITE):
                    continue
                left = self.estimate(child[1])
                if left >= INFINITE or (child not in cost and self._frozen(child[1], box + step)):
                    continue
                cost[child] = total
                parent[child] = (state, box, step)
                heapq.heappush(queue, (total + weight * left, -len(cost), child))
        return None, True

    def estimate(self, boxes: int) -> int:
        """Return the cost of the cheapest matching of boxes to targets (a lower bound on the pushes left)."""
        known = self.heuristic.get(boxes)
        if known is None and len(self.distance) == 1:
            known = self.heuristic[boxes] = self.distance[0][boxes.bit_length() - 1]
        elif known is None:
            costs = {0: 0}  # set of matched targets -> lowest cost
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
        """Return whether the box at ``cell`` is in a 2x2 block of walls and boxes that is not all on target."""
        board, w = self.board, self.board.width
        solid = board.walls | boxes
        off = boxes & ~board.targets
        square = 1 | 2 | 1 << w | 2 << w
        for corner in (cell, cell - 1, cell - w, cell - w - 1):
            block = square << corner
            if solid & block == block and off & block:
                return True
        return False

    def _trace(self, parent: dict[_Cells, tuple[_Cells, int, int]], state: _Cells) -> list[tuple[int, int]]:
        out = []
        while state in parent:
            state, box, step = parent[state]
            out.append((box, step))
        return out[::-1]

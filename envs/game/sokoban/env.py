"""Sokoban as a text game, with GEM's ids, RAGEN's and ROLL's rewards and action formats, and Boxoban's levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.core.errors import EpisodeOver, Unsolvable, UsageError
from rollenv.envs import pictures
from rollenv.envs.game.grid import GridGame, Rewards, same_if_turned
from rollenv.envs.game.sokoban.board import DIRECTIONS, Board, BoardState, bits
from rollenv.envs.game.sokoban.levels import Level, Rules, generate, load_levels
from rollenv.envs.game.sokoban.solver import Solver
from rollenv.envs.splits import check_split

#: wall, floor, target, box on target, box, player, player on target
SYMBOLS = {"#": "#", " ": "_", ".": "O", "*": "√", "$": "X", "@": "P", "+": "S"}
LEGEND = "P is you, # a wall, _ floor, X a box, O a target, √ a box on a target, S you on a target"

OBSERVATIONS = ("grid", "dense", "coords", "compact")

#: Sizes of ids that end in -random: room, boxes, turns.
RANDOM_SIZES = (((6, 6), 2, 20), ((8, 8), 5, 50))


class Sokoban(GridGame):
    """Push every box onto a target.

    Args:
        dim_room: rows and columns, including walls. If it, ``num_boxes`` and ``max_turns`` are None, every reset draws
            one of :data:`RANDOM_SIZES`.
        max_turns: turns before the episode is truncated; every generated level can be solved within them.
        observation: ``grid`` (GEM: spaces between cells), ``dense`` (RAGEN: no spaces), ``coords`` (RAGEN 2: the grid
            and coordinates) or ``compact`` (only inner walls and coordinates, for very small models).
        rewards: ``gem`` (1 when solved, at the turn limit the share of boxes on target, a malformed action ends the
            episode with -0.1), ``ragen`` (-0.1 a move, 1 for a box on its target, 10 when solved, -0.1 for a malformed
            action, which does not end the episode) or ``roll`` (the same with -0.15).
        min_moves: minimum length of the shortest solution, or (low, high) to draw it for each level.
        split: ``train`` and ``test`` never share a room (walls and targets), turned or mirrored; ``all`` is both.
        levels: a Boxoban file or folder to draw levels from instead of generating them.

    ``reset(options={"index": i})`` plays the i-th level of ``levels``.
    """

    picture = staticmethod(pictures.sokoban)
    picture_words = pictures.SOKOBAN_WORDS
    directions = DIRECTIONS
    reward_schemes = {
        "gem": Rewards(partial=1.0),
        "ragen": Rewards(success=10.0, step=-0.1, progress=1.0, invalid_ends=False),
        "roll": Rewards(success=10.0, step=-0.1, progress=1.0, invalid=-0.15, invalid_ends=False),
    }

    def __init__(
        self,
        dim_room: Sequence[int] | None = (6, 6),
        num_boxes: int | None = 2,
        max_turns: int | None = 20,
        *,
        observation: str = "grid",
        rewards: str | Rewards | Mapping[str, Any] = "gem",
        action_format: str = "boxed",
        actions_per_turn: int = 1,
        max_actions: int | None = None,
        min_moves: int | Sequence[int] = 1,
        split: str = "all",
        levels: str | Path | None = None,
    ):
        sizes = (dim_room, num_boxes, max_turns)
        self.random_size = None in sizes and levels is None
        if self.random_size and sizes != (None, None, None):
            raise UsageError("give all of dim_room, num_boxes and max_turns, or None for all three to draw them")
        if self.random_size:
            dim_room, num_boxes, max_turns = RANDOM_SIZES[0]
        super().__init__(
            max_turns=120 if max_turns is None else max_turns,
            max_actions=max_actions,
            actions_per_turn=actions_per_turn,
            action_format=action_format,
            rewards=rewards,
        )
        if observation not in OBSERVATIONS:
            raise UsageError(f"observation {observation!r} is unknown; choose from {', '.join(OBSERVATIONS)}")
        check_split(split)
        self.dim_room = tuple(dim_room or (0, 0))
        self.num_boxes = num_boxes or 0
        self.observation, self.split = observation, split
        self.min_moves = (min_moves, min_moves) if isinstance(min_moves, int) else tuple(min_moves)
        if levels is None and (len(self.dim_room) != 2 or min(self.dim_room) < 5 or self.num_boxes < 1):
            raise UsageError(
                f"a room needs at least 5 x 5 cells, walls included, and one box; "
                f"got dim_room={self.dim_room}, num_boxes={self.num_boxes}"
            )
        low, high = self.min_moves if len(self.min_moves) == 2 else (0, 0)
        if not 1 <= low <= high:
            raise UsageError(f"min_moves must be a number from 1 or a pair (low, high), got {self.min_moves}")
        self.levels = None if levels is None else load_levels(levels)
        self.board: Board
        self.state: BoardState
        self._plan: tuple[BoardState, list[int]] | None = None
        self._solver: Solver | None = None

    reset_options = frozenset({"index"})
    _changed_in_place = ()  # boards, states, levels and text are replaced, never modified

    def num_tasks(self) -> int:
        """Return the number of levels in ``levels``."""
        if self.levels is None:
            raise UsageError(f"{self}: only levels from a file have numbers; pass levels=PATH")
        return len(self.levels)

    def _new_game(self, options: dict[str, Any]) -> None:
        level = self._draw_level(options.get("index"))
        self.board, self.state = level.board, level.start
        self._plan = None
        self._prepare_text()

    def _draw_level(self, number: int | None) -> Level:
        if self.levels is not None:
            if number is None:
                number = self.randint(len(self.levels))
            if not 0 <= number < len(self.levels):
                raise UsageError(f"{self}: there is no level {number}; there are {len(self.levels)}")
            return self.levels[number]
        if number is not None:
            raise UsageError(f"{self}: only levels from a file have numbers; pass levels=PATH")
        if self.random_size:
            self.dim_room, self.num_boxes, self.max_turns = RANDOM_SIZES[self.randint(len(RANDOM_SIZES))]
        low, high = self.min_moves
        height, width = self.dim_room
        rules = Rules(height, width, self.num_boxes, self.move_limit, low + self.randint(high - low + 1), self.split)
        return generate(rules, self.np_random.random)

    def _move(self, direction: int) -> tuple[str, float]:
        before = self.state
        after = self.board.move(before, self.board.steps[direction])
        name = DIRECTIONS[direction]
        if after is None:
            return f"something blocks the way {name}", 0.0
        self.state = after
        if after.boxes == before.boxes:
            return f"you moved {name}", 0.0
        targets = self.board.targets
        return f"you pushed a box {name}", (after.boxes & targets).bit_count() - (before.boxes & targets).bit_count()

    def _outcome(self) -> bool | None:
        return True if self.state.boxes == self.board.targets else None

    def _share_done(self) -> float:
        return (self.state.boxes & self.board.targets).bit_count() / self.board.targets.bit_count()

    # -- text --------------------------------------------------------------------------------------------------------

    def _prepare_text(self) -> None:
        """Prepare the constant part of the text, so that a turn only fills in the player and the boxes."""
        board, width = self.board, self.board.width
        if self.observation == "compact":
            inner = board.rows(BoardState(0, 0), SYMBOLS | {"@": "#", ".": "_"})[1:-1]
            self._static = "\n".join("".join(row[1:-1]) for row in inner), self._letters(board.targets, "O")
            return
        gap = "" if self.observation == "dense" else " "
        symbols = SYMBOLS | {"@": "#"}
        self._canvas = list("\n".join(gap.join(row) for row in board.rows(BoardState(0, 0), symbols)))
        self._stride = 1 + len(gap), width * (1 + len(gap)) + 1 - len(gap)

    def _draw(self) -> str:
        chars = self._canvas.copy()
        across, down = self._stride
        board, (player, boxes) = self.board, self.state
        width, targets = board.width, board.targets
        for i in bits(boxes):
            chars[i // width * down + i % width * across] = "√" if targets >> i & 1 else "X"
        chars[player // width * down + player % width * across] = "S" if targets >> player & 1 else "P"
        return "".join(chars)

    def _letters(self, cells: int, symbol: str) -> str:
        """Write row and column inside the outer wall as letters, each one token for the usual pre-tokenisers."""
        width = self.board.width
        return " ".join(f"{symbol}{chr(96 + i // width)}{chr(96 + i % width)}" for i in bits(cells))

    def _suffix(self) -> str:
        player, boxes = self.state
        if self.observation == "compact":
            walls, targets = self._static
            return f"{walls}\n{self._letters(1 << player, 'P')} {self._letters(boxes, 'X')} {targets}"
        if self.observation == "coords":
            cells = ((1 << player, "P"), (boxes, "X"), (self.board.targets, "O"))
            width = self.board.width
            coordinates = " ".join(f"{symbol}{i // width},{i % width}" for c, symbol in cells for i in bits(c))
            return f"The room now:\n{self._draw()}\nAs (row,column) from 0: {coordinates}\n"
        return f"The room now:\n{self._draw()}\n"

    @property
    def legend(self) -> str:
        """The legend of the ``compact`` observation; empty for the others."""
        if self.observation != "compact":
            return ""
        return (
            "What an agent reads is short: rows inside the outer wall (# wall, _ floor), then P you, X a box, O a "
            "target, each with its row and column as letters: Pab is row a, column b, counted from the top left."
        )

    def _instructions(self) -> str:
        boxes = self.board.targets.bit_count()
        goal = "the box onto the target" if boxes == 1 else f"the {boxes} boxes onto the targets"
        return (
            f"This is Sokoban: push {goal}. Walk into a box to push it one cell on; a wall or another box behind it "
            f"stops you, and nothing can be pulled.\n{LEGEND}.\n{self._how_to_answer()}"
        )

    def render(self) -> str:
        """Return the room with spaces between cells, in any observation mode; empty before the first reset."""
        if not hasattr(self, "state"):
            return ""
        return "\n".join(" ".join(row) for row in self.board.rows(self.state, SYMBOLS))

    # -- abilities ---------------------------------------------------------------------------------------------------

    def oracle_action(self) -> str:
        """Return the next move of a shortest (on large boards: a short) solution; the plan is kept while followed."""
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        if self._plan is None or self._plan[0] != self.state:
            if self._solver is None or self._solver.board is not self.board:
                self._solver = Solver(self.board)
            moves = self._solver.solve(self.state)
            if moves is None:
                raise Unsolvable(f"{self}: no solution from here was found:\n{self.render()}")
            self._plan = self.state, moves
        state, moves = self._plan
        now, later = moves[: self.actions_per_turn], moves[self.actions_per_turn :]
        for step in now:
            after = self.board.move(state, step)
            assert after is not None, "a solution never walks into a wall"
            state = after
        self._plan = state, later
        return self.format_action(*(DIRECTIONS[self.board.steps.index(step)] for step in now))

    def state_key(self) -> str:
        return f"{self.board.walls:x}.{self.board.targets:x}.{self.state.boxes:x}.{self.state.player}"

    def alike_key(self) -> str:
        return same_if_turned(self.board.rows(self.state))

    def _get_state(self) -> dict[str, Any]:
        board = self.board
        return super()._get_state() | {
            "height": board.height,
            "width": board.width,
            "walls": f"{board.walls:x}",
            "targets": f"{board.targets:x}",
            "boxes": f"{self.state.boxes:x}",
            "player": self.state.player,
            "max_turns": self.max_turns,
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self.board = Board(state["height"], state["width"], int(state["walls"], 16), int(state["targets"], 16))
        self.state = BoardState(state["player"], int(state["boxes"], 16))
        self.max_turns = state["max_turns"]
        self._plan = None
        self._prepare_text()

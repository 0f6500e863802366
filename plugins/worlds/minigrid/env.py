"""A level of minigrid as an environment of words and pictures. The package's own code makes it and moves in it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sys
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import EpisodeOver, Unsolvable, UsageError, did_you_mean
from rollenv.core.needs import require_extra
from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.core.pictures import MARK
from rollenv.envs.splits import check_split, in_split

require_extra("minigrid", "minigrid", "MiniGrid")
_constants = importlib.import_module("minigrid.core.constants")
_bot = importlib.import_module("minigrid.utils.baby_ai_bot")

View = Literal["words", "grid", "map", "picture"]
VIEWS = ("words", "grid", "map", "picture")
#: The words for each action, in the package's order.
WORDS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
_OTHER_WORDS = {
    **{name: number for number, name in enumerate(("left", "right", "forward", "pickup", "drop", "toggle", "done"))},
    **{"move forward": 2, "open": 5, "unlock": 5, "put down": 4},
    **{name: number for number, name in enumerate(WORDS)},
}
_DIRECTIONS = ("right", "down", "left", "up")
_TILE = 28
#: One in so many levels is for the test split; the number of levels that are drawn to find one of a split.
_SHARE, _TRIES = 4, 300
_HOW = (
    "You move through rooms to fulfil a mission. Answer with one action: turn left, turn right, go forward, pick up "
    "(the object in front of you), drop (what you carry, in front of you), toggle (open or close the door or box in "
    "front of you; a locked door needs a key of its color) or done.\n"
)
_SYMBOLS = (
    "Cells: ^^ you, .. empty, ## wall, ?? not seen, Gg goal, ~~ lava; K key, A ball, B box, D closed door, L locked "
    "door, O open door, each with its color: r red, g green, b blue, p purple, y yellow, e grey.\n"
)
_SEEN_FROM = {
    "grid": "You are at the bottom of the cells in the middle and look up.\n",
    "map": "The map is seen from above: you are >> when you face right, vv down, << left and ^^ up.\n",
}
Cell = tuple[int, int, int]


class GridWorld(Env):
    """A level of MiniGrid or BabyAI, as its package plays it, in words and pictures.

    An action is one of ``turn left``, ``turn right``, ``go forward``, ``pick up``, ``drop``, ``toggle`` and ``done``,
    alone, on the last line, in a box, or in ``<action>`` or ``<answer>`` tags; anything else uses up a turn
    (``info["valid"]`` is False). The reward is the package's: at the end 1 - 0.9 * turns / limit for a success, else 0
    (-1 for running into a moving obstacle). ``info["mission"]`` is the mission.

    Args:
        level: the id in Gymnasium.
        view: the 7 by 7 cells before the agent in ``words`` or as a ``grid`` of symbols, or a ``map`` of everything;
            ``picture`` has no text of them.
        pictures: show a picture too, of what the view shows.
        split: ``train`` and ``test`` share no level that is turned or mirrored; one level in four is for ``test``.
        max_steps: limit of turns, if it is not to be the package's.
    """

    def __init__(
        self,
        level: str,
        *,
        view: View = "words",
        pictures: bool = False,
        split: str = "all",
        max_steps: int | None = None,
    ):
        if view not in VIEWS:
            raise UsageError(f"view {view!r} is unknown; choose from {', '.join(VIEWS)}")
        check_split(split)
        if max_steps is not None and max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, got {max_steps}")
        known = [name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-"))]
        if level not in known:
            raise UsageError(f"minigrid has no level {level!r}; {did_you_mean(level, known, 'see rollenv list')}")
        self.level, self.view, self.split, self.max_steps = level, view, split, max_steps
        self.pictures = pictures or view == "picture"
        self.world = new_world(level)
        self._seed: int | None = None
        self._moves: list[int] = []
        self.turn = 0

    # -- the episode -------------------------------------------------------------------------------------------------

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        for _ in range(_TRIES):
            self._begin(self.randint(2**31))
            if self.split == "all" or in_split(self.alike_key(), self.split, _SHARE):
                return self._observation(), {**self._info(), **self._images()}
        raise UsageError(
            f"{self}: none of {_TRIES} levels is in the split {self.split!r}: it has too few different levels; take "
            "split=all, or a larger level"
        )

    def _begin(self, seed: int) -> None:
        self._seed, self._moves, self.turn = seed, [], 0
        start(self.world, seed)

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        move = read_action(action)
        reward, ended, cut = 0.0, False, False
        if move is not None:
            self._moves.append(move)
            _, reward, ended, cut, _ = self.world.step(move)
        truncated = not ended and bool(cut or self.turn >= (self.max_steps or self.world.max_steps))
        info = {**self._info(), "valid": move is not None, **self._images()}
        if ended or truncated:
            info["success"] = bool(ended and reward > 0)
        return self._observation(), float(reward), bool(ended), truncated, info

    def _info(self) -> dict[str, Any]:
        symbols = _SYMBOLS + _SEEN_FROM[self.view] if self.view in _SEEN_FROM else ""
        return {"prefix": _HOW + symbols, "mission": self.world.mission}

    def _images(self) -> dict[str, Any]:
        return {"images": [self.world.get_frame(True, _TILE, self.view != "map")]} if self.pictures else {}

    def _observation(self) -> str:
        lines = [f"Mission: {self.world.mission}", *([MARK] if self.pictures else [])]
        if self.view == "map":
            lines.append(self._map())
        else:
            lines.append(f"You face {_DIRECTIONS[self.world.agent_dir]}.")
        if self.view in ("words", "grid"):
            seen = self.world.gen_obs()["image"].transpose(1, 0, 2).tolist()
            size = len(seen)
            seen[-1][size // 2] = [1, 0, 0]  # where it stands, the package puts what it carries
            lines.append(tell(seen) if self.view == "words" else _board(seen, (size - 1, size // 2), 3))
        lines.append(f"You carry {self._carried()}.")
        return "\n".join(lines)

    def _carried(self) -> str:
        held = self.world.carrying
        return "nothing" if held is None else name_of(held.encode())

    def _map(self) -> str:
        x, y = map(int, self.world.agent_pos)
        return _board(self.world.grid.encode().transpose(1, 0, 2).tolist(), (y, x), int(self.world.agent_dir))

    def render(self) -> str:
        """Return the map, with what boxes hide and what the mission counts; empty before the first reset."""
        if self._seed is None:
            return ""
        hidden = [
            f"The {each.color} box at {x},{y} holds {name_of(each.contains.encode())}."
            for x, y, each in self._objects()
            if each.contains is not None
        ]
        counts = [f"Mission: {self.world.mission}", *progress(getattr(self.world, "instrs", None))]
        return "\n".join([*counts, self._map(), *hidden, f"You carry {self._carried()}."])

    def _objects(self) -> list[tuple[int, int, Any]]:
        size = range(self.world.grid.width)
        found = ((x, y, self.world.grid.get(x, y)) for y in range(self.world.grid.height) for x in size)
        return [(x, y, each) for x, y, each in found if each is not None]

    # -- abilities ---------------------------------------------------------------------------------------------------

    def sample_random_action(self) -> str:
        """Return any action but ``done``, which ends some missions."""
        return self.action_rng.choice(WORDS[:-1])

    def state_key(self) -> str:
        return hashlib.blake2b(self.render().encode(), digest_size=16).hexdigest()

    def alike_key(self) -> str:
        """Return what is equal for levels that are turned or mirrored: who plays them sees the same, or its mirror."""
        cells = self.world.grid.encode().transpose(1, 0, 2).astype(np.int16)
        for x, y, each in self._objects():
            if each.contains is not None:
                cells[y, x, 2] = 100 + 10 * each.contains.encode()[0] + each.contains.encode()[1]
        x, y = self.world.agent_pos
        cells[y, x] += 1000
        cells = np.rot90(cells, self.world.agent_dir + 1)  # now it looks up
        mission = self.world.mission
        mirrored = mission.replace("left", "LEFT").replace("right", "left").replace("LEFT", "right")
        forms = [f"{text}{form.shape}".encode() + form.tobytes() for text, form in
                 ((mission, cells), (mirrored, np.fliplr(cells)))]  # fmt: skip
        return hashlib.blake2b(min(forms), digest_size=16).hexdigest()

    def _get_state(self) -> dict[str, Any]:
        return {"level": self.level, "seed": self._seed, "moves": list(self._moves), "turn": self.turn}

    def _set_state(self, state: dict[str, Any]) -> None:
        if state["level"] != self.level:
            raise UsageError(f"{self}: the state is one of {state['level']}, not of {self.level}")
        self._seed = None
        if state["seed"] is not None:
            self._begin(state["seed"])
            for move in state["moves"]:
                self.world.step(move)
        self._moves, self.turn = list(state["moves"]), state["turn"]


class BotWorld(GridWorld):
    """A level of BabyAI that its package's bot can play: the oracle. It sees no more than the agent has seen."""

    _expert: Any = None
    _followed = _advice = 0

    def _begin(self, seed: int) -> None:
        super()._begin(seed)
        self._expert = None

    def oracle_action(self) -> str:
        """Return the bot's next action. It follows the episode in a level of its own.

        Raises:
            Unsolvable: the bot knows no way: it does not open boxes, for one.
        """
        if self._rollenv_over:
            raise EpisodeOver(f"{self}: the episode is over; there is no next action")
        try:
            advice = self._next_advice()
            if advice == len(WORDS) - 1:
                raise _Lost
        except _LOST:
            try:
                advice = self._advice_anew()
            except _LOST as error:
                raise Unsolvable(f"{self}: the bot knows no way ({type(error).__name__}: {error})") from error
        return WORDS[advice]

    def _next_advice(self) -> int:
        if self._expert is None:
            world = new_world(self.level)
            start(world, self._seed)
            self._begin_bot(world, 0)
        while self._followed < len(self._moves):
            move = self._moves[self._followed]
            self._followed += 1
            self._expert.mission.step(move)
            self._plan(move)
        return self._advice

    def _begin_bot(self, world: Any, followed: int) -> None:
        self._expert, self._followed = _bot.BabyAIBot(world), followed
        self._expert.stack = _Subgoals(self._expert.stack)
        self._plan(None)

    def _plan(self, taken: int | None) -> None:
        self._expert.stack.left = _Subgoals.left
        self._advice = int(self._expert.replan(taken))

    def _advice_anew(self) -> int:
        """Return the first action of a bot that begins now."""
        world = new_world(self.level)
        start(world, self._seed)
        for move in self._moves:
            world.step(move)
        self._begin_bot(world, len(self._moves))
        if self._advice == len(WORDS) - 1:
            raise _Lost("it takes the mission for done")
        return self._advice


class _Lost(Exception):
    """The bot has no action."""


class _Subgoals(list[Any]):
    """The bot's stack of subgoals. Where nothing is left to explore, it would plan one after the other forever."""

    left = 60

    def append(self, subgoal: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise _Lost("its plan has no end")
        super().append(subgoal)


_LOST = (_Lost, _bot.DisappearedBoxError, AssertionError, AttributeError, IndexError, TypeError, ValueError)


def new_world(level: str) -> Any:
    """Return a new level of the package, without Gymnasium's wrappers."""
    spec = gymnasium.registry[level]
    assert spec.entry_point is not None
    create = spec.entry_point if callable(spec.entry_point) else load_env_creator(spec.entry_point)
    return create(**spec.kwargs)


def start(world: Any, seed: int | None) -> None:
    """Draw a level. The package prints missions that it rejects; results of commands stand on standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        world.reset(seed=seed)


def read_action(text: str) -> int | None:
    """Return the number of the action in a reply; None if it has none."""
    found = last_tagged(text, "action") or last_tagged(text) or last_boxed(text) or text.strip().rpartition("\n")[2]
    return _OTHER_WORDS.get(" ".join(found[-200:].lower().replace("_", " ").split()).strip(" .!'\"`*"))


def progress(instruction: Any) -> list[str]:
    """Tell of each part of BabyAI's mission whether it is done, and where the package looks for its objects."""
    if instruction is None:
        return []
    if hasattr(instruction, "instr_a"):
        done = [part for part in "ab" if getattr(instruction, f"{part}_done") == "success"]
        lines = [f"Done: {', '.join(done) or 'no part'}."]
        return [*lines, *progress(instruction.instr_a), *progress(instruction.instr_b)]
    names = [name for name in ("desc", "desc_move", "desc_fixed") if hasattr(instruction, name)]
    places = [" ".join(f"{x},{y}" for x, y in getattr(instruction, name).obj_poss) for name in names]
    return [f"{type(instruction).__name__}: {'; '.join(places)}"]


# -- cells in words and symbols ----------------------------------------------------------------------------------------


def name_of(cell: Cell) -> str:
    """Return the name of an object with its article."""
    kind, color, state = _constants.IDX_TO_OBJECT[cell[0]], _constants.IDX_TO_COLOR[cell[1]], cell[2]
    if kind == "lava":
        return "lava"
    if kind == "door":
        return ("an open", "a closed", "a locked")[state] + f" {color} door"
    return f"a {color} {kind}"


def tell(seen: list[list[Cell]]) -> str:
    """Tell what is seen, the nearest first, and where a wall is ahead, on the left and on the right."""
    size, middle = len(seen), len(seen) // 2
    found: list[tuple[int, str]] = []
    for y, row in enumerate(seen):
        for x, cell in enumerate(row):
            ahead, aside = size - 1 - y, x - middle
            is_wall = cell[0] == 2 and _straight_wall(seen, ahead, aside)
            if cell[0] > 3 or is_wall:
                name = "a wall" if cell[0] == 2 else name_of(cell)
                found.append((ahead + abs(aside), f"{name} {_place(ahead, aside)}"))
    found.sort(key=lambda each: each[0])
    return "You see " + ("; ".join(text for _, text in found) or "nothing") + "."


def _straight_wall(seen: list[list[Cell]], ahead: int, aside: int) -> bool:
    """Return whether this wall is the first straight ahead or beside the agent."""
    bottom, middle = len(seen) - 1, len(seen) // 2
    if aside == 0:
        return all(seen[bottom - near][middle][0] != 2 for near in range(1, ahead))
    step = 1 if aside > 0 else -1
    return ahead == 0 and all(seen[bottom][middle + step * near][0] != 2 for near in range(1, abs(aside)))


def _place(ahead: int, aside: int) -> str:
    parts = [(ahead, "forward"), (abs(aside), "left" if aside < 0 else "right")]
    return " and ".join(f"{n} step{'s' if n > 1 else ''} {where}" for n, where in parts if n)


_LETTERS = {"key": "K", "ball": "A", "box": "B", "goal": "G", "floor": "."}


def _board(rows: list[list[Cell]], agent: tuple[int, int], facing: int) -> str:
    """Return two signs for each cell."""
    signs = [[_sign(*cell) for cell in row] for row in rows]
    signs[agent[0]][agent[1]] = (">>", "vv", "<<", "^^")[facing]
    return "\n".join(" ".join(row) for row in signs)


def _sign(kind: int, color: int, state: int) -> str:
    name = _constants.IDX_TO_OBJECT[kind]
    plain = {"unseen": "??", "empty": "..", "wall": "##", "lava": "~~"}.get(name)
    letter = "ODL"[state] if name == "door" else _LETTERS.get(name, "?")
    return plain or letter + "rgbpye"[color]

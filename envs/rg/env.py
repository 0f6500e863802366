r"""Every data set of reasoning-gym as an environment: a question, an answer in ``\boxed{}``, its score as the reward.

https://github.com/open-thought/reasoning-gym; the package is imported only when an environment is made.

Data sets without a gold answer, or whose gold answer differs by process, have solvers here: each lists candidates,
likeliest first, one of which scores 1.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollenv.core.cache import cache_folder, can_be_made
from rollenv.core.env import Env, ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.core.parsing import last_boxed
from rollenv.envs import pictures
from rollenv.envs.global_random import PrivateGlobals
from rollenv.envs.rg.scoring import may_be_scored

Item = dict[str, Any]
Point = tuple[float, float]


def boxnet(item: Item) -> list[str]:
    """Carry one box at a time to a target of its colour, one square per step, first along x, then along y."""
    state: dict[str, list[str]] = item["metadata"]["initial_state"]
    plan = []
    for colour in sorted({thing[4:] for things in state.values() for thing in things if thing.startswith("box_")}):
        for start, end in zip(_points(state, f"box_{colour}"), _points(state, f"target_{colour}"), strict=True):
            here = start
            while here != end:
                square = _towards(here, end)
                plan.append({f"Agent[{here[0]}, {here[1]}]": f"move(box_{colour}, square[{square[0]}, {square[1]}])"})
                here = square
            plan.append({f"Agent[{end[0]}, {end[1]}]": f"move(box_{colour}, target_{colour})"})
    return [json.dumps(plan)]


def _points(state: dict[str, list[str]], thing: str) -> list[Point]:
    named = [(name.split("_"), things.count(thing)) for name, things in state.items()]
    return [(float(x), float(y)) for (x, y), n in named for _ in range(n)]


def _towards(here: Point, end: Point) -> Point:
    if here[0] != end[0]:
        return here[0] + (1 if end[0] > here[0] else -1), here[1]
    return here[0], here[1] + (1 if end[1] > here[1] else -1)


def graph_color(item: Item) -> list[str]:
    """Return the generator's colouring."""
    return [json.dumps(item["metadata"]["possible_answer"])]


def propositional_logic(item: Item) -> list[str]:
    """Return the generator's conclusion, which may be weak; all premises together; each premise, as a conjunction.

    If all premises are tautologies, nothing scores 1, as only tautologies follow.
    """
    premises = item["metadata"]["premises"]
    together = " ∧ ".join(f"({premise})" for premise in premises)
    return [item["metadata"]["example_answer"], together, *(f"({p}) ∧ ({p})" for p in premises)]


def rubiks_cube(item: Item) -> list[str]:
    """Return the solver's moves (3x3x3 only), or the inverse of the scramble."""
    scramble = item["metadata"]["scramble_moves"].split()
    backwards = " ".join(move[:-1] if move.endswith("'") else f"{move}'" for move in reversed(scramble))
    return [item["metadata"]["example_correct_answer"] or backwards, backwards]


# -- breadth-first search --------------------------------------------------------------------------------------------


def _search(start: Any, is_goal: Callable[[Any], bool], moves: Callable[[Any], Iterator[tuple[str, Any]]]) -> list[str]:
    """Return the names of the moves on a shortest path from the start to a goal."""
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
    """Return a shortest sequence of slides that brings car A to the right edge of row 3."""
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
    """Return a shortest sequence of moves that swaps the white and black knights, or "No" if there is none."""
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


logger = logging.getLogger(__name__)

#: Data sets that ``rg:composite`` mixes by default.
MIXTURE: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "weight": 1.0, "config": {}} for name in ("chain_sum", "syllogism", "maze", "word_sorting")
)

#: Data sets whose constructor draws; of the others, one instance serves for every seed.
_DRAWS_WHEN_BUILT = frozenset({"acre", "composite", "gsm_symbolic", "list_functions", "survo"})
#: Data sets that draw from, or seed, the process-wide generators.
_DRAWS_GLOBALLY = frozenset({"codeio", "composite", "list_functions", "pool_matrix"})
#: Data sets that print while they make an item.
_PRINTS = frozenset({"bf", "codeio", "composite"})
#: Minimum score of a success.
SOLVED = 0.99
#: Maximum number of draws until an item can be made.
_TRIES = 20
#: Number of other items whose answers serve as random answers.
_OTHER_ITEMS = 8


class ReasoningGymEnv(Env):
    r"""One question of a reasoning-gym data set.

    The reward is the data set's score of the answer, often fractional; ``success`` is a score of at least 0.99. The
    score without a box is the data set's score for no answer: 0, or 0.01 in countdown, fraction_simplification and
    puzzle24. An answer that makes the scorer raise scores 0; the error is logged and in ``info["scorer_error"]``, and
    ``scorer_errors`` counts them. Unpaired braces are written ``\{`` or ``\}`` inside the box; white space around an
    answer is ignored.

    Args:
        size: number of items per seed of the data set.
        dataset_seed: a fixed seed of the data set (42 in GEM); None draws one with every item, so that items do not
            run out.
        level: difficulty from 0 along the data set's own curriculum; levels past the end are the last one.

    ``reset(options={"index": i})`` selects the item.
    """

    max_turns = 1
    _changed_in_place = ()  # items and data sets are immutable

    def __init__(
        self,
        name: str,
        size: int = 500,
        *,
        dataset_seed: int | None = None,
        level: int | None = None,
        seed: int | None = None,
        **config: Any,
    ):
        if size < 1:
            raise UsageError(f"size must be at least 1, got {size}")
        try:
            text = json.dumps(config, sort_keys=True)
        except TypeError as error:
            raise UsageError(f"rg:{name}: settings must be plain JSON data: {error}") from error
        self.name, self.size, self.fixed_seed = name, size, dataset_seed
        self._source = (name, size, level, text)
        _template(*self._source)
        self.dataset_seed = self.index = 0
        self.item: dict[str, Any] = {}
        self.scorer_errors = 0
        if name == "maze":
            self.picture, self.picture_words = pictures.maze, pictures.MAZE_WORDS
        if seed is not None:
            self.seed_stream(seed)

    reset_options = frozenset({"index"})

    def num_tasks(self) -> int:
        """Return the number of items of a data set, whose seed is ``dataset_seed`` or drawn."""
        return self.size

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        chosen = options.get("index")
        if chosen is not None and not 0 <= chosen < self.size:
            raise UsageError(f"{self}: index must be in 0 .. {self.size - 1}, got {chosen}")
        for left in reversed(range(_TRIES)):
            seed = self.randint(2**31) if self.fixed_seed is None else self.fixed_seed
            index = self.randint(self.size) if chosen is None else chosen
            try:
                self._load(seed, index)
                break
            except Exception:  # generators give up on rare items
                if chosen is not None or not left:
                    raise
        return f"{self.item['question']}\n\nGive your final answer as \\boxed{{answer}}.", {}

    def _load(self, dataset_seed: int, index: int) -> None:
        self.item = make_item(self._source, dataset_seed, index)[1]
        self.dataset_seed, self.index = dataset_seed, index

    def _step(self, action: str) -> StepResult:
        answer = last_boxed(action)
        score, raised = (
            answer_score(self._source, self.dataset_seed, self.index, None) if answer is None else self._score(answer)
        )
        success = score >= SOLVED
        feedback = "There is no answer in a box." if answer is None else f"Your answer scores {score:g}."
        info: dict[str, Any] = {"valid": answer is not None, "correct": success, "success": success}
        if raised:
            self.scorer_errors += 1
            info["scorer_error"] = raised
        return feedback, score, True, False, info

    def score(self, answer: str) -> float:
        r"""Return the higher score of an answer, from 0 to 1: unchanged, or with ``\{`` and ``\}`` as braces."""
        return self._score(answer)[0]

    def _score(self, answer: str) -> tuple[float, str]:
        plain = re.sub(r"\\([{}])", r"\1", answer)
        return max(
            answer_score(self._source, self.dataset_seed, self.index, text) for text in {answer: None, plain: None}
        )

    def render(self) -> str:
        return str(self.item.get("question", ""))

    def sample_random_action(self) -> str:
        return boxed(_other_answer(self._source, self.action_rng.randrange(_OTHER_ITEMS)))

    def oracle_action(self) -> str:
        return boxed(_solution(self._source, self.dataset_seed, self.index))

    def state_key(self) -> str:
        return hashlib.sha256(self.render().encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _get_state(self) -> dict[str, Any]:
        return {"dataset_seed": self.dataset_seed, "index": self.index}

    def _set_state(self, state: dict[str, Any]) -> None:
        self._load(state["dataset_seed"], state["index"])


# -- data sets -------------------------------------------------------------------------------------------------------

Source = tuple[str, int, int | None, str]


def _package() -> Any:
    if not can_be_made(Path(os.path.expanduser("~/.config"))):  # reasoning-gym imports matplotlib, which warns there
        os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))
    with extra("envs", "rg:*"):
        import reasoning_gym  # type: ignore[import-not-found,import-untyped,unused-ignore]
    return reasoning_gym


def _build(source: Source, seed: int) -> Any:
    """Build a data set."""
    name, size, level, text = source
    registry = _package().factory
    if name not in registry.DATASETS:
        raise UsageError(f"reasoning-gym has no data set {name!r}; `rollenv list rg:` shows them all")
    dataset_class, config_class = registry.DATASETS[name]
    settings: dict[str, Any] = (_level_settings(name, level) if level is not None else {}) | json.loads(text)
    if name == "composite":
        parts = settings.get("datasets", MIXTURE)
        settings["datasets"] = [_package().composite.DatasetSpec(**part) for part in parts]
    try:
        return dataset_class(config_class(**settings, seed=seed, size=size))
    except (TypeError, AssertionError, ValueError) as error:
        at = f" at level {level}" if level is not None else ""
        raise UsageError(f"rg:{name}{at} cannot be made with {json.loads(text)}: {error}") from error


def _level_settings(name: str, level: int) -> dict[str, Any]:
    registry = _package().factory
    if level < 0 or not registry.has_curriculum(name):
        raise UsageError(
            f"rg:{name} has no level {level}; "
            + ("levels start at 0" if level < 0 else "the data set has no curriculum, set its parameters instead")
        )
    curriculum = registry.create_curriculum(name)
    for attribute in curriculum.attributes.values():
        curriculum.set_attr_level(attribute.name, min(level, len(attribute.levels) - 1))
    config = curriculum.generate_configuration()
    fields = ("field_name", "lower_field_name", "upper_field_name")
    changed = [getattr(a, f) for a in curriculum.attributes.values() for f in fields if hasattr(a, f)]
    return {field: getattr(config, field) for field in changed}


@functools.lru_cache(maxsize=512)
def _template(name: str, size: int, level: int | None, text: str) -> Any:
    """Return a template that is copied for each seed, because loading its files is slow."""
    dataset = _build((name, size, level, text), seed=0)
    # These draw from sets, whose order depends on the process's hash seed.
    if name in ("isomorphic_strings", "ransom_note"):
        dataset.letters = _InOrder(dataset.letters)
    elif name == "word_ladder":
        neighbours = dataset._get_neighbors
        dataset._get_neighbors = lambda word, words: sorted(neighbours(word, words))
    elif name == "polynomial_multiplication":
        monomials = dataset._get_monomials
        dataset._get_monomials = lambda rng: sorted(monomials(rng), key=str)
    return dataset


def data_set(source: Source, seed: int) -> Any:
    """Build reasoning-gym's data set for a seed.

    Args:
        source: name of the data set, number of items, difficulty level (None: the default), settings as JSON text.
    """
    name = source[0]
    template = _template(*source)
    dataset = _build(source, seed) if name in _DRAWS_WHEN_BUILT else copy.copy(template)
    dataset.seed = seed
    return dataset


@functools.lru_cache(maxsize=256)
def make_item(source: Source, seed: int, index: int) -> tuple[Any, dict[str, Any]]:
    """Build one item, which depends only on the arguments.

    The last 256 are cached: the members of a group play the same item, and some take a second to build.
    """
    name = source[0]
    if name in _DRAWS_GLOBALLY or name in _PRINTS:
        with PrivateGlobals(seed + index).swapped_in(silent=name in _PRINTS):
            dataset = data_set(source, seed)
            return dataset, dataset[index]
    dataset = data_set(source, seed)
    return dataset, dataset[index]


class _InOrder(frozenset[str]):
    """A set that iterates in sorted order."""

    def __iter__(self) -> Any:
        return iter(sorted(super().__iter__()))

    def __sub__(self, other: Any) -> _InOrder:
        return _InOrder(super().__sub__(other))


# -- answers ---------------------------------------------------------------------------------------------------------


def answer_score(source: Source, seed: int, index: int, answer: str | None) -> tuple[float, str]:
    """Return the score of an answer, in [0, 1], and the scorer's error, if any. Unsafe answers count as none."""
    item = make_item(source, seed, index)[1]
    scored = answer is not None and may_be_scored(_kind(source, item), answer, item)
    return _score_once(source, seed, index, answer if scored else None)


def _kind(source: Source, item: dict[str, Any]) -> str:
    """Return the data set of an item; a composite has it in the item's metadata."""
    return str(item["metadata"]["source_dataset"]) if source[0] == "composite" else source[0]


@functools.lru_cache(maxsize=1024)
def _score_once(source: Source, seed: int, index: int, answer: str | None) -> tuple[float, str]:
    """Return the scorer's score and error, cached: sympy may take a second for a formula."""
    dataset, item = make_item(source, seed, index)
    try:
        score = float(dataset.score_answer(answer, item))
    except Exception as error:  # some scorers fail on unexpected answers
        problem = f"{type(error).__name__}: {error}"[:300]
        logger.warning("rg:%s: the scorer raised on the answer %.80r, which scores 0: %s", source[0], answer, problem)
        return 0.0, problem
    return min(max(score, 0.0), 1.0) if score == score else 0.0, ""


def _solution(source: Source, seed: int, index: int) -> str:
    """Return an answer that scores 1."""
    item = make_item(source, seed, index)[1]
    solver = SOLVERS.get(_kind(source, item))
    if solver is None:
        return str(item["answer"])
    candidates = solver(item)
    return next((c for c in candidates if answer_score(source, seed, index, c)[0] >= SOLVED), candidates[0])


@functools.lru_cache(maxsize=4096)
def _other_answer(source: Source, number: int) -> str:
    """Return the answer of one of a few fixed items, cached: building an item can take seconds."""
    for seed in range(1000 * number, 1000 * number + 1000):
        with contextlib.suppress(Exception):
            return _solution(source, seed, number % source[1])
    return "0"


def boxed(answer: str) -> str:
    """Put an answer into a box, from which the parser returns it unchanged."""
    box = f"\\boxed{{{answer}}}"
    if last_boxed(box) != answer.strip():
        answer = re.sub(r"([{}])", r"\\\1", answer)
        box = f"\\boxed{{{answer}}}"
    return box

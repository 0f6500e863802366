r"""Every data set of reasoning-gym as an environment: a question, an answer in ``\boxed{}``, its score as the reward.

https://github.com/open-thought/reasoning-gym; the package is needed only when an environment is made.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import logging
import re
from typing import Any

from rollenv.core import Env, ResetResult, StepResult, UsageError
from rollenv.envs.global_random import PrivateGlobals
from rollenv.envs.rg.scoring import may_be_scored
from rollenv.envs.rg.solvers import SOLVERS
from rollenv.needs import extra
from rollenv.parsing import last_boxed

logger = logging.getLogger(__name__)

#: What ``rg:composite`` mixes by default.
MIXTURE: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "weight": 1.0, "config": {}} for name in ("chain_sum", "syllogism", "maze", "word_sorting")
)

#: Whose constructor draws already; of the others one instance serves for every seed.
_DRAWS_WHEN_BUILT = frozenset({"acre", "composite", "gsm_symbolic", "list_functions", "survo"})
#: Which draw from, or seed, the process-wide generators.
_DRAWS_GLOBALLY = frozenset({"codeio", "composite", "list_functions", "pool_matrix"})
#: Which print while they make an item.
_PRINTS = frozenset({"bf", "codeio", "composite"})
#: A score from here on is a success.
SOLVED = 0.99
#: How many items may be drawn until one can be made.
_TRIES = 20
#: How many other items a random answer is taken from.
_OTHER_ITEMS = 8


class ReasoningGymEnv(Env):
    r"""One question of a reasoning-gym data set.

    The reward is the data set's score of the answer, often fractional; ``success`` is a score of at least 0.99. An
    answer without a box scores what the data set gives for none: 0, and 0.01 in countdown, fraction_simplification and
    puzzle24. One that the scorer trips over scores 0 (``info["scorer_error"]`` says how, the log too, and
    ``scorer_errors`` counts them). A brace that has no partner is written ``\{`` or ``\}`` inside the box; white space
    around an answer is not part of it.

    Args:
        size: how many items one seed of the data set has.
        dataset_seed: play items of this one seed (GEM plays 42); None draws a data set seed with every item, so that
            items do not run out.
        level: difficulty, from 0, along the data set's own curriculum; levels past the end are its last.
        seed: starts the private random stream, as ``rollenv.make(..., seed=...)`` does.
        config: fields of the data set's configuration; they override those of ``level``.

    ``reset(options={"index": i})`` chooses the item instead of drawing it.
    """

    max_turns = 1
    _changed_in_place = ()  # items and data sets never change once made

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
        if seed is not None:
            self.seed_stream(seed)

    reset_options = frozenset({"index"})

    def num_tasks(self) -> int:
        """The items of one data set; which one follows the seed, unless ``dataset_seed`` is given."""
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
        said = "There is no answer in a box." if answer is None else f"Your answer scores {score:g}."
        info: dict[str, Any] = {"valid": answer is not None, "correct": success, "success": success}
        if raised:
            self.scorer_errors += 1
            info["scorer_error"] = raised
        return said, score, True, False, info

    def score(self, answer: str) -> float:
        r"""The data set's score, from 0 to 1; also of the answer with ``\{`` and ``\}`` read as braces."""
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
    with extra("envs", "rg:*"):
        import reasoning_gym  # type: ignore[import-not-found,import-untyped,unused-ignore]
    return reasoning_gym


def _build(source: Source, seed: int) -> Any:
    """A new data set.

    Raises:
        UsageError: for an unknown name, or settings that the data set does not take.
    """
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
    """A template that is never played; copies of it with other seeds are, because loading its files is slow."""
    dataset = _build((name, size, level, text), seed=0)
    _steady(dataset, name)
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
    """Build one item; it depends only on the arguments.

    The last 256 are cached: the members of a group play the same item, and some take a second to make.

    Args:
        source: as for :func:`data_set`.
        index: of the item, from 0.

    Returns:
        The data set and the item.
    """
    name = source[0]
    if name in _DRAWS_GLOBALLY or name in _PRINTS:
        with PrivateGlobals(seed + index).swapped_in(silent=name in _PRINTS):
            dataset = data_set(source, seed)
            return dataset, dataset[index]
    dataset = data_set(source, seed)
    return dataset, dataset[index]


class _InOrder(frozenset[str]):
    """A set that is walked in sorted order."""

    def __iter__(self) -> Any:
        return iter(sorted(super().__iter__()))

    def __sub__(self, other: Any) -> _InOrder:
        return _InOrder(super().__sub__(other))


def _steady(dataset: Any, name: str) -> None:
    """Give the sets that some data sets draw from an order, which would otherwise follow the process's hash seed."""
    if name in ("isomorphic_strings", "ransom_note"):
        dataset.letters = _InOrder(dataset.letters)
    elif name == "word_ladder":
        neighbours = dataset._get_neighbors
        dataset._get_neighbors = lambda word, words: sorted(neighbours(word, words))
    elif name == "polynomial_multiplication":
        monomials = dataset._get_monomials
        dataset._get_monomials = lambda rng: sorted(monomials(rng), key=str)


# -- answers ---------------------------------------------------------------------------------------------------------


def answer_score(source: Source, seed: int, index: int, answer: str | None) -> tuple[float, str]:
    """Score an answer to an item. An answer that may not be scored counts as no answer.

    Args:
        source: as for :func:`data_set`.
        index: of the item, from 0.
        answer: as the agent gave it; None for no answer.

    Returns:
        The score in [0, 1], and the error of the scorer as text ("" if it raised none).
    """
    item = make_item(source, seed, index)[1]
    scored = answer is not None and may_be_scored(_kind(source, item), answer, item)
    return _scored(source, seed, index, answer if scored else None)


def _kind(source: Source, item: dict[str, Any]) -> str:
    """The data set that an item is of; a composite names it in the item."""
    return str(item["metadata"]["source_dataset"]) if source[0] == "composite" else source[0]


@functools.lru_cache(maxsize=1024)
def _scored(source: Source, seed: int, index: int, answer: str | None) -> tuple[float, str]:
    """Return the score of the data set's scorer, and its error text; sympy may take a second over a formula."""
    dataset, item = make_item(source, seed, index)
    try:
        score = float(dataset.score_answer(answer, item))
    except Exception as error:  # some scorers trip over answers that they did not expect
        said = f"{type(error).__name__}: {error}"[:300]
        logger.warning("rg:%s: the scorer raised on the answer %.80r, which scores 0: %s", source[0], answer, said)
        return 0.0, said
    return min(max(score, 0.0), 1.0) if score == score else 0.0, ""


def _solution(source: Source, seed: int, index: int) -> str:
    """An answer that scores 1."""
    item = make_item(source, seed, index)[1]
    solver = SOLVERS.get(_kind(source, item))
    if solver is None:
        return str(item["answer"])
    candidates = solver(item)
    return next((c for c in candidates if answer_score(source, seed, index, c)[0] >= SOLVED), candidates[0])


@functools.lru_cache(maxsize=4096)
def _other_answer(source: Source, number: int) -> str:
    """The answer of one of a few fixed items, found once: making an item can take seconds."""
    for seed in range(1000 * number, 1000 * number + 1000):
        with contextlib.suppress(Exception):
            return _solution(source, seed, number % source[1])
    return "0"


def boxed(answer: str) -> str:
    """The answer in a box that gives it back."""
    box = f"\\boxed{{{answer}}}"
    if last_boxed(box) != answer.strip():
        answer = re.sub(r"([{}])", r"\\\1", answer)
        box = f"\\boxed{{{answer}}}"
    return box

"""Verifiable instructions, with the ids and arguments of IFEval (arXiv 2311.07911)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rollenv.core.errors import UsageError
from rollenv.core.parsing import last_code_block
from rollenv.core.registry import spec
from rollenv.rollout.types import Task, Trajectory
from rollenv.trainers.config.rewards import PackageReward
from rollenv.trainers.rewards.base import Reward, last_answer

#: ``{"id": "length_constraints:number_words", "num_words": 100, "relation": "at least"}``
Instruction = Mapping[str, Any]
Check = Callable[..., bool]

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_SENTENCE = re.compile(r"[^.!?\s][^.!?]*(?:[.!?](?!\s|$)[^.!?]*)*[.!?]*")


def _compare(count: int, relation: str, wanted: int) -> bool:
    if relation not in ("at least", "less than"):
        raise UsageError(f"a relation is 'at least' or 'less than', not {relation!r}")
    return count >= wanted if relation == "at least" else count < wanted


def _occurrences(text: str, word: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def _has(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE | re.IGNORECASE) is not None


def _paragraphs(text: str, num_paragraphs: int) -> bool:
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    return len([part for part in parts if part]) == num_paragraphs and all(parts[1:-1])


def _nth_paragraph(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    if len(parts) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    first = _WORD.search(parts[nth_paragraph - 1])
    return first is not None and first[0].lower() == first_word.lower()


def _json(text: str) -> bool:
    fenced = last_code_block(text, ("json", "")) if text.lstrip().startswith("```") else None
    try:
        json.loads(text if fenced is None else fenced)
    except (ValueError, RecursionError):
        return False
    return True


def _quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _two(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


#: Checks by IFEval's ids, called with the response and the instruction's arguments.
CHECKS: dict[str, Check] = {
    "keywords:existence": lambda text, keywords: all(_occurrences(text, word) for word in keywords),
    "keywords:forbidden_words": lambda text, forbidden_words: not any(_occurrences(text, w) for w in forbidden_words),
    "keywords:frequency": lambda text, keyword, frequency, relation="at least": _compare(
        _occurrences(text, keyword), relation, frequency
    ),
    "keywords:letter_frequency": lambda text, letter, let_frequency, let_relation="at least": _compare(
        text.lower().count(letter.lower()), let_relation, let_frequency
    ),
    "length_constraints:number_words": lambda text, num_words, relation="at least": _compare(
        len(_WORD.findall(text)), relation, num_words
    ),
    "length_constraints:number_sentences": lambda text, num_sentences, relation="at least": _compare(
        len(_SENTENCE.findall(text)), relation, num_sentences
    ),
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "detectable_content:number_placeholders": lambda text, num_placeholders: (
        len(re.findall(r"\[[^\[\]\n]+\]", text)) >= num_placeholders
    ),
    "detectable_content:postscript": lambda text, postscript_marker="P.S.": _has(
        rf"^[ \t]*{re.escape(postscript_marker)}[ \t]*\S", text
    ),
    "detectable_format:number_bullet_lists": lambda text, num_bullets: (
        len(re.findall(r"^[ \t]*[*-][ \t]+\S", text, re.MULTILINE)) == num_bullets
    ),
    "detectable_format:number_highlighted_sections": lambda text, num_highlights: (
        len(re.findall(r"(\*\*?)[^\s*](?:[^*\n]*[^\s*])?\1", text)) >= num_highlights
    ),
    "detectable_format:multiple_sections": lambda text, section_spliter, num_sections: (
        len(re.findall(rf"^[ \t]*{re.escape(section_spliter)}[ \t]+\w", text, re.MULTILINE)) >= num_sections
    ),
    "detectable_format:json_format": _json,
    "detectable_format:constrained_response": lambda text: _has(r"\bmy answer is (?:yes|no|maybe)\.", text),
    "detectable_format:title": lambda text: any(title.strip() for title in re.findall(r"<<([^<>\n]+)>>", text)),
    "startend:end_checker": lambda text, end_phrase: (
        text.strip().strip('"').lower().endswith(end_phrase.strip().lower())
    ),
    "startend:quotation": _quoted,
    "combination:repeat_prompt": lambda text, prompt_to_repeat: (
        text.strip().lower().startswith(prompt_to_repeat.strip().lower())
    ),
    "combination:two_responses": _two,
    "change_case:capital_word_frequency": lambda text, capital_frequency, capital_relation="at least": _compare(
        sum(word.isupper() for word in _WORD.findall(text)), capital_relation, capital_frequency
    ),
    "change_case:english_capital": lambda text: text.isupper(),
    "change_case:english_lowercase": lambda text: text.islower(),
    "punctuation:no_comma": lambda text: "," not in text,
}


def follows(text: str, instruction: Instruction) -> bool:
    """Return whether a response follows an instruction; False for an empty response.

    Args:
        instruction: its ``id`` in :data:`CHECKS`, and its arguments; None and NaN are ignored.
    """
    # Tables fill missing values with None, or with NaN in columns of numbers.
    arguments = {name: v for name, v in instruction.items() if name != "id" and v is not None and v == v}
    check = CHECKS.get(str(instruction.get("id")))
    if check is None:
        raise UsageError(f"the instruction {instruction.get('id')!r} is unknown; there are {', '.join(CHECKS)}")
    try:
        _refuse_empty(arguments)
        return check(text, **arguments) and bool(text.strip())
    except (TypeError, AttributeError) as error:
        why = str(error).removeprefix(f"{check.__qualname__}() ")
        raise UsageError(f"the instruction {instruction['id']} cannot be checked with {arguments}: {why}") from error


def _refuse_empty(arguments: Mapping[str, Any]) -> None:
    """Raise TypeError for arguments that are neither numbers nor texts, or that are empty."""
    for name, value in arguments.items():
        listed = name in ("keywords", "forbidden_words")
        parts = value if listed else [value]
        if not isinstance(parts, list | tuple) or not parts or not all(_is_valid(one, listed) for one in parts):
            raise TypeError(f"{name} is {value!r:.80}")


def _is_valid(value: Any, text: bool) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return not text and isinstance(value, int | float) and not isinstance(value, bool)


class Instructions:
    """Rewards the last response for the instructions that it follows; 0 without instructions.

    Args:
        instructions: the instructions of every task, or a function from a task to its own, such as
            :class:`RowInstructions`.
        partial: reward the share that is followed; otherwise 1 if all are, else 0 (IFEval's prompt-level accuracy).
    """

    def __init__(
        self, instructions: Sequence[Instruction] | Callable[[Task], Sequence[Instruction]], *, partial: bool = False
    ):
        self.instructions, self.partial = instructions, partial

    async def __call__(self, trajectory: Trajectory) -> float:
        wanted = self.instructions(trajectory.task) if callable(self.instructions) else self.instructions
        followed = [follows(last_answer(trajectory), one) for one in wanted]
        if not followed:
            return 0.0
        return sum(followed) / len(followed) if self.partial else float(all(followed))


class RowInstructions:
    """The instructions in a task's row, in IFEval's form: a column of ids and a column of arguments.

    The environment is made once and reset as for the task, which selects the row.

    Args:
        arguments: name of the column with a mapping for each id; without it, instructions have no arguments.
    """

    def __init__(self, column: str = "instruction_id_list", arguments: str = "kwargs"):
        self.column, self.arguments = column, arguments
        self._envs: list[tuple[str, dict[str, Any], Any]] = []

    def __call__(self, task: Task) -> list[Instruction]:
        """Return the task's instructions."""
        env = self._env(task.env_id, task.kwargs)
        env.reset(seed=task.seed, options=task.options or None)
        return self.read(env.row)

    def check(self, env_id: str, kwargs: dict[str, Any]) -> None:
        """Validate the instructions of all rows of an environment."""
        rows = self._env(env_id, kwargs).rows
        count = 0
        for number, row in enumerate(rows):
            try:
                for one in self.read(row):
                    follows("text", one)
                    count += 1
            except UsageError as error:
                raise UsageError(f"row {number} of {env_id}: {error}") from error
        if not count:
            raise UsageError(f"no row of {env_id} has instructions in its column {self.column!r}")

    def read(self, row: Mapping[str, Any]) -> list[Instruction]:
        """Return the instructions of a row."""
        if self.column not in row:
            raise UsageError(f"there is no column {self.column!r} with instructions; there are {', '.join(row)}")
        ids = _as_list(row[self.column])
        arguments = _as_list(row.get(self.arguments)) or [{}] * len(ids)
        if len(arguments) != len(ids) or not all(isinstance(one, Mapping | None) for one in arguments):
            raise UsageError(f"{self.arguments!r} must have a mapping for each of the {len(ids)} instructions")
        return [{**(one or {}), "id": name} for name, one in zip(ids, arguments, strict=True)]

    def _env(self, env_id: str, kwargs: dict[str, Any]) -> Any:
        for known, its, env in self._envs:
            if known == env_id and its == kwargs:
                return env
        made: Any = spec(env_id).make(**kwargs).unwrapped
        if not hasattr(made, "row"):
            raise UsageError(f"{env_id} has no rows with instructions; list them in checks")
        self._envs.append((env_id, kwargs, made))
        return made


def _as_list(value: Any) -> list[Any]:
    """Convert a cell to a list: it may be a list, JSON text, an array, or a single value."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = [value]
    value = value.tolist() if hasattr(value, "tolist") else value
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _check_known(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for one in checks:
        if one.get("id") not in CHECKS:
            raise ValueError(f"there is no instruction {one.get('id')!r}; there are {', '.join(CHECKS)}")
        try:
            follows("text", one)  # wrong arguments would fail in every episode
        except UsageError as error:
            raise ValueError(str(error)) from error
    return checks


class InstructionsReward(PackageReward):
    """A reward for a last response that follows verifiable instructions (IFEval's)."""

    kind: Literal["instructions"] = "instructions"
    checks: Annotated[list[dict[str, Any]], AfterValidator(_check_known)] = Field(default_factory=list)
    """Instructions of every task, each with its ``id`` and arguments (see ``CHECKS``)."""
    column: str = ""
    """Instead of ``checks``: the data set's column with the ids of each row's instructions (IFEval's
    ``instruction_id_list``)."""
    arguments: str = "kwargs"
    """The column with the arguments, one mapping for each instruction."""
    partial: bool = False
    """Reward the share of instructions that are followed."""

    @model_validator(mode="after")
    def _one_source(self) -> InstructionsReward:
        if bool(self.checks) == bool(self.column):
            raise ValueError("give either checks, or the column with the rows' instructions")
        if self.arguments != "kwargs" and not self.column:
            raise ValueError("arguments belong to column, which is not set")
        return self

    def check(self, env_id: str, kwargs: dict[str, Any]) -> None:
        if self.column:
            RowInstructions(self.column, self.arguments).check(env_id, kwargs)

    def reward(self) -> Reward:
        rows = RowInstructions(self.column, self.arguments)
        return Instructions(rows if self.column else self.checks, partial=self.partial)

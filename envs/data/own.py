"""Questions of one's own, from a file or a folder: ``data:questions.jsonl``."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from rollenv.core.env import Env
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import RollenvError, UsageError, did_you_mean
from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.core.registry import ABILITIES
from rollenv.envs.data import choices as sets
from rollenv.envs.data.row_pictures import has_pictures, key_of
from rollenv.envs.data.rows import SUFFIXES, Row, Rows, files_at, folder_of, read_file, split_of
from rollenv.envs.data.task import RowEnv, RowVerdict, listed
from rollenv.envs.data.text_answers import MAX_CHARACTERS, exact_match, says_something
from rollenv.envs.math.compare import compare, gold_answer
from rollenv.envs.math.grade import SECONDS, check_installed, grade

logger = logging.getLogger(__name__)

#: Names of columns that are recognised, the likeliest first, without regard to case.
QUESTIONS = ("question", "problem", "prompt", "query", "instruction", "input", "text")
ANSWERS = ("answer", "answers", "answerkey", "solution", "target", "label", "gold", "output", "expected", "completion")
TESTS, PROGRAMS = ("tests", "test_list"), ("solution", "canonical_solution", "code")
CONTEXTS = ("context", "passage", "article", "flores_passage", "premise", "input")
CHATS = ("messages", "conversations", "conversation")
IMAGES = ("images", "image", "pictures", "picture", "image_path")

#: Splits that are held out, in order of preference. Rows of files with such names are never trained on.
HELD_OUT = ("test", "validation", "valid", "val", "dev")

#: Arguments of :func:`own_questions` that ``rollenv train FILE`` takes as they are: ``question=COLUMN``.
SETTINGS = ("question", "answer", "choices", "context", "image", "grader", "held_out", "instruct")

#: What the answers are, what a question ends with, and how answers are graded.
GRADERS = {
    "integer": ("integers", "Answer with the number alone.", "compared as integers"),
    "number": ("numbers", "Answer with the number alone.", "compared as numbers"),
    "expression": ("expressions", "Give the final answer in \\boxed{}.", "compared by computer algebra (math-verify)"),
    "choice": ("choices", "Answer with the letter alone.", "compared by their letters"),
    "text": ("texts", "Answer in as few words as possible.", "compared by their words (SQuAD's exact match)"),
    "code": ("tests", "", "run in a sandbox"),
}
_NUMBERS = ("integer", "number")

_INTEGER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)", re.ASCII)
_NUMBER = re.compile(r"[-+]?[$€£]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[-+]?\d+|\s*/\s*\d+|\s*%)?", re.I | re.ASCII)
#: Not the 3 of 3², 3₂, 3½, 3‰ or 3^2.
_NUMBER_IN_TEXT = re.compile(
    r"(?<![\w.^])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+|/\d+)?%?"
    r"(?![\d^_\u00b2\u00b3\u00b9\u2070-\u208e\u00bc-\u00be\u2150-\u215e\u2030\u2031])",
    re.I | re.ASCII,
)
#: Dates, times, versions and ranges; and words that are not functions: both make a text, not an expression.
_DATE = re.compile(r"\d+(?:[-/:.]\d+){2,}|\d+[-:]\d+")
_WORD = re.compile(r"(?<![\\a-zA-Z])(?!(?:sqrt|sin|cos|tan|log|ln|exp|pi)\b)[a-zA-Z]{2,}")
_HALF = re.compile("[\ud800-\udfff]")
_LETTER = re.compile(r"\(?([A-Za-z])\)?[.):]?")

#: The file and number of a row, and the row.
_Place = tuple[str, int, Row]


@dataclass(frozen=True)
class Questions:
    """The checked rows of a file or folder, and the names of their columns."""

    path: str
    train: Rows
    test: Rows
    question: str
    answer: str
    choices: str
    """The column with lists of choices; empty if there is none."""
    context: str
    """The column with the text that a question is about; empty if there is none."""
    image: str
    """The column with pictures; empty if there is none."""
    grader: str
    drawn: bool
    """True if the held-out rows were drawn, because no file's name says so."""
    shown: tuple[str, ...]
    """The names of the columns that are shown besides question and answer, and what they hold."""
    others: tuple[str, ...]
    """The columns that are not shown."""

    def __str__(self) -> str:
        what, _, how = GRADERS[self.grader]
        held = "drawn by a hash of the question" if self.drawn else "by their files' names"
        return (
            f"{self.path}: {len(self.train) + len(self.test)} questions (column {self.question!r}"
            f"{''.join(f', {each}' for each in self.shown)}), {what} (column {self.answer!r}), {how}; "
            f"{len(self.train)} to train on, {len(self.test)} held out ({held})"
            + (f"; columns that are not shown: {', '.join(self.others[:8])}" if self.others else "")
        )


def is_data(path: str) -> bool:
    """Return whether a path is a file of rows, or a folder that has some."""
    with contextlib.suppress(RollenvError, OSError):
        return path.endswith(SUFFIXES) or (Path(path).is_dir() and bool(files_at(Path(path))))
    return False


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of ``data:PATH``."""
    path, abilities = env_id.removeprefix("data:"), set(ABILITIES)
    with contextlib.suppress(RollenvError):  # a column may have to be named; the environment says what is wrong
        found = questions_at(path)
        if found.grader == "code" and not _program(found.train):
            abilities.discard("oracle")
    worked_out = 1024  # a thought before the answer has room
    return EnvSpec(env_id, own_questions, {"path": path}, frozenset(abilities), indexed=True, answer_tokens=worked_out)


def own_questions(
    path: str,
    split: str = "train",
    question: str = "",
    answer: str = "",
    choices: str = "",
    grader: str = "",
    held_out: float = 0.2,
    instruct: str | None = None,
    seed: int | None = None,
    image: str = "",
    context: str = "",
) -> Env:
    """One question of a file or folder, and an answer of the kind that its answers have.

    Args:
        path: a .jsonl, .jsonl.gz, .parquet or .csv file, or a folder of those, whose names say the splits.
        split: "train", "test" (what is held out), or "all".
        question: the column with questions; by default recognised by its name.
        answer: the column with answers, or tests of code.
        choices: the column with the choices of a question, or several with one choice each: ``"A,B,C,D"``.
        grader: one of :data:`GRADERS`; by default chosen by the answers.
        held_out: the share of rows that is held out if no file's name says which.
        image: the column with pictures (see :func:`~rollenv.envs.data.row_pictures.pictures_of`), whose paths are
            relative to the folder of the file.
        instruct: the text behind every question; by default it says the form of an answer.
        context: the column with the text that a question is about.
    """
    found = questions_at(path, question, answer, choices, grader, held_out, image, context)
    parts = {"train": found.train, "test": found.test, "all": (*found.train, *found.test)}
    if split not in parts:
        raise UsageError(f"split is one of {', '.join(parts)}, not {split!r}")
    if not (rows := parts[split]):
        why = "it holds no question out: raise held_out, or add a file test.jsonl"
        if split == "train":
            why = f"it has only held-out questions ({', '.join(HELD_OUT)} files), which are never trained on"
        elif len(found.train) == 1:
            why = "it has one question, row 1: with none held out, there is nothing to evaluate on; add others"
        raise UsageError(f"{path} has no rows to {'train' if split == 'train' else 'evaluate'} on: {why}")
    env: RowEnv
    if found.grader == "code":
        from rollenv.envs.code.env import CodeEnv  # not above: it needs a sandbox

        columns: Any = {"question_key": found.question, "test_key": found.answer, "solution_key": _program(rows)}
        env = CodeEnv(dataset=rows, seed=seed, **columns)
    else:
        env = QuestionEnv(rows, found, instruct, seed)
    env.image_key, env.folder = found.image, folder_of(path)
    return env


def _program(rows: Rows) -> str | None:
    """Return the column with correct programs."""
    return next((name for name in PROGRAMS if rows and name in rows[0]), None)


class QuestionEnv(RowEnv):
    """One question, one answer; reward 1 if it is right, else 0.

    The answer is what is in the last ``\\\\boxed{}`` or ``<answer>`` tags; without them the whole text, or its last
    number or letter.
    """

    def __init__(self, rows: Rows, questions: Questions, instruct: str | None = None, seed: int | None = None):
        self.grader, self.choices_key, self.context_key = questions.grader, questions.choices, questions.context
        self.instruct = GRADERS[self.grader][1] if instruct is None else instruct
        if self.grader == "expression":
            check_installed()
        super().__init__(None, None, rows, questions.question, questions.answer, seed, 0.0)

    def _check_rows(self, shared: bool) -> None:
        """Do nothing: :func:`questions_at` has checked the rows."""

    @property
    def accepted(self) -> tuple[str, ...]:
        """The answers that count as correct."""
        return golds(self.row[self.gold_key], self.grader)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a choice that are not part of the question."""
        return _options(self.row, self.choices_key)

    @property
    def letters(self) -> str:
        """The letters of the choices that the question shows."""
        return ascii_uppercase[: len(self.options)] or sets.letters_in(self.row[self.question_key])

    def _question(self) -> str:
        context = _context(self.row, self.context_key)
        options = [f"{letter}. {text}" for letter, text in zip(self.letters, self.options, strict=False)]
        question = "\n".join(filter(None, (self.row[self.question_key].strip(), *options, self.instruct)))
        return f"{context}\n\n{question}" if context else question

    def _judge(self, action: str) -> RowVerdict:
        said = answer_in(action, self.grader, self.options, self.letters)
        if said is None:
            return RowVerdict(0.0, f"There is no answer. {self.instruct}".strip(), valid=False)
        right = any(_equal(gold, said, self.grader) for gold in self.accepted)
        return RowVerdict(float(right), "That is right." if right else "That is wrong.")

    def sample_random_action(self) -> str:
        if self.grader == "choice":
            return self.action_rng.choice(self.letters)
        return self._written(str(self.action_rng.randrange(100)))

    def oracle_action(self) -> str:
        return self._written(self.accepted[0])

    def _written(self, answer: str) -> str:
        return f"\\boxed{{{answer}}}" if self.grader == "expression" else answer


# -- answers -----------------------------------------------------------------------------------------------------------


def golds(cell: Any, grader: str) -> tuple[str, ...]:
    """Return the right answers in a cell, which has one or a list of them; the letters of choices."""
    if grader == "choice":
        return tuple(str(value).strip("().: \n").upper() for value in listed(cell))
    texts = tuple(filter(None, map(gold_answer, listed(cell))))
    if grader != "text":
        return texts
    said = {"True": "yes", "False": "no"}
    also = (said[str(value)] for value in listed(cell) if isinstance(value, bool))
    return tuple(text for text in (*texts, *also) if says_something(text) and len(text) <= MAX_CHARACTERS)


def answer_in(action: str, grader: str, options: Sequence[str] = (), letters: str = "") -> str | None:
    """Return the answer in a text; None if there is none.

    Args:
        letters: those of the choices that were shown.
    """
    marked = last_boxed(action) or last_tagged(action)
    text = (marked or action).strip()
    if grader in ("text", "expression"):
        return text if text and (marked or grader == "text") else None
    if grader == "choice":
        return sets.picked(text, letters, options)
    plain = text.removesuffix(".")
    if plain.endswith("!") and not re.search(r"[a-z] ", plain, re.I):  # a factorial, not the end of a sentence
        return None
    return plain if _kind(plain) in _NUMBERS else next(reversed(_NUMBER_IN_TEXT.findall(text)), None)


def _equal(gold: str, said: str, grader: str) -> bool:
    if grader == "text":
        return len(said) <= MAX_CHARACTERS and bool(exact_match(said, [gold]))
    if grader == "expression":
        return grade(gold, said, SECONDS)
    return gold == said if grader == "choice" else compare(gold, said) is True


def _kind(text: str) -> str:
    """Return the grader of a single answer."""
    text = text.removesuffix("°")
    if _INTEGER.fullmatch(text):
        return "integer"
    if re.search(r"\d", text) and _NUMBER.fullmatch(text):
        return "number"
    signs = re.search(r"[-+*/^=()\\]", text) and re.search(r"\w", text)
    return "expression" if signs and len(text) < 300 and not (_DATE.fullmatch(text) or _WORD.search(text)) else "text"


# -- files -------------------------------------------------------------------------------------------------------------


def questions_at(
    path: str,
    question: str = "",
    answer: str = "",
    choices: str = "",
    grader: str = "",
    held_out: float = 0.2,
    image: str = "",
    context: str = "",
) -> Questions:
    """Read and check the questions of a file or folder; see :func:`own_questions`.

    Raises:
        MissingData: there is no file.
        UsageError: a file or row cannot be used; the message names it.
    """
    if not 0 <= held_out < 1:
        raise UsageError(f"held_out is a share of the rows from 0 to below 1, not {held_out!r}")
    if grader and grader not in GRADERS:
        hint = did_you_mean(grader, GRADERS, f"there are {', '.join(GRADERS)}")
        raise UsageError(f"there is no grader {grader!r}; {hint}")
    files = files_at(Path(path))
    if not Path(path).is_dir() and (own := split_of(files[0])):  # the files of other splits beside it
        names = (files[0].name.lower().replace(own, other, 1) for other in ("train", *HELD_OUT) if other != own)
        files += [twin for name in names if (twin := files[0].with_name(name)).is_file()]
    stamps = tuple((str(file), file.stat().st_mtime_ns) for file in files)
    return _questions(path, stamps, (question, answer, choices, image, context), grader, held_out)


@functools.lru_cache(maxsize=16)
def _questions(
    path: str, files: tuple[tuple[str, int], ...], named: tuple[str, str, str, str, str], grader: str, share: float
) -> Questions:
    question, answer, choices, image, context = named
    splits = {name: split_of(Path(name)) for name, _ in files}
    test = next((split for split in HELD_OUT if split in splits.values()), "")
    names = [n for n in splits if test and splits[n] == test] + [n for n in splits if splits[n] not in HELD_OUT]
    rows = [(name, i, row) for name in names for i, row in enumerate(read_file(Path(name)), 1)]
    if not rows:
        raise UsageError(f"{path} has no rows")
    columns = [*dict.fromkeys(column for _, _, row in rows for column in row)]
    form = sets.choice_form(columns, choices)
    for column in form.columns if form and choices else ():
        _column(path, columns, "choices", column, ())
    first = [*rows[0][2]]
    asked = _column(path, first, "question", question, (*QUESTIONS, *(sets.QUESTIONS if form else ())))
    code = ("test",) if "assert" in str(rows[0][2].get("test")) else ()  # a common name of other things too
    tests = "" if answer else _column(path, first, "tests", "", (*TESTS, *code))
    left = [column for column in first if column != asked]
    right = tests or _column(path, left, "answer", answer, (*ANSWERS, *(sets.ANSWERS if form else ())))
    about = _column(path, [c for c in columns if c not in (asked, right)], "context", context, CONTEXTS)
    if any(not isinstance(row.get(about), str | None) for _, _, row in rows):
        if context:
            raise UsageError(f"{path}: the column {about!r} holds no texts, which context= takes")
        about = ""
    seen = _column(path, columns, "image", image, IMAGES)
    if seen and not any(has_pictures(row.get(seen), Path(name).parent) for name, _, row in rows):
        if image:
            cell = rows[0][2].get(seen)
            raise UsageError(f"{path}: the column {seen!r} holds no pictures that can be read, but {cell!r:.60}")
        seen = ""  # a column of this name with something else, such as a container's image
    for name, i, row in rows:
        if wrong := _cannot_play(row, (asked, right), asked):
            raise UsageError(f"{name}, row {i}: {wrong}")
    listing = ""
    if form and grader in ("", "choice") and not tests:
        rows, listing = _with_letters(rows, form, right, certain=bool(choices) or len(form.columns) == 1)
    grader = grader or ("code" if tests else _grader(rows, right, asked, listing))
    for name, i, row in rows if grader != "code" else ():
        if wrong := _cannot_grade(row, right, grader, _options(row, listing), asked):
            raise UsageError(f"{name}, row {i}: {wrong}")
    used = {"context": (about,), "choices": (listing and form and form.columns) or (), "pictures": (seen,)}
    shown = tuple(f"{what} {', '.join(map(repr, found))}" for what, found in used.items() if any(found))
    others = {*columns} - {asked, right, *(column for found in used.values() for column in found)}
    distinct = _distinct(rows, asked, right, (about, listing), seen)
    if test:
        held = {name for name, split in splits.items() if split == test}
        drawn = {i for i, (name, _, _) in enumerate(distinct) if name in held}
    else:
        texts = [
            row[asked].strip() + _context(row, about) + (key_of(row.get(seen)) if seen else "")
            for _, _, row in distinct
        ]
        by_hash = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        number = min(max(1, round(share * len(distinct))), len(distinct) - 1) if share else 0
        drawn = {*sorted(range(len(distinct)), key=by_hash.__getitem__)[:number]}
    train, tested = (
        tuple(row for i, (_, _, row) in enumerate(distinct) if (i in drawn) is out) for out in (False, True)
    )
    hidden = tuple(column for column in columns if column in others)
    return Questions(path, train, tested, asked, right, listing, about, seen, grader, not test, shown, hidden)


def _with_letters(rows: Sequence[_Place], form: sets.ChoiceForm, right: str, certain: bool) -> tuple[list[_Place], str]:
    """Return rows whose choices are a list and whose answers are letters, and the column of the lists.

    Unless it is ``certain`` that the columns hold choices, rows whose answers name none of them are left as they are.

    Raises:
        UsageError: a row cannot be used; the message names it.
    """
    choices = []
    for name, i, row in rows:
        try:
            choices.append(sets.choices_of(row, form, right))
        except UsageError as error:
            if certain:
                raise UsageError(f"{name}, row {i}: {error}") from error
            return [*rows], ""
    letters = sets.right_letters([row[right] for _, _, row in rows], choices, form.first)
    for (name, i, row), found in zip(rows, letters, strict=True):
        if "" in found:
            if not certain:
                return [*rows], ""
            raise UsageError(f"{name}, row {i}: the answer {row[right]!r:.60} is none of the choices")
    listing = form.columns[0] if len(form.columns) == 1 and not form.without_right else "choices"
    return [
        (name, i, {**row, listing: texts, right: found})
        for (name, i, row), (texts, _), found in zip(rows, choices, letters, strict=True)
    ], listing


def _column(path: str, columns: Sequence[str], what: str, named: str, known: Sequence[str]) -> str:
    """Return the column of this name, or the first known one. Only questions and answers are needed."""
    if named and named not in columns:
        hint = did_you_mean(named, columns, "name one of them")
        raise UsageError(f"{path} has no column {named!r} for {what}=; it has {', '.join(columns)}; {hint}")
    by_name = {column.strip().lower().replace(" ", "_"): column for column in reversed(columns)}
    found = named or next((by_name[name] for name in known if name in by_name), "")
    if not found and {"task", "turns"} <= set(columns):
        raise UsageError(
            f"{path} holds played episodes, not questions: look at them with `rollenv view`, learn them with "
            "`rollenv sft`, or play a run's model with --agent local:FOLDER"
        )
    if not found and (chats := [column for column in CHATS if column in columns]):
        raise UsageError(
            f"{path} holds conversations (column {chats[0]!r}), not questions: learn them with `rollenv sft`, or write "
            "each question and its answer into columns of their own"
        )
    if not found and what in ("question", "answer"):
        raise UsageError(f"{path} has the columns {', '.join(columns)}; say which one it is with {what}=COLUMN")
    return found


def _cannot_play(row: Row, columns: Sequence[str], asked: str) -> str:
    """Return what a row lacks; empty if it lacks nothing."""
    for column in columns:
        if column not in row:
            return f"it has no column {column!r}, but {', '.join(row) or 'none'}"
        if not any(str(value).strip() for value in listed(row[column])):
            return f"its column {column!r} is empty"
    if not isinstance(row[asked], str):
        return f"its column {asked!r} holds {type(row[asked]).__name__}, not a text; write the text into a column"
    return f"its column {asked!r} has half a character (a lone surrogate)" if _HALF.search(row[asked]) else ""


def _grader(rows: Sequence[_Place], right: str, asked: str, listing: str) -> str:
    """Choose the grader by the answers."""
    answers = [[gold_answer(value) for value in listed(row[right])] for _, _, row in rows]
    letters = all(_LETTER.fullmatch(text) for texts in answers for text in texts)
    if listing or (letters and all(sets.letters_in(row[asked]) for _, _, row in rows)):
        return "choice"
    kinds = [max(map(_kind, texts), key=(*_NUMBERS, "expression", "text").index) for texts in answers]
    count = Counter(kinds)
    numbers = count["integer"] + count["number"]
    if count["text"] and 2 * numbers > len(kinds):
        name, i, _ = rows[first := kinds.index("text")]
        raise UsageError(
            f"{name}, row {i}: the answer {answers[first][0]!r:.60} is no number, as {numbers} of {len(kinds)} answers "
            "are; mend it, or name the grader: grader=text"
        )
    return next(kind for kind in ("text", "expression", "number", "integer") if count[kind])


def _cannot_grade(row: Row, right: str, grader: str, options: Sequence[str], asked: str) -> str:
    """Return the reason why a row's answers cannot be graded; empty if they can."""
    cell = row[right]
    if others := [value for value in listed(cell) if not isinstance(value, str | int | float | Decimal)]:
        return f"an answer is a text or a number, not {others[0]!r:.60}; mend it, or name another column: answer=COLUMN"
    letters = ascii_uppercase[: len(options)] or sets.letters_in(row[asked])
    if not (right_ones := golds(cell, grader)):
        return f"the answer {cell!r:.60} has no letter or digit to compare, or more than {MAX_CHARACTERS:,} characters"
    for gold in right_ones:
        if grader == "choice" and (len(gold) != 1 or gold not in letters):
            return f"the answer {cell!r:.60} is none of the choices"
        if grader in _NUMBERS and _kind(gold) not in _NUMBERS[: 1 + _NUMBERS.index(grader)]:
            return f"the answer {gold!r:.60} is no {grader}; mend it, or take another grader="
    return ""


def _options(row: Row, column: str) -> tuple[str, ...]:
    """Return a row's options."""
    return tuple(str(option).strip() for option in listed(row[column])) if column else ()


def _context(row: Row, column: str) -> str:
    return (row.get(column) or "").strip() if column else ""


def _distinct(rows: Sequence[_Place], asked: str, right: str, beside: tuple[str, str], seen: str) -> list[_Place]:
    """Leave out rows that repeat a question; those of held-out files come first.

    Raises:
        UsageError: two rows have the same question and other answers.
    """
    first: dict[str, _Place] = {}
    about, listing = beside
    for name, i, row in rows:
        pictures = key_of(row.get(seen)) if seen else ""
        before = first.setdefault(
            f"{row[asked].strip()}\0{_options(row, listing)}\0{pictures}\0{_context(row, about)}", (name, i, row)
        )
        if before[2][right] != row[right]:
            raise UsageError(
                f"{name}, row {i}: its question is that of {before[0]}, row {before[1]}, with another answer; mend it, "
                "or list both answers in one row"
            )
    if repeated := len(rows) - len(first):
        kept = {id(row) for _, _, row in first.values()}
        name, i, _ = next(place for place in rows if id(place[2]) not in kept)
        logger.warning("%d rows repeat a question and are left out, the first: %s, row %d", repeated, name, i)
    return [*first.values()]

"""Questions with choices: the columns in which data sets publish them, and the letter that an answer picks."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.envs.data.task import listed
from rollenv.envs.data.text_answers import exact_match

#: Columns that are recognised in sets of questions with choices, besides those of all questions.
QUESTIONS = ("question_stem", "stem", "goal", "ctx", "sentence", "premise")
ANSWERS = (
    *("answer_idx", "answer_index", "answer_letter", "correct", "correct_answer", "correct_answer_num"),
    *("correct_answer_index", "correct_option", "correct_choice", "cop"),
)
LISTS = ("choices", "options", "endings")

#: Names of columns with one choice each, but for their letter or number, and the number of the first choice where the
#: answers do not tell: KMMLU (A, B, ...), MedMCQA (opa), PIQA (sol1), COPA (choice1), SWAG (ending0), Belebele.
_SERIES = {
    **{"": 1, "option": 1, "opt": 1, "answer": 1, "mcanswer": 1, "candidate": 1},
    **{"op": 0, "choice": 0, "sol": 0, "ending": 0},
}
#: Columns with wrong choices (SciQ, GPQA), to which the answer is added.
_WRONG = ("distractor", "incorrectanswer", "incorrect", "wronganswer")
_IN_SERIES = re.compile(rf"({'|'.join([*filter(None, _SERIES), *_WRONG])}|)([a-z]|\d\d?)")

_LETTER = re.compile(r"\(?([A-Z])\)?[.):]?", re.IGNORECASE)
_MARKED_CHOICE = re.compile(r"\(?([A-Z])\s?[).:]\s*")
_CHOICES_IN_TEXT = re.compile(r"(?:^|\s)\(?([A-Z])[.):]")


@dataclass(frozen=True)
class ChoiceForm:
    """The columns that hold choices: one with lists, or several with one choice each."""

    columns: tuple[str, ...]
    first: int = 0
    """The number of the first choice, where the answers do not tell."""
    without_right: bool = False
    """True if the choices are the wrong ones, and the answer's text is one more."""

    def __str__(self) -> str:
        return ", ".join(map(repr, self.columns))


def choice_form(columns: Sequence[str], named: str = "") -> ChoiceForm | None:
    """Return the form of choices that the columns say; None if they say none.

    Args:
        named: the column with lists, or several columns with commas between them.
    """
    if named:
        return ChoiceForm((named,) if named in columns else tuple(part.strip() for part in named.split(",")))
    by_name = {column.lower(): column for column in reversed(columns)}
    if found := next((by_name[name] for name in LISTS if name in by_name), ""):
        return ChoiceForm((found,))
    series: dict[str, dict[str, str]] = {}
    for column in columns:
        if match := _IN_SERIES.fullmatch(re.sub(r"[ _-]", "", column.lower())):
            series.setdefault(match[1], {})[match[2]] = column
    for prefix, members in series.items():
        start = next((i for i in ("a", "0", "1") if i in members), "")
        if start == "a":
            names = [letter.lower() for letter in ascii_uppercase]
        else:
            names = [str(number) for number in range(int(start or 0), 100)]
        end = next(i for i, name in enumerate(names) if name not in members)
        if end > (1 if prefix else 2):  # columns a and b alone are as likely to be numbers of a sum
            found_in = tuple(members[name] for name in names[:end])
            return ChoiceForm(found_in, _SERIES.get(prefix, 0), prefix in _WRONG)
    return None


def choices_of(row: Mapping[str, Any], form: ChoiceForm, right: str) -> tuple[list[str], list[str]]:
    """Return a row's choices in the order in which they are shown, and the row's own labels of them, if it has any.

    Raises:
        UsageError: the cells hold no choices.
    """
    if len(form.columns) == 1 and not form.without_right:
        labels, cells = _listed_choices(row.get(form.columns[0]), form.columns[0])
    else:
        labels, cells = [], [row.get(column) for column in form.columns]
        while cells and not _text(cells[-1]):
            del cells[-1]
        if all(len(column) == 1 for column in form.columns):
            labels = [column.upper() for column in form.columns[: len(cells)]]
        if form.without_right:  # in an order that says nothing of the answer
            cells = sorted({_text(cell) for cell in (*cells, *listed(row.get(right)))})
    texts = [_text(cell) for cell in cells]
    if "" in texts:
        raise UsageError(f"its choice {texts.index('') + 1} of {len(texts)} is empty (columns {form})")
    if not 2 <= len(texts) <= len(ascii_uppercase):
        raise UsageError(f"it has {len(texts)} choices in {form}; it takes 2 to {len(ascii_uppercase)}")
    marks = [_MARKED_CHOICE.match(text) for text in texts]  # AQuA: "A)21"
    if all(mark and mark[1] == ascii_uppercase[i] and mark.end() < len(mark.string) for i, mark in enumerate(marks)):
        texts = [text[mark.end() :] for text, mark in zip(texts, marks, strict=True) if mark]
    return texts, labels


def _listed_choices(cell: Any, column: str) -> tuple[list[str], list[Any]]:
    """Return the labels, if there are any, and the choices of a cell with all of them."""
    if isinstance(cell, str):
        try:
            read = ast.literal_eval(cell)  # a list as a table writes it
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            read = re.split(r"(?:^|,)\s*[a-z]\s*\)\s*", cell)[1:]  # MathQA: "a ) 38 , b ) 27.675"
        if not isinstance(read, list | tuple | dict) or len(read) < 2:
            raise UsageError(f"its column {column!r} holds {cell!r:.60}, which is no list of choices")
        cell = read
    if isinstance(cell, Mapping) and "text" in cell:  # ARC
        return [str(label) for label in listed(cell.get("label"))], listed(cell["text"])
    if isinstance(cell, Mapping):  # letters and texts
        pairs = [(str(label), text) for label, text in cell.items() if text is not None]
        if all(_LETTER.fullmatch(label) or label.isdecimal() for label, _ in pairs):
            pairs.sort(key=lambda pair: (len(pair[0]), pair[0]))
        return [label for label, _ in pairs], [text for _, text in pairs]
    cells = listed(cell)
    if cells and all(isinstance(each, Mapping) and "text" in each for each in cells):
        return [str(each.get("label", "")) for each in cells], [each["text"] for each in cells]
    return [], cells


def _text(cell: Any) -> str:
    return "".join(str(value) for value in listed(cell)).strip()


# -- which choices are right -------------------------------------------------------------------------------------------


def right_letters(keys: Sequence[Any], choices: Sequence[tuple[list[str], list[str]]], first: int) -> list[list[str]]:
    """Return the letters of the right choices of each row of a file.

    A key names a choice by its label, letter, number or text. A number counts from 0 if a row of the file has a 0,
    from 1 if one has the number of its last choice, else from ``first``. Where a key can be read in two ways, the way
    counts by which all keys of its kind in the file can be read: MMLU's answer 1 is an index, also where a choice is 1.

    Args:
        keys: a cell for each row, with one key or several.
        choices: the texts and labels of each row, as :func:`choices_of` returns them.

    Returns:
        for each row the letters from A; an empty string for a key that names none of the choices.
    """
    flat = [(i, key) for i, cell in enumerate(keys) for key in listed(cell)]
    numbers = [(int(key), len(choices[i][0])) for i, key in flat if _kind_of_key(key) in ("index", "digits")]
    if any(number == 0 for number, _ in numbers):
        first = 0
    elif any(number == size for number, size in numbers):
        first = 1

    def by_label(i: int, key: Any) -> int:
        return choices[i][1].index(str(key).strip())

    def by_letter(i: int, key: Any) -> int:
        letter = _LETTER.fullmatch(str(key).strip())
        return ascii_uppercase.index(letter[1].upper()) if letter else -1

    def by_number(i: int, key: Any) -> int:
        return int(key) - first

    def by_text(i: int, key: Any) -> int:
        return choices[i][0].index(str(key).strip())

    ways = {
        "index": (by_label, by_number, by_text),
        "digits": (by_label, by_text, by_number),
        "letter": (by_label, by_text, by_letter),
        "text": (by_label, by_text),
    }
    letters: list[list[str]] = [[] for _ in keys]
    for kind, readings in ways.items():
        own = [(i, key) for i, key in flat if _kind_of_key(key) == kind]
        found = [[_place(way, i, key, len(choices[i][0])) for i, key in own] for way in readings]
        best = min(found, key=lambda places: places.count(-1))
        for (i, _), place in zip(own, best, strict=True):
            letters[i].append(ascii_uppercase[place] if place >= 0 else "")
    return letters


def _kind_of_key(key: Any) -> str:
    if isinstance(key, int | float) and not isinstance(key, bool) and key % 1 == 0:
        return "index"
    text = str(key).strip()
    if text.isascii() and text.isdecimal():
        return "digits" if len(text) < 4 else "text"
    return "letter" if _LETTER.fullmatch(text) else "text"


def _place(way: Any, i: int, key: Any, size: int) -> int:
    """Return the place of a key's choice by one way of reading; -1 if it names none."""
    try:
        place: int = way(i, key)
    except ValueError:
        return -1
    return place if 0 <= place < size else -1


def letters_in(question: str) -> str:
    """Return the letters of the choices that a question's text shows: A, B and so on; empty if it shows none."""
    shown = {*_CHOICES_IN_TEXT.findall(question)}
    number = next(i for i, letter in enumerate((*ascii_uppercase, "")) if letter not in shown)
    return ascii_uppercase[:number] if number > 1 else ""


# -- which choice an answer picks --------------------------------------------------------------------------------------


def picked(text: str, letters: str, options: Sequence[str] = ()) -> str | None:
    """Return the letter of the choice that an answer picks; None if it picks none, or several at once.

    The clearest form counts, and of one form the last: the answer is a letter or the text of a choice; it says "the
    answer is B"; it begins with a letter and a sign; it has a letter in brackets; it has a letter on its own, which
    "a" and "I" as words are not. Letters of choices that were not shown never count.
    """
    one = f"[{letters}]"
    if whole := re.fullmatch(rf"\W*({one})\W*", text, re.IGNORECASE):
        return whole[1].upper()
    if same := [letters[i] for i, option in enumerate(options) if exact_match(text, [option])]:
        return same[-1]
    alone = rf"(?!I['’]|I\s+[a-z])({one})\b(?!['’])"
    said = r"\b(?i:answer|choice|option)\b\W{0,4}(?i:(?:is|was|be|must be|should be|would be)\b)?\W{0,8}"
    said += rf"(?i:(?:option|choice|letter)\b)?\W{{0,4}}(?:(?-i:{alone})|(?<=[(\[])({one.lower()})(?=[)\]]))"
    if stated := [*re.finditer(said, text)]:
        last = stated[-1]
        hedged = re.match(rf"\W*(?:or|and|/|,)\W*(?:{one})\b(?!\s+[a-z])", text[last.end() :])
        return None if hedged else (last[1] or last[2]).upper()
    marked = re.findall(rf"(?:^|\s)\W*({one})(?:\s*[).:,\]*–—]|\s*\n|\s+-\s)", text)
    if len({*marked}) == 1 and re.match(rf"\W*{marked[0]}\b", text):
        return str(marked[0])
    bracketed = re.findall(rf"[(\[*]({one})[)\]*]", text)
    words = re.findall(rf"\b(?!A\s+[a-z])(?<![-\w'’.]){alone}", text)
    return next(reversed(bracketed or words), None)

"""Questions with short answers, compared by SQuAD's rules (arXiv 1606.05250, section 4), extended for numbers.

SQuAD's script removes punctuation of ASCII only. TriviaQA's (arXiv 1705.03551) removes ``‘``, ``’``, ``´`` and `````
too; here, typographic quotes and dashes are those of ASCII.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from decimal import Context, Decimal
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.envs.data.characters import plain_characters
from rollenv.envs.data.rows import Row
from rollenv.envs.data.task import RowEnv, RowVerdict, listed

METRICS = ("em", "f1")

#: Maximum length of an answer.
MAX_CHARACTERS = 10_000

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SIGNS = str.maketrans("⁄‒–", "/--")
_QUOTES = str.maketrans(dict.fromkeys("‘’‚‛´ʻʼʹ′‹›", "'") | dict.fromkeys("“”„‟«»″「」『』〝〞", '"'))
_THOUSANDS = re.compile(r"(?<![\w.,'])\d{1,3}(?:,\d{3})+(?![\d,]*\d)")
_MARK = re.escape(string.punctuation)
#: Punctuation, except a sign or a decimal point before a number, and characters between two digits.
_PUNCTUATION = re.compile(
    rf"(?!(?:(?<![\w)])|(?<=\de))-[$£€¥]?\.?\d|(?<![\w.])\.\d|(?<=\d)[{_MARK}]{{1,2}}\d|(?<=\d[{_MARK}])-\d)[{_MARK}]"
)
_DECIMAL = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,3})?")
#: Reliable digits of a float.
_FLOAT_DIGITS = 15


def normalize(text: str) -> str:
    """Convert to lower case, without punctuation, articles and extra white space.

    A text of only articles or only punctuation keeps them. Numbers keep their sign, decimal point and other characters
    between digits, except commas between thousands. A text that is a decimal loses trailing zeros.
    """
    text = re.sub(r"^-\s+(?=\d)", "-", plain_characters(text.translate(_QUOTES)).lower().translate(_SIGNS).strip())
    words = _PUNCTUATION.sub("", _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text))
    if ("." in words or "e" in words) and _DECIMAL.fullmatch(words):
        value = Decimal(words)
        if len(value.as_tuple().digits) > _FLOAT_DIGITS and "." in words:  # 0.30000000000000004
            value = Context(prec=_FLOAT_DIGITS).plus(value)
        return f"{value.normalize():f}" if value else "0"
    return " ".join(_ARTICLES.sub(" ", words).split()) or " ".join(words.split()) or text


def exact_match(answer: str, accepted: Iterable[str]) -> float:
    """Return 1.0 if the answer equals an accepted one after :func:`normalize`, else 0.0. An empty answer is wrong."""
    normalized = normalize(answer)
    return float(_says_something(answer) and any(normalized == normalize(one) for one in accepted))


def f1(answer: str, accepted: Iterable[str]) -> float:
    """Return the harmonic mean of precision and recall of the words, in [0, 1]; the most similar answer counts."""
    words = normalize(answer).split() if _says_something(answer) else []
    return max((_f1(words, normalize(one).split()) for one in accepted), default=0.0)


def _f1(words: list[str], wanted: list[str]) -> float:
    if not words or not wanted:
        return 0.0
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted))


def _says_something(text: str) -> bool:
    """Return whether a text has a letter or a digit."""
    return any(char.isalnum() for char in text)


class QaEnv(RowEnv):
    """One question, one answer.

    Accepted answers that are missing, or without a letter or digit, are ignored; a question without others is never
    rewarded.

    Args:
        extract_boxed: the answer is in ``\\boxed{}`` instead of ``<answer>`` tags.
        use_format_error_reward: reward an action without an answer with -0.1 instead of 0.
        metric: the reward: ``em`` (1 for an exact match, else 0) or ``f1`` (the share of words; success is 1).
    """

    def __init__(
        self,
        dataset_name: str | None = "",
        split: str | None = None,
        dataset: Iterable[Row] | None = None,
        question_key: str = "question",
        answer_key: str = "answer",
        seed: int | None = None,
        extract_boxed: bool = False,
        *,
        use_format_error_reward: bool = False,
        metric: str = "em",
        instruct: bool = True,
    ):
        if metric not in METRICS:
            raise UsageError(f"metric {metric!r} is unknown; choose from {', '.join(METRICS)}")
        format_reward = -0.1 if use_format_error_reward else 0.0
        super().__init__(dataset_name, split, dataset, question_key, answer_key, seed, format_reward)
        self.extract_boxed, self.metric, self.instruct = extract_boxed, metric, instruct
        self._template = "\\boxed{%s}" if extract_boxed else "<answer>%s</answer>"

    @property
    def accepted(self) -> tuple[str, ...]:
        """The accepted answers."""
        return texts(self.row[self.gold_key])

    def _question(self) -> str:
        question = str(self.row[self.question_key])
        if not self.instruct:
            return question
        return f"{question}\n\nThink first. Then give a short answer in the form {self._template % '...'}"

    def _judge(self, action: str) -> RowVerdict:
        answer = last_boxed(action) if self.extract_boxed else last_tagged(action)
        if answer is None:
            return RowVerdict(0.0, f"There is no answer in the form {self._template % '...'}", valid=False)
        measure = exact_match if self.metric == "em" else f1
        score = measure(answer, self.accepted) if len(answer) <= MAX_CHARACTERS else 0.0
        return RowVerdict(score, "That is right." if score >= 1 else "That is wrong.")

    def sample_random_action(self) -> str:
        return self._template % self.action_rng.choice(("yes", "no", "True", "False"))

    def oracle_action(self) -> str:
        """Return the first accepted answer."""
        if not self.accepted:
            raise UsageError(f"{self}: row {self.idx} has no accepted answer")
        return self._template % self.accepted[0]


def texts(value: Any) -> tuple[str, ...]:
    """Return the accepted answers in a cell, which has one or a list of them."""
    values = listed(value)
    for one in values:
        if not isinstance(one, str | int | float | Decimal):
            raise UsageError(f"an answer must be a text, a number or a list of them, not {type(one).__name__}")
    return tuple(text for one in values if _says_something(text := str(one)))

r"""Mathematical answers as text: extraction of the gold answer from a row, and comparisons without algebra.

Most answers are plain numbers, which :func:`compare` decides at once. It also rejects answers with other words,
relations or brackets than the gold answer, even if a computer algebra system would accept them. Undecided pairs go to
the computer algebra of :mod:`rollenv.envs.math.grade`, in the normal form of :func:`normal`.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rollenv.core.parsing import last_boxed, last_tagged
from rollenv.envs.data.characters import plain_characters
from rollenv.envs.math.printed import latex_of_printed
from rollenv.envs.math.relations import has_relation, solution_set, unassigned
from rollenv.envs.math.units import split_unit

#: Maximum length of an answer, unless it equals the gold answer literally.
MAX_CHARACTERS = 1000

#: Decimals of at least ``_DIGITS`` digits equal a fraction within this relative tolerance.
_TOLERANCE, _DIGITS = Fraction(1, 10**6), 6

_SPACING = re.compile(
    r"(?<!\\)\\[!,;: ]|~"
    r"|\\(?:q?quad|left|right|displaystyle|bf|rm|it|large|Large|[bB]igg?[lr]?)(?![a-zA-Z])"
)
_MATRIX = re.compile(
    r"[(\[]\s*\\begin\{(?:matrix\}|array\}\s*\{[clr| ]*\})(.*?)\\end\{(?:matrix|array)\}\s*[)\]]", re.DOTALL
)
#: Commands with another spelling, and the normal one.
_SAME = {
    "\\dfrac": "\\frac",
    "\\tfrac": "\\frac",
    "\\cfrac": "\\frac",
    "\\varnothing": "\\emptyset",
    "\\le": "\\leq",
    "\\ge": "\\geq",
    "\\ne": "\\neq",
    "\\leqslant": "\\leq",
    "\\geqslant": "\\geq",
    "\\lbrace": "\\{",
    "\\rbrace": "\\}",
    "\\colon": ":",
    "\\backslash": "\\setminus",
    "\\varphi": "\\phi",
    "\\varepsilon": "\\epsilon",
    "\\vartheta": "\\theta",
}
_SAME_COMMAND = re.compile(rf"\\(?:{'|'.join(name[1:] for name in _SAME)})(?![a-zA-Z])")
#: A text command whose text is the letter behind it.
_UNBRACED = re.compile(r"\\(text(?:bf|it|rm)?|mbox|mathrm)\s+([a-zA-Z0-9])(?![a-zA-Z0-9])")
#: LaTeX of characters outside ASCII.
_COMMANDS = """
    π pi ∞ infty ∪ cup ∩ cap ∖ setminus × times · cdot ⋅ cdot ∙ cdot ± pm ∈ in ∅ emptyset ⩽ leq ≦ leq ⩾ geq ≧ geq
    ≤ leq ≥ geq ≠ neq
    ⟨ langle ⟩ rangle 〈 langle 〉 rangle ∠ angle △ triangle → to ¬ neg ∧ land ∨ lor ∀ forall ∃ exists ≈ approx ≡ equiv
    ⌊ lfloor ⌋ rfloor ⌈ lceil ⌉ rceil ⊂ subset ⊆ subseteq ∉ notin ⊥ perp ∥ parallel ∓ mp
    α alpha β beta γ gamma δ delta ε epsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu ν nu ξ xi ρ rho ς sigma
    σ sigma τ tau υ upsilon φ phi χ chi ψ psi ω omega Γ Gamma Δ Delta ∆ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma
    Φ Phi Ψ Psi Ω Omega
    """.split()  # noqa: SIM905
_SIGNS_OF_UNICODE = str.maketrans(
    {sign: f"\\{name} " for sign, name in zip(_COMMANDS[::2], _COMMANDS[1::2], strict=True)}
    | {"÷": "/", "⁄": "/", "。": ".", "、": ",", "′": "'"}
)
#: LaTeX of characters whose form :func:`plain_characters` would lose: superscripts, subscripts, fractions.
_RAISED = {"<super>": "^{%s}", "<sub>": "_{%s}", "<fraction>": "\\frac{%s}"}
_GROUPS_BEFORE, _POWER_AT_END = re.compile(r"(?:[\^_]|\\[a-zA-Z]+)\s*$"), re.compile(r"[\^_]\w$")
_NUMBER_SETS = "ℂℕℚℝℤ"
_ROOTS = {"√": "\\sqrt", "∛": "\\sqrt[3]", "∜": "\\sqrt[4]"}
_ROOT_SIGN = re.compile(r"([√∛∜])\s*(?:(\d+|\\[a-zA-Z]+|[a-zA-Z])|\(([^()]*)\))")
#: Commands that change only how the next group or sign looks.
_STYLE = re.compile(
    r"\\(?:(?:textcolor|color|colorbox)(?:\[\w+\])?\s*\{[^{}]*\}|fcolorbox\s*\{[^{}]*\}\s*\{[^{}]*\}"
    r"|(?:mathbf|mathit|mathsf|mathtt|mathnormal|boldsymbol|bm|pmb|bold)(?![a-zA-Z]))\s*"
)
_BASE_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_BASE_WORD = re.compile(rf"_\{{({'|'.join(_BASE_WORDS)})\}}")
_BRACKETED_DIGITS = re.compile(r"\((\d+)\)_")
_DEGREES = re.compile(r"\^\{?\\circ\}?|\\degree|°")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname|boxed)\{([^{}]*)\}")
_WRAPPED = re.compile(r"\\(?:underline|textbf|textit|mathbf)\{([^{}]*)\}")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\[\d+\])?\s*(\d)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,]*\d)")
_WIDE_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s*|\\[,; !]|~)(?=\d{3}(?!\d))")
_SPACED_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?: \d{3})+")
_LONE_BRACES = re.compile(r"([_^])\{(\w)\}")
_INNER_SPACE = re.compile(r"(?<![0-9a-zA-Z])\s+|\s+(?![0-9a-zA-Z])")
_CONNECTIVE = re.compile(r"(?<=[\w)}\]])\s*,?\s+(?:or|and)\s+(?=\S)")

_BREAK = "\\\\"
_ANGLES = re.compile(r"\\([lr])angle(?![a-zA-Z])")
_ROWS = re.compile(r"\[((?:\[[^\[\]]+\])(?:,\[[^\[\]]+\])*)\]")
_PYTHON_SET = re.compile(r"\{((?=[^{}]*,)(?:[^{}()\[\]\\]|\\[a-zA-Z]+|\{[^{}]*\})+)\}")
_COLUMN = re.compile(r"\\begin\{[pbB]?matrix\}([^&,]+)\\end\{[pbB]?matrix\}")

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_TIMES_POWER = re.compile(
    rf"(?<![\w.}}])({_DECIMAL})(?:[eE]([-+]?\d+)(?![\w.])|\s*(?:[xX*]|\\times|\\cdot)\s*10(?:\^|\*\*)([-+]?\d+|\{{[-+]?\d+\}}))"
)
_NUMERAL = re.compile(r"(?=.{1,15}$)-?[0-9]+(?:\.[0-9]+)?")
_NUMBER = re.compile(
    rf"([-+]?)(?:({_DECIMAL})(?:\\times10\^\{{?([-+]?\d{{1,3}})\}}?)?"
    rf"|(\d+)?\s*\\frac\{{([-+]?{_DECIMAL})\}}\{{({_DECIMAL})\}}"
    rf"|(?:(\d+)\s+)?({_DECIMAL})\s*/\s*({_DECIMAL}))\s*(%?)"
)
_REPEATING = re.compile(r"([-+]?)(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{(\d+)\}|(\d))")
_BASED = re.compile(r"(\d+)_(?:\{?(\d+)\}?)")
#: A word, rather than a product of variables.
_LONG_WORD = re.compile(r"[A-Z][a-z]{2,}|[a-z]{5,}")
_WORDS_AND_NUMBERS = re.compile(r"(?=.*[a-zA-Z]{3})\w+(?:[ ',.:-]+\w+)*")
_PLAIN_WORDS = re.compile(r"[a-zA-Z]{2,}(?:[ '-][a-zA-Z]+)*")

_GOLD_CHOICE = re.compile(r"\(([a-zA-Z])\)|([A-J])")
_CHOICE = re.compile(r"\(?([a-zA-Z])(?:$|[).:]+\s*((?:[\w\\(].*)?)$)", re.DOTALL)
#: Text behind the letter of a choice that contradicts it: another letter, or words.
_OTHER_CHOICE = re.compile(r"[a-zA-Z]\s*[).:]|\b(?:or|and|not|nor|but|n?either|both|maybe|[A-J])\b", re.IGNORECASE)

#: Signs that an answer may have only if the gold answer does.
_SIGNS = re.compile(
    r"[=<>≤≥≠≈≡?;:|'’~&–—…]|\.\.|\\(?:n?leq?|n?geq?|lt|gt|neq?|not|notin|approx|sim|simeq|cong|equiv|propto|to|rightarrow"
    r"|implies|iff|cap|cup|setminus|neg|lnot|l?dots|cdots|overline|underline|bar|hat|dot|prime|mid|parallel|vmatrix|cancel"
    r"|q?quad|forall|exists|lor|land|vee|wedge|lfloor|rfloor|lceil|rceil)(?![a-zA-Z])|(?<!log)_"
)
#: Greek capitals, which math-verify takes for the small letters.
_CAPITALS = re.compile(r"\\(?:Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega)(?![a-zA-Z])")
_SET_OPERATOR = re.compile(r"\\(?:cup|cap|setminus)(?![a-zA-Z])|\(-\\infty,\\infty\)")
_SET = re.compile(r"[(\[]|\\\{|\\emptyset")
_FUNCTIONS = "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln exp sqrt pi max min gcd lcm"
_NAMES = re.compile(rf"\b(?:{_FUNCTIONS.replace(' ', '|')})\b")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w+\}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")


@dataclass(frozen=True)
class _Plain:
    """A plain number with its notation."""

    value: Fraction
    percent: bool = False
    exact: bool = True
    """True if it is a fraction, not a decimal."""
    digits: int = 0


def gold_answer(raw: Any) -> str:
    r"""Extract the gold answer from a cell.

    It is what is in ``<answer>`` tags (GEOQA), after ``####`` (GSM8K) or in the last ``\boxed{}`` (MATH), or all.
    """
    text = last_tagged(str(raw)) or str(raw)
    if "####" in text:
        return text.rpartition("####")[2].strip()
    boxed = last_boxed(text) if "box" in text else None
    return text.strip() if boxed is None else boxed


def compare(gold: str, answer: str) -> bool | None:
    """Return whether two answers are equal; None if this requires algebra.

    Units after a number, currency signs, thousands separators and variants of LaTeX are ignored, but two units must
    agree. A percentage equals its number with or without the sign, and its hundredth.

    Each kind of comparison decides what it recognises, so those that read a text most narrowly come first: literal
    equality (the only one for texts of any length), two numerals, units, then, in normal form, choices (``B`` is a
    letter, not a variable), numerals with a base (``10_2`` is not a product), numbers, words. At last, other words or
    relations than the gold answer's are wrong, before algebra could accept them.
    """
    if gold.strip() == answer.strip():
        return bool(gold.strip())
    if len(answer) > MAX_CHARACTERS or not answer.strip():
        return False
    if len(gold) > MAX_CHARACTERS:
        return None
    if _NUMERAL.fullmatch(gold) and _NUMERAL.fullmatch(answer):
        return Fraction(gold) == Fraction(answer)
    gold, answer = latex_signs(gold), latex_signs(answer)
    (ours, unit), (theirs, other) = normal(gold), normal(answer)
    if not theirs or (unit and other and unit != other) or ((unit or other) and "%" in ours + theirs):
        return False
    if "deg" in (unit, other) and unit != other and "\\pi" in ours:  # the gold answer is in radians
        return False
    ours, theirs = without_names(gold, answer)
    if ours == theirs:
        return True
    in_text = "\\text" in gold or "\\mbox" in gold
    if (choice := _GOLD_CHOICE.fullmatch(ours)) and (choice[2] or in_text):
        return _picks(choice[1] or choice[2], answer)
    if (based := _BASED.fullmatch(ours)) and (digits := _BASED.fullmatch(theirs)):
        return based.groups() == digits.groups()
    if based and theirs.isdecimal():
        return based[1] == theirs
    if "_" not in ours:
        theirs = re.sub(r"_(?:10|\{10\})$", "", theirs)
    wanted, got = _read_number(ours), _read_number(theirs)
    if wanted and got:
        return _equal(wanted, got)
    if in_text or _LONG_WORD.search(ours):
        if _PLAIN_WORDS.fullmatch(ours):
            return ours.lower().rstrip(".") == theirs.lower().rstrip(".")
        if _WORDS_AND_NUMBERS.fullmatch(ours) and ours.lower() == theirs.lower():
            return True
    return False if _says_other(ours, theirs, bool(wanted)) else None


def _picks(letter: str, answer: str) -> bool:
    """Return whether an answer is this letter of a choice, with no other one behind it."""
    picked = _CHOICE.fullmatch(_normalise_spelling(answer))
    if picked is None or picked[1].lower() != letter.lower():
        return False
    return not (picked[2] and _OTHER_CHOICE.search(picked[2]))


@functools.lru_cache(maxsize=4096)
def without_names(gold: str, answer: str) -> tuple[str, str]:
    """Convert both answers to normal form, without the variables before their values."""
    ours, theirs = normal(gold)[0], normal(answer)[0]
    if "\\ln" in ours and "\\log" not in ours and "\\" not in answer:  # log is Python's natural logarithm
        theirs = theirs.replace("\\log", "\\ln")
    return unassigned(ours, theirs) if "=" in ours + theirs else (ours, theirs)


def _says_other(gold: str, answer: str, number: bool) -> bool:
    """Return whether an answer has other words, relations, signs, brackets or parts than the gold answer."""
    if _SET_OPERATOR.search(gold + answer) and _SET.match(gold) and _SET.match(answer):
        return not _letters(answer) <= _letters(gold) | {"i", "e"}
    if not set(_SIGNS.findall(answer)) <= set(_SIGNS.findall(gold)):
        return True
    if set(_CAPITALS.findall(answer)) != set(_CAPITALS.findall(gold)):
        return True
    if "\\pm" in answer and "\\pm" not in gold and "," not in gold:
        return True
    if not _letters(answer) <= _letters(gold) | {"i", "e"}:
        return True
    brackets = {_outer_brackets(gold), _outer_brackets(answer)}
    if len(brackets) > 1 and not brackets <= {"", "{}"}:
        return not (brackets <= {"", "()"} and "," not in gold + answer)
    if (":" in gold) != (":" in answer) or ("\\pm" not in gold + answer and _count_parts(gold) != _count_parts(answer)):
        return True
    return number and "," in answer


def _count_parts(text: str) -> int:
    """Return the number of parts of a list, set, tuple or interval."""
    inner, depth, parts = text.replace("\\{", "(").replace("\\}", ")"), 0, 1
    if _outer_brackets(text):
        inner = inner[1:-1]
    for char in inner:
        depth += (char in "([{") - (char in ")]}")
        parts += char == "," and depth == 0
    return parts


def _letters(text: str) -> set[str]:
    """Return the letters of variables and words."""
    for known in (_ENVIRONMENT, _COMMAND, _NAMES):
        text = known.sub(" ", text)
    return set(re.findall(r"[^\W\d_]", text))


def _outer_brackets(text: str) -> str:
    """Return the brackets around a whole text; empty if the first one closes before the end."""
    bare = text.replace("\\{", "{").replace("\\}", "}")
    if not text or bare[0] not in "([{" or bare[-1] not in ")]}" or (bare[0] == "{" and text[0] != "\\"):
        return ""
    depth = 0
    for i, char in enumerate(bare):
        depth += (char in "([{") - (char in ")]}")
        if depth == 0 and i < len(bare) - 1:
            return ""
    return bare[0] + bare[-1]


@functools.lru_cache(maxsize=4096)
def normal(text: str) -> tuple[str, str | None]:
    """Normalise an answer; return it without its unit, and the unit.

    Cached, because the members of a group are compared with the same gold answer.
    """
    text, unit = split_unit(_strip_delimiters(latex_signs(text)))
    text = _normalise_spelling(text)
    if "percent" in text:
        text = re.sub(r"(?<=\d)\s+percent$", "%", text)
    text = latex_of_printed(text)
    if "=" in text and "=>" not in text:
        text = text.replace("<=", "\\leq ").replace(">=", "\\geq ")
    text = _TIMES_POWER.sub(lambda m: f"{m[1]}\\times10^{{{int((m[2] or m[3]).strip('{}'))}}}", text)
    text = re.sub(r"\s+", " ", text) if has_relation(text) else _CONNECTIVE.sub(",", text)
    if "\\" in text or "°" in text:
        text = _DEGREES.sub("", text).replace("\\%", "%")
        text = _SHORT_FRACTION.sub(lambda m: f"\\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", text)
        text = _SHORT_ROOT.sub(r"\\sqrt\1{\2}", text)
    text = _BASE_WORD.sub(lambda m: f"_{_BASE_WORDS.index(m[1]) + 2}", text)
    text = _LONE_BRACES.sub(r"\1\2", text).replace("{:}", ":")
    if "\\begin" in text:
        text = _MATRIX.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", text)
    text = _BRACKETED_DIGITS.sub(r"\1_", text)
    return solution_set(_as_point_or_set(_INNER_SPACE.sub("", text).strip())), unit


def _as_point_or_set(text: str) -> str:
    """Write vectors in angle brackets and columns as points, lists of rows as matrices, ``{1,2}`` as a set."""
    if "angle" in text:
        text = _ANGLES.sub(lambda found: "(" if found[1] == "l" else ")", text)
    if found := _ROWS.fullmatch(text):
        rows = [row.replace(",", "&") for row in found[1][1:-1].split("],[")]
        text = f"\\begin{{pmatrix}}{_BREAK.join(rows)}\\end{{pmatrix}}"
    elif found := _PYTHON_SET.fullmatch(text):
        text = f"\\{{{found[1]}\\}}"
    if (column := _COLUMN.fullmatch(text)) and _BREAK in column[1]:
        return f"({','.join(column[1].removesuffix(_BREAK).split(_BREAK))})"
    return text


def latex_signs(text: str) -> str:
    """Convert characters outside ASCII to LaTeX, such as ``x²`` to ``x^{2}``: ``ℝ``, ``１２``, ``√2``, ``½``, ``θ``.

    Commands for colours and fonts are removed.
    """
    text = _UNBRACED.sub(r"\\\1{\2}", text)
    while styled := _STYLE.search(text):
        text = _without_style(text[: styled.start()], text[styled.end() :])
    if text.isascii():
        return text
    text = "".join(char if char.isascii() else _latex_sign(char) for char in text)
    text = plain_characters(re.sub(r"\}\^\{|\}_\{", "", text)).translate(_SIGNS_OF_UNICODE)
    return re.sub(r"^–(?=[\d\\.])", "-", _ROOT_SIGN.sub(_root, text.strip()))


def _root(found: re.Match[str]) -> str:
    return f"{_ROOTS[found[1]]}{{{found[2] or found[3]}}}"


def _without_style(before: str, after: str) -> str:
    """Join the text around a style, without the braces of its group if they do not group anything else."""
    depth = 0
    for i, char in enumerate(after if after[:1] == "{" else ""):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            inner, rest = after[1:i], after[i + 1 :]
            groups = _GROUPS_BEFORE.search(before) or rest.lstrip()[:1] in ("^", "_")
            if not groups and not (_POWER_AT_END.search(inner) and rest[:1].isalnum()):
                after = _beside(inner, rest)
            break
    return _beside(before, after)


def _beside(left: str, right: str) -> str:
    """Join two texts, so that a command does not become longer."""
    return f"{left} {right}" if right[:1].isalpha() and re.search(r"\\[a-zA-Z]+$", left) else left + right


def _latex_sign(char: str) -> str:
    if char in _NUMBER_SETS:
        return f"\\mathbb{{{plain_characters(char)}}}"
    if char == "º":
        return "°"
    kind = unicodedata.decomposition(char).partition(" ")[0]
    if kind == "<square>":  # a unit, such as a square centimetre
        return re.sub(r"(?<=[a-z])[23]$", r"^\g<0>", plain_characters(char))
    form = _RAISED.get(kind)
    return form % plain_characters(char).replace("⁄", "}{") if form else char


def _strip_delimiters(text: str) -> str:
    """Remove surrounding dollar signs, and a full stop at the end."""
    text = text.strip()
    if len(text) > 1 and text[0] == "$" == text[-1]:
        text = text.strip("$").strip()
    if not text.endswith(".."):
        text = text.removesuffix(".")
    if text.startswith("\\boxed{") and text.endswith("}"):
        text = last_boxed(text) or text
    if wrapped := _WRAPPED.fullmatch(text):
        text = wrapped[1]
    for opens, closes in (("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(opens) and text.endswith(closes):
            text = text[2:-2]
    if text.startswith("**") and text.endswith("**"):
        text = text.strip("*")
    return re.sub(r"(?<!\\)\\\n|\\+$", "", text).strip()


def _normalise_spelling(text: str) -> str:
    """Normalise spaces, thousands separators in numbers, and text commands."""
    text = text.replace("\\$", "").replace("$", "")
    latex = "\\" in text
    if latex:
        text = _SAME_COMMAND.sub(lambda m: _SAME[m[0]], text)
    if latex or "{,}" in text or "~" in text:
        text = _WIDE_THOUSANDS.sub("", text)
    if "," in text and not re.search(r"[(\[]|\\\{", text):
        text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    if latex or "~" in text:
        text = _SPACING.sub(" ", text).strip()
    if " " in text and _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    return _TEXT.sub(r"\1", _TEXT.sub(r"\1", text)).strip() if latex else text.strip()


def _read_number(text: str) -> _Plain | None:
    text = text.lstrip("£€¥₹₽₩")
    if found := _REPEATING.fullmatch(text):
        return _repeating(*found.groups())
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, decimal, power, whole, over, under, beside, above, below, percent = match.groups()
    if decimal is not None:
        value = Fraction(f"{decimal}e{power}" if power else decimal)
    elif divisor := Fraction(under or below):
        value = Fraction(whole or beside or 0) + Fraction(over or above) / divisor
    else:
        return None
    digits = len((decimal or "").replace(".", "").lstrip("0"))
    return _Plain(-value if sign == "-" else value, bool(percent), decimal is None, digits)


def _repeating(sign: str, whole: str, fixed: str, period: str | None, digit: str | None) -> _Plain:
    period = str(period or digit)
    value = Fraction(int(whole + fixed or 0) + Fraction(int(period), 10 ** len(period) - 1), 10 ** len(fixed))
    return _Plain(-value if sign == "-" else value)


def _equal(gold: _Plain, answer: _Plain) -> bool:
    if gold.percent == answer.percent:
        return _close(gold, answer, gold.value, answer.value)
    whole, share = (gold.value, answer.value) if gold.percent else (answer.value, gold.value)
    if _close(gold, answer, whole / 100, share):
        return True
    return (gold.percent or abs(gold.value) >= 1) and _close(gold, answer, whole, share)


def _close(gold: _Plain, answer: _Plain, a: Fraction, b: Fraction) -> bool:
    if a == b:
        return True
    if gold.exact == answer.exact:
        return not gold.exact and (_rounded(gold, a) == b or _rounded(answer, b) == a)
    written = answer if gold.exact else gold
    return written.digits >= _DIGITS and abs(a - b) <= _TOLERANCE * abs(a)


def _rounded(number: _Plain, value: Fraction) -> Fraction:
    """Return the value without floating point noise: 0.3 for 0.30000000000000004."""
    noisy = number.digits > sys.float_info.dig and value.denominator > 1
    return Fraction(f"{float(value):.{sys.float_info.dig}g}") if noisy else value

"""A check that a user keeps to their facts: what they say is compared with what they can know."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rollenv.core.tools.calls import find_calls
from rollenv.envs.tools.base import Call
from rollenv.envs.tools.generated.goals import refuses

Kind = Literal["contradictions", "leaks", "premature_stop", "answers_for_agent"]
KINDS: tuple[Kind, ...] = ("contradictions", "leaks", "premature_stop", "answers_for_agent")


class Breach(NamedTuple):
    """A message of a user that spoils an episode."""

    kind: Kind
    quote: str


@dataclass(frozen=True)
class Scenario:
    """A user's part: everything that they know at the start."""

    goal: str
    facts: str = ""
    persona: str = ""
    unknown: str = ""
    """Facts that they do not know."""
    how: str = ""
    """Instructions on how to behave; telling them to the agent is a leak."""
    calls: Sequence[Call] = field(default=(), repr=False)
    """The reference actions, which the user does not know."""

    def text(self) -> str:
        """Return the part as shown to a player."""
        parts = ("Persona", self.persona), ("Goal", self.goal), ("You know", self.facts)
        rest = ("You do not know", self.unknown), ("Instructions", self.how)
        return "\n".join(f"{name}: {text}" for name, text in (*parts, *rest) if text)


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = re.compile(
    rf"\b({'|'.join(_MONTHS)})[a-z]*\.?\s+(?=\d)|(?<=\d)(?:st|nd|rd|th)?\s+({'|'.join(_MONTHS)})[a-z]*\b", re.I
)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_WORD = re.compile(r"#?\w+(?:[-_]\w+)*")
#: A number with a unit, which is not an id.
_UNIT = r"(?:st|nd|rd|th|am|pm|gb|mb|kb|kg|g|k|x|h|min|mbps|usd)"
_NUMBER = re.compile(
    rf"(?P<sign>\$)?(?<![\w#])(?P<whole>\d+(?:[.,/:-]\d+)*)(?P<unit>{_UNIT}\b|\s*(?:%|percent\b|dollars\b|gb\b))?(?!\w)",
    re.I,
)
_STREET = r"(?:street|st|avenue|ave|road|rd|lane|ln|drive|dr|boulevard|blvd|way|court|ct|place|highway)"
_ADDRESS = re.compile(rf"\b\d+ (?:[A-Z]\w+ ){{1,3}}(?i:{_STREET})\b|\b(?:[A-Z]\w+ ){{1,3}}(?i:{_STREET}) \d+\b")
_NAME = re.compile(r"\b(?i:my (?:full )?name is|i am|i'm|this is)\s+([A-Z][\w'-]+(?:\s+[A-Z][\w'-]+)+)")
_AMOUNT = re.compile(r"\s*(?:%|percent|dollars|usd|gb|mb)", re.I)
#: Characters before and after a number in which its sentence is looked for.
_NEAR = 300
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")
#: Where a clause ends, so that a claim and a question in one sentence are told apart.
_CLAUSE = re.compile(r"[,;:]\s+|\s[-–—]+\s|\b(?:and|but|so|because|since|as)\s+(?=(?:i|my|we|our)\b)", re.I)
_INDIRECT = re.compile(
    r"\b(?:wonder\w*|know|tell me|ask\w*|confirm|check|sure|see|clarify|explain)\b.*"
    r"\b(?:if|whether|how|what|when|which|why|who)\b",
    re.I,
)
_OWN = re.compile(r"\W*(?:(?:so|and|but|well|then|because|since)\W+)*(?:i|my|we|our)\b", re.I)
_MAY = re.compile(r"\W*(?:so\W+)?(?:i|we)\s+(?:\w+\s+)?(?:have|get|can|could|need)\b", re.I)
_LENGTH = r"(?:minute|hour|day|night|week|month|year)s?"
_SPAN = re.compile(rf"[\s-]*(?:\w+\s+)?{_LENGTH}\b(?!\s+ago)", re.I)
#: A number that is an id, by its form or by what is before it; questions with one tell it too.
_ID = re.compile(r"\d{5,}|\d{3}[-.]\d{4}$")
_NAMES = re.compile(
    r"\b(?:(?:my|our)|(?:my|our)\s+(?:[\w'-]+\s+){1,2}(?:on|from|of|at|dated)|end(?:ing|s)\s+(?:in|with)|"
    r"(?:order|reservation|booking|ticket|flight|card|account|zip(?: code)?|phone|id)(?:\s+(?:number|no\.?|is))?)\s+$",
    re.I,
)
#: Counts up to a dozen are everyday words, not facts.
_DOZEN = 12
_ROLE = re.compile(
    r"\b(simulat\w*|language model|as an ai|i am an ai|i'm an ai|role-?play\w*|my (task )?instructions|"
    r"the scenario|my persona|system prompt)\b",
    re.I,
)
_SPEAKER = re.compile(
    r"^\W*(agent|assistant|representative|customer service|support)\W{0,3}:|<\|?(im_start|tool_resp)", re.I | re.M
)
#: Number of consecutive words that make a quotation.
_QUOTATION = 10
_CLAIM = re.compile(
    r"\b(done|complete[d]?|processed|cancell?ed|refunded|changed|updated|booked|exchanged|returned|submitted|modified|"
    r"restored|solved|resolved|fixed|added|has been|have been|i've|i have)\b",
    re.I,
)
_CLOSING = ("anything else", "something else", "further assistance", "help you with")


class UserCheck:
    """The check of one user.

    Numbers, dates, ids, e-mails, street addresses and own names must be in what the user was told: their part, the
    agent's messages, the results of their own functions. Counts up to 12, numbers that a question asks about ("within
    30 days?"), and claims without such a detail ("I do have
    insurance"), are not checked; a sum that the user works out counts as unknown.

    Args:
        functions: the agent's functions, as schemas.
        own: names of the user's functions.
    """

    def __init__(self, scenario: Scenario, functions: Sequence[Mapping[str, Any]], own: Collection[str] = ()):
        self.scenario, self.functions = scenario, functions
        names = {schema["function"]["name"] for schema in functions}
        self.agents = names - set(own)
        self.reference = {str(value).lower().lstrip("#") for _, args in scenario.calls for value in _values(args)}

    def breaches(self, message: str, heard: str) -> list[Breach]:
        """Return what a message does that the user may not.

        Args:
            heard: what the user has been told so far.
        """
        found = []
        part = self.scenario
        known = "\n".join((part.persona, part.goal, part.facts, part.unknown, part.how, heard))
        for claim in unknown_details(message, known):
            kind: Kind = "leaks" if claim.lower().lstrip("#$") in self.reference else "contradictions"
            found.append(Breach(kind, claim))
        named = [name for name in self.agents if "_" in name and re.search(rf"\b{name}\b", message)]
        calls = [call.name for call in find_calls(message, schemas=self.functions)[0] if call.name in self.agents]
        speaker = _SPEAKER.search(message)
        if calls or speaker:
            found.append(Breach("answers_for_agent", calls[0] if calls else str(speaker and speaker[0])))
        elif named:
            found.append(Breach("leaks", named[0]))
        if role := _ROLE.search(message):
            found.append(Breach("leaks", role[0]))
        if quoted := quotation(message, part.how, f"{part.goal} {part.facts}"):
            found.append(Breach("leaks", quoted))
        return found


def stopped_early(message: str, wrote: bool) -> bool:
    """Return whether a user who leaves now, with the goal not reached, leaves an agent who has not finished.

    An agent who refuses, who says that it is done, or who asks whether there is anything else has finished, be it
    right or wrong.

    Args:
        message: the agent's last one, empty if there was none.
        wrote: the agent has changed something.
    """
    lower = message.lower()
    if refuses(message) or any(phrase in lower for phrase in _CLOSING):
        return False
    return "?" in message or not (wrote or _CLAIM.search(message))


def unknown_details(message: str, known: str) -> Iterator[str]:
    """Yield the details of a message that are not in the known text."""
    message, known = _numeric(message), _numeric(known)
    lower = known.lower()
    words = {word.lower().lstrip("#") for word in _WORD.findall(known)}
    runs = {int(run[:30]) for run in re.findall(r"\d+", known)}
    values = {_value(match["whole"]) for match in _NUMBER.finditer(known)}
    # E-mails come first and are cut out: their parts look like names and numbers.
    for email in _EMAIL.findall(message):
        if email.lower().rstrip(".") not in lower:
            yield email
    rest = _EMAIL.sub(" ", message)
    for name in _NAME.findall(rest):  # every word of a person's name has to be known
        if not all(word.lower() in words for word in _WORD.findall(name)):
            yield name
    for address in _ADDRESS.findall(rest):  # whole addresses, which are cut out for their house numbers
        if address.lower().strip() not in lower:
            yield address
    rest = _ADDRESS.sub(" ", rest)
    for word in _WORD.findall(rest):  # codes of letters and digits, such as order numbers, but no measures
        plain = word.lower().lstrip("#")
        both = re.search(r"\d", plain) and re.search(r"[a-z]", plain)
        if both and plain not in words and not re.fullmatch(rf"[\d.-]+(?:{_UNIT}|{_LENGTH})|[345]g", plain):
            yield word
    for match in _NUMBER.finditer(rest):
        parts = [int(run[:30]) for run in re.findall(r"\d+", match["whole"])]
        everyday = (
            len(parts) == 1 and parts[0] <= _DOZEN and not match["sign"] and not _AMOUNT.match(match["unit"] or "")
        )
        if (
            not everyday
            and not _is_asked(rest, match)
            and not all(part in runs for part in parts)
            and _value(match["whole"]) not in values
        ):
            yield match[0].strip()


def _is_asked(text: str, number: re.Match[str]) -> bool:
    """Return whether a number is what a question asks about, not an id or a claim about oneself that is in it."""
    at, end = number.span()
    before = _SENTENCE.split(text[max(at - _NEAR, 0) : at])[-1]
    after = _SENTENCE.split(text[end : end + _NEAR])[0].rstrip(" \"')")
    clause = _CLAUSE.split(before)[-1]
    span = bool(_SPAN.match(after))
    if (_ID.search(number["whole"]) and not number["sign"]) or (_NAMES.search(clause) and not span):
        return False
    if _INDIRECT.search(clause):
        return True
    return after.endswith("?") and (not _OWN.match(clause) or (span and bool(_MAY.match(clause))))


def _numeric(text: str) -> str:
    """Write months as numbers, joined with the day."""

    def number(match: re.Match[str]) -> str:
        month = _MONTHS.index((match[1] or match[2]).lower()) + 1
        return f"{month}-" if match[1] else f"-{month}"

    return _MONTH.sub(number, text)


def _value(number: str) -> float | str:
    plain = number.replace(",", "")
    return float(plain) if re.fullmatch(r"\d+(\.\d+)?", plain) else number


def _values(data: Any) -> Iterator[Any]:
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, list | tuple):
        for each in data:
            yield from _values(each)
    else:
        yield data


def quotation(message: str, text: str, known: str = "") -> str:
    """Return ten words that a message has from a text in a row, and not from the known one; empty if there are none."""
    said, given, other = map(_runs, (message, text, known))
    return next((" ".join(run) for run in said if run in given and run not in other), "")


def _runs(text: str) -> dict[tuple[str, ...], None]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + _QUOTATION]): None for i in range(len(words) - _QUOTATION + 1)}

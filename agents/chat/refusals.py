"""Parses refusals of chat endpoints: a full context, and the wait that a rate limit requests.

Servers word both differently, and change the wording between versions. So the rules look for what every wording has:
for a full context, that the prompt is longer than something; for a wait, a time after a word for waiting.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

#: Words for limits of time and money, which do not concern the context.
_OF_TIME = re.compile(
    r"\brates?\b|quota|\bper[ -](min|sec|hour|day)|\b(dai|week|month)ly\b|\b[rt]p[mdh]\b|throttl|concurren|\bqueue"
    r"|please wait|again (in|later)|retry after|credit|balance|billing|afford|time[d -]?out|deadline"
    r"|\btook\b|\btaking\b|频率|余额|限流"
)
_SETTING = r"\bmax(imum)?[ _]?((completion|output|new)[ _]?)?tokens?\b"
#: Settings for the length of answers.
_ANSWERS = re.compile(
    rf"{_SETTING}|\b(min|budget|stop)[ _]tokens?\b|\b(completion|output|new|generated|reasoning|thinking)[ -]tokens?\b"
)
#: A field of the request other than text, such as ``messages[3].tool_calls[0].id``.
_FIELD = re.compile(r"\b\w+(?:\[\d+\]|\.\w+)*\.(?!content|text)\w+(?:\[\d+\])*")
#: Other things that may be too long, too large or too many.
_OTHER = re.compile(
    r"\b(tools?|functions?|schemas?|images?|audios?|videos?|files?|pdfs?|pages|pixels|logprobs|stop|names?|ids?"
    r"|temperature|penalty|keys?|identifiers?|safety|flagged)\b"
)
_WINDOW = re.compile(
    r"\bcontext[ -]?(length|window|size|limit|overflow)|\bmax\w* context\b|\bn ?ctx|\bmodel len|\bs(eq|ession) len"
)
_PROMPT = (
    r"\b(prompts?|inputs?|messages?|conversations?|sequences?|context|contents?|text|tokens?"
    r"|request (body|size|payload))\b"
)
_TOO_LONG = (
    r"(\btoo (long|large|big|many)\b|\bexceed|(?<!must be )(?<!should be )\b(long|larg|great|bigg)er than\b|\boverflow"
    r"|\b(over the|beyond|not fit|full)\b|超|过长|太长|过大)"
)
_LIMITED = re.compile(
    rf"{_TOO_LONG}|\b((less|fewer|smaller|more) than|at most|up to|max(imum)?|limit(s|ed)?|reduce|short(er|en)|enough"
    r"|range)\b|<=?|≤|>"
)
_PROMPT_TOO_LONG = re.compile(
    rf"{_PROMPT}\W+(\w+\W+){{0,6}}?{_TOO_LONG}|\brequest (is )?too (long|large|big)|\bmax(imum)? (input|prompt)\b"
    r"|\btoo many .{0,20}\b(token|byte|char)|最大上下文"
    r"|(输入|上下文|提示|消息|内容|长度|请求).{0,12}(超|过长|太长|过大)"
)


def words(data: Any) -> str:
    """Join the texts and numbers in an error's data, without field names and without a copy of the request."""
    if isinstance(data, dict):
        return " ".join(words(value) for key, value in data.items() if key != "input")
    if isinstance(data, list):
        return " ".join(map(words, data))
    return data if isinstance(data, str) else json.dumps(data)


def context_full(text: str, longest_answer: int | None = None) -> bool:
    """Return whether a refusal means that the prompt is too long for the model.

    Args:
        longest_answer: the request's limit of answer tokens. If this alone is too large, the context is not full.
    """
    text = re.sub(r"[`'\"]", "", text.lower())
    if _OF_TIME.search(text.replace("_", " ")):
        return False
    numbers = {float(n.replace(",", "")) for n in re.findall(r"(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?", text)}
    of_answer = re.search(_SETTING, text)
    if of_answer and re.search(r"(?<![\w\])-])-\d|\bgot:? 0\b", text):  # the server's count of remaining tokens
        return longest_answer is None or longest_answer > 0
    if longest_answer and numbers and (of_answer or longest_answer in numbers):
        sums = {longest_answer + n for n in numbers - {longest_answer}}
        if all(n <= longest_answer or n in sums for n in numbers):
            return False
    text = _ANSWERS.sub(" ", _FIELD.sub(" ", text).replace("_", " "))
    limited = _LIMITED.search(text)
    if _WINDOW.search(text) and (limited or len(numbers) > 1):
        return True
    if "token" not in text and _OTHER.search(text):
        return False
    amount = re.search(r"\b(tokens?|lengths?)\b", text)
    return bool(limited and amount and re.search(_PROMPT, text)) or bool(_PROMPT_TOO_LONG.search(text))


#: Settings that are left out once an endpoint does not know them: answers are of the same kind without them.
SPARED = (
    *("seed", "top_k", "user", "metadata", "store", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
    *("service_tier", "stream_options"),
)
_UNKNOWN = re.compile(
    r"extra[_ ](inputs?|fields?|forbidden|param)|not (permitted|allowed|supported|compatible|recogni[sz]ed|known)"
    r"|un(supported|known|recogni[sz]ed|expected)|cannot (be used|find)|do(es)?( not|n.?t) (support|exist|accept)"
    r"|no longer|deprecated|invalid (field|param|argument)|additional properties",
)


def unknown_setting(text: str, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the setting that a refusal does not know, with its name at the endpoint, or "" to leave it out.

    Args:
        text: texts of the refusal.
        body: the refused request.
    """
    text = text.lower()
    if "max_tokens" in body and "max_completion_tokens" in text and re.search(r"\bmax_tokens\b", text):
        return "max_tokens", "max_completion_tokens"
    if not _UNKNOWN.search(text):
        return None
    limits = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
    named = [key for key in (*limits, *SPARED) if key in body and re.search(rf"\b{key}\b", text)]
    return (named[0], limits.get(named[0], "")) if named else None


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT = r"(ms|milli\w*|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
_PART = rf"(\d+(?:\.\d+)?)\s*{_UNIT}"
_DURATION = re.compile(rf"(?:{_PART}\s*)+")
_WAIT = re.compile(rf"(?:retry|again|wait|reset)[a-z\s\"'_:,-]{{0,30}}?((?:{_PART}\s*)+)")
_AFTER = re.compile(r"retry[_ -]?after([_ -]?ms)?\W{1,4}(\d+(?:\.\d+)?)(?![\w.])")


def requested_wait(headers: Mapping[str, str], content: str) -> float | None:
    """Return the seconds that a refusal requests to wait; None if it does not.

    Args:
        content: text of the answer, used if no header has a wait.
    """
    if (seconds := _seconds(headers.get("retry-after-ms", ""), 0.001)) is not None:
        return seconds
    if (seconds := _seconds(headers.get("retry-after", ""))) is not None:
        return seconds
    content = content[:10_000].lower()
    if match := _WAIT.search(content):
        return _seconds(match[1])
    if match := _AFTER.search(content):
        return _seconds(match[2], 0.001 if match[1] else 1.0)
    resets: dict[bool, list[float]] = {True: [], False: []}
    for name in headers:
        if "reset" in name and re.search("rate-?limit", name) and (seconds := _seconds(headers[name])) is not None:
            resets[headers.get(name.replace("reset", "remaining"), "").strip() == "0"].append(seconds)
    return max(resets[True], default=None) or min(resets[False], default=None)


def _unit(name: str) -> float:
    """Return the seconds of a unit, by any of its names."""
    if name.startswith(("ms", "mi")) and not name.startswith("min"):
        return 0.001
    return _UNITS[name[0]]


def _seconds(value: str, unit: float = 1.0) -> float | None:
    """Parse seconds from now: a number of units, a duration such as ``6m0s``, a date, or seconds since 1970."""
    value = value.strip().lower()
    with contextlib.suppress(ValueError):
        number = float(value)
        if not math.isfinite(number):
            return None
        if number > 1e11:  # milliseconds since 1970
            number /= 1000
        if number > 1e9:
            return max(0.0, number - time.time())
        return max(0.0, number * unit)
    if _DURATION.fullmatch(value):
        parts = re.findall(_PART, value)
        return sum(float(n) * _unit(u) for n, u in parts)
    with contextlib.suppress(ValueError, TypeError, IndexError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    with contextlib.suppress(ValueError, OverflowError):
        return max(0.0, datetime.fromisoformat(value.upper()).timestamp() - time.time())
    return None

"""Units and other words after a number: optional ones, and ones that change its meaning."""

from __future__ import annotations

import re

_NUMBER_BEFORE = r"(?:(?<=[\d}.)])|(?<=\\pi))"
_POWER = r"(?P<power>\^\{?[23]\}?)?"
_IN_TEXT = re.compile(
    rf"{_NUMBER_BEFORE}(?:\s|\\[,;:! ]|~)*\\(?:text|mbox|textrm|mathrm)\{{(?P<words>[^{{}}]*)\}}\s*{_POWER}$"
)
_PLAIN = re.compile(rf"{_NUMBER_BEFORE}(?P<space>\s*)(?P<words>[a-zA-Z][a-zA-Z./ ]*){_POWER}$")
_SPACE = r"(?:\s|\\[,;:! ]|~)*"
_DEGREES = re.compile(rf"(?:\^\{{?\\circ\}}?|\\degree|°)(?:{_SPACE}(?:\\(?:text|mathrm)\{{)?\s*(?P<scale>[CF])\}}?)?$")
_SCALES = {"C": "degcelsius", "F": "degfahrenheit"}
_CURRENCY = re.compile(r"^([-+]?)\s*(\\?\$|[£€¥₹₽₩])(?=\s*[\d.\\])")
_CURRENCIES = {"$": "dollar", "\\$": "dollar", "£": "pound", "€": "euro", "¥": "yen", "₹": "rupee", "₽": "rouble"}
_CURRENCIES |= {"₩": "won"}
_SIGNS_TEXT = """
£=pound €=euro ¥=yen ₹=rupee ₽=rouble ₩=won 元=yuan 块=yuan 人民币=yuan 美元=dollar 欧元=euro 英镑=pound 日元=yen 円=yen
米=m 厘米=cm 毫米=mm 千米=km 公里=km 平方米=m^2 平方厘米=cm^2 平方千米=km^2 立方米=m^3 立方厘米=cm^3 千克=kg 公斤=kg
克=g 升=l 毫升=ml 小时=h 時間=h 分钟=min 秒=s 天=day 年=year 岁=year 歳=year 度=deg 摄氏度=degcelsius 人=人 个=个 個=个
名=人 只=只 本=本 张=张 枚=枚 条=条 件=件 辆=辆 棵=棵 次=次 回=次 页=页 题=题
"""
#: Units in other characters than ASCII.
_SIGNS = dict(pair.split("=") for pair in _SIGNS_TEXT.split())
_SIGN = re.compile(
    rf"{_NUMBER_BEFORE}{_SPACE}(?:\\(?:text|mbox|textrm|mathrm)\{{\s*)?(?P<sign>{'|'.join(_SIGNS)})\s*\}}?$"
)

#: Words that change the meaning of a number, or are not part of a unit.
_NOT_UNITS_TEXT = """
a about above add additional against all almost alpha also although always an and answer answers approximately are
around as at away base be below beta between billion billions binary bn both but by centi chance choose correct cos
cosine cot crore crores csc cube cubed cubes deca deci decimal decimals delta difference digit digits divided dne
double dozen dozens eight eighteen eighteenths eighth eighths eights eighty either eleven else equal equals even
every except exp extra factor factorial factors false fewer fifteen fifth fifths fifty first five fives folds
followed for former forty four fours fourteen fourth fourths from further gamma giga googol googols greater gross
half halves hecto hence hex hexadecimal hundred hundreds hundredth hundredths if imaginary incorrect inf infinite
infinity infty integer into inverse is it kappa kilo lakh lakhs lambda latter least less ln log max maximum maybe
mean mega micro mil milli million millions millionth millionths minimum minus mod modulo more most mu multiples
multiplied myriad myriads nan nano nearly negative neither nine nines nineteen ninety ninth ninths no none nope nor
not nothing nu octal odd omega one ones only open opposite or other out over pair pairs percent perhaps phi pi pico
places plus point positive possibly power powers product psi quarter quarters radical raised rational real
reciprocal recurring remainder repeating respectively right root roots roughly score scores sec seven sevens
seventeen seventh sevenths seventy short sigma sin sine six sixes sixteen sixth sixths sixty so solution solutions
some sqrt square squared squares subtract sum take tan tangent tau ten tens tenth tenths tera than that the then
therefore theta third thirds thirteen thirty this thousand thousands thousandth thousandths three threes thus times
to total trillion trillions triple true twelve twenty twice two twos undefined unknown unless until value values
versus vs was when where whereas which while with without wrong xi yes zero zeroes zeros zeta
"""
_NOT_UNITS = frozenset(_NOT_UNITS_TEXT.split())
_SHORT_TEXT = """
ant bag bee box boy bus car cat cm cow cup day deg dl dog egg eur ft hen hr hrs in kg km kph lb lbs men mg mi min
mins ml mm mph ms oz pen pie pig rad secs toy usd gbp chf yd
"""
_SHORT = frozenset(_SHORT_TEXT.split())
_SINGLE = frozenset("mghslLNJWVACF")
_SAME_TEXT = """
centimeter=cm centimetre=cm millimeter=mm millimetre=mm kilometer=km kilometre=km meter=m metre=m inch=in inche=in
foot=ft feet=ft yard=yd mile=mi pound=lb ounce=oz kilogram=kg gram=g milligram=mg milliliter=ml liter=l litre=l
hour=h hr=h minute=min second=s sec=s degree=deg radian=rad usd=dollar eur=euro mph=mi/h kph=km/h buck=dollar
celsiu=celsius
"""
_SAME = dict(pair.split("=") for pair in _SAME_TEXT.split())

_IRREGULAR = (
    "people children women teeth geese mice fish sheep deer cattle yuan won rupee baht degree celsius fahrenheit"
)
_KNOWN = frozenset(_SAME) | frozenset(_SAME.values()) | frozenset(_IRREGULAR.split())


def split_unit(text: str) -> tuple[str, str | None]:
    """Split a text from the unit after its number (or currency before it); the unit is normalised, None if absent."""
    if found := _CURRENCY.search(text):
        return found[1] + text[found.end() :], _CURRENCIES[found[2]]
    if found := _DEGREES.search(text):
        return text[: found.start()].rstrip(), _SCALES.get(found["scale"], "deg")
    if not text.isascii() and (found := _SIGN.search(text)):
        return text[: found.start()].rstrip(), _SIGNS[found["sign"]]
    for pattern in (_IN_TEXT, _PLAIN):
        if found := pattern.search(text):
            unit = _unit(found["words"], pattern is _IN_TEXT)
            if unit is not None and (pattern is _IN_TEXT or found["space"] or _is_known(found["words"])):
                power = (found["power"] or "").strip("^{}")
                return text[: found.start()].rstrip(), f"{unit}^{power}" if power else unit
    return text, None


def _unit(words: str, in_text: bool) -> str | None:
    """Normalise a unit, which is a plural or a known unit; None for other words."""
    if not re.fullmatch(r"[a-zA-Z./ ]*", words) or re.search(r"per\s*cent", words, re.IGNORECASE):
        return None
    words, power = _powers(words.removesuffix(" old"))
    found = [word for word in re.split(r"[ .]+|(/)", re.sub(r"\bper\b", "/", words)) if word]
    if len(found) > 5 or not found:
        return "" if not words.strip(" .") else None
    head = next((i for i, word in enumerate(found) if word in ("/", "of")), len(found))
    if not head or not _is_counted(found[head - 1]):
        return None
    if not all(word in ("/", "of") or _is_unit(word, in_text or "/" in found) for word in found):
        return None
    return "".join(_one_spelling(word) for word in found) + power


def _is_counted(word: str) -> bool:
    lower = word.lower()
    return len(word) <= 3 or lower in _KNOWN or (lower.endswith("s") and not lower.endswith(("ss", "illions")))


def _is_known(words: str) -> bool:
    """Return whether words right after a number are a unit and no product of variables: ``5cm``, ``90km/h``."""
    first = words.partition("/")[0].lower()
    return len(first) > 1 and (first in _SHORT or _one_spelling(first) in _KNOWN)


def _powers(words: str) -> tuple[str, str]:
    for word, power in (("square", "^2"), ("sq", "^2"), ("cubic", "^3")):
        if (found := re.match(rf"\s*{word}\.?\s+(?=[a-zA-Z])", words)) is not None:
            return words[found.end() :], power
    return words, ""


def _is_unit(word: str, single: bool) -> bool:
    if len(word) == 1:
        return single and word in _SINGLE
    if len(word) <= 3:
        return word.lower() in _SHORT
    return word.lower() not in _NOT_UNITS


def _one_spelling(word: str) -> str:
    lower = word if len(word) == 1 else word.lower()
    short = lower.removesuffix("s") if len(lower) > 2 and not lower.endswith("ss") else lower
    return _SAME.get(lower, _SAME.get(short, short))

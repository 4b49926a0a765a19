"""How numbers, money, times, dates, units, phone numbers and abbreviations are read in English.

A table of patterns, tried in order; what an earlier rule has taken, a later one leaves alone. Ambiguous or
unknown forms stay as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from voice.spoken import english_dates as dates
from voice.spoken.english_units import CODES, CURRENCIES, MONTHS, TITLES, UNITS, Currency
from voice.spoken.numerals import cardinal, digits, number, ordinal, year

_N = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"  # 1,234.5 or 1234.5
_FREE = r"(?<![\w.,:/$€£¥#-])"  # nothing of a longer number or name before
_MINUS = r"(?:(?<![\w)\]])[-−])?"
_END = r"(?![\w%]|[.,:/]\d)"
_SCALE = {"k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion", "t": "trillion"}
_MONTH = "|".join(
    sorted(
        (f"{m}\\.?" if len(m) < 5 and m not in ("May", "June", "July") else m for m in MONTHS),
        key=len,
        reverse=True,
    )
)
_UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
_TITLE = "|".join(sorted(map(re.escape, TITLES), key=len, reverse=True))
_SIGN = "[" + "".join(CURRENCIES) + "]"
_YEAR_BEFORE = (
    r"(?:[Ii]n|[Ss]ince|[Yy]ear|[Dd]uring|[Uu]ntil|[Cc]irca|[Ss]pring|[Ss]ummer|[Aa]utumn|[Ff]all|[Ww]inter|"
    r"[Ee]arly|[Ll]ate|[Mm]id|[Bb]ack in|©)"
)
_FRACTIONS = {
    2: "half",
    3: "third",
    4: "quarter",
    5: "fifth",
    6: "sixth",
    8: "eighth",
    10: "tenth",
    16: "sixteenth",
}
_VULGAR = {
    "½": (1, 2),
    "¼": (1, 4),
    "¾": (3, 4),
    "⅓": (1, 3),
    "⅔": (2, 3),
    "⅛": (1, 8),
    "⅜": (3, 8),
    "⅝": (5, 8),
    "⅞": (7, 8),
}

Reading = Callable[[re.Match[str]], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """Text that matches is read as ``reading`` says; ``None`` leaves it to later rules."""

    pattern: re.Pattern[str]
    reading: Reading


def _rule(pattern: str, reading: Reading) -> Rule:
    return Rule(re.compile(pattern), reading)


# ---------------------------------------------------------------- quantities


def _money(m: re.Match[str]) -> str | None:
    currency = CURRENCIES[m["sign"]]
    sign = "minus " if m["minus"] else ""
    scale = m["scale"]
    if scale:
        name = scale.strip().lower()
        return f"{sign}{number(m['n'])} {_SCALE.get(name, name)} {currency.many}"
    return sign + _amount(m["n"], currency)


def _amount(text: str, currency: Currency) -> str:
    whole, _, fraction = text.replace(",", "").partition(".")
    if fraction and (len(fraction) != 2 or not currency.cents):
        return f"{number(text)} {currency.many}"
    cents = int(fraction or 0)
    major = f"{number(whole)} {currency.one if int(whole) == 1 else currency.many}"
    if not cents:
        return major
    minor = f"{cardinal(cents)} {currency.cent if cents == 1 else currency.cents}"
    return minor if int(whole) == 0 else f"{major} and {minor}"


def _money_range(m: re.Match[str]) -> str:
    return f"{number(m['a'])} to {_amount(m['b'], CURRENCIES[m['sign']])}"


def _money_code(m: re.Match[str]) -> str:
    return ("minus " if m[1] else "") + _amount(m[2], CODES[m[3]])


def _unit(m: re.Match[str]) -> str:
    one, many = UNITS[m["unit"]]
    n = m["n"]
    words = number(m["minus"] + n)
    if m["to"]:
        words += f" to {number(m['to'])}"
    return f"{words} {one if n == '1' and not m['to'] and not m['minus'] else many}"


def _degrees(m: re.Match[str]) -> str:
    scale = {"C": " Celsius", "F": " Fahrenheit"}.get(m[2] or "", "")
    return f"{number(m[1])} degree{'' if m[1] == '1' else 's'}{scale}"


def _percent(m: re.Match[str]) -> str:
    words = number(m[1])
    return f"{words} to {number(m[2])} percent" if m[2] else f"{words} percent"


def _fraction(top: int, bottom: int) -> str | None:
    name = _FRACTIONS.get(bottom)
    if name is None or not 0 < top < bottom:
        return None
    plural = "halves" if bottom == 2 else name + "s"
    return f"{cardinal(top)} {name if top == 1 else plural}"


def _slash(m: re.Match[str]) -> str | None:
    fraction = _fraction(int(m["top"]), int(m["bottom"]))
    if m["whole"]:
        return f"{cardinal(int(m['whole']))} and {fraction}" if fraction else None
    if (m["top"], m["bottom"]) in (("24", "7"), ("50", "50")):
        return f"{cardinal(int(m['top']))} {cardinal(int(m['bottom']))}"
    return fraction


def _vulgar(m: re.Match[str]) -> str:
    fraction = _fraction(*_VULGAR[m[2]]) or m[2]
    return f"{cardinal(int(m[1]))} and {fraction}" if m[1] else fraction


def _range(m: re.Match[str]) -> str | None:
    first, second = m[1], m[2]
    if any(len(n) > 1 and n[0] == "0" for n in (first, second)):
        return None
    if all(1100 <= int(n) <= 2099 for n in (first, second)) and int(first) < int(second):
        return f"{year(int(first))} to {year(int(second))}"
    return f"{number(first)} to {number(second)}"


def _phone(m: re.Match[str]) -> str:
    groups = re.findall(r"\d+", m.group())
    return ("plus " if m.group().lstrip("(").startswith("+") else "") + ", ".join(map(digits, groups))


def _version(m: re.Match[str]) -> str:
    named = m.string[: m.start()].lower().endswith("version ")
    return ("version " if m[1] and not named else "") + " point ".join(
        number(part) for part in m[2].split(".")
    )


def _big(m: re.Match[str]) -> str | None:
    return number(m.group())


# ---------------------------------------------------------------- words


def _title(m: re.Match[str]) -> str:
    words = TITLES[m[1].lower()]
    if m[1][0].isupper() and m[1].lower() in ("e.g", "i.e", "etc", "vs", "approx"):
        words = words.capitalize()
    return words + dates.stop_at_end(m)


def _saint_or_street(m: re.Match[str]) -> str:
    """After a capitalised word it is a street ("Main St. The"), else a saint ("to St. Louis")."""
    before = m.string[: m.start()].split()[-1]
    return "Street" if before[0].isupper() and len(before) > 3 else "Saint"


def _dots(m: re.Match[str]) -> str:
    return m.group().replace(".", " dot ").replace("@", " at ")


RULES: tuple[Rule, ...] = (
    _rule(r"(?<![\w-])(\d{4})-(\d{2})-(\d{2})(?![\w-])", lambda m: dates.date(m[1], int(m[2]), int(m[3]))),
    _rule(r"(?<![\w/])(\d{1,2})/(\d{1,2})/(\d{4})(?![\w/])", dates.slash_date),
    _rule(
        rf"\b({_MONTH}) (\d{{1,2}})(?:st|nd|rd|th)?(?![\w:%/]|[.,]\d)(?:,? (\d{{4}})\b(?![.,:]\d))?",
        dates.month_first,
    ),
    _rule(
        rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})(?![\w])(?:,? (\d{{4}})\b(?![.,:]\d))?",
        dates.day_first,
    ),
    _rule(
        rf"\b({_MONTH}),? (\d{{4}})\b(?![.,:]\d)",
        lambda m: f"{dates.month_name(MONTHS[m[1].rstrip('.')])} {year(int(m[2]))}",
    ),
    _rule(r"[\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+", _dots),
    _rule(r"(?<![\w-])\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{2,4}(?:[ .-]?\d{2,4}){1,4}(?![\w-])", _phone),
    _rule(r"(?<![\w+-])(?:1[ .-])?\(?\d{3}\)?[ .-]\d{3}[.-]\d{4}(?![\w-])", _phone),
    _rule(r"(?<![\w+-])\d{3}-\d{4}(?![\w-])", _phone),
    _rule(rf"(?P<sign>{_SIGN})\s?(?P<a>{_N})\s?[-–—]\s?{_SIGN}?(?P<b>{_N})(?![\w-]|[.,]\d)", _money_range),
    _rule(
        rf"(?P<minus>(?<![\w)])[-−])?(?P<sign>{_SIGN})\s?(?P<n>{_N})"
        r"(?P<scale>\s?(?:thousand|million|billion|trillion)\b|(?:[kKmMbBT]|bn|mn)\b)?(?![\w]|[.,]\d)",
        _money,
    ),
    _rule(rf"{_FREE}([-−]?)({_N})\s?({'|'.join(map(re.escape, CODES))})(?!\w)", _money_code),
    _rule(
        r"(?<![\w.:])(\d{1,2}):(\d{2})(?::(?P<second>\d{2}))?(?:\s?(?P<half>[AaPp])\.?[Mm]\b\.?)?(?![:\w]|[.,]\d)",
        dates.clock,
    ),
    _rule(r"(?<![\w.:,])(\d{1,2})()(?P<second>)\s?(?P<half>[AaPp])\.?[Mm]\b\.?", dates.clock),
    _rule(rf"(?<![\w.,])({_MINUS}(?:{_N}))(?:\s?[-–]\s?({_N}))?\s?%(?!\w)", _percent),
    _rule(rf"(?<![\w.,])({_MINUS}(?:{_N}))\s?°\s?([CF])?(?!\w)", _degrees),
    _rule(
        rf"(?<![\w.,:/$€£¥#])(?P<minus>{_MINUS})(?<![\w]-)(?P<n>{_N})(?:\s?[-–]\s?(?P<to>{_N}))?[\s-]?(?P<unit>{_UNIT})(?![\w²³]|[-'’/]\w)",
        _unit,
    ),
    _rule(r"(?<![\w.,])(\d{1,3}(?:,\d{3})*)(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1].replace(",", "")))),
    _rule(r"(?<!\w)['’]?(1[1-9]|20)?(\d)0['’]?s\b", dates.decade),
    _rule(r"(?<![\w./-])(?:(?P<whole>\d{1,3}) )?(?P<top>\d{1,2})/(?P<bottom>\d{1,2})(?![\w/-]|\.\d)", _slash),
    _rule(r"(?<![\w.,])(\d{1,3})? ?([½¼¾⅓⅔⅛⅜⅝⅞])", _vulgar),
    _rule(r"(?<![\w.])([vV]?)(\d{1,6}(?:\.\d{1,6}){2,})(?![\w]|\.\d)", _version),
    _rule(r"(?<![\w.])([vV])(\d{1,3}(?:\.\d{1,3})?)(?![\w]|\.\d)", _version),
    _rule(r"(?<!\w)(?:#|[Nn]os?\. ?)(\d{1,9})(?![\w.,]\d|\w)", lambda m: f"number {number(m[1])}"),
    _rule(r"(?<![\w.,:/-])(\d{1,4})\s?[-–]\s?(\d{1,4})(?![\w/-]|[.,:]\d)", _range),
    _rule(rf"{_FREE}(?<![)\]])[-−](?:{_N}){_END}", _big),
    _rule(rf"{_FREE}(?:\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d{{1,15}}\.\d{{1,15}}){_END}", _big),
    _rule(
        rf"\b{_YEAR_BEFORE}[ -]((?:1[1-9]|20)\d\d){_END}(?!-)",
        lambda m: m.group()[: -len(m[1])] + year(int(m[1])),
    ),
    _rule(rf"{_FREE}\d{{4,15}}{_END}(?!-)", _big),
    _rule(r"\bDr\.(?=\s+[A-Z])", lambda m: "Doctor"),
    _rule(r"(?<=[a-z] )Dr\.(?!\w)", lambda m: "Drive" + dates.stop_at_end(m)),
    _rule(r"\bDr\.(?!\w)", lambda m: "Doctor"),
    _rule(r"(?<![A-Za-z0-9] )\bSt\.(?=\s+[A-Z])", lambda m: "Saint"),
    _rule(r"(?<=[a-z] )St\.(?=\s+[A-Z])", _saint_or_street),
    _rule(r"(?<=[a-z] )St\.(?!\w)", lambda m: "Street" + dates.stop_at_end(m)),
    _rule(rf"\b((?i:{_TITLE}))\.(?!\w)", _title),
    _rule(
        r"(?<![^\W\d½¼¾⅓⅔⅛⅜⅝⅞])([^\W\d_][\w-]*)(?:\.[a-z][\w-]*)+\b",
        lambda m: None if re.fullmatch(r"(?:\w\.)+\w", m.group()) else _dots(m),
    ),
    _rule(r"(?<=\w)/(?=(?:night|day|week|month|year|hour|hr|minute|person|user|kg|lb)\b)", lambda m: " per "),
    _rule(r"(?<=\w)&(?=\w)", lambda m: " and "),
    _rule(r"(?<!\S)&(?!\S)", lambda m: "and"),
    _rule(r"(?<!\S)@(?=\s|\w)", lambda m: "at " if m.string[m.end() : m.end() + 1].strip() else "at"),
    _rule(r"(?<!\S)\+(?!\S)", lambda m: "plus"),
    _rule(r"(?<!\S)=(?!\S)", lambda m: "equals"),
    _rule(r"(?<=[\d\s])×(?=[\d\s])", lambda m: " times " if m.string[m.start() - 1].isdigit() else "times"),
    _rule(r"(?<!\S)÷(?!\S)", lambda m: "divided by"),
    _rule(r"(?<!\w)[~≈]\s?(?=[\d$€£])", lambda m: "about "),
    _rule(r"(?<=\d)%(?!\w)", lambda m: " percent"),
)

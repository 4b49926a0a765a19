"""How numbers are read in languages other than English, through num2words, in the formats used there."""

from __future__ import annotations

import importlib
import re
from decimal import Decimal
from functools import lru_cache
from types import ModuleType

from voice.spoken.languages import word_set, words_of

# Languages that part thousands with a point, narrow or plain space and decimals with a comma.
_COMMA_DECIMAL = word_set("de es fr it pt nl da no sv fi pl cs sk sl hr sr ro hu ru uk bg tr id vi is lt lv")
_NUMBER = (
    r"(?P<minus>(?<!\w)[-−])?(?P<whole>\d{1,3}(?:[.\u00a0\u202f ]\d{3})+|\d+)(?:,(?P<fraction>\d{1,6}))?"
)
_PATTERN = re.compile(
    rf"(?<![\w.,:/#-])(?P<before>[€$£]\s?)?{_NUMBER}(?P<after>\s?(?:%|€|\$|£|EUR\b|USD\b))?(?![\w]|[.,:/-]\d)"
)
_CODES = {"€": "EUR", "$": "USD", "£": "GBP", "EUR": "EUR", "USD": "USD"}
_CURRENCY_NAMES = {
    "de": {"EUR": ("Euro", "Euro"), "USD": ("Dollar", "Dollar"), "GBP": ("Pfund", "Pfund")},
    "es": {"EUR": ("euro", "euros"), "USD": ("dólar", "dólares"), "GBP": ("libra", "libras")},
    "fr": {"EUR": ("euro", "euros"), "USD": ("dollar", "dollars"), "GBP": ("livre", "livres")},
    "it": {"EUR": ("euro", "euro"), "USD": ("dollaro", "dollari"), "GBP": ("sterlina", "sterline")},
    "pt": {"EUR": ("euro", "euros"), "USD": ("dólar", "dólares"), "GBP": ("libra", "libras")},
    "nl": {"EUR": ("euro", "euro"), "USD": ("dollar", "dollar"), "GBP": ("pond", "pond")},
}
_ONE_IS_UN = frozenset(("es", "it", "fr"))
_MIN_DIGITS = 4  # shorter bare numbers are left to the voice


@lru_cache(maxsize=1)
def load() -> ModuleType:
    """Import num2words (about 60 ms). Called ahead by ``prepare``, off the event loop."""
    return importlib.import_module("num2words")


def replacements(text: str, language: str) -> list[tuple[int, int, str]]:
    """Ranges of ``text`` and what is spoken instead; nothing where the language or the form is unknown."""
    found: list[tuple[int, int, str]] = []
    if language not in _COMMA_DECIMAL:
        return found
    for m in _PATTERN.finditer(text):
        words = _read(m, language)
        if words:
            found.append((m.start(), m.end(), words))
    return found


def _read(m: re.Match[str], language: str) -> str | None:
    whole, fraction = re.sub(r"\D", "", m["whole"]), m["fraction"] or ""
    unit = ((m["before"] or "") + (m["after"] or "")).strip()
    plain = not (unit or fraction or m["minus"]) and whole == m["whole"]
    if (plain and len(whole) < _MIN_DIGITS) or len(whole) > 15 or (len(whole) > 1 and whole[0] == "0"):
        return None
    sign = "-" if m["minus"] else ""
    if unit in _CODES:
        return _money(sign, whole, fraction, _CODES[unit], language)
    decimal = words_of(language).decimal
    percent = words_of(language).percent
    if (fraction and not decimal) or (unit == "%" and not percent):
        return None
    words = _words(sign + whole, language)
    if words is None:
        return None
    if fraction:
        each = [_words(d, language) or d for d in fraction]
        words += f" {decimal} {' '.join(each)}"
    return words + (f" {percent}" if unit == "%" else "")


def _words(value: str, language: str) -> str | None:
    return _spell(int(value), language)


def _spell(value: int | Decimal, language: str, **how: str) -> str | None:
    try:
        return str(load().num2words(value, lang=language, **how))
    except (NotImplementedError, OverflowError, ValueError, KeyError, IndexError, TypeError):
        return None  # the library lacks the language or the number's size: the voice reads the digits


def _money(sign: str, whole: str, fraction: str, code: str, language: str) -> str | None:
    names = _CURRENCY_NAMES.get(language, {}).get(code)
    if names is None or len(fraction) not in (0, 2):
        return None
    if fraction.strip("0"):
        amount = Decimal(f"{sign}{whole}.{fraction}")
        return _spell(amount, language, to="currency", currency=code)
    words = "un" if whole == "1" and language in _ONE_IS_UN else _words(sign + whole, language)
    return words and f"{words} {names[0] if whole == '1' else names[1]}"

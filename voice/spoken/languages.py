"""The few words and signs that the speech text itself needs to know of each language."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LanguageWords:
    """Words put into spoken text.

    Attributes:
        code_remark: Spoken once in place of a code block.
        dot: The point in a host name; ``""`` leaves the sign.
        percent: The percent sign; ``""`` leaves the sign.
        decimal: The decimal mark between digits.
    """

    code_remark: str = "Here is some code."
    dot: str = ""
    percent: str = ""
    decimal: str = ""


_WORDS = {
    "en": LanguageWords("Here is some code.", "dot", "percent", "point"),
    "de": LanguageWords("Hier ist etwas Code.", "Punkt", "Prozent", "Komma"),
    "es": LanguageWords("Aquí hay algo de código.", "punto", "por ciento", "coma"),
    "fr": LanguageWords("Voici un peu de code.", "point", "pour cent", "virgule"),
    "it": LanguageWords("Ecco un po' di codice.", "punto", "per cento", "virgola"),
    "pt": LanguageWords("Aqui está um pouco de código.", "ponto", "por cento", "vírgula"),
    "nl": LanguageWords("Hier is wat code.", "punt", "procent", "komma"),
    "zh": LanguageWords("这里有一段代码。"),
    "ja": LanguageWords("コードを表示しました。"),
    "ko": LanguageWords("여기 코드가 있습니다."),
}
_DEFAULT = LanguageWords()


def base_language(language: str) -> str:
    """``"en"`` of ``"en-US"``."""
    return language.replace("_", "-").split("-")[0].lower()


def words_of(language: str) -> LanguageWords:
    """The words of a base language; English remarks and bare signs where it is unknown."""
    return _WORDS.get(language, _DEFAULT)


def words(text: str) -> tuple[str, ...]:
    """A table of words, written as one text."""
    return tuple(text.split())


def word_set(text: str) -> frozenset[str]:
    """A set of words, written as one text."""
    return frozenset(text.split())


# Scripts written without spaces between words (ideographs, kana, full-width forms): any two of their
# characters may be cut apart. Hangul is written with spaces. Ranges: Unicode 15, CJK blocks.
CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303b\u3040-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003134f"
)
CJK_CHAR = re.compile(f"[{CJK}]")
FULL_STOPS = "。！？｡।॥؟۔։።"  # end a sentence without a space after them
CLOSERS = "\"'”’)]}»」』）】》〉］"

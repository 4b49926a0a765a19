"""How many words were recognised wrong: English text normalised to what is spoken, and its word error rate."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# fmt: off
_UNITS = {
    "zero": 0, "oh": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
    "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14,
    "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19,
}
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90,
}
# fmt: on
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}

_WHOLE = (
    (r"\bwon't\b", "will not"),
    (r"\bcan't\b", "can not"),
    (r"\bcannot\b", "can not"),
    (r"\bshan't\b", "shall not"),
    (r"\blet's\b", "let us"),
    (r"\by'all\b", "you all"),
    (r"\bgonna\b", "going to"),
    (r"\bwanna\b", "want to"),
    (r"\bgotta\b", "got to"),
)
_ENDINGS = (
    (r"n't\b", " not"),
    (r"'re\b", " are"),
    (r"'s\b", " is"),
    (r"'d\b", " would"),
    (r"'ll\b", " will"),
    (r"'ve\b", " have"),
    (r"'m\b", " am"),
)
_SPELLINGS = {
    "ok": "okay",
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "e-mail": "email",
    "cancelled": "canceled",
    "colour": "color",
    "favourite": "favorite",
    "grey": "gray",
    "harbour": "harbor",
    "centre": "center",
    "programme": "program",
    "voicemail": "voice mail",
}
_FILLERS = frozenset({"hmm", "hm", "mm", "mhm", "mmm", "uh", "um", "uhm", "er", "erm", "ah"})


def normalise(text: str) -> list[str]:
    """The words of ``text`` as they compare: lower case, without punctuation, brackets or fillers;
    contractions spelled out, numbers as digits, a few spellings made one."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'").replace("‘", "'")
    text = re.sub(r"[<\[(][^>\])]*[>\])]", " ", text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"(?<=\d)-(?=\d)", "", text)
    text = re.sub(r"(\d+)(?:st|nd|rd|th)\b", r"\1", text)
    for pattern, replacement in _WHOLE + _ENDINGS:
        text = re.sub(pattern, replacement, text)
    text = text.replace("%", " percent ").replace("&", " and ").replace("$", " dollars ").replace("'", "")
    text = re.sub(r"(?<=\d)\.(?=\d)", " point ", text)
    words = [w for w in re.findall(r"[^\W_]+", text) if w not in _FILLERS]
    spelled = [part for word in words for part in _SPELLINGS.get(word, word).split()]
    return _join_digits(_numbers(spelled))


def _numbers(words: Sequence[str]) -> list[str]:
    """Number words become digits, the longest grammatical number at a time ("nine hundred and two" →
    "902")."""
    out: list[str] = []
    i = 0
    while i < len(words):
        end, value = _cardinal(words, i)
        if end == i:
            out.append(words[i])
            i += 1
        else:
            out.append(str(value))
            i = end
    return out


def _cardinal(words: Sequence[str], start: int) -> tuple[int, int]:
    """Where the number that begins at ``start`` ends, and its value. ``start`` itself when there is none."""
    total = group = 0
    last = 10**12  # the smallest place filled so far in this group: the next part must fit below it
    i = start
    while i < len(words):
        word = words[i]
        if word in _UNITS and (last == 10**12 or last > _UNITS[word] > 0):
            if last == 10 and _UNITS[word] > 9:
                break
            group += _UNITS[word]
            last = 1
        elif word in _TENS and last >= 100:
            group += _TENS[word]
            last = 10
        elif word == "hundred" and 0 < group < 100:
            group *= 100
            last = 100
        elif word in _SCALES and word != "hundred" and group:
            total += group * _SCALES[word]
            group, last = 0, 1_000
        elif word == "and" and last in (100, 1_000) and i + 1 < len(words) and _small(words[i + 1]):
            pass
        else:
            break
        i += 1
    return i, total + group


def _small(word: str) -> bool:
    return word in _TENS or _UNITS.get(word, 0) > 0


def _join_digits(words: Iterable[str]) -> list[str]:
    """Digits that were read one by one become one number: "5 5 5" and "555" are the same words (and so, by
    mistake, are "one two" and "twelve")."""
    out: list[str] = []
    single = False
    for word in words:
        digit = len(word) == 1 and word.isdecimal()
        if digit and single:
            out[-1] += word
        else:
            out.append(word)
        single = digit
    return out


@dataclass(frozen=True, slots=True)
class Errors:
    """Word errors against a reference of ``words`` words. Add two to pool them."""

    words: int = 0
    substituted: int = 0
    deleted: int = 0
    inserted: int = 0

    def __str__(self) -> str:
        return (
            f"word error rate {100 * self.rate:.2f} % ({self.total} of {self.words} words: "
            f"{self.substituted} substituted, {self.deleted} deleted, {self.inserted} inserted)"
        )

    @property
    def total(self) -> int:
        """Substituted, deleted and inserted words together."""
        return self.substituted + self.deleted + self.inserted

    @property
    def rate(self) -> float:
        """Errors per reference word; with no reference word 0 when there is no error, else infinite."""
        if self.words:
            return self.total / self.words
        return float("inf") if self.total else 0.0

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.words + other.words,
            self.substituted + other.substituted,
            self.deleted + other.deleted,
            self.inserted + other.inserted,
        )


_COST, _SUBSTITUTED = 1 << 42, 1 << 21
"""A cell of the alignment is one integer: cost, substituted and deleted words, 21 bits each. The least of two is that
with the lower cost, then with fewer substitutions, then with fewer deletions."""


def compare(reference: str, hypothesis: str) -> Errors:
    """The word errors of one text, both sides normalised: a cheapest alignment (Levenshtein, all costs 1).

    Takes 0.4 s for an hour of speech, and memory for one row of the alignment only.
    """
    said, heard = normalise(reference), normalise(hypothesis)
    numbers = {word: number for number, word in enumerate(dict.fromkeys([*said, *heard]))}
    columns = np.array([numbers[word] for word in heard], np.int64)
    inserted = np.arange(len(heard) + 1, dtype=np.int64) * _COST
    row = inserted.copy()  # for every beginning of what was heard, against none of what was said
    for word in said:
        best = row + (_COST + 1)  # the word was left out
        changed = row[:-1] + (columns != numbers[word]) * (_COST + _SUBSTITUTED)
        np.minimum(best[1:], changed, out=best[1:])
        # Insertions run along the row: the least of all cells before, each with what lies between inserted.
        row = np.minimum.accumulate(best - inserted) + inserted
    last = int(row[-1])
    cost, substituted, deleted = last // _COST, last % _COST // _SUBSTITUTED, last % _SUBSTITUTED
    return Errors(len(said), substituted, deleted, cost - substituted - deleted)


def pooled(pairs: Iterable[tuple[str, str]]) -> Errors:
    """The errors of many ``(reference, hypothesis)`` pairs, pooled: long texts weigh more."""
    return sum((compare(reference, hypothesis) for reference, hypothesis in pairs), Errors())

"""How many words were recognised wrong: English text normalised to what is spoken, and pooled word error
rate.

``python -m loadtest.wer MANIFEST.jsonl RESULTS.jsonl`` prints the pooled rate of a run. The manifest has
one object a line with the spoken ``text``; the results are what ``voice talk --json`` prints (its ``turn``
lines) or objects with ``user`` or ``text``. Both are paired by order.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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


def compare(reference: str, hypothesis: str) -> Errors:
    """The word errors of one text, both sides normalised: a cheapest alignment (Levenshtein, all costs 1)."""
    ref, hyp = normalise(reference), normalise(hypothesis)
    # A row of (cost, substituted, deleted, inserted) for every prefix of the hypothesis.
    row = [(j, 0, 0, j) for j in range(len(hyp) + 1)]
    for i, word in enumerate(ref, start=1):
        above, row = row, [(i, 0, i, 0)]
        for j, heard in enumerate(hyp, start=1):
            cost, s, d, n = above[j - 1]
            wrong = word != heard
            best = (cost + wrong, s + wrong, d, n)
            cost, s, d, n = above[j]
            best = min(best, (cost + 1, s, d + 1, n))
            cost, s, d, n = row[j - 1]
            row.append(min(best, (cost + 1, s, d, n + 1)))
    _, substituted, deleted, inserted = row[-1]
    return Errors(len(ref), substituted, deleted, inserted)


def pooled(pairs: Iterable[tuple[str, str]]) -> Errors:
    """The errors of many ``(reference, hypothesis)`` pairs, pooled: long texts weigh more."""
    return sum((compare(reference, hypothesis) for reference, hypothesis in pairs), Errors())


def _texts(path: Path, *, results: bool) -> list[str]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if results:
        rows = [row for row in rows if row.get("type", "turn") == "turn"]
    return [str(row["user"] if "user" in row else row["text"]) for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: prints every text with errors and the pooled rate; 0 when it was computed."""
    paths = list(sys.argv[1:] if arguments is None else arguments)
    if len(paths) != 2:
        print("usage: python -m loadtest.wer MANIFEST.jsonl RESULTS.jsonl", file=sys.stderr)
        return 2
    try:
        said, heard = _texts(Path(paths[0]), results=False), _texts(Path(paths[1]), results=True)
    except (OSError, ValueError, KeyError) as error:
        print(f"can't read the texts: {error!r}", file=sys.stderr)
        return 1
    if len(said) != len(heard):
        print(f"{len(said)} texts were said, but there are {len(heard)} turns", file=sys.stderr)
        return 1
    for reference, hypothesis in zip(said, heard, strict=True):
        if (errors := compare(reference, hypothesis)).total:
            print(f"{errors.total} of {errors.words}: {reference!r} heard as {hypothesis!r}")
    all_errors = pooled(zip(said, heard, strict=True))
    print(
        f"word error rate {100 * all_errors.rate:.2f} % ({all_errors.total} of {all_errors.words} words: "
        f"{all_errors.substituted} substituted, {all_errors.deleted} deleted, {all_errors.inserted} inserted)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

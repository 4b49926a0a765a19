"""How do the texts of two overlapping pieces become one, without a word lost or said twice? Pure.

Both pieces hold the words around the cut. The longest run of words that both have, at about the same time, joins them:
left of its middle the first piece is believed, right of it the second. Words near the edge of a piece are often wrong;
those in the middle of the overlap rarely are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from voice.interfaces import Word

SAME_TIME_S = 0.7
"""The same word of two pieces is placed so near; the next one of its kind ("one … one") is farther."""


def joined(left: Sequence[Word], right: Sequence[Word], cut_s: float, reach_s: float) -> list[Word]:
    """One list of words.

    Args:
        left: Words of the first piece, with times of the utterance.
        right: Of the second one.
        cut_s: The middle of what they share.
        reach_s: They share so much on either side of it.
    """
    first = _from(left, cut_s - reach_s - SAME_TIME_S)
    last = _to(right, cut_s + reach_s + SAME_TIME_S)
    length, a, b = _longest_run(left[first:], right[:last])
    if length == 0:
        return [*(w for w in left if _middle(w) < cut_s), *(w for w in right if _middle(w) >= cut_s)]
    # Within the run both say the same: it is cut where it is nearest to the middle.
    into = min(range(length + 1), key=lambda n: abs(_at(right, b + n) - cut_s))
    return [*left[: first + a + into], *right[b + into :]]


def _from(words: Sequence[Word], at_s: float) -> int:
    return next((n for n, word in enumerate(words) if word.end_s >= at_s), len(words))


def _to(words: Sequence[Word], at_s: float) -> int:
    return next((n for n, word in enumerate(words) if word.start_s > at_s), len(words))


def _at(words: Sequence[Word], number: int) -> float:
    return words[number].start_s if number < len(words) else words[-1].end_s


def _middle(word: Word) -> float:
    return (word.start_s + word.end_s) / 2


def _longest_run(left: Sequence[Word], right: Sequence[Word]) -> tuple[int, int, int]:
    """The longest run of the same words at the same time: its length, and where it begins in each."""
    best = (0, 0, 0)
    # lengths of runs that end at the word of ``left`` before, and each of ``right``
    ends = [0] * (len(right) + 1)
    for a, one in enumerate(left):
        row = [0] * (len(right) + 1)
        for b, other in enumerate(right):
            near = abs(_middle(one) - _middle(other)) <= SAME_TIME_S
            if near and _key(one.text) == _key(other.text):
                row[b + 1] = ends[b] + 1
                best = max(best, (row[b + 1], a - row[b + 1] + 1, b - row[b + 1] + 1), key=lambda run: run[0])
        ends = row
    return best


def _key(text: str) -> str:
    return "".join(c for c in text.casefold() if unicodedata.category(c)[0] not in "PSZC")

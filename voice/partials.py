"""Partial transcripts: when is one due, which of its words are settled, and where may long speech be cut? Pure."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voice.degradation import Rung
from voice.interfaces import ASR_RATE_HZ, Pcm16

# ---------------------------------------------------------------- when

_SHARE = 2.0
"""A session's partials keep the recogniser busy for at most one part in so many of the time…"""
_SPARING = 3.0
"""…and come so many times less often when the load is too high."""


def next_partial_s(interval_s: float, took_s: float, rung: Rung) -> float:
    """From the start of one partial to the next, in seconds.

    Args:
        interval_s: As the options want it.
        took_s: How long the last one took; a recogniser that is slow is asked less often.
        rung: What is given up at this load. Partials go first.
    """
    wait_s = max(interval_s, _SHARE * took_s)
    return wait_s * _SPARING if rung >= Rung.FEWER_PARTIALS else wait_s


# ---------------------------------------------------------------- words

_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Thai, Lao, Burmese, Khmer, kana and Han are written without blanks: there each character counts as a word."""
_WORD = re.compile(rf"\s*(?:[{_UNSPACED}]|[^\s{_UNSPACED}]+)")
_MOST_COMPARED = 100
"""Words beyond the first difference that are compared one by one: more would keep the event loop."""
_MOST_CHARACTERS = 4_000
"""Of a pass: three minutes of quick speech. More would keep the event loop."""
_TAIL, _SLACK = 8, 4
"""The last committed words are looked for in a new pass, a few places around where they were."""
_LOOPS = ((1, 6), (2, 4), (3, 3), (4, 3), (5, 3), (6, 3), (7, 3), (8, 3))
"""Words of an n-gram, and how often in a row make it a loop. People say "no, no, no, no"; nobody says it six times."""


@dataclass(frozen=True, slots=True)
class _Word:
    """``text`` is as written, with the blank before it; ``key`` is what is compared."""

    text: str
    key: str


def _words(text: str) -> list[_Word]:
    """The words of a text; a mark that stands alone belongs to the word before it. Joined they are the text again,
    but for blanks at its ends."""
    words: list[_Word] = []
    for match in _WORD.finditer(text.strip()):
        piece = match.group()
        key = "".join(c for c in piece.casefold() if unicodedata.category(c)[0] not in "PSZC")
        if key:
            words.append(_Word(piece, key))
        elif words:
            words[-1] = _Word(words[-1].text + piece, words[-1].key)
    return words


def _keys(words: Sequence[_Word]) -> list[str]:
    return [word.key for word in words]


def _text(words: Sequence[_Word]) -> str:
    return "".join(word.text for word in words)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many words both begin with."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _loop_at(keys: Sequence[str]) -> int | None:
    """Where a stretch begins that only repeats itself; ``None``: nowhere."""
    for at in range(len(keys)):
        for size, times in _LOOPS:
            unit = keys[at : at + size]
            if len(keys) - at >= size * times and all(
                keys[at + i * size : at + (i + 1) * size] == unit for i in range(1, times)
            ):
                return at
    return None


def _fit(words: Sequence[str], within: Sequence[str], *, from_start: bool) -> list[tuple[int, int]]:
    """How all of ``words`` fit each stretch of ``within``: (end of the stretch, words that differ), for each end.

    ``from_start``: the stretch is the beginning of ``within``; else it may begin anywhere.
    """
    row = list(range(len(within) + 1)) if from_start else [0] * (len(within) + 1)
    for count, word in enumerate(words, 1):
        corner, row[0] = row[0], count
        for end, other in enumerate(within, 1):
            corner, row[end] = row[end], min(corner + (word != other), row[end] + 1, row[end - 1] + 1)
    return list(enumerate(row))


@dataclass(frozen=True, slots=True)
class Partial:
    """The user's words so far: ``text`` begins with ``stable``, which later ones begin with, too."""

    text: str
    stable: str


class AgreedPrefix:
    """Commits the words that two passes in a row agree on, from the turn's beginning (local agreement).

    Case and punctuation don't count. The last word of a pass is never committed by it: it may be cut off. Nor is what
    repeats itself: two passes would agree on a loop. Of what was committed nothing is taken back.

    Attributes:
        stable: The committed words, as they were first agreed on.
    """

    def __init__(self) -> None:
        self.stable = ""
        self._committed: list[_Word] = []
        self._last: list[str] = []  # what the last pass heard

    def take(self, text: str, *, tentative: bool = False) -> Partial:
        """A pass over the whole turn so far heard ``text``; nothing is committed by a tentative one."""
        words = _words(text[:_MOST_CHARACTERS])
        loop = _loop_at(_keys(words))
        words = words if loop is None else words[:loop]
        keys = _keys(words)
        agreed = _common(keys, self._last)
        self._last = [] if tentative else keys
        start, sure = self._after(keys)
        end = min(agreed, len(words) - 1)
        if sure and end > start and not tentative:
            self._committed += words[start:end]
            self.stable = _text(self._committed).strip()
            start = end
        return Partial(_text([*self._committed, *words[start:]]).strip(), self.stable)

    def miss(self) -> None:
        """A pass heard nothing, or nothing to be believed: the next one has none to agree with."""
        self._last = []

    def _after(self, keys: Sequence[str]) -> tuple[int, bool]:
        """Where the words after the committed ones begin in a pass, and whether that is sure."""
        count = len(self._committed)
        committed = _keys(self._committed)
        if keys[:count] == committed:
            return count, True
        tail = committed[-_TAIL:]
        first = max(0, count - len(tail) - _SLACK)
        ends = _fit(tail, keys[first : count + _SLACK], from_start=first == 0 and count <= _TAIL)
        end, differ = min(ends, key=lambda one: (one[1], abs(first + one[0] - count)))
        return first + end, 2 * differ <= len(tail)

    def changed(self, final: str) -> tuple[int, int]:
        """How many words were committed, and how many of those the final text says otherwise."""
        committed, said = _keys(self._committed), _keys(_words(final))
        same = _common(committed, said)
        rest, said = committed[same:], said[same : same + 2 * _MOST_COMPARED]
        if not rest:
            return len(committed), 0
        compared = rest[:_MOST_COMPARED]
        differ = min(edits for _, edits in _fit(compared, said, from_start=True))
        return len(committed), min(differ, len(compared))


def rest_of(sent: str, final: str) -> str | None:
    """What is left of ``final`` after the words in ``sent``, with the blank before it; ``None``: it says other words.

    Case and punctuation don't count.
    """
    before, words = _words(sent), _words(final)
    if _keys(words[: len(before)]) != _keys(before):
        return None
    return _text(words[len(before) :])


# ---------------------------------------------------------------- long speech

_BLOCK = ASR_RATE_HZ // 100
_GAP_BLOCKS = 7
"""A gap between words is about 70 ms long or longer; the closure of a "p" or "t" within one is mostly shorter."""


def quiet_cut(audio: Pcm16, first: int, last: int) -> int:
    """Where speech is best cut in two: the middle of the quietest 70 ms between two samples.

    Args:
        audio: 16 kHz.
        first, last: The cut lies between these; all of the quiet does, where there is room.
    """
    blocks = audio[first:last][: (last - first) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).astype(np.float32)
    if len(blocks) <= _GAP_BLOCKS:
        return (first + last) // 2
    loudness = np.log10(1.0 + np.sqrt(np.mean(blocks * blocks, axis=1)))
    sums = np.convolve(loudness, np.ones(_GAP_BLOCKS), mode="valid")
    quietest = np.flatnonzero(sums <= sums.min() + 1e-6)  # of equals the last: less is left to recognise
    middle = (int(quietest[-1]) + _GAP_BLOCKS / 2) * _BLOCK
    return first + math.floor(middle)

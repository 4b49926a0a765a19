"""Which texts are too short for the speech they stand for, and how is the rest of it found?

Whisper at times ends its text early and skips what follows: whole sentences are missing, and nothing in its scores says
so. But one recording's speech has a rate: over 20 minutes of prompts every whole text had at least 0.8 of the usual
characters a second, and the two that were cut short 0.37 and 0.54. Such a piece is recognised again in two halves.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise
from statistics import median

from stages.asr.recordings.cut import Piece
from voice.interfaces import ASR_RATE_HZ, Transcript

TOO_SLOW = 0.7
"""A text with less than this share of the usual characters a second is looked at again."""
MORE = 1.15
"""The halves' texts count if together they are so much longer: then something was missing."""
LEAST_SPEECH_S = 4.0
"""In less speech one pause for breath makes a low rate."""
KNOWN_FROM, REMEMBERED = 8, 500
"""The usual rate is the median of at least, and of at most the last, so many pieces."""


class SpeakingRate:
    """How many characters a second of speech a recording has."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def known(self) -> bool:
        """Whether enough has been heard to judge a text."""
        return len(self._rates) >= KNOWN_FROM

    def add(self, piece: Piece, transcript: Transcript) -> None:
        """A piece was recognised."""
        if transcript.text and speech_s(piece) >= LEAST_SPEECH_S:
            self._rates.append(len(transcript.text) / speech_s(piece))

    def too_short(self, piece: Piece, transcript: Transcript) -> bool:
        """Whether something seems to be missing. A text that was rejected was judged by its sound already."""
        if not self._rates or transcript.rejected is not None or speech_s(piece) < LEAST_SPEECH_S:
            return False
        return len(transcript.text) / speech_s(piece) < TOO_SLOW * median(self._rates)


def speech_s(piece: Piece) -> float:
    """How much speech there is in a piece, without its pauses."""
    return sum(end - start for start, end in piece.spans) / ASR_RATE_HZ


def halves(piece: Piece) -> tuple[Piece, Piece] | None:
    """The piece cut in the longest pause of its middle; ``None`` if its speech has no pause there."""
    spans = piece.spans
    start, end = spans[0][0], spans[-1][1]
    pauses = [
        (after[0] - before[1], number)
        for number, (before, after) in enumerate(pairwise(spans), start=1)
        if start + 0.2 * (end - start) <= (before[1] + after[0]) / 2 <= start + 0.8 * (end - start)
    ]
    if not pauses:
        return None
    _, number = max(pauses)
    cut = (spans[number - 1][1] + spans[number][0]) // 2
    before = [(a, min(b, cut)) for a, b in piece.kept if a < cut]
    after = [(max(a, cut), b) for a, b in piece.kept if b > cut]
    samples = sum(b - a for a, b in before)
    return (
        Piece(spans[:number], tuple(before), piece.audio[:samples]),
        Piece(spans[number:], tuple(after), piece.audio[samples:]),
    )


def better(whole: Transcript, first: Transcript, second: Transcript) -> Transcript | None:
    """The halves' transcripts, their words placed, as one, if they hold what the whole one lacks."""
    texts = [t.text for t in (first, second) if t.text]
    if sum(map(len, texts)) < MORE * len(whole.text):
        return None
    spaced = " " in whole.text or " " in "".join(texts)
    scores = [t.average_logprob for t in (first, second) if t.average_logprob is not None]
    return replace(
        whole,
        text=(" " if spaced else "").join(texts),
        words=first.words + second.words if first.words and second.words else (),
        average_logprob=min(scores, default=None),
    )

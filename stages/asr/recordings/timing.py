"""When is each word said, and where does a sentence end? Times from the engine, or estimated from where speech is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from stages.asr.recordings.cut import Piece
from stages.asr.recordings.result import Segment
from voice.interfaces import ASR_RATE_HZ, Transcript, Word

SENTENCE_ENDS = ".?!。？！…"
CLAUSE_ENDS = (",", ";", ":", "、", "，")
PAUSE_S = 1.0
"""A pause so long ends a segment, whatever the punctuation."""

ANCHOR_S = 0.2
"""A pause so long lies between words…"""
ANCHOR_REACH_S = 1.5
"""…which are looked for so far around it, by the estimate."""
PUNCTUATION_S = 1.0
"""A word that ends a sentence or clause is preferred as if it were so much nearer to the pause."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of a recording without its audio.

    Attributes:
        spans: Its speech, in seconds of the recording, in order; at least one.
    """

    spans: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, piece: Piece) -> Stretch:
        return cls(tuple((start / ASR_RATE_HZ, end / ASR_RATE_HZ) for start, end in piece.spans))


def placed(piece: Piece, transcript: Transcript) -> Transcript:
    """The transcript of a piece with its words' times, if it has any, as times of the recording."""
    words = tuple(
        replace(word, start_s=piece.time_of(word.start_s), end_s=piece.time_of(word.end_s))
        for word in transcript.words
    )
    return replace(transcript, words=words)


def segments(stretch: Stretch, transcript: Transcript) -> list[Segment]:
    """The sentences of a piece whose words' times, if it has any, are those of the recording."""
    text = " ".join(transcript.text.split())
    if not text:
        return []
    words = [w for w in transcript.words if w.text.strip()] or estimated(text, stretch.spans)
    groups: list[list[Word]] = [[words[0]]]
    for before, after in pairwise(words):
        if _ends_sentence(before.text) or after.start_s - before.end_s >= PAUSE_S:
            groups.append([])
        groups[-1].append(after)
    return [segment_of(group) for group in groups]


def segment_of(words: Sequence[Word], speaker: str | None = None) -> Segment:
    """Words, at least one, as a segment. Words of the engine carry their own spaces, or none as in Chinese."""
    spaced = any(word.text[:1].isspace() for word in words)
    joined = ("" if spaced or all(_no_spaces(word.text) for word in words) else " ").join(
        word.text if spaced else word.text.strip() for word in words
    )
    return Segment(words[0].start_s, words[-1].end_s, joined.strip(), tuple(words), speaker)


def estimated(text: str, spans: Sequence[tuple[float, float]]) -> list[Word]:
    """The words of ``text`` spread over ``spans`` of speech by their length, pauses between words that fit them.

    Returns:
        At least one word, in order, inside the spans; probabilities are ``None``.
    """
    parts = _parts(text)
    voiced = [end - start for start, end in spans]
    ends = list(accumulate(voiced))  # of spans, in seconds of speech
    weights = [len(part) + 1.0 for part in parts]
    whole = sum(weights)
    edges = [0.0, *(ends[-1] * at / whole for at in accumulate(weights))]  # of words, in seconds of speech
    anchors = _anchors(parts, edges, spans, ends)
    edges = _stretched(edges, anchors)
    words: list[Word] = []
    for number, part in enumerate(parts):
        start = _at(edges[number], spans, ends, after_pause=True)
        end = max(start, _at(edges[number + 1], spans, ends, after_pause=False))
        words.append(Word(part, start, end))
    return words


def _anchors(
    parts: Sequence[str], edges: Sequence[float], spans: Sequence[tuple[float, float]], ends: Sequence[float]
) -> dict[int, float]:
    """Which edge between words lies in which pause: number of the edge → its place in seconds of speech."""
    pauses = sorted(
        ((after[0] - before[1], at) for (before, after), at in zip(pairwise(spans), ends, strict=False)),
        reverse=True,
    )
    anchors: dict[int, float] = {0: 0.0, len(parts): edges[-1]}
    for pause_s, at in pauses:
        if pause_s < ANCHOR_S:
            break
        low = max(number for number, place in anchors.items() if place <= at)
        high = min(number for number, place in anchors.items() if place >= at)
        fitting = [
            (abs(edges[n] - at) - PUNCTUATION_S * _ends_clause(parts[n - 1]), n)
            for n in range(low + 1, high)
            if abs(edges[n] - at) <= ANCHOR_REACH_S
        ]
        if fitting:
            anchors[min(fitting)[1]] = at
    return anchors


def _stretched(edges: Sequence[float], anchors: dict[int, float]) -> list[float]:
    """The edges, moved with the anchors around them."""
    moved = list(edges)
    for (low, low_at), (high, high_at) in pairwise(sorted(anchors.items())):
        span = edges[high] - edges[low]
        for number in range(low, high + 1):
            share = (edges[number] - edges[low]) / span if span else 0.0
            moved[number] = low_at + share * (high_at - low_at)
    return moved


def _at(
    voiced_s: float, spans: Sequence[tuple[float, float]], ends: Sequence[float], *, after_pause: bool
) -> float:
    """Seconds of speech as seconds of the recording; at a pause the end of it or its beginning."""
    begun = 0.0
    for (start, end), until in zip(spans, ends, strict=True):
        if voiced_s < until - 1e-6 or (not after_pause and voiced_s <= until + 1e-6):
            return min(end, start + max(0.0, voiced_s - begun))
        begun = until
    return spans[-1][1]


def _parts(text: str) -> list[str]:
    """The words; where a script has no spaces, its characters."""
    return [
        part for word in text.split() for part in ([*word] if _no_spaces(word) and len(word) > 1 else [word])
    ]


def _no_spaces(word: str) -> bool:
    return any(
        "\u3040" <= c <= "\u30ff" or "\u3400" <= c <= "\u9fff" or "\u0e00" <= c <= "\u0e7f" for c in word
    )


def _ends_sentence(word: str) -> bool:
    return word.rstrip(" \"'”’)").endswith(tuple(SENTENCE_ENDS))


def _ends_clause(word: str) -> bool:
    return _ends_sentence(word) or word.rstrip().endswith(CLAUSE_ENDS)

"""Who says each segment? The one who talks most in it; where the engine gave words' times, a segment is cut where the
speaker changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol, TypeAlias

from stages.asr.recordings.result import Segment
from stages.asr.recordings.timing import segment_of
from voice.interfaces import Word

Spans: TypeAlias = Sequence[tuple[float, float]]

SHORTEST_S = 0.4
"""A change of speaker for less than this, inside a sentence, is the diariser's doubt at its border."""


class Turn(Protocol):
    """One speaker, for a while; see :class:`stages.asr.speakers.diarise.SpeakerTurn`."""

    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...
    @property
    def speaker(self) -> str: ...


SpeakerTurns: TypeAlias = Sequence[Turn]


def with_speakers(segments: Sequence[Segment], turns: SpeakerTurns, *, exact_words: bool) -> list[Segment]:
    """The segments with their speakers.

    Args:
        segments: In order of time.
        turns: In order of time.
        exact_words: The words' times come from the engine, so segments can be cut between them.
    """
    found: list[Segment] = []
    first = 0
    for segment in segments:
        while first < len(turns) and turns[first].end_s <= segment.start_s:
            first += 1
        near = [turn for turn in turns[max(0, first - 1) : first + 64] if turn.start_s <= segment.end_s + 5.0]
        if exact_words and len({turn.speaker for turn in near}) > 1:
            found += _cut(segment, near)
        else:
            found.append(replace(segment, speaker=_most(segment.start_s, segment.end_s, near)))
    return found


def _cut(segment: Segment, turns: SpeakerTurns) -> list[Segment]:
    named = [(_most(word.start_s, word.end_s, turns), word) for word in segment.words]
    runs: list[tuple[str | None, list[Word]]] = [
        (speaker, [word for _, word in group]) for speaker, group in groupby(named, key=lambda pair: pair[0])
    ]
    joined: list[tuple[str | None, list[Word]]] = []
    for speaker, words in runs:
        if joined and (words[-1].end_s - words[0].start_s < SHORTEST_S or speaker == joined[-1][0]):
            joined[-1][1].extend(words)
        else:
            joined.append((speaker, words))
    return [segment_of(words, speaker) for speaker, words in joined]


def _most(start_s: float, end_s: float, turns: SpeakerTurns) -> str | None:
    """Who talks longest between two times; if nobody does, who is nearest."""
    shares: defaultdict[str, float] = defaultdict(float)
    for turn in turns:
        shares[turn.speaker] += max(0.0, min(end_s, turn.end_s) - max(start_s, turn.start_s))
    if shares and max(shares.values()) > 0.0:
        return max(shares, key=lambda speaker: shares[speaker])
    middle = (start_s + end_s) / 2
    nearest = min(turns, key=lambda t: max(t.start_s - middle, middle - t.end_s), default=None)
    return None if nearest is None else nearest.speaker

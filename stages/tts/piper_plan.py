"""What Piper runs for one text: pieces of bounded length, and when each written word sounds in them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stages.tts.word_times import match_words, weigh_group, weigh_word
from voice.interfaces import SpokenWord

LONGEST_PHONEMES = 120
"""Longest single run: about 6 s of audio, because its text is read in one call, which can't be stopped."""

CLAUSE_PHONEMES = 15
"""Shortest clause to cut off, about 0.9 s with its pause. The first sentence is cut at its first clause mark, so
that less text is read before its beginning is heard; shorter, it would last hardly longer than the next run
takes to begin (up to 0.2 s, and the wait for the compute gate)."""

_CLAUSE_MARKS = ",;:—"


@dataclass(frozen=True, slots=True)
class Piece:
    """Phonemes of one run; ``groups`` are the (begin, end) of its groups of sounds, as espeak spaced them."""

    phonemes: list[str]
    groups: list[tuple[int, int]]

    @classmethod
    def of(cls, phonemes: list[str]) -> Piece:
        groups: list[tuple[int, int]] = []
        begin = 0
        for at in [i for i, phoneme in enumerate(phonemes) if phoneme == " "] + [len(phonemes)]:
            sounds = [i for i in range(begin, at) if any(c.isalpha() for c in phonemes[i])]
            if sounds:  # a comma's pause after the word is not part of the word
                groups.append((begin, sounds[-1] + 1))
            begin = at + 1
        return cls(phonemes, groups)


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs of one text, in order; for each of its words, where it lies on the axis of all groups."""

    pieces: list[Piece]
    words: list[tuple[str, tuple[float, float]]]

    @classmethod
    def of(cls, text: str, sentences: list[list[str]]) -> Plan:
        """Plan ``text``, of which espeak made these sentences of phonemes; soundless ones are left out."""
        pieces: list[Piece] = []
        for sentence in sentences:
            made = (Piece.of(part) for part in cut(sentence, first=not pieces))
            pieces.extend(piece for piece in made if piece.groups)
        if not pieces:
            return cls([], [])
        words = text.split()
        groups = [weigh_group(piece.phonemes[a:b]) for piece in pieces for a, b in piece.groups]
        places = match_words([weigh_word(word) for word in words], groups)
        return cls(pieces, list(zip(words, places, strict=True)))


def cut(sentence: list[str], *, first: bool) -> list[list[str]]:
    """Cut a sentence into runs of bounded length: behind a clause mark, else between words, else anywhere."""
    parts: list[list[str]] = []
    rest = sentence
    while rest:
        at = 0
        if first and not parts:
            at = _first_clause(rest)
        if not at and len(rest) > LONGEST_PHONEMES:
            at = _last_break(rest, _CLAUSE_MARKS, LONGEST_PHONEMES) or _last_break(
                rest, " ", LONGEST_PHONEMES
            )
        at = at or min(len(rest), LONGEST_PHONEMES)
        parts.append(rest[:at])
        while at < len(rest) and rest[at] == " ":
            at += 1
        rest = rest[at:]
    return parts


def _last_break(phonemes: list[str], marks: str, limit: int) -> int:
    """The place behind the last of ``marks`` within ``limit`` phonemes; 0 if there is none."""
    return next((i for i in range(limit, CLAUSE_PHONEMES, -1) if phonemes[i - 1] in marks), 0)


def _first_clause(phonemes: list[str]) -> int:
    """The place behind the first clause mark that leaves enough on both sides; 0 if there is none."""
    last = min(LONGEST_PHONEMES, len(phonemes) - CLAUSE_PHONEMES)
    return next((i for i in range(CLAUSE_PHONEMES, last) if phonemes[i - 1] in _CLAUSE_MARKS), 0)


@dataclass(slots=True)
class Timeline:
    """Puts the runs of one text one after the other and times their words.

    Args:
        plan: The text's plan.
        sample_rate: Rate of its audio, Hz.
    """

    plan: Plan
    sample_rate: int
    _samples: int = 0
    _spoken: int = 0
    _groups: list[tuple[int, int]] = field(default_factory=list)

    def add(self, samples: int, groups: list[tuple[int, int]], skipped: int) -> tuple[SpokenWord, ...]:
        """The next run gives so many samples in all; returns the words that are complete with it.

        Args:
            samples: How many of them are played.
            groups: Begin and end of each of its groups, counted before ``skipped`` samples were cut off its
                front; empty where the voice doesn't tell.
        """
        shift = self._samples - skipped
        self._samples += samples
        self._groups.extend((max(0, begin + shift), max(0, end + shift)) for begin, end in groups)
        words: list[SpokenWord] = []
        for text, (begin, end) in self.plan.words[self._spoken :] if groups else ():
            if end > len(self._groups) + 1e-9:
                break
            words.append(SpokenWord(text, self._begin_s(begin), self._end_s(end)))
        self._spoken += len(words)
        return tuple(words)

    def _begin_s(self, place: float) -> float:
        group = int(place)
        return self._within(group, place - group) if group < len(self._groups) else self._end_s(place)

    def _end_s(self, place: float) -> float:
        group = max(0, math.ceil(place) - 1)
        return self._within(group, place - group)

    def _within(self, group: int, part: float) -> float:
        begin, end = self._groups[group]
        return (begin + part * (end - begin)) / self.sample_rate

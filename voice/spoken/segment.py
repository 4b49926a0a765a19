"""Segment: one speakable piece of an answer, and which written words its spoken words stand for."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Span:
    """``spoken[spoken_start:spoken_end]`` stands for ``written[written_start:written_end]`` of the same
    segment.

    A span is indivisible: a plain word, or a number, link or code block with all the words it is spoken as.
    """

    spoken_start: int
    spoken_end: int
    written_start: int
    written_end: int


@dataclass(frozen=True, slots=True)
class SpokenRange:
    """A spoken word and where it lies in ``Segment.spoken``: ``spoken[start:end] == text``."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Segment:
    """What the synthesiser gets for a stretch of the model's text.

    Attributes:
        spoken: Speakable text without line breaks; ``""`` when nothing of the stretch is meant for the ear.
        written: The stretch exactly as the model wrote it. All segments' ``written`` joined are the whole
            text.
        spans: In order and without gaps over ``spoken``; the spaces after a word belong to its span. Written
            ranges rise, and what lies between them (markup, spaces) is silent.
        ends_sentence: A sentence, list item, heading or the answer ends here, not just a clause.
    """

    spoken: str
    written: str
    spans: tuple[Span, ...] = ()
    ends_sentence: bool = False

    def written_until(self, spoken_chars: float) -> str:
        """The written text that was heard when ``spoken_chars`` characters of ``spoken`` were heard.

        A span counts as heard when at least half of its words' length was, so the cut lies at a word's end
        and never inside a number, tag or URL. Rises with ``spoken_chars``; all of ``written`` once everything
        was heard.
        """
        if spoken_chars >= len(self.spoken):
            return self.written
        end = 0
        for span in self.spans:
            text = self.spoken[span.spoken_start : span.spoken_end].rstrip()
            if spoken_chars < span.spoken_start + len(text) / 2:
                break
            end = span.written_end
        return self.written[:end]

    def words(self) -> list[SpokenRange]:
        """The spoken words with their character ranges, for timing in proportion to length."""
        return [SpokenRange(m.group(), m.start(), m.end()) for m in _WORD.finditer(self.spoken)]

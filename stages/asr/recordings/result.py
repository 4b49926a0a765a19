"""What comes out of a recording: its segments, with times and speakers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from voice.interfaces import Word


@dataclass(frozen=True, slots=True)
class Segment:
    """A sentence, or the part of one between two pauses.

    Attributes:
        start_s, end_s: In the recording.
        words: With their times in the recording; estimated ones have no probability.
        speaker: "A", "B", …; ``None``: not asked for, or unknown.
    """

    start_s: float
    end_s: float
    text: str
    words: tuple[Word, ...] = ()
    speaker: str | None = None


@dataclass(frozen=True, slots=True)
class RecordingTranscript:
    """What is said in a recording.

    Attributes:
        segments: In order of time.
        duration_s: Length of the recording.
        speech_s: How much of it was decoded: speech and short silences around it.
        language: Of most of it; ``None`` where the engine doesn't tell.
        exact_words: The times of words come from the engine; otherwise they are estimated from where speech is.
        pieces: Into how many it was cut.
        resumed: How many of these an earlier run had done.
        rechecked: How many had a text too short for their speech and were recognised again in halves.
        rejected: How many were taken for no speech, or their text for invented.
        notes: What was wrong with the file, in sentences.
    """

    path: Path
    segments: tuple[Segment, ...]
    duration_s: float
    speech_s: float = 0.0
    language: str | None = None
    exact_words: bool = False
    pieces: int = 0
    resumed: int = 0
    rechecked: int = 0
    rejected: int = 0
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All that is said, in one line."""
        return " ".join(segment.text for segment in self.segments)

"""What can be asked of a transcriber of recordings, and whom it asks and tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stages.asr.recordings.cut import CutOptions
from stages.asr.recordings.speakers import SpeakerTurns
from voice.interfaces import Pcm16

if TYPE_CHECKING:
    from stages.asr.recordings.result import RecordingTranscript


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """How recordings are transcribed.

    Attributes:
        language: A code like ``"de"``; ``None``: found in the first pieces, and kept for the whole recording.
        speakers: Tell speakers apart.
        resume: Use and keep a journal; see :mod:`stages.asr.recordings.journal`.
        cut: How a recording is cut into pieces.
    """

    language: str | None = None
    speakers: bool = False
    resume: bool = True
    cut: CutOptions = field(default_factory=CutOptions)


class Deliver(Protocol):
    """Keeps a transcript; the recording's journal is removed after that."""

    async def __call__(self, transcript: RecordingTranscript, /) -> None:
        """Write it where it belongs; raises what hinders that."""


class Diarising(Protocol):
    """What tells speakers apart; see :class:`stages.asr.speakers.diarise.Diariser`."""

    async def speakers(
        self, spans: Sequence[tuple[float, float]], read: Callable[[float, float], Pcm16]
    ) -> SpeakerTurns:
        """Who speaks when in these stretches of speech, in seconds."""


class RecordingProgress(Protocol):
    """Told how far a recording is. Called on the event loop."""

    def begin(self, duration_s: float | None) -> None:
        """A recording begins, of this length if that is known."""

    def at(self, done_s: float, resumed_s: float, duration_s: float | None) -> None:
        """So much of it is done now, of which an earlier run had done a part."""

    def end(self) -> None:
        """It is done, or has failed."""

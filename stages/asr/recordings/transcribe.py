"""How is a recording of any length recognised? Cut in its pauses, all pieces side by side, put together by time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stages.asr.recordings import journal
from stages.asr.recordings.options import Deliver, Diarising, RecordingOptions, RecordingProgress
from stages.asr.recordings.reading import SpeechFinder
from stages.asr.recordings.replicas import Replicas
from stages.asr.recordings.result import RecordingTranscript
from stages.asr.recordings.run import RecordingRun
from voice.errors import BadRequest
from voice.interfaces import Recogniser
from voice.scope import Scope

IN_FLIGHT = 8
"""Pieces that each recogniser has at once: four batches of Whisper, so that it never waits for the next."""


class RecordingTranscriber:
    """Transcribes recordings, one after another or side by side, on the same engines.

    Args:
        recognisers: At least one; pieces go to the one with the fewest at hand.
        finder: Tells where there is speech.
        diariser: Tells speakers apart; ``None``: it can't be asked for.
        journals: The folder of journals; ``None``: the default one.
        in_flight: Pieces that each recogniser has at once.

    Raises:
        BadRequest: No recogniser.
    """

    def __init__(
        self,
        recognisers: Sequence[Recogniser],
        finder: SpeechFinder,
        *,
        diariser: Diarising | None = None,
        journals: Path | None = None,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._replicas = Replicas(recognisers)
        self._finder = finder
        self._diariser = diariser
        self._journals = journals
        self._in_flight = max(1, in_flight) * len(recognisers)

    async def transcribe(
        self,
        path: str | Path,
        scope: Scope,
        options: RecordingOptions | None = None,
        progress: RecordingProgress | None = None,
        deliver: Deliver | None = None,
    ) -> RecordingTranscript:
        """What is said in a recording.

        Cancelling it keeps the journal: a later call goes on with the pieces that are missing. So does a ``deliver``
        that raises: it is given the transcript, to keep it, before the journal is removed.

        Raises:
            BadAudio: No recording that can be read.
            BadRequest: A language that a recogniser doesn't know, or speakers without a diariser.
            EngineFailed, Overloaded, DeadlineExceeded, ScopeCancelled: As named; pieces that were done are kept.
        """
        options = options or RecordingOptions()
        if options.speakers and self._diariser is None:
            raise BadRequest("speakers can't be told apart here: no diariser was given")
        with scope.child("stage") as work:
            run = RecordingRun(
                Path(path), self._replicas, self._finder, options, self._in_flight, progress, work
            )
            journals = self._journals or journal.default_folder()
            return await run.transcript(journals, self._diariser, deliver)

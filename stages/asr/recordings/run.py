"""One recording on its way: read ahead, recognised piece by piece and side by side, written down as it comes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path

from stages.asr.recordings import journal
from stages.asr.recordings.cut import Piece
from stages.asr.recordings.options import Deliver, Diarising, RecordingOptions, RecordingProgress
from stages.asr.recordings.reading import RecordingReader, SpeechFinder
from stages.asr.recordings.recheck import SpeakingRate, better, halves
from stages.asr.recordings.replicas import Replicas
from stages.asr.recordings.result import RecordingTranscript, Segment
from stages.asr.recordings.speakers import with_speakers
from stages.asr.recordings.timing import Stretch, placed, segments
from voice.executor import ThreadExecutor
from voice.interfaces import ASR_RATE_HZ, Transcript
from voice.scope import Scope

VOTERS = 5
"""So many pieces are heard before the language of a recording is settled: about a minute of speech."""


class RecordingRun:
    """The work on one recording; for one call of :meth:`transcript`.

    Args:
        path: The recording.
        replicas: Who recognises its pieces.
        finder: Tells where there is speech.
        options: What is wanted.
        in_flight: Pieces that are recognised at once, at most.
        progress: Told how far it is.
        scope: The work's; each piece is asked for in it.
    """

    def __init__(
        self,
        path: Path,
        replicas: Replicas,
        finder: SpeechFinder,
        options: RecordingOptions,
        in_flight: int,
        progress: RecordingProgress | None,
        scope: Scope,
    ) -> None:
        self._path = path
        self._replicas = replicas
        self._options = options
        self._language = options.language
        self._in_flight = in_flight
        self._progress = progress
        self._scope = scope
        self._reading_on = ThreadExecutor("recording-reader")
        self._writing_on = ThreadExecutor("recording-journal")
        self._reader = RecordingReader(path, finder, options.cut, self._reading_on, spool=options.speakers)
        self._journal: journal.Journal | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._found: dict[int, tuple[Stretch, Transcript]] = {}  # by where the piece begins
        self._rate = SpeakingRate()
        self._unjudged: list[Piece] = []  # recognised before the speaking rate was known
        self._reached_s = 0.0  # where the last piece that was begun ends
        self._done_s = self._resumed_s = self._speech_s = 0.0
        self._resumed = self._rechecked = 0

    async def transcript(
        self, journals: Path, diariser: Diarising | None, deliver: Deliver | None
    ) -> RecordingTranscript:
        """All of it; see :meth:`stages.asr.recordings.transcribe.RecordingTranscriber.transcribe`."""
        try:
            await self._reader.open()
            if self._options.resume:
                self._journal = await self._writing_on.run(self._open_journal, journals)
            if self._progress is not None:
                self._progress.begin(self._reader.duration_s)
            await self._recognise_all()
            result = await self._put_together(diariser)
            if deliver is not None:
                await deliver(result)
            if self._journal is not None:
                await self._writing_on.run(self._journal.remove)
            return result
        finally:
            await self._leave()

    async def _leave(self) -> None:
        """End what still runs, in order: whoever writes before what is written to."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._progress is not None:
            self._progress.end()
        await self._reader.close()
        if self._journal is not None:
            await self._writing_on.run(self._journal.close)
        self._reading_on.close()
        self._writing_on.close()

    def _open_journal(self, journals: Path) -> journal.Journal | None:
        setting = {
            "recognisers": self._replicas.names,
            "language": self._options.language,
            "cut": asdict(self._options.cut),
        }
        try:
            return journal.Journal(journals / journal.name_of(self._path, setting))
        except BlockingIOError:
            self._reader.notes.append(f"{self._path}: another run is at it, so this one can't be resumed")
        except OSError as error:
            self._reader.notes.append(f"{self._path}: can't be resumed if it is stopped ({error})")
        return None

    # ------------------------------------------------------------ pieces

    async def _recognise_all(self) -> None:
        async with aclosing(self._reader.pieces()) as pieces:
            if self._language is None and self._replicas.multilingual:
                await self._find_language(pieces)
            async for piece in pieces:
                while len(self._tasks) >= self._in_flight:
                    await self._one_done()
                self._begin(piece)
        while self._tasks:
            await self._one_done()
        await self._judge_the_first()

    async def _one_done(self) -> None:
        """Wait until a piece is done.

        Raises:
            VoiceError: Why a piece could not be recognised.
        """
        done, self._tasks = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        errors = [error for task in done if (error := task.exception()) is not None]
        if errors:
            raise errors[0]

    def _begin(self, piece: Piece) -> None:
        self._tasks.add(asyncio.create_task(self._do(piece), name=f"piece at {piece.start_s:.1f} s"))

    async def _do(self, piece: Piece) -> None:
        """Recognise a piece, or take what an earlier run wrote down; then see whether something is missing."""
        before_s, self._reached_s = self._reached_s, max(self._reached_s, piece.kept[-1][1] / ASR_RATE_HZ)
        extent_s = self._reached_s - before_s
        transcript = None if self._journal is None else self._journal.done.get(piece.key)
        if transcript is None:
            transcript = await self._heard(piece)
            await self._write_down(piece, transcript)
        else:
            self._resumed += 1
            self._resumed_s += extent_s
        self._keep(piece, transcript)
        self._speech_s += len(piece.audio) / ASR_RATE_HZ
        self._done_s += extent_s
        if self._progress is not None:
            self._progress.at(self._done_s, self._resumed_s, self._reader.duration_s)
        self._rate.add(piece, transcript)
        if self._rate.known:
            await self._judge(piece)
            await self._judge_the_first()
        else:
            self._unjudged.append(piece)

    async def _heard(self, piece: Piece) -> Transcript:
        return placed(piece, await self._replicas.transcribe(piece.audio, self._scope, self._language))

    async def _write_down(self, piece: Piece, transcript: Transcript) -> None:
        if self._journal is None:
            return
        try:
            await self._writing_on.run(self._journal.add, piece.key, transcript)
        except OSError as error:
            self._reader.notes.append(f"{self._path}: can't be resumed if it is stopped ({error})")
            self._journal = None

    def _keep(self, piece: Piece, transcript: Transcript) -> None:
        self._found[piece.kept[0][0]] = Stretch.of(piece), transcript

    def _kept(self, piece: Piece) -> Transcript:
        return self._found[piece.kept[0][0]][1]

    async def _judge(self, piece: Piece) -> None:
        """If the text is too short for its speech, recognise the piece in halves."""
        transcript = self._kept(piece)
        parts = halves(piece) if self._rate.too_short(piece, transcript) else None
        if parts is None:
            return
        self._rechecked += 1
        first, second = await asyncio.gather(self._heard(parts[0]), self._heard(parts[1]))
        if (more := better(transcript, first, second)) is not None:
            self._keep(piece, more)
            await self._write_down(piece, more)

    async def _judge_the_first(self) -> None:
        unjudged, self._unjudged = self._unjudged, []
        for piece in unjudged:
            await self._judge(piece)

    async def _find_language(self, pieces: AsyncIterator[Piece]) -> None:
        """Recognise the first pieces, each in its own language; the one that is heard longest is the recording's, and
        what was heard in others is recognised again in it."""
        first: list[Piece] = []
        async for piece in pieces:
            first.append(piece)
            self._begin(piece)
            if len(first) == VOTERS:
                break
        while self._tasks:
            await self._one_done()
        votes: Counter[str] = Counter()
        for piece in first:
            transcript = self._kept(piece)
            if transcript.language is not None and transcript.text:
                votes[transcript.language] += len(piece.audio)
        if not votes:
            return
        self._language = votes.most_common(1)[0][0]
        for piece in first:
            transcript = self._kept(piece)
            if transcript.text and transcript.language not in (None, self._language):
                transcript = await self._heard(piece)
                self._keep(piece, transcript)
                await self._write_down(piece, transcript)

    # ------------------------------------------------------------ the whole

    async def _put_together(self, diariser: Diarising | None) -> RecordingTranscript:
        found = [self._found[start] for start in sorted(self._found)]
        whole: list[Segment] = [s for stretch, transcript in found for s in segments(stretch, transcript)]
        exact = any(transcript.words for _, transcript in found)
        if self._options.speakers and diariser is not None:
            spans = [span for stretch, _ in found for span in stretch.spans]
            whole = with_speakers(
                whole, await diariser.speakers(spans, self._reader.audio), exact_words=exact
            )
        languages = Counter(t.language for _, t in found if t.language is not None and t.text)
        return RecordingTranscript(
            path=self._path,
            segments=tuple(whole),
            duration_s=self._reader.duration_s or 0.0,
            speech_s=self._speech_s,
            language=languages.most_common(1)[0][0] if languages else self._language,
            exact_words=exact,
            pieces=len(found),
            resumed=self._resumed,
            rechecked=self._rechecked,
            rejected=sum(t.rejected is not None for _, t in found),
            notes=tuple(self._reader.notes),
        )

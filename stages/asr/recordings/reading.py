"""A recording as pieces, read in a thread a little ahead of those who recognise them."""

from __future__ import annotations

import asyncio
import tempfile
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from stages.asr.recordings.cut import CutOptions, Cutter, Piece
from stages.asr.recordings.decode import RecordingFile
from stages.asr.recordings.speech import Probabilities
from voice.errors import BadRequest, EngineFailed
from voice.executor import Executor
from voice.interfaces import ASR_RATE_HZ, Pcm16


class SpeechFinder(Protocol):
    """Where there is speech, for one recording after another; see :class:`stages.asr.recordings.speech.SpeechMeter`."""

    def open(self) -> SpeechPath:
        """A stream for a recording."""


class SpeechPath(Protocol):
    """One recording's probabilities of speech, in order; blocking."""

    def push(self, pcm: Pcm16) -> Iterator[tuple[Pcm16, Probabilities]]:
        """More of it; what is judged: whole windows with a probability for each."""

    def end(self) -> Iterator[tuple[Pcm16, Probabilities]]:
        """It is over; the rest."""


class RecordingReader:
    """Decodes, judges and cuts one recording.

    Args:
        path: The file.
        finder: Tells where there is speech.
        options: How it is cut.
        executor: Where all of it runs; two calls never overlap.
        spool: Keep the pieces' audio on disk, for :meth:`audio`.

    Attributes:
        duration_s: Its length: as the file states it, and what was read once it is read; ``None`` while unknown.
        read_s: How much has been read.
        notes: What was wrong with it, once it is read.
    """

    def __init__(
        self,
        path: Path,
        finder: SpeechFinder,
        options: CutOptions,
        executor: Executor,
        *,
        spool: bool = False,
    ) -> None:
        self.path = path
        self.duration_s: float | None = None
        self.read_s = 0.0
        self.notes: list[str] = []
        self._finder = finder
        self._options = options
        self._executor = executor
        self._spool = _Spool() if spool else None
        self._steps: Iterator[list[Piece]] | None = None
        self._file: RecordingFile | None = None

    async def open(self) -> None:
        """Look into the file.

        Raises:
            BadAudio: As :class:`~stages.asr.recordings.decode.RecordingFile` says.
        """
        await self._executor.run(self._open)

    def _open(self) -> None:
        self._file = RecordingFile(self.path)
        self.duration_s = self._file.duration_s

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The pieces in order; the next ones are read while these are worked on. Close it when it isn't read to its
        end: a step that is under way ends first.

        Raises:
            BadAudio: The file is no audio after all.
            EngineFailed: From the detector.
        """
        ahead = self._executor.run(self._step)
        try:
            while (found := await asyncio.shield(ahead)) is not None:
                ahead = self._executor.run(self._step)
                for piece in found:
                    yield piece
        finally:
            with suppress(Exception):  # told to whoever read the pieces, or of no interest to one who left
                await asyncio.wait({ahead})
                ahead.exception()

    def audio(self, start_s: float, end_s: float) -> Pcm16:
        """Audio from within a stretch of speech that was read; blocking.

        Raises:
            BadRequest: It is not kept.
        """
        if self._spool is None:
            raise BadRequest("this recording's audio is not kept")
        return self._spool.read(start_s, end_s)

    async def close(self) -> None:
        """Let go of the file and of what was kept on disk."""
        await self._executor.run(self._close)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._spool is not None:
            self._spool.close()

    # ------------------------------------------------------------ in the executor

    def _step(self) -> list[Piece] | None:
        """The pieces that the next stretch of the file completes; ``None`` at its end."""
        if self._steps is None:
            self._steps = self._all_steps()
        return next(self._steps, None)

    def _all_steps(self) -> Iterator[list[Piece]]:
        assert self._file is not None, "open() comes first"
        speech, cutter = self._finder.open(), Cutter(self._options)
        samples = 0
        for block in self._file.blocks():
            samples += len(block)
            self.read_s = samples / ASR_RATE_HZ
            for judged in speech.push(block):
                yield self._kept(cutter.push(*judged))
        for judged in speech.end():
            yield self._kept(cutter.push(*judged))
        yield self._kept(cutter.end())
        self.duration_s = self.read_s
        self.notes += self._file.notes

    def _kept(self, pieces: Iterator[Piece]) -> list[Piece]:
        found = list(pieces)
        for piece in found:
            if self._spool is not None:
                try:
                    self._spool.add(piece)
                except OSError as error:
                    message = f"{self.path}: its speech can't be kept for telling speakers apart: {error}"
                    raise EngineFailed(message, retryable=False) from error
        return found


class _Spool:
    """The audio of pieces in a file without a name: it is gone with the process, however that ends."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="voice-")  # noqa: SIM115 - closed by its owner
        self._starts: list[int] = []
        self._parts: list[tuple[int, int]] = []  # end in the recording, place in the file; in samples
        self._samples = 0

    def add(self, piece: Piece) -> None:
        self._file.seek(0, 2)
        self._file.write(piece.audio.tobytes())
        for start, end in piece.kept:
            if self._parts and self._parts[-1][0] == start:  # speech without a pause, in two pieces
                self._parts[-1] = end, self._parts[-1][1]
            else:
                self._starts.append(start)
                self._parts.append((end, self._samples))
            self._samples += end - start

    def read(self, start_s: float, end_s: float) -> Pcm16:
        start, end = round(start_s * ASR_RATE_HZ), round(end_s * ASR_RATE_HZ)
        number = bisect_right(self._starts, start) - 1
        until, place = self._parts[number] if number >= 0 else (0, 0)
        if number < 0 or end > until + 1:
            raise BadRequest(f"the audio from {start_s:.2f} to {end_s:.2f} s is not kept: it spans silence")
        self._file.seek((place + start - self._starts[number]) * 2)
        return np.frombuffer(self._file.read((min(end, until) - start) * 2), np.int16)

    def close(self) -> None:
        self._file.close()

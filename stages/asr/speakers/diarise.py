"""Who speaks when in a recording? Windows of its speech are embedded, the voices found, and each moment given to one.

Where two people speak at once, one of them is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stages.asr.speakers.cluster import find_voices
from stages.asr.speakers.encoder import WINDOW_SAMPLES, SpeakerEncoder
from stages.asr.speakers.placing import Moments, place
from stages.asr.speakers.windows import Piece, pieces_of
from voice.compute import ComputeGate
from voice.errors import BadAudio, BadRequest
from voice.executor import Executor, ThreadExecutor
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.scope import Priority

ReadAudio: TypeAlias = Callable[[float, float], Pcm16]
"""Audio from start to end in seconds: 16 kHz, int16, one channel. Called in another thread; may block."""

AT_ONCE = 64
"""Windows of a call in the executor: half a second of work."""


@dataclass(frozen=True, slots=True)
class SpeakerTurn:
    """One speaker, for a while.

    Attributes:
        start_s, end_s: In the recording.
        speaker: "A", "B", … in the order in which they are first heard; "AA" after "Z".
    """

    start_s: float
    end_s: float
    speaker: str


@dataclass(frozen=True, slots=True)
class DiariserCost:
    """What a diariser has done so far.

    Attributes:
        speech_s: Seconds of speech.
        windows: Embeddings that were made.
        embedding_s: Seconds of reading and embedding, by the loop's time.
        clustering_s: Seconds of finding and placing the voices.
    """

    speech_s: float = 0.0
    windows: int = 0
    embedding_s: float = 0.0
    clustering_s: float = 0.0


class Diariser:
    """Tells speakers apart with the GE2E encoder on one CPU thread, about 0.5 s of it per minute of speech.

    Args:
        encoder: The encoder; ``None``: the catalogue's, loaded (and downloaded) on first use.
        executor: Where blocking work runs; ``None``: a thread of its own.
        gate: The process's compute gate; half a second of work takes a slot. ``None``: no gate.

    Attributes:
        cost: What it has done so far.
    """

    def __init__(
        self,
        encoder: SpeakerEncoder | None = None,
        *,
        executor: Executor | None = None,
        gate: ComputeGate | None = None,
    ) -> None:
        self.name = "ge2e-speakers"
        self.cost = DiariserCost()
        self._encoder = encoder
        self._executor = executor or ThreadExecutor("speakers")
        self._owns_executor = executor is None
        self._gate = gate

    async def speakers(
        self, spans: Sequence[tuple[float, float]], read: ReadAudio, *, most: int | None = None
    ) -> list[SpeakerTurn]:
        """Who speaks when.

        Cancelling it takes effect after at most half a second of work, or when the voices have been found.

        Args:
            spans: Where there is speech, start and end in seconds, as a voice detector says; touching ones are one.
            read: Gives the audio between two times inside a span, at most 30 s of it.
            most: At most so many speakers; ``None``: as many as are heard. One with under 3 s of speech isn't
                told apart.

        Returns:
            Turns in order that together cover the spans; none when there are no spans.

        Raises:
            BadRequest: Unusable spans, more than a day of speech, or ``most`` below 1.
            BadAudio: ``read`` gave something else than 16 kHz int16 of one channel.
            ModelMissing, EngineFailed: From the encoder.
        """
        if most is not None and most < 1:
            raise BadRequest(f"most must be 1 or more speakers, not {most}")
        pieces = pieces_of(spans)
        if not pieces:
            return []
        now = asyncio.get_running_loop().time
        made = []
        for some in _batches(pieces):
            async with self._slot():
                began = now()
                made.append(await self._executor.run(self._embed, some, read))
            self._count(some, embedding_s=now() - began)
        async with self._slot():
            began = now()
            turns = await self._executor.run(_tell_apart, pieces, np.concatenate(made), most)
        self._count((), clustering_s=now() - began)
        return turns

    def close(self) -> None:
        """End the thread of its own; a call under way still ends."""
        if self._owns_executor:
            self._executor.close()

    def _slot(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._gate is None else self._gate.slot(Priority.BACKGROUND)

    def _embed(self, pieces: Sequence[Piece], read: ReadAudio) -> npt.NDArray[np.float32]:
        if self._encoder is None:
            self._encoder = SpeakerEncoder()
        return self._encoder.embed([window for piece in pieces for window in _cut(piece, read)])

    def _count(self, pieces: Sequence[Piece], *, embedding_s: float = 0.0, clustering_s: float = 0.0) -> None:
        self.cost = DiariserCost(
            self.cost.speech_s + sum(piece.end_s - piece.start_s for piece in pieces),
            self.cost.windows + sum(len(piece.windows) for piece in pieces),
            self.cost.embedding_s + embedding_s,
            self.cost.clustering_s + clustering_s,
        )


def _tell_apart(
    pieces: Sequence[Piece], vectors: npt.NDArray[np.float32], most: int | None
) -> list[SpeakerTurn]:
    times = np.concatenate([piece.windows for piece in pieces])
    return _named(place(pieces, vectors, find_voices(times, vectors, most)))


def speaker_of(turns: Sequence[SpeakerTurn], start_s: float, end_s: float) -> str | None:
    """Who speaks most between two times, or if nobody does, whose turn is nearest; ``None`` when there are no turns.

    For the words and sentences of a transcript.
    """
    shares: dict[str, float] = {}
    for turn in turns:
        together_s = min(turn.end_s, end_s) - max(turn.start_s, start_s)
        if together_s > 0.0:
            shares[turn.speaker] = shares.get(turn.speaker, 0.0) + together_s
    if shares:
        return max(shares, key=lambda speaker: shares[speaker])
    nearest = min(turns, key=lambda turn: max(turn.start_s - end_s, start_s - turn.end_s), default=None)
    return None if nearest is None else nearest.speaker


def letters(number: int) -> str:
    """The name of speaker ``number``, from 0: A … Z, AA, AB, …"""
    name = ""
    while number >= 0:
        number, letter = divmod(number, 26)
        name = chr(ord("A") + letter) + name
        number -= 1
    return name


def _named(moments: Moments) -> list[SpeakerTurn]:
    names: dict[int, str] = {}
    for _, _, speaker in moments:
        names.setdefault(speaker, letters(len(names)))
    return [SpeakerTurn(start_s, end_s, names[speaker]) for start_s, end_s, speaker in moments]


def _batches(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    windows = 0
    for piece in pieces:
        batch.append(piece)
        windows += len(piece.windows)
        if windows >= AT_ONCE:
            yield batch
            batch, windows = [], 0
    if batch:
        yield batch


def check_audio(audio: object, seconds: float) -> Pcm16:
    """The audio that was read, if it can be used. The end of a file may come early.

    Raises:
        BadAudio: Not int16 of one channel, or 0.1 s more than was asked for: another rate.
    """
    if not isinstance(audio, np.ndarray) or audio.dtype != np.int16 or audio.ndim != 1:
        shape = (
            f"{audio.dtype} of shape {audio.shape}" if isinstance(audio, np.ndarray) else type(audio).__name__
        )
        raise BadAudio(f"to tell speakers apart, int16 samples of one channel are needed, not {shape}")
    if len(audio) > (seconds + 0.1) * ASR_RATE_HZ:
        raise BadAudio(f"{len(audio)} samples came for {seconds:.2f} s at {ASR_RATE_HZ} Hz: another rate?")
    return audio


def _cut(piece: Piece, read: ReadAudio) -> list[Pcm16]:
    """The audio of each window of a piece, which is read once."""
    audio = check_audio(read(piece.start_s, piece.end_s), piece.end_s - piece.start_s)
    ranges = np.round((piece.windows - piece.start_s) * ASR_RATE_HZ).astype(int).tolist()
    return [audio[start : min(end, start + WINDOW_SAMPLES)] for start, end in ranges]

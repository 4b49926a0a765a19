"""ToneSynthesiser: the fake voice whose every word says who speaks, in which turn."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence

import numpy as np

from voice.errors import BadRequest, EngineFailed
from voice.interfaces import Pcm16, Speech, SpokenWord
from voice.scope import Identity, Scope
from voice.testing.audio import LOUD, WORD_S, tone, tone_for
from voice.testing.stages import KEPT


class ToneSynthesiser:
    """Speaks each word as 200 ms of a tone that tells session and turn.

    :func:`~voice.testing.words_heard` reads it back from any recording.

    Args:
        rtf: Loop time it takes to make a second of audio.
        first_byte_s: Loop time before the first audio of a call, beside ``rtf``.
        chunk_s: Length of the pieces it yields, as int16 samples.
        chunk_bytes: Yield ``bytes`` of these sizes in turn instead, odd ones and 0 included.
        lead_s: Silence before the first word.
        word_times: Say when words begin and end, as some real engines do.
        session_number: Session id → number of its tone. By default the digits the id ends in, else the order
            in which sessions first spoke.
        fail_at, hang_at: Numbers of the calls (from 0) that fail, or stop, after the first piece.

    Attributes:
        texts: The exact text of the latest calls.
        opened, finished, closed_early: Calls begun, spoken to the end, and closed or failed before it.
    """

    name = "tone-synthesiser"

    def __init__(
        self,
        *,
        rtf: float = 0.05,
        first_byte_s: float = 0.0,
        chunk_s: float = 0.1,
        chunk_bytes: Sequence[int] | None = None,
        lead_s: float = 0.0,
        word_times: bool = False,
        session_number: Callable[[str], int] | None = None,
        fail_at: Collection[int] = (),
        hang_at: Collection[int] = (),
        sample_rate: int = 24_000,
        max_chars: int = 400,
    ) -> None:
        if chunk_bytes is not None and not any(chunk_bytes):
            raise BadRequest("chunk_bytes needs at least one size above 0")
        self.rtf, self.first_byte_s, self.lead_s = rtf, first_byte_s, lead_s
        self.chunk_s, self.chunk_bytes = chunk_s, chunk_bytes
        self.word_times = word_times
        self.sample_rate, self.max_chars = sample_rate, max_chars
        self.fail_at, self.hang_at = fail_at, hang_at
        self.session_number = session_number or self._number
        self.texts: deque[str] = deque(maxlen=KEPT)
        self.opened = self.finished = self.closed_early = 0
        self._sessions: dict[str, int] = {}

    @property
    def running(self) -> int:
        """Calls under way."""
        return self.opened - self.finished - self.closed_early

    def _number(self, session: str) -> int:
        digits = re.search(r"\d+$", session)
        return int(digits[0]) if digits else self._sessions.setdefault(session, len(self._sessions))

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        """See :class:`~voice.interfaces.Synthesiser`; any voice is known."""
        if len(text) > self.max_chars:
            raise BadRequest(f"{len(text)} characters in one call; this synthesiser takes {self.max_chars}")
        number = self.opened
        self.opened += 1
        self.texts.append(text)
        done = False
        try:
            await asyncio.sleep(self.first_byte_s)
            for index, speech in enumerate(self._pieces(text, scope.identity)):
                if index == 1 and number in self.fail_at:
                    raise EngineFailed(f"call {number} of the tone synthesiser fails as it was told to")
                if index == 1 and number in self.hang_at:
                    await asyncio.Event().wait()
                samples = len(speech.pcm) / 2 if isinstance(speech.pcm, bytes) else len(speech.pcm)
                await asyncio.sleep(self.rtf * samples / self.sample_rate)
                yield speech
            done = True
        finally:
            self.finished += done
            self.closed_early += not done

    def _pieces(self, text: str, identity: Identity) -> list[Speech]:
        words = [w for w in text.split() if any(c.isalnum() for c in w)]
        hz = tone_for(self.session_number(identity.session), identity.turn)
        word = tone(hz, round(WORD_S * self.sample_rate), self.sample_rate, LOUD)
        lead = np.zeros(round(self.lead_s * self.sample_rate), np.int16)
        pcm = np.concatenate([lead, *[word] * len(words)])
        times = [
            SpokenWord(w, self.lead_s + i * WORD_S, self.lead_s + (i + 1) * WORD_S)
            for i, w in enumerate(words)
            if self.word_times
        ]
        if self.chunk_bytes is None:
            step = round(self.chunk_s * self.sample_rate)
            pieces: list[Pcm16 | bytes] = [pcm[i : i + step] for i in range(0, len(pcm), step)]
        else:
            pieces = list(_cut(pcm.astype("<i2").tobytes(), self.chunk_bytes))
        # all times come with the first piece: they are known before any of the audio is made
        return [Speech(piece, tuple(times) if i == 0 else ()) for i, piece in enumerate(pieces)]


def _cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    pieces: list[bytes] = []
    start = 0
    while start < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[start : start + size])
        start += size
    return pieces

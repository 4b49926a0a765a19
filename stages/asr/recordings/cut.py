"""Where is a recording cut into pieces that are recognised apart? In pauses, the longest first, never in a word.

Pure: probabilities of speech and audio come in, pieces come out, in order. What is kept of a recording is its speech
with a little silence around; the rest is never decoded. Several short stretches of speech make one piece, with the
silence between them shortened, since a recogniser's window costs the same whether it is full or not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stages.asr import levels
from stages.asr.recordings.speech import Probabilities
from stages.vad.silero import WINDOW_SAMPLES
from voice.interfaces import ASR_RATE_HZ, Pcm16

_CUT_SHARE = 0.6
"""A piece is cut behind this share of what it may be: late enough to fill its window, early enough for a choice of
pauses."""

QUICK_AIM_S = 9.4
"""With half a second of silence such a piece fills Whisper's narrowest window, of 10 s, whose encoder is the cheapest a
second: 30 % less time. But longer pieces tell Whisper more of what is talked about: of 2,039 words of joined prompts
tiny.en had 57 wrong in pieces of up to 9.4 s, 44 in 19.4 s, 34 in 23.4 s and 30 in 27.4 s."""


@dataclass(frozen=True, slots=True)
class CutOptions:
    """How a recording is cut. Lengths in seconds.

    Attributes:
        begins, ends: Probability from which on speech begins, and below which it ends (Silero's own: 0.5, less 0.15).
        gap_s: Shortest pause between two stretches of speech: three windows of Silero.
        least_s: Shorter speech is none: no word is shorter than two windows.
        before_s, after_s: Silence kept around speech: fricatives at a word's edges often score below ``ends``.
        aim_s: A piece is as long as possible up to this; a stretch of speech without a pause may be longer. With half
            a second of silence it fills Whisper's whole window; for shorter ones see :data:`QUICK_AIM_S`.
        longest_s: No piece is longer; where there is no pause before that, it is cut where it is quietest.
        held_s: No piece spans more of the recording than this, pauses included.
    """

    begins: float = 0.5
    ends: float = 0.35
    gap_s: float = 0.09
    least_s: float = 0.06
    before_s: float = 0.25
    after_s: float = 0.35
    aim_s: float = 27.4
    longest_s: float = 28.0
    held_s: float = 120.0


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of a recording to be recognised by itself.

    Attributes:
        spans: Where there is speech in it, in samples of the recording, in order.
        kept: Which parts of the recording it consists of, in samples of the recording, in order.
        audio: Those parts one after another, 16 kHz.
    """

    spans: tuple[tuple[int, int], ...]
    kept: tuple[tuple[int, int], ...]
    audio: Pcm16 = field(repr=False)

    @property
    def key(self) -> tuple[int, int, int]:
        """What tells it from all other pieces of the recording: start, end and length in samples."""
        return self.kept[0][0], self.kept[-1][1], len(self.audio)

    @property
    def start_s(self) -> float:
        """Where its first speech begins in the recording."""
        return self.spans[0][0] / ASR_RATE_HZ

    @property
    def end_s(self) -> float:
        """Where its last speech ends in the recording."""
        return self.spans[-1][1] / ASR_RATE_HZ

    def time_of(self, seconds: float) -> float:
        """A time in the piece's audio as one in the recording, in seconds."""
        offsets = [0]
        for start, end in self.kept:
            offsets.append(offsets[-1] + end - start)
        sample = min(max(seconds, 0.0) * ASR_RATE_HZ, float(offsets[-1]))
        part = min(bisect_right(offsets, sample) - 1, len(self.kept) - 1)
        return (self.kept[part][0] + sample - offsets[part]) / ASR_RATE_HZ


class Cutter:
    """Cuts one recording.

    Args:
        options: How.
    """

    def __init__(self, options: CutOptions | None = None) -> None:
        o = self.options = options or CutOptions()
        self._gap, self._least, self._before, self._after, self._aim, self._longest, self._held = (
            round(s * ASR_RATE_HZ)
            for s in (o.gap_s, o.least_s, o.before_s, o.after_s, o.aim_s, o.longest_s, o.held_s)
        )
        self._audio: Pcm16 = np.zeros(0, np.int16)
        self._audio_from = 0  # sample of the recording at which _audio begins
        self._at = 0  # windows before this are judged
        self._spans: list[tuple[int, int]] = []  # of the piece that is being gathered
        self._edge = 0  # nothing before this sample belongs to it
        self._since: int | None = None  # speech is going on since then…
        self._last = 0  # …and was last heard here

    def push(self, audio: Pcm16, probabilities: Probabilities) -> Iterator[Piece]:
        """More of the recording, in whole windows, with the probability of each; the pieces that are complete."""
        self._audio = np.concatenate([self._audio, audio])
        for probability in probabilities.tolist():
            start, self._at = self._at, self._at + WINDOW_SAMPLES
            if probability >= (self.options.begins if self._since is None else self.options.ends):
                if self._since is None:
                    self._since = start
                self._last = self._at
                if self._at - self._since >= self._longest - self._before - self._after:
                    self._break_off()
                    yield from self._full()
            elif self._since is not None and self._at - self._last >= self._gap:
                self._pause()
                yield from self._full()
            if self._spans and self._at - self._spans[0][0] >= self._held and self._since is None:
                yield self._take(len(self._spans))
        self._forget()

    def end(self) -> Iterator[Piece]:
        """The recording is over: the rest of it."""
        if self._since is not None:
            self._pause()
            yield from self._full()
        if self._spans:
            yield self._take(len(self._spans))

    def _pause(self) -> None:
        """Speech has ended."""
        assert self._since is not None
        if self._last - self._since >= self._least:
            self._spans.append((self._since, self._last))
        self._since = None

    def _break_off(self) -> None:
        """Speech goes on for too long: end it where it was quietest."""
        assert self._since is not None
        first = self._since - self._audio_from
        heard = levels.block_levels(self._audio[first : self._at - self._audio_from])
        block = round(levels.BLOCK_S * ASR_RATE_HZ)
        smooth = np.convolve(heard, np.full(5, 0.2, np.float32), mode="same")
        half = int(len(smooth) * _CUT_SHARE)
        cut = self._since + (half + int(smooth[half:].argmin())) * block + block // 2
        self._spans.append((self._since, cut))
        self._since = cut

    def _full(self) -> Iterator[Piece]:
        """Pieces that can't take the last stretch of speech any more."""
        while len(self._spans) > 1 and self._length(self._spans) > self._aim:
            yield self._take(self._best_cut())
        if self._spans and self._since is not None and self._spans[-1][1] == self._since:
            yield self._take(len(self._spans))  # broken off: what goes on is another piece

    def _best_cut(self) -> int:
        """How many stretches of speech make the next piece: those before the longest pause late enough in it."""
        spans = self._spans
        best, best_pause = 1, -1.0
        for count in range(1, len(spans)):
            length = self._length(spans[:count])
            if length > self._aim:
                break
            # beyond a second all pauses are as good
            pause = min(float(spans[count][0] - spans[count - 1][1]), float(ASR_RATE_HZ))
            if length < _CUT_SHARE * self._aim:
                pause = 0.0
            if pause >= best_pause:
                best, best_pause = count, pause
        return best

    def _length(self, spans: list[tuple[int, int]]) -> int:
        return sum(end - start for start, end in self._kept(spans, spans[-1][1] + self._after))

    def _kept(self, spans: list[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
        """The parts of the recording around ``spans``, with silence before and after; those that touch are one."""
        kept: list[tuple[int, int]] = []
        for start, end in spans:
            first, last = max(self._edge, start - self._before), min(limit, end + self._after)
            if kept and first <= kept[-1][1]:
                kept[-1] = kept[-1][0], last
            else:
                kept.append((first, last))
        return kept

    def _take(self, count: int) -> Piece:
        """The piece of the first ``count`` stretches. Silence up to what follows is shared evenly."""
        spans, self._spans = self._spans[:count], self._spans[count:]
        following = self._spans[0][0] if self._spans else self._since
        end = spans[-1][1]
        limit = self._at if following is None else min(self._at, (end + following) // 2)
        kept = self._kept(spans, max(end, limit))
        self._edge = kept[-1][1]
        parts = [self._audio[a - self._audio_from : b - self._audio_from] for a, b in kept]
        return Piece(tuple(spans), tuple(kept), np.concatenate(parts))

    def _forget(self) -> None:
        """Let go of audio that no piece can need."""
        begins = [self._at, *(s[0] for s in self._spans[:1]), *([] if self._since is None else [self._since])]
        needed = max(self._audio_from, min(begins) - self._before)
        self._audio = self._audio[needed - self._audio_from :].copy()
        self._audio_from = needed

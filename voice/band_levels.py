"""Levels: how loud the bands of a voice are from moment to moment, and what was played to the user in these terms."""

from __future__ import annotations

import math
from collections import deque
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from voice.interfaces import Pcm16
from voice.one_thread import product

Floats: TypeAlias = npt.NDArray[np.float32]

HOP_S = 0.016
FRAME_S = 0.032
MAX_DELAY_S = 0.66
"""Longest way from the playout to the microphone's audio: a loudspeaker's buffer, the room, the network's jitter."""
MAX_AHEAD_S = 3.0
"""Audio may be announced to :meth:`Played.add` this long before the ear has it."""
MOVED_APART_S = 0.06
"""A piece that is due this much before or after the last one's end still continues it: clients read with jitter."""
BANDS = 20
LAGS = round(MAX_DELAY_S / HOP_S) + 1
LEVELLING = 0.05
"""How much of a band's mean level a frame replaces (0.3 s): the rest is how the level moves."""

_LOWEST_HZ, _HIGHEST_HZ = 150.0, 7000.0
_ROWS = LAGS + round(MAX_AHEAD_S / HOP_S) + 16
_SILENCE_DB = -65.0
_KEPT_S = MAX_DELAY_S + 0.75
"""Audio that was not looked at is kept so long after it was heard: the longest delay, and what means settle in."""


class Played:
    """Levels of what was played, by hop of loop time; what lies between the pieces is silence.

    Audio is only kept, for a while, until somebody asks for levels: while the microphone is silent nobody does.
    """

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._frame = round(FRAME_S * rate_hz)
        self._rest = np.zeros(0, np.float32)
        self._skip = 0.0  # samples of a hop that did not come out even
        self._due: float | None = None  # loop time after the last sample
        self._slot = 0  # of the frame that `rest` begins with
        self._end = 0  # slots before this one are written
        self._mean = np.full(BANDS, _SILENCE_DB, np.float32)
        self._last_sound = -math.inf
        self._unseen: deque[tuple[Pcm16, float]] = deque()  # bounded by _KEPT_S and MAX_AHEAD_S
        self._lost = False  # some of it was let go
        # Each row is kept twice, so that any stretch can be read as one piece.
        self._levels = np.full((2 * _ROWS, BANDS), _SILENCE_DB, np.float32)
        self._moves = np.zeros((2 * _ROWS, BANDS), np.float32)
        self._energy = np.zeros(2 * _ROWS, np.float32)

    def sounded_since(self, at: float) -> bool:
        """Whether anything is heard after loop time ``at``."""
        return self._last_sound > at

    def add(self, pcm: Pcm16, at: float) -> None:
        """What is played next: int16 (n,), its first sample heard at loop time ``at``."""
        if pcm.size == 0:
            return
        end = at + pcm.size / self._rate_hz
        self._last_sound = max(self._last_sound, end)
        self._unseen.append((pcm, at))
        self.let_go(end - _KEPT_S - MAX_AHEAD_S)

    def let_go(self, at: float) -> None:
        """Nobody will ask for levels of before loop time ``at``, less the longest delay."""
        while self._unseen and self._unseen[0][1] + self._unseen[0][0].size / self._rate_hz < at:
            self._unseen.popleft()
            self._lost = True

    def _see(self) -> None:
        """Take in what was kept, neighbouring pieces as one."""
        while self._unseen:
            pcm, at = self._unseen.popleft()
            parts, end = [pcm], at + pcm.size / self._rate_hz
            while self._unseen and abs(self._unseen[0][1] - end) <= MOVED_APART_S:
                parts.append(self._unseen.popleft()[0])
                end += parts[-1].size / self._rate_hz
            self._take_in(pcm if len(parts) == 1 else np.concatenate(parts), at)

    def _take_in(self, pcm: Pcm16, at: float) -> None:
        if self._due is None or abs(at - self._due) > MOVED_APART_S:
            self._due = at
            self._rest = np.zeros(0, np.float32)
            self._slot = round(at / HOP_S)
            self._skip = 0.0
            self._fill(self._slot)
        self._due += pcm.size / self._rate_hz
        wave = np.concatenate((self._rest, pcm.astype(np.float32)))
        hop = HOP_S * self._rate_hz
        count = max(0, math.floor((wave.size - self._frame - self._skip) / hop) + 1)
        starts = (self._skip + hop * np.arange(count)).astype(np.intp)
        if count:
            window, _ = analysis(self._rate_hz)
            frames = np.empty((count, self._frame), np.float32)
            for frame, start in zip(frames, starts.tolist(), strict=True):
                np.multiply(wave[start : start + self._frame], window, out=frame)
            self._write(band_levels(np.fft.rfft(frames), self._rate_hz))
        used = self._skip + hop * count
        self._rest = wave[int(used) :]
        self._skip = used - int(used)

    def cut(self, at: float) -> None:
        """What was to be heard at loop time ``at`` and later is not."""
        self._last_sound = min(self._last_sound, at)
        while self._unseen and self._unseen[-1][1] >= at:
            self._unseen.pop()
        if self._unseen:
            pcm, begins = self._unseen.pop()
            self._unseen.append((pcm[: max(0, round((at - begins) * self._rate_hz))], begins))
        if self._due is None or at >= self._due:
            return
        slot = max(round(at / HOP_S), self._end - _ROWS + LAGS)
        if slot < self._end:
            self._end = slot
            self._mean[:] = self._levels[(slot - 1) % _ROWS] - self._moves[(slot - 1) % _ROWS]
        self._due = None

    def _write(self, levels: Floats) -> None:
        """The levels of the next frames, shape (frames, bands)."""
        np.maximum(levels, _SILENCE_DB, out=levels)
        if self._lost:  # what was before is not known; it was not silence
            self._mean[:] = levels[0]
            self._lost = False
        moved = np.empty_like(levels)
        for row, level in zip(moved, levels, strict=True):
            self._mean += LEVELLING * (level - self._mean)
            np.subtract(level, self._mean, out=row)
        energy = np.einsum("ij,ij->i", moved, moved)
        newest = slice(max(0, len(levels) - _ROWS), None)
        slots = (self._slot + np.arange(len(levels))[newest]) % _ROWS
        for rows in (slots, slots + _ROWS):
            self._levels[rows], self._moves[rows], self._energy[rows] = (
                levels[newest],
                moved[newest],
                energy[newest],
            )
        self._slot += len(levels)
        self._end = max(self._end, self._slot)

    def _fill(self, slot: int) -> None:
        """Silence up to a slot."""
        count = slot - self._end
        if count <= 0:
            return
        fade = (1.0 - LEVELLING) ** np.arange(1, min(count, _ROWS) + 1, dtype=np.float32)[:, None]
        means = _SILENCE_DB + (self._mean - _SILENCE_DB) * fade
        rows = (self._end + np.arange(fade.size)) % _ROWS
        for both in (rows, rows + _ROWS):
            self._levels[both] = _SILENCE_DB
            self._moves[both] = _SILENCE_DB - means
            self._energy[both] = np.square(_SILENCE_DB - means).sum(axis=1)
        self._mean[:] = means[-1]
        self._end = slot

    def before(self, slot: int) -> tuple[Floats, Floats, Floats]:
        """Levels and movements of the last hops up to ``slot``, oldest first, shape (lags + 1, bands); and the
        movements' energies, shape (lags + 1,)."""
        self._see()
        if slot >= self._end:
            self._fill(slot + 1)
        stop = slot % _ROWS + _ROWS + 1
        start = stop - LAGS - 1
        return self._levels[start:stop], self._moves[start:stop], self._energy[start:stop]


def band_levels(spectrum: npt.NDArray[np.complexfloating], rate_hz: int) -> Floats:
    """Level of each band, dB re full scale, shape (frames, bands)."""
    _, bands = analysis(rate_hz)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    return np.asarray(10.0 * np.log10(product(power, bands) + 1e-10), np.float32)


@cache
def analysis(rate_hz: int) -> tuple[Floats, Floats]:
    """Window, and the weights (bins, bands) of bands evenly spaced in mel."""
    size = round(FRAME_S * rate_hz)
    window = np.hanning(size + 1)[:-1]  # two of them, half a frame apart, add up to 1
    mel = 2595.0 * np.log10(1.0 + np.fft.rfftfreq(size, 1.0 / rate_hz) / 700.0)
    low, high = (2595.0 * math.log10(1.0 + hz / 700.0) for hz in (_LOWEST_HZ, _HIGHEST_HZ))
    edges = np.linspace(low, high, BANDS + 2)
    rising = (mel[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mel[:, None]) / (edges[2:] - edges[1:-1])
    weights = np.clip(np.minimum(rising, falling), 0.0, 1.0)
    weights /= np.maximum(weights.sum(axis=0), 1e-9) * float(window @ window) * size / 2 * 32768.0**2
    return window.astype(np.float32), weights.astype(np.float32)

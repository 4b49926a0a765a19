"""DTMF in the audio: finds the tones of telephone keys and mutes them, so that nobody takes them for speech.

Each key is a pair of tones, one of four rows and one of four columns (ITU-T Q.23). Windows of 20 ms, one each 10 ms,
are compared with the eight frequencies (the Goertzel sums, as one small matrix product). A window is a key's when
nearly all of its energy lies in one row and one column of like strength: speech has harmonics and noise beside
such a pair, which is what keeps it from being taken for a key ("talk-off").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from voice.errors import BadAudio
from voice.interfaces import Pcm16

_ROWS_HZ = (697.0, 770.0, 852.0, 941.0)
_COLUMNS_HZ = (1209.0, 1336.0, 1477.0, 1633.0)
_KEYS = ("123A", "456B", "789C", "*0#D")

_BLOCK_S = 0.01
_SHARE = 0.75
"""Least share of a window's energy in the pair. A pure pair 1.5 % out of tune (which ITU-T Q.24 has accepted) still
has 0.81 in a Hann window of 20 ms, one in tune with noise 10 dB below it 0.9. In three minutes of recorded speech no
window got to 0.7."""
_TWIST_DB = 9.0
"""Row and column differ by no more (Q.24 asks for 4 to 8 dB)."""
_OVER_NEXT_DB = 6.0
"""Row and column stand so far above the next ones of their kind."""
_LEVEL_DBFS = -45.0
"""Quieter windows are not looked at. Keys come at −35 dBFS and above."""
_LOUD = 32768.0**2 * 10.0 ** (_LEVEL_DBFS / 10.0) * 0.75
"""The same as energy in a Hann window, per sample of a block (Σ w² is ⅜ of a window, which is two blocks)."""
_QUIET = int(32768.0 * 10.0 ** (_LEVEL_DBFS / 20.0))
"""Samples below this make no window that loud."""
_WINDOWS = 3
"""A key is told after so many windows: 40 ms, the shortest that Q.24 wants recognised."""
_GAP = 3
"""Windows without the tone after which the same tone is another press. A pause of 40 ms (Q.24's shortest) leaves more,
a dropout of 10 ms less."""

_EMPTY: Pcm16 = np.zeros(0, np.int16)


class DtmfFilter:
    """Mutes the tones of keys in one stream of audio, and tells which keys they were.

    Nothing is delayed but samples that do not fill a block of 10 ms yet, so frames of whole blocks (20 ms telephone
    frames) come out at once. Of a tone that begins late in a frame about its first 10 ms are let through: too little
    for a voice activity detector. A block is muted too when a tone has just ended.

    Args:
        rate_hz: Rate of the audio, a multiple of 100 from 8 000 on, in Hz.
        on_key: Called once for each press, with one of ``0123456789*#ABCD``. Leave it out where
            keys are told beside the audio: a press must not count twice.

    Attributes:
        muted_samples: How much was replaced by silence so far.

    Raises:
        BadAudio: A rate that can't be used.
    """

    def __init__(self, rate_hz: int = 8_000, on_key: Callable[[str], None] | None = None) -> None:
        if rate_hz < 8_000 or rate_hz % 100:
            raise BadAudio(f"keys are found at 8 000 Hz and above in whole hundreds, not at {rate_hz} Hz")
        self.muted_samples = 0
        self._block = round(_BLOCK_S * rate_hz)
        self._waves, self._weights = _goertzel(rate_hz)
        self._on_key = on_key
        self._rest = _EMPTY  # less than a block, not let out yet
        self._head: tuple[npt.NDArray[np.float32], np.float32] | None = (
            None  # the last block as first half of a window
        )
        self._tone = False  # the newest window was a key's
        self._key: str | None = None  # of the newest windows
        self._count = 0  # windows of that key
        self._without = _GAP  # windows since the tone

    def mute(self, pcm: Pcm16) -> Pcm16:
        """The next samples, int16 of shape (n,), any n. Returns what can be let out: whole blocks of 10 ms, with
        silence where a key sounds (the array that came, when there is nothing to do)."""
        whole = np.concatenate([self._rest, pcm]) if self._rest.size else pcm
        count = whole.size // self._block
        if count == 0:
            self._rest = whole.copy()
            return _EMPTY
        size = count * self._block
        self._rest = whole[size:].copy() if whole.size > size else _EMPTY
        out = whole[:size]
        found = self._find(out.reshape(count, self._block))
        if found is None:
            self._note(None, count)
            if not self._tone:
                return out
            found = [None] * count
        else:
            for key in found:
                self._note(key, 1)
        tonal = np.array([key is not None for key in found])
        muted = tonal.copy()
        muted[:-1] |= tonal[1:]  # the first half of a window that is a key's
        muted[1:] |= tonal[:-1]  # what rings on after one
        muted[0] |= self._tone
        self._tone = bool(tonal[-1])
        self.muted_samples += int(np.count_nonzero(muted)) * self._block
        return np.where(np.repeat(muted, self._block), np.int16(0), out)

    def _find(self, pcm: Pcm16) -> list[str | None] | None:
        """The key of the window that ends with each block of ``pcm`` (blocks, samples); ``None`` when none has one."""
        if pcm.min() > -_QUIET and pcm.max() < _QUIET:
            self._head = None  # a window that begins in such a block holds half a tone at most
            return None
        blocks = pcm.astype(np.float32)
        halves = blocks @ self._waves  # cosines and sines of a window's first half, then of its second
        energy = np.square(blocks) @ self._weights
        first, second = halves[:, :16], halves[:, 16:]
        power = energy[:, 1].copy()
        sums = second.copy()
        sums[1:] += first[:-1]
        power[1:] += energy[:-1, 0]
        if self._head is not None:
            sums[0] += self._head[0]
            power[0] += self._head[1]
        self._head = first[-1], energy[-1, 0]
        squares = np.square(sums)
        tones = squares[:, :8] + squares[:, 8:]
        pair = tones[:, :4].max(axis=1) + tones[:, 4:].max(axis=1)
        candidates = np.flatnonzero((pair > _SHARE * power) & (power > _LOUD * self._block))
        if not candidates.size:
            return None
        found: list[str | None] = [None] * len(pcm)
        for i in candidates:
            found[i] = _key_of(tones[i, :4], tones[i, 4:])
        return found

    def _note(self, key: str | None, windows: int) -> None:
        if key is None:
            self._without += windows
            if self._without >= _GAP:
                self._key, self._count = None, 0
            return
        if key != self._key:
            self._key, self._count = key, 0
        self._without = 0
        self._count += 1
        if self._count == _WINDOWS and self._on_key is not None:
            self._on_key(key)


def _key_of(rows: npt.NDArray[np.float32], columns: npt.NDArray[np.float32]) -> str | None:
    """The key whose row and column stand out, alike in strength."""
    over, twist = 10.0 ** (_OVER_NEXT_DB / 10.0), 10.0 ** (_TWIST_DB / 10.0)
    row, column = int(rows.argmax()), int(columns.argmax())
    alone = (
        np.count_nonzero(rows * over > rows[row]) == 1
        and np.count_nonzero(columns * over > columns[column]) == 1
    )
    alike = rows[row] < twist * columns[column] and columns[column] < twist * rows[row]
    return _KEYS[row][column] if alone and alike else None


@lru_cache(maxsize=8)
def _goertzel(rate_hz: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """What a block is multiplied with, as first and as second half of a Hann window.

    Returns:
        (block, 32): eight cosines and eight sines, windowed, for either half; scaled so that the squares of a pure
        tone's sums are its energy in the window. (block, 2): the squared window, for the energy of either half.
    """
    block = round(_BLOCK_S * rate_hz)
    window = np.hanning(2 * block + 1)[:-1]
    phase = 2 * np.pi * np.arange(2 * block)[:, None] / rate_hz * np.array(_ROWS_HZ + _COLUMNS_HZ)
    scale = np.sqrt(2.0 * np.square(window).sum()) / window.sum()
    waves = np.hstack([np.cos(phase), np.sin(phase)]) * (scale * window)[:, None]
    weights = np.square(window)
    return (
        np.hstack([waves[:block], waves[block:]]).astype(np.float32),
        np.stack([weights[:block], weights[block:]], axis=1).astype(np.float32),
    )

"""How loud is an utterance, and when: what can be told from levels alone before a recogniser is asked.

Pure functions over 16 kHz int16 audio; levels are RMS in dB of full scale.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voice.interfaces import ASR_RATE_HZ, Pcm16

BLOCK_S = 0.02
_BLOCK = round(BLOCK_S * ASR_RATE_HZ)

SILENCE_DBFS = -55.0
"""Audio with no block above this holds no speech. Quiet telephone speech (−20 dB) still peaks near −35."""

VOICED_RANGE_DB = 30.0
"""Blocks within this of the loud ones (95th percentile) count as voiced: the level range of vowels to
fricatives."""

SHORTEST_WORD_S = 0.08
"""Sound shorter than this is a click: the shortest words ("a", "oh") last about 0.1 s."""

STEADY_DB = 5.0
"""A sound none of whose bands ever rises so far above its own median is steady noise or a tone. Measured:
chance moves 20 s of white or pink noise by 3.5 dB and brown by 5; clear sentences rise 15 dB and more, at a
signal-to-noise ratio of 0 dB still 6.7."""

_STEADY_BLOCK = ASR_RATE_HZ // 10
_STEADY_LEAST_BLOCKS = 5
_BAND_EDGES_HZ = (100, 400, 700, 1100, 1600, 2300, 3200, 4500, 7000)
_BAND_FLOOR_DB = -75.0  # changes below this are of no matter: rounding to 16 bits alone gives −98 in all


def block_levels(audio: Pcm16) -> npt.NDArray[np.float32]:
    """The level of each 20 ms block, dBFS, shape (ceil(n / 320),); digital silence is −120."""
    blocks = -(-len(audio) // _BLOCK)
    padded = np.zeros((blocks, _BLOCK), dtype=np.float32)
    padded.reshape(-1)[: len(audio)] = audio
    padded *= np.float32(1 / 32768)
    power = np.einsum("ij,ij->i", padded, padded) / _BLOCK
    levels: npt.NDArray[np.float32] = 10 * np.log10(np.maximum(power, 1e-12))
    return levels


ABOVE_FLOOR_DB = 6.0
"""Speech is so much louder than the noise between its words (the 10th percentile of levels)…"""

_FLOOR_AT_MOST_DB = -12.0
"""…which is taken to be at least so far below the loud blocks: speech may have no pause."""


def sounding(levels: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Which blocks are loud enough for speech among what noise there is, shape (n,)."""
    if not len(levels):
        return np.zeros(0, dtype=np.bool_)
    loud = float(np.percentile(levels, 95))
    floor = min(float(np.percentile(levels, 10)), loud + _FLOOR_AT_MOST_DB)
    threshold = max(SILENCE_DBFS, loud - VOICED_RANGE_DB, floor + ABOVE_FLOOR_DB)
    return np.asarray(levels > threshold)


def voiced_s(levels: npt.NDArray[np.float32]) -> float:
    """How long there is sound that could be speech, in seconds."""
    if not len(levels):
        return 0.0
    threshold = max(SILENCE_DBFS, float(np.percentile(levels, 95)) - VOICED_RANGE_DB)
    return float(np.count_nonzero(levels > threshold)) * BLOCK_S


def why_no_speech(audio: Pcm16, levels: npt.NDArray[np.float32]) -> str | None:
    """Why ``audio`` can't hold speech: ``"silence"``, ``"click"`` or ``"steady"``; ``None``: it may."""
    loudest = float(levels.max(initial=-120.0))
    if loudest < SILENCE_DBFS:
        return "silence"
    near = np.count_nonzero(levels > max(SILENCE_DBFS, loudest - VOICED_RANGE_DB))
    if near * BLOCK_S < SHORTEST_WORD_S:
        return "click"
    return "steady" if _is_steady(audio) else None


def _is_steady(audio: Pcm16) -> bool:
    blocks = len(audio) // _STEADY_BLOCK
    if blocks < _STEADY_LEAST_BLOCKS:
        return False
    framed = audio[: blocks * _STEADY_BLOCK].reshape(blocks, _STEADY_BLOCK) * np.float32(1 / 32768)
    spectrum = np.fft.rfft(framed * np.hanning(_STEADY_BLOCK).astype(np.float32), axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    edges = [round(hz * _STEADY_BLOCK / ASR_RATE_HZ) for hz in _BAND_EDGES_HZ]
    bands = np.add.reduceat(power, edges, axis=1)[:, :-1]
    # A full-scale sine has a Hann-windowed spectrum of energy 3/16 · N².
    levels = 10 * np.log10(np.maximum(bands / (3 / 16 * _STEADY_BLOCK**2), 10 ** (_BAND_FLOOR_DB / 10)))
    rise = levels.max(axis=0) - np.median(levels, axis=0)
    return bool(rise.max() < STEADY_DB)


_AS_QUIET_DB = 3.0  # of places about as quiet the last one is taken: it makes fewer pieces


def cut_points(levels: npt.NDArray[np.float32], longest_s: float, shortest_s: float = 5.0) -> list[int]:
    """Where to cut long audio into pieces of at most ``longest_s``, in samples: at the quietest 100 ms that
    leave as few pieces as possible and none under ``shortest_s``. Empty when it is short enough."""
    window = round(0.1 / BLOCK_S)
    smooth = np.convolve(levels, np.full(window, 1 / window, dtype=np.float32), mode="same")
    longest, shortest = int(longest_s / BLOCK_S), int(shortest_s / BLOCK_S)
    cuts: list[int] = []
    start = 0
    while (rest := len(levels) - start) > longest:
        pieces = -(-rest // longest)
        first = max(shortest, rest - longest * (pieces - 1))
        # When the pieces would be full to the brim, one more gives room to choose a quiet place.
        if longest - first < 2 * shortest:
            first = longest - 2 * shortest
        last = min(longest, rest - shortest)
        quiet = smooth[start + first : start + last + 1]
        start += first + int(np.flatnonzero(quiet <= quiet.min() + _AS_QUIET_DB)[-1])
        cuts.append(start * _BLOCK)
    return cuts

"""Audio that carries its meaning in its pitch: made by the fakes, and read back from any recording.

A word of :class:`~voice.testing.stages.ToneSynthesiser` is 200 ms of sine at 400 + 200 · session + 25 · turn
Hz, so a recording tells whose words were heard, of which turn, and how many. Users speak below 400 Hz.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from voice.interfaces import ASR_RATE_HZ, Pcm16

WORD_S = 0.2
"""Length of a word of the tone synthesiser."""
BASE_HZ, SESSION_HZ, TURN_HZ = 400, 200, 25
TURNS = SESSION_HZ // TURN_HZ
"""Turns with a tone of their own; turn 8 sounds like turn 0."""
SESSIONS = 56
"""Sessions with a tone of their own below the 12 kHz that 24 kHz audio carries; session 56 sounds like 0."""
USER_HZ = 220.0
"""Default pitch of user speech: below all agents."""
SILENCE_RMS = 100.0
"""RMS below which audio counts as silence: −50 dBFS."""
LOUD = 10_000

_HOP_S = 0.003
_WINDOW_S = 0.012
"""Short enough that 20 ms of another tone show; a pure tone's pitch is still right to a few Hz."""


class ToneRun(NamedTuple):
    """A stretch of one tone: Hz, and seconds from the recording's start."""

    hz: float
    start_s: float
    end_s: float


class WordRun(NamedTuple):
    """Words of one turn of one session; ``words`` is 0 for less than half a word."""

    session: int
    turn: int
    words: int


# ---------------------------------------------------------------- making it


def tone(hz: float, samples: int, rate: int, peak: int = LOUD) -> Pcm16:
    """A sine of constant level that starts at a zero crossing."""
    wave = peak * np.sin(2 * np.pi * hz / rate * np.arange(samples))
    pcm: Pcm16 = np.round(wave).astype(np.int16)
    return pcm


def tone_for(session: int, turn: int) -> int:
    """The pitch of an agent's words, Hz. Numbers past the last tone start over."""
    return BASE_HZ + SESSION_HZ * (session % SESSIONS) + TURN_HZ * (turn % TURNS)


def speak(seconds: float, hz: float = USER_HZ, rate: int = ASR_RATE_HZ) -> Pcm16:
    """User speech for the fakes: a loud tone. ``ScriptedRecogniser`` can tell texts apart by ``hz``."""
    return tone(hz, round(seconds * rate), rate)


def silence(seconds: float, rate: int = ASR_RATE_HZ) -> Pcm16:
    """Nothing but zeros."""
    return np.zeros(round(seconds * rate), np.int16)


def noise(seconds: float, rate: int = ASR_RATE_HZ, *, rms: float = 300.0, seed: int = 0) -> Pcm16:
    """White noise, by default (−41 dBFS) too quiet to be taken for speech; the same for the same seed."""
    wave = np.random.default_rng(seed).normal(0.0, rms, round(seconds * rate))
    return np.clip(np.round(wave), -32768, 32767).astype(np.int16)


# ---------------------------------------------------------------- reading it


def rms(pcm: Pcm16) -> float:
    """Root mean square, 0–32768; 0 for no samples."""
    return float(np.sqrt(np.mean(np.square(pcm, dtype=np.float64)))) if len(pcm) else 0.0


def tone_hz(pcm: Pcm16, rate: int) -> float | None:
    """The loudest frequency of a block, Hz (``None``: silence). Right to 1 Hz for 40 ms of pure tone."""
    if len(pcm) < 4 or rms(pcm) < SILENCE_RMS:
        return None
    return float(_pitches(np.asarray(pcm, np.float64)[None, :], rate)[0])


def _pitches(blocks: npt.NDArray[np.float64], rate: int) -> npt.NDArray[np.float64]:
    """The loudest frequency of each row, by a parabola through the top of its log spectrum."""
    width = blocks.shape[1]
    size = 1 << (4 * width - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(blocks * np.hanning(width + 2)[1:-1], size))
    rows = np.arange(len(blocks))
    top = np.clip(spectrum.argmax(axis=1), 1, spectrum.shape[1] - 2)
    left, mid, right = (np.log(spectrum[rows, top + k] + 1e-9) for k in (-1, 0, 1))
    bend = left - 2 * mid + right
    shift = np.where(np.abs(bend) > 1e-12, 0.5 * (left - right) / np.where(bend == 0, 1.0, bend), 0.0)
    return np.asarray((top + shift) * rate / size)


def tone_runs(
    pcm: Pcm16, rate: int, *, grid_hz: float = 25.0, min_s: float = 0.01, floor: float = SILENCE_RMS
) -> list[ToneRun]:
    """The stretches of constant pitch in a recording, in order; pitch is rounded to ``grid_hz``.

    What never rises above ``floor`` (0–32768) is silence. A stretch ends at 5 ms of silence (exact to about
    1 ms) or where the pitch changes (exact to about 5 ms).
    Stretches shorter than ``min_s`` are left out.
    """
    runs: list[ToneRun] = []
    for start, end in _sounding(pcm, rate, floor):
        if end - start >= min_s * rate:
            runs += _split_by_pitch(pcm[start:end], start, rate, grid_hz, min_s)
    return runs


def _sounding(pcm: Pcm16, rate: int, floor: float) -> list[tuple[int, int]]:
    loud = np.flatnonzero(np.abs(pcm.astype(np.int32)) > floor)
    if not len(loud):
        return []
    gaps = np.flatnonzero(np.diff(loud) > 0.005 * rate)
    starts = [loud[0], *loud[gaps + 1]]
    ends = [*loud[gaps], loud[-1]]
    return [(int(a), int(b) + 1) for a, b in zip(starts, ends, strict=True)]


def _split_by_pitch(pcm: Pcm16, offset: int, rate: int, grid_hz: float, min_s: float) -> list[ToneRun]:
    hop, width = round(_HOP_S * rate), min(round(_WINDOW_S * rate), len(pcm))
    wave = np.asarray(pcm, np.float64)
    views = np.lib.stride_tricks.sliding_window_view(wave, width)[::hop]
    # 4096 windows at a time: a long recording's spectra would not fit in memory
    pitches = np.concatenate([_pitches(views[i : i + 4096], rate) for i in range(0, len(views), 4096)])
    steps = np.round(pitches / grid_hz).astype(int)
    changes = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    runs: list[ToneRun] = []
    for first, last in itertools.pairwise(changes):
        # a window belongs to its middle; the outer ones reach to the ends of the stretch
        start = 0 if first == 0 else first * hop + width // 2 - hop // 2
        end = len(pcm) if last == len(steps) else last * hop + width // 2 - hop // 2
        runs.append(ToneRun(float(steps[first] * grid_hz), (offset + start) / rate, (offset + end) / rate))
    return [run for run in runs if run.end_s - run.start_s >= min_s]


def words_heard(pcm: Pcm16, rate: int = 24_000) -> list[WordRun]:
    """Whose words a recording holds, in order: ``(session, turn, words)`` tuples.

    Words of one turn are counted together, however often silence parts them, until another turn's words come.
    Tones below 375 Hz (users) are left out. Stale audio shows as a run of its own, even 20 ms of it.
    """
    spoken: list[tuple[int, int, float]] = []
    for run in tone_runs(pcm, rate, grid_hz=TURN_HZ, min_s=0.012):
        step = round((run.hz - BASE_HZ) / TURN_HZ)
        if step < 0:
            continue
        session, turn, length_s = step // TURNS, step % TURNS, run.end_s - run.start_s
        if spoken and spoken[-1][:2] == (session, turn):
            length_s += spoken.pop()[2]
        spoken.append((session, turn, length_s))
    return [WordRun(session, turn, round(length_s / WORD_S)) for session, turn, length_s in spoken]


def first_audible_s(pcm: Pcm16, rate: int, after_s: float = 0.0) -> float | None:
    """Start of the first 10 ms block at or after ``after_s`` that is above −50 dBFS; ``None`` without one."""
    block, begin = round(0.01 * rate), round(after_s * rate)
    rest = np.asarray(pcm[begin:], np.float64)
    blocks = np.pad(rest, (0, -len(rest) % block)).reshape(-1, block)
    loud = np.flatnonzero(np.sqrt(np.mean(blocks**2, axis=1)) >= SILENCE_RMS)
    return None if not len(loud) else (begin + int(loud[0]) * block) / rate

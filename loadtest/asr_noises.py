"""Sounds in which nobody says anything: silence, noises, hum, clicks, breath and music, made from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from loadtest.overlap_sounds import RATE, Wave, breath, click, tilted_noise, to_pcm
from voice.interfaces import Pcm16

SHORTEST_S, LONGEST_S = 2.0, 30.0
"""Of one piece."""
LOUDEST_DBFS, SOFTEST_DBFS = -15.0, -55.0

Maker: TypeAlias = Callable[[np.random.Generator, float], Wave]


def scaled(wave: Wave, dbfs: float) -> Wave:
    """With this mean level."""
    rms = float(np.sqrt(np.mean(np.square(wave)))) if wave.size else 0.0
    return wave if rms == 0.0 else np.asarray(wave * (10 ** (dbfs / 20) / rms))


def coloured(rng: np.random.Generator, seconds: float, slope: float) -> Wave:
    """Noise from 20 Hz on whose amplitude falls with frequency to the power of ``slope``: 0 is white, 0.5 pink, 1
    brown."""
    return tilted_noise(rng, int(seconds * RATE), 20.0, RATE / 2, slope, flat_hz=20.0)


def swelling(wave: Wave, rng: np.random.Generator) -> Wave:
    """Half of the time as it is, else louder and softer by 10 to 25 dB, every one to five seconds."""
    if rng.random() < 0.5:
        return wave
    t = np.arange(wave.size) / RATE
    depth_db, hz, phase = rng.uniform(10, 25), rng.uniform(0.2, 1.0), rng.uniform(0, 6.3)
    return np.asarray(wave * 10 ** (depth_db * np.sin(2 * np.pi * hz * t + phase) / 40))


def _noise(slope: float) -> Maker:
    return lambda rng, seconds: swelling(coloured(rng, seconds, slope), rng)


def _silence(rng: np.random.Generator, seconds: float) -> Wave:
    """Digital silence, or the last bit of a converter."""
    n = int(seconds * RATE)
    return np.zeros(n) if rng.random() < 0.5 else rng.integers(-2, 3, n) / 32768.0


def _hum(rng: np.random.Generator, seconds: float) -> Wave:
    """The mains, 50 or 60 Hz with harmonics that change slowly, and some noise."""
    t = np.arange(int(seconds * RATE)) / RATE
    mains_hz = rng.choice([50.0, 60.0])
    wave = 0.02 * coloured(rng, seconds, 0.5)
    wave /= max(1e-9, float(np.max(np.abs(wave)))) * 50
    for k in range(1, rng.integers(4, 16)):
        sway = 1.0 + 0.3 * np.sin(2 * np.pi * rng.uniform(0.1, 0.7) * t + rng.uniform(0, 6.3))
        wave += rng.uniform(0.2, 1.0) / k * sway * np.sin(2 * np.pi * mains_hz * k * t + rng.uniform(0, 6.3))
    return swelling(np.asarray(wave), rng)


def _scattered(rng: np.random.Generator, seconds: float, mean_gap_s: float, make: Callable[[], Wave]) -> Wave:
    """Short sounds with gaps between them, over the noise of a room."""
    out = 1e-4 * rng.standard_normal(int(seconds * RATE))
    at = int(rng.uniform(0.05, 0.5) * RATE)
    while at < out.size:
        sound = make()[: out.size - at] * rng.uniform(0.3, 1.0)
        out[at : at + sound.size] += sound
        at += sound.size + int((0.05 + rng.exponential(mean_gap_s)) * RATE)
    return out


def _clicks(rng: np.random.Generator, seconds: float) -> Wave:
    return _scattered(rng, seconds, rng.uniform(0.1, 1.5), lambda: click(rng))


def _breath(rng: np.random.Generator, seconds: float) -> Wave:
    return _scattered(rng, seconds, rng.uniform(0.3, 1.5), lambda: breath(rng))


# ---------------------------------------------------------------- music

_SCALES = ((0, 2, 4, 5, 7, 9, 11), (0, 2, 3, 5, 7, 8, 10), (0, 2, 4, 7, 9))


def _note(hz: float, seconds: float, harmonics: int, fade_s: float, vibrato: float) -> Wave:
    t = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * hz * t + vibrato * np.sin(2 * np.pi * 5.5 * t)
    wave = sum(np.sin(k * phase) / k for k in range(1, harmonics + 1) if k * hz < RATE / 2)
    ends = np.minimum(1.0, np.minimum(t, t[-1] - t) / 0.005) if t.size else t
    return np.asarray(wave * np.exp(-t / fade_s) * ends)


def _drum(rng: np.random.Generator, kind: int) -> Wave:
    """0: a bass drum that falls in pitch, 1: a snare, 2: a hi-hat."""
    t = np.arange(int(0.25 * RATE)) / RATE
    if kind == 0:
        return np.asarray(np.sin(2 * np.pi * (55 * t + 4 * (1 - np.exp(-t / 0.03)))) * np.exp(-t / 0.09))
    noise = rng.standard_normal(t.size)
    if kind == 1:
        return np.asarray((0.5 * noise + np.sin(2 * np.pi * 190 * t)) * np.exp(-t / 0.06))
    return np.asarray(0.4 * np.diff(noise, prepend=0.0) * np.exp(-t / 0.02))


def _music(rng: np.random.Generator, seconds: float) -> Wave:
    """Chords, arpeggios or a melody in a key, mostly over drums."""
    out = np.zeros(int(seconds * RATE))
    beat_s, scale, root_hz = rng.uniform(0.33, 0.75), _SCALES[rng.integers(3)], 110.0 * 2 ** rng.uniform(0, 1)
    style, drums, harmonics = rng.integers(4), rng.random() < 0.7, int(rng.integers(2, 9))

    def hz(step: int) -> float:
        return float(root_hz * 2 ** (step // len(scale) + scale[step % len(scale)] / 12))

    def add(at_s: float, sound: Wave, level: float) -> None:
        at = int(at_s * RATE)
        part = sound[: max(0, out.size - at)]
        out[at : at + part.size] += level * part

    step = 0
    for beat in range(int(seconds / beat_s) + 1):
        if beat % 4 == 0:
            step = int(rng.integers(len(scale)))
        at_s = beat * beat_s
        add(at_s, _note(hz(step) / 2, beat_s, harmonics, 0.4, 0.0), 0.6)
        if style != 1 and beat % 4 == 0:  # a chord for four beats
            for third in (0, 2, 4, 6)[: rng.integers(3, 5)]:
                add(at_s, _note(hz(step + third), 4 * beat_s, harmonics, 2.0, 0.05), 0.35)
        if style in (1, 2):  # its notes one by one
            for part in range(4):
                add(
                    at_s + part * beat_s / 4,
                    _note(hz(step + 7 + 2 * part), beat_s / 2, harmonics, 0.2, 0.0),
                    0.5,
                )
        if style == 3:  # a melody over it
            add(at_s, _note(hz(step + int(rng.integers(5, 14))), beat_s, harmonics, 1.0, 0.6), 0.7)
        if drums:
            add(at_s, _drum(rng, beat % 2), 0.8)
            for half in (0.0, 0.5):
                add(at_s + half * beat_s, _drum(rng, 2), 0.3)
    return out


KINDS: dict[str, Maker] = {
    "silence": _silence,
    "white": _noise(0.0),
    "pink": _noise(0.5),
    "brown": _noise(1.0),
    "hum": _hum,
    "clicks": _clicks,
    "breath": _breath,
    "music": _music,
}


def piece(kind: str, rng: np.random.Generator, seconds: float, dbfs: float) -> Pcm16:
    """A sound of one of :data:`KINDS` at a mean level; silence is left as silent as it is."""
    wave = KINDS[kind](rng, seconds)
    return to_pcm(wave if kind == "silence" else scaled(wave, dbfs))


def pieces(kind: str, seconds: float, seed: int) -> Iterator[Pcm16]:
    """Sounds of one kind, :data:`SHORTEST_S` to :data:`LONGEST_S` each, soft and loud, together so long."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    left_s = seconds
    while left_s > 0:
        length_s = min(
            max(left_s, SHORTEST_S), float(np.exp(rng.uniform(np.log(SHORTEST_S), np.log(LONGEST_S))))
        )
        left_s -= length_s
        yield piece(kind, rng, length_s, rng.uniform(SOFTEST_DBFS, LOUDEST_DBFS))

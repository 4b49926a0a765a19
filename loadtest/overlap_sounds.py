"""Sounds that come over the agent's voice, made from a seed: voices, noises of a room, the loudspeaker's echo."""

from __future__ import annotations

import io
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile

from voice.audio import last_audible, resample, trim_leading_silence
from voice.errors import ModelMissing
from voice.interfaces import ASR_RATE_HZ, Pcm16

Wave: TypeAlias = npt.NDArray[np.float64]
"""Mono at 16 kHz, full scale ±1."""

RATE = ASR_RATE_HZ
_FULL = 32768.0


# ---------------------------------------------------------------- levels


def at_level(wave: Wave, dbfs: float) -> Wave:
    """``wave`` scaled so that its loud part (the louder half of its 20 ms blocks) has this level."""
    size = RATE // 50
    blocks = wave[: wave.size - wave.size % size].reshape(-1, size)
    power = np.sort(np.mean(np.square(blocks), axis=1)) if blocks.size else np.array([np.mean(wave**2)])
    loud = float(np.mean(power[power.size // 2 :]))
    return np.asarray(wave * (10.0 ** (dbfs / 20.0) / max(loud, 1e-12) ** 0.5))


def to_pcm(wave: Wave) -> Pcm16:
    """Rounded and clipped to int16."""
    return np.asarray(np.clip(np.rint(wave * _FULL), -32768, 32767), np.int16)


def to_wave(pcm: Pcm16) -> Wave:
    """Full scale ±1."""
    return pcm.astype(np.float64) / _FULL


# ---------------------------------------------------------------- voices


@dataclass(frozen=True, slots=True)
class Speaker:
    """One of espeak-ng's voices: its name, words a minute, pitch 0-99."""

    name: str
    pace: int = 160
    pitch: int = 50


@cache
def spoken(text: str, speaker: Speaker) -> Wave:
    """``text`` in a voice of espeak-ng, without silence around it.

    Raises:
        ModelMissing: ``espeak-ng`` is not installed.
    """
    program = shutil.which("espeak-ng")
    if program is None:
        raise ModelMissing("this load test speaks through espeak-ng: install the package of that name")
    voice = [program, "-v", speaker.name, "-s", str(speaker.pace), "-p", str(speaker.pitch), "--stdout"]
    made = subprocess.run([*voice, text], capture_output=True, check=True).stdout
    pcm, rate_hz = soundfile.read(io.BytesIO(made), dtype="int16")
    pcm = trim_leading_silence(resample(pcm, rate_hz, RATE), RATE)
    return to_wave(pcm[: last_audible(pcm, RATE) or 0])


# ---------------------------------------------------------------- noises


def tilted_noise(
    rng: np.random.Generator, samples: int, low_hz: float, high_hz: float, tilt: float, flat_hz: float = 50.0
) -> Wave:
    """Noise between two frequencies; from ``flat_hz`` on its amplitude falls with frequency to the ``tilt``."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    hz = np.fft.rfftfreq(samples, 1 / RATE)
    shape = np.where((hz >= low_hz) & (hz <= high_hz), np.maximum(hz, flat_hz) ** -tilt, 0.0)
    return np.asarray(np.fft.irfft(spectrum * shape, samples))


def _coloured(rng: np.random.Generator, samples: int, low_hz: float, high_hz: float, tilt: float) -> Wave:
    """Such noise, of peak 1."""
    wave = tilted_noise(rng, samples, low_hz, high_hz, tilt)
    return np.asarray(wave / max(1e-9, float(np.max(np.abs(wave)))))


def _decay(samples: int, attack_s: float, decay_s: float) -> Wave:
    """Rises within ``attack_s``, then falls to a third every ``decay_s``."""
    t = np.arange(samples) / RATE
    return np.asarray(np.minimum(1.0, t / attack_s) * np.exp(-np.maximum(0.0, t - attack_s) / decay_s))


def cough(rng: np.random.Generator) -> Wave:
    """One to three bursts of broadband noise, each with a short hoarse tail; 0.2-1.1 s."""
    parts = []
    for _ in range(rng.integers(1, 4)):
        n = int(rng.uniform(0.2, 0.38) * RATE)
        burst = _coloured(rng, n, 150, 6000, 0.5) * _decay(n, 0.008, rng.uniform(0.05, 0.1))
        t = np.arange(n) / RATE
        rasp = np.sin(
            2 * np.pi * rng.uniform(90, 150) * t + 3 * np.cumsum(rng.standard_normal(n)) / RATE**0.5
        )
        tail = np.sign(rasp) * _coloured(rng, n, 250, 2500, 0.7) * _decay(n, 0.06, 0.08)
        parts.append(burst + rng.uniform(0.1, 0.5) * tail)
    return np.concatenate(parts)


def laugh(rng: np.random.Generator) -> Wave:
    """Three to six breathy, voiced pulses, five a second."""
    parts = []
    pitch_hz = rng.uniform(140, 280)
    for _ in range(rng.integers(3, 7)):
        n = int(rng.uniform(0.15, 0.2) * RATE)
        t = np.arange(n) / RATE
        hum = sum(np.sin(2 * np.pi * pitch_hz * k * t) / k for k in range(1, 9))
        pulse = 0.5 * hum * _decay(n, 0.02, 0.05) + 0.5 * _coloured(rng, n, 500, 5000, 0.4) * _decay(
            n, 0.01, 0.04
        )
        parts.append(np.asarray(pulse))
        pitch_hz *= rng.uniform(0.9, 1.0)
    return np.concatenate(parts)


def breath(rng: np.random.Generator) -> Wave:
    """Air on a microphone: soft noise that swells and fades, 0.3-0.9 s."""
    n = int(rng.uniform(0.3, 0.9) * RATE)
    return np.asarray(_coloured(rng, n, 200, 5000, 0.6) * np.sin(np.linspace(0, np.pi, n)) ** 2)


def click(rng: np.random.Generator) -> Wave:
    """A knock or a click, 5-40 ms."""
    n = int(rng.uniform(0.005, 0.04) * RATE)
    return _coloured(rng, n, 100, 7500, rng.uniform(0.0, 0.5)) * _decay(n, 0.001, n / RATE / 3)


def keyboard(rng: np.random.Generator, seconds: float) -> Wave:
    """Typing: five to nine strokes a second, each a press and a release."""
    out = np.zeros(int(seconds * RATE))
    at = 0.1
    while at < seconds - 0.2:
        for offset_s, level in ((0.0, 1.0), (rng.uniform(0.05, 0.1), 0.5)):
            start = int((at + offset_s) * RATE)
            stroke = click(rng) * level * rng.uniform(0.4, 1.0)
            out[start : start + stroke.size] += stroke[: out.size - start]
        at += rng.exponential(0.15) + 0.04
    return out


def fan(rng: np.random.Generator, seconds: float) -> Wave:
    """A fan: low noise and the hum of its blades."""
    n = int(seconds * RATE)
    hum = np.sin(2 * np.pi * rng.uniform(80, 140) * np.arange(n) / RATE)
    return _coloured(rng, n, 40, 4000, 0.9) + 0.05 * hum


def music(rng: np.random.Generator, seconds: float) -> Wave:
    """Plucked chords over a bass and a beat."""
    out = np.zeros(int(seconds * RATE))
    beat_s = rng.uniform(0.4, 0.6)
    roots = 110.0 * 2 ** (rng.choice([0, 3, 5, 7, 8], 64) / 12)
    for i in range(int(seconds / beat_s)):
        start = int(i * beat_s * RATE)
        n = min(out.size - start, int(1.5 * beat_s * RATE))
        t = np.arange(n) / RATE
        for ratio in (1.0, 2.0, 2.0 * 2 ** (rng.choice([3, 4]) / 12), 3.0, rng.choice([4.0, 4.5, 5.0])):
            note = sum(np.sin(2 * np.pi * roots[i // 4 % 64] * ratio * k * t) / k**1.5 for k in range(1, 6))
            out[start : start + n] += note * np.exp(-t / 0.3)
        hat = click(rng)[: out.size - start]
        out[start : start + hat.size] += 2 * hat
    return out


# ---------------------------------------------------------------- the loudspeaker's way back


@dataclass(frozen=True, slots=True)
class Room:
    """How the agent's voice comes back.

    Attributes:
        response: Loudspeaker, room and microphone, without the delay, shape (n,), gain of the return included.
        delay_s: From playing to the microphone.
        drift: The microphone's clock runs faster by this (1e-4: 100 ppm).
        overdrive: How hard the loudspeaker is driven, 0: linear.
        agc: Whether the device levels its microphone.
    """

    response: Wave
    delay_s: float
    drift: float = 0.0
    overdrive: float = 0.0
    agc: bool = False


def room(rng: np.random.Generator, return_db: float, *, delay_s: float | None = None) -> Room:
    """A room drawn at random whose echo comes back ``return_db`` under what is played."""
    rt60_s = rng.uniform(0.15, 0.6)
    n = int(rt60_s * RATE)
    tail = rng.standard_normal(n) * 10 ** (-3 * np.arange(n) / n)
    tail[: int(0.004 * RATE)] = 0.0
    tail *= 10 ** (-rng.uniform(0, 10) / 20) / np.sqrt(np.sum(tail**2))
    tail[0] = 1.0
    for _ in range(6):
        tail[int(rng.uniform(0.001, 0.02) * RATE)] += rng.uniform(-0.5, 0.5)
    hz = np.fft.rfftfreq(2 * n, 1 / RATE)
    low, high = rng.uniform(120, 400), rng.uniform(3400, 7000)
    colour = 1 / np.sqrt(1 + (low / np.maximum(hz, 1)) ** 4) / np.sqrt(1 + (hz / high) ** 8)
    for _ in range(3):
        octaves = np.log2(np.maximum(hz, 20) / rng.uniform(300, 4000))
        colour *= 10 ** (rng.uniform(-8, 8) / 20 * np.exp(-(octaves**2) / 0.3))
    response = np.fft.irfft(np.fft.rfft(tail, 2 * n) * colour)[:n]
    speech = colour[(hz > 200) & (hz < 4000)]
    response *= 10 ** (return_db / 20) / np.sqrt(np.mean(speech**2) * np.sum(tail**2))
    return Room(
        response,
        rng.uniform(0.02, 0.45) if delay_s is None else delay_s,
        rng.uniform(-1e-4, 1e-4),
        rng.choice([0.0, 1.0]),
        bool(rng.random() < 0.4),
    )

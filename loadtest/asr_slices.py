"""Under which conditions is the same speech heard again? Noise, a telephone, other speeds, a soft voice, no pauses to
speak of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from loadtest.asr_corpus import Utterance, joined, trimmed
from loadtest.asr_noises import coloured, scaled
from loadtest.overlap_sounds import RATE, Wave, to_pcm, to_wave
from voice import g711
from voice.audio import resample
from voice.interfaces import Pcm16

NOISES = ("white", "pink", "babble")
BABBLERS = 6
TELEPHONE_HZ = (300.0, 3400.0)
TELEPHONE_RATE_HZ = 8_000
QUIET_DB = -20.0
SLOW, FAST = 0.85, 1.2

_FRAME, _HOP, _REACH = 640, 320, 160
"""Of :func:`at_speed`, in samples: frames of 40 ms, half over each other, moved by at most 10 ms to fit."""

Condition: TypeAlias = Callable[[Sequence[Utterance], int], list[Utterance]]


def at_speed(wave: Wave, speed: float) -> Wave:
    """Faster or slower at the same pitch: waveform-similarity overlap-add (Verhelst and Roelands, 1993)."""
    window = np.hanning(_FRAME + 1)[:-1]  # two that overlap by half add up to one
    source = np.pad(wave, (_REACH, _FRAME + 2 * _REACH + _HOP))
    frames = int(wave.size / speed / _HOP) + 1
    out = np.zeros(frames * _HOP + _FRAME)
    at = _REACH
    for number in range(frames):
        due = _REACH + int(number * _HOP * speed)
        if number:
            follows = source[at + _HOP : at + _HOP + _FRAME]
            near = source[due - _REACH : due + _REACH + _FRAME]
            at = due - _REACH + int(np.argmax(np.correlate(near, follows, "valid")))
        out[number * _HOP : number * _HOP + _FRAME] += window * source[at : at + _FRAME]
    return out[: int(wave.size / speed)]


def telephone(pcm: Pcm16) -> Pcm16:
    """Through a line of 300 to 3,400 Hz, at 8 kHz, as µ-law, and back to 16 kHz."""
    narrow = to_wave(resample(pcm, RATE, TELEPHONE_RATE_HZ))
    hz = np.fft.rfftfreq(narrow.size, 1 / TELEPHONE_RATE_HZ)
    low, high = TELEPHONE_HZ
    heard = np.fft.irfft(np.where((hz >= low) & (hz <= high), np.fft.rfft(narrow), 0.0), narrow.size)
    return resample(g711.decode(g711.encode(to_pcm(heard), "pcmu"), "pcmu"), TELEPHONE_RATE_HZ, RATE)


def speech_level(wave: Wave) -> float:
    """Mean amplitude of what is spoken: of the louder half of all 20 ms blocks."""
    size = RATE // 50
    blocks = wave[: wave.size - wave.size % size].reshape(-1, size)
    if not len(blocks):
        return float(np.sqrt(np.mean(np.square(wave)))) if wave.size else 0.0
    power = np.sort(np.mean(np.square(blocks), axis=1))
    return float(np.sqrt(np.mean(power[len(power) // 2 :])))


def with_noise(pcm: Pcm16, noise: Wave, snr_db: float) -> Pcm16:
    """Speech and noise, softer where both together would clip. The noise may be longer; the level of speech is
    :func:`speech_level`."""
    wave = to_wave(pcm)
    level = max(1e-6, speech_level(wave)) * 10 ** (-snr_db / 20)
    mixed = wave + scaled(noise[: wave.size], 20 * np.log10(level))
    return to_pcm(mixed / max(1.0, float(np.max(np.abs(mixed), initial=0.0))))


def babble(utterances: Sequence[Utterance], rng: np.random.Generator, seconds: float) -> Wave:
    """Several of the corpus at once, each as loud as the others."""
    out = np.zeros(int(seconds * RATE))
    for _ in range(BABBLERS):
        said: list[Wave] = []
        while sum(wave.size for wave in said) < out.size:
            wave = to_wave(trimmed(utterances[int(rng.integers(len(utterances)))].audio))
            said.append(wave / max(1e-6, speech_level(wave)))
        talk = np.roll(np.concatenate(said), int(rng.integers(out.size)))
        out += talk[: out.size]
    return out


def noise_of(kind: str, utterances: Sequence[Utterance], rng: np.random.Generator, seconds: float) -> Wave:
    """One of :data:`NOISES`, at any level."""
    if kind == "babble":
        return babble(utterances, rng, seconds)
    return coloured(rng, seconds, {"white": 0.0, "pink": 0.5}[kind])


def _noisy(snr_db: float, utterances: Sequence[Utterance], seed: int) -> list[Utterance]:
    """The noises take turns."""
    rng = np.random.default_rng([seed, int(snr_db)])
    found = []
    for number, one in enumerate(utterances):
        kind = NOISES[number % len(NOISES)]
        noise = noise_of(kind, utterances, rng, one.seconds + 0.1)
        found.append(Utterance(f"{one.name} {kind}", one.text, with_noise(one.audio, noise, snr_db)))
    return found


def _each(change: Callable[[Pcm16], Pcm16], utterances: Sequence[Utterance], _seed: int) -> list[Utterance]:
    return [Utterance(one.name, one.text, change(one.audio)) for one in utterances]


def _speed(speed: float) -> Condition:
    return partial(_each, lambda pcm: to_pcm(at_speed(to_wave(pcm), speed)))


SLICES: dict[str, Condition] = {
    "clean": lambda utterances, _: list(utterances),
    "noise20": partial(_noisy, 20.0),
    "noise10": partial(_noisy, 10.0),
    "noise5": partial(_noisy, 5.0),
    "telephone": partial(_each, telephone),
    "slow": _speed(SLOW),
    "fast": _speed(FAST),
    "quiet": partial(_each, lambda pcm: to_pcm(to_wave(pcm) * 10 ** (QUIET_DB / 20))),
    "long": joined,
}
"""By name: ``noise20`` has 20 dB between speech and noise; ``long`` is several utterances as one."""

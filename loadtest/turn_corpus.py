"""How do callers sound whose pauses are known? Calls made of written turns, synthetic voices, pauses and noise.

Everything follows from the part, the seed and the voices. Pauses inside turns are drawn from a log-normal
distribution, 0.15 to 2.5 s, whose median is the caller's habit (0.3, 0.5 or 0.8 s: conversational speech has its
median near 0.5 s); a hesitation makes them longer. Tuning and report share no sentence, no voice and no seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import soundfile

from loadtest.turn_sentences import TEST, TRAIN, Sentence
from stages.tts.piper import DEFAULT_VOICE, Piper, PiperOptions
from voice import g711
from voice.audio import first_audible, last_audible, resample
from voice.errors import EngineFailed
from voice.interfaces import ASR_RATE_HZ, Pcm16, Synthesiser
from voice.speaking import spoken_text

Part = Literal["train", "test"]

LEAD_S = 1.0
"""Before a caller's first turn: the ear learns the room's noise."""
GAP_S = 2.2
"""After each turn; longer than the turn model's last look at a pause (1.4 s)."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.15, 2.5
_SPREAD = 0.5  # of the logarithm of pauses
_HABITS_S = (0.3, 0.5, 0.8)
_SPEECH_DBFS = -24.0
_ROOM_DBFS = -66.0
_AUDIBLE_DBFS = -46.0
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NOISES: tuple[Literal["room", "fan", "babble"], ...] = ("room", "fan", "room", "babble")
_BABBLERS = 7
_ESPEAK_S = 20.0


@dataclass(frozen=True, slots=True)
class Voice:
    """A synthetic voice: one of espeak-ng, or the default Piper voice (``espeak`` is empty)."""

    name: str
    espeak: str = ""
    words_per_minute: int = 165


VOICES: dict[Part, tuple[Voice, ...]] = {
    "train": (
        Voice("espeak us", "en-us"),
        Voice("espeak us f3", "en-us+f3", 175),
        Voice("espeak scotland", "en-gb-scotland", 160),
        Voice("espeak rp f2", "en-gb-x-rp+f2", 155),
    ),
    "test": (
        Voice("default"),
        Voice("espeak us f4", "en-us+f4", 160),
        Voice("default"),
        Voice("espeak rp m3", "en-gb-x-rp+m3", 170),
        Voice("default"),
        Voice("espeak gb f1", "en-gb+f1", 160),
    ),
}
"""Who calls, in turn. Half of the report's callers have the default voice; it was not heard while tuning."""


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """A turn and where it lies in its call. Times in seconds of the caller's stream."""

    kind: str
    asked: str
    text: str
    start_s: float
    end_s: float
    pauses: tuple[tuple[float, float], ...]  # (where it begins, how long it is)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One caller's side of a call, mono 16 kHz."""

    name: str
    audio: Pcm16
    turns: tuple[SpokenTurn, ...]


def missing_espeak() -> str | None:
    """What to install when espeak-ng is not here."""
    if shutil.which("espeak-ng"):
        return None
    return "espeak-ng is not installed (apt-get install espeak-ng): only the default voice calls"


class Mouths:
    """The voices, with what they said kept in ``cache``."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._piper: Synthesiser | None = None

    async def say(self, voice: Voice, text: str) -> Pcm16:
        """``text`` at 16 kHz, without silence before and after, its speech at −24 dBFS."""
        key = f"{voice.espeak or DEFAULT_VOICE} {voice.words_per_minute} {text}"
        path = self._cache / f"said-{hashlib.sha256(key.encode()).hexdigest()[:20]}.wav"
        if not path.exists():
            pcm = await (asyncio.to_thread(_espeak, voice, text) if voice.espeak else self._default(text))
            soundfile.write(path, _levelled(pcm), ASR_RATE_HZ)
        pcm, _ = soundfile.read(path, dtype="int16")
        return np.asarray(pcm, np.int16)

    async def _default(self, text: str) -> Pcm16:
        if self._piper is None:
            self._piper = Piper(DEFAULT_VOICE, options=PiperOptions(deterministic=True))
        return resample(await spoken_text(self._piper, text), self._piper.sample_rate, ASR_RATE_HZ)


def _espeak(voice: Voice, text: str) -> Pcm16:
    command = ["espeak-ng", "-v", voice.espeak, "-s", str(voice.words_per_minute), "--stdout", text]
    done = subprocess.run(command, capture_output=True, timeout=_ESPEAK_S, check=False)
    if done.returncode or not done.stdout:
        raise EngineFailed(f"espeak-ng can't speak with {voice.espeak}: {done.stderr.decode()[:200]}")
    pcm, rate_hz = soundfile.read(io.BytesIO(done.stdout), dtype="int16")
    return resample(np.asarray(pcm, np.int16), int(rate_hz), ASR_RATE_HZ)


def _levelled(pcm: Pcm16) -> Pcm16:
    start = first_audible(pcm, ASR_RATE_HZ, _AUDIBLE_DBFS)
    end = last_audible(pcm, ASR_RATE_HZ, _AUDIBLE_DBFS)
    if start is None or end is None:
        raise EngineFailed("a synthetic voice said nothing")
    wave = pcm[start:end].astype(np.float64)
    rms = float(np.sqrt(np.mean(wave * wave)))
    return np.clip(wave * (32768 * 10 ** (_SPEECH_DBFS / 20) / rms), -32768, 32767).astype(np.int16)


async def make_calls(part: Part, seed: int, callers: int, turns: int, cache: Path) -> list[Call]:
    """``callers`` calls of ``turns`` turns each; the sentences of the part are dealt like cards.

    Raises:
        EngineFailed: A voice can't speak.
        ModelMissing: The default voice is neither here nor to be had.
    """
    draw = random.Random(f"{part} {seed}")
    voices = VOICES[part] if missing_espeak() is None else (Voice("default"),)
    mouths = Mouths(cache)
    deck: list[Sentence] = []
    calls = []
    for number in range(callers):
        dealt: list[Sentence] = []
        while len(dealt) < turns:
            if not deck:
                deck = draw.sample(sentences := TRAIN if part == "train" else TEST, len(sentences))
            dealt.append(deck.pop())
        calls.append(await _call(mouths, voices, number, dealt, draw))
    return calls


async def _call(
    mouths: Mouths, voices: Sequence[Voice], number: int, sentences: Sequence[Sentence], draw: random.Random
) -> Call:
    voice = voices[number % len(voices)]
    habit_s = draw.choice(_HABITS_S)
    parts = [np.zeros(int(LEAD_S * ASR_RATE_HZ), np.int16)]
    at_s = LEAD_S
    spoken = []
    for sentence in sentences:
        text = _fill(sentence.text, draw)
        audio, pauses = await _turn(mouths, voice, text, habit_s, sentence.kind, draw)
        length_s = len(audio) / ASR_RATE_HZ
        places = tuple((at_s + begin, length) for begin, length in pauses)
        spoken.append(SpokenTurn(sentence.kind, sentence.asked, text, at_s, at_s + length_s, places))
        parts += [audio, np.zeros(int(GAP_S * ASR_RATE_HZ), np.int16)]
        at_s += length_s + int(GAP_S * ASR_RATE_HZ) / ASR_RATE_HZ
    noise = draw.choice(_NOISES)
    snr_db = draw.uniform(15.0, 25.0)
    telephone = draw.random() < 0.4
    audio = np.concatenate(parts)
    wave = audio + await _noise(mouths, voices, noise, snr_db, len(audio), draw)
    audio = np.clip(wave * 10 ** (draw.uniform(-4.0, 4.0) / 20), -32768, 32767).astype(np.int16)
    if telephone:
        narrow = resample(audio, ASR_RATE_HZ, 8000)
        audio = resample(g711.decode(g711.encode(narrow, "pcmu"), "pcmu"), 8000, ASR_RATE_HZ)
    name = f"{number + 1} {voice.name}, {noise}{'' if noise == 'room' else f' {snr_db:.0f} dB'}"
    return Call(f"{name}{', telephone' if telephone else ''}, pauses near {habit_s} s", audio, tuple(spoken))


def _fill(text: str, draw: random.Random) -> str:
    def digits(found: re.Match[str]) -> str:
        return " ".join(draw.choice(_DIGITS) for _ in range(int(found.group(1))))

    return re.sub(r"\{(\d)\}", digits, text)


async def _turn(
    mouths: Mouths, voice: Voice, text: str, habit_s: float, kind: str, draw: random.Random
) -> tuple[Pcm16, list[tuple[float, float]]]:
    """The turn's audio, and its pauses as (seconds from its start, length)."""
    median_s = habit_s * (1.3 if kind == "hesitation" else 1.0)
    parts: list[Pcm16] = []
    pauses: list[tuple[float, float]] = []
    fragments = [f.strip() for f in text.split("|")]
    for number, fragment in enumerate(fragments):
        last = number == len(fragments) - 1
        closed = fragment[-1] in ".?!,"
        parts.append(await mouths.say(voice, fragment if closed else fragment + ("." if last else ",")))
        if last:
            break
        length_s = draw.lognormvariate(np.log(median_s), _SPREAD)
        length = int(min(max(length_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S) * ASR_RATE_HZ)
        pauses.append((sum(map(len, parts)) / ASR_RATE_HZ, length / ASR_RATE_HZ))
        parts.append(np.zeros(length, np.int16))
    return np.concatenate(parts), pauses


async def _noise(
    mouths: Mouths,
    voices: Sequence[Voice],
    kind: Literal["room", "fan", "babble"],
    snr_db: float,
    samples: int,
    draw: random.Random,
) -> npt.NDArray[np.float64]:
    random_bits = np.random.default_rng(draw.getrandbits(32))
    if kind == "room":
        return random_bits.normal(0.0, 32768 * 10 ** (_ROOM_DBFS / 20), samples)
    level = 32768 * 10 ** ((_SPEECH_DBFS - snr_db) / 20)
    if kind == "fan":
        spectrum = np.fft.rfft(random_bits.normal(0.0, 1.0, samples))
        frequencies = np.fft.rfftfreq(samples, 1 / ASR_RATE_HZ)
        wave = np.fft.irfft(spectrum / (1.0 + frequencies / 200.0), samples)
        wave += 0.5 * float(np.std(wave)) * np.sin(2 * np.pi * 97.0 * np.arange(samples) / ASR_RATE_HZ)
    else:
        wave = np.zeros(samples)
        for number in range(_BABBLERS):
            text = "We went down to the market and then we talked about the weather for a while."
            said = await mouths.say(voices[number % len(voices)], text)
            wave += np.roll(np.resize(said, samples), random_bits.integers(samples))
    return np.asarray(wave * (level / np.std(wave)))

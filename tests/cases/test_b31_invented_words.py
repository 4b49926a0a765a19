"""B31: silence and noise never come back as words.

The fault it stands for: a generative recogniser always says something, and an agent answers it. Here a
turn's audio passes three sieves, and every transcript goes through all of them because there is no other
way to make one (``WhisperCt2.transcribe``): levels before the model is asked (``stages/asr/levels.py``),
the no-speech score against the text after it, and the known inventions (``stages/asr/guards.py``).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import soxr

from loadtest.wer import compare
from stages.asr import pieces
from stages.asr.whisper import WhisperCt2
from stages.tts.piper import Piper, PiperOptions
from voice.interfaces import Pcm16, Transcript
from voice.scope import Scope

pytestmark = pytest.mark.live

RATE_HZ = 16_000
Wave = npt.NDArray[np.float64]


def coloured(seconds: float, exponent: float, dbfs: float, below_hz: float | None = None) -> Wave:
    """Noise whose power falls with frequency to the ``2 · exponent``: pink 0.5, brown 1."""
    rng = np.random.default_rng(31)
    n = round(seconds * RATE_HZ)
    spectrum = np.fft.rfft(rng.standard_normal(n))
    hz = np.fft.rfftfreq(n, 1 / RATE_HZ)
    spectrum /= np.maximum(hz, 5.0) ** exponent
    if below_hz is not None:
        spectrum /= np.sqrt(1 + (hz / below_hz) ** 4)
    wave = np.fft.irfft(spectrum, n)
    return wave / np.sqrt(np.mean(wave**2)) * 10 ** (dbfs / 20)


def click() -> Wave:
    wave = np.zeros(round(1.53 * RATE_HZ))
    wave[8_000:8_480] = np.random.default_rng(6).uniform(-0.5, 0.5, 480)
    return wave


def cough() -> Wave:
    wave = np.zeros(round(1.25 * RATE_HZ))
    burst = coloured(0.25, 0.5, -12)
    wave[: len(burst)] = burst * np.hanning(len(burst))
    return wave


def breathing() -> Wave:
    swell = (1 + np.sin(2 * np.pi * 0.8 * np.arange(3 * RATE_HZ) / RATE_HZ)) ** 2
    return coloured(3, 0.5, -45) * swell


def keys() -> Wave:
    rng = np.random.default_rng(8)
    wave = rng.standard_normal(3 * RATE_HZ) * 1e-3
    for start in rng.integers(0, 2.9 * RATE_HZ, 12):
        wave[start : start + 160] += rng.standard_normal(160) * 0.1 * np.exp(-np.arange(160) / 40)
    return wave


def tone() -> Wave:
    return 0.3 * np.sin(2 * np.pi * 440 * np.arange(3 * RATE_HZ) / RATE_HZ)


NOT_SPEECH = {
    "silence": np.zeros(3 * RATE_HZ),
    "pink noise": coloured(20, 0.5, -34),
    "fan": coloured(20, 1.0, -17, below_hz=500),
    "click": click(),
    "440 Hz tone": tone(),
    "cough": cough(),
    "breathing": breathing(),
    "keys": keys(),
}


def pcm(wave: Wave) -> Pcm16:
    return np.round(wave * 32767).clip(-32768, 32767).astype(np.int16)


@functools.cache
def said(text: str) -> Pcm16:
    """``text`` by the project's own voice, 16 kHz."""

    async def speak() -> Pcm16:
        piper = Piper(options=PiperOptions(deterministic=True))
        made = [np.asarray(s.pcm) async for s in piper.synthesise(text, Scope("session"))]
        return soxr.resample(np.concatenate(made), piper.sample_rate, RATE_HZ).astype(np.int16)

    return asyncio.run(speak())


@pytest.fixture(scope="module")
def recogniser() -> Iterator[WhisperCt2]:
    engine = WhisperCt2()
    yield engine
    engine.close()


def heard(recogniser: WhisperCt2, audio: Pcm16) -> Transcript:
    return asyncio.run(recogniser.transcribe(audio, Scope("turn")))


@pytest.mark.parametrize("name", NOT_SPEECH)
def test_sound_without_speech_is_heard_as_nothing(recogniser: WhisperCt2, name: str) -> None:
    transcript = heard(recogniser, pcm(NOT_SPEECH[name]))
    assert transcript.text == ""
    assert transcript.rejected is not None


@pytest.mark.parametrize("name", NOT_SPEECH)
def test_the_model_alone_is_not_believed_either(
    recogniser: WhisperCt2, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with the sieve before the model switched off: the second and third must hold by themselves."""
    monkeypatch.setattr(pieces.levels, "why_no_speech", lambda *_: None)
    assert heard(recogniser, pcm(NOT_SPEECH[name])).text == ""


@pytest.mark.parametrize("name", ["silence", "pink noise", "fan", "click", "440 Hz tone"])
def test_sound_that_levels_give_away_costs_no_call(recogniser: WhisperCt2, name: str) -> None:
    calls = recogniser.stats.calls
    heard(recogniser, pcm(NOT_SPEECH[name]))
    assert recogniser.stats.calls == calls


@pytest.mark.parametrize(
    "text", ["What is the weather in Paris today?", "Thank you.", "Yes.", "Okay.", "Bye."]
)
@pytest.mark.parametrize("gain_db", [0, -20])
def test_speech_is_still_heard_when_it_is_soft_or_short(
    recogniser: WhisperCt2, text: str, gain_db: int
) -> None:
    """The control, with phrases among those that recognisers invent."""
    audio = (said(text) * 10 ** (gain_db / 20)).astype(np.int16)
    transcript = heard(
        recogniser, np.concatenate([np.zeros(3_200, np.int16), audio, np.zeros(4_800, np.int16)])
    )
    assert compare(text, transcript.text).total == 0, transcript


def test_speech_in_steady_noise_is_heard(recogniser: WhisperCt2) -> None:
    speech = said("What is the weather in Paris today?").astype(np.float64) / 32768
    loud = np.sqrt(np.mean(speech**2))
    noise = coloured(len(speech) / RATE_HZ + 0.1, 0.5, 20 * np.log10(loud) - 10)[: len(speech)]
    transcript = heard(recogniser, pcm(speech + noise))
    assert compare("What is the weather in Paris today?", transcript.text).total <= 1, transcript

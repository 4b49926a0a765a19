"""B24: declared format and real format part ways; stereo is read as mono at half speed.

Kind of fault: conversions that depend on each other, so that one is skipped when the other is not needed.
Made impossible in ``voice.audio.Decoder.decode``: bytes become frames of the declared channels, frames become
mono and mono changes its rate in three separate steps, each with its own condition; no other way leads from a
transport's bytes to a session.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voice.audio import AudioFormat, Decoder
from voice.errors import BadAudio

LENGTH_S = 2.39


def speech_like(rate_hz: int) -> np.ndarray[Any, Any]:
    """Syllables of a gliding, rich tone: one wave for all rates, −1 to 1."""
    t = np.arange(round(LENGTH_S * rate_hz)) / rate_hz
    glide = 2 * np.pi * (120 * t + 15 * np.sin(2 * np.pi * 1.3 * t))
    voice = sum(np.sin(k * glide) / k for k in range(1, 12))
    return np.asarray(0.3 * voice * np.sin(np.pi * 3.1 * t) ** 2)


@pytest.mark.parametrize("encoding", ["pcm16", "float32"])
@pytest.mark.parametrize("right", [1.0, 0.0], ids=["both channels", "left channel only"])
@pytest.mark.parametrize("rate_hz", [48_000, 24_000, 16_000])
def test_stereo_reaches_the_recogniser_as_mono_at_full_length_at_every_inner_rate(
    rate_hz: int, right: float, encoding: Any
) -> None:
    wave = speech_like(48_000)
    stereo = np.stack([wave, right * wave], axis=1)
    data = (stereo * 32767).astype("<i2") if encoding == "pcm16" else stereo.astype("<f4")
    raw = data.tobytes()
    decoder = Decoder(AudioFormat(encoding, 48_000, 2), rate_hz)
    step = 48_000 // 50 * AudioFormat(encoding, 48_000, 2).frame_bytes
    heard = np.concatenate(
        [*(decoder.decode(raw[a : a + step]) for a in range(0, len(raw), step)), decoder.flush()]
    )

    reference = speech_like(rate_hz)
    assert abs(len(heard) / rate_hz - LENGTH_S) <= 0.02
    n = min(len(heard), len(reference))
    assert np.corrcoef(heard[:n], reference[:n])[0, 1] > 0.99
    level = np.sqrt(np.mean(heard[:n].astype(float) ** 2)) / np.sqrt(np.mean((reference[:n] * 32767) ** 2))
    assert level == pytest.approx(1.0, abs=0.02)  # a headset on one channel is as loud as on two


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"rate_hz": 2_000}, "2000 Hz"),
        ({"rate_hz": 384_000}, "384000 Hz"),
        ({"channels": 16}, "16 channels"),
        ({"encoding": "opus"}, "'opus'"),
    ],
)
def test_a_format_that_can_not_be_taken_is_refused_at_the_start_in_words(
    wrong: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadAudio, match=named) as refused:
        AudioFormat(**wrong)
    assert "expected" in str(refused.value)


def test_frames_that_contradict_the_declared_channels_are_refused_not_read_as_noise() -> None:
    with pytest.raises(BadAudio, match="whole frames of 2 channels"):
        Decoder(AudioFormat("pcm16", 48_000, 2)).decode(np.zeros((960, 1), np.int16))

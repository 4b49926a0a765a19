import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from twilio_peer import key_tone

from voice import g711
from voice.audio import read_file, resample, rms_dbfs
from voice.dtmf import DtmfFilter
from voice.errors import BadAudio
from voice.interfaces import Pcm16
from voice.testing import noise, silence, speak

RATE_HZ = 8_000
FRAME = 160
ALL_KEYS = "0123456789*#ABCD"


def through(pcm: Pcm16, sizes: list[int] | None = None, rate_hz: int = RATE_HZ) -> tuple[Pcm16, str]:
    """What comes out of a filter, and the keys it told, for audio that comes in pieces of those sizes in turn."""
    keys: list[str] = []
    filter, out, at, piece = DtmfFilter(rate_hz, keys.append), [], 0, 0
    while at < pcm.size:
        size = FRAME if sizes is None else sizes[piece % len(sizes)]
        out.append(filter.mute(pcm[at : at + size]))
        at, piece = at + size, piece + 1
    return np.concatenate(out), "".join(keys)


def between(pcm: Pcm16, before: int = 3_210, after: int = 3_200) -> Pcm16:
    return np.concatenate([np.zeros(before, np.int16), pcm, np.zeros(after, np.int16)])


def sounding_s(pcm: Pcm16) -> float:
    return float(np.count_nonzero(np.abs(pcm) > 50)) / RATE_HZ


def voice(seconds: float, seed: int, rate_hz: int = RATE_HZ) -> Pcm16:
    """Speech as far as a key detector can tell: a gliding pitch with all its harmonics under moving formants."""
    rng = np.random.default_rng(seed)
    at = np.arange(round(seconds * rate_hz)) / rate_hz

    def moving(low: float, high: float, every_s: float) -> np.ndarray:
        knots = np.arange(0.0, seconds + every_s, every_s)
        return np.interp(at, knots, rng.uniform(low, high, knots.size))

    pitch = moving(90.0, 260.0, 0.25)
    phase = 2 * np.pi * np.cumsum(pitch) / rate_hz
    formants = [
        (moving(300, 900, 0.12), 90.0),
        (moving(900, 2300, 0.12), 140.0),
        (moving(2300, 3300, 0.12), 200.0),
    ]
    wave = np.zeros(at.size)
    for harmonic in range(1, 38):
        hz = harmonic * pitch
        gain = sum(1.0 / (1.0 + ((hz - centre) / width) ** 2) for centre, width in formants) / harmonic**0.5
        wave += np.where(hz < rate_hz / 2, gain, 0.0) * np.sin(harmonic * phase)
    wave *= moving(0.0, 1.0, 0.1)
    return np.asarray(np.clip(9_000 * wave / np.abs(wave).max(), -32768, 32767), np.int16)


@pytest.mark.parametrize("key", ALL_KEYS)
def test_each_key_is_told_once_and_its_tone_is_silence(key: str) -> None:
    for ms in (45, 60, 100, 500):
        out, keys = through(between(key_tone(key, ms / 1000)))
        assert keys == key, ms
        assert sounding_s(out) <= 0.015


@pytest.mark.parametrize("twist_db", [-6.0, 0.0, 6.0])
@pytest.mark.parametrize("off", [(0.015, 0.015), (-0.015, 0.015), (0.015, -0.015), (0.0, 0.0)])
def test_telephone_coding_twist_noise_and_a_mistuned_keypad_do_not_hide_a_key(
    off: tuple[float, float], twist_db: float
) -> None:
    for key in ALL_KEYS:
        tone = between(key_tone(key, 0.1, peak=4_000, off=off, twist_db=twist_db))
        line = tone + noise(tone.size / RATE_HZ, RATE_HZ, rms=300.0)
        out, keys = through(g711.decode(g711.encode(line.astype(np.int16), "pcmu"), "pcmu"))
        assert keys == key
        assert np.count_nonzero(np.abs(out) > 3_000) / RATE_HZ <= 0.01


def test_a_key_pressed_twice_counts_twice_and_a_dropout_does_not_count() -> None:
    tone = key_tone("7", 0.08)
    assert through(between(np.concatenate([tone, silence(0.04, RATE_HZ), tone])))[1] == "77"
    assert through(between(np.concatenate([tone, silence(0.008, RATE_HZ), tone])))[1] == "7"


def test_keys_one_after_the_other_are_told_in_order() -> None:
    dialled = "".join(random.Random(1).choices(ALL_KEYS, k=60))
    pause = silence(0.05, RATE_HZ)
    tones = [piece for key in dialled for piece in (key_tone(key, 0.06), pause)]
    assert through(between(np.concatenate(tones)))[1] == dialled


def test_speech_is_left_alone_to_the_sample() -> None:
    for seed in range(6):
        speech = voice(10.0, seed)
        for pcm in (speech, g711.decode(g711.encode(speech, "pcmu"), "pcmu")):
            out, keys = through(pcm)
            assert keys == "", f"seed {seed}"
            np.testing.assert_array_equal(out, pcm[: out.size], f"seed {seed}")


def test_noise_single_tones_and_the_voices_of_the_fakes_are_left_alone() -> None:
    sounds = [
        noise(5.0, RATE_HZ, rms=3_000.0),
        *(speak(1.0, hz, RATE_HZ) for hz in (220, 425, 697, 941, 1209, 1477)),
    ]
    for pcm in sounds:
        out, keys = through(pcm)
        assert keys == ""
        np.testing.assert_array_equal(out, pcm[: out.size])


def test_a_key_over_the_end_of_a_word_takes_nothing_else_away() -> None:
    speech = voice(1.0, 2)
    pcm = np.concatenate([speech, silence(0.1, RATE_HZ), key_tone("5", 0.1), silence(0.1, RATE_HZ), speech])
    out, keys = through(pcm)
    assert keys == "5"
    np.testing.assert_array_equal(out[: speech.size], speech)
    np.testing.assert_array_equal(out[-speech.size :], speech[-speech.size :])
    assert rms_dbfs(out[speech.size : speech.size + 2_400]) < -30.0


def test_pieces_of_any_size_give_the_same_audio() -> None:
    pcm = np.concatenate([voice(1.0, 1), key_tone("3", 0.1), voice(0.7, 4)])[: 80 * 220]
    whole, _ = through(pcm, [pcm.size])
    for sizes in ([160], [80], [333, 7, 1], [1_600, 0, 41]):
        out, keys = through(pcm, sizes)
        assert keys == "3"
        assert whole.size - out.size < 80  # less than a block is kept back
        differs = np.flatnonzero(out != whole[: out.size])
        assert differs.size <= 160  # where a tone began in a piece that was let out already
    frames, _ = through(pcm)
    assert frames.size == pcm.size  # whole frames are never kept back


def test_it_works_at_other_rates_and_refuses_impossible_ones() -> None:
    for rate_hz in (8_000, 16_000, 24_000, 48_000):
        tone = np.concatenate([key_tone("9", 0.1, rate_hz), np.zeros(rate_hz // 5, np.int16)])
        assert through(tone, rate_hz=rate_hz)[1] == "9"
    for rate_hz in (4_000, 11_025, 8_001):
        with pytest.raises(BadAudio):
            DtmfFilter(rate_hz)


@pytest.mark.live
def test_the_default_voice_is_left_alone(speech_file: Callable[[str], Path]) -> None:
    text = "Your order was sent on Monday, and it should be with you by the end of the week. Is there anything else?"
    pcm, rate_hz = read_file(speech_file(text))
    out, keys = through(resample(pcm, rate_hz, RATE_HZ))
    assert keys == ""
    np.testing.assert_array_equal(out, resample(pcm, rate_hz, RATE_HZ)[: out.size])

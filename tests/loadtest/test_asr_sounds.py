"""What a recogniser hears in its test: the same for the same seed, and as noisy, narrow, fast or long as it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from loadtest.asr_corpus import (
    LONGEST_LONG_S,
    SHORTEST_LONG_S,
    Utterance,
    joined,
    recorded,
    sentences,
)
from loadtest.asr_noises import KINDS, LONGEST_S, LOUDEST_DBFS, SOFTEST_DBFS, piece, pieces
from loadtest.asr_slices import FAST, NOISES, SLICES, SLOW, at_speed, speech_level, telephone, with_noise
from loadtest.overlap_sounds import to_pcm, to_wave
from voice.audio import rms_dbfs
from voice.errors import BadAudio, BadRequest
from voice.interfaces import ASR_RATE_HZ, Pcm16

RATE = ASR_RATE_HZ
SEED = 5


@pytest.fixture(autouse=True)
def say_the_seed() -> None:
    print(f"seed {SEED}")


def tone(hz: float, seconds: float, peak: int = 8_000) -> Pcm16:
    t = np.arange(int(seconds * RATE)) / RATE
    return np.round(peak * np.sin(2 * np.pi * hz * t)).astype(np.int16)


def pitch_hz(pcm: Pcm16) -> float:
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    return float(np.argmax(spectrum) * RATE / len(pcm))


def corpus(count: int = 9, seconds: float = 3.0) -> list[Utterance]:
    return [Utterance(f"one {n}", f"words {n}", tone(200 + 30 * n, seconds)) for n in range(count)]


# ---------------------------------------------------------------- sentences and recordings


def test_sentences_follow_from_the_seed_and_are_written_as_they_are_spoken() -> None:
    said = sentences(SEED)

    assert said == sentences(SEED) and said != sentences(SEED + 1)
    assert len(set(said)) == len(said) > 80
    assert not any(mark in text for text in said for mark in "|{}") and not any("  " in text for text in said)
    assert sentences(SEED, 4) == said[:4]


def test_recordings_come_with_their_words(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", tone(300, 0.5), RATE)
    (tmp_path / "manifest.jsonl").write_text(json.dumps({"file": "a.wav", "text": "hello"}) + "\n")

    (one,) = recorded(tmp_path)

    assert (one.name, one.text, one.seconds) == ("a.wav", "hello", 0.5)


@pytest.mark.parametrize("manifest", [None, "", "not json\n", '{"file": "a.wav"}\n', '["a.wav"]\n', "7\n"])
def test_a_folder_without_a_list_of_recordings_is_refused(tmp_path: Path, manifest: str | None) -> None:
    if manifest is not None:
        (tmp_path / "manifest.jsonl").write_text(manifest)

    with pytest.raises(BadRequest, match=r"manifest\.jsonl"):
        recorded(tmp_path)


def test_a_recording_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF, or so it says")
    (tmp_path / "manifest.jsonl").write_text('{"file": "a.wav", "text": "hello"}\n')

    with pytest.raises(BadAudio):
        recorded(tmp_path)


def test_long_utterances_join_short_ones_with_their_words() -> None:
    longs = joined(corpus(20), SEED)

    assert len(longs) >= 4
    for one in longs:
        assert SHORTEST_LONG_S <= one.seconds <= LONGEST_LONG_S
        words = len(one.text.split("words")) - 1
        assert one.seconds == pytest.approx(words * 3.3, abs=words * 0.11)
    assert [one.text for one in longs] == [one.text for one in joined(corpus(20), SEED)]
    assert not joined(corpus(2), SEED)


# ---------------------------------------------------------------- sounds without speech


@pytest.mark.parametrize("kind", KINDS)
def test_sounds_follow_from_the_seed_and_are_as_long_and_loud_as_asked(kind: str) -> None:
    once, again = (list(pieces(kind, 20.0, SEED)) for _ in range(2))

    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert sum(map(len, once)) / RATE >= 20.0 - 0.01
    assert all(len(one) / RATE <= LONGEST_S + 0.01 for one in once)
    if kind == "silence":
        assert all(np.abs(one).max() <= 2 for one in once)
    else:
        assert all(SOFTEST_DBFS - 6 <= rms_dbfs(one) <= LOUDEST_DBFS + 1 for one in once)


def test_the_noises_have_their_colours() -> None:
    def octave(pcm: Pcm16, low_hz: float) -> float:
        power = np.abs(np.fft.rfft(to_wave(pcm))) ** 2
        hz = np.fft.rfftfreq(len(pcm), 1 / RATE)
        return float(10 * np.log10(power[(hz >= low_hz) & (hz < 2 * low_hz)].sum()))

    for kind, decibels in (("white", 3.0), ("pink", 0.0), ("brown", -3.0)):
        pcm = piece(kind, np.random.default_rng(SEED), 10.0, -20.0)
        assert octave(pcm, 2000) - octave(pcm, 1000) == pytest.approx(decibels, abs=0.7)


# ---------------------------------------------------------------- slices


@pytest.mark.parametrize("name", SLICES)
def test_slices_follow_from_the_seed_and_keep_the_words(name: str) -> None:
    once, again = SLICES[name](corpus(), SEED), SLICES[name](corpus(), SEED)

    assert once and all(np.array_equal(a.audio, b.audio) for a, b in zip(once, again, strict=True))
    assert len({one.name for one in once}) == len(once)
    if name != "long":
        assert [one.text for one in once] == [one.text for one in corpus()]


@pytest.mark.parametrize(("name", "snr_db"), [("noise20", 20.0), ("noise10", 10.0), ("noise5", 5.0)])
def test_noise_is_as_strong_as_its_slice_says(name: str, snr_db: float) -> None:
    for before, after in zip(corpus(), SLICES[name](corpus(), SEED), strict=True):
        noise = to_wave(after.audio) - to_wave(before.audio)
        level = 20 * np.log10(speech_level(to_wave(before.audio)) / np.sqrt(np.mean(noise**2)))
        assert level == pytest.approx(snr_db, abs=0.5)
        assert after.name.split()[-1] in NOISES


def test_noise_that_would_clip_makes_both_softer() -> None:
    pcm = tone(300, 1.0, peak=32_000)
    noisy = with_noise(pcm, np.random.default_rng(SEED).standard_normal(RATE), 5.0)
    assert 32_000 < np.abs(noisy.astype(np.int32)).max() <= 32_768
    assert np.count_nonzero(np.abs(noisy.astype(np.int32)) >= 32_767) <= 2


def test_a_telephone_passes_its_band_only() -> None:
    inside = telephone(tone(1000, 1.0))
    assert pitch_hz(inside) == pytest.approx(1000, abs=2) and rms_dbfs(inside) > -17
    assert rms_dbfs(telephone(tone(120, 1.0))) < -45 and rms_dbfs(telephone(tone(5000, 1.0))) < -45


@pytest.mark.parametrize("speed", [SLOW, 1.0, FAST])
def test_another_speed_changes_the_length_and_not_the_pitch(speed: float) -> None:
    pcm = to_pcm(at_speed(to_wave(tone(220, 3.0)), speed))

    assert len(pcm) / RATE == pytest.approx(3.0 / speed, abs=0.001)
    assert pitch_hz(pcm) == pytest.approx(220, abs=2)
    assert speech_level(to_wave(pcm)) == pytest.approx(speech_level(to_wave(tone(220, 3.0))), rel=0.05)


def test_a_soft_voice_is_20_db_softer() -> None:
    (one, *_) = SLICES["quiet"](corpus(), SEED)
    assert rms_dbfs(one.audio) == pytest.approx(rms_dbfs(corpus()[0].audio) - 20, abs=0.1)

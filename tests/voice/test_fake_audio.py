"""Tones carry their meaning: any recording tells whose words were heard, of which turn, and how many."""

from __future__ import annotations

import random

import numpy as np
import pytest
import soxr

from voice.interfaces import (
    Pcm16,
)
from voice.testing import (
    first_audible_s,
    noise,
    silence,
    speak,
    tone_for,
    tone_hz,
    words_heard,
)
from voice.testing.audio import tone

RATE = 24_000


def words(session: int, turn: int, count: int, rate: int = RATE) -> Pcm16:
    return np.tile(tone(tone_for(session, turn), round(0.2 * rate), rate), count)


def test_a_recording_tells_whose_words_were_heard_in_which_turn_and_how_many() -> None:
    gap = silence(0.3, RATE)
    recording = np.concatenate(
        [gap, words(0, 1, 5), gap, words(0, 1, 3), words(0, 2, 4), gap, words(7, 3, 1)]
    )
    assert words_heard(recording) == [(0, 1, 8), (0, 2, 4), (7, 3, 1)]
    assert words_heard(gap) == words_heard(np.zeros(0, np.int16)) == []


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_tones_are_read_at_any_rate_and_after_resampling(rate: int) -> None:
    recording = np.concatenate([words(2, 5, 6), silence(0.1, RATE), words(3, 0, 2)])
    assert words_heard(soxr.resample(recording, RATE, rate), rate) == [(2, 5, 6), (3, 0, 2)]


def test_a_sliver_of_another_turn_is_seen_and_user_speech_is_not_an_agents() -> None:
    sliver = words(0, 1, 1)[: round(0.02 * RATE)]
    recording = np.concatenate([words(0, 0, 3), sliver, silence(0.5, RATE), speak(1.0, rate=RATE)])
    assert words_heard(recording) == [(0, 0, 3), (0, 1, 0)]


@pytest.mark.parametrize("at_s", [0.0, 0.2, 0.33])
def test_20_ms_of_a_stale_turn_show_wherever_they_lie(at_s: float) -> None:
    stale, fresh = words(0, 0, 1)[: round(0.02 * RATE)], words(0, 1, 3)
    cut = round(at_s * RATE)
    runs = words_heard(np.concatenate([silence(0.1, RATE), fresh[:cut], stale, fresh[cut:]]))
    assert (0, 0, 0) in runs
    assert {run[:2] for run in runs} == {(0, 0), (0, 1)}


def test_any_order_of_sessions_turns_and_gaps_is_read_back() -> None:
    seed = 11
    chance = random.Random(seed)
    for _ in range(40):
        spoken: list[tuple[int, int, int]] = []
        parts: list[Pcm16] = []
        for _ in range(6):
            session, turn, count = chance.randrange(56), chance.randrange(8), chance.randrange(1, 6)
            parts += [words(session, turn, count), silence(chance.choice([0, 0.005, 0.2]), RATE)]
            if spoken and spoken[-1][:2] == (session, turn):
                count += spoken.pop()[2]
            spoken.append((session, turn, count))
        assert words_heard(np.concatenate(parts)) == spoken, f"seed {seed}"


@pytest.mark.parametrize("hz", [200.0, 220.0, 333.3, 400.0, 1775.0, 11_575.0])
def test_the_pitch_of_a_block_of_40_ms_is_right_to_a_hertz(hz: float) -> None:
    found = tone_hz(speak(0.04, hz, RATE), RATE)
    assert found is not None
    assert abs(found - hz) < 1.0


def test_silence_has_no_pitch_and_no_first_sound() -> None:
    assert tone_hz(silence(0.2), 16_000) is None
    assert tone_hz(noise(0.2, rms=30), 16_000) is None
    assert first_audible_s(silence(1), 16_000) is None
    recording = np.concatenate([silence(0.5), speak(0.1), silence(0.5), speak(0.1)])
    assert first_audible_s(recording, 16_000) == 0.5
    assert first_audible_s(recording, 16_000, after_s=0.7) == 1.1


def test_noise_is_the_same_for_the_same_seed_and_as_loud_as_asked() -> None:
    assert np.array_equal(noise(0.5, seed=3), noise(0.5, seed=3))
    assert not np.array_equal(noise(0.5, seed=3), noise(0.5, seed=4))
    assert np.std(noise(2.0, rms=500)) == pytest.approx(500, rel=0.02)

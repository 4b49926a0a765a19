"""What the ear makes of a detector's word and a window's level: the room's floor, a crowd, a voice in front of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from voice.audio import AudioFormat
from voice.echo import OwnVoice
from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.noise_floor import LevelStretch, NoiseFloor
from voice.options import Limits, TurnOptions
from voice.testing import ScriptedDetector, speak

WINDOW_S = 0.032
DIP_DB = 25.0
"""How far a lone voice falls between its syllables in these tables."""


class Room:
    """Feeds a floor as an ear would: the voice is on until it was last heard ``pause_windows`` ago."""

    def __init__(self) -> None:
        self.floor = NoiseFloor(WINDOW_S)
        self.speaking = False
        self.ago = 1

    def hear(self, seconds: float, level_dbfs: float, probability: float, *, dips: bool = False) -> Room:
        """A sound; with ``dips`` three of nine windows are 25 dB softer, as between syllables."""
        for number in range(round(seconds / WINDOW_S)):
            level = level_dbfs - (DIP_DB if dips and number % 9 > 5 else 0.0)
            threshold = 0.35 if self.speaking else 0.5
            self.ago = self.floor.voice_ago(level, probability, threshold, speaking=self.speaking)
            self.speaking = self.ago == 0 or (self.speaking and self.ago < 4 and probability >= threshold)
        return self


def test_the_floor_follows_a_room_that_is_no_speech() -> None:
    room = Room().hear(1.0, -30.0, 0.01)
    assert room.floor.dbfs == pytest.approx(-30.0, abs=3.0)
    assert Room().hear(1.0, -30.0, 0.01).hear(0.5, -60.0, 0.01).floor.dbfs == pytest.approx(-60.0, abs=1.0)
    assert not room.floor.crowded


def test_speech_leaves_the_floor_where_it_was() -> None:
    room = Room().hear(2.0, -50.0, 0.01)
    before = room.floor.dbfs
    room.hear(5.0, -20.0, 0.95, dips=True)
    assert room.floor.dbfs == before


@pytest.mark.parametrize("level_dbfs", [-10.0, -20.0, -45.0])
def test_a_voice_that_rises_and_falls_is_a_voice_for_as_long_as_it_goes_on(level_dbfs: float) -> None:
    room = Room().hear(1.0, -75.0, 0.01).hear(60.0, level_dbfs, 0.95, dips=True)
    assert room.ago == 0 and not room.floor.crowded


def test_a_vowel_held_for_seconds_is_a_voice() -> None:
    room = Room().hear(1.0, -60.0, 0.01).hear(3.5, -22.0, 0.99)
    assert room.ago == 0


def test_speech_over_a_known_noise_is_left_to_the_detector() -> None:
    room = Room().hear(2.0, -26.0, 0.01).hear(20.0, -18.0, 0.9)
    assert room.ago == 0 and not room.floor.crowded


@pytest.mark.parametrize("crowd_dbfs", [-30.0, -40.0])
def test_a_level_crowd_after_the_words_is_the_room_and_the_words_ended_before_it(crowd_dbfs: float) -> None:
    room = Room().hear(1.0, -70.0, 0.01).hear(2.0, -16.0, 0.99, dips=True)
    room.hear(1.3, crowd_dbfs, 0.99)
    assert room.speaking
    room.hear(0.3, crowd_dbfs, 0.99)
    assert not room.speaking and room.floor.crowded
    assert room.floor.dbfs == pytest.approx(crowd_dbfs, abs=6.0)


def test_the_verdict_says_how_long_ago_the_words_ended() -> None:
    floor = NoiseFloor(WINDOW_S)
    for number in range(60):
        floor.voice_ago(-16.0 - (DIP_DB if number % 9 > 5 else 0.0), 0.99, 0.35, speaking=True)
    ago = [floor.voice_ago(-35.0, 0.99, 0.35, speaking=True) for _ in range(50)]
    first = next(n for n, windows in enumerate(ago) if windows)
    assert ago[first] == pytest.approx(first + 1, abs=4)


def test_after_the_crowd_was_known_only_what_stands_out_is_a_voice() -> None:
    room = Room().hear(1.0, -70.0, 0.01).hear(2.0, -16.0, 0.99, dips=True).hear(2.0, -35.0, 0.99)
    assert room.ago > 0
    assert room.hear(10.0, -34.0, 0.99).ago > 0
    assert room.hear(0.3, -20.0, 0.99).ago == 0
    assert room.hear(0.4, -35.0, 0.99).ago == 0  # between loud syllables
    assert room.hear(0.4, -35.0, 0.99).ago > 0


@pytest.mark.parametrize(("level_dbfs", "probability"), [(-65.0, 0.99), (-35.0, 0.01)])
def test_a_hole_in_the_crowd_or_a_detector_that_hears_none_ends_it(
    level_dbfs: float, probability: float
) -> None:
    room = Room().hear(1.0, -70.0, 0.01).hear(2.0, -16.0, 0.99, dips=True).hear(2.0, -35.0, 0.99)
    room.hear(0.3, level_dbfs, probability)
    assert not room.floor.crowded
    assert room.hear(0.2, -30.0, 0.99).ago == 0


def test_what_was_taken_out_of_a_window_teaches_nothing() -> None:
    floor = NoiseFloor(WINDOW_S)
    for _ in range(100):
        floor.voice_ago(-math.inf, 0.01, 0.5, speaking=False, learn=False)
    assert floor.dbfs == NoiseFloor(WINDOW_S).dbfs


def test_the_level_stretch_is_the_longest_within_its_span() -> None:
    draw = np.random.default_rng(4)
    stretch, levels = LevelStretch(6.0, 20), []
    for level in draw.normal(-30.0, 3.0, 500).tolist():
        stretch.add(level)
        levels.append(level)
        part = levels[-stretch.length :]
        assert (stretch.low, stretch.high) == (min(part), max(part))
        assert stretch.high - stretch.low <= 6.0
        if stretch.length < min(20, len(levels)):
            longer = levels[-stretch.length - 1 :]
            assert max(longer) - min(longer) > 6.0
    stretch.clear()
    assert stretch.length == 0


# ---------------------------------------------------------------- the ear


def make_ear(detector: ScriptedDetector) -> tuple[Ear, list[tuple[str, float]]]:
    edges: list[tuple[str, float]] = []
    ear = Ear(
        detector,
        TurnOptions(),
        Limits(),
        AudioFormat(),
        lambda index: edges.append(("began", index / ASR_RATE_HZ)),
        lambda index: edges.append(("paused", index / ASR_RATE_HZ)),
    )
    return ear, edges


def hear(ear: Ear, pcm: Pcm16) -> None:
    for start in range(0, len(pcm), 320):
        ear.hear(pcm[start : start + 320], now=ear.log.end / ASR_RATE_HZ)


def test_speech_in_silence_has_two_edges_where_it_begins_and_ends() -> None:
    ear, edges = make_ear(ScriptedDetector())
    hear(ear, np.concatenate((np.zeros(16000, np.int16), speak(1.0), np.zeros(16000, np.int16))))
    assert [kind for kind, _ in edges] == ["began", "paused"]
    assert [at for _, at in edges] == pytest.approx([1.0, 2.0], abs=0.04)


def test_level_noise_after_speech_is_a_pause_where_the_speech_ended() -> None:
    ear, edges = make_ear(ScriptedDetector(speech_rms=50.0))
    ear.keep_from = 0
    noise = np.random.default_rng(2).normal(0.0, 300.0, 30 * ASR_RATE_HZ).astype(np.int16)
    hear(ear, np.concatenate((np.zeros(16000, np.int16), speak(1.0), noise)))
    assert [kind for kind, _ in edges] == ["began", "paused"]
    assert edges[1][1] == pytest.approx(2.0, abs=0.2)
    assert not ear.speaking


def test_levels_above_the_noise_are_told_for_audio_that_is_kept() -> None:
    ear, _ = make_ear(ScriptedDetector())
    noise = np.random.default_rng(2).normal(0.0, 100.0, 3 * ASR_RATE_HZ).astype(np.int16)
    hear(ear, np.concatenate((noise, speak(0.4))))
    end = ear.log.end
    assert ear.over_noise_db(end - 12 * ASR_RATE_HZ // 10, end - ASR_RATE_HZ // 2) == pytest.approx(
        0.0, abs=2.0
    )
    over_db = ear.over_noise_db(end - ASR_RATE_HZ // 4, end)
    assert over_db is not None and over_db > 20.0
    assert ear.over_noise_db(0, 1000) is None
    assert ear.over_noise_db(end, end + 1000) is None


def test_a_failing_detector_changes_nothing() -> None:
    ear, edges = make_ear(ScriptedDetector([math.nan] * 60))
    hear(ear, np.concatenate((speak(1.5), np.zeros(16000, np.int16))))
    assert edges == [] and ear.failures >= 45


@pytest.mark.parametrize(
    ("eager", "probability", "edges_expected"), [(True, 0.9, 1), (True, 0.6, 0), (False, 0.9, 0)]
)
def test_over_the_agent_a_single_window_is_an_edge_where_it_is_surely_speech(
    eager: bool, probability: float, edges_expected: int
) -> None:
    ear, edges = make_ear(ScriptedDetector([0.0] * 10 + [probability] + [0.0] * 40))
    ear.eager = eager
    hear(ear, np.concatenate((np.zeros(5120, np.int16), speak(0.05), np.zeros(16000, np.int16))))
    assert len([kind for kind, _ in edges if kind == "began"]) == edges_expected


def test_where_an_echo_may_be_a_single_window_is_no_edge() -> None:
    ear, edges = make_ear(ScriptedDetector([0.0] * 10 + [0.9] + [0.0] * 40))
    ear.eager, ear.guard = True, OwnVoice(16_000)
    hear(ear, np.concatenate((np.zeros(5120, np.int16), speak(0.05), np.zeros(16000, np.int16))))
    assert edges == []

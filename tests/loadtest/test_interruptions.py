"""The interruption load test: its sounds come from a seed, its loop pauses and resumes, its figures count right."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from loadtest import overlap_sounds as sounds
from loadtest.interruptions import KINDS, REPORT, TUNING, Row, caught, figures, make_passage
from loadtest.overlap import WINDOW_S, Detector, Outcome, Overlap, Passage
from voice.audio import rms_dbfs
from voice.interfaces import Pcm16
from voice.interruption import Interruptions

RATE = sounds.RATE


class LoudDetector(Detector):
    """Takes what is loud for speech."""

    def __init__(self) -> None:
        self.guard = None

    def open(self) -> Detector:
        self.windows = 0
        return self

    def reset(self) -> None:
        pass

    def push(self, window: Pcm16, on_result: Callable[[float], None]) -> None:
        at = self.windows * WINDOW_S
        self.windows += 1
        if self.guard is not None:
            window = self.guard.without_echo(window, at)
        on_result(1.0 if rms_dbfs(window) > -45.0 else 0.0)


def tone(seconds: float) -> sounds.Wave:
    """Syllables, five a second, each at a pitch of its own."""
    rng = np.random.default_rng(3)
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = np.repeat(rng.uniform(100, 220, int(seconds * 5) + 1), RATE // 5)[: t.size]
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    wave = sum(np.sin(k * phase) / k for k in range(1, 20))
    return np.asarray(0.05 * wave * np.abs(np.sin(np.pi * 5 * t)) ** 0.3)


def passage(sound_s: float | None, length_s: float = 0.6, way_back: sounds.Room | None = None) -> Passage:
    agent = tone(6.0)
    near = np.zeros(10 * RATE)
    if sound_s is not None:
        start = int(sound_s * RATE)
        near[start : start + int(length_s * RATE)] = 3 * tone(length_s)[::-1]
    at = () if sound_s is None else (sound_s,)
    return Passage(sounds.to_pcm(agent), "one two three four", near, way_back, at, barge_in=True)


def play(what: Passage, words: str, **options: object) -> Outcome:
    async def recognise(audio: Pcm16) -> str:
        return words

    async def run() -> Outcome:
        return await Overlap(LoudDetector(), recognise, Interruptions(), **options).play(what)  # type: ignore[arg-type]

    return asyncio.run(run())


def test_a_barge_in_silences_at_its_edge_and_interrupts_when_its_words_are_known() -> None:
    outcome = play(passage(2.0), "please repeat that")
    assert outcome.silent_s == pytest.approx(2.1, abs=0.1)
    assert outcome.interrupted_s is not None
    assert outcome.interrupted_s - 2.0 < 1.2
    assert outcome.dips == 0


def test_a_nod_makes_a_dip_and_all_of_the_agents_speech_is_played() -> None:
    outcome = play(passage(2.0), "mm-hm")
    assert (outcome.interrupted_s, outcome.dips) == (None, 1)
    assert outcome.spoken_s == pytest.approx(6.0, abs=2 * WINDOW_S)


def test_a_client_that_can_only_flush_is_cut_when_the_hold_ends() -> None:
    outcome = play(passage(2.0, 1.0), "mm-hm", hold_s=0.25)
    assert outcome.silent_s is not None and outcome.interrupted_s is not None
    assert outcome.interrupted_s - outcome.silent_s == pytest.approx(0.25, abs=WINDOW_S)


def test_the_agents_echo_makes_no_dip_but_does_without_the_guard() -> None:
    way_back = sounds.Room(np.concatenate(([0.5], np.zeros(200))), 0.1)
    assert play(passage(None, way_back=way_back), "two three").held_s == []
    assert play(passage(None, way_back=way_back), "two three", guarded=False).held_s


def test_sounds_come_from_their_seed_and_have_their_level() -> None:
    for make in (sounds.cough, sounds.laugh, sounds.breath, sounds.click):
        one, same, other = (make(np.random.default_rng(seed)) for seed in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)
        assert 0.004 < one.size / RATE < 1.6
    for make_long in (sounds.keyboard, sounds.fan, sounds.music):
        wave = sounds.at_level(make_long(np.random.default_rng(1), 3.0), -30.0)
        assert np.all(np.isfinite(wave))
        assert rms_dbfs(sounds.to_pcm(wave)) == pytest.approx(-31.5, abs=2.5)


def test_an_echo_returns_at_its_level() -> None:
    white = np.random.default_rng(4).standard_normal(RATE)
    for seed in range(5):
        response = sounds.room(np.random.default_rng(seed), -12.0).response
        back = np.fft.irfft(np.fft.rfft(white, 4 * RATE) * np.fft.rfft(response, 4 * RATE))
        assert 10 * np.log10(np.sum(back**2) / np.sum(white**2)) == pytest.approx(-13.5, abs=4.0)


def test_tuning_and_report_share_nothing() -> None:
    assert not set(TUNING.agent) & set(REPORT.agent)
    assert not set(TUNING.barge_ins) & set(REPORT.barge_ins)
    assert not set(TUNING.speakers) & set(REPORT.speakers)
    assert TUNING.seed != REPORT.seed


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng speaks the users' part")
def test_a_passage_is_the_same_each_time() -> None:
    voices = [sounds.to_pcm(tone(8.0))] * len(REPORT.agent)
    for kind in KINDS:
        one, two = (make_passage(kind, 3, REPORT, voices) for _ in range(2))
        assert np.array_equal(one.near, two.near)
        assert one.sound_s == two.sound_s
        assert one.barge_in is (kind.sound == "barge-in")
        assert (one.room is not None) is kind.echo


def test_figures_count_by_goal() -> None:
    quiet, cut = Outcome(spoken_s=30.0), Outcome(spoken_s=3.0, interrupted_s=3.0, silent_s=2.5)
    dipped = Outcome(spoken_s=30.0, dips=2, held_s=[1.0, 2.0])
    what = passage(2.0)
    rows: dict[str, list[Row]] = defaultdict(list)
    for kind in KINDS:
        rows[kind.name] = [(what, cut if kind.group == "barge-in" else quiet)]
    good = figures(rows)
    assert (good.false_share, good.dips, good.caught_share) == (0.0, 0.0, 1.0)
    rows["cough"] = [(what, cut), (what, quiet)]
    rows["keyboard"] = [(what, dipped)]
    rows["barge-in"] = [(what, quiet)]
    bad = figures(rows)
    false = [k for k in KINDS if "false" in k.group]
    assert bad.false_share == pytest.approx(1 / (len(false) + 1))
    assert bad.dips == pytest.approx(2 / (sum("dips" in k.group for k in KINDS) * 0.5))
    assert bad.caught_share == pytest.approx(2 / 3)
    assert not caught(what, Outcome(interrupted_s=1.0))  # before the user said anything

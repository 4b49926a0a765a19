"""Where recordings are cut: in pauses, the longest first, never longer than the limit; and what is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.asr.recordings.cut import CutOptions, Cutter, Piece
from stages.asr.recordings.speech import BATCH_S, SpeechMeter
from stages.vad.silero import SileroVad
from voice.interfaces import ASR_RATE_HZ, Pcm16

WINDOW = 512
WINDOW_S = WINDOW / ASR_RATE_HZ


def cut(windows: Sequence[bool], options: CutOptions | None = None, *, batch: int = 1000) -> list[Piece]:
    """Pieces of a recording in which each window is speech or not; sample n has the value n modulo 20 000."""
    audio = (np.arange(len(windows) * WINDOW) % 20_000).astype(np.int16)
    probabilities = np.array(windows, np.float32)
    cutter = Cutter(options)
    pieces: list[Piece] = []
    for at in range(0, len(windows), batch):
        pieces += cutter.push(audio[at * WINDOW : (at + batch) * WINDOW], probabilities[at : at + batch])
    return [*pieces, *cutter.end()]


def speech(seconds: float) -> list[bool]:
    return [True] * round(seconds / WINDOW_S)


def pause(seconds: float) -> list[bool]:
    return [False] * round(seconds / WINDOW_S)


@settings(max_examples=30, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 300)), max_size=25),
    batch=st.integers(1, 3000),
    aim_s=st.sampled_from([4.0, 9.4, 20.0]),
)
def test_every_stretch_of_speech_is_in_exactly_one_piece_and_pieces_keep_their_limits(
    runs: list[tuple[int, int]], batch: int, aim_s: float
) -> None:
    windows = [w for loud, quiet in runs for w in [True] * loud + [False] * quiet]
    options = CutOptions(aim_s=aim_s, longest_s=12.0 if aim_s < 12 else 28.0)
    pieces = cut(windows, options, batch=batch)
    heard = np.zeros(len(windows) * WINDOW, np.int64)
    for piece in pieces:
        assert len(piece.audio) == sum(end - start for start, end in piece.kept)
        assert len(piece.audio) <= options.longest_s * ASR_RATE_HZ + WINDOW
        for start, end in piece.kept:
            heard[start:end] += 1
        at = 0
        for start, end in piece.kept:
            expected = np.arange(start, end) % 20_000
            np.testing.assert_array_equal(piece.audio[at : at + end - start], expected)
            at += end - start
    assert heard.max(initial=0) <= 1, "no audio is in two pieces"
    at = 0
    for loud, quiet in runs:
        if loud > 1:
            assert heard[at * WINDOW : (at + loud) * WINDOW].all(), "no speech is lost"
        at += loud + quiet
    for before, after in pairwise(pieces):
        assert before.kept[-1][1] <= after.kept[0][0]


@settings(max_examples=20, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 100)), min_size=1, max_size=12),
    batch=st.integers(1, 500),
)
def test_how_a_recording_arrives_does_not_change_where_it_is_cut(
    runs: list[tuple[int, int]], batch: int
) -> None:
    windows = [w for loud, quiet in runs for w in [True] * loud + [False] * quiet]
    assert [p.key for p in cut(windows, batch=batch)] == [p.key for p in cut(windows, batch=10**6)]


def test_silence_is_left_out_but_for_a_little_around_speech() -> None:
    (piece,) = cut(pause(20) + speech(2) + pause(30) + speech(2) + pause(20))
    assert len(piece.audio) / ASR_RATE_HZ == pytest.approx(2 * (2 + 0.25 + 0.35), abs=0.1)
    assert piece.start_s == pytest.approx(20, abs=0.05)
    assert piece.end_s == pytest.approx(54, abs=0.1)


def test_silence_alone_makes_no_piece() -> None:
    assert cut(pause(500)) == []
    assert cut([]) == []


def test_a_single_window_is_no_speech_but_two_are() -> None:
    assert cut([*pause(1), True, *pause(1)]) == []
    assert len(cut([*pause(1), True, True, *pause(1)])) == 1


def test_the_longest_pause_is_where_it_is_cut() -> None:
    sentence = speech(2) + pause(0.2)
    pieces = cut(sentence * 2 + speech(2) + pause(0.8) + sentence * 4, CutOptions(aim_s=9.4))
    assert pieces[0].end_s == pytest.approx(6.4, abs=0.1)


def test_an_early_pause_makes_no_tiny_piece() -> None:
    pieces = cut(speech(1) + pause(3) + (speech(2) + pause(0.2)) * 6, CutOptions(aim_s=9.4))
    assert len(pieces[0].audio) / ASR_RATE_HZ > 4.7


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    audio = np.full(44 * ASR_RATE_HZ // WINDOW * WINDOW, 8000, np.int16)
    quiet = slice(20 * ASR_RATE_HZ, 20 * ASR_RATE_HZ + 2000)
    audio[quiet] = 300
    cutter = Cutter()
    pieces = [*cutter.push(audio, np.ones(len(audio) // WINDOW, np.float32)), *cutter.end()]
    assert len(pieces) == 2
    assert 20.0 <= pieces[0].end_s <= 20.125
    assert pieces[0].kept[-1][1] == pieces[1].kept[0][0], "nothing is lost between them"


def test_pieces_far_apart_are_not_held_back() -> None:
    options = CutOptions(held_s=60.0)
    pieces = cut((speech(1) + pause(25)) * 6, options)
    assert len(pieces) > 1
    assert all(p.end_s - p.start_s <= 61 for p in pieces)


def test_times_in_a_piece_are_times_in_the_recording() -> None:
    (piece,) = cut(pause(10) + speech(1) + pause(20) + speech(1) + pause(10))
    first_s = piece.spans[0][0] / ASR_RATE_HZ
    second_s = piece.spans[1][0] / ASR_RATE_HZ
    assert piece.time_of(0.25) == pytest.approx(first_s, abs=0.01)
    assert piece.time_of(0.25 + 1.0 + 0.35 + 0.25) == pytest.approx(second_s, abs=0.05)
    assert piece.time_of(-1.0) == piece.kept[0][0] / ASR_RATE_HZ
    assert piece.time_of(1e9) == piece.kept[-1][1] / ASR_RATE_HZ


# ---------------------------------------------------------------- the detector on whole recordings


@pytest.fixture(scope="module")
def meter() -> SpeechMeter:
    return SpeechMeter()


@pytest.mark.live
def test_stretches_side_by_side_are_judged_as_one_stream_would_be(meter: SpeechMeter) -> None:
    rng = np.random.default_rng(11)
    envelope = np.repeat(rng.choice([0.0, 1.0], 200), 1600)
    voice = np.sin(2 * np.pi * 140 * np.arange(len(envelope)) / ASR_RATE_HZ)
    pcm = np.asarray(envelope * (6000 * np.sign(voice) + rng.normal(0, 500, len(voice))), np.int16)
    whole = asyncio.run(one_stream(pcm))
    side_by_side = np.concatenate([p for _, p in stream(meter, [pcm])])
    assert len(whole) == len(side_by_side)
    assert float(np.mean(np.abs(whole - side_by_side))) < 0.02


@pytest.mark.live
def test_how_audio_arrives_at_the_detector_does_not_matter(meter: SpeechMeter) -> None:
    pcm = np.random.default_rng(3).normal(0, 2000, 16_000 * 30 + 77).astype(np.int16)
    whole = stream(meter, [pcm])
    parts = stream(meter, np.array_split(pcm, 37))
    np.testing.assert_array_equal(
        np.concatenate([p for _, p in whole]), np.concatenate([p for _, p in parts])
    )
    audio = np.concatenate([a for a, _ in parts])
    assert len(audio) % WINDOW == 0
    np.testing.assert_array_equal(audio[: len(pcm)], pcm)


@pytest.mark.live
def test_digital_silence_is_not_speech_and_costs_nothing(meter: SpeechMeter) -> None:
    judged = stream(meter, [np.zeros(round(3 * BATCH_S) * ASR_RATE_HZ, np.int16)])
    assert len(judged) == 3
    assert max(float(p.max()) for _, p in judged) == 0.0


async def one_stream(pcm: Pcm16) -> np.ndarray:
    loop, found = asyncio.get_running_loop(), []
    path = SileroVad(skip_silence=False).open()
    for at in range(0, len(pcm), WINDOW):
        judged: asyncio.Future[float] = loop.create_future()
        path.push(pcm[at : at + WINDOW], judged.set_result)
        found.append(await judged)
    return np.array(found)


def stream(meter: SpeechMeter, parts: Sequence[Pcm16]) -> list[tuple[Pcm16, np.ndarray]]:
    path = meter.open()
    return [*(judged for part in parts for judged in path.push(part)), *path.end()]

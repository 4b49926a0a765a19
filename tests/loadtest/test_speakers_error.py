"""How the error of a diarisation is counted, and conversations whose turns are known."""

from __future__ import annotations

import asyncio
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.conversations import conversation, made_up_voices, recorded_voice
from loadtest.diarisation_error import Spoken, best_pairs, diarisation_error
from loadtest.speakers import run
from voice.errors import BadRequest

RATE = 16_000
TURNS: list[Spoken] = [(0.0, 10.0, "ann"), (10.0, 20.0, "bob")]


@pytest.mark.parametrize(
    ("answer", "missed", "false", "confused"),
    [
        ([(0.0, 10.0, "1"), (10.0, 20.0, "2")], 0, 0, 0),
        ([(10.0, 20.0, "A"), (0.0, 5.0, "B"), (5.0, 10.0, "B")], 0, 0, 0),
        ([(0.0, 20.0, "1")], 0, 0, 10),
        ([(0.0, 12.0, "1"), (12.0, 20.0, "2")], 0, 0, 2),
        ([(0.0, 8.0, "1"), (10.0, 25.0, "2")], 2, 5, 0),
        ([(0.0, 4.0, "1"), (4.0, 10.0, "3"), (10.0, 20.0, "2")], 0, 0, 4),
        ([(0.0, 10.0, "1"), (0.0, 10.0, "2"), (10.0, 20.0, "2")], 0, 10, 0),
        ([], 20, 0, 0),
    ],
)
def test_seconds_are_missed_false_or_confused(
    answer: list[Spoken], missed: float, false: float, confused: float
) -> None:
    error = diarisation_error(TURNS, answer)

    assert (error.missed_s, error.false_s, error.confused_s) == pytest.approx((missed, false, confused))
    assert error.rate == pytest.approx((missed + false + confused) / 20)


def test_speech_of_two_at_once_counts_twice() -> None:
    error = diarisation_error([(0.0, 10.0, "ann"), (5.0, 10.0, "bob")], [(0.0, 10.0, "1")])

    assert (error.speech_s, error.missed_s, error.confused_s) == pytest.approx((15.0, 5.0, 0.0))


def test_a_collar_forgives_what_is_near_a_change() -> None:
    late = [(0.1, 10.2, "1"), (10.2, 20.2, "2")]

    assert diarisation_error(TURNS, late).rate == pytest.approx((0.1 + 0.2 + 0.2) / 20)
    error = diarisation_error(TURNS, late, collar_s=0.25)
    assert (error.rate, error.speech_s) == (0.0, pytest.approx(20 - 4 * 0.25))


def test_errors_add_up_by_their_seconds() -> None:
    one, other = diarisation_error(TURNS, TURNS), diarisation_error([(0.0, 5.0, "ann")], [])

    assert (one + other).rate == pytest.approx(5 / 25)


@pytest.mark.parametrize(
    ("reference", "answer", "collar_s"),
    [
        ([], TURNS, 0.0),
        ([(1.0, 1.0, "ann")], TURNS, 0.0),
        ([(0.0, 0.4, "ann")], TURNS, 0.25),
        ([(2.0, 1.0, "ann")], TURNS, 0.0),
        (TURNS, [(float("nan"), 1.0, "ann")], 0.0),
        (TURNS, [(0.0, float("inf"), "ann")], 0.0),
        (TURNS, TURNS, -1.0),
        (TURNS, TURNS, float("nan")),
    ],
)
def test_what_cannot_be_judged_is_refused(
    reference: list[Spoken], answer: list[Spoken], collar_s: float
) -> None:
    with pytest.raises(BadRequest):
        diarisation_error(reference, answer, collar_s=collar_s)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_no_other_pairing_is_worth_more(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    worth = rng.random((rows, columns)) * rng.integers(0, 2, (rows, columns))
    small, large = (worth, worth.T)[rows > columns], max(rows, columns)

    most = max(
        sum(small[i, j] for i, j in enumerate(some)) for some in permutations(range(large), len(small))
    )

    assert sum(worth[i, j] for i, j in best_pairs(worth)) == pytest.approx(most)


# ---------------------------------------------------------------- conversations


def said(length_s: float, height_hz: float) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    wave = 3000 * np.sin(2 * np.pi * height_hz * np.arange(round(length_s * RATE)) / RATE)
    return wave.astype(np.int16)


def test_speakers_take_turns_and_are_heard_where_it_says() -> None:
    voices = {"ann": [said(1.5, 200), said(2.0, 210)], "bob": [said(1.0, 900)]}

    spoken = conversation(voices, 30.0, seed=2)

    assert {speaker for _, _, speaker in spoken.turns} == {"ann", "bob"}
    assert all(before[1] < after[0] for before, after in pairwise(spoken.turns))
    for start_s, end_s, speaker in spoken.turns:
        heard = spoken.audio[round(start_s * RATE) : round(end_s * RATE)].astype(float)
        loudest_hz = np.abs(np.fft.rfft(heard)).argmax() * RATE / len(heard)
        assert (loudest_hz > 500) == (speaker == "bob")
    again = conversation(voices, 30.0, seed=2)
    assert (again.audio == spoken.audio).all() and again.turns == spoken.turns
    assert conversation(voices, 30.0, seed=3).turns != spoken.turns


def test_a_recording_is_cut_at_its_pauses(tmp_path: Path) -> None:
    silence = np.zeros(RATE // 2, np.int16)
    together = np.concatenate([silence, said(1.0, 300), silence, said(2.0, 300), silence, said(0.2, 300)])
    soundfile.write(tmp_path / "a.wav", together, RATE)

    for path in (tmp_path, tmp_path / "a.wav"):
        assert [len(pcm) / RATE for pcm in recorded_voice(path)] == pytest.approx([1.0, 2.0], abs=0.05)


def test_voices_that_say_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"no sound")
    with pytest.raises(BadRequest, match=r"a\.wav"):
        recorded_voice(tmp_path)
    soundfile.write(tmp_path / "a.wav", np.zeros(RATE, np.int16), RATE)
    with pytest.raises(BadRequest, match="no recording"):
        recorded_voice(tmp_path)
    with pytest.raises(BadRequest):
        recorded_voice(tmp_path / "nothing.wav")
    with pytest.raises(BadRequest):
        conversation({}, 10.0, 1)
    with pytest.raises(BadRequest):
        asyncio.run(made_up_voices(9))


def test_two_voices_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        soundfile.write(tmp_path / folder / "ann.wav", said(2.0, 300), RATE)
    with pytest.raises(BadRequest, match="same name"):
        asyncio.run(run([tmp_path / "one" / "ann.wav", tmp_path / "two" / "ann.wav"], 1.0, 1, 1))

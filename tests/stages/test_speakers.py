"""Who speaks when: windows over speech, the voices in them, whose each moment is, and the diariser's manners."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.asr.speakers import linkage
from stages.asr.speakers.cluster import find_voices
from stages.asr.speakers.diarise import Diariser, SpeakerTurn, letters, speaker_of
from stages.asr.speakers.linkage import average_linkage, copies, group_alike
from stages.asr.speakers.paths import best_path, change_costs
from stages.asr.speakers.windows import LONGEST_PIECE_S, WINDOW_S, pieces_of
from voice.compute import ComputeGate
from voice.errors import BadAudio, BadRequest
from voice.interfaces import Pcm16
from voice.testing import VirtualExecutor, run_virtual

Floats = npt.NDArray[np.float32]
RATE = 16_000
SIZE = 256


class EncoderByLoudness:
    """Stands for a voice by the level of its window: each level is a direction, with noise as a real encoder's."""

    def __init__(self, spread: float = 0.03) -> None:
        self.rng = np.random.default_rng(4)
        self.directions = np.abs(self.rng.standard_normal((40, SIZE))) ** 3
        self.directions /= np.linalg.norm(self.directions, axis=1, keepdims=True)
        self.spread = spread

    def embed(self, windows: Sequence[Pcm16]) -> Floats:
        found = np.zeros((len(windows), SIZE), np.float32)
        for at, audio in enumerate(windows):
            shares = np.bincount(np.abs(audio) // 1000, minlength=40)[:40] / max(1, len(audio))
            heard = shares @ self.directions + self.spread * self.rng.standard_normal(SIZE)
            found[at] = np.maximum(heard, 0)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.divide(found, lengths, out=found, where=lengths > 1e-6)


def recording(turns: Sequence[tuple[float, float, int]], seconds: float) -> Pcm16:
    """Each speaker is a level: speaker 3 is 3,500 all the time."""
    audio = np.zeros(round(seconds * RATE), np.int16)
    for start_s, end_s, speaker in turns:
        audio[round(start_s * RATE) : round(end_s * RATE)] = 1000 * speaker + 500
    return audio


def diarise(
    turns: Sequence[tuple[float, float, int]], *, most: int | None = None, **options: object
) -> list[SpeakerTurn]:
    audio = recording(turns, turns[-1][1] + 1.0)

    async def run() -> list[SpeakerTurn]:
        diariser = Diariser(EncoderByLoudness(), executor=VirtualExecutor())  # type: ignore[arg-type]
        spans = [(start_s, end_s) for start_s, end_s, _ in turns]
        return await diariser.speakers(
            spans, lambda a, b: audio[round(a * RATE) : round(b * RATE)], most=most
        )

    return run_virtual(run())


def alternating(
    speakers: Sequence[int], turn_s: float = 4.0, times: int = 6
) -> list[tuple[float, float, int]]:
    turns, at_s = [], 0.5
    for _ in range(times):
        for speaker in speakers:
            turns.append((at_s, at_s + turn_s, speaker))
            at_s += turn_s + 0.4
    return turns


@pytest.mark.parametrize("speakers", [(2,), (2, 9), (2, 9, 17), (2, 9, 17, 30)])
def test_each_turn_goes_to_its_speaker_however_many_there_are(speakers: tuple[int, ...]) -> None:
    turns = alternating(speakers)

    said = diarise(turns)

    assert {turn.speaker for turn in said} == {"ABCD"[at] for at in range(len(speakers))}
    for start_s, end_s, speaker in turns:
        assert speaker_of(said, start_s, end_s) == "ABCD"[speakers.index(speaker)]


def test_a_change_without_a_pause_is_found_within_half_a_second() -> None:
    turns = [
        (at_s, at_s + 5.0, speaker)
        for at_s, speaker in zip(np.arange(0, 60, 5.0).tolist(), [2, 9] * 6, strict=True)
    ]

    said = diarise(turns)

    changes = [turn.start_s for turn in said[1:]]
    assert len(changes) == 11
    assert all(abs(change - round(change / 5) * 5) <= 0.5 for change in changes)


def test_turns_cover_the_spans_and_nothing_else() -> None:
    turns = alternating((2, 9), times=3)

    said = diarise(turns)

    covered = sum(turn.end_s - turn.start_s for turn in said)
    assert covered == pytest.approx(sum(end_s - start_s for start_s, end_s, _ in turns))
    assert all(before.end_s <= after.start_s for before, after in pairwise(said))


def test_no_more_speakers_are_named_than_were_allowed() -> None:
    turns = alternating((2, 9, 17))

    assert {turn.speaker for turn in diarise(turns, most=2)} == {"A", "B"}
    assert {turn.speaker for turn in diarise(turns, most=1)} == {"A"}
    assert {turn.speaker for turn in diarise(turns, most=5)} == {"A", "B", "C"}


def test_no_speech_is_no_turns_and_reads_nothing() -> None:
    def read(start_s: float, end_s: float) -> Pcm16:
        raise AssertionError("nothing to read")

    async def run() -> list[SpeakerTurn]:
        return await Diariser(EncoderByLoudness(), executor=VirtualExecutor()).speakers([], read)  # type: ignore[arg-type]

    assert run_virtual(run()) == []


def test_spans_of_silence_are_one_speaker() -> None:
    async def run() -> list[SpeakerTurn]:
        diariser = Diariser(EncoderByLoudness(0.0), executor=VirtualExecutor())  # type: ignore[arg-type]
        diariser._encoder.directions[0] = 0  # type: ignore[union-attr]
        return await diariser.speakers([(0.0, 5.0), (6.0, 6.05)], lambda a, b: np.zeros(0, np.int16))

    assert [turn.speaker for turn in run_virtual(run())] == ["A", "A"]


@pytest.mark.parametrize(
    "span", [(math.nan, 1.0), (0.0, math.inf), (-1.0, 1.0), (2.0, 1.0), (0.0, 100 * 3600.0)]
)
def test_spans_that_cannot_be_are_refused(span: tuple[float, float]) -> None:
    with pytest.raises(BadRequest):
        pieces_of([span])


@pytest.mark.parametrize(
    "audio",
    [np.zeros(RATE, np.float32), np.zeros((RATE, 2), np.int16), np.zeros(3 * RATE, np.int16), b"\0\0"],
)
def test_audio_that_is_not_what_was_asked_for_is_refused(audio: object) -> None:
    async def run() -> None:
        diariser = Diariser(EncoderByLoudness(), executor=VirtualExecutor())  # type: ignore[arg-type]
        await diariser.speakers([(0.0, 1.0)], lambda a, b: audio)  # type: ignore[arg-type, return-value]

    with pytest.raises(BadAudio):
        run_virtual(run())


def test_fewer_than_one_speaker_is_refused() -> None:
    with pytest.raises(BadRequest):
        diarise(alternating((2, 9)), most=0)


def test_cancelling_ends_it_after_the_batch_under_way_and_gives_its_slot_back() -> None:
    async def run() -> tuple[int, int]:
        executor, gate = VirtualExecutor(0.5), ComputeGate(1)
        diariser = Diariser(EncoderByLoudness(), executor=executor, gate=gate)  # type: ignore[arg-type]
        read = lambda a, b: np.full(round((b - a) * RATE), 500, np.int16)  # noqa: E731
        task = asyncio.create_task(diariser.speakers([(0.0, 3600.0)], read))
        await asyncio.sleep(1.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(5.0)
        return executor.calls, gate.stats.running

    assert run_virtual(run()) == (3, 0)


def test_the_cost_of_a_recording_is_counted() -> None:
    turns = alternating((2, 9), times=2)
    audio = recording(turns, 30.0)

    async def run() -> Diariser:
        diariser = Diariser(EncoderByLoudness(), executor=VirtualExecutor())  # type: ignore[arg-type]
        await diariser.speakers(
            [turn[:2] for turn in turns], lambda a, b: audio[round(a * RATE) : round(b * RATE)]
        )
        return diariser

    cost = run_virtual(run()).cost
    assert cost.speech_s == pytest.approx(16.0)
    assert cost.windows == len(
        np.concatenate([piece.windows for piece in pieces_of([turn[:2] for turn in turns])])
    )


# ---------------------------------------------------------------- windows


@given(
    st.lists(
        st.tuples(st.floats(0, 500, allow_nan=False), st.floats(0, 90, allow_nan=False)),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_windows_lie_in_their_pieces_and_reach_both_ends(spans: list[tuple[float, float]]) -> None:
    pieces = pieces_of([(start_s, start_s + length_s) for start_s, length_s in spans])

    for piece in pieces:
        assert piece.end_s - piece.start_s <= LONGEST_PIECE_S + 1e-6
        assert piece.windows[0, 0] == pytest.approx(piece.start_s)
        assert piece.windows[-1, 1] == pytest.approx(piece.end_s)
        assert (np.diff(piece.windows[:, 0]) >= 0).all()
        assert (piece.windows[:, 1] - piece.windows[:, 0] <= WINDOW_S + 1e-6).all()
    assert all(before.end_s <= after.start_s for before, after in pairwise(pieces))


# ---------------------------------------------------------------- voices


def voices_of(
    rng: np.random.Generator, likeness: float, counts: Sequence[int]
) -> tuple[Floats, npt.NDArray[np.float64]]:
    """Windows of voices that have this cosine with each other; those of one voice have 0.78 on average. Turns of
    ten windows."""
    basis = np.linalg.qr(rng.standard_normal((256, 2 + len(counts))))[0].T
    centres = [
        math.sqrt(likeness) * basis[0] + math.sqrt(1 - likeness) * basis[1 + at] for at in range(len(counts))
    ]
    order = [
        at for block in range(max(counts) // 10) for at, count in enumerate(counts) if block < count // 10
    ]
    said = []
    for at in order:
        noise = rng.standard_normal((10, 256))
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        said.append(math.sqrt(0.78) * centres[at] + math.sqrt(0.22) * noise)
    vectors = np.concatenate(said).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    starts = 0.8 * np.arange(len(vectors))
    return vectors, np.stack([starts, starts + 1.6], axis=1)


@pytest.mark.parametrize("likeness", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("counts", [(60,), (60, 60), (100, 30), (60, 60, 60, 60)])
def test_as_many_voices_are_found_as_there_are(likeness: float, counts: tuple[int, ...]) -> None:
    vectors, times = voices_of(np.random.default_rng(7), likeness, counts)

    assert len(find_voices(times, vectors)) == len(counts)


def test_voices_as_alike_as_halves_of_one_are_one() -> None:
    vectors, times = voices_of(np.random.default_rng(8), 0.96, (100, 100))

    assert len(find_voices(times, vectors)) == 1


def test_a_recording_that_is_played_many_times_is_still_one_voice() -> None:
    rng = np.random.default_rng(9)
    once, _ = voices_of(rng, 0.85, (10, 10))
    vectors = np.tile(once, (15, 1)) + rng.normal(0, 0.002, (300, 256)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    starts = 0.8 * np.arange(300)

    assert copies(vectors).tolist() == [15.0] * 300
    assert len(find_voices(np.stack([starts, starts + 1.6], axis=1), vectors)) == 1


def test_what_was_heard_nowhere_is_a_voice_of_its_own() -> None:
    times = np.array([[0.0, 1.6], [0.8, 2.4]])

    assert find_voices(times, np.zeros((2, 256), np.float32)).shape == (1, 256)
    assert find_voices(times[:1], np.eye(256, dtype=np.float32)[:1]).shape == (1, 256)


def test_a_long_recording_is_grouped_in_blocks_as_a_short_one_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors, times = voices_of(np.random.default_rng(10), 0.6, (100, 100, 100))
    whole = find_voices(times, vectors)

    monkeypatch.setattr(linkage, "BLOCK", 70)
    blocks = find_voices(times, vectors)

    assert np.abs(whole @ blocks.T).max(axis=1) == pytest.approx([1.0] * 3, abs=1e-3)
    assert len(blocks) == 3
    assert len(set(group_alike(vectors).tolist())) < 40


def test_average_linkage_joins_what_a_plain_search_for_the_best_pair_joins() -> None:
    rng = np.random.default_rng(11)
    for _ in range(4):
        vectors, _ = voices_of(rng, 0.75, (10, 10, 10))
        vectors = vectors[rng.permutation(30)]
        got = average_linkage(vectors, np.ones(30))

        groups = [[at] for at in range(30)]
        alike = vectors @ vectors.T
        while len(groups) > 1:
            pairs = [(i, j) for i in range(len(groups)) for j in range(i)]
            one, other = max(pairs, key=lambda pair: alike[np.ix_(groups[pair[0]], groups[pair[1]])].mean())
            if alike[np.ix_(groups[one], groups[other])].mean() < linkage.ALIKE:
                break
            groups[other] += groups.pop(one)
        assert sorted(np.flatnonzero(got == at).tolist() for at in set(got.tolist())) == sorted(
            map(sorted, groups)
        )


def test_the_best_path_is_better_than_all_others() -> None:
    rng = np.random.default_rng(12)
    for _ in range(20):
        scores = rng.random((5, 3))
        costs = change_costs(0.4, rng.random(5))
        worth = {
            path: sum(scores[at, speaker] for at, speaker in enumerate(path))
            - sum(costs[at] for at in range(1, 5) if path[at] != path[at - 1])
            for path in np.ndindex(3, 3, 3, 3, 3)
        }
        assert worth[tuple(best_path(scores, costs).tolist())] == pytest.approx(max(worth.values()))


# ---------------------------------------------------------------- names


def test_speakers_are_lettered_in_order() -> None:
    assert [letters(at) for at in (0, 1, 25, 26, 27, 51, 52, 701, 702)] == [
        *("A", "B", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA")
    ]


def test_words_belong_to_who_speaks_most_in_them_or_is_nearest() -> None:
    turns = [SpeakerTurn(0.0, 2.0, "A"), SpeakerTurn(2.0, 3.0, "B"), SpeakerTurn(8.0, 9.0, "C")]

    assert speaker_of(turns, 1.8, 2.1) == "A"
    assert speaker_of(turns, 1.8, 2.5) == "B"
    assert speaker_of(turns, 4.0, 4.2) == "B"
    assert speaker_of(turns, 7.0, 7.5) == "C"
    assert speaker_of([], 0.0, 1.0) is None

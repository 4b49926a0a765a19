"""The turn-taking evaluation: its corpus follows from the seed, and its figures are right where the truth is plain."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile

from loadtest import turn_corpus
from loadtest.turn_corpus import SpokenTurn, Voice
from loadtest.turn_eval import Costs, Ours, Score, Silence, SmartTurnOnly, best_at, between, judge, next_above
from loadtest.turn_sentences import KINDS, TEST, TRAIN
from loadtest.turn_traces import CallTrace, Engines, Pause, TurnTrace
from loadtest.turns import from_folder, report
from voice.endpointing import TurnEnd
from voice.errors import BadRequest
from voice.interfaces import ASR_RATE_HZ, Pcm16, Transcript
from voice.options import TurnOptions
from voice.scope import Scope
from voice.testing import ScriptedDetector

OPTIONS = TurnOptions(min_delay_s=0.3, max_delay_s=2.5)
COSTS = Costs(recognition_s=0.3, turn_model_s=0.1)


def pause(end_s: float, length_s: float | None, text: str = "", done: tuple[float, ...] = ()) -> Pause:
    looks = tuple(zip((0.2, 0.4, 0.8, 1.4), done, strict=False))
    began_s = None if length_s is None else end_s + length_s
    return Pause(end_s, end_s + 0.13, None if began_s is None else began_s + 0.07, began_s, text, 1.0, looks)


def call(*turns: tuple[str, list[Pause]]) -> CallTrace:
    made = []
    for asked, pauses in turns:
        turn = SpokenTurn("number", asked, "", 0.0, pauses[-1].end_s, ())
        made.append(TurnTrace(turn, tuple(pauses), missed=False))
    return CallTrace("caller", tuple(made))


CALL = call(
    (
        "What is your phone number?",
        [pause(1.0, 0.6, "555", (0.9, 0.9)), pause(3.0, None, "555 123 4567", (0.9,) * 4)],
    ),
    ("", [pause(2.0, None, "What time is it?", (0.1, 0.2, 0.2, 0.3))]),
)


def test_a_fixed_silence_cuts_off_every_longer_pause_and_waits_always() -> None:
    short, long = judge(Silence(0.5), [CALL], COSTS), judge(Silence(0.8), [CALL], COSTS)
    assert (short.turns, short.inner_pauses, short.cut_turns, short.cut_pauses) == (2, 1, 50.0, 100.0)
    assert (long.cut_turns, long.median_s, long.p90_s) == (0.0, pytest.approx(0.8), pytest.approx(0.8))


def test_the_turn_model_alone_falls_back_to_silence() -> None:
    once = judge(SmartTurnOnly((0.2,), 0.5, 3.0), [CALL], COSTS)
    assert once.cut_turns == 50.0
    assert once.p90_s == pytest.approx(3.0) and once.median_s == pytest.approx((0.3 + 3.0) / 2)
    assert judge(SmartTurnOnly((0.2,), 0.95, 0.5), [CALL], COSTS).median_s == pytest.approx(0.5)


def test_ours_waits_for_the_words_and_for_the_rest_of_the_number() -> None:
    ours = judge(Ours("ours", TurnEnd(), OPTIONS), [CALL], COSTS)
    assert ours.cut_turns == 0.0 and ours.missed == 0.0
    assert ours.median_s == pytest.approx(0.43)  # noticed after 0.13 s, recognised in 0.3 s


def test_a_turn_that_nobody_ends_is_missed() -> None:
    never = TurnTrace(SpokenTurn("short", "", "Yes.", 0.0, 1.0, ()), (), missed=True)
    score = judge(Silence(0.5), [CallTrace("caller", (never,))], COSTS)
    assert score.missed == 100.0 and np.isnan(score.median_s)


def test_the_rival_is_the_one_with_the_fewest_cut_offs_of_those_as_fast() -> None:
    def score(name: str, cut: float, median_s: float, p90_s: float) -> Score:
        return Score(name, 10, 10, cut, cut, 0.0, median_s, p90_s)

    scores = [
        score("slow", 1, 0.9, 1),
        score("late", 5, 0.3, 3),
        score("even", 5, 0.4, 2),
        score("fast", 9, 0.2, 0.2),
    ]
    assert best_at(scores, 0.4).name == "even"
    assert best_at(scores, 0.25).name == "fast"


def test_between_two_ways_the_rate_is_read_off_the_line() -> None:
    def score(name: str, cut: float, median_s: float) -> Score:
        return Score(name, 10, 10, cut, cut, 0.0, median_s, 3.0)

    scores = [
        score("fast", 30, 0.3),
        score("no better", 30, 0.5),
        score("better", 10, 0.7),
        score("slow", 5, 0.9),
    ]
    above = next_above(scores, 0.4)
    assert above is not None and above.name == "better"
    assert between(scores[0], above, 0.4) == pytest.approx(25.0)
    assert between(scores[0], above, 0.3) == 30.0
    assert next_above(scores, 0.9) is None


def test_the_report_says_whether_the_bounds_hold(capsys: pytest.CaptureFixture[str]) -> None:
    ends = pause(3.0, None, "Is it?", (0.9,) * 4)
    doubted = ("", [pause(2.0, None, "What time is it?", (0.1, 0.2, 0.2, 0.3))])
    cut = ("", [pause(1.0, 0.6, "I want to", (0.9, 0.9)), ends])
    kept = ("", [pause(1.0, 0.6, "I want to", (0.1, 0.1)), ends])
    assert report([call(*[doubted] * 2, *[cut] * 7, kept)], OPTIONS, COSTS)
    shown = capsys.readouterr().out
    assert "ours without words" in shown and "VAD 0.5 s" in shown and "at most half: yes" in shown
    assert not report([call(("", [pause(2.0, None, "and the", (0.9,) * 4)]))], OPTIONS, COSTS)
    assert "at most 60 %: no" in capsys.readouterr().out


def test_tuning_and_report_share_no_sentence_and_no_voice() -> None:
    assert not {s.text for s in TRAIN} & {s.text for s in TEST}
    assert not set(turn_corpus.VOICES["train"]) & set(turn_corpus.VOICES["test"])
    assert {s.kind for s in TRAIN} == {s.kind for s in TEST} == set(KINDS)


def _tone(seconds: float) -> Pcm16:
    t = np.arange(int(seconds * ASR_RATE_HZ)) / ASR_RATE_HZ
    return (8000 * np.sin(2 * np.pi * 300 * t)).astype(np.int16)


@pytest.fixture
def tones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say(self: turn_corpus.Mouths, voice: Voice, text: str) -> Pcm16:
        return _tone(0.2 + 0.05 * len(text.split()))

    monkeypatch.setattr(turn_corpus.Mouths, "say", say)


def test_calls_follow_from_the_seed_and_know_where_their_pauses_are(tones: None, tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    first, again, other = (
        asyncio.run(turn_corpus.make_calls("train", s, 2, 6, tmp_path)) for s in (seed, seed, seed + 1)
    )
    assert all((a.audio == b.audio).all() and a.turns == b.turns for a, b in zip(first, again, strict=True))
    assert [c.turns for c in first] != [c.turns for c in other]
    for made in first:
        assert all(a.end_s < b.start_s for a, b in zip(made.turns, made.turns[1:], strict=False))
        for turn in made.turns:
            assert turn.text.count("|") == len(turn.pauses) and "{" not in turn.text
            for begin_s, length_s in turn.pauses:
                assert turn.start_s < begin_s and begin_s + length_s < turn.end_s
                assert 0.14 <= length_s <= 2.5


class Words:
    name = "words"

    async def transcribe(self, audio: Pcm16, scope: Scope, **_: object) -> Transcript:
        return Transcript(f"{len(audio) / ASR_RATE_HZ:.1f} s")


class Done:
    name = "done"

    async def completion(self, audio: Pcm16, scope: Scope) -> float:
        return 0.5


def test_a_trace_holds_the_pauses_that_the_ear_heard_and_is_kept(tones: None, tmp_path: Path) -> None:
    async def hear() -> None:
        (made,) = await turn_corpus.make_calls("train", 5, 1, 8, tmp_path)
        engines = Engines(ScriptedDetector(), Words(), Done(), tmp_path)  # type: ignore[arg-type]
        trace = await engines.trace(made, OPTIONS)
        engines.close()
        deaf = Engines(None, Words(), Done(), tmp_path)  # type: ignore[arg-type]
        assert await deaf.trace(made, OPTIONS) == trace  # nothing is asked again
        deaf.close()
        assert [t.turn for t in trace.turns] == list(made.turns)
        for heard in trace.turns:
            assert not heard.missed and abs(heard.pauses[-1].end_s - heard.turn.end_s) < 0.1
            long = [length for _, length in heard.turn.pauses if length > 0.3]
            assert len(heard.pauses) >= len(long) + 1
            assert all(
                p.resumed_s is not None and p.looks
                for p in heard.pauses[:-1]
                if p.resumed_s and p.resumed_s - p.end_s > 0.3
            )
            assert [silence for silence, _ in heard.pauses[-1].looks] == [0.2, 0.4, 0.8, 1.4]

    asyncio.run(hear())


def test_a_folder_of_recordings_is_one_turn_each(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="holds no recordings"):
        from_folder(tmp_path)
    quiet = np.zeros(8000, np.int16)
    soundfile.write(tmp_path / "a.wav", np.concatenate([quiet, _tone(1.0), quiet]), ASR_RATE_HZ)
    (made,) = from_folder(tmp_path)
    assert made.turns[0].end_s - made.turns[0].start_s == pytest.approx(1.0, abs=0.03)

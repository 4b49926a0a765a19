"""Whisper: its front end, what is told from levels, the checks of a hypothesis, and the engine on the
real model."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import soxr

from loadtest.wer import compare, normalise
from stages.asr import levels
from stages.asr.guards import Hypothesis, Severity, count_words, judge, repeats
from stages.asr.mel import fit, frames_of, log_mel
from stages.asr.whisper import WhisperCt2
from stages.tts.piper import Piper, PiperOptions
from voice.errors import BadAudio, BadRequest, DeadlineExceeded, ModelMissing, ScopeCancelled
from voice.interfaces import Pcm16, Transcript
from voice.scope import Priority, Reason, Scope

RATE_HZ = 16_000


def noise(seconds: float, dbfs: float, seed: int = 3) -> Pcm16:
    wave = np.random.default_rng(seed).standard_normal(round(seconds * RATE_HZ)) * 10 ** (dbfs / 20)
    return (wave * 32768).clip(-32768, 32767).astype(np.int16)


# ---------------------------------------------------------------- features


@pytest.mark.parametrize("samples", [1, 100, 201, 400, 16_000, 35_708, 163_839])
def test_features_equal_those_of_the_reference_front_end(samples: int) -> None:
    extractor = pytest.importorskip("faster_whisper.feature_extractor").FeatureExtractor()
    audio = noise(12, -20)[:samples]
    window = max(1_000, frames_of(samples))
    padded = np.zeros(window * 160, np.float32)
    padded[:samples] = audio / np.float32(32768)
    ours = np.empty((80, window), np.float32)
    fit(*log_mel(audio), window, ours)
    np.testing.assert_allclose(ours, extractor(padded, padding=0)[:, :window], atol=1e-4)


def test_a_window_shorter_than_the_audio_cuts_it() -> None:
    features, silence = log_mel(noise(3, -20))
    out = np.empty((80, 100), np.float32)
    fit(features, silence, 100, out)
    np.testing.assert_array_equal(out, features[:, :100])


# ---------------------------------------------------------------- levels


@pytest.mark.parametrize(
    ("audio", "reason"),
    [
        (np.zeros(0, np.int16), "silence"),
        (np.zeros(16_000, np.int16), "silence"),
        (noise(2, -60), "silence"),
        (np.concatenate([np.zeros(8_000, np.int16), noise(0.03, -10), np.zeros(8_000, np.int16)]), "click"),
        (noise(0.6, -30), "steady"),
        (noise(20, -30), "steady"),
    ],
)
def test_levels_alone_give_away_what_is_no_speech(audio: Pcm16, reason: str) -> None:
    assert levels.why_no_speech(audio, levels.block_levels(audio)) == reason


def test_sound_that_comes_and_goes_may_be_speech() -> None:
    burst = np.concatenate([noise(0.3, -25), np.zeros(4_800, np.int16)] * 3)
    assert levels.why_no_speech(burst, levels.block_levels(burst)) is None


def test_a_short_burst_in_long_noise_may_be_speech() -> None:
    audio = noise(20, -50)
    audio[160_000:165_000] += noise(5_000 / RATE_HZ, -30, seed=4)
    assert levels.why_no_speech(audio, levels.block_levels(audio)) is None


def test_long_audio_is_cut_in_its_pauses_and_loses_nothing() -> None:
    parts, pauses, at = [], [], 0
    for i in range(20):
        parts += [noise(4, -20, seed=i), np.zeros(6_400, np.int16)]
        pauses.append((at + 64_000, at + 70_400))
        at += 70_400
    audio = np.concatenate(parts)
    cuts = levels.cut_points(levels.block_levels(audio), 28.0)
    edges = [0, *cuts, len(audio)]
    assert all(5 * RATE_HZ <= b - a <= 28 * RATE_HZ for a, b in itertools.pairwise(edges))
    assert all(any(begin <= cut <= end for begin, end in pauses) for cut in cuts)
    assert len(cuts) == 3


@pytest.mark.parametrize("seconds", [0.5, 27.9, 28.1, 30, 33, 55.9, 56.1, 61, 84, 119.9])
def test_pieces_have_their_bounds_whatever_the_length(seconds: float) -> None:
    audio = noise(seconds, -20)
    edges = [0, *levels.cut_points(levels.block_levels(audio), 28.0), len(audio)]
    lengths = [b - a for a, b in itertools.pairwise(edges)]
    assert max(lengths) <= 28 * RATE_HZ
    assert len(lengths) == 1 or min(lengths) >= 5 * RATE_HZ - 320


# ---------------------------------------------------------------- checks


def guess(text: str, logprob: float = -0.1, no_speech: float = 0.05, *, cut: bool = False) -> Hypothesis:
    return Hypothesis(text, len(text.split()) + 2, logprob, no_speech, cut)


@pytest.mark.parametrize(
    ("hypothesis", "voiced_s", "severity", "reason"),
    [
        (guess("What is the weather today?"), 1.5, Severity.FINE, None),
        (guess("Thank you."), 0.7, Severity.FINE, None),
        (guess("No, no, no."), 1.0, Severity.FINE, None),
        (guess("Thank you.", no_speech=0.5), 0.7, Severity.SILENT, "invented"),
        (guess("Thanks for watching!", no_speech=0.4), 2.0, Severity.SILENT, "invented"),
        (guess("you", -0.4, 0.95), 2.0, Severity.SILENT, "no_speech"),
        (guess("and the others went to the house", -1.2, 0.7), 2.0, Severity.SILENT, "no_speech"),
        (guess("please hold the line a moment", -0.2, 0.7), 2.0, Severity.FINE, None),
        (guess("..."), 2.0, Severity.SUSPECT, "no_words"),
        (guess("the boat " * 30), 10.0, Severity.BAD, "repetition"),
        (guess("and then the boat sailed past " * 8), 16.0, Severity.SUSPECT, "repetition"),
        (guess("Please hold while we try. Please hold while we try."), 2.4, Severity.SUSPECT, "repetition"),
        (guess("one two three four five six seven eight nine ten a"), 1.0, Severity.BAD, "too_fast"),
        (guess("it goes on", cut=True), 2.0, Severity.BAD, "endless"),
        (guess("Agent Log Dolph", -1.1), 1.2, Severity.BAD, "improbable"),
        (guess("Save two.", -0.7), 1.0, Severity.UNSURE, "unsure"),
        (guess("Hello there."), 12.0, Severity.SUSPECT, "truncated"),
        (guess("今日は天気がいいですね"), 2.0, Severity.FINE, None),
    ],
)
def test_a_hypothesis_is_judged(
    hypothesis: Hypothesis, voiced_s: float, severity: Severity, reason: str | None
) -> None:
    judgement = judge(hypothesis, voiced_s)
    assert (judgement.severity, judgement.reason) == (severity, reason)


@pytest.mark.parametrize(
    "text", ["that that is", "one two one three", "no no no", "a b c d", "a b c x a b c", ""]
)
def test_ordinary_repeats_are_no_loop(text: str) -> None:
    assert not repeats(text.split())


@pytest.mark.parametrize(
    "text", ["we go we go", "oh it is so it is so", "no no no no", "x a b c a b c y", "a b c d e a b c d"]
)
def test_a_phrase_twice_in_a_row_is_worth_a_second_look(text: str) -> None:
    assert repeats(text.split())


def test_scripts_without_spaces_have_words_too() -> None:
    assert count_words("今日は天気がいい") == 4
    assert count_words("see you 明日") == 3


# ---------------------------------------------------------------- the engine


@functools.cache
def said(text: str) -> Pcm16:
    """``text`` by the project's own voice, 16 kHz."""

    async def speak() -> Pcm16:
        piper = Piper(options=PiperOptions(deterministic=True))
        made = [np.asarray(s.pcm) async for s in piper.synthesise(text, Scope("session"))]
        return soxr.resample(np.concatenate(made), piper.sample_rate, RATE_HZ).astype(np.int16)

    return asyncio.run(speak())


SENTENCES = (
    "What is the weather in Paris today?",
    "Please book a table for two at eight.",
    "The train to the coast leaves from platform nine.",
    "I would like to change my password.",
    "How long does it take to walk there?",
)


@pytest.fixture(scope="module")
def recogniser() -> Iterator[WhisperCt2]:
    engine = WhisperCt2()
    yield engine
    engine.close()


def heard(
    recogniser: WhisperCt2, audio: Pcm16, *, language: str | None = None, hints: Sequence[str] = ()
) -> Transcript:
    async def run() -> Transcript:
        return await recogniser.transcribe(audio, Scope("turn"), language=language, hints=hints)

    return asyncio.run(run())


@pytest.mark.live
def test_sessions_that_speak_at_once_share_calls_and_get_their_own_words(recogniser: WhisperCt2) -> None:
    audios = [said(text) for text in SENTENCES]

    async def run() -> list[str]:
        asked = [recogniser.transcribe(audio, Scope("turn")) for audio in audios]
        return [transcript.text for transcript in await asyncio.gather(*asked)]

    before = recogniser.stats
    texts = asyncio.run(run())
    after = recogniser.stats
    assert [normalise(t) for t in texts] == [normalise(t) for t in SENTENCES]
    assert after.items - before.items > after.calls - before.calls, "no call was shared"


@pytest.mark.live
def test_half_a_minute_and_more_without_a_pause_is_heard_whole_and_in_order(recogniser: WhisperCt2) -> None:
    clauses = [f"and then boat number {n} came into the harbor for the night" for n in range(1, 13)]
    audio = np.concatenate([said(" ".join(clauses[i : i + 4])) for i in (0, 4, 8)])
    assert len(audio) > 32 * RATE_HZ
    transcript = heard(recogniser, audio)
    numbers = [int(word) for word in normalise(transcript.text) if word.isdecimal()]
    assert numbers == list(range(1, 13)), transcript.text
    assert compare(" ".join(clauses), transcript.text).rate < 0.1, transcript.text


@pytest.mark.live
def test_a_cancelled_request_leaves_before_the_call(recogniser: WhisperCt2) -> None:
    calls = recogniser.stats.calls
    first_audio, second_audio = said(SENTENCES[0]), said(SENTENCES[1])

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - the engine announces no such thing
            await asyncio.sleep(0)

    async def run() -> None:
        victim = Scope("turn")
        first = asyncio.ensure_future(recogniser.transcribe(first_audio, Scope("turn")))
        await until(lambda: recogniser.stats.calls > calls)
        second = asyncio.ensure_future(recogniser.transcribe(second_audio, victim))
        await until(lambda: recogniser.stats.depth == 1)
        victim.cancel(Reason.BARGE_IN)
        assert recogniser.stats.depth == 0
        with pytest.raises(ScopeCancelled):
            await second
        assert (await first).text
        assert recogniser.stats.calls == calls + 1

    asyncio.run(run())


@pytest.mark.live
def test_a_scope_that_has_ended_is_refused_at_once(recogniser: WhisperCt2) -> None:
    calls = recogniser.stats.calls
    audio = said(SENTENCES[0])

    async def run() -> None:
        late = Scope("session").child("turn", timeout_s=0.0)
        await asyncio.sleep(0.01)
        with pytest.raises(DeadlineExceeded):
            await recogniser.transcribe(audio, late)

    asyncio.run(run())
    assert recogniser.stats.calls == calls


@pytest.mark.live
def test_a_partial_is_heard_too_and_costs_at_most_one_more_look(recogniser: WhisperCt2) -> None:
    before = recogniser.counters["passes"]
    half = said(SENTENCES[2])[: RATE_HZ * 3 // 2]

    async def run() -> str:
        return (await recogniser.transcribe(half, Scope("turn", priority=Priority.PARTIAL))).text

    assert asyncio.run(run()).lower().startswith("the train")
    assert recogniser.counters["passes"] - before <= 2


@pytest.mark.live
def test_hints_tell_how_a_name_is_written(recogniser: WhisperCt2) -> None:
    audio = said("Please call Wojciech and tell her that I am late.")
    assert "Wojciech" not in heard(recogniser, audio).text
    assert "Wojciech" in heard(recogniser, audio, hints=["Wojciech"]).text


@pytest.mark.live
@pytest.mark.parametrize(
    ("audio", "says"),
    [
        (np.zeros((100, 2), np.int16), "int16"),
        (np.zeros(100, np.float32), "int16"),
        (np.zeros(121 * RATE_HZ, np.int16), "at most 120 s"),
    ],
)
def test_audio_that_can_not_be_used_is_refused_in_words(
    recogniser: WhisperCt2, audio: Pcm16, says: str
) -> None:
    with pytest.raises(BadAudio, match=says):
        heard(recogniser, audio)


@pytest.mark.live
def test_a_language_the_model_lacks_is_refused(recogniser: WhisperCt2) -> None:
    with pytest.raises(BadRequest, match="'de'"):
        heard(recogniser, said(SENTENCES[0]), language="de")
    assert heard(recogniser, said(SENTENCES[0]), language="en-US").text


def test_a_folder_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"model\.bin"):
        WhisperCt2(model_path=tmp_path)


@pytest.mark.live
def test_hints_may_be_long_or_odd_and_never_control_the_model(recogniser: WhisperCt2) -> None:
    audio = said("The train leaves at seven.")
    for hints in (["x" * 1_000_000], ["\ud800 name"], ["<|endoftext|>", "<|nospeech|>"], ["a"] * 100_000):
        assert "train leaves" in heard(recogniser, audio, hints=hints).text
    for wrong in ("no list", [None], [5]):
        with pytest.raises(BadRequest, match="hints"):
            heard(recogniser, audio, hints=wrong)

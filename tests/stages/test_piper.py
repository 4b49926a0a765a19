"""Piper: what is spoken in one run, when each word sounds, and what happens with odd text and files."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.tts.piper import Piper, PiperOptions, leading_silence, to_pcm16
from stages.tts.piper_model import PiperModel
from stages.tts.piper_plan import CLAUSE_PHONEMES, LONGEST_PHONEMES, Plan, Timeline, cut
from stages.tts.word_times import match_words, weigh_word
from voice.compute import ComputeGate
from voice.errors import BadRequest, ModelMissing, ScopeCancelled
from voice.interfaces import Speech
from voice.scope import Reason, Scope

# ---------------------------------------------------------------- what is run, without a model


def phonemes(text: str) -> list[str]:
    """Stands for espeak: one phoneme a letter."""
    return list(text)


def test_the_first_clause_of_a_sentence_is_a_run_of_its_own_so_that_it_is_heard_early() -> None:
    sentence = phonemes("let me look into that, then I will call you back about it")
    parts = ["".join(part) for part in cut(sentence, first=True)]
    assert parts == ["let me look into that,", "then I will call you back about it"]


def test_a_clause_too_short_to_cover_the_next_run_is_not_cut_off() -> None:
    sentence = phonemes("sure, then I will call you back about it")
    assert cut(sentence, first=True) == [sentence]


def test_a_later_sentence_is_not_cut_at_its_first_clause() -> None:
    sentence = phonemes("let me look into that, then I will call you back about it")
    assert cut(sentence, first=False) == [sentence]


def test_a_long_sentence_is_cut_between_words() -> None:
    sentence = phonemes("word " * 100)
    parts = cut(sentence, first=False)
    assert all(len(part) <= LONGEST_PHONEMES for part in parts)
    assert "".join("".join(part) for part in parts).replace(" ", "") == "word" * 100
    assert all("".join(part).strip().split() == ["word"] * len("".join(part).split()) for part in parts)


@given(st.text(alphabet="ab ,;.", max_size=700), st.booleans())
def test_cutting_loses_no_sound_and_bounds_every_run(text: str, first: bool) -> None:
    parts = cut(phonemes(text), first=first)
    assert "".join("".join(part) for part in parts).replace(" ", "") == text.replace(" ", "")
    assert all(0 < len(part) <= LONGEST_PHONEMES for part in parts)
    if first and len(parts) > 1:
        assert len(parts[0]) >= CLAUSE_PHONEMES


# ---------------------------------------------------------------- word times


def test_words_and_groups_of_equal_number_match_one_to_one() -> None:
    assert match_words([3, 1, 9], [1, 9, 3]) == [(0, 1), (1, 2), (2, 3)]


def test_words_that_espeak_joins_share_their_group() -> None:
    # the best of the lot: ðə bˈɛst ʌvðə lˈɑːt
    spans = match_words([3, 4, 2, 3, 3], [2, 4, 4, 3])
    assert spans[0] == (0, 1) and spans[1] == (1, 2) and spans[4] == (3, 4)
    assert spans[2] == (2, pytest.approx(2.4)) and spans[3] == (pytest.approx(2.4), 3)


def test_a_number_in_digits_takes_several_groups() -> None:
    # page 42 ends: pˈeɪdʒ, fˈɔːɹɾi tˈuː, ˈɛndz
    weights = [weigh_word(word) for word in ("page", "42", "ends")]
    assert match_words(weights, [4, 5, 2, 4]) == [(0, 1), (1, 3), (3, 4)]


def test_a_lone_dash_has_no_length() -> None:
    assert match_words([3, 0, 4], [3, 4]) == [(0, 1), (1, 1), (1, 2)]


@given(
    st.lists(st.integers(0, 12), max_size=40),
    st.lists(st.integers(1, 12), min_size=1, max_size=60),
)
def test_matched_words_are_in_order_and_cover_all_groups(words: list[int], groups: list[int]) -> None:
    spans = match_words(words, groups)
    assert len(spans) == len(words)
    ends = [0.0]
    for begin, end in spans:
        assert 0 <= begin <= end <= len(groups) + 1e-9
        assert begin == pytest.approx(ends[-1])
        ends.append(end)
    if any(words):
        assert ends[-1] == pytest.approx(len(groups))


def test_words_are_timed_on_one_axis_over_all_runs_less_the_silence_cut_off_in_front() -> None:
    plan = Plan.of("good day to you. thanks", [phonemes("good day to you."), phonemes("thanks")])
    assert len(plan.pieces) == 2
    timeline = Timeline(plan, sample_rate=1000)
    first = timeline.add(900, [(100, 200), (300, 400), (500, 600), (700, 800)], skipped=100)
    second = timeline.add(500, [(50, 400)], skipped=0)
    assert [(w.text, w.start_s, w.end_s) for w in first] == [
        ("good", 0.0, 0.1),
        ("day", 0.2, 0.3),
        ("to", 0.4, 0.5),
        ("you.", 0.6, 0.7),
    ]
    assert [(w.text, w.start_s, w.end_s) for w in second] == [("thanks", 0.95, 1.3)]


def test_a_voice_that_tells_no_durations_gives_no_word_times() -> None:
    timeline = Timeline(Plan.of("good day", [phonemes("good day")]), sample_rate=1000)
    assert timeline.add(900, [], skipped=0) == ()


# ---------------------------------------------------------------- samples


def test_samples_never_wrap_around_however_loud_the_voice() -> None:
    loud = to_pcm16(np.array([1.4, -1.4, 0.7], dtype=np.float32))
    assert loud.dtype == np.int16
    assert loud[0] == -loud[1] and 32_000 < loud[0] <= 32_767
    assert loud[2] == pytest.approx(loud[0] / 2, abs=1)


def test_a_quiet_clause_keeps_its_loudness() -> None:
    assert to_pcm16(np.array([0.1], dtype=np.float32))[0] == round(0.1 * 1.5 * 32_767)
    assert len(to_pcm16(np.zeros(0, dtype=np.float32))) == 0


def test_silence_before_the_first_sound_is_found_to_one_block() -> None:
    tone = (np.sin(np.arange(2205) / 5) * 3000).astype(np.int16)
    pcm = np.concatenate([np.zeros(2205, dtype=np.int16), tone])  # 100 ms of silence
    assert leading_silence(pcm, 22_050) == 9 * 220
    assert leading_silence(tone, 22_050) == 0
    assert leading_silence(np.zeros(2205, dtype=np.int16), 22_050) == 0
    assert leading_silence(np.zeros(0, dtype=np.int16), 22_050) == 0


# ---------------------------------------------------------------- bad voices


def test_an_unknown_name_is_refused_at_once() -> None:
    with pytest.raises(BadRequest):
        Piper("piper-nobody-low")
    with pytest.raises(BadRequest, match="not a Piper voice"):
        Piper("silero-vad")


def test_a_missing_voice_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"gone\.onnx"):
        Piper(tmp_path / "gone.onnx")


def test_a_damaged_description_is_named(tmp_path: Path) -> None:
    (tmp_path / "v.onnx").write_bytes(b"x")
    (tmp_path / "v.onnx.json").write_text("{")
    with pytest.raises(ModelMissing, match=r"v\.onnx\.json is damaged"):
        Piper(tmp_path / "v.onnx")


def test_a_damaged_network_is_one_sentence_not_a_traceback(tmp_path: Path) -> None:
    pytest.importorskip("piper")
    onnx = tmp_path / "v.onnx"
    onnx.write_bytes(b"\x08\x07not a network")
    description = {
        "audio": {"sample_rate": 22050},
        "num_symbols": 3,
        "num_speakers": 1,
        "espeak": {"voice": "en-us"},
        "phoneme_id_map": {"_": [0], "^": [1], "$": [2]},
    }
    Path(f"{onnx}.json").write_text(json.dumps(description))
    with pytest.raises(ModelMissing, match="damaged"):
        PiperModel(onnx)


def test_a_speed_out_of_range_is_refused() -> None:
    with pytest.raises(BadRequest, match="speed"):
        PiperOptions(speed=0)


# ---------------------------------------------------------------- the real voice


@pytest.fixture(scope="module")
def piper() -> Piper:
    return Piper(options=PiperOptions(deterministic=True), gate=ComputeGate(1))


async def speak(piper: Piper, text: str, voice: str | None = None) -> list[Speech]:
    scope = Scope("process")
    async with aclosing(piper.synthesise(text, scope, voice=voice)) as stream:
        return [speech async for speech in stream]


@pytest.mark.live
def test_a_sentence_is_spoken_with_a_time_for_every_word(piper: Piper) -> None:
    text = "Let me look into that for you, the best of the lot — it costs forty-nine dollars."
    parts = asyncio.run(speak(piper, text))
    assert len(parts) == 2
    words = [word for part in parts for word in part.words]
    assert [word.text for word in words] == text.split()
    assert all(a.end_s <= b.start_s + 1e-6 for a, b in pairwise(words))
    audio_s = sum(len(part.pcm) for part in parts) / piper.sample_rate
    assert 3.5 < audio_s < 8
    assert audio_s - 0.6 < words[-1].end_s <= audio_s


@pytest.mark.live
def test_words_sound_where_they_are_said_to_sound(piper: Piper) -> None:
    (part,) = asyncio.run(speak(piper, "Stop. Go."))[:1]
    assert isinstance(part.pcm, np.ndarray)
    (word,) = part.words
    begin, end = round(word.start_s * piper.sample_rate), round(word.end_s * piper.sample_rate)
    energy = part.pcm.astype(np.float64) ** 2
    assert energy[begin:end].sum() > 0.95 * energy.sum()


@pytest.mark.live
def test_speech_begins_at_once_and_does_not_clip(piper: Piper) -> None:
    (part,) = asyncio.run(speak(piper, "Hello."))
    assert leading_silence(part.pcm, piper.sample_rate) == 0
    peak = int(np.abs(part.pcm.astype(np.int32)).max())
    assert 8_000 < peak < 32_767


@pytest.mark.live
def test_the_same_text_gives_the_same_samples_when_asked_to(piper: Piper) -> None:
    a, b = asyncio.run(speak(piper, "Good day.")), asyncio.run(speak(piper, "Good day."))
    assert np.array_equal(a[0].pcm, b[0].pcm)


@pytest.mark.live
@pytest.mark.parametrize("text", ["", "   ", "...", "—", "!?", "\N{GRINNING FACE}", "[[ ]]", "\0"])
def test_text_without_a_sound_gives_nothing(piper: Piper, text: str) -> None:
    assert asyncio.run(speak(piper, text)) == []


@pytest.mark.live
@pytest.mark.parametrize(
    "text", ["[[hello]]", "a\0b", "caf\udce9", "中文", "x" * 600, "Hi \N{GRINNING FACE}"]
)
def test_odd_text_is_spoken_somehow_and_never_fails(piper: Piper, text: str) -> None:
    parts = asyncio.run(speak(piper, text))
    assert parts and all(len(part.pcm) for part in parts)


@pytest.mark.live
def test_brackets_of_a_language_model_are_not_taken_for_phonemes(piper: Piper) -> None:
    a, b = asyncio.run(speak(piper, "[[hello]]")), asyncio.run(speak(piper, "hello"))
    assert len(a[0].pcm) == len(b[0].pcm)


@pytest.mark.live
def test_an_unknown_speaker_and_too_long_a_text_are_refused(piper: Piper) -> None:
    with pytest.raises(BadRequest, match="no speaker 'nova'"):
        asyncio.run(speak(piper, "Hello.", voice="nova"))
    with pytest.raises(BadRequest, match="600"):
        asyncio.run(speak(piper, "x" * 601))


@pytest.mark.live
def test_a_cancelled_scope_gets_no_further_run_and_frees_the_gate(piper: Piper) -> None:
    async def main() -> None:
        scope = Scope("process")
        gate = piper._gate
        assert gate is not None
        stream = piper.synthesise("One sentence. " * 20, scope)
        await anext(stream)
        scope.cancel(Reason.BARGE_IN)
        with pytest.raises(ScopeCancelled):
            await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert gate.stats.running == 0

    asyncio.run(main())


@pytest.mark.live
def test_two_texts_at_once_each_get_their_own_words(piper: Piper) -> None:
    async def main() -> None:
        a, b = await asyncio.gather(speak(piper, "The red boat."), speak(piper, "A small green house."))
        assert [w.text for p in a for w in p.words] == ["The", "red", "boat."]
        assert [w.text for p in b for w in p.words] == ["A", "small", "green", "house."]

    asyncio.run(main())

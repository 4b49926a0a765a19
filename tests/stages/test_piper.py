"""Piper: what is spoken in one run, when each word sounds, and what happens with odd text and files."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.onnx_graph import Graph
from stages.tts.piper import DEFAULT_VOICE, Piper, PiperOptions, leading_silence, to_pcm16
from stages.tts.piper_model import PiperModel
from stages.tts.piper_plan import CLAUSE_PHONEMES, LONGEST_PHONEMES, Plan, Timeline, cut
from stages.tts.piper_stream import (
    FIRST_FRAMES,
    MOST_FRAMES,
    SECOND_FRAMES,
    Indivisible,
    Split,
    measure_part,
    window_ends,
)
from stages.tts.word_times import match_words, weigh_word
from voice import models
from voice.audio import rms_dbfs
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
    assert 0.8 * 32_767 < loud[2] < loud[0]


def test_louder_samples_stay_louder_and_the_curve_has_no_step() -> None:
    pcm = to_pcm16(np.linspace(-1, 1, 20_001, dtype=np.float32)).astype(int)
    steps = np.diff(pcm)
    assert steps.min() >= 0 and steps.max() <= 6


def test_a_sample_is_treated_alike_whatever_is_around_it() -> None:
    samples = np.random.default_rng(1).uniform(-1, 1, 2_000).astype(np.float32)
    assert np.array_equal(
        to_pcm16(samples), np.concatenate([to_pcm16(part) for part in np.split(samples, [1, 7, 900])])
    )
    assert samples.max() > 0.9, "the caller's samples are left alone"


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


# ---------------------------------------------------------------- windows, without a model


@given(st.integers(1, 3000))
def test_windows_cover_every_frame_once_in_order_and_are_bounded(frames: int) -> None:
    ends = window_ends(frames)
    sizes = np.diff([0, *ends])
    assert ends[-1] == frames
    assert sizes.min() >= min(frames, 16) and sizes[0] <= FIRST_FRAMES * 1.5
    assert sizes.max() <= MOST_FRAMES
    assert len(sizes) < 2 or sizes[1] <= SECOND_FRAMES * 1.5, "it must be made before the first one is over"


class Averaging:
    """Stands for a session: each value out is the mean of five frames around it, silence beyond the ends."""

    def __init__(self, step: int = 3, reach: int = 2) -> None:
        self.step, self.reach = step, reach

    def run(self, _: object, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        frames = feed["z"].sum(axis=1).reshape(-1)
        width = 2 * self.reach + 1
        padded = np.pad(frames, self.reach)
        means = np.array([padded[i : i + width].mean() for i in range(len(frames))], np.float32)
        return [np.repeat(means, self.step).reshape(1, 1, 1, -1)]


def test_the_context_of_a_part_is_measured_by_trial() -> None:
    part = measure_part(Averaging(step=3, reach=2), ("z",), channels=2)
    assert (part.context, part.step) == (2, 3)


def test_a_part_whose_output_depends_on_everything_is_not_run_in_windows() -> None:
    with pytest.raises(Indivisible, match="reaches further"):
        measure_part(Averaging(reach=60), ("z",), channels=2)


@given(st.integers(1, 60), st.data())
def test_windows_give_what_one_run_gives_wherever_they_are_cut(frames: int, data: st.DataObject) -> None:
    part = measure_part(Averaging(), ("z",), channels=2)
    z = np.random.default_rng(frames).standard_normal((1, 2, frames)).astype(np.float32)
    ends = sorted(data.draw(st.sets(st.integers(1, frames), max_size=8)) | {frames})
    windows = Split(None, ("z", "durations"), None, part, part).windows(z, ends)
    assert np.array_equal(np.concatenate(list(windows)), part.run(z, 0, frames).reshape(-1))


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


def joined(parts: list[Speech]) -> np.ndarray:
    return np.concatenate([np.asarray(part.pcm) for part in parts])


@pytest.mark.live
def test_a_sentence_is_spoken_with_a_time_for_every_word(piper: Piper) -> None:
    text = "Let me look into that for you, the best of the lot — it costs forty-nine dollars."
    parts = asyncio.run(speak(piper, text))
    assert parts[0].words and sum(bool(part.words) for part in parts) == 2, "once for each clause"
    words = [word for part in parts for word in part.words]
    assert [word.text for word in words] == text.split()
    assert all(a.end_s <= b.start_s + 1e-6 for a, b in pairwise(words))
    audio_s = sum(len(part.pcm) for part in parts) / piper.sample_rate
    assert 3.5 < audio_s < 8
    assert audio_s - 0.6 < words[-1].end_s <= audio_s


@pytest.mark.live
def test_words_sound_where_they_are_said_to_sound(piper: Piper) -> None:
    parts = asyncio.run(speak(piper, "Stop. Go."))
    second = next(i for i, part in enumerate(parts) if i and part.words)
    (word,) = parts[0].words
    begin, end = round(word.start_s * piper.sample_rate), round(word.end_s * piper.sample_rate)
    energy = joined(parts[:second]).astype(np.float64) ** 2
    assert energy[begin:end].sum() > 0.95 * energy.sum()


@pytest.mark.live
def test_speech_begins_at_once_and_does_not_clip(piper: Piper) -> None:
    parts = asyncio.run(speak(piper, "Hello."))
    first = joined(parts[:1])
    assert leading_silence(first, piper.sample_rate) == 0
    assert len(first) >= 2 * 220 and rms_dbfs(first[220:440]) > -50, "the second 10 ms are audible"
    peak = int(np.abs(joined(parts).astype(np.int32)).max())
    assert 8_000 < peak < 32_767


@pytest.mark.live
def test_the_same_text_gives_the_same_samples_when_asked_to(piper: Piper) -> None:
    a, b = asyncio.run(speak(piper, "Good day.")), asyncio.run(speak(piper, "Good day."))
    assert np.array_equal(joined(a), joined(b))


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
    assert len(joined(a)) == len(joined(b))


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


ROUNDING = 1e-4
"""Window shapes change the order of float32 sums, differently on every CPU; three steps of 16-bit audio. A seam is
a hundred times louder."""

TEXTS = [
    "Yes.",
    "The capital of France is Paris.",
    "I can book that table for you at seven in the evening, today.",
]


def onnx_of_default_voice() -> Path:
    return next(models.path(DEFAULT_VOICE).glob("*.onnx"))


@pytest.fixture(scope="module")
def model() -> PiperModel:
    return PiperModel(onnx_of_default_voice())


@pytest.mark.live
@pytest.mark.parametrize("text", TEXTS)
def test_windows_sound_exactly_like_one_run_of_the_whole_network(model: PiperModel, text: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    whole = onnxruntime.InferenceSession(onnx_of_default_voice(), providers=["CPUExecutionProvider"])
    (sentence,) = model.phonemise(text)
    feed = model._feed(model._voice.phonemes_to_ids(sentence), None, 1.0, deterministic=True)
    expected = whole.run(None, feed)[0].reshape(-1)
    rendering = model.begin(sentence, deterministic=True)
    windows = list(rendering.windows)
    assert rendering.length == len(expected)
    assert np.abs(np.concatenate(windows) - expected).max() < ROUNDING
    assert len(windows) > 1 or len(expected) <= 48 * 256


@pytest.mark.live
@pytest.mark.parametrize("text", TEXTS)
def test_with_noise_the_windows_join_exactly_wherever_they_are_cut(model: PiperModel, text: str) -> None:
    network = model._network
    assert isinstance(network, Split) and network.flow is not None
    (sentence,) = model.phonemise(text)
    feed = model._feed(model._voice.phonemes_to_ids(sentence), None, 1.0, deterministic=False)
    (frames,) = network.head.run([network.told[0]], feed)
    n = frames.shape[-1]
    (expected,) = network.windows(frames, [n])
    for plan in (window_ends(n), [1, 2, n], [n // 2, n], [n - 1, n], [*range(7, n, 7), n]):
        streamed = np.concatenate(list(network.windows(frames, plan)))
        assert np.abs(streamed - expected).max() < ROUNDING, plan


@pytest.mark.live
def test_the_first_piece_is_short_and_tells_the_times_of_all_words_of_its_clause(piper: Piper) -> None:
    text = "I can book that table for you at seven in the evening today."
    first, *rest = asyncio.run(speak(piper, text))
    assert len(first.pcm) / piper.sample_rate < 0.4
    assert [word.text for word in first.words] == text.split()
    assert rest and not any(part.words for part in rest)
    assert first.words[-1].end_s <= len(joined([first, *rest])) / piper.sample_rate


@pytest.mark.live
def test_between_two_windows_of_a_sentence_others_get_the_gate(piper: Piper) -> None:
    async def main() -> None:
        gate, scope = piper._gate, Scope("process")
        assert gate is not None
        async with aclosing(piper.synthesise("The capital of France is Paris.", scope)) as stream:
            async for _ in stream:
                assert gate.stats.running == 0

    asyncio.run(main())


@pytest.mark.live
def test_a_scope_cancelled_within_a_sentence_gets_no_further_window(piper: Piper) -> None:
    async def main() -> None:
        scope = Scope("process")
        stream = piper.synthesise("The capital of France is Paris.", scope)
        await anext(stream)
        scope.cancel(Reason.BARGE_IN)
        with pytest.raises(ScopeCancelled):
            await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


@pytest.mark.live
def test_a_voice_that_cannot_be_split_is_spoken_whole_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph.read(onnx_of_default_voice().read_bytes())
    onnx = tmp_path / "odd.onnx"
    (output,) = graph.outputs
    onnx.write_bytes(graph.part(list(graph.inputs), [output, *graph.made_by("Tanh")[-1:]]))
    shutil.copy(f"{onnx_of_default_voice()}.json", f"{onnx}.json")
    with caplog.at_level(logging.WARNING, "voice.piper"):
        parts = asyncio.run(speak(Piper(onnx, options=PiperOptions(deterministic=True)), "Hello there, you."))
    assert len(parts) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the Piper voice odd is spoken clause by clause, not piece by piece: it has 2 outputs"
    ]


@pytest.mark.live
@pytest.mark.parametrize("keep", [0.0001, 0.01, 0.5, 0.999])
def test_a_voice_cut_short_on_its_way_is_called_damaged(tmp_path: Path, keep: float) -> None:
    whole = onnx_of_default_voice().read_bytes()
    onnx = tmp_path / "short.onnx"
    onnx.write_bytes(whole[: int(len(whole) * keep)])
    shutil.copy(f"{onnx_of_default_voice()}.json", f"{onnx}.json")
    with pytest.raises(ModelMissing, match="damaged"):
        PiperModel(onnx)

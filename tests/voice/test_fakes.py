"""The shipped fakes of the audio engines: they hear, speak and count exactly what they were told to."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from voice.errors import BadAudio, BadRequest, EngineFailed, ScopeCancelled
from voice.interfaces import (
    LanguageModel,
    Pcm16,
    Recogniser,
    RecogniserCapabilities,
    Speech,
    Synthesiser,
    Transport,
    VoiceDetector,
)
from voice.scope import Identity, Reason, Scope
from voice.testing import (
    PullClient,
    PushClient,
    ScriptedDetector,
    ScriptedModel,
    ScriptedRecogniser,
    ToneSynthesiser,
    first_audible_s,
    noise,
    run_virtual,
    silence,
    speak,
    words_heard,
)

RATE = 24_000


def now() -> float:
    return asyncio.get_running_loop().time()


def scope(session: str = "s0", turn: int = 0) -> Scope:
    return Scope("turn", identity=Identity(session, turn, 0))


def samples(pieces: list[Speech]) -> Pcm16:
    raw = [p.pcm if isinstance(p.pcm, bytes) else p.pcm.astype("<i2").tobytes() for p in pieces]
    return np.frombuffer(b"".join(raw), "<i2").astype(np.int16)


def test_the_fakes_are_what_the_protocols_ask_for() -> None:
    stages: tuple[VoiceDetector, Recogniser, LanguageModel, Synthesiser] = (
        ScriptedDetector(),
        ScriptedRecogniser(),
        ScriptedModel(),
        ToneSynthesiser(),
    )
    assert len({stage.name for stage in stages}) == 4
    assert isinstance(PullClient(), Transport)
    assert isinstance(PushClient(), Transport)


# ---------------------------------------------------------------- voice activity


def judged(detector: ScriptedDetector, pcm: Pcm16) -> list[float]:
    async def main() -> list[float]:
        answers: list[float] = []
        stream = detector.open()
        for start in range(0, len(pcm) - 511, 512):
            stream.push(pcm[start : start + 512], answers.append)
            await asyncio.sleep(detector.delay_s)
        stream.close()
        return answers

    return run_virtual(main())


def test_the_detector_takes_loud_windows_for_speech() -> None:
    pcm = np.concatenate([silence(0.064), speak(0.064), noise(0.064)])
    assert judged(ScriptedDetector(), pcm) == [0.02, 0.02, 0.98, 0.98, 0.02, 0.02]


def test_the_detector_follows_a_script_and_then_its_ears() -> None:
    detector = ScriptedDetector([0.9, float("nan")])
    assert np.array_equal(judged(detector, speak(0.096)), [0.9, np.nan, 0.98], equal_nan=True)
    assert judged(ScriptedDetector(lambda window, index: index / 4), silence(0.096)) == [0.0, 0.25, 0.5]
    assert (detector.opened, detector.closed, detector.windows) == (1, 1, 3)


def test_the_detectors_answer_comes_after_its_delay_and_not_to_a_closed_stream() -> None:
    async def main() -> None:
        answers: list[tuple[float, float]] = []
        stream = ScriptedDetector(delay_s=0.01).open()
        stream.push(speak(0.032), lambda p: answers.append((now(), p)))
        with pytest.raises(BadRequest, match="no answer yet"):
            stream.push(speak(0.032), lambda p: None)
        await asyncio.sleep(0.02)
        stream.push(speak(0.032), lambda p: answers.append((now(), p)))
        stream.close()
        await asyncio.sleep(0.02)
        assert answers == [(0.01, 0.98)]

    run_virtual(main())


@pytest.mark.parametrize("window", [silence(0.03), np.zeros(512, np.float32), np.zeros((1, 512), np.int16)])
def test_the_detector_refuses_what_is_not_a_window(window: Any) -> None:
    with pytest.raises(BadAudio, match="512 samples"):
        ScriptedDetector().open().push(window, lambda p: None)


# ---------------------------------------------------------------- recognition


def transcribed(recogniser: ScriptedRecogniser, *audio: Pcm16) -> list[str]:
    async def main() -> list[str]:
        return [(await recogniser.transcribe(a, scope())).text for a in audio]

    return run_virtual(main())


def test_the_recogniser_gives_out_its_texts_in_order_and_then_nothing() -> None:
    recogniser = ScriptedRecogniser(["one", "two"])
    clips = [speak(0.1), speak(0.2), speak(0.3)]
    assert transcribed(recogniser, *clips) == ["one", "two", ""]
    assert [len(heard) for heard in recogniser.heard] == [1600, 3200, 4800]
    assert all(np.array_equal(a, b) for a, b in zip(clips, recogniser.heard, strict=True))


def test_the_recogniser_keeps_a_copy_of_what_it_heard() -> None:
    recogniser, clip = ScriptedRecogniser(), speak(0.1)
    transcribed(recogniser, clip)
    clip[:] = 0
    assert np.array_equal(recogniser.heard[0], speak(0.1))


def test_the_recogniser_hears_which_words_a_tone_stands_for() -> None:
    recogniser = ScriptedRecogniser({220: "I want to go to", 300: "Paris tomorrow"})
    first, second = speak(1.2, 220), speak(0.8, 300)
    joined = np.concatenate([silence(0.2), first, silence(1.3), second, silence(0.3)])
    noisy = np.clip(joined.astype(np.int32) + noise(len(joined) / 16_000), -32768, 32767).astype(np.int16)
    both = "I want to go to Paris tomorrow"
    said = transcribed(recogniser, first, second, joined, noisy, silence(1), noise(1), speak(0.5, 260))
    assert said == ["I want to go to", "Paris tomorrow", both, both, "", "", "tone 260"]
    assert transcribed(ScriptedRecogniser(by_tone=True), speak(0.5, 340)) == ["tone 340"]


def test_the_recogniser_takes_its_time_and_can_fail_or_hang() -> None:
    async def main() -> None:
        recogniser = ScriptedRecogniser(
            ["a", "b", "c"], delay_s=lambda audio: len(audio) / 16_000 / 10, fail_at={1}, hang_at={2}
        )
        assert (await recogniser.transcribe(speak(1.0), scope())).text == "a"
        assert now() == pytest.approx(0.1)
        with pytest.raises(EngineFailed, match="call 1"):
            await recogniser.transcribe(speak(1.0), scope())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(recogniser.transcribe(speak(1.0), scope()), 5)
        assert (recogniser.calls, recogniser.running, recogniser.cancelled) == (3, 0, 1)

    run_virtual(main())


def test_the_recogniser_refuses_bad_audio_and_cancelled_work() -> None:
    async def main() -> None:
        recogniser = ScriptedRecogniser(capabilities=RecogniserCapabilities(max_audio_s=1))
        with pytest.raises(BadAudio, match="longer"):
            await recogniser.transcribe(speak(1.1), scope())
        with pytest.raises(BadAudio, match="int16"):
            await recogniser.transcribe(np.zeros(10, np.float32), scope())
        gone = scope()
        gone.cancel(Reason.RESUMED)
        with pytest.raises(ScopeCancelled):
            await recogniser.transcribe(speak(0.1), gone)

    run_virtual(main())


# ---------------------------------------------------------------- synthesis


async def spoken(synthesiser: ToneSynthesiser, text: str, of: Scope) -> list[tuple[float, Speech]]:
    async with aclosing(synthesiser.synthesise(text, of)) as pieces:  # type: ignore[type-var]
        return [(now(), piece) async for piece in pieces]


def test_the_synthesiser_speaks_200_ms_a_word_at_its_speed() -> None:
    async def main() -> None:
        synthesiser = ToneSynthesiser(rtf=0.5, first_byte_s=0.3, chunk_s=0.1)
        pieces = await spoken(synthesiser, "It costs - $49.95, friend!", scope("caller-3", 2))
        assert [round(at, 6) for at, _ in pieces[:3]] == [0.35, 0.4, 0.45]
        pcm = samples([piece for _, piece in pieces])
        assert len(pcm) == 4 * 4800
        assert words_heard(pcm) == [(3, 2, 4)]
        assert list(synthesiser.texts) == ["It costs - $49.95, friend!"]
        assert (synthesiser.opened, synthesiser.finished, synthesiser.closed_early) == (1, 1, 0)

    run_virtual(main())


def test_bytes_cut_at_any_size_join_to_the_same_audio() -> None:
    async def main() -> None:
        whole = samples([p for _, p in await spoken(ToneSynthesiser(), "one two three", scope())])
        synthesiser = ToneSynthesiser(chunk_bytes=[1, 3, 4063, 1697, 2, 0])
        pieces = [p for _, p in await spoken(synthesiser, "one two three", scope())]
        assert [len(p.pcm) for p in pieces[:7]] == [1, 3, 4063, 1697, 2, 0, 1]
        assert np.array_equal(samples(pieces), whole)

    run_virtual(main())
    with pytest.raises(BadRequest, match="above 0"):
        ToneSynthesiser(chunk_bytes=[0])


def test_sessions_without_a_number_get_one_in_the_order_they_first_speak() -> None:
    async def main() -> None:
        synthesiser = ToneSynthesiser()
        for name, number in (("ann", 0), ("bob", 1), ("ann", 0), ("room-12", 12)):
            pcm = samples([p for _, p in await spoken(synthesiser, "hi", scope(name, 7))])
            assert words_heard(pcm) == [(number, 7, 1)]
        own = ToneSynthesiser(session_number=len)
        assert words_heard(samples([p for _, p in await spoken(own, "hi", scope("four"))])) == [(4, 0, 1)]

    run_virtual(main())


def test_word_times_and_leading_silence_agree_with_the_audio() -> None:
    async def main() -> None:
        pieces = [p for _, p in await spoken(ToneSynthesiser(lead_s=0.25, word_times=True), "a b", scope())]
        times = [(w.text, w.start_s, w.end_s) for p in pieces for w in p.words]
        assert times == [("a", 0.25, 0.45), ("b", 0.45, 0.65)]
        assert first_audible_s(samples(pieces), RATE) == 0.25

    run_virtual(main())


def test_the_synthesiser_can_fail_hang_refuse_and_be_closed() -> None:
    async def main() -> None:
        synthesiser = ToneSynthesiser(fail_at={0}, hang_at={1}, max_chars=10)
        with pytest.raises(EngineFailed, match="call 0"):
            await spoken(synthesiser, "one two", scope())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(spoken(synthesiser, "one two", scope()), 30)
        async with aclosing(synthesiser.synthesise("one two", scope())) as pieces:  # type: ignore[type-var]
            async for _ in pieces:
                break
        with pytest.raises(BadRequest, match="11 characters"):
            await spoken(synthesiser, "one two 345", scope())
        assert (synthesiser.opened, synthesiser.closed_early, synthesiser.running) == (3, 3, 0)

    run_virtual(main())

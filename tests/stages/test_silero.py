"""Silero VAD on the real model: parity of the batched path, state per session, no decay, errors to the
right one."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from stages.tts.piper import Piper, PiperOptions
from stages.vad.silero import MODEL_FILE, QUIET_BELOW, RESET_AFTER_S, WINDOW_S, WINDOW_SAMPLES, SileroVad
from voice import models
from voice.errors import BadAudio, BadRequest, VoiceError
from voice.interfaces import DetectorStream, Pcm16
from voice.scope import Scope
from voice.testing import run_virtual

pytestmark = pytest.mark.live


@functools.cache
def said(text: str) -> Pcm16:
    """``text`` by the project's own voice, 16 kHz."""

    async def speak() -> Pcm16:
        piper = Piper(options=PiperOptions(deterministic=True))
        made = [np.asarray(s.pcm) async for s in piper.synthesise(text, Scope("session"))]
        return soxr.resample(np.concatenate(made), piper.sample_rate, 16_000).astype(np.int16)

    return asyncio.run(speak())


@pytest.fixture(scope="module")
def detector() -> Iterator[SileroVad]:
    vad = SileroVad()
    yield vad
    vad.close()


async def judged(stream: DetectorStream, audio: Pcm16) -> list[float]:
    """Probabilities of all whole windows of ``audio``, one after another."""
    loop = asyncio.get_running_loop()
    out = []
    for start in range(0, len(audio) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES):
        answer: asyncio.Future[float] = loop.create_future()
        stream.push(audio[start : start + WINDOW_SAMPLES], answer.set_result)
        out.append(await answer)
    return out


def voices(n: int) -> list[Pcm16]:
    """``n`` different 2 s stretches of speech in noise."""
    rng = np.random.default_rng(5)
    speech = said("Good morning, I would like to know when the next train leaves for the coast.")
    out = []
    for i in range(n):
        noise = rng.normal(0, 60 * (i + 1), 32_000)
        out.append((np.roll(speech, -4_000 * i)[:32_000] + noise).clip(-32768, 32767).astype(np.int16))
    return out


def test_a_batch_gives_every_session_what_it_would_get_alone(detector: SileroVad) -> None:
    audios = voices(7)

    async def alone() -> list[list[float]]:
        return [await judged(detector.open(), audio) for audio in audios]

    async def together() -> list[list[float]]:
        return await asyncio.gather(*(judged(detector.open(), audio) for audio in audios))

    one_by_one = asyncio.run(alone())
    calls, items = detector.stats.calls, detector.stats.items
    batched = asyncio.run(together())
    assert (detector.stats.items - items) / (detector.stats.calls - calls) > 3, "this did not run in batches"
    np.testing.assert_allclose(batched, one_by_one, atol=1e-4)


def test_speech_is_told_from_silence_and_noise(detector: SileroVad) -> None:
    speech = said("Good morning, I would like to know when the next train leaves for the coast.")
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 300, 48_000).astype(np.int16)

    async def run() -> tuple[list[float], list[float], list[float]]:
        streams = [detector.open() for _ in range(3)]
        return (
            await judged(streams[0], speech),
            await judged(streams[1], noise),
            await judged(streams[2], np.zeros(48_000, np.int16)),
        )

    spoken, noisy, silent = asyncio.run(run())
    assert np.mean(np.array(spoken) > 0.5) > 0.75
    assert max(noisy) < 0.35 and max(silent) < 0.35


def test_confidence_does_not_decay_over_ten_minutes_of_noise() -> None:
    detector = SileroVad()
    rng = np.random.default_rng(2)
    block = rng.normal(0, 1, 16_000 * 8)
    spectrum = np.fft.rfft(block)
    pink = np.fft.irfft(spectrum / np.sqrt(np.maximum(1, np.arange(len(spectrum)))))
    pink *= 32768 * 10 ** (-34 / 20) / pink.std()
    speech = said("Good morning, I would like to know when the next train leaves for the coast.")
    mixed = (np.resize(pink, len(speech)) + speech).clip(-32768, 32767).astype(np.int16)
    quiet = np.resize(pink.astype(np.int16), 16_000 * 600)

    async def run() -> tuple[list[float], list[float]]:
        old = detector.open()
        in_noise = await judged_fast(detector, old, quiet)
        assert max(in_noise) < 0.5
        return await judged(old, mixed), await judged(detector.open(), mixed)

    after, fresh = run_virtual(run())
    assert np.mean(after) > np.mean(fresh) - 0.02
    assert np.mean(np.array(after) > 0.5) > np.mean(np.array(fresh) > 0.5) - 0.04


async def judged_fast(detector: SileroVad, stream: DetectorStream, audio: Pcm16) -> list[float]:
    """As :func:`judged`, each window pushed from the callback of the one before: no task wakes per window."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    windows = audio[: len(audio) // WINDOW_SAMPLES * WINDOW_SAMPLES].reshape(-1, WINDOW_SAMPLES)
    out: list[float] = []

    def on_result(probability: float) -> None:
        out.append(probability)
        if len(out) < len(windows):
            stream.push(windows[len(out)], on_result)
        else:
            done.set_result(None)

    stream.push(windows[0], on_result)
    await done
    return out


def test_the_state_starts_afresh_in_long_quiet_and_never_in_speech(detector: SileroVad) -> None:
    speech = said("Good morning, I would like to know when the next train leaves for the coast.")
    windows = math.ceil(RESET_AFTER_S / WINDOW_S)

    async def run() -> None:
        stream = detector.open()
        await judged(stream, np.zeros(WINDOW_SAMPLES * (windows - 1), np.int16))
        assert np.any(stream.h != 0)  # type: ignore[attr-defined]
        await judged(stream, np.zeros(WINDOW_SAMPLES, np.int16))
        assert not np.any(stream.h)  # type: ignore[attr-defined]
        for start in range(0, len(speech) - WINDOW_SAMPLES, WINDOW_SAMPLES):
            (probability,) = await judged(stream, speech[start : start + WINDOW_SAMPLES])
            assert probability < 0.5 or np.any(stream.h)  # type: ignore[attr-defined]

    asyncio.run(run())


def test_a_reset_stream_judges_like_a_new_one(detector: SileroVad) -> None:
    first, second = voices(2)

    async def run() -> tuple[list[float], list[float]]:
        stream = detector.open()
        await judged(stream, first)
        stream.reset()
        return await judged(stream, second), await judged(detector.open(), second)

    again, new = asyncio.run(run())
    np.testing.assert_allclose(again, new, atol=1e-6)


def test_a_reset_during_a_window_leaves_nothing_of_it_behind(detector: SileroVad) -> None:
    first, second = voices(2)

    async def run() -> tuple[list[float], list[float]]:
        stream = detector.open()
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        stream.push(first[:WINDOW_SAMPLES], answer.set_result)
        stream.reset()
        await answer
        return await judged(stream, second), await judged(detector.open(), second)

    again, new = asyncio.run(run())
    np.testing.assert_allclose(again, new, atol=1e-6)


def test_a_closed_stream_gets_no_result_and_takes_no_window(detector: SileroVad) -> None:
    async def run() -> None:
        stream, other = detector.open(), detector.open()
        late: list[float] = []
        stream.push(np.zeros(WINDOW_SAMPLES, np.int16), late.append)
        stream.close()
        await judged(other, np.zeros(WINDOW_SAMPLES * 2, np.int16))
        assert late == []
        with pytest.raises(BadRequest):
            stream.push(np.zeros(WINDOW_SAMPLES, np.int16), late.append)

    asyncio.run(run())


def test_wrong_use_is_refused_in_words(detector: SileroVad) -> None:
    async def run() -> None:
        stream = detector.open()
        with pytest.raises(BadAudio, match="512 samples"):
            stream.push(np.zeros(480, np.int16), lambda _: None)
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        stream.push(np.zeros(WINDOW_SAMPLES, np.int16), answer.set_result)
        with pytest.raises(BadRequest, match="not been answered"):
            stream.push(np.zeros(WINDOW_SAMPLES, np.int16), lambda _: None)
        await answer

    asyncio.run(run())


class _BreaksAt:
    """The network, whose ``call``-th call fails."""

    def __init__(self, call: int, network: Any) -> None:
        self._left, self._network = call, network

    def run(self, *args: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("the engine broke")
        return self._network.run(*args)


def test_a_failed_call_answers_nan_and_changes_no_state() -> None:
    (audio,) = voices(1)

    async def run() -> None:
        detector = SileroVad()
        detector._session = _BreaksAt(4, detector._session)
        stream: Any = detector.open()
        await judged(stream, audio[: 3 * WINDOW_SAMPLES])
        before = stream.h.copy(), stream.c.copy()
        (probability,) = await judged(stream, audio[3 * WINDOW_SAMPLES : 4 * WINDOW_SAMPLES])
        assert math.isnan(probability)
        assert np.array_equal(stream.h, before[0]) and np.array_equal(stream.c, before[1])
        assert max(await judged(stream, audio[4 * WINDOW_SAMPLES :])) > 0.5

    run_virtual(run())


def test_the_network_answers_as_the_package_s_own_graph(detector: SileroVad) -> None:
    import onnxruntime

    path = models.path("silero-vad") / MODEL_FILE
    original = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    audios = voices(3)
    ours = asyncio.run(_together(detector, audios))
    for audio, answers in zip(audios, ours, strict=True):
        state, context = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32)
        for at, answer in enumerate(answers):
            window = audio[at * WINDOW_SAMPLES : (at + 1) * WINDOW_SAMPLES].astype(np.float32) / 32768
            feed = {"input": np.concatenate([context, window])[None], "state": state, "sr": np.array(16_000)}
            output, state = original.run(None, feed)
            context = window[-64:]
            assert answer == pytest.approx(float(output[0, 0]), abs=1e-5)


async def _together(detector: SileroVad, audios: Sequence[Pcm16]) -> list[list[float]]:
    return await asyncio.gather(*(judged(detector.open(), audio) for audio in audios))


def test_silence_that_is_left_out_moves_onsets_by_little_and_not_later() -> None:
    rng = np.random.default_rng(3)
    texts = (
        "Good morning, I would like to know when the next train leaves for the coast.",
        "Yes.",
        "Stop it please.",
    )
    parts: list[Pcm16] = []
    for number in range(8):
        level = (0, 4, 8, 16)[number % 4]
        parts.append(rng.integers(-level, level + 1, int(rng.uniform(16_000, 96_000))).astype(np.int16))
        parts.append((said(texts[number % 3]) * rng.uniform(0.1, 1.0)).astype(np.int16))
    audio = np.concatenate([*parts, np.zeros(16_000, np.int16)])

    async def run(skip: bool) -> tuple[list[float], int]:
        vad = SileroVad(skip_silence=skip)
        return await judged_fast(vad, vad.open(), audio), vad.skipped

    left_out, skipped = run_virtual(run(True))
    judged_all, none_skipped = run_virtual(run(False))
    assert none_skipped == 0 and skipped > len(judged_all) / 3
    moved = np.array(edges(left_out)) - np.array(edges(judged_all))  # as many of them
    assert np.abs(moved).max() <= 3
    assert moved.mean() <= 0.1


def edges(probabilities: list[float]) -> list[int]:
    """Numbers of the windows in which speech began, after two above 0.5, and ended, after four below 0.35."""
    found: list[int] = []
    run = 0
    for number, probability in enumerate(probabilities):
        speaking = len(found) % 2 == 1
        run = run + 1 if (probability < QUIET_BELOW if speaking else probability >= 0.5) else 0
        if run == (4 if speaking else 2):
            found.append(number)
            run = 0
    return found


def test_another_model_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(VoiceError, match="no ONNX model"):
        (tmp_path / MODEL_FILE).write_bytes(b"not a model")
        SileroVad(tmp_path)
    with pytest.raises(VoiceError, match="no float32 weight"):
        SileroVad(models.path("smart-turn-v3.2") / "smart-turn-v3.2-cpu.onnx")

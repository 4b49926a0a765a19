"""Silero VAD on the real model: parity of the batched path, state per session, no decay, errors to the
right one."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import soxr

from stages.tts.piper import Piper, PiperOptions
from stages.vad.silero import RESET_AFTER_S, WINDOW_S, WINDOW_SAMPLES, SileroVad
from voice.errors import BadAudio, BadRequest, EngineFailed
from voice.interfaces import DetectorStream, Pcm16
from voice.scope import Scope
from voice.testing import run_virtual
from voice.testing.executor import VirtualExecutor

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
    detector = SileroVad(
        executor=VirtualExecutor(0.001)
    )  # inline: a thread hop per window is most of the cost
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
        assert np.any(stream.state != 0)  # type: ignore[attr-defined]
        await judged(stream, np.zeros(WINDOW_SAMPLES, np.int16))
        assert not np.any(stream.state)  # type: ignore[attr-defined]
        for start in range(0, len(speech) - WINDOW_SAMPLES, WINDOW_SAMPLES):
            (probability,) = await judged(stream, speech[start : start + WINDOW_SAMPLES])
            assert probability < 0.5 or np.any(stream.state)  # type: ignore[attr-defined]

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


class _FailsAt:
    """An executor whose ``call``-th call fails as a broken engine does, before the model runs."""

    def __init__(self, call: int) -> None:
        self._inner = VirtualExecutor(0.001)
        self._left = call

    def run(self, call: Callable[..., object], *args: object) -> asyncio.Future[object]:
        self._left -= 1
        if self._left == 0:
            return self._inner.run(_break)
        return self._inner.run(call, *args)

    def close(self) -> None:
        self._inner.close()


def _break() -> Sequence[object]:
    raise EngineFailed("the engine broke")


def test_a_failed_call_answers_nan_and_changes_no_state() -> None:
    (audio,) = voices(1)

    async def run() -> None:
        broken, whole = SileroVad(executor=_FailsAt(4)), SileroVad(executor=VirtualExecutor(0.001))
        stream, reference = broken.open(), whole.open()
        before = await judged(stream, audio[: 3 * WINDOW_SAMPLES])
        assert math.isnan((await judged(stream, audio[3 * WINDOW_SAMPLES : 4 * WINDOW_SAMPLES]))[0])
        await asyncio.sleep(2.0)  # the breaker's cooldown
        after = await judged(stream, audio[4 * WINDOW_SAMPLES :])
        assert before == await judged(reference, audio[: 3 * WINDOW_SAMPLES])
        assert after == await judged(reference, audio[4 * WINDOW_SAMPLES :])

    run_virtual(run())

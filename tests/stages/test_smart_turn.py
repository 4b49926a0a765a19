"""Smart Turn on the real model: its features against plain arithmetic, done told from not done, one answer for each
session whatever the batch, nothing run for who left, errors in words."""

from __future__ import annotations

import asyncio
import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import soxr

from stages.tts.piper import Piper, PiperOptions
from stages.turn.smart_turn import WINDOW_SAMPLES, SmartTurn, turn_features
from voice.compute import ComputeGate
from voice.errors import BadAudio, EngineFailed, ModelMissing, Overloaded, ScopeCancelled
from voice.interfaces import Pcm16
from voice.scope import Priority, Reason, Scope
from voice.testing import run_virtual
from voice.testing.executor import VirtualExecutor

RATE_HZ = 16_000

PAIRS = [
    ("What is the capital of", "What is the capital of France?"),
    ("Can you tell me when the", "Can you tell me when the train leaves?"),
    ("My phone number is five five five", "My phone number is five five five one two three four."),
    ("Please turn off the lights in the", "Please turn off the lights in the kitchen."),
    ("I want to cancel my", "I want to cancel my order."),
    ("What time does the", "What time does the shop open?"),
    ("It costs about", "It costs about twenty dollars."),
    ("I have never been to", "I have never been to Spain."),
]
"""The same beginning, left open and finished."""


def noise(samples: int, level: float, offset: float = 0.0, seed: int = 3) -> Pcm16:
    return np.random.default_rng(seed).normal(offset, level, samples).clip(-32768, 32767).astype(np.int16)


# ---------------------------------------------------------------- features


def plain_features(audio: Pcm16) -> np.ndarray:
    """The same in the plainest way, from the definitions: 64-bit numbers, a matrix for the Fourier transform, the
    filters from Slaney's own table of points."""
    wave = np.zeros(128_000)
    heard = audio[-128_000:] / 32768.0
    wave[128_000 - len(heard) :] = heard
    wave = (wave - wave.mean()) / math.sqrt(wave.var() + 1e-7)
    mirrored = np.concatenate([wave[1:201][::-1], wave, wave[-201:-1][::-1]])
    n = np.arange(400)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / 400)
    angles = 2 * np.pi * np.outer(n, np.arange(201)) / 400
    frames = np.array([mirrored[at : at + 400] * hann for at in range(0, 128_000, 160)])
    power = (frames @ np.cos(angles)) ** 2 + (frames @ np.sin(angles)) ** 2

    top = 15 + 27 * math.log(8) / math.log(6.4)  # 8 kHz in mels
    edges = [m * 200 / 3 if m < 15 else 1000 * 6.4 ** ((m - 15) / 27) for m in np.linspace(0, top, 82)]
    mel = np.zeros((80, 800))
    hz = 40.0 * np.arange(201)
    for i, (low, centre, high) in enumerate(zip(edges[:-2], edges[1:-1], edges[2:], strict=True)):
        weights = np.maximum(0.0, np.minimum((hz - low) / (centre - low), (high - hz) / (high - centre)))
        mel[i] = power @ weights * 2 / (high - low)
    log = np.log10(np.maximum(mel, 1e-10))
    return (np.maximum(log, log.max() - 8) + 4) / 4


@pytest.mark.parametrize(
    "audio",
    [
        noise(1, 300, 20),
        noise(1_000, 300, 20),
        noise(127_799, 300),  # around the first frames, where the mirrored edge is
        noise(127_800, 300),
        noise(127_801, 300, 500),
        noise(128_000, 3_000),
        noise(150_000, 30_000),
        np.concatenate([noise(150_000, 3_000), noise(40_000, 3)]),
        np.zeros(5_000, np.int16),
        np.full(5_000, -32_768, np.int16),
    ],
    ids=lambda audio: str(len(audio)),
)
def test_features_equal_plain_arithmetic(audio: Pcm16) -> None:
    features = turn_features(audio)
    assert features.shape == (80, 800) and features.dtype == np.float32
    np.testing.assert_allclose(features, plain_features(audio), atol=1e-3)


def test_only_the_last_8_s_count() -> None:
    audio = noise(WINDOW_SAMPLES + 9_999, 1_000)
    np.testing.assert_array_equal(turn_features(audio), turn_features(audio[-WINDOW_SAMPLES:]))


# ---------------------------------------------------------------- the model


@functools.cache
def voice_of_the_project() -> Piper:
    return Piper(options=PiperOptions(deterministic=True))


@functools.cache
def said(text: str) -> Pcm16:
    """``text`` by the project's own voice at 16 kHz, with 0.2 s of a quiet room after its last sound."""

    async def speak() -> Pcm16:
        piper = voice_of_the_project()
        made = [np.asarray(s.pcm) async for s in piper.synthesise(text, Scope("session"))]
        return soxr.resample(np.concatenate(made), piper.sample_rate, RATE_HZ).astype(np.int16)

    speech = asyncio.run(speak())
    loud = np.flatnonzero(np.abs(speech.astype(np.int32)) > 200)
    speech = speech[max(0, loud[0] - 3_200) : loud[-1] + 1]
    return np.concatenate([speech, np.zeros(3_200, np.int16)]) + noise(len(speech) + 3_200, 4)


@pytest.fixture(scope="module")
def model() -> Iterator[SmartTurn]:
    made = SmartTurn()
    yield made
    made.close()


async def one_by_one(model: SmartTurn, turns: Sequence[Pcm16]) -> list[float]:
    return [await model.completion(audio, Scope("turn")) for audio in turns]


@pytest.mark.live
def test_finished_sentences_are_told_from_open_ones_on_average(model: SmartTurn) -> None:
    unfinished, finished = (
        asyncio.run(one_by_one(model, [said(text) for text in texts])) for texts in zip(*PAIRS, strict=True)
    )
    assert np.mean(finished) > np.mean(unfinished) + 0.2 and np.mean(finished) > 0.6
    assert np.mean(np.subtract.outer(finished, unfinished) > 0) > 0.7, (
        "a finished one scores above an open one"
    )


@pytest.mark.live
def test_a_long_turn_is_judged_by_its_end(model: SmartTurn) -> None:
    end = np.concatenate([noise(WINDOW_SAMPLES, 4), said(PAIRS[0][0])])[-WINDOW_SAMPLES:]
    turns = [end, np.concatenate([said(PAIRS[0][1]), noise(WINDOW_SAMPLES, 4), end])]
    alone, in_a_long_turn = asyncio.run(one_by_one(model, turns))
    assert in_a_long_turn == alone


@pytest.mark.live
def test_speech_is_judged_as_by_plain_arithmetic(model: SmartTurn) -> None:
    turns = [said(text) for text in PAIRS[0]]
    shown = np.stack([plain_features(audio) for audio in turns]).astype(np.float32)
    (expected,) = model._session.run(None, {"input_features": shown})
    np.testing.assert_allclose(asyncio.run(one_by_one(model, turns)), expected[:, 0], atol=0.01)


@pytest.mark.live
def test_a_sentence_cut_in_the_middle_of_its_melody_is_open(model: SmartTurn) -> None:
    cut = [said(finished)[: int(0.5 * len(said(finished)))] for _, finished in PAIRS]
    turns = [np.concatenate([audio, noise(3_200, 4)]) for audio in cut]
    assert np.mean(asyncio.run(one_by_one(model, turns))) < 0.5


@pytest.mark.live
def test_a_batch_gives_every_session_what_it_would_get_alone(model: SmartTurn) -> None:
    batching = SmartTurn(max_batch=4)
    turns = [said(text) for pair in PAIRS[:3] for text in pair]

    async def together() -> list[float]:
        return await asyncio.gather(*(batching.completion(audio, Scope("turn")) for audio in turns))

    batched = asyncio.run(together())
    assert batching.stats.mean_batch > 1.5, "this did not run in batches"
    batching.close()
    alone = asyncio.run(one_by_one(model, turns))
    assert max(alone) - min(alone) > 0.5, "these turns can't be told apart, so this test shows nothing"
    np.testing.assert_allclose(batched, alone, atol=1e-4)


@pytest.mark.live
@pytest.mark.parametrize(
    "audio",
    [
        noise(1, 300),
        noise(800, 3_000),
        np.zeros(1_600, np.int16),
        np.zeros(200_000, np.int16),
        np.full(16_000, -32_768, np.int16),
        np.tile(np.array([32_767, -32_768], np.int16), 70_000),
    ],
    ids=["one sample", "50 ms", "silence", "long silence", "stuck", "full scale"],
)
def test_odd_audio_gets_a_probability_too(model: SmartTurn, audio: Pcm16) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of a division by zero, an overflow or a NaN
        (probability,) = asyncio.run(one_by_one(model, [audio]))
    assert 0.0 <= probability <= 1.0


@pytest.mark.live
def test_the_callers_buffer_may_be_used_again_at_once(model: SmartTurn) -> None:
    finished, unfinished = said(PAIRS[0][1]), said(PAIRS[0][0])

    async def run() -> tuple[float, float]:
        (expected,) = await one_by_one(model, [finished])
        ring = finished.copy()
        answer = asyncio.ensure_future(model.completion(ring, Scope("turn")))
        await asyncio.sleep(0)
        ring[:] = np.resize(unfinished, len(ring))
        return expected, await answer

    expected, answered = asyncio.run(run())
    assert answered == pytest.approx(expected, abs=1e-6)


@pytest.mark.live
def test_who_leaves_before_the_model_runs_costs_no_call() -> None:
    executor = VirtualExecutor(0.1, threads=1)
    model = SmartTurn(executor=executor)
    audio = noise(16_000, 300)

    async def run() -> None:
        first, leaves, stays = Scope("turn"), Scope("turn"), Scope("turn")
        asked = [asyncio.ensure_future(model.completion(audio, scope)) for scope in (first, leaves, stays)]
        await asyncio.sleep(0.01)
        leaves.cancel(Reason.RESUMED)
        with pytest.raises(ScopeCancelled):
            await asked[1]
        await asked[0]
        await asked[2]
        assert executor.calls == 2
        with pytest.raises(ScopeCancelled):
            await model.completion(audio, leaves)
        hasty = Scope("turn", deadline=asyncio.get_running_loop().time() + 0.01)
        with pytest.raises(Overloaded):  # it is known by now that a call takes 0.1 s
            await model.completion(audio, hasty)
        assert executor.calls == 2

    run_virtual(run())


@pytest.mark.live
def test_committed_turns_are_judged_before_guesses_and_all_behind_the_gate() -> None:
    gate = ComputeGate(1)
    model = SmartTurn(executor=VirtualExecutor(0.1), gate=gate)
    order: list[str] = []

    async def ask(name: str, priority: Priority) -> None:
        await model.completion(noise(1_600, 300), Scope("turn", priority=priority))
        order.append(name)

    async def run() -> None:
        async with gate.slot():
            asks = [
                ask("guess", Priority.SPECULATIVE),
                ask("later", Priority.PARTIAL),
                ask("turn", Priority.COMMITTED),
            ]
            together = asyncio.gather(*asks)
            await asyncio.sleep(1.0)
            assert order == [], "the model ran while another engine had the processor"
        await together

    run_virtual(run())
    assert order == ["turn", "guess", "later"]


@pytest.mark.live
def test_a_failing_runtime_is_named_and_the_breaker_lets_it_recover(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SmartTurn(executor=VirtualExecutor(0.1))

    class Broken:
        def run(self, *_: object) -> object:
            raise RuntimeError("out of tensors")

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(model, "_session", Broken())
            with pytest.raises(EngineFailed, match="out of tensors"):
                await model.completion(noise(1_600, 300), Scope("turn"))
        await asyncio.sleep(2.0)  # the breaker's cooldown
        assert 0 <= await model.completion(noise(1_600, 300), Scope("turn")) <= 1

    run_virtual(run())


@pytest.mark.live
def test_wrong_audio_is_refused_in_words(model: SmartTurn) -> None:
    async def ask(audio: np.ndarray) -> None:
        await model.completion(audio, Scope("turn"))

    with pytest.raises(BadAudio, match="at least 1 sample"):
        asyncio.run(ask(np.zeros(0, np.int16)))
    with pytest.raises(BadAudio, match="float32"):
        asyncio.run(ask(np.zeros(1_600, np.float32)))
    with pytest.raises(BadAudio, match="shape"):
        asyncio.run(ask(np.zeros((2, 1_600), np.int16)))


def test_a_missing_or_damaged_model_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"smart-turn-v3\.2-cpu\.onnx"):
        SmartTurn(tmp_path)
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"not a model")
    with pytest.raises(EngineFailed, match=r"damaged\.onnx can't be loaded"):
        SmartTurn(damaged)


@pytest.mark.live
def test_another_kind_of_model_is_refused_at_the_start() -> None:
    from voice import models

    with pytest.raises(EngineFailed, match="no Smart Turn v3 model"):
        SmartTurn(models.path("silero-vad") / "silero_vad.onnx")

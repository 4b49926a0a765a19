"""The comparison of frameworks: what it measures of ours in virtual time, and that its stubs take the time they say."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from loadtest.framework import Plan, default_utterance, measure
from loadtest.framework_caller import FRAME, UserAudio
from loadtest.framework_report import FrameworkRun
from loadtest.stubs import (
    RATE_HZ,
    Ident,
    ServiceTimes,
    StubVoice,
    _block,
    answer_words,
    ident_of,
    voice_heard,
    voice_of,
)
from voice.errors import BadAudio, BadRequest
from voice.scope import Identity, Scope
from voice.testing import run_virtual


@pytest.fixture(scope="module")
def audio() -> UserAudio:
    return UserAudio(asyncio.run(default_utterance()))


def run(audio: UserAudio, kind: str, sessions: int, seconds: float = 30.0) -> FrameworkRun:
    return run_virtual(measure(Plan(kind, sessions, seconds), audio, ServiceTimes()))


@pytest.mark.live
def test_our_sessions_answer_soon_and_fall_silent_soon(audio: UserAudio) -> None:
    result = run(audio, "voice", 3)
    assert result.turns >= 12 and result.missed == 0 and result.stale == 0 and result.underruns == 0
    assert result.overhead.p50 is not None and result.overhead.p50 <= 40
    assert result.barge_in.p50 is not None and result.barge_in.p50 <= 75
    assert result.barge_in.p95 is not None and result.barge_in.p95 <= 105


@pytest.mark.live
def test_guessing_hides_what_the_silence_allows(audio: UserAudio) -> None:
    plain, guessing = run(audio, "voice", 1), run(audio, "speculating", 1)
    assert plain.overhead.p50 is not None and guessing.overhead.p50 is not None
    assert guessing.overhead.p50 < plain.overhead.p50 - 30


def test_the_oracle_adds_nothing() -> None:
    rng = np.random.default_rng(1)
    result = run(UserAudio(rng.integers(-9000, 9000, 125 * FRAME).astype(np.int16)), "null", 2)
    assert result.turns >= 8 and result.missed == 0 and result.stale == 0 and result.underruns == 0
    assert result.overhead.p95 is not None and result.overhead.p95 <= 1
    assert result.barge_in.p95 is not None and result.barge_in.p95 <= 20


def test_every_sample_of_the_stub_voice_says_whose_it_is() -> None:
    for ident in (Ident(0, 0, 0), Ident(39, 25, 9), Ident(7, 3, 2)):
        block = _block(ident, RATE_HZ // 5, RATE_HZ // 5)
        assert ident_of(block) == (ident.answer, ident.sentence)
        assert voice_heard(block) == ident.voice
    assert ident_of(np.zeros(480, np.int16)) is None
    assert voice_heard(np.zeros(480, np.int16)) is None
    assert voice_of("load-43") == 3 and voice_of("sess_ab") == voice_of("sess_ab")


def test_the_stub_voice_is_ten_times_faster_than_speech() -> None:
    async def times() -> list[tuple[float, int]]:
        loop, made = asyncio.get_running_loop(), []
        began = loop.time()
        with Scope("turn", identity=Identity("load-1", 2, 0)) as scope:
            async for speech in StubVoice(ServiceTimes()).synthesise(
                " ".join(answer_words(2, ServiceTimes())[:10]), scope
            ):
                made.append((loop.time() - began, len(speech.pcm)))
        return made

    made = run_virtual(times())
    assert sum(size for _, size in made) == 3 * RATE_HZ
    assert made[0][0] == pytest.approx(0.06) and made[-1][0] == pytest.approx(0.06 + 14 * 0.02)


def test_what_the_stubs_can_not_say_is_refused() -> None:
    with pytest.raises(BadRequest, match="at most"):
        ServiceTimes(tokens=200)
    with pytest.raises(BadAudio, match="whole frames"):
        UserAudio(np.zeros(100, np.int16))

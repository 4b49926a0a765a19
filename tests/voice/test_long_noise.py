"""Five minutes of silence or noise on the real detector: the session stays at rest, bounded, and hears what follows."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from talk import make_agent, talk

from stages.vad.silero import SileroVad
from voice.events import SpeechStarted
from voice.interfaces import Pcm16
from voice.options import TurnOptions
from voice.testing import PullClient, run_virtual

RATE = 16_000
MINUTES = 5
PIECE_S = 0.5


def silence(samples: int, draw: np.random.Generator) -> Pcm16:
    return np.zeros(samples, np.int16)


def noise(samples: int, draw: np.random.Generator) -> Pcm16:
    return draw.normal(0, 1500, samples).astype(np.int16)


@pytest.mark.live
@pytest.mark.parametrize("sound", [silence, noise])
def test_five_minutes_without_speech_leave_the_session_at_rest(sound: object) -> None:
    draw = np.random.default_rng(11)
    detector = SileroVad()

    async def main() -> None:
        agent = make_agent(["Yes."], detector=detector, turns=TurnOptions(idle_s=None))
        async with talk(agent, PullClient(record_s=1.0)) as it:
            for _ in range(int(MINUTES * 60 / PIECE_S)):
                it.session.hear(sound(int(PIECE_S * RATE), draw))  # type: ignore[operator]
                await asyncio.sleep(PIECE_S)
            assert it.session.is_quiet()
            assert it.session.counters.turns == 0
            assert len(it.of(SpeechStarted)) <= 2
            assert len(it.session.ear.log) <= 8 * RATE  # the pre-roll and what is not judged yet
            assert it.session.ear.dropped_samples == 0

    try:
        run_virtual(main(), limit_s=3600, thread_wait_s=30)
    finally:
        detector.close()

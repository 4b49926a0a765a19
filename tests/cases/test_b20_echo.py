"""B20: on a loudspeaker the agent's own voice comes back through the microphone and interrupts it, or is answered.

Kind of fault: whatever the detector takes for speech is the user's. Made impossible in ``voice.echo.OwnVoice``, which
takes what the session itself has just played out of what the detector gets. The real detector hears a real voice here,
in virtual time; what the recogniser would make of it is written down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from conversation import Conversation

from loadtest.overlap import Detector
from stages import presets
from voice.audio import resample
from voice.events import ResponseEnded, SpeechStarted, UserSaid
from voice.interfaces import ASR_RATE_HZ, Pcm16, Speech
from voice.options import TurnOptions
from voice.scope import Scope
from voice.speaking import spoken_text
from voice.testing import PullClient, PushClient, ScriptedRecogniser, run_virtual

pytestmark = pytest.mark.live

REPLIES = (
    "Thank you for calling the harbour office. Your parcel left the warehouse yesterday evening.",
    "It will reach you between two and four this afternoon. The driver will ring the bell before he comes up.",
    "A neighbour can take it if you are not at home. The nearest shop keeps it for a week after that.",
)
"""Without commas: the synthesiser gets sentences as they stand here."""
QUESTION = "What is the weather in Paris today?"
GAIN = 10 ** (-12 / 20)


class Loudspeaker:
    """What a client plays comes back to its microphone, 12 dB weaker and late."""

    _heard: object
    delay_s = 0.0

    def echo(self, played: Pcm16, mic_start: int) -> None:
        start = mic_start + round(self.delay_s * ASR_RATE_HZ)
        back = np.asarray(played * GAIN, np.int16)
        self._to_say.append((start, back))  # type: ignore[attr-defined]


class PullInRoom(Loudspeaker, PullClient):
    def _tick(self) -> None:
        super()._tick()
        end = self._ear_position()
        self.echo(self._heard.read(end)[end - self._ear_frame :], self._frames * self._mic_frame)


class PushInRoom(Loudspeaker, PushClient):
    def _tick(self) -> None:
        super()._tick()
        end = self._ear_position()
        self.echo(self._heard.read(end)[max(0, end - self._ear_frame) :], self._frames * self._mic_frame)


class Recorded:
    """A synthesiser that has spoken already."""

    name, sample_rate, max_chars = "recorded", ASR_RATE_HZ, 400

    def __init__(self, spoken: dict[str, Pcm16]) -> None:
        self._spoken = spoken

    async def synthesise(self, text: str, scope: Scope, *, voice: str | None = None) -> AsyncIterator[Speech]:
        await asyncio.sleep(0.05)
        yield Speech(self._spoken[text.strip()])


@pytest.fixture(scope="module")
def spoken() -> dict[str, Pcm16]:
    """All that is said, by the default voice, 16 kHz."""
    voice = presets.local().synthesiser

    async def main() -> dict[str, Pcm16]:
        texts = [sentence.strip() + "." for reply in REPLIES for sentence in reply.rstrip(".").split(".")]
        made = {text: await spoken_text(voice, text) for text in [*texts, QUESTION]}
        return {text: resample(pcm, voice.sample_rate, ASR_RATE_HZ) for text, pcm in made.items()}

    return asyncio.run(main())


def user(spoken: dict[str, Pcm16]) -> Pcm16:
    """Another voice: lower and slower, at full level."""
    lower = resample(spoken[QUESTION], round(ASR_RATE_HZ * 0.87), ASR_RATE_HZ).astype(np.float64)
    return np.asarray(lower * (26_000 / np.abs(lower).max()), np.int16)


def call(spoken: dict[str, Pcm16], kind: type[PullInRoom] | type[PushInRoom], delay_s: float) -> Conversation:
    client = kind(ASR_RATE_HZ)
    client.delay_s = delay_s
    return Conversation(
        detector=Detector(),
        recogniser=ScriptedRecogniser([QUESTION] * 20),
        synthesiser=Recorded(spoken),
        client=client,
        turns=TurnOptions(idle_s=None),
    )


@pytest.mark.parametrize("kind", [PullInRoom, PushInRoom])
@pytest.mark.parametrize("delay_s", [0.04, 0.15, 0.4])
def test_the_echo_of_three_replies_neither_interrupts_nor_becomes_a_turn(
    spoken: dict[str, Pcm16], kind: type[PullInRoom] | type[PushInRoom], delay_s: float
) -> None:
    async def main() -> None:
        async with call(spoken, kind, delay_s) as it:
            for number, reply in enumerate(REPLIES):
                it.session.say(reply)
                await it.until(ResponseEnded, number + 1)
                await it.to(it.client.now_s + 1.5)
            assert [e.status for e in it.of(ResponseEnded)] == ["completed"] * 3
            assert not it.of(SpeechStarted) and not it.of(UserSaid) and not it.user_texts
            dips = it.session.counters.false_alarms
            assert dips <= 1, f"{dips} dips"

    run_virtual(main())


@pytest.mark.parametrize("kind", [PullInRoom, PushInRoom])
@pytest.mark.parametrize("delay_s", [0.04, 0.15, 0.4])
def test_a_real_voice_on_top_of_the_echo_still_interrupts(
    spoken: dict[str, Pcm16], kind: type[PullInRoom] | type[PushInRoom], delay_s: float
) -> None:
    async def main() -> None:
        async with call(spoken, kind, delay_s) as it:
            it.session.say(REPLIES[1])
            it.client.say(user(spoken), at_s=2.0)
            await it.until(ResponseEnded)
            ended = it.of(ResponseEnded)[0]
            assert (ended.status, ended.reason) == ("interrupted", "barge_in")
            assert it.times(ResponseEnded)[0] < 2.0 + 1.5
            await it.until(UserSaid)
            assert it.user_texts == [QUESTION]

    run_virtual(main())


def test_without_the_guard_the_echo_is_taken_for_the_user(spoken: dict[str, Pcm16]) -> None:
    async def main() -> None:
        async with call(spoken, PullInRoom, 0.15) as it:
            it.session.configure(TurnOptions(idle_s=None, echo_guard=False))
            it.session.say(REPLIES[0])
            await it.until(ResponseEnded)
            assert it.of(ResponseEnded)[0].status == "interrupted"

    run_virtual(main())

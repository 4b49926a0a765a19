"""B26: pieces of odd sizes through a whole session, on the way in and on the way out.

Kind of fault: a stream's pieces taken for whole units. Made impossible where streams enter: the ``Decoder`` and the
sample log of ``voice.hearing.Ear`` cut the detector's windows by absolute index, and ``voice.speaking`` takes
what a synthesiser yields through one ``PcmAssembler`` for each text.
"""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest
from talk import make_agent, talk

from voice.interfaces import Pcm16
from voice.testing import PullClient, PushClient, ToneSynthesiser, run_virtual, silence, speak
from voice.testing.stages import ScriptedDetector

WORDS = " ".join(f"word{n}" for n in range(1, 16)) + "."


@pytest.mark.parametrize("client_kind", [PullClient, PushClient])
def test_a_voice_that_yields_odd_chunks_is_heard_as_one_that_does_not(
    client_kind: type[PullClient] | type[PushClient],
) -> None:
    async def heard(chunk_bytes: list[int] | None) -> Pcm16:
        client = client_kind(record_s=20.0)
        agent = make_agent([WORDS], synthesiser=ToneSynthesiser(chunk_bytes=chunk_bytes))
        async with talk(agent, client) as it:
            client.say(speak(0.6), at_s=0.5)
            await client.run(8.0)
            assert it.ended.status == "completed"
        sound = np.flatnonzero(client.heard)
        return client.heard[sound[0] : sound[-1] + 1]

    whole = run_virtual(heard(None))
    assert whole.size > 24_000 * 2
    np.testing.assert_array_equal(run_virtual(heard([1, 3, 4063, 1697, 2, 0])), whole)


class WindowSizes(ScriptedDetector):
    """Notes the length of each window it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def judge(self, window: Pcm16, index: int) -> float:
        self.sizes.append(window.size)
        return super().judge(window, index)


def test_the_detector_sees_every_window_and_nothing_raises_whatever_the_frames_of_the_microphone() -> None:
    detector = WindowSizes()
    stream = np.concatenate([silence(1.0), speak(1.5), silence(1.5), speak(1.0), silence(2.0)]).tobytes()
    sizes = itertools.cycle([333 * 2, 7, 640 * 2, 2 * 16_000 * 2, 1])

    async def main() -> list[str]:
        async with talk(make_agent(["Yes."], detector=detector), PullClient(record_s=5.0)) as it:
            at = 0
            while at < len(stream):
                size = next(sizes)
                it.session.hear(stream[at : at + size])
                at += size
                await asyncio.sleep(size / 32_000)
            await asyncio.sleep(2.0)
            return [event.text for _, event in it.events if type(event).__name__ == "UserSaid"]

    said = run_virtual(main())
    assert set(detector.sizes) == {512}
    assert len(detector.sizes) == len(stream) // 2 // 512
    assert said[0] == "Hello there."

"""How far the ear is behind: the heard position of a WebRTC call, against a player whose clock is known."""

from __future__ import annotations

import asyncio

import pytest
from talk import make_agent

from transports.rtc import health
from transports.rtc.track import AgentTrack
from voice.interfaces import Capabilities, Pcm16
from voice.session import Session
from voice.testing import run_virtual

RATE_HZ = 24_000


@pytest.mark.parametrize(("rtt_s", "jitter_s"), [(0.0, 0.0), (0.08, 0.01), (0.2, 0.03)])
def test_the_heard_position_is_the_players(rtt_s: float, jitter_s: float) -> None:
    """A player that keeps back what a jitter buffer does, behind half the round trip, in virtual time."""

    class Far:
        capabilities = Capabilities("can_pause", RATE_HZ, delay_s=health.player_delay_s(rtt_s, jitter_s))

        async def send_audio(self, pcm: Pcm16, response_id: str) -> None: ...
        def clear_audio(self) -> None: ...

    async def main() -> None:
        loop = asyncio.get_running_loop()
        track = AgentTrack()
        async with Session(make_agent(), Far(), session_id="s0") as session:
            track.ear = session.playout
            session.say("One two three four five six seven eight nine ten eleven twelve.")
            behind_s = rtt_s / 2 + health.PLAYER_S + health.JITTERS * jitter_s
            begun: float | None = None
            worst_s = 0.0
            while loop.time() < 2.0:
                await track.recv()
                now_playing = session.playout.track
                if begun is None and now_playing is not None and now_playing.taken:
                    begun = loop.time() + behind_s
                for _ in range(3):
                    await asyncio.sleep(0.006)
                    if begun is not None:
                        played_s = max(0.0, loop.time() - begun)
                        told_s = session.playout.position(loop.time()) / RATE_HZ
                        worst_s = max(worst_s, abs(told_s - played_s))
            assert begun is not None
            assert worst_s < 0.005
            track.stop()

    run_virtual(main())

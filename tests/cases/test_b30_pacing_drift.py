"""B30 (openclaw#119070): frames sent with a sleep after each one drift until the far end runs dry.

Fakes, in virtual time: 120 s of a tone synthesiser at 24 kHz, 1-3 ms of extra work a frame, a stall of 500 ms, a step
of the wall clock by −1 s, and a barge-in. Send times follow start + n · 20 ms, timestamps follow them, and after the
stall there is no burst.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from talk import make_agent

from transports.rtc.opus import OpusDecoder
from transports.rtc.track import MOST_LATE_S, AgentTrack
from voice.interfaces import Capabilities, Pcm16
from voice.session import Session
from voice.testing import run_virtual, tone_runs

FRAME_S = 0.02
LONG = " ".join(f"word{n}" + "." * (n % 5 == 0) for n in range(1, 701))
"""140 s of words of 200 ms."""


class Far:
    """The transport of a session whose audio is pulled."""

    capabilities = Capabilities("can_pause", 24_000)

    async def send_audio(self, pcm: Pcm16, response_id: str) -> None:
        raise AssertionError("audio is pulled")

    def clear_audio(self) -> None: ...


@dataclass(frozen=True)
class Sent:
    at_s: float
    pts: int
    payload: bytes


async def send(
    track: AgentTrack, seconds: float, rng: random.Random, stall_at_s: float | None = None
) -> list[Sent]:
    """What aiortc's sender does: take a packet, spend some time on it, take the next."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    sent: list[Sent] = []
    while loop.time() - start < seconds:
        packet = await track.recv()
        assert packet.pts is not None
        sent.append(Sent(loop.time() - start, packet.pts, bytes(packet)))
        await asyncio.sleep(rng.uniform(0.001, 0.003))
        if stall_at_s is not None and loop.time() - start >= stall_at_s:
            await asyncio.sleep(0.5)
            stall_at_s = None
    return sent


def heard(sent: list[Sent]) -> Pcm16:
    """What a receiver plays that puts each packet where its timestamp says."""
    decoder = OpusDecoder()
    out = np.zeros((sent[-1].pts - sent[0].pts) // 3 + 320, np.int16)
    for packet in sent:
        at = (packet.pts - sent[0].pts) // 3
        out[at : at + 320] = decoder.decode(packet.payload)
    return out


def test_packets_follow_the_grid_for_two_minutes_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        track = AgentTrack()
        async with Session(make_agent(), Far(), session_id="s0") as session:
            track.ear = session.playout
            session.say(LONG)
            loop = asyncio.get_running_loop()
            wall = time.time
            loop.call_at(loop.time() + 60, lambda: monkeypatch.setattr(time, "time", lambda: wall() - 1.0))
            sent = await send(track, 120, random.Random(30), stall_at_s=40.0)
            track.stop()
        assert sent[-1].pts / 48_000 == pytest.approx(sent[-1].at_s - sent[0].at_s, abs=FRAME_S)
        stalled = [b for a, b in pairwise(sent) if b.at_s - a.at_s > 0.3]
        assert len(stalled) == 1
        begun = sent[0].at_s
        for packet in sent:  # never early, and late only where the loop stood still
            off = packet.at_s - begun - packet.pts / 48_000
            assert -1e-6 <= off <= MOST_LATE_S + FRAME_S
            if not 40.0 <= packet.at_s <= 41.0:
                assert off < 1e-3
        for a, b in pairwise(sent):
            assert b.pts > a.pts and (b.pts - a.pts) % 960 == 0
        burst = [p for p in sent if stalled[0].at_s <= p.at_s < stalled[0].at_s + FRAME_S]
        assert len(burst) <= 3, "no more at once than the lead that is allowed"
        levels = np.abs(heard(sent).astype(np.int32)).reshape(-1, 320).max(axis=1)
        assert np.count_nonzero(levels > 3000) * FRAME_S > 115, "the far end did not run dry"

    run_virtual(main())


def test_timestamps_go_on_over_a_barge_in_and_the_voice_ends_within_a_frame() -> None:
    async def main() -> None:
        track = AgentTrack()
        async with Session(make_agent(), Far(), session_id="s0") as session:
            track.ear = session.playout
            session.say(LONG)
            loop = asyncio.get_running_loop()
            start = loop.time()
            loop.call_at(start + 3.0, session.interrupt)
            loop.call_at(start + 6.0, session.say, LONG)
            sent = await send(track, 9, random.Random(31))
            track.stop()
        steps = {b.pts - a.pts for a, b in pairwise(sent)}
        assert steps == {960}
        runs = [run for run in tone_runs(heard(sent), 16_000) if run.hz > 380]
        first, second = [r for r in runs if r.start_s < 5], [r for r in runs if r.start_s > 5]
        # the codec's own delay (6.5 ms) and tail lie beyond the frame
        assert 3.0 - 0.05 <= max(run.end_s for run in first) <= 3.0 + FRAME_S + 0.03
        assert second and min(run.start_s for run in second) < 6.5

    run_virtual(main())


def test_a_held_voice_is_silent_from_the_next_frame_on_and_goes_on_where_it_was() -> None:
    async def main() -> None:
        track = AgentTrack()
        async with Session(make_agent(), Far(), session_id="s0") as session:
            track.ear = session.playout
            session.say(LONG)
            voice = session.playout.track
            assert voice is not None
            loop = asyncio.get_running_loop()
            start = loop.time()
            taken: list[int] = []
            loop.call_at(start + 2.0, session.playout.hold)
            loop.call_at(start + 2.05, lambda: taken.append(voice.taken))
            loop.call_at(start + 2.9, lambda: taken.append(voice.taken))
            loop.call_at(start + 3.0, session.playout.release)
            sent = await send(track, 5, random.Random(32))
            track.stop()
            assert voice.taken > taken[0]
        assert taken[0] == taken[1]
        runs = [run for run in tone_runs(heard(sent), 16_000) if run.hz > 380]
        assert not [run for run in runs if run.start_s < 2.95 and run.end_s > 2.0 + FRAME_S + 0.05]
        assert [run for run in runs if run.start_s > 2.95]

    run_virtual(main())

"""``python -m loadtest webrtc`` in small: two processes with a bad network between them; and its instruments."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from loadtest.lossy_relay import BAD
from loadtest.rtc import drift, leaks, position
from loadtest.rtc.markers import Markers
from loadtest.rtc.player import BUFFER_S, SOUND_CARD_S, play
from loadtest.rtc.server import watched_server
from loadtest.webrtc_caller import Packet
from transports.rtc.opus import FRAME_S, SPEAK_HZ, SPEAK_SAMPLES, OpusEncoder
from voice.errors import EngineFailed
from voice.interfaces import Pcm16
from voice.testing.audio import silence, tone

HEARD_HZ = 16_000


def run(main: Coroutine[Any, Any, None], within_s: float = 60.0) -> None:
    """Run with real time; the limit is only there to end what hangs."""

    async def limited() -> None:
        async with asyncio.timeout(within_s):
            await main

    asyncio.run(limited())


# ---------------------------------------------------------------- the instruments


def packets(pcm: Pcm16, begin_s: float = 100.0, first_timestamp: int = 2**32 - 48_000) -> list[Packet]:
    """A stream that arrives on time; its timestamps wrap on the way."""
    encoder = OpusEncoder()
    return [
        Packet(
            begin_s + n * FRAME_S,
            n,
            (first_timestamp + n * 960) % 2**32,
            encoder.encode(pcm[at : at + SPEAK_SAMPLES]),
        )
        for n, at in enumerate(range(0, len(pcm), SPEAK_SAMPLES))
    ]


def a_word() -> Pcm16:
    """1.5 s of silence, 1 s of tone, 0.5 s of silence."""
    return np.concatenate([silence(1.5, SPEAK_HZ), tone(400, SPEAK_HZ, SPEAK_HZ), silence(0.5, SPEAK_HZ)])


def test_the_player_plays_each_packet_in_its_place() -> None:
    player = play(packets(a_word()))
    assert player.begin_s == pytest.approx(100.0 + BUFFER_S + SOUND_CARD_S)
    assert len(player.pcm) == 3 * HEARD_HZ and not player.concealed.any()
    tone_from = player.begin_s + 1.5
    assert player.audible_s(0.0, 200.0) == pytest.approx(1.0, abs=0.02)
    assert player.audible_s(0.0, tone_from + 0.25) == pytest.approx(0.25, abs=0.02)


def test_the_player_conceals_what_is_lost_or_late_and_keeps_its_clock() -> None:
    came = packets(a_word())
    late = came[100]
    kept = [p for p in came if p.sequence not in (90, 100, 125)]  # in the tone, in the tone, after its end
    kept.append(Packet(late.at + BUFFER_S + 0.03, late.sequence, late.timestamp, late.payload))
    kept.sort(key=lambda p: p.at)
    player = play(kept)
    assert np.flatnonzero(player.concealed).tolist() == [90, 100, 125]
    assert np.flatnonzero(player.late).tolist() == [100]
    assert player.held_up(0.0, 200.0) and not player.held_up(0.0, player.begin_s + 1.9)
    assert len(player.pcm) == 3 * HEARD_HZ
    assert player.audible_s(0.0, 200.0) == pytest.approx(1.0, abs=0.02)


def test_a_marker_came_when_its_pieces_came_by_their_mean() -> None:
    markers, late_s = Markers(), [0.0, 0.01, 0.02, 0.01] * 2
    found = []
    for n in range(80):
        voiced = 40 <= n < 55
        at = 5.0 + n * FRAME_S + (late_s[n - 40] if 40 <= n < 48 else 0.0)
        found.append(markers.feed(tone(300, 320, HEARD_HZ) if voiced else np.zeros(320, np.int16), at))
    assert [n for n, came in enumerate(found) if came is not None] == [47]
    assert found[47] == pytest.approx(5.0 + 40 * FRAME_S + 0.01)


def test_a_growing_delay_is_seen_and_a_steady_one_is_not() -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    draw = random.Random(seed)

    def way(growth_ms: float) -> drift.Way:
        markers = [
            drift.Marker(n * 4.0, 20 + draw.uniform(-10, 10) + growth_ms * n * 4 / 60, n % 3 == 0)
            for n in range(150)
        ]
        return drift.Way("there", markers, 0)

    assert way(0.0).holds and abs(way(0.0).slope_ms) < 1.0
    assert not way(5.0).holds and way(5.0).slope_ms == pytest.approx(5.0, abs=1.0)


# ---------------------------------------------------------------- two processes


def test_a_call_stays_as_quick_as_it_began() -> None:
    async def main() -> None:
        async with watched_server() as server:
            found = await drift.measure(server, BAD, 12.0, period_s=2.4)
        print(drift.report(found))
        assert found.up.missing + found.down.missing <= 4
        # a machine shared with others adds some: a buffer that kept what it gained would add 200 ms
        for way in (found.up, found.down):
            first, _, last = way.thirds_ms
            assert abs(last - first) < 150 and abs(way.after_breaks_ms) < 150
        assert abs(found.clock_ms) < 100

    run(main())


def test_the_server_knows_what_was_heard() -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")

    async def main() -> None:
        async with watched_server() as server:
            cuts = await position.measure(server, BAD, 2, seed=seed)
        print(position.report(cuts))
        assert all(abs(cut.off_ms) <= position.BOUND_MS for cut in cuts if not cut.held_up)
        assert all(cut.told_ms is None or abs(cut.told_ms - cut.server_ms) <= 1 for cut in cuts)

    run(main())


def test_a_server_that_ends_in_the_middle_ends_the_check() -> None:
    async def main() -> None:
        with pytest.raises(EngineFailed, match="ended before"):
            async with watched_server() as server:
                os.kill(server.pid, signal.SIGKILL)
                await asyncio.sleep(30)

    run(main())


def test_calls_leave_nothing_behind() -> None:
    async def main() -> None:
        async with watched_server() as server:
            found = await leaks.measure(server, 7, warm=3)
        print(found)
        assert found.after.objects == 0
        for name in ("tasks", "threads", "sockets"):
            assert getattr(found.after, name) <= getattr(found.before, name), name

    run(main())

"""B28 (aiortc#543): after one lost packet the delay of the jitter buffer stays for the rest of the call.

Fake network, exact: 30 s of 20 ms packets with 1 % loss, 3 % reordered, bursts of 80 ms, one gap of 300 ms and a
wrap of the sequence number. The delay is back within 1 s of each event, late packets are dropped, gaps concealed, and
the length stays.
"""

from __future__ import annotations

import random

import pytest

from transports.rtc.jitter import Audio, Lost, ReorderBuffer
from transports.rtc.opus import SPEAK_HZ, SPEAK_SAMPLES, OpusDecoder, OpusEncoder, samples_of
from voice.testing.audio import tone

FRAME_S = 0.02
FRAMES = 1500
TRANSIT_S = 0.04
FIRST = 65536 - 300  # wraps after 6 s


def network(seed: int, *, gap_is_lost: bool) -> list[tuple[float, int]]:
    """When each packet comes, in order of arrival; packets that don't come are left out."""
    rng = random.Random(seed)
    arrivals = []
    for n in range(FRAMES):
        at = n * FRAME_S + TRANSIT_S + rng.random() * 0.004
        if 700 <= n < 715:  # the gap of 300 ms
            if gap_is_lost:
                continue
            at = 715 * FRAME_S + TRANSIT_S + (n - 700) * 1e-4
        elif n % 200 in (50, 51, 52, 53):  # a burst: four frames held up, then at once
            at = (n - n % 200 + 54) * FRAME_S + TRANSIT_S + (n % 200) * 1e-5
        elif rng.random() < 0.01 and n not in (0, FRAMES - 1):
            continue
        elif rng.random() < 0.03:
            at += rng.uniform(0.02, 0.06)  # the next ones overtake it
        arrivals.append((at, n))
    return sorted(arrivals)


@pytest.mark.parametrize("gap_is_lost", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_delay_stays_after_loss_bursts_reordering_or_a_gap(seed: int, gap_is_lost: bool) -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    voice = tone(300, SPEAK_SAMPLES * 50, SPEAK_HZ)
    second = [encoder.encode(voice[i : i + SPEAK_SAMPLES]) for i in range(0, len(voice), SPEAK_SAMPLES)]
    buffer = ReorderBuffer(samples_of)
    arrivals = network(seed, gap_is_lost=gap_is_lost)
    heard = 0  # samples at 16 kHz
    behind: list[tuple[float, float]] = []  # when, and how far the newest sample out was behind the caller
    given_up = 0

    def play(pieces: list[object], now: float) -> None:
        nonlocal heard, given_up
        for piece in pieces:
            if isinstance(piece, Audio):
                heard += len(decoder.decode(piece.payload))
            elif isinstance(piece, Lost):
                heard += len(decoder.conceal(piece.samples))
                given_up += 1
        if pieces:
            behind.append((now, now - (heard / 16_000 - FRAME_S) - TRANSIT_S))

    for now, n in arrivals:
        while buffer.deadline is not None and buffer.deadline <= now:
            at = buffer.deadline
            play(list(buffer.poll(at)), at)
        play(list(buffer.push((FIRST + n) % 65536, (n * 960) % 2**32, second[n % 50], now)), now)

    assert given_up >= 5, "gaps are concealed"
    assert buffer.counts.received == len(arrivals)
    assert heard / 16_000 == pytest.approx(FRAMES * FRAME_S, rel=0.02)
    assert max(late for now, late in behind if not 14.0 <= now < 15.2) <= 0.2, (
        "held up by the bursts and a wait"
    )
    for second_begins in range(1, int(FRAMES * FRAME_S)):
        least = min(late for now, late in behind if second_begins <= now < second_begins + 1)
        assert least <= 0.01, f"delay is left in second {second_begins}"
    in_order = [late for _, late in behind]
    assert sorted(in_order)[len(in_order) // 2] < 0.01, "packets in order do not wait at all"


def test_a_late_packet_is_dropped_and_adds_nothing() -> None:
    encoder = OpusEncoder()
    packet = encoder.encode(tone(300, SPEAK_SAMPLES, SPEAK_HZ))
    buffer = ReorderBuffer(samples_of)
    out = buffer.push(0, 0, packet, 0.0) + buffer.push(2, 1920, packet, 0.04)
    assert buffer.deadline is not None
    out += buffer.poll(buffer.deadline)
    out += buffer.push(1, 960, packet, 0.5)
    assert [type(piece) for piece in out] == [Audio, Lost, Audio]
    assert buffer.counts.late == 1

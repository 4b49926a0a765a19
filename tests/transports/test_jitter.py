"""The reorder buffer: packets in order pass at once, gaps wait briefly, nothing stays late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from transports.rtc.jitter import (
    MAX_FILL_S,
    MAX_WAIT_S,
    MAX_WAITING,
    MIN_WAIT_S,
    Audio,
    Lost,
    Piece,
    ReorderBuffer,
    Silence,
)

FRAME = 960
FRAME_S = 0.02
RATE_HZ = 48_000


def buffer() -> ReorderBuffer:
    return ReorderBuffer(lambda payload: FRAME)


def payload(number: int) -> bytes:
    return b"audio" + number.to_bytes(4, "big")


def number_of(piece: Piece) -> int | None:
    return int.from_bytes(piece.payload[5:], "big") if isinstance(piece, Audio) else None


def push(it: ReorderBuffer, number: int, now: float) -> list[Piece]:
    """Packet ``number`` of a plain stream."""
    return it.push(number % 65536, number * FRAME % 2**32, payload(number), now)


def numbers(pieces: Iterable[Piece]) -> list[int | None]:
    return [number_of(piece) for piece in pieces]


def samples(pieces: Iterable[Piece]) -> int:
    return sum(FRAME if isinstance(piece, Audio) else piece.samples for piece in pieces)


def run(arrivals: Sequence[tuple[float, int]]) -> list[tuple[float, Piece]]:
    """Feed packets at their times, and poll whenever the buffer asks for it; what came out, and when."""
    it = buffer()
    out: list[tuple[float, Piece]] = []
    for now, number in sorted(arrivals):
        while it.deadline is not None and it.deadline <= now:
            at = it.deadline
            out += [(at, piece) for piece in it.poll(at)]
        out += [(now, piece) for piece in push(it, number, now)]
    while it.deadline is not None:
        at = it.deadline
        out += [(at, piece) for piece in it.poll(at)]
    return out


# ---------------------------------------------------------------- order


def test_packets_in_order_pass_at_once() -> None:
    it = buffer()
    for n in range(100):
        assert numbers(push(it, n, n * FRAME_S)) == [n]
        assert it.deadline is None


def test_two_packets_that_change_places_are_put_right_as_soon_as_the_second_comes() -> None:
    it = buffer()
    push(it, 0, 0.0)
    assert push(it, 2, 0.02) == []
    assert it.deadline is not None
    assert numbers(push(it, 1, 0.025)) == [1, 2]
    assert it.deadline is None


def test_a_lost_packet_is_given_up_after_a_short_wait_and_what_waited_follows_at_once() -> None:
    it = buffer()
    push(it, 0, 0.0)
    push(it, 2, 0.04)
    at = it.deadline
    assert at is not None and 0.04 + MIN_WAIT_S <= at <= 0.04 + MAX_WAIT_S
    assert it.poll(at - 0.001) == []
    push(it, 3, 0.05)
    out = it.poll(at)
    assert out[0] == Lost(FRAME)
    assert numbers(out[1:]) == [2, 3]
    assert numbers(push(it, 4, 0.1)) == [4], "no delay stays behind"


def test_a_packet_that_comes_after_it_was_given_up_is_dropped() -> None:
    it = buffer()
    push(it, 0, 0.0)
    push(it, 2, 0.04)
    assert it.deadline is not None
    it.poll(it.deadline)
    assert push(it, 1, 0.2) == []
    assert it.counts.late == 1


def test_doubled_packets_pass_once() -> None:
    it = buffer()
    out = [piece for n in (0, 1, 1, 3, 3, 2, 2, 0, 3) for piece in push(it, n, 0.01)]
    assert numbers(out) == [0, 1, 2, 3]


def test_sequence_numbers_and_timestamps_wrap() -> None:
    first = 2**32 // FRAME - 30  # both wrap within the next hundred packets
    shift = 65536 - 40 - first
    it = buffer()
    out = [
        piece
        for n in range(first, first + 100)
        if n != first + 50
        for piece in it.push((n + shift) % 65536, n * FRAME % 2**32, payload(n), n * FRAME_S)
    ]
    assert it.deadline is None or it.deadline < (first + 101) * FRAME_S
    assert numbers(out) == [*range(first, first + 50), None, *range(first + 51, first + 100)]


# ---------------------------------------------------------------- how long a gap waits


def test_the_wait_grows_with_late_packets_and_shrinks_again() -> None:
    it = buffer()
    n, now = 0, 0.0
    for _ in range(10):  # every gap is filled 50 ms after it was seen
        for number, late_s in ((n, 0.0), (n + 2, 0.0), (n + 3, 0.02), (n + 1, 0.05)):
            push(it, number, now + late_s)
        n, now = n + 4, now + 0.08
    assert 0.05 < it.wait_s <= MAX_WAIT_S
    for number in range(n, n + 1500):
        push(it, number, now)
        now += FRAME_S
    assert it.wait_s == pytest.approx(MIN_WAIT_S, abs=0.005)


def test_the_wait_never_exceeds_its_bound() -> None:
    it = buffer()
    push(it, 0, 0.0)
    push(it, 2, 0.02)
    push(it, 1, 5.0)
    assert it.wait_s == MAX_WAIT_S


# ---------------------------------------------------------------- silence and outages


def test_timestamps_that_leap_without_a_missing_packet_are_silence() -> None:
    it = buffer()
    push(it, 0, 0.0)
    out = it.push(1, 6 * FRAME, payload(1), 0.12)
    assert out == [Silence(5 * FRAME), Audio(payload(1))]


def test_a_sender_that_announces_silence_is_heard_silent_in_real_time() -> None:
    it = buffer()
    push(it, 0, 0.0)
    it.push(1, FRAME, b"\x68", 0.02)  # one byte: silence until something changes
    out: list[Piece] = []
    while it.deadline is not None and it.deadline < 0.4:
        assert it.deadline < 0.4
        out += it.poll(it.deadline)
    given = samples(out)
    assert 15 * FRAME <= given <= 18 * FRAME
    last = it.push(2, 21 * FRAME, payload(2), 0.42)
    assert given + samples(last) == 20 * FRAME, "what was given counts"


def test_announced_silence_does_not_go_on_for_ever() -> None:
    it = buffer()
    it.push(0, 0, b"\x68", 0.0)
    out: list[Piece] = []
    while it.deadline is not None:
        out += it.poll(it.deadline)
    assert samples(out) <= RATE_HZ * MAX_FILL_S + FRAME


def test_silence_that_was_given_too_early_is_kept_back_later() -> None:
    it = buffer()
    it.push(0, 0, b"\x68", 0.0)
    out = it.poll(0.2)
    early = samples(out) - 5 * FRAME
    assert early > 0
    out += it.push(1, 6 * FRAME, b"\x68", 0.21)  # it had been late
    out += it.push(2, 27 * FRAME, payload(2), 0.56)
    assert samples(out) == 27 * FRAME


def test_an_outage_is_filled_up_to_a_bound_and_the_stream_goes_on() -> None:
    out = run([(n * FRAME_S, n) for n in range(600) if not 50 <= n < 500])
    lost = [piece.samples for _, piece in out if isinstance(piece, Lost)]
    assert lost == [RATE_HZ * MAX_FILL_S]
    assert numbers(piece for _, piece in out if isinstance(piece, Audio)) == [*range(50), *range(500, 600)]


def test_a_sender_that_begins_anew_is_followed_after_two_packets() -> None:
    it = buffer()
    push(it, 100, 0.0)
    assert it.push(40_000, 5, payload(1), 0.02) == [], "one may have strayed"
    assert numbers(it.push(40_001, 5 + FRAME, payload(2), 0.04)) == [2]
    assert numbers(it.push(40_002, 5 + 2 * FRAME, payload(3), 0.06)) == [3]


def test_a_stray_packet_changes_nothing() -> None:
    it = buffer()
    push(it, 100, 0.0)
    it.push(40_000, 5, payload(1), 0.01)
    assert numbers(push(it, 101, 0.02)) == [101]


def test_what_waits_is_bounded() -> None:
    it = buffer()
    push(it, 0, 0.0)
    out = [piece for n in range(2, 3 + MAX_WAITING) for piece in push(it, n, 0.001)]
    assert out[0] == Lost(FRAME)
    assert len(out) == MAX_WAITING + 2


# ---------------------------------------------------------------- any network


@settings(max_examples=150, deadline=None)
@given(
    delays=st.lists(st.one_of(st.none(), st.floats(0, 0.3)), min_size=2, max_size=120),
    first=st.integers(0, 65535),
)
def test_any_network_gives_every_packet_at_most_once_in_order_and_the_right_length(
    delays: list[float | None], first: int
) -> None:
    assume(all(any(d is not None for d in delays[i : i + 6]) for i in range(len(delays))))
    delays[0] = delays[-1] = 0.0  # the ends are there, so that the length is known
    arrivals = [(n * FRAME_S + d, first + n) for n, d in enumerate(delays) if d is not None]
    out = run(arrivals)
    got = [n for n in numbers(piece for _, piece in out) if n is not None]
    assert got == sorted(set(got))
    begun = got[0] - first
    assert samples(piece for _, piece in out) == (len(delays) - begun) * FRAME
    for at, piece in out:
        n = number_of(piece)
        if n is not None:
            came = next(a for a, number in arrivals if number == n)
            assert came <= at <= came + MAX_WAIT_S + 1e-6, "nothing waits longer than the longest wait"

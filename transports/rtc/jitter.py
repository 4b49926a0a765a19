"""In which order, and when, do the packets of a caller's audio go on? A reorder buffer without I/O or clock.

What listens is a recogniser, not a loudspeaker: it needs no even pace. So a packet in its turn passes at once, and
only a gap waits: as long as packets have lately been late, at most ``max_wait_s``. Then what is missing is given up,
to be concealed, and what waited behind it follows at once. No delay stays behind, whatever happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

MIN_WAIT_S = 0.02
"""The shortest wait for a missing packet: one frame. Two packets of one burst often change places."""
MAX_WAIT_S = 0.08
"""The longest. What is later than this would delay the end of a turn more than its loss harms a recogniser."""
MAX_FILL_S = 0.5
"""A gap is filled up to this length; after a longer outage the stream goes on from where it is."""
MAX_WAITING = 64
"""Packets that may wait behind a gap: 1.3 s of the usual 20 ms frames."""

_START_WAIT_S = 0.04
_MARGIN_S = 0.005
_DECAY = 0.002
"""Per packet: of the wait beyond the least, nothing much is left ten seconds after the last late packet."""
_JUMP = 3000
"""A packet further off than this many (RFC 3550, A.1) is a stray one, or the sender began anew."""
_LATE_KEPT = 16
_DTX_BYTES = 2
"""An Opus packet of at most so many bytes says: silence, and nothing more until something changes (RFC 7587, 3.1.3)."""


@dataclass(frozen=True, slots=True)
class Audio:
    """The next packet's payload."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Samples whose packets did not come in time."""

    samples: int


@dataclass(frozen=True, slots=True)
class Silence:
    """Samples that the sender left out on purpose."""

    samples: int


Piece: TypeAlias = Audio | Lost | Silence


@dataclass(slots=True)
class Counts:
    """What happened so far, in packets; ``concealed`` and ``silent`` in samples."""

    received: int = 0
    late: int = 0
    doubled: int = 0
    stray: int = 0
    given_up: int = 0
    resyncs: int = 0
    concealed: int = 0
    silent: int = 0


@dataclass(slots=True)
class _Waiting:
    timestamp: int
    payload: bytes
    since: float


@dataclass(slots=True)
class ReorderBuffer:
    """One stream (one SSRC) of audio packets.

    Give it each packet with :meth:`push`, and call :meth:`poll` at :attr:`deadline`; both return what goes on now.
    Times are seconds of any one clock. Sequence numbers (16 bits) and timestamps (32 bits) may wrap.

    Args:
        samples_of: Length of a payload in samples of ``rate_hz``, or ``None`` if it is not valid.
        rate_hz: Rate of the timestamps.

    Attributes:
        deadline: When to call :meth:`poll`; ``None``: nothing is due.
        wait_s: How long a gap waits at present.
    """

    samples_of: Callable[[bytes], int | None]
    rate_hz: int = 48_000
    deadline: float | None = None
    wait_s: float = _START_WAIT_S
    counts: Counts = field(default_factory=Counts)
    _next: int | None = None  # sequence number that is due, unwrapped
    _next_at: int = 0  # and its timestamp, unwrapped
    _frame: int = 960
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    _given_up: deque[tuple[int, int, float]] = field(default_factory=lambda: deque(maxlen=_LATE_KEPT))
    _stray: int | None = None  # the last packet from afar
    _quiet_at: float | None = None  # the sender said that it will be silent: when its next frame would be due
    _filled: int = 0  # samples of silence given since then

    def push(self, sequence: int, timestamp: int, payload: bytes, now: float) -> list[Piece]:
        """A packet came."""
        self.counts.received += 1
        self.wait_s -= (self.wait_s - MIN_WAIT_S) * _DECAY
        if self._next is None:
            self._begin(sequence, timestamp)
        assert self._next is not None
        number = self._next + _difference(sequence, self._next, 16)
        if abs(number - self._next) > _JUMP and not self._began_anew(number, sequence, timestamp):
            return []
        if number < self._next:
            self._note_late(number, now)
            return []
        if number in self._waiting:
            self.counts.doubled += 1
            return []
        self._waiting[number] = _Waiting(
            self._next_at + _difference(timestamp, self._next_at, 32), payload, now
        )
        if number == self._next and len(self._waiting) > 1:
            self._learn(now - self._gap_since())
        return self._release(now, full=len(self._waiting) > MAX_WAITING)

    def poll(self, now: float) -> list[Piece]:
        """Time has passed: a gap may be given up, or the sender's silence go on."""
        if self.deadline is None or now < self.deadline:
            return []
        if self._waiting:
            return self._release(now)
        pieces: list[Piece] = []
        while self._quiet_at is not None and now >= self._quiet_at:
            self._filled += self._frame
            self._quiet_at += self._frame / self.rate_hz
            pieces.append(self._silence(self._frame))
            if self._filled >= self._most:
                self._quiet_at = None
        self._plan()
        return pieces

    # ------------------------------------------------------------ order

    def _begin(self, sequence: int, timestamp: int) -> None:
        self._next, self._next_at = sequence, timestamp
        self._waiting.clear()
        self._given_up.clear()
        self._quiet_at, self._filled = None, 0

    def _began_anew(self, number: int, sequence: int, timestamp: int) -> bool:
        """Two packets in a row from afar: the stream goes on there. One alone is dropped."""
        if self._stray is None or sequence != (self._stray + 1) % 65536:
            self._stray = sequence
            self.counts.stray += 1
            return False
        self._stray = None
        self.counts.resyncs += 1
        self._begin(number, timestamp)
        return True

    def _release(self, now: float, *, full: bool = False) -> list[Piece]:
        """All that need not wait any longer."""
        pieces: list[Piece] = []
        while self._waiting:
            assert self._next is not None
            packet = self._waiting.pop(self._next, None)
            if packet is None:
                if not full and now < self._gap_since() + self.wait_s:
                    break
                self._give_up(pieces)
                continue
            self._follow(packet, pieces)
            self._next += 1
        self._plan()
        return pieces

    def _follow(self, packet: _Waiting, pieces: list[Piece]) -> None:
        """The next packet; before it, the silence that its timestamp says was left out."""
        gap = max(0, packet.timestamp - self._next_at)
        owed = gap - self._filled
        if owed > 0:
            pieces.append(self._silence(self._bounded(owed)))
        self._filled = max(0, -owed)  # what was given too early is kept back at the next silence
        self._frame = self.samples_of(packet.payload) or self._frame
        self._next_at = packet.timestamp + self._frame
        quiet = len(packet.payload) <= _DTX_BYTES
        self._quiet_at = packet.since + 2 * self._frame / self.rate_hz if quiet else None
        pieces.append(Audio(packet.payload))

    def _give_up(self, pieces: list[Piece]) -> None:
        """What is missing before the first packet that waits is not waited for any longer."""
        assert self._next is not None
        first = min(self._waiting)
        missing = first - self._next
        self._given_up.append((self._next, first, self._gap_since()))
        self.counts.given_up += missing
        # where the timestamps leave more than that, the rest was silence: _follow gives it
        lost = min(self._waiting[first].timestamp - self._next_at, missing * self._frame)
        if lost > 0:
            self._next_at = self._waiting[first].timestamp if lost > self._most else self._next_at + lost
            lost = self._bounded(lost)
            self.counts.concealed += lost
            pieces.append(Lost(lost))
        self._next = first

    def _silence(self, samples: int) -> Silence:
        self.counts.silent += samples
        return Silence(samples)

    def _bounded(self, samples: int) -> int:
        if samples > self._most:
            self.counts.resyncs += 1
        return min(samples, self._most)

    @property
    def _most(self) -> int:
        return int(self.rate_hz * MAX_FILL_S)

    # ------------------------------------------------------------ time

    def _gap_since(self) -> float:
        """When the first packet behind the gap came."""
        return min(packet.since for number, packet in self._waiting.items() if number != self._next)

    def _plan(self) -> None:
        self.deadline = self._gap_since() + self.wait_s if self._waiting else self._quiet_at

    def _note_late(self, number: int, now: float) -> None:
        """A packet that was given up, or was there already."""
        for first, end, since in self._given_up:
            if first <= number < end:
                self.counts.late += 1
                self._learn(now - since)
                return
        self.counts.doubled += 1

    def _learn(self, late_s: float) -> None:
        """Packets come this much after those that overtook them."""
        self.wait_s = min(MAX_WAIT_S, max(self.wait_s, late_s * 1.25 + _MARGIN_S))


def _difference(number: int, reference: int, bits: int) -> int:
    """How far a number that wraps is from an unwrapped one, by the shorter way."""
    half = 1 << (bits - 1)
    return ((number - reference + half) & ((1 << bits) - 1)) - half

"""Where the caller's ear is in an answer, as far as the marks that come back tell. No I/O: time comes in.

Audio goes into the carrier's buffer with marks in between. Each comes back when all before it has been played, so
between two marks the ear is where the last one was, plus the time since, and never past the next one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_MARK_EVERY_S = 0.12
"""Audio between two marks: the grid on which the position is certain."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A mark that has not come back. ``due`` is when it should, by the clock."""

    name: str
    position: int
    due: float


class MarkedPosition:
    """The ear's position in the answer that is being sent.

    The answer's first mark goes out before its first audio: it comes back at once and starts the clock, so that
    the way to the carrier is not taken for audio that was heard.

    Args:
        rate_hz: Samples a second.

    Attributes:
        response_id: The answer; ``None`` before the first.
        sent: Its samples that went out.
        returned: Marks that came back for audio that was played.
        stale: Marks that came back for audio that was cleared, or that nobody asked for.
    """

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self.response_id: str | None = None
        self.sent = 0
        self.returned = self.stale = 0
        self._asked: deque[_Asked] = deque()  # bounded by the lead that the sender may have
        self._marked = 0  # position of the newest mark
        self._serial = 0
        self._at, self._since = 0, 0.0  # the ear was there, then

    def sending(self, response_id: str, now: float) -> str | None:
        """Audio of an answer is about to go out. Returns the mark that has to go before it, if one has to."""
        if response_id != self.response_id:
            self.response_id, self.sent = response_id, 0
            self._asked.clear()
        elif self.position(now) < self.sent or self._asked:
            return None  # it goes on without a gap
        self._at, self._since = self.sent, now
        return self._ask(now)

    def sent_more(self, samples: int, now: float, *, last: bool = False) -> str | None:
        """So many samples went out. Returns the mark that has to follow them, if one has to.

        Args:
            last: Nothing of the answer follows for now: mark where it ends.
        """
        self.sent += samples
        unmarked = self.sent - self._marked
        wanted = unmarked >= _MARK_EVERY_S * self.rate_hz or (last and unmarked > 0)
        return self._ask(now) if wanted else None

    def _ask(self, now: float) -> str:
        self._serial += 1
        self._marked = self.sent
        name = f"{self.response_id}/{self.sent}/{self._serial}"
        due = max(now, self._since + (self.sent - self._at) / self.rate_hz)
        self._asked.append(_Asked(name, self.sent, due))
        return name

    def came_back(self, name: str, now: float) -> None:
        """A mark came back: the ear is there. One that was cleared, or never asked for, says nothing."""
        if not any(mark.name == name for mark in self._asked):
            self.stale += 1
            return
        while True:
            mark = self._asked.popleft()
            if mark.name == name:
                break
        self.returned += 1
        self._at, self._since = max(self._at, mark.position), now

    def cleared(self) -> None:
        """What was sent is dropped: marks that come back for it were not heard."""
        self._asked.clear()
        self.response_id, self.sent = None, 0

    def position(self, now: float) -> int:
        """Samples of the answer that the ear has had."""
        most = self._asked[0].position if self._asked else self.sent
        return min(most, self._at + round(max(0.0, now - self._since) * self.rate_hz))

    def overdue_s(self, now: float) -> float:
        """For how long the oldest mark has been missing; 0 when none is."""
        return max(0.0, now - max(self._asked[0].due, self._since)) if self._asked else 0.0

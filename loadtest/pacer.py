"""When does each caller send its next frame? One timer for all of them, on a grid that does not drift.

Callers are spread over the frame, as real ones are: else all would send in the same millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

Tick: TypeAlias = Callable[[float], None]
"""Called with the time at which the caller's frame is complete, in loop time."""

PHASES = 10
_CATCH_UP_S = 2.0
"""A process that stood still longer skips the frames of that time: it was suspended."""


class Pacer:
    """The shared timer.

    Args:
        frame_s: Length of a frame.

    Attributes:
        frame_s: See above.
        worst_s: The latest tick since it was last asked, against its time.
    """

    def __init__(self, frame_s: float) -> None:
        self.frame_s = frame_s
        self.worst_s = 0.0
        self._members: list[dict[Tick, None]] = [{} for _ in range(PHASES)]
        self._began_s = 0.0
        self._step = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to tick."""
        self._began_s = asyncio.get_running_loop().time()
        self._step = 0
        self._arm()

    def stop(self) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def add(self, tick: Tick, phase: int) -> None:
        """Tick a caller from now on, in the phase of its number."""
        self._members[phase % PHASES][tick] = None

    def remove(self, tick: Tick) -> None:
        """Tick it no more."""
        for members in self._members:
            members.pop(tick, None)

    def take_worst_s(self) -> float:
        """:attr:`worst_s`, which begins again."""
        worst, self.worst_s = self.worst_s, 0.0
        return worst

    def _due_s(self) -> float:
        return self._began_s + (self._step + 1) * self.frame_s / PHASES

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._due_s(), self._tick)

    def _tick(self) -> None:
        """Everybody whose time has come; what was missed is made up for at once, as a socket would hold it."""
        now = asyncio.get_running_loop().time
        self.worst_s = max(self.worst_s, now() - self._due_s())
        missed = int((now() - self._due_s() - _CATCH_UP_S) / self.frame_s * PHASES)
        self._step += max(0, missed)
        while (due_s := self._due_s()) <= now():
            for tick in list(self._members[self._step % PHASES]):
                tick(due_s)
            self._step += 1
        self._arm()

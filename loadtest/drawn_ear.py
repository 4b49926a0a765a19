"""An ear without audio: it is told of the edges, knows the time of every sample, and keeps none.

It stands in for :class:`voice.hearing.Ear` where the frame path is closed form. What the recogniser gets from it is
silence of the right length whose constant level tells what kind of thing was said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import numpy as np

from voice.hearing import Ear
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.options import TurnOptions
from voice.session import Session

_LOUD_DB = 20.0
"""Speech of simulated callers is so far above their rooms' noise."""


class DrawnLog:
    """Stands in for the audio kept: as long as the session, without a sample in memory.

    Attributes:
        level: Value of the samples that are read from now on.
    """

    start = 0

    def __init__(self) -> None:
        self.epoch = asyncio.get_running_loop().time()
        self.level = np.int16(0)

    def __len__(self) -> int:
        return self.end

    @property
    def end(self) -> int:
        """Index after the newest sample: the clock's."""
        return int((asyncio.get_running_loop().time() - self.epoch) * ASR_RATE_HZ + 0.5)

    def read(self, start: int, end: int) -> Pcm16:
        """So many samples of :attr:`level`; they share one, and can't be written."""
        return np.broadcast_to(self.level, (max(0, min(end, self.end) - start),))

    def drop_before(self, index: int) -> None:
        """There is nothing to drop."""

    def limit(self, max_s: float, *, overwrite: bool) -> None:
        """There is nothing to bound."""


class DrawnEar:
    """Has what a session uses of :class:`voice.hearing.Ear`. A simulated caller calls :meth:`hear_began` and
    :meth:`hear_paused` when a detector would have noticed.

    Args:
        options: The session's.
        on_began, on_paused: As of an ear.
    """

    eager = False

    def __init__(
        self, options: TurnOptions, on_began: Callable[[int], None], on_paused: Callable[[int], None]
    ) -> None:
        self.options = options
        self.guard = None
        self.keep_from: int | None = None
        self.dropped_samples = self.failures = 0
        self.log = DrawnLog()
        self._on_began, self._on_paused = on_began, on_paused
        self._until = 0
        self._speaking = self._deaf = self._closed = False

    # ------------------------------------------------------------ told by the caller

    def hear_began(self, at: float, level: int = 0) -> None:
        """Speech began at loop time ``at``; ``level`` tells the recogniser what it will be."""
        if self._closed or self._speaking:
            return
        self._speaking = True
        self.log.level = np.int16(level)
        if not self._deaf:
            self._on_began(self._index(at))

    def hear_paused(self, at: float) -> None:
        """It ended at ``at``."""
        if self._closed or not self._speaking:
            return
        self._until, self._speaking = self._index(at), False
        if self._deaf:
            self._deaf = False
        else:
            self._on_paused(self._until)

    def _index(self, at: float) -> int:
        return max(0, round((at - self.log.epoch) * ASR_RATE_HZ))

    # ------------------------------------------------------------ asked by the session

    @property
    def speaking(self) -> bool:
        """Whether the caller's voice is on now."""
        return self._speaking

    @property
    def voiced_until(self) -> int:
        """Index after the newest sample of speech."""
        return self.log.end if self._speaking else self._until

    def time_of(self, index: int) -> float:
        """Loop time at which a sample was spoken."""
        return self.log.epoch + index / ASR_RATE_HZ

    def stream_s(self, at: float) -> float:
        """Seconds of the session at a loop time."""
        return at - self.log.epoch

    def over_noise_db(self, start: int, end: int) -> float | None:
        """Callers are loud enough."""
        return _LOUD_DB

    def notice_gap(self, now: float) -> None:
        """The line never breaks."""

    def configure(self, options: TurnOptions) -> None:
        """Use other options from now on."""
        self.options = options

    def cut(self) -> None:
        """What goes on being said belongs to no turn."""
        self._deaf = self._speaking

    def close(self) -> None:
        """Hear nothing more."""
        self._closed = True


def give_drawn_ear(session: Session) -> DrawnEar:
    """Put a drawn ear in the place of a started session's own, before anything was heard."""
    session.ear.close()
    drawn = DrawnEar(session.options, session._began, session._paused)
    ear = cast(Ear, drawn)
    session.ear = session._listening._ear = session._answering._ear = ear
    return drawn

"""When did a marker come? A loud stretch after quiet, found in a stream of audio as that comes."""

from __future__ import annotations

import numpy as np

from voice.interfaces import ASR_RATE_HZ, Pcm16

LOUD = 3000
"""Sample value that a marker (10,000) rises above within a millisecond, and nothing else does."""
QUIET_S = 0.25
"""A marker comes after so much quiet."""
LENGTH_S = 0.16
"""So much of a marker is looked at; all are longer."""


class Markers:
    """One stream of 16 kHz audio in pieces."""

    def __init__(self) -> None:
        self._quiet = int(QUIET_S * ASR_RATE_HZ)  # samples since the last loud one
        self._length = -1  # samples of the present marker so far; -1: there is none
        self._times: list[float] = []

    def feed(self, pcm: Pcm16, at: float) -> float | None:
        """The next piece, which came at ``at`` (seconds).

        Returns:
            Once a marker is over: when its first piece came, by the mean of all its pieces, each of which should have
            come as much later as there is audio between. On a line with jitter that is steadier than the first alone.
        """
        loud = np.flatnonzero(np.abs(pcm.astype(np.int32)) > LOUD)
        if self._length < 0 and loud.size and self._quiet + int(loud[0]) >= QUIET_S * ASR_RATE_HZ:
            self._length, self._times = 0, []
        self._quiet = pcm.size - 1 - int(loud[-1]) if loud.size else self._quiet + pcm.size
        if self._length < 0:
            return None
        self._times.append(at - self._length / ASR_RATE_HZ)
        self._length += pcm.size
        if self._length < LENGTH_S * ASR_RATE_HZ:
            return None
        self._length = -1
        return float(np.mean(self._times))

"""When does what was sent arrive? One direction of a network: delay, jitter and loss, in order as TCP has it."""

from __future__ import annotations

import random

from loadtest.scenario import Network


class Link:
    """One direction.

    Args:
        network: What it does.
        rng: Draws jitter and loss.
    """

    def __init__(self, network: Network, rng: random.Random) -> None:
        self._network, self._rng = network, rng
        self._last_s = 0.0

    def arrives_at(self, sent_s: float) -> float:
        """When a packet arrives that is sent at ``sent_s``: never before an earlier one. Call it in order."""
        network = self._network
        late_ms = network.delay_ms + self._rng.uniform(0.0, network.jitter_ms)
        while self._rng.random() < network.loss:
            late_ms += network.resend_ms
        self._last_s = max(self._last_s, sent_s + late_ms / 1000)
        return self._last_s


class Sips:
    """How a slow reader reads: a piece at a time, then a pause.

    Args:
        bytes_per_s: What it reads.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._free_s = 0.0

    def pause_s(self, now_s: float, size_bytes: int) -> float:
        """How long to read nothing after a piece of this size."""
        self._free_s = max(self._free_s, now_s) + size_bytes / self._rate
        return self._free_s - now_s

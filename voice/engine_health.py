"""What is known about an engine from using it: how long its calls take, and whether it works at all.

Both take the time as an argument (loop time, seconds); neither does any I/O.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

MEMORY = 0.9
"""Weight of the past in each new measurement: about the last ten calls count."""

TRUST_S = 5.0
"""A measurement older than this refuses nobody: the next call measures anew, so one slow call can't lock all
out."""

MAX_SHAPES = 64
"""Shapes whose rates are kept; the one not used for longest is forgotten."""


@dataclass(slots=True)
class _Fit:
    """Least squares of ``seconds = fixed + per_item x items``, weighted to recent calls."""

    weight: float = 0.0
    items: float = 0.0
    seconds: float = 0.0
    items_squared: float = 0.0
    product: float = 0.0
    measured_at: float | None = None

    def add(self, items: int, seconds: float, now: float) -> None:
        self.weight = self.weight * MEMORY + 1.0
        self.items = self.items * MEMORY + items
        self.seconds = self.seconds * MEMORY + seconds
        self.items_squared = self.items_squared * MEMORY + items * items
        self.product = self.product * MEMORY + items * seconds
        self.measured_at = now

    def at(self, items: int) -> float:
        mean = self.seconds / self.weight
        spread = self.items_squared * self.weight - self.items * self.items
        if spread < 1e-6 * self.items_squared * self.weight:
            return mean  # one batch size only: nothing is known about others
        slope = (self.product * self.weight - self.items * self.seconds) / spread
        slope = min(
            max(slope, 0.0), self.seconds / self.items
        )  # more items never take less; no negative fixed part
        return mean + slope * (items - self.items / self.weight)


class ServiceRates:
    """Measured duration of an engine's calls, by shape and batch size."""

    def __init__(self) -> None:
        self._fits: dict[Hashable, _Fit] = {}
        self._mean_s: float | None = None

    @property
    def mean_s(self) -> float | None:
        """Seconds of a call of any shape, weighted to the recent; ``None`` before the first."""
        return self._mean_s

    def add(self, shape: Hashable, items: int, seconds: float, now: float) -> None:
        """A call of ``items`` items took ``seconds``."""
        fit = self._fits.pop(shape, None) or _Fit()
        fit.add(items, seconds, now)
        self._fits[shape] = fit  # last in order: most recently used
        if len(self._fits) > MAX_SHAPES:
            del self._fits[next(iter(self._fits))]
        if self._mean_s is None:
            self._mean_s = seconds
        else:
            self._mean_s = MEMORY * self._mean_s + (1 - MEMORY) * seconds

    def seconds(self, shape: Hashable, items: int, now: float) -> float:
        """Expected duration of a call; 0 when nothing was measured within :data:`TRUST_S`."""
        fit = self._fits.get(shape)
        if fit is None or fit.measured_at is None or now - fit.measured_at > TRUST_S:
            return 0.0
        return fit.at(items)

    def distrust(self) -> None:
        """The clock changed: what was measured stays, but refuses nobody until it is confirmed."""
        for fit in self._fits.values():
            fit.measured_at = None


class Breaker:
    """Open after a failure: nobody is let through for a while, then one probe, and all again when that
    succeeds.

    Args:
        cooldown_s: Seconds between the failure and the probe.
    """

    def __init__(self, cooldown_s: float) -> None:
        self.cooldown_s = cooldown_s
        self.probe: object | None = None
        self._open_until: float | None = None

    @property
    def is_open(self) -> bool:
        """A failure was seen and no success since."""
        return self._open_until is not None

    def lets_through(self, now: float) -> bool:
        """May a request go to the engine now? While open it must be named with :meth:`start_probe`."""
        return self._open_until is None or (now >= self._open_until and self.probe is None)

    def start_probe(self, request: object) -> None:
        """``request`` is the one that tries the engine. Ignored when closed."""
        if self._open_until is not None:
            self.probe = request

    def drop_probe(self, request: object) -> None:
        """The request left without having tried the engine; another may."""
        if self.probe is request:
            self.probe = None

    def failed(self, now: float) -> None:
        """The engine failed."""
        self._open_until = now + self.cooldown_s
        self.probe = None

    def succeeded(self) -> None:
        """The engine answered."""
        self._open_until = self.probe = None

    def restart(self, now: float) -> None:
        """The clock changed: if open, a probe is due now."""
        self.probe = None
        if self._open_until is not None:
            self._open_until = now

"""How busy is each stage, the processor and the event loop, and which of them is the limit? Pure: time comes in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from voice.errors import BadRequest

OVER_S = 3.0
"""Load is a mean over about so many seconds: longer than the calls of one turn, shorter than a turn."""

MOST_LAGS = 4.0
"""A single delay of the event loop counts as so many times its target at most: one long stall is not load."""


@dataclass(frozen=True, slots=True)
class LoadTargets:
    """What a stage may look like while everyone is served well. Load is told as a share of these.

    Attributes:
        utilisation: Share of time that a stage works, 0–1. Above about 0.85 queues grow fast.
        wait_s: Age of the oldest request in a batcher's queue, in seconds.
        late_s: How much longer than usual an engine takes for its first result, in seconds.
        lag_s: How late the event loop's timers fire, in seconds. Audio on a grid of 20 ms suffers from there on.
    """

    utilisation: float = 0.85
    wait_s: float = 0.25
    late_s: float = 1.0
    lag_s: float = 0.05

    def __post_init__(self) -> None:
        if not 0.0 < self.utilisation <= 1.0 or min(self.wait_s, self.late_s, self.lag_s) <= 0.0:
            raise BadRequest("utilisation must be above 0 and at most 1, the other targets above 0 s")


@dataclass(frozen=True, slots=True)
class StageLoad:
    """A stage at one moment.

    Attributes:
        name: Which.
        utilisation: Share of the last seconds that it worked, 0–1; 0 where that can't be known (a remote server).
        wait_s: Age of the oldest request in its queue, smoothed.
        late_s: How much longer than usual it takes for a first result.
        lag_s: How late its timers fire (the event loop).
        waiting: Requests that wait or run.
        oldest_s: Age of the oldest of them; for people, not judged: a long call is no queue.
        per_s: Results a second.
        service_s: Seconds to a first result; ``None`` before the first.
    """

    name: str
    utilisation: float = 0.0
    wait_s: float = 0.0
    late_s: float = 0.0
    lag_s: float = 0.0
    waiting: int = 0
    oldest_s: float = 0.0
    per_s: float = 0.0
    service_s: float | None = None

    def share(self, targets: LoadTargets) -> float:
        """Its utilisation as a share of the target: the part of its load that grows with the number of sessions."""
        return self.utilisation / targets.utilisation

    def pressure(self, targets: LoadTargets) -> float:
        """Its load, 1 at the target: the worst of utilisation, wait, lateness and lag."""
        return max(
            self.share(targets),
            self.wait_s / targets.wait_s,
            self.late_s / targets.late_s,
            self.lag_s / targets.lag_s,
        )


@dataclass(frozen=True, slots=True)
class Load:
    """All stages at one moment.

    Attributes:
        stages: Each of them.
        targets: What they are measured against.
    """

    stages: tuple[StageLoad, ...] = ()
    targets: LoadTargets = LoadTargets()

    @property
    def slowest(self) -> StageLoad | None:
        """The stage that is the limit; ``None`` without any."""
        return max(self.stages, key=lambda stage: stage.pressure(self.targets), default=None)

    @property
    def pressure(self) -> float:
        """The slowest stage's load, 1 at its target."""
        return max((stage.pressure(self.targets) for stage in self.stages), default=0.0)

    @property
    def share(self) -> float:
        """The highest utilisation as a share of the target."""
        return max((stage.share(self.targets) for stage in self.stages), default=0.0)

    def why(self) -> str:
        """The limit, in words."""
        slowest = self.slowest
        if slowest is None:
            return "nothing is measured"
        return f"{slowest.name} is at {slowest.pressure(self.targets):.0%} of its target"


class Recent:
    """A mean of what was measured over about the last seconds, forgetting exponentially; 0 at first."""

    def __init__(self, over_s: float = OVER_S) -> None:
        self.value = 0.0
        self._over_s = over_s

    def add(self, value: float, seconds: float) -> None:
        """It was ``value`` for ``seconds``."""
        old = math.exp(-max(0.0, seconds) / self._over_s)
        self.value = self.value * old + value * (1.0 - old)


class LoopMeter:
    """The event loop's own load: the processor time of its thread, and the delay of its timers.

    Args:
        targets: A single delay is cut at :data:`MOST_LAGS` times the target.
    """

    name = "event loop"

    def __init__(self, targets: LoadTargets) -> None:
        self._most_lag_s = MOST_LAGS * targets.lag_s
        self._at: float | None = None
        self._cpu_s = 0.0
        self._busy, self._lag = Recent(), Recent()

    def add(self, now: float, cpu_s: float, lag_s: float | None) -> None:
        """A look at the clocks.

        Args:
            now: Loop time.
            cpu_s: Processor time of the loop's thread since any moment.
            lag_s: How late the timer fired that led here; ``None``: there was no timer.
        """
        if self._at is not None and now > self._at:
            seconds = now - self._at
            self._busy.add(min(1.0, max(0.0, cpu_s - self._cpu_s) / seconds), seconds)
            if lag_s is not None:
                self._lag.add(min(max(0.0, lag_s), self._most_lag_s), seconds)
        self._at, self._cpu_s = now, cpu_s

    def load(self) -> StageLoad:
        """As of the latest look."""
        return StageLoad(self.name, utilisation=self._busy.value, lag_s=self._lag.value)

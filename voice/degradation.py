"""What is given up, and in which order, when the load is above its targets for a while? A ladder with hysteresis.

Pure: time and load come in. Each rung keeps what the rungs below it gave up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from voice.errors import BadRequest


class Rung(IntEnum):
    """How much is given up."""

    FULL = 0  # nothing
    FEWER_PARTIALS = 1  # words of a sound that goes on are asked for less often, the turn model once a pause
    NO_GUESSES = 2  # no answer is begun before its turn is certain
    SMALL_RECOGNISER = 3  # Stages.small_recogniser hears, if there is one
    SHORT_ANSWERS = 4  # answers end sooner

    @property
    def label(self) -> str:
        """For people and events: ``"no guesses"``."""
        return "full service" if self is Rung.FULL else self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """When to climb and when to come down.

    Attributes:
        climb_above: Load (1 is the target) above which…
        climb_after_s: …for this long without a break, one rung is climbed.
        down_below: Load below which…
        down_after_s: …for this long without a break, one rung is left. After a relapse twice as long, up to…
        down_most_s: …this.
        highest: The last rung that may be climbed.
    """

    climb_above: float = 1.0
    climb_after_s: float = 2.0
    down_below: float = 0.75
    down_after_s: float = 10.0
    down_most_s: float = 120.0
    highest: Rung = Rung.SHORT_ANSWERS

    def __post_init__(self) -> None:
        if not 0.0 < self.down_below < self.climb_above:
            raise BadRequest("the ladder is left at a lower load than it is climbed at, both above 0")
        if min(self.climb_after_s, self.down_after_s) <= 0.0 or self.down_most_s < self.down_after_s:
            raise BadRequest("times must be above 0, and down_most_s no shorter than down_after_s")


@dataclass(frozen=True, slots=True)
class Step:
    """A rung was climbed or left.

    Attributes:
        rung: Where it leads.
        before: Where it came from.
        why: In words.
    """

    rung: Rung
    before: Rung
    why: str


class Ladder:
    """Where the process stands.

    Args:
        options: Marks and times; ``None``: the defaults.

    Attributes:
        rung: What is given up now.
        climbed, left: Steps so far.
    """

    def __init__(self, options: LadderOptions | None = None) -> None:
        self.options = options or LadderOptions()
        self.rung = Rung.FULL
        self.climbed = self.left = 0
        self._high_since: float | None = None
        self._low_since: float | None = None
        self._down_after_s = self.options.down_after_s
        self._left_at: float | None = None

    def look(self, pressure: float, now: float, why: str = "", skip: Collection[Rung] = ()) -> Step | None:
        """The load is ``pressure`` now; returns the step that is taken, if any.

        Args:
            pressure: 1 is the target.
            now: Loop time.
            why: What the load is due to, in words.
            skip: Rungs that would give nothing up.
        """
        options = self.options
        self._high_since = _since(self._high_since, pressure > options.climb_above, now)
        self._low_since = _since(self._low_since, pressure < options.down_below, now)
        if self._high_since is not None and now - self._high_since >= options.climb_after_s:
            rungs = [r for r in Rung if self.rung < r <= options.highest and r not in skip]
            return self._climb(rungs[0], now, why) if rungs else None
        if self._low_since is not None and now - self._low_since >= self._down_after_s:
            rungs = [r for r in Rung if r < self.rung and r not in skip]
            return self._leave(rungs[-1], now, why) if rungs else None
        return None

    def reset(self) -> None:
        """Nobody is served any more, or the clock began anew: back to full service."""
        self.rung = Rung.FULL
        self._high_since = self._low_since = self._left_at = None
        self._down_after_s = self.options.down_after_s

    def _climb(self, rung: Rung, now: float, why: str) -> Step:
        options = self.options
        if self._left_at is not None:
            # it was left too soon: what was given back brought the load back
            relapsed = now - self._left_at < 2 * self._down_after_s
            longer_s = min(2 * self._down_after_s, options.down_most_s)
            self._down_after_s = longer_s if relapsed else options.down_after_s
            self._left_at = None
        self.climbed += 1
        return self._go(rung, now, why)

    def _leave(self, rung: Rung, now: float, why: str) -> Step:
        self._left_at = now
        self.left += 1
        return self._go(rung, now, why)

    def _go(self, rung: Rung, now: float, why: str) -> Step:
        before, self.rung = self.rung, rung
        self._high_since = self._low_since = None  # the next step needs its full time
        return Step(rung, before, why)


def _since(since: float | None, holds: bool, now: float) -> float | None:
    """Since when something holds without a break."""
    if not holds:
        return None
    return now if since is None else min(since, now)

"""What do all sessions together know of an engine? How long it takes, who waits for it, and whether it is dead.

The first session that finds an engine dead or hanging opens its breaker; the others turn to the fallback at once,
and one call at a time finds out whether it is back. Pure: time comes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from voice.batching import BatcherStats
from voice.engine_health import Breaker
from voice.errors import DeadlineExceeded, EngineFailed, VoiceError
from voice.load import OVER_S, Recent, StageLoad
from voice.retry_budget import RetryBudget
from voice.scope import Priority, Scope

Role: TypeAlias = Literal["detector", "turn", "recogniser", "model", "synthesiser"]

COOLDOWN_S, LONGEST_COOLDOWN_S = 2.0, 60.0
"""How long a breaker stays open before the first probe, and at most: each probe that fails doubles it."""

STRIKES = 3
"""So many failures in a row that the engine blames on the request are the engine's own (a wrong key, say)."""

USUAL_S = 600.0
"""What an engine usually takes is the quickest of about so many seconds."""

_CALLS = 5.0
"""Lateness is a mean over about so many calls…"""
_CALLS_S = 10.0
"""…of about so many seconds."""


class Call:
    """One call of an engine; made by :meth:`EngineWatch.begin`. End it with :meth:`ended` or :meth:`given_up`.

    Attributes:
        probes: It finds out whether a broken engine is back.
    """

    def __init__(self, watch: EngineWatch, scope: Scope, now: float, *, probes: bool) -> None:
        self.probes = probes
        self.since, self.scope = now, scope
        self._watch: EngineWatch | None = watch

    def answered(self, now: float) -> None:
        """The first result is there. Later calls do nothing."""
        if self._watch is not None:
            self._watch._answered(self, now)

    def ended(self, error: BaseException | None, now: float) -> None:
        """It is over, well when ``error`` is ``None``. Later calls do nothing."""
        if self._watch is not None:
            self._watch._ended(self, error, now)
            self._watch = None

    def given_up(self) -> None:
        """Nobody wants it any more: that says nothing of the engine. After :meth:`ended` it does nothing."""
        if self._watch is not None:
            self._watch._given_up(self)
            self._watch = None


class EngineWatch:
    """One engine.

    Args:
        role: What it does.
        name: Its own name.
        retries: Told of each call.
        stats: Its batcher's counts, where it has one.

    Attributes:
        breaker: Open while the engine is taken for dead.
        trips: How often the breaker opened.
    """

    def __init__(
        self,
        role: Role,
        name: str,
        retries: RetryBudget | None = None,
        stats: Callable[[], BatcherStats] | None = None,
    ) -> None:
        self.role, self.name = role, name
        self.breaker = Breaker(COOLDOWN_S)
        self.trips = 0
        self._retries, self._stats = retries, stats
        self._strikes = 0
        self._waiting: dict[Call, None] = {}  # without a first result, in order of arrival
        self._usual_s: float | None = None
        self._service_s: float | None = None
        self._late_s = self._rate = 0.0
        self._answered_at = 0.0
        self._looked_at: float | None = None
        self._calls = 0
        self._busy, self._queue = Recent(), Recent()

    # ------------------------------------------------------------ asking

    def usable(self, now: float) -> bool:
        """Whether it may be asked; while it is taken for dead only one call at a time may, and only now and then."""
        return self.breaker.lets_through(now)

    def begin(self, scope: Scope, now: float) -> Call:
        """It is asked now."""
        probes = self.breaker.is_open and self.breaker.lets_through(now)
        call = Call(self, scope, now, probes=probes)
        if probes:
            self.breaker.start_probe(call)
        self._waiting[call] = None
        if self._retries is not None:
            self._retries.called()
        return call

    @contextmanager
    def calling(self, scope: Scope, clock: Callable[[], float]) -> Iterator[Call]:
        """A call for the body of ``with``: it ends as that does. Cancelled, it says nothing of the engine.

        Args:
            scope: Whose call it is.
            clock: Loop time.
        """
        call = self.begin(scope, clock())
        try:
            yield call
            call.ended(None, clock())
        except VoiceError as error:
            call.ended(error, clock())
            raise
        finally:
            call.given_up()  # nothing where it has ended

    def _answered(self, call: Call, now: float) -> None:
        if call in self._waiting:
            del self._waiting[call]
            self._measure(call, now, quick=True)

    def _ended(self, call: Call, error: BaseException | None, now: float) -> None:
        if call in self._waiting:
            del self._waiting[call]
            self._measure(call, now, quick=error is None)
        if error is None:
            self._strikes = 0
            if not self.breaker.is_open or self.breaker.probe is call:
                self.breaker.succeeded()
                self.breaker.cooldown_s = COOLDOWN_S
            return
        if not self._is_to_blame(error):
            self.breaker.drop_probe(call)
            return
        if not self.breaker.is_open:
            self.trips += 1
        elif self.breaker.probe is not call:
            return  # begun before it was known, or for want of another engine: proves nothing new
        else:
            self.breaker.cooldown_s = min(2 * self.breaker.cooldown_s, LONGEST_COOLDOWN_S)
        self._strikes = 0
        self.breaker.failed(now)

    def _given_up(self, call: Call) -> None:
        self._waiting.pop(call, None)
        self.breaker.drop_probe(call)

    def _is_to_blame(self, error: BaseException) -> bool:
        """Whether the failure says that the engine is dead or hangs, and not that the request was bad."""
        if isinstance(error, DeadlineExceeded) or (isinstance(error, EngineFailed) and error.retryable):
            return True
        self._strikes += isinstance(error, EngineFailed) or not isinstance(error, VoiceError)
        return self._strikes >= STRIKES

    # ------------------------------------------------------------ how it does

    def _measure(self, call: Call, now: float, *, quick: bool) -> None:
        """A call had its first result, or failed without one (``quick`` is false: it took at least so long)."""
        self._rate = self._per_s(now) + 1.0 / OVER_S
        if call.scope.priority is not Priority.COMMITTED:
            self._answered_at = now
            return  # whoever must wait for others by its class is not late
        seconds = max(0.0, now - call.since)
        if quick:
            if self._usual_s is None or seconds < self._usual_s:
                self._usual_s = seconds
            else:
                drift = 1.0 - math.exp(-max(0.0, now - self._answered_at) / USUAL_S)
                self._usual_s += (seconds - self._usual_s) * drift
            self._service_s = seconds if self._service_s is None else 0.8 * self._service_s + 0.2 * seconds
        self._late_s = self._lateness(now) + (self._excess(seconds) - self._lateness(now)) / _CALLS
        self._answered_at = now

    def _excess(self, seconds: float) -> float:
        return 0.0 if self._usual_s is None else max(0.0, seconds - self._usual_s)

    def _lateness(self, now: float) -> float:
        return self._late_s * math.exp(-max(0.0, now - self._answered_at) / _CALLS_S)

    def _per_s(self, now: float) -> float:
        return self._rate * math.exp(-max(0.0, now - self._answered_at) / OVER_S)

    def load(self, now: float) -> StageLoad:
        """As of now. Calls that wait longer than usual count already."""
        late = [
            excess
            for call in self._waiting
            if call.scope.priority is Priority.COMMITTED and (excess := self._excess(now - call.since)) > 0
        ]
        late_s = (self._lateness(now) * _CALLS + sum(late)) / (_CALLS + len(late))
        oldest = next(iter(self._waiting), None)
        self._read_batcher(now)
        return StageLoad(
            f"{self.role} {self.name}",
            utilisation=self._busy.value,
            wait_s=self._queue.value,
            late_s=late_s,
            waiting=len(self._waiting),
            oldest_s=0.0 if oldest is None else max(0.0, now - oldest.since),
            per_s=self._per_s(now),
            service_s=self._service_s,
        )

    def _read_batcher(self, now: float) -> None:
        """Its batcher's queue and work since the last look.

        One that always works but fills its batches to a tenth could do ten times as much: what counts is time times
        fill.
        """
        if self._stats is None:
            return
        stats = self._stats()
        if self._looked_at is not None and now > self._looked_at:
            seconds = now - self._looked_at
            fill = stats.mean_batch / stats.max_batch
            worked_s = (stats.calls - self._calls) * (stats.service_s or 0.0)
            self._busy.add(min(1.0, worked_s / seconds) * min(1.0, fill), seconds)
            self._queue.add(stats.oldest_age_s, seconds)
        self._looked_at, self._calls = now, stats.calls

    def restart(self, now: float) -> None:
        """The clock began anew: what is under way is forgotten, a broken engine is probed at once."""
        self.breaker.restart(now)
        self._waiting.clear()
        self._late_s = self._rate = 0.0
        self._answered_at, self._looked_at = now, None

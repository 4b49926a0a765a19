"""Who waits for a shared engine, who goes next, and whose wait is hopeless. No I/O: time comes in as an
argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from voice.engine_health import ServiceRates
from voice.errors import DeadlineExceeded, Overloaded, VoiceError
from voice.scope import Priority, Scope

In = TypeVar("In")
Out = TypeVar("Out")

PATIENCE_CALLS = 8
"""A request that this many calls have passed over leads the next batch, at most once in as many calls."""

ROUNDING_S = 1e-9
"""Deadlines are sums of floats: what ends this much late is in time."""


@dataclass(slots=True, eq=False)
class Request(Generic[In, Out]):
    """One item on its way through a batcher.

    Attributes:
        owner: What tells the class: a scope is asked anew for every batch, as a guess may have become
            certain.
        deadline: Loop time, ``None`` without one.
        arrived: Loop time.
        calls_before: Engine calls made before it came.
        on_done: Gets the result or the error; ``None`` once that has happened or nobody wants it any more.
    """

    number: int
    item: In
    bucket: Hashable
    owner: Scope | Priority
    deadline: float | None
    arrived: float
    calls_before: int
    on_done: Callable[[Out | VoiceError], None] | None

    @property
    def priority(self) -> Priority:
        return self.owner.priority if isinstance(self.owner, Scope) else self.owner

    def rank(self) -> tuple[Priority, float, int]:
        """Lower goes first: class, then deadline, then arrival."""
        return self.priority, math.inf if self.deadline is None else self.deadline, self.number


class BatchQueue(Generic[In, Out]):
    """The waiting requests of one engine, in the order of their arrival.

    Args:
        name: The engine's, for errors.
        max_batch: Most items of a call.
        max_queue: Most requests that wait.
        rates: What is known about the duration of calls.
    """

    def __init__(self, name: str, max_batch: int, max_queue: int, rates: ServiceRates) -> None:
        self.name = name
        self.max_batch = max_batch
        self.max_queue = max_queue
        self.calls = 0
        self._rates = rates
        self._waiting: dict[int, Request[In, Out]] = {}
        self._led_by_age_at = 0  # how many calls there had been when a passed-over request led one

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> Request[In, Out] | None:
        """The one that has waited longest."""
        return next(iter(self._waiting.values()), None)

    def add(self, request: Request[In, Out]) -> None:
        """Put the request in line; ask :meth:`refusal` first."""
        self._waiting[request.number] = request

    def remove(self, request: Request[In, Out]) -> None:
        """Take the request out, if it is there."""
        self._waiting.pop(request.number, None)

    def clear(self) -> list[Request[In, Out]]:
        """Take all out."""
        everyone = list(self._waiting.values())
        self._waiting.clear()
        return everyone

    def best_class(self) -> Priority:
        """The class of the best request."""
        return min((r.priority for r in self._waiting.values()), default=Priority.BACKGROUND)

    # ------------------------------------------------------------ who may come in

    def refusal(self, request: Request[In, Out], now: float, busy_until: float) -> VoiceError | None:
        """Why the request may not wait here: its deadline can't be met, or there is no room for its class."""
        if request.deadline is not None:
            if request.deadline <= now:
                return DeadlineExceeded(f"the deadline had passed when {self.name} was asked")
            if (error := self._out_of_reach(request, request.deadline, now, busy_until)) is not None:
                return error
        if len(self) >= self.max_queue and self._worst().priority <= request.priority:
            return self.full()
        return None

    def overflow(self) -> Request[In, Out] | None:
        """Take out the youngest of the worst class if the queue is full: a better one, let in, takes its
        place."""
        if len(self) < self.max_queue:
            return None
        worst = self._worst()
        self.remove(worst)
        return worst

    def _worst(self) -> Request[In, Out]:
        return max(self._waiting.values(), key=lambda r: (r.priority, r.number))

    def full(self) -> Overloaded:
        """The error of those for whom there is no room."""
        call_s = self._rates.mean_s
        retry_s = None if call_s is None else call_s * math.ceil(len(self) / self.max_batch)
        return Overloaded(f"{self.name} has {self.max_queue} requests waiting, its most", retry_s)

    def _out_of_reach(
        self, request: Request[In, Out], deadline: float, now: float, busy_until: float
    ) -> Overloaded | None:
        """Would it end too late, behind all that go first? An unmeasured shape gets the benefit of the
        doubt."""
        if self._rates.seconds(request.bucket, 1, now) == 0.0:
            return None
        rank = request.rank()
        ahead: dict[Hashable, int] = {request.bucket: 1}
        for other in self._waiting.values():
            if other.rank() < rank:
                ahead[other.bucket] = ahead.get(other.bucket, 0) + 1
        end = max(now, busy_until)
        for bucket, count in ahead.items():
            full_calls, rest = divmod(count, self.max_batch)
            end += full_calls * self._rates.seconds(bucket, self.max_batch, now)
            end += self._rates.seconds(bucket, rest, now) if rest else 0.0
        if end <= deadline + ROUNDING_S:
            return None
        needs = f"{self.name} would need {end - now:.2f} s, the deadline is in {deadline - now:.2f} s"
        return Overloaded(needs, retry_after_s=end - deadline)

    # ------------------------------------------------------------ who goes next

    def wait_until(self, max_wait_s: float, now: float) -> float:
        """How long a batch below its target may wait for more: nobody gives up more than half of its slack."""
        oldest = self.oldest
        until = now if oldest is None else oldest.arrived + max_wait_s
        for request in self._waiting.values():
            if request.deadline is not None:
                needs_s = self._rates.seconds(request.bucket, len(self), now)
                slack_s = request.deadline - request.arrived - needs_s
                until = min(until, request.arrived + slack_s / 2)
        return until

    def take_hopeless(self, now: float) -> list[tuple[Request[In, Out], VoiceError]]:
        """Take out those that have expired or can't be done in time any more, each with its error."""
        hopeless = self.hopeless(self._waiting.values(), now)
        for request, _ in hopeless:
            self.remove(request)
        return hopeless

    def hopeless(
        self, requests: Iterable[Request[In, Out]], now: float
    ) -> list[tuple[Request[In, Out], VoiceError]]:
        """Those among ``requests`` that even a call of their own, begun now, would serve too late."""
        found: list[tuple[Request[In, Out], VoiceError]] = []
        for request in requests:
            if request.deadline is None:
                continue
            needs_s = self._rates.seconds(request.bucket, 1, now)
            if request.deadline <= now:
                found.append((request, DeadlineExceeded(f"the deadline passed in the queue of {self.name}")))
            elif request.deadline + ROUNDING_S < now + needs_s:
                left_s = request.deadline - now
                found.append(
                    (
                        request,
                        Overloaded(f"{self.name} needs {needs_s:.2f} s, {left_s:.2f} s are left", needs_s),
                    )
                )
        return found

    def take_batch(self, now: float) -> list[Request[In, Out]]:
        """Take out the next call's requests, all of one bucket; empty when none waits."""
        if not self._waiting:
            return []
        lead = self._leader()
        peers = [r for r in self._waiting.values() if r.bucket == lead.bucket]
        if len(peers) > self.max_batch or any(r.deadline is not None for r in peers):
            peers.sort(key=lambda r: (r is not lead, r.rank()))
        batch = self._fitting(peers, now)
        for request in batch:
            self.remove(request)
        return batch

    def _leader(self) -> Request[In, Out]:
        """Who decides the bucket: the best, or now and then the oldest, if it was passed over too often."""
        oldest = next(iter(self._waiting.values()))
        if self.calls - max(oldest.calls_before, self._led_by_age_at) >= PATIENCE_CALLS:
            self._led_by_age_at = self.calls
            return oldest
        return min(self._waiting.values(), key=Request.rank)

    def _fitting(self, peers: list[Request[In, Out]], now: float) -> list[Request[In, Out]]:
        """The first ones, as many as one call takes without making any of them late."""
        batch: list[Request[In, Out]] = []
        tightest = math.inf
        for request in peers:
            end = now + self._rates.seconds(request.bucket, len(batch) + 1, now)
            deadline = min(tightest, math.inf if request.deadline is None else request.deadline)
            if batch and end > deadline + ROUNDING_S:
                continue
            batch.append(request)
            tightest = deadline
            if len(batch) == self.max_batch:
                break
        return batch

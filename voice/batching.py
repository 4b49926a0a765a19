"""Batcher: one engine call for many sessions, and what happens to each of them when the call fails.

Requests wait in one bounded queue. A pump task lives only while something waits: it forms a batch the moment
the engine is free, runs it off the event loop and hands every request its own result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import Context
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from voice.batch_queue import BatchQueue, Request
from voice.compute import ComputeGate
from voice.engine_call import EngineCall, engine_error, input_error, is_engine_fault, is_input_fault
from voice.engine_health import Breaker, ServiceRates
from voice.errors import BadRequest, DeadlineExceeded, EngineFailed, Overloaded, ScopeCancelled, VoiceError
from voice.executor import Executor
from voice.scope import Priority, Reason, Scope

log = logging.getLogger("voice.batching")
In = TypeVar("In")
Out = TypeVar("Out")
Batch: TypeAlias = list[Request[In, Out]]

STRIKES = 8
"""So many requests in a row that fail alone, for a reason that is no input error, are the engine's fault."""


@dataclass(frozen=True, slots=True)
class BatcherStats:
    """A batcher at one moment; counts are since its start.

    Attributes:
        calls: Engine calls, those for bisecting included.
        items: Requests that got a result.
        refused: Refused for a full queue or a deadline out of reach.
        expired: Their deadline passed before they had a result.
        cancelled: Left before they had a result because nobody wanted it any more.
        failed: Got an error of the engine, of an open breaker, or for their input.
        depth: Waiting now.
        oldest_age_s: How long the oldest of them has waited, in seconds; 0 when none waits.
        mean_batch: Requests per call.
        service_s: Measured seconds of a call (weighted to the recent); ``None`` before the first.
        broken: The breaker is open: requests fail at once.
        max_batch: Most requests of a call.
    """

    calls: int
    items: int
    refused: int
    expired: int
    cancelled: int
    failed: int
    depth: int
    oldest_age_s: float
    mean_batch: float
    service_s: float | None
    broken: bool
    max_batch: int = 1


class Batcher(Generic[In, Out]):
    """Gives one engine to many sessions, one call at a time.

    Order: class first (asked anew for every batch, so a promoted guess moves up), earliest deadline within a
    class, then first come first served; a request that 8 calls have passed over leads a batch. All requests
    of a call are of one bucket. Requests that were cancelled, have expired or can't finish by their deadline
    at the measured service rate leave before the call.

    When ``run`` raises ``EngineFailed`` or ``MemoryError``, takes longer than ``timeout_s`` or returns
    another number of results than it got items, the whole batch and all that wait fail with ``EngineFailed``,
    and so does every request for the next ``cooldown_s``; then one request probes the engine, and those that
    come meanwhile wait for what it finds. Any other exception is taken for bad input: halves are run again
    until only the culprit gets the error (``ValueError`` and ``TypeError`` as ``BadRequest``, a ``VoiceError``
    as it is, others as ``EngineFailed`` for it alone).

    May serve one event loop after another, not two at once.

    Args:
        run: The engine call; runs in ``executor`` and gets 1 to ``max_batch`` items; result i belongs to item
            i. It must not change engine state when it raises.
        name: For logs and errors.
        executor: Where ``run`` runs; not closed by :meth:`close`.
        max_batch: Most items of a call.
        target_batch: Below this many the pump waits a little for more…
        max_wait_s: …but no longer than this after the oldest arrival, and never past a deadline.
        max_queue: Most requests that wait. When full, a request of a better class takes the place of the
            youngest of the worst class; any other is refused.
        bucket: Shape of an item; a call has one bucket.
        gate: Taken for each call, in the best class that waits.
        timeout_s: Longest call.
        cooldown_s: How long the breaker stays open, in loop time.
    """

    def __init__(
        self,
        run: Callable[[Sequence[In]], Sequence[Out]],
        *,
        name: str,
        executor: Executor,
        max_batch: int,
        target_batch: int = 1,
        max_wait_s: float = 0.0,
        max_queue: int = 256,
        bucket: Callable[[In], Hashable] | None = None,
        gate: ComputeGate | None = None,
        timeout_s: float = 30.0,
        cooldown_s: float = 1.0,
    ) -> None:
        if max_batch < 1 or max_queue < 1:
            raise ValueError(f"max_batch and max_queue must be at least 1, not {max_batch} and {max_queue}")
        self.name = name
        self._engine = EngineCall(run, executor, timeout_s)
        self._target = min(target_batch, max_batch, max_queue)
        self._max_wait_s = max_wait_s
        self._bucket = bucket
        self._gate = gate
        self._rates = ServiceRates()
        self._breaker = Breaker(cooldown_s)
        self._queue: BatchQueue[In, Out] = BatchQueue(name, max_batch, max_queue, self._rates)
        self._parts: list[Batch[In, Out]] = []  # halves of a batch that failed, to be run again
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pump: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._busy_until = 0.0  # when the call that runs should end
        self._strikes = 0
        self._works = False  # some input of the batch that is being bisected had a result
        self._numbers = self._called_items = self._items = 0
        self._refused = self._expired = self._cancelled = self._failed = 0

    # ------------------------------------------------------------ asking

    async def submit(self, item: In, scope: Scope) -> Out:
        """The result for ``item``. Class and deadline are the scope's; leaves the queue when it is cancelled.

        Raises:
            ScopeCancelled, DeadlineExceeded: The scope ended first.
            Overloaded: Refused before it ran.
            EngineFailed: The engine failed, or is cooling down after a failure.
            BadRequest: The input was wrong, or the batcher is closed. Other errors of ``run`` as raised.
        """
        scope.check()
        answer: asyncio.Future[Out] = asyncio.get_running_loop().create_future()

        def settle(result: Out | VoiceError) -> None:
            if answer.done():
                return
            if isinstance(result, VoiceError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        request = self._request(item, scope, scope.deadline, settle)
        if (refusal := self._admit(request)) is not None:
            raise refusal
        unhook = scope.on_cancel(lambda reason: self._scope_ended(request, reason))
        try:
            return await answer
        finally:
            unhook()
            self._remove(request)
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, even where a cancelled task never looks at it

    def post(
        self,
        item: In,
        on_done: Callable[[Out | VoiceError], None],
        *,
        priority: Priority = Priority.COMMITTED,
        deadline: float | None = None,
    ) -> Callable[[], None]:
        """Ask without a future or a task: for work that comes many times a second.

        ``on_done`` is called on the event loop exactly once with the result or a :class:`VoiceError`, never
        before ``post`` returns, unless the returned remover is called first. It must be quick; one that
        raises is logged. ``deadline`` is in loop time.
        """
        request = self._request(item, priority, deadline, on_done)
        if (refusal := self._admit(request)) is not None:
            asyncio.get_running_loop().call_soon(self._answer, request, refusal)
        return lambda: self._remove(request)

    def _request(
        self,
        item: In,
        owner: Scope | Priority,
        deadline: float | None,
        on_done: Callable[[Out | VoiceError], None],
    ) -> Request[In, Out]:
        self._bind()
        self._numbers += 1
        now = asyncio.get_running_loop().time()
        return Request(self._numbers, item, None, owner, deadline, now, self._queue.calls, on_done)

    def _bind(self) -> None:
        """Adopt the running loop. What an ended loop left behind can't be answered any more and is
        dropped."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_running():
            raise BadRequest(f"{self.name} already serves an event loop in another thread")
        self._loop = loop
        self._queue.clear()
        self._parts.clear()
        self._pump = self._wake = None
        self._engine.forget_hang()
        self._busy_until = 0.0
        self._breaker.restart(loop.time())  # the old clock means nothing here
        self._rates.distrust()

    def _admit(self, request: Request[In, Out]) -> VoiceError | None:
        """Queue the request, or say why not."""
        now = request.arrived
        error = self._shape(request) or self._engine_refuses(now)
        error = error or self._queue.refusal(request, now, self._busy_until)
        if error is not None:
            self._count(error)
            return error
        if (displaced := self._queue.overflow()) is not None:
            full = self._queue.full()
            self._count(full)
            asyncio.get_running_loop().call_soon(self._answer, displaced, full)
        self._queue.add(request)
        self._breaker.start_probe(request)
        if self._pump is None:
            # an empty context: the pump works for all sessions, not for the one that woke it
            self._pump = asyncio.get_running_loop().create_task(
                self._serve(), name=f"batcher {self.name}", context=Context()
            )
        elif len(self._queue) >= self._target or request.deadline is not None:
            self._stir()
        return None

    def _shape(self, request: Request[In, Out]) -> VoiceError | None:
        if self._bucket is not None:
            try:
                request.bucket = self._bucket(request.item)
            except (VoiceError, ValueError, TypeError) as error:
                return input_error(self.name, error)
        return None

    def _engine_refuses(self, now: float) -> VoiceError | None:
        if self._closed:
            return BadRequest(f"{self.name} is closed")
        if self._engine.hangs:
            return EngineFailed(f"{self.name} hangs in a call for more than {self._engine.timeout_s:g} s")
        if self._breaker.probe is None and not self._breaker.lets_through(now):
            return EngineFailed(f"{self.name} failed a moment ago and is not asked before it was probed")
        return None

    def _scope_ended(self, request: Request[In, Out], reason: Reason) -> None:
        if request.on_done is None:
            return
        late = reason is Reason.DEADLINE
        self._expired += late
        self._cancelled += not late
        self._let_go(request)
        if late:
            self._answer(request, DeadlineExceeded(f"the deadline passed before {self.name} answered"))
        else:
            self._answer(request, ScopeCancelled(f"cancelled before {self.name} answered: {reason}"))

    def _remove(self, request: Request[In, Out]) -> None:
        """Nobody wants the answer any more."""
        if request.on_done is not None:
            request.on_done = None
            self._cancelled += 1
            self._let_go(request)

    def _let_go(self, request: Request[In, Out]) -> None:
        self._queue.remove(request)
        self._breaker.drop_probe(request)

    # ------------------------------------------------------------ the pump

    async def _serve(self) -> None:
        """Runs while anything waits."""
        me = asyncio.current_task()
        try:
            while self._parts or self._queue:
                if not self._parts:
                    await self._gather()
                async with self._slot():
                    if batch := self._next_batch():
                        self._parts += await self._call(batch)  # breadth first: what works shows early
        except asyncio.CancelledError:
            if self._pump is me:
                self._fail_all(lambda: ScopeCancelled(f"the event loop of {self.name} is ending"))
            raise
        finally:
            if self._pump is me:
                self._pump = None

    async def _gather(self) -> None:
        """Below the target, wait a little for more."""
        loop = asyncio.get_running_loop()
        while self._queue and len(self._queue) < self._target:
            until = self._queue.wait_until(self._max_wait_s, loop.time())
            if until <= loop.time():
                return
            self._wake = loop.create_future()
            timer = loop.call_at(until, self._stir)
            try:
                await self._wake
            finally:
                timer.cancel()
                self._wake = None

    def _stir(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _slot(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._gate is None else self._gate.slot(self._best_class)

    def _best_class(self) -> Priority:
        """Asked by the gate whenever a slot comes free: better requests may have come meanwhile."""
        best = self._queue.best_class()
        return min([best, *(r.priority for part in self._parts for r in part)])

    def _next_batch(self) -> Batch[In, Out]:
        """What goes into the next call. The hopeless leave with their errors."""
        now = asyncio.get_running_loop().time()
        if not self._parts:
            self._works = False
            self._refuse(self._queue.take_hopeless(now))
            return self._queue.take_batch(now)
        part = self._parts.pop(0)
        self._refuse(self._queue.hopeless(part, now))
        return [request for request in part if request.on_done is not None]

    def _refuse(self, refused: Iterable[tuple[Request[In, Out], VoiceError]]) -> None:
        for request, error in refused:
            if request.on_done is not None:
                self._count(error)
                self._breaker.drop_probe(request)
                self._answer(request, error)

    # ------------------------------------------------------------ one call

    async def _call(self, batch: Batch[In, Out]) -> list[Batch[In, Out]]:
        """Run the engine and answer everyone. Returns the halves to run again when some input was bad."""
        loop = asyncio.get_running_loop()
        began, bucket = loop.time(), batch[0].bucket
        self._queue.calls += 1
        self._called_items += len(batch)
        self._busy_until = began + self._rates.seconds(bucket, len(batch), began)
        try:
            outcome = await self._engine.outcome([request.item for request in batch])
        except asyncio.CancelledError:
            self._parts.insert(0, batch)  # the pump answers them
            raise
        finally:
            self._busy_until = 0.0
        if isinstance(outcome, BaseException):
            return self._after_failure(batch, outcome)
        self._rates.add(bucket, len(batch), loop.time() - began, loop.time())
        self._breaker.succeeded()
        self._strikes = 0
        self._works = True
        for request, result in zip(batch, outcome, strict=True):
            self._items += request.on_done is not None
            self._answer(request, result)
        return []

    def _after_failure(self, batch: Batch[In, Out], failure: BaseException) -> list[Batch[In, Out]]:
        if is_engine_fault(failure):
            return self._trip(batch, failure)
        if len(batch) > 1:
            middle = len(batch) // 2
            return [batch[:middle], batch[middle:]]
        if is_input_fault(failure):
            self._breaker.succeeded()  # it works: it could tell what is wrong
            self._strikes = 0
        else:
            log.warning("%s failed on one input", self.name, exc_info=failure)
            self._strikes += not self._works
            if self._strikes >= STRIKES or self._breaker.is_open:
                return self._trip(batch, failure)
        self._failed += batch[0].on_done is not None
        self._answer(batch[0], input_error(self.name, failure))
        return []

    def _trip(self, batch: Batch[In, Out], failure: BaseException) -> list[Batch[In, Out]]:
        """The engine failed: everyone is told now, so that each can turn to a fallback."""
        log.error("%s failed: %r", self.name, failure, exc_info=failure)
        self._breaker.failed(asyncio.get_running_loop().time())
        self._strikes = 0
        self._parts.insert(0, batch)
        self._fail_all(lambda: engine_error(self.name, failure))
        return []

    def _fail_all(self, error: Callable[[], VoiceError]) -> None:
        everyone = [request for part in self._parts for request in part] + self._queue.clear()
        self._parts.clear()
        self._refuse((request, error()) for request in everyone)

    def _answer(self, request: Request[In, Out], result: Out | VoiceError) -> None:
        on_done, request.on_done = request.on_done, None
        if on_done is None:
            return
        try:
            on_done(result)
        except Exception:
            log.exception("a callback of %s failed", self.name)

    def _count(self, error: VoiceError) -> None:
        match error:
            case Overloaded():
                self._refused += 1
            case DeadlineExceeded():
                self._expired += 1
            case ScopeCancelled():
                self._cancelled += 1
            case _:
                self._failed += 1

    # ------------------------------------------------------------ owner

    @property
    def stats(self) -> BatcherStats:
        """Counts since the start, and the queue now."""
        oldest, calls = self._queue.oldest, self._queue.calls
        return BatcherStats(
            calls=calls,
            items=self._items,
            refused=self._refused,
            expired=self._expired,
            cancelled=self._cancelled,
            failed=self._failed,
            depth=len(self._queue),
            oldest_age_s=self._loop.time() - oldest.arrived if oldest and self._loop else 0.0,
            mean_batch=self._called_items / calls if calls else 0.0,
            service_s=self._rates.mean_s,
            broken=self._breaker.is_open,
            max_batch=self._queue.max_batch,
        )

    def close(self) -> None:
        """Take no more work. What waits fails at once; a call that runs still answers."""
        self._closed = True
        waiting = self._queue.clear()
        self._refuse((r, EngineFailed(f"{self.name} was closed", retryable=False)) for r in waiting)
        self._stir()

"""How do native calls, which hold a thread each, meet the event loop? Slots to run in, and chunks handed
over.

Locks are held for a few instructions only, so the event loop never waits for a thread.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from voice.errors import DeadlineExceeded, EngineFailed, Overloaded
from voice.scope import Reason, Scope

NativeCall: TypeAlias = Callable[[Callable[[str], bool]], object]
"""Runs to its end in a thread; calls its argument with each chunk and stops when that returns ``True``."""

LOOK_S = 0.25
"""How often a thread that waits for room looks whether its event loop is still there."""


@dataclass(slots=True, eq=False)
class _Waiter:
    scope: Scope
    number: int
    loop: asyncio.AbstractEventLoop
    granted: asyncio.Future[bool]

    def give_up(self, _: Reason) -> None:
        _settle(self.granted, False)


class Slots:
    """Places to run in, given out by class and then by arrival, with a bounded queue before them.

    Serves any number of event loops; a place may be given back from any thread.

    Args:
        slots: How many may run at once.
        max_waiting: How many may wait.
        max_wait_s: How long one may wait.
    """

    def __init__(self, slots: int, *, max_waiting: int = 32, max_wait_s: float = 30.0) -> None:
        self.slots = slots
        self.max_waiting = max_waiting
        self.max_wait_s = max_wait_s
        self._lock = threading.Lock()
        self._free = slots
        self._waiting: list[_Waiter] = []
        self._numbers = itertools.count()

    @property
    def free(self) -> int:
        """Places free now."""
        return self._free

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    async def take(self, scope: Scope) -> None:
        """Take a place; whoever takes it must see to :meth:`give_back`.

        Raises:
            Overloaded: Too many wait already, or the wait got too long.
            DeadlineExceeded: The scope's deadline passed.
            ScopeCancelled: The scope was cancelled.
        """
        scope.check()
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            if len(self._waiting) >= self.max_waiting:
                raise Overloaded(
                    f"all {self.slots} slots of the model are busy and {self.max_waiting} requests wait"
                )
            waiter = _Waiter(scope, next(self._numbers), loop, loop.create_future())
            self._waiting.append(waiter)
        forget = scope.on_cancel(waiter.give_up)
        try:
            if not await self._granted(waiter):
                scope.check()
        except BaseException:
            self._leave(waiter)
            raise
        finally:
            forget()

    async def _granted(self, waiter: _Waiter) -> bool:
        remaining = waiter.scope.remaining()
        wait_s = self.max_wait_s if remaining is None else min(remaining, self.max_wait_s)
        try:
            async with asyncio.timeout(wait_s):
                return await waiter.granted
        except TimeoutError:
            waiter.scope.check()
            if waiter.scope.remaining() == 0:
                raise DeadlineExceeded("the deadline passed while waiting for a slot of the model") from None
            raise Overloaded(f"no slot of the model came free within {wait_s:g} s") from None

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        done = waiter.granted.done() and not waiter.granted.cancelled()
        if done and waiter.granted.result():
            self.give_back()  # it came in the same moment as the cancellation

    def give_back(self) -> None:
        """A place is free again: the next in line gets it."""
        with self._lock:
            while self._waiting:
                waiter = min(self._waiting, key=lambda w: (w.scope.priority, w.number))
                self._waiting.remove(waiter)
                try:
                    waiter.loop.call_soon_threadsafe(self._grant, waiter)
                except RuntimeError:  # its loop is closed
                    continue
                return
            self._free += 1

    def _grant(self, waiter: _Waiter) -> None:
        if not _settle(waiter.granted, True):
            self.give_back()


def _settle(future: asyncio.Future[bool], value: bool) -> bool:
    if future.done():
        return False
    future.set_result(value)
    return True


class Handover:
    """Chunks on their way from a native call in a thread to one consumer on the event loop. Bounded: when the
    consumer is slow, the call is held inside its callback.

    Made on the event loop that consumes.

    Args:
        on_free: Called once, from any thread, when the native call no longer runs or never will.
        bound: Most chunks that wait for the consumer.
    """

    def __init__(self, on_free: Callable[[], None], *, bound: int = 256) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_free = on_free
        self._bound = bound
        self._changed = threading.Condition()
        self._chunks: deque[str] = deque(maxlen=bound)
        self._begun = False
        self._ended = False
        self._stopped = False
        self._error: Exception | None = None
        self._news: asyncio.Future[None] | None = None

    # ---- in the thread

    def run(self, call: NativeCall) -> None:
        """Make the native call; returns when it has ended. Its failure is kept for the consumer."""
        with self._changed:
            if self._stopped:
                return
            self._begun = True
        try:
            call(self._put)
        except (RuntimeError, ValueError) as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
            self._on_free()
            self._tell()

    def _put(self, chunk: str) -> bool:
        """Hand over one chunk, waiting for room; ``True`` asks the call to stop."""
        with self._changed:
            while len(self._chunks) >= self._bound and not self._stopped:
                if self._loop.is_closed():
                    return True
                self._changed.wait(LOOK_S)
            if self._stopped:
                return True
            self._chunks.append(chunk)
        return not self._tell()

    def _tell(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: nobody is there to take anything
            return False
        return True

    # ---- on the loop

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def get(self, timeout_s: float) -> str | None:
        """The next chunk; ``None`` when the call has ended and all are taken.

        Raises:
            EngineFailed: The call failed, or :meth:`stop` was called.
            TimeoutError: Nothing came.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                with self._changed:
                    if self._stopped:
                        raise EngineFailed("the generation was stopped", retryable=False)
                    if self._chunks:
                        self._changed.notify()
                        return self._chunks.popleft()
                    if self._ended:
                        break
                    self._news = self._loop.create_future()
                await self._news
        if self._error is not None:
            raise EngineFailed(f"the model's engine refused the request: {self._error}", retryable=False)
        return None

    def stop(self, _: Reason | None = None) -> None:
        """Want nothing more: the call is told so at its next chunk. From any thread, any number of times."""
        with self._changed:
            if self._stopped:
                return
            self._stopped = True
            self._chunks.clear()
            self._changed.notify_all()
            never_runs = not self._begun
        if never_runs:
            self._on_free()
        self._tell()

"""Which request runs in which slot of a native engine, and which waits?

A slot keeps the prompt it has read last, so a session should come back to its own. Locks are held for a few
instructions only, so the event loop never waits for a thread.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import dataclass

from voice.errors import DeadlineExceeded, Overloaded
from voice.scope import Reason, Scope

OWN_SLOT_WAIT_S = 0.5
"""How long to wait for the session's own slot while the call in it is being stopped. Reading a conversation anew in
another slot takes seconds on a small machine; a stopped call leaves after its next token or prefill batch."""


@dataclass(slots=True, eq=False)
class _Waiter:
    scope: Scope
    arrived: int
    loop: asyncio.AbstractEventLoop
    granted: asyncio.Future[int | None]  # the slot's number; ``None``: the scope was cancelled
    wants: int | None  # the session's own slot, which is about to come free

    def give_up(self, _: Reason) -> None:
        if not self.granted.done():
            self.granted.set_result(None)


class Slots:
    """Numbered places to run in, given out by class and then by arrival, with a bounded queue before them.

    A session gets the place it had last, or else the one that was left longest ago. Serves any number of event
    loops; a place may be given back from any thread.

    Args:
        count: How many may run at once.
        max_waiting: How many may wait.
        max_wait_s: How long one may wait.
    """

    def __init__(self, count: int, *, max_waiting: int = 32, max_wait_s: float = 30.0) -> None:
        self.count = count
        self.max_waiting = max_waiting
        self.max_wait_s = max_wait_s
        self._lock = threading.Lock()
        self._free = set(range(count))
        self._leaving: set[int] = set()  # taken by calls that have been told to stop
        self._owners: list[str | None] = [None] * count
        self._left_at = [-1] * count  # ticks; the lowest was left longest ago
        self._ticks = itertools.count()
        self._waiting: list[_Waiter] = []

    @property
    def free(self) -> int:
        """Places free now."""
        return len(self._free)

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    async def take(self, scope: Scope) -> int:
        """Take a place and get its number; whoever takes it must see to :meth:`give_back`.

        Raises:
            Overloaded: Too many wait already, or the wait got too long.
            DeadlineExceeded: The scope's deadline passed.
            ScopeCancelled: The scope was cancelled.
        """
        scope.check()
        loop = asyncio.get_running_loop()
        session = scope.identity.session
        with self._lock:
            own = next((n for n in sorted(self._leaving) if self._owners[n] == session), None)
            if self._free and own is None:
                return self._pick(session)
            if len(self._waiting) >= self.max_waiting:
                raise Overloaded(
                    f"all {self.count} slots of the model are busy and {self.max_waiting} requests wait already"
                )
            waiter = _Waiter(scope, next(self._ticks), loop, loop.create_future(), own)
            self._waiting.append(waiter)
        forget = scope.on_cancel(waiter.give_up)
        try:
            number = await self._granted(waiter)
        except BaseException:
            self._withdraw(waiter)
            raise
        finally:
            forget()
        if number is None:
            self._withdraw(waiter)
            scope.check()
            raise AssertionError("a wait is given up only when its scope is cancelled")
        return number

    async def _granted(self, waiter: _Waiter) -> int | None:
        remaining = waiter.scope.remaining()
        wait_s = self.max_wait_s if remaining is None else min(remaining, self.max_wait_s)
        try:
            async with asyncio.timeout(wait_s):
                if waiter.wants is not None:
                    await asyncio.wait({waiter.granted}, timeout=OWN_SLOT_WAIT_S)
                    with self._lock:
                        waiter.wants = None
                        self._serve()
                return await waiter.granted
        except TimeoutError:
            waiter.scope.check()
            if waiter.scope.remaining() == 0:
                raise DeadlineExceeded("the deadline passed while waiting for a slot of the model") from None
            raise Overloaded(f"no slot of the model came free within {wait_s:g} s") from None

    def _withdraw(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        done = waiter.granted.done() and not waiter.granted.cancelled()
        if done and (number := waiter.granted.result()) is not None:
            self.give_back(number)  # it came in the same moment as the cancellation

    def leaving(self, number: int) -> None:
        """The call in this place was told to stop: :meth:`give_back` will follow soon."""
        with self._lock:
            self._leaving.add(number)

    def give_back(self, number: int) -> None:
        """The place is free again: the next in line gets it."""
        with self._lock:
            self._leaving.discard(number)
            self._free.add(number)
            self._left_at[number] = next(self._ticks)
            self._serve()

    def _serve(self) -> None:
        """Give free places to who waits, but to none whose own place is about to come free."""
        while self._free:
            ready = [w for w in self._waiting if w.wants in self._free or w.wants not in self._leaving]
            if not ready:
                return
            waiter = min(ready, key=lambda w: (w.scope.priority, w.arrived))
            self._waiting.remove(waiter)
            if waiter.loop.is_closed():
                continue
            number = self._pick(waiter.scope.identity.session)
            try:
                waiter.loop.call_soon_threadsafe(self._grant, waiter, number)
            except RuntimeError:  # its loop was closed just now
                self._free.add(number)

    def _pick(self, session: str) -> int:
        number = min(self._free, key=lambda n: (self._owners[n] != session, self._left_at[n], n))
        self._free.remove(number)
        self._owners[number] = session
        return number

    def _grant(self, waiter: _Waiter, number: int) -> None:
        if waiter.granted.done():
            self.give_back(number)
        else:
            waiter.granted.set_result(number)

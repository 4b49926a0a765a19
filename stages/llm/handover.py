"""How does a native call, which holds a thread, give its chunks to the event loop?

Locks are held for a few instructions only, so the event loop never waits for a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from voice.errors import EngineFailed
from voice.scope import Reason

NativeCall: TypeAlias = Callable[[Callable[[str], bool]], object]
"""Runs to its end in a thread; calls its argument with each chunk and stops when that returns ``True``."""

LOOK_S = 0.25
"""How often a thread that waits for room looks whether its event loop is still there."""


class Handover:
    """Chunks on their way from a native call in a thread to one consumer on the event loop. Bounded: when the
    consumer is slow, the call is held inside its callback.

    Made on the event loop that consumes.

    Args:
        on_free: Called once, from any thread, when the native call no longer runs or never will.
        on_stopping: Called once, before ``on_free``, when a call that runs has been told to stop.
        bound: Most chunks that wait for the consumer.
    """

    def __init__(
        self,
        on_free: Callable[[], None],
        *,
        on_stopping: Callable[[], None] = lambda: None,
        bound: int = 256,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_free = on_free
        self._on_stopping = on_stopping
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
            if self._begun and not self._ended:
                self._on_stopping()  # under the lock: the thread's on_free can't come first
        if never_runs:
            self._on_free()
        self._tell()

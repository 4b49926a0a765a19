"""How long may a request to an engine outside this process go on waiting, and what ends the wait?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from voice.errors import DeadlineExceeded, EngineFailed
from voice.scope import Scope

T = TypeVar("T")


class Patience:
    """How long one request may go on waiting: the engine's own limits, and never past the scope's end.

    Args:
        scope: Whose request it is.
        source: The engine, as errors name it.
        timeout_s: See :meth:`extend`.
        failing: See :meth:`extend`.

    Attributes:
        expired: A wait ended because the server's time was over.
    """

    def __init__(self, scope: Scope, source: str, timeout_s: float, failing: str) -> None:
        self.scope = scope
        self._source = source
        self.expired = False
        self._waiting: asyncio.Timeout | None = None
        self.extend(timeout_s, failing)

    def extend(self, timeout_s: float, failing: str) -> None:
        """From now on ``timeout_s`` are left; ``failing`` says what the server did when they are over."""
        self._ends = asyncio.get_running_loop().time() + timeout_s
        self._failing = f"{failing} within {timeout_s:g} s"

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the server's clock: whoever takes the answer holds it back."""
        began = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._ends += asyncio.get_running_loop().time() - began

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Let a cancel of the scope end the wait under way."""
        forget = self.scope.on_cancel(lambda _: self._stop_waiting())
        try:
            yield
        finally:
            forget()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait for one thing.

        Raises:
            EngineFailed: The server's time is over.
            DeadlineExceeded: The scope's time is over.
            ScopeCancelled: The scope was cancelled.
        """
        remaining = self.scope.remaining()
        now = asyncio.get_running_loop().time()
        ends = self._ends if remaining is None else min(self._ends, now + remaining)
        if self.scope.cancelled:
            ends = now
        try:
            async with asyncio.timeout_at(ends) as self._waiting:
                return await awaitable
        except TimeoutError:
            self.scope.check()
            if self.scope.remaining() == 0:
                raise DeadlineExceeded(f"the deadline passed while waiting for {self._source}") from None
            self.expired = True
            raise EngineFailed(f"{self._source} {self._failing}") from None
        finally:
            self._waiting = None

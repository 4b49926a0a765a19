"""Outbox: how a session's events reach its owner, by callback and by iterator, bounded."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable

from voice.errors import BadRequest
from voice.events import SessionEnded, SessionEvent

log = logging.getLogger("voice")


class Outbox:
    """Events on their way to the owner. Nothing is ever dropped: an owner that takes none overflows it.

    Args:
        bound: Most events that may wait for the iterator.
        on_event: Called with each event; one that raises is logged.
        on_overflow: Called once when more than ``bound`` wait.
    """

    def __init__(
        self,
        bound: int,
        on_event: Callable[[SessionEvent], None] | None,
        on_overflow: Callable[[], None],
    ) -> None:
        self._bound, self._on_event, self._on_overflow = bound, on_event, on_overflow
        self._waiting: deque[SessionEvent] | None = None  # bounded by the overflow; None: nobody iterates
        self._news = asyncio.Event()
        self._ended = False

    def put(self, event: SessionEvent) -> None:
        """Deliver an event; nothing follows ``SessionEnded``."""
        if self._ended:
            return
        self._ended = isinstance(event, SessionEnded)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                log.exception("the event callback failed on %s", type(event).__name__)
        if self._waiting is not None:
            self._waiting.append(event)
            self._news.set()
            if len(self._waiting) > self._bound and not self._ended:
                self._on_overflow()

    async def take(self) -> AsyncIterator[SessionEvent]:
        """The events from now on; one consumer at a time. Ends after ``SessionEnded``.

        Raises:
            BadRequest: Another consumer takes them already.
        """
        if self._waiting is not None:
            raise BadRequest("the session's events are being taken already")
        self._waiting = deque()
        try:
            while True:
                while self._waiting:
                    yield self._waiting.popleft()
                if self._ended:
                    return
                self._news.clear()
                await self._news.wait()
        finally:
            self._waiting = None

"""What waits to be written to one client: events, which are never dropped, and audio, which may be."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

MAX_BYTES = 8 * 2**20
"""Events that wait for a client: one that takes none has this much of them, then it is given up."""


class Outgoing:
    """One client's queue, in order. Audio is bounded by its sender, which waits for :meth:`room`.

    Args:
        on_overflow: Called once when more events wait than fit: the client is to be given up.
        most_bytes: How much fits.
    """

    def __init__(self, on_overflow: Callable[[], None], most_bytes: int = MAX_BYTES) -> None:
        self._most, self._on_overflow = most_bytes, on_overflow
        self._waiting: deque[tuple[str, float]] = (
            deque()
        )  # bounded: events by most_bytes, audio by its sender
        self._bytes = 0
        self._audio_s = 0.0
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._writing = False
        self._closed = False

    @property
    def audio_s(self) -> float:
        """Seconds of audio that wait."""
        return self._audio_s

    def put(self, text: str) -> None:
        """An event."""
        if self._closed:
            return
        self._bytes += len(text)
        self._waiting.append((text, 0.0))
        self._news.set()
        if self._bytes > self._most:
            self.close()
            self._on_overflow()

    @contextmanager
    def in_front(self) -> Iterator[None]:
        """What is put meanwhile comes before what waits already."""
        waiting = list(self._waiting)
        self._waiting.clear()
        try:
            yield
        finally:
            if not self._closed:
                self._waiting.extend(waiting)

    def put_audio(self, text: str, seconds: float) -> None:
        """An event with audio."""
        if not self._closed:
            self._audio_s += seconds
            self._waiting.append((text, seconds))
            self._news.set()

    def drop_audio(self) -> None:
        """Forget the audio that waits; the events stay, in order."""
        kept = [item for item in self._waiting if not item[1]]
        self._waiting.clear()
        self._waiting.extend(kept)
        self._audio_s = 0.0
        self._taken.set()

    async def room(self, most_s: float) -> None:
        """Wait until no more than ``most_s`` of audio wait."""
        while self._audio_s > most_s and not self._closed:
            self._taken.clear()
            await self._taken.wait()

    async def write(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Write what comes until cancelled or closed. ``send`` waits while the peer does not read."""
        while not self._closed:
            while self._waiting:
                text, seconds = self._waiting.popleft()
                if seconds:
                    self._audio_s = max(0.0, self._audio_s - seconds)
                else:
                    self._bytes -= len(text)
                self._writing = True
                await send(text)
                self._writing = False
                self._taken.set()
            self._news.clear()
            await self._news.wait()

    async def flush(self, timeout_s: float) -> None:
        """Wait until all is written, at most ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._waiting or self._writing:
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Nothing more is written."""
        self._closed = True
        self._waiting.clear()
        self._news.set()
        self._taken.set()

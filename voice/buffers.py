"""Bounded buffers between stages. Each knows its depth and age, how long its users waited and what it
dropped."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from voice.errors import BadRequest, Overloaded
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.scope import Scope

T = TypeVar("T")


def _one(_: object) -> float:
    return 1.0


@dataclass(frozen=True, slots=True)
class BufferStats:
    """A buffer at one moment.

    Attributes:
        depth: What it holds, in the buffer's unit.
        items: How many items that is.
        oldest_age_s: How long the oldest has been in it, in seconds; 0 when empty.
        put_wait_s: Seconds that producers waited for room, so far.
        get_wait_s: Seconds that the consumer waited for an item, so far.
        drops: Items that were thrown away.
    """

    depth: float
    items: int
    oldest_age_s: float
    put_wait_s: float
    get_wait_s: float
    drops: int


class _Bell:
    """Wakes whoever waits; they look again for themselves. Adds up the time they waited."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._sleepers: set[asyncio.Future[None]] = set()  # as bounded as the tasks that wait

    def ring(self) -> None:
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        since, sleeper = loop.time(), loop.create_future()
        self._sleepers.add(sleeper)
        try:
            await sleeper
        finally:
            self._sleepers.discard(sleeper)
            self.waited_s += loop.time() - since


class StageBuffer(Generic[T]):
    """Items on their way from producers to one consumer, an ``async for``. When full it holds the producers
    back.

    Items bound by ``size``: characters, seconds of audio, items. One that is larger than ``bound`` by itself
    is taken when the buffer is empty. When the scope is cancelled the content is dropped and both sides wake
    with :class:`~voice.errors.ScopeCancelled` (or ``DeadlineExceeded``).

    Args:
        bound: Most it holds, in the unit of ``size``.
        size: What an item measures; one by default.
        scope: Whose work goes through it.
    """

    def __init__(
        self, bound: float, size: Callable[[T], float] = _one, *, scope: Scope | None = None
    ) -> None:
        if bound <= 0:
            raise ValueError(f"a buffer's bound must be positive, not {bound}")
        self.bound = bound
        self._size = size
        self._scope = scope
        self._items: deque[tuple[T, float, float]] = deque()  # item, size, time; bounded by `bound`
        self._depth = 0.0
        self._drops = 0
        self._closed = False
        self._error: BaseException | None = None
        self._consumed = False
        self._room, self._news = _Bell(), _Bell()
        self._unhook = None if scope is None else scope.on_cancel(lambda _: self._cancelled())

    async def put(self, item: T) -> None:
        """Add an item; waits while it doesn't fit.

        Raises:
            ScopeCancelled, DeadlineExceeded: The scope ended.
            BadRequest: The buffer is closed.
        """
        size = self._size(item)
        self._check_open()
        while not self._fits(size):
            await self._room.wait()
            self._check_open()
        self._append(item, size)

    def put_nowait(self, item: T) -> None:
        """Add an item now.

        Raises:
            Overloaded: It doesn't fit.
            ScopeCancelled, DeadlineExceeded, BadRequest: As for :meth:`put`.
        """
        size = self._size(item)
        self._check_open()
        if not self._fits(size):
            held = f"the buffer holds {self._depth:g} of {self.bound:g}"
            raise Overloaded(f"{held}; there is no room for {size:g}")
        self._append(item, size)

    def force(self, item: T) -> None:
        """Add an item now, full or not: for the rare one that must not wait and is small by its nature.

        Raises:
            ScopeCancelled, DeadlineExceeded, BadRequest: As for :meth:`put`.
        """
        self._check_open()
        self._append(item, self._size(item))

    def _fits(self, size: float) -> bool:
        return not self._items or self._depth + size <= self.bound

    def _append(self, item: T, size: float) -> None:
        self._items.append((item, size, asyncio.get_running_loop().time()))
        self._depth += size
        self._news.ring()

    def _check_open(self) -> None:
        if self._scope is not None:
            self._scope.check()
        if self._closed:
            raise BadRequest("the buffer is closed: nothing can be put into it")

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more will come: the consumer gets what is in it, then the end, or ``error``."""
        if self._closed:
            return
        self._closed, self._error = True, error
        self._room.ring()
        self._news.ring()
        if self._unhook is not None:
            self._unhook()

    def clear(self) -> int:
        """Drop what is in it, now; returns how many items. Producers that waited go on."""
        dropped = len(self._items)
        self._items.clear()
        self._depth = 0.0
        self._drops += dropped
        self._room.ring()
        return dropped

    def _cancelled(self) -> None:
        self.clear()
        self._news.ring()

    def __aiter__(self) -> StageBuffer[T]:
        return self

    async def __anext__(self) -> T:
        if self._consumed:
            raise BadRequest("a stage buffer has one consumer, and another is waiting already")
        self._consumed = True
        try:
            while True:
                if self._scope is not None:
                    self._scope.check()
                if self._items:
                    return self._take()
                if self._closed:
                    if self._error is not None:
                        raise self._error
                    raise StopAsyncIteration
                await self._news.wait()
        finally:
            self._consumed = False

    def _take(self) -> T:
        item, size, _ = self._items.popleft()
        self._depth = self._depth - size if self._items else 0.0  # no rounding is left over
        self._room.ring()
        return item

    @property
    def depth(self) -> float:
        """What it holds, in the unit of ``size``."""
        return self._depth

    @property
    def stats(self) -> BufferStats:
        """What it holds and has done."""
        age_s = asyncio.get_running_loop().time() - self._items[0][2] if self._items else 0.0
        return BufferStats(
            self._depth, len(self._items), age_s, self._room.waited_s, self._news.waited_s, self._drops
        )


class Latest(Generic[T]):
    """Keeps only the newest item: for values that the next one replaces, such as partial transcripts.

    One consumer, an ``async for`` that sees each item at most once, and always the newest in the end. When
    the scope is cancelled the consumer wakes with :class:`~voice.errors.ScopeCancelled` (or
    ``DeadlineExceeded``).
    """

    def __init__(self, *, scope: Scope | None = None) -> None:
        self._buffer: StageBuffer[T] = StageBuffer(1, scope=scope)

    def put(self, item: T) -> None:
        """Replace what has not been taken yet. Raises as :meth:`StageBuffer.put` does, never waits."""
        self._buffer._check_open()
        self._buffer.clear()
        self._buffer.put_nowait(item)

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more will come: the consumer gets the last item, then the end, or ``error``."""
        self._buffer.close(error)

    def clear(self) -> int:
        """Drop the item, if there is one; returns how many that were."""
        return self._buffer.clear()

    def __aiter__(self) -> StageBuffer[T]:
        return self._buffer

    async def __anext__(self) -> T:
        return await anext(self._buffer)

    @property
    def stats(self) -> BufferStats:
        """What it holds; ``drops`` counts the replaced items."""
        return self._buffer.stats


class SampleLog:
    """Audio by absolute sample index, in blocks of 1 s that are made when needed and let go when read.

    Args:
        max_s: Most it holds, in seconds. May be changed with :meth:`limit`.
        rate_hz: Samples in a second.
        overwrite: When full, forget the oldest (a microphone's pre-roll) instead of taking no more (an
            utterance).
        start: Index of the first sample.
    """

    def __init__(
        self, max_s: float, rate_hz: int = ASR_RATE_HZ, *, overwrite: bool = False, start: int = 0
    ) -> None:
        self.rate_hz = rate_hz
        self.start = start
        self.end = start
        self.dropped = 0
        self._blocks: dict[int, Pcm16] = {}
        self.limit(max_s, overwrite=overwrite)

    def __len__(self) -> int:
        return self.end - self.start

    def limit(self, max_s: float, *, overwrite: bool) -> None:
        """Change the bound. What is too much is forgotten, oldest first, if ``overwrite``; else it stays."""
        if max_s <= 0:
            raise ValueError(f"a log must hold more than {max_s} s")
        self.max_samples = max(1, round(max_s * self.rate_hz))
        self.overwrite = overwrite
        if overwrite:
            self._forget(self.end - self.max_samples)

    @property
    def full(self) -> bool:
        """No more is taken (never with ``overwrite``)."""
        return not self.overwrite and len(self) >= self.max_samples

    def append(self, pcm: Pcm16) -> int:
        """Add samples at ``end``; returns how many were taken: all, or what fitted when it is full."""
        if self.overwrite:
            skip = max(0, len(pcm) - self.max_samples)
            if skip:  # more than it can hold: the index still counts every sample
                self.dropped += len(self) + skip
                self._blocks.clear()
                self.start = self.end = self.end + skip
            self._write(pcm[skip:])
            self._forget(self.end - self.max_samples)
            return len(pcm)
        taken = max(0, min(len(pcm), self.max_samples - len(self)))
        self.dropped += len(pcm) - taken
        self._write(pcm[:taken])
        return taken

    def _write(self, pcm: Pcm16) -> None:
        done = 0
        while done < len(pcm):
            number, offset = divmod(self.end, self.rate_hz)
            block = self._blocks.get(number)
            if block is None:
                block = self._blocks[number] = np.empty(self.rate_hz, np.int16)
            part = pcm[done : done + self.rate_hz - offset]
            block[offset : offset + len(part)] = part
            done += len(part)
            self.end += len(part)

    def read(self, a: int, b: int) -> Pcm16:
        """A copy of the samples from index ``a`` up to, not including, ``b``.

        Raises:
            BadRequest: Not within ``start`` … ``end``.
        """
        if not self.start <= a <= b <= self.end:
            raise BadRequest(f"samples {a} to {b} are not in the log, which holds {self.start} to {self.end}")
        out = np.empty(b - a, np.int16)
        at = a
        while at < b:
            number, offset = divmod(at, self.rate_hz)
            count = min(b - at, self.rate_hz - offset)
            out[at - a : at - a + count] = self._blocks[number][offset : offset + count]
            at += count
        return out

    def drop_before(self, i: int) -> int:
        """Let go of all before index ``i`` (at most all there is); returns how many samples that were."""
        before = self.start
        self._let_go(i)
        return self.start - before

    def _forget(self, i: int) -> None:
        self.dropped += max(0, min(i, self.end) - self.start)
        self._let_go(i)

    def _let_go(self, i: int) -> None:
        old = self.start // self.rate_hz
        self.start = min(max(i, self.start), self.end)
        for number in range(old, self.start // self.rate_hz):
            self._blocks.pop(number, None)
        if self.start == self.end:
            self._blocks.clear()

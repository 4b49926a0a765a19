"""VirtualExecutor: work off the loop, done inline, whose result arrives after a stated virtual time."""

from __future__ import annotations

import asyncio
from asyncio.events import _set_running_loop
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from voice.testing.loop import VirtualLoop

T = TypeVar("T")

Cost: TypeAlias = float | tuple[float, float] | Callable[[Callable[..., Any], tuple[Any, ...]], float]
"""Virtual seconds of a call: always the same, drawn evenly between two bounds, or asked of
``cost(call, args)``."""


class VirtualExecutor:
    """An :class:`~voice.executor.Executor` for virtual time.

    A call runs inline, at the instant a thread would begin it and without a running loop; its result (or
    error) arrives when its cost has passed. Results that arrive at the same instant come in an order drawn
    from the run's seed, across all executors of the run.

    Args:
        cost_s: How long calls take; see :data:`Cost`.
        threads: How many calls are under way at once; the others wait in the order they came.
            ``None``: no limit.

    Attributes:
        calls: How many calls have begun.
        peak: The most that were under way at once.
    """

    def __init__(self, cost_s: Cost = 0.0, *, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1 or None, not {threads}")
        self.cost_s = cost_s
        self.threads = threads
        self.calls = 0
        self.peak = 0
        self.closed = False
        self._loop: VirtualLoop | None = None
        self._running = 0
        self._waiting: dict[asyncio.Future[Any], tuple[Callable[..., Any], tuple[Any, ...]]] = {}

    @property
    def running(self) -> int:
        """How many calls are under way now."""
        return self._running

    def run(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Start ``call(*args)``; see :class:`~voice.executor.Executor`.

        Raises:
            RuntimeError: The executor is closed, or no virtual loop runs.
        """
        loop = self._bind()
        if self.closed:
            raise RuntimeError("this executor is closed and takes no more calls")
        future: asyncio.Future[T] = loop.create_future()
        self._waiting[future] = (call, args)
        self._begin(loop)
        return future

    def close(self) -> None:
        """Take no more work: calls that wait are cancelled, those under way end by themselves."""
        self.closed = True
        waiting, self._waiting = list(self._waiting), {}
        for future in waiting:
            future.cancel()

    def _bind(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            raise RuntimeError("a VirtualExecutor needs run_virtual(); on a real loop use a ThreadExecutor")
        if loop is not self._loop:  # engines outlive runs: what the last run left under way is gone with it
            self._loop, self._running, self._waiting = loop, 0, {}
        return loop

    def _begin(self, loop: VirtualLoop) -> None:
        while self._waiting and (self.threads is None or self._running < self.threads):
            future = next(iter(self._waiting))
            call, args = self._waiting.pop(future)
            if future.cancelled():
                continue
            self._running += 1
            self.calls += 1
            self.peak = max(self.peak, self._running)
            cost_s = self._cost(loop, call, args)
            loop.arrive_at(loop.time() + cost_s, partial(self._end, loop, _outcome(future, call, args)))

    def _end(self, loop: VirtualLoop, deliver: Callable[[], None]) -> None:
        self._running -= 1
        deliver()
        self._begin(loop)

    def _cost(self, loop: VirtualLoop, call: Callable[..., Any], args: tuple[Any, ...]) -> float:
        if isinstance(self.cost_s, tuple):
            return loop.random.uniform(*self.cost_s)
        return self.cost_s(call, args) if callable(self.cost_s) else self.cost_s


def _outcome(
    future: asyncio.Future[Any], call: Callable[..., Any], args: tuple[Any, ...]
) -> Callable[[], None]:
    """Run the call, as a thread would: without a running loop. Returns what to do when its time has come."""
    loop = asyncio.get_running_loop()
    _set_running_loop(None)
    try:
        result = call(*args)
    except StopIteration as error:  # no future takes it
        return partial(_unless_done, future, future.set_exception, RuntimeError(repr(error)))
    except Exception as error:  # noqa: BLE001 - whatever a call raises belongs to who waits for it
        return partial(_unless_done, future, future.set_exception, error)
    finally:
        _set_running_loop(loop)
    return partial(_unless_done, future, future.set_result, result)


def _unless_done(future: asyncio.Future[Any], finish: Callable[[Any], None], outcome: Any) -> None:
    if not future.done():
        finish(outcome)

"""Executor: the one way to do work off the event loop, so that virtual time can stand in for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Executor(Protocol):
    """Runs blocking calls away from the event loop."""

    def run(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Start ``call(*args)``; the future fails with what it raises. Cancelling the future drops the result only:
        a native call runs to its end."""

    def close(self) -> None:
        """Take no more work. Calls that run are left to end by themselves."""


class ThreadExecutor:
    """A fixed number of daemon-like worker threads.

    Args:
        name: Shown as the threads' name.
        threads: How many calls may run at once.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self.name = name
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    def run(self, call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        register = getattr(loop, "thread_started", None)
        future = loop.run_in_executor(self._pool, _raising, call, *args)
        if register is not None:  # a virtual loop must not jump its clock while a real thread works
            register(future)
        return future

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _raising(call: Callable[..., T], *args: Any) -> T:
    """What ``call`` returns or raises. No future takes a ``StopIteration``: its waiter would wait for ever."""
    try:
        return call(*args)
    except StopIteration as error:
        raise RuntimeError("a call raised StopIteration") from error

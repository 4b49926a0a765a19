"""Watchdog: how much CPU time of the event loop's thread does each callback take, and which one is it?

CPU time of the thread, not wall time: what other processes and threads do doesn't count, what blocks the loop by
computing does. Garbage collection is done before and held off meanwhile: it belongs to no callback.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LIMIT_MS = 5.0
"""What a callback of the loop may take at most (DESIGN §8)."""
_KEPT = 20


class Call(NamedTuple):
    """A callback of the loop: its CPU time and what it ran."""

    cpu_ms: float
    what: str


@dataclass
class Watchdog:
    """What was seen: ``calls`` callbacks, of which ``slowest`` took longest (slowest first)."""

    calls: int = 0
    slowest: list[Call] = field(default_factory=list)

    @property
    def worst_ms(self) -> float:
        """CPU time of the slowest callback; 0 when none ran."""
        return self.slowest[0].cpu_ms if self.slowest else 0.0

    def report(self) -> str:
        """The slowest callbacks, a line each."""
        return "\n".join(f"{call.cpu_ms:8.2f} ms  {call.what}" for call in self.slowest)

    def _saw(self, cpu_ms: float, handle: Any, task_place: str) -> None:
        self.calls += 1
        if len(self.slowest) < _KEPT or cpu_ms > self.slowest[-1].cpu_ms:
            self.slowest.append(Call(cpu_ms, f"{_name(handle)} {task_place}".strip()))
            self.slowest.sort(reverse=True)
            del self.slowest[_KEPT:]


@contextmanager
def watch_callbacks() -> Iterator[Watchdog]:
    """Measure every callback that any event loop of this thread runs inside the block."""
    seen = Watchdog()
    run: Callable[[asyncio.Handle], None] = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        place = _place(handle)
        callback = getattr(handle, "_callback", None)
        began = time.thread_time()
        run(handle)
        seen._saw((time.thread_time() - began) * 1000.0, callback, place)

    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    setattr(asyncio.Handle, "_run", timed)  # noqa: B010 - the type checker knows it as a method
    try:
        yield seen
    finally:
        setattr(asyncio.Handle, "_run", run)  # noqa: B010
        if was_enabled:
            gc.enable()


def _place(handle: asyncio.Handle) -> str:
    """Where the task that the callback will resume stands, looked up before it moves on."""
    owner = getattr(getattr(handle, "_callback", None), "__self__", None)
    if not isinstance(owner, asyncio.Task):
        return ""
    coro: Any = owner.get_coro()
    place = ""
    while coro is not None:
        for kind in ("cr", "ag", "gi"):
            frame = getattr(coro, f"{kind}_frame", None)
            if frame is not None and "asyncio" not in frame.f_code.co_filename:
                place = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        links = (getattr(coro, link, None) for link in ("cr_await", "ag_await", "gi_yieldfrom"))
        coro = next((link for link in links if link is not None), None)
    return f"task {owner.get_name()} from {place}"


def _name(callback: Any) -> str:
    if isinstance(getattr(callback, "__self__", None), asyncio.Task):
        return "step of"
    return getattr(callback, "__qualname__", None) or repr(callback)[:120]

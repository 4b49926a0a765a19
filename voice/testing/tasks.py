"""Which tasks of a loop still run, in which order they were made, and at which line each waits."""

from __future__ import annotations

import asyncio
from typing import Any


class VirtualFuture(asyncio.Future[Any]):
    """A future that hashes by its number, for the same reason as :class:`VirtualTask`."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class VirtualTask(asyncio.Task[Any]):
    """A task that hashes by its number: even sets of tasks are walked in the same order in every run."""

    def __init__(self, number: int, *args: Any, **kwargs: Any) -> None:
        self.number = number
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """The tasks that are not done, a line each, with the innermost line at which each waits."""
    lines = [f"  {task.get_name()}: {_where(task)}" for task in pending_tasks(loop)]
    return "\n".join(lines[:50]) or "  (none)"


def pending_tasks(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """The tasks that are not done, in the order of their making."""
    tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
    return sorted(tasks, key=lambda task: getattr(task, "number", 0))


def _where(task: asyncio.Task[Any]) -> str:
    coro: Any = task.get_coro()
    name, place = getattr(coro, "__qualname__", repr(coro)), ""
    while coro is not None:
        for kind in ("cr", "ag", "gi"):
            if (frame := getattr(coro, f"{kind}_frame", None)) is not None:
                file = frame.f_code.co_filename.rsplit("/", 1)[-1]
                place = f" at {file}:{frame.f_lineno} in {frame.f_code.co_name}"
        links = (getattr(coro, link, None) for link in ("cr_await", "ag_await", "gi_yieldfrom"))
        coro = next((link for link in links if link is not None), None)
    return f"{name}{place}"

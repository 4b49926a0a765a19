"""``run_virtual``: one coroutine, run to its end in virtual time, with nothing left behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from voice.testing.loop import LeftOver, VirtualLoop, VirtualTimeError
from voice.testing.tasks import describe_tasks, pending_tasks

log = logging.getLogger("voice")
T = TypeVar("T")

TEARDOWN_S = 60.0
"""Virtual seconds that tasks get to unwind after a run's end."""


def run_virtual(
    coro: Coroutine[Any, Any, T],
    *,
    seed: int = 0,
    limit_s: float = 3600.0,
    strict: bool = True,
    allow_sockets: bool = False,
    thread_wait_s: float = 30.0,
) -> T:
    """Run a coroutine on a fresh :class:`VirtualLoop` and return what it returns.

    Args:
        coro: What to run.
        seed: Decides what is left to chance (execution times, the order of equal ones); named in failures.
        limit_s: Fail when virtual time passes this many seconds.
        strict: Fail when the coroutine ends well but leaves tasks that don't finish by themselves at that
            instant, or when a callback of the loop raised. ``False``: they are cancelled and forgotten.
        allow_sockets: Let sockets and child processes through (no longer deterministic).
        thread_wait_s: Real seconds without a result after which a working thread counts as hung.

    Raises:
        Deadlocked: Everything waits for something that can't come.
        TimeLimit: ``limit_s`` passed, or a task spins.
        LeftOver: See ``strict``.
        VirtualTimeError: A socket, an unknown thread or a hung thread.
    """
    loop = VirtualLoop(seed, limit_s, allow_sockets=allow_sockets, thread_wait_s=thread_wait_s)
    asyncio.set_event_loop(loop)
    try:
        try:
            result = loop.run_until_complete(coro)
            loop.run_until_complete(_settle(loop))
        except BaseException as error:
            error.add_note(f"virtual run: seed={seed}, t={loop.time():.3f} s")
            raise
        left = describe_tasks(loop) if pending_tasks(loop) else ""
    finally:
        try:
            _tear_down(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()
    if strict and left:
        raise LeftOver(f"the run (seed={seed}) ended and left tasks running:\n{left}")
    if strict and loop.callback_errors:
        raise LeftOver(f"a callback raised during the run (seed={seed})") from loop.callback_errors[0]
    return result


async def _settle(loop: VirtualLoop) -> None:
    """Let what can finish at this instant finish: tasks just cancelled, threads under way."""
    for _ in range(1000):
        await asyncio.sleep(0)
        if loop.threads:
            await asyncio.sleep(1e-6)  # returns when the threads are done: the clock stands still before
        elif not loop._ready:
            return


def _tear_down(loop: VirtualLoop) -> None:
    loop.limit_s = loop.time() + TEARDOWN_S
    loop._spins = 0
    try:
        if left := pending_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    except VirtualTimeError as error:
        log.warning("tasks of a virtual run did not stop when cancelled: %s", error)

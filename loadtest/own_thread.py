"""How does long work that has a loop of its own, or none, run beside this one, and end with the program? In a thread
that nobody waits for: those of :func:`asyncio.to_thread` are joined when the loop ends, however long they take.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_own_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work`` returns or raises. When this is cancelled, it goes on until the program ends, unheard."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(tell: Callable[[], None]) -> None:
        if not done.done():
            tell()

    def post(tell: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            loop.call_soon_threadsafe(settle, tell)

    def run() -> None:
        try:
            result = work(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits
            failed = error  # the name of an except clause is gone after it
            post(lambda: done.set_exception(failed))
        else:
            post(lambda: done.set_result(result))

    threading.Thread(target=run, name=getattr(work, "__name__", "work"), daemon=True).start()
    return await done

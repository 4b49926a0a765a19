"""One puller at a time: a file lock that ends with its process, and a wait for it that is bounded."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from voice.errors import ModelMissing

POLL_S = 0.25
"""How often a waiter looks again, in seconds."""

_BUSY = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def exclusive(path: Path, *, stall_s: float, work_done: Callable[[], int]) -> Iterator[None]:
    """Hold the lock file ``path``; the system frees it when the process ends, however it ends.

    Args:
        path: The lock file; made when absent, and left in place.
        stall_s: Give up when the holder has shown no progress for so long, in seconds.
        work_done: A number that changes while the holder makes progress.

    Raises:
        ModelMissing: The holder got stuck.
    """
    with path.open("a+b") as file:
        looks_left = limit = max(1, round(stall_s / POLL_S))
        seen = work_done()
        while True:
            try:
                _take(file.fileno())
                break
            except OSError as error:
                if error.errno not in _BUSY:
                    raise
            looks_left -= 1
            if looks_left <= 0:
                raise ModelMissing(
                    f"another process has held {path} for {stall_s:.0f} s without progress; "
                    "end it and try again"
                )
            threading.Event().wait(POLL_S)
            if (now := work_done()) != seen:
                seen, looks_left = now, limit
        yield  # closing the file frees the lock

"""What does a process of this machine use, and how does a child end? From /proc, in one place."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def stat_fields(path: Path) -> list[str]:
    """What ``stat`` of a process or thread tells after its name: the state first, CPU ticks at 11 and 12.

    Raises:
        OSError: It is gone, or this system has no /proc.
    """
    return path.read_text().rsplit(")", 1)[1].split()


def cpu_s(fields: list[str]) -> float:
    """CPU seconds used, user and system, from :func:`stat_fields`."""
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def end(child: Process, within_s: float) -> None:
    """Tell a child to end; one that does not within that time is killed."""
    if child.returncode is None:
        child.terminate()
    try:
        async with asyncio.timeout(within_s):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
